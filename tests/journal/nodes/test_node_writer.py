"""Owners of nodes: one at a time, fenced when they were paused, with the sequences of their entities."""

import os
import re
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from stateside.core.errors import (
    EntityElsewhere,
    EventRefused,
    JournalAway,
    JournalCorrupt,
    JournalFenced,
    JournalLocked,
    OperatingError,
    SequenceConflict,
    SettingInvalid,
)
from stateside.core.lease import Held, Owner
from stateside.core.positions import Position
from stateside.journal import append_batch
from stateside.journal import index as index_module
from stateside.journal.backends.nodes import NodeWriter, node_writer
from stateside.journal.backends.nodes.log import NodeLog, complete_logs, is_sealed, node_lease, node_logs
from stateside.journal.backends.nodes.node_index import Lasts, NodeIds
from stateside.journal.backends.nodes.ownership import SLOTS, slot_of
from stateside.journal.columns import encode
from tests.journal.conftest import strangers
from tests.journal.nodes.dying import Killed, after_check, at_call, die, event, kill
from tests.sizes import not_in_fast


def ids(log: NodeLog) -> list[tuple[str, int | None]]:
    return [(found.id, found.sequence) for found in log.events()]


def all_ids(folder: Path) -> list[tuple[str, int | None]]:
    return [entry for log in node_logs(folder).values() for entry in ids(log)]


def test_a_receipt_is_a_position_in_the_log_of_the_owner_s_epoch(tmp_path: Path) -> None:
    with NodeWriter(tmp_path, "a") as node:
        receipt = node.append_to("emma", [event("1"), event("2")])
        assert receipt.position == node.end == Position.of({"a.1": 2})
        assert (receipt.first_sequence, receipt.last_sequence) == (1, 2)
        assert node.append([event("3", "ben"), event("4")]) == Position.of({"a.1": 4})
    assert all_ids(tmp_path) == [("1", 1), ("2", 2), ("3", 1), ("4", 3)]


def test_a_node_opened_again_goes_on_in_its_log(tmp_path: Path) -> None:
    for number in range(3):
        with NodeWriter(tmp_path, "a") as node:
            assert node.append_to("emma", [event(f"{number}")]).last_sequence == number + 1
            assert node.epoch == 1
    assert list(node_logs(tmp_path)) == ["a.1"]


def test_a_node_has_one_owner_at_a_time(tmp_path: Path) -> None:
    with NodeWriter(tmp_path, "a"), pytest.raises(JournalLocked, match=f"Process {os.getpid()} owns this node"):
        NodeWriter(tmp_path, "a")


def test_processes_share_a_node_and_know_each_other_s_events(tmp_path: Path) -> None:
    with NodeWriter(tmp_path, "s", shared=True) as one, NodeWriter(tmp_path, "s", shared=True) as other:
        for number in range(1, 5):
            writer = (one, other)[number % 2]
            assert writer.append_to("emma", [event(f"{number}")], number - 1).position == Position.of({"s.1": number})
        assert other.append_to("emma", [event("1")]).position == one.append([event("1")]) == Position.of({"s.1": 1})
        with pytest.raises(JournalLocked, match="owns this node"):
            NodeWriter(tmp_path, "s")
        with pytest.raises(SettingInvalid, match="take_over=True"):
            one.release([slot_of("emma")])
    with NodeWriter(tmp_path, "s") as alone, pytest.raises(JournalLocked, match="owns this node"):
        assert alone.append_to("emma", [event("5")], 4).position == Position.of({"s.1": 5})
        NodeWriter(tmp_path, "s", shared=True)


@pytest.mark.parametrize("call", range(1, 8))
def test_an_append_of_one_owner_killed_anywhere_is_there_once_for_the_others(tmp_path: Path, call: int) -> None:
    with NodeWriter(tmp_path, "s", shared=True) as other:
        one = NodeWriter(tmp_path, "s", shared=True)
        one.append([event("1")])
        with suppress(Killed), at_call("pwrite", call, die):
            one.append([event("2")])
        kill(one)
        assert other.append_to("emma", [event("2")]).last_sequence == 2
        assert other.append_to("emma", [event("3")]).last_sequence == 3
    assert all_ids(tmp_path) == [("1", 1), ("2", 2), ("3", 3)]


def test_a_takeover_fences_all_who_share_a_node(tmp_path: Path) -> None:
    with NodeWriter(tmp_path, "s", shared=True) as one, NodeWriter(tmp_path, "s", shared=True) as other:
        one.append([event("1")])
        with NodeWriter(tmp_path, "s", take_over=True) as successor:
            for fenced in (one, other):
                with pytest.raises(JournalFenced):
                    fenced.append([event("2")])
            successor.release(successor.slots)
        with NodeWriter(tmp_path, "b") as elsewhere:
            assert elsewhere.append_to("emma", [event("2")]).last_sequence == 2
        with NodeWriter(tmp_path, "s", shared=True) as again, pytest.raises(EntityElsewhere):
            again.append([event("3")])


@pytest.mark.parametrize("name", ["", "a.b", "../a", "-a", "ä", "a" * 64])
def test_what_is_no_name_of_a_node_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(SettingInvalid, match="no name of a node"):
        NodeWriter(tmp_path, name)


def test_an_epoch_that_cannot_be_read_stops_everybody_and_says_what_to_do(tmp_path: Path) -> None:
    with NodeWriter(tmp_path, "a") as node:
        node.append([event("1")])
        (tmp_path / "nodes" / "a" / "epoch").write_text("?")
        with pytest.raises(JournalCorrupt, match="epoch cannot be read"):
            node.append([event("2")])
    with pytest.raises(JournalCorrupt, match="take the node over"):
        NodeWriter(tmp_path, "a", take_over=True)


def test_the_epoch_that_version_0_1_0_wrote_is_continued_and_written_in_its_form(tmp_path: Path) -> None:
    node, epoch = tmp_path / "nodes" / "a", tmp_path / "nodes" / "a" / "epoch"
    (node / "1").mkdir(parents=True)
    epoch.write_text("1 0123456789abcdef\n")
    (node / "1" / "owner").write_text("12345               ")  # of a process that is gone
    for take_over, number in ((False, 1), (True, 2)):
        with NodeWriter(tmp_path, "a", take_over=take_over) as owner:
            assert owner.epoch == number
            assert re.fullmatch(rf"{number} [0-9a-f]{{16}}\n", epoch.read_text())
            assert (node / str(number) / "owner").read_text().strip() == str(os.getpid())


# Sequences and ids


def test_an_entity_s_sequence_is_checked_when_one_is_expected(tmp_path: Path) -> None:
    with NodeWriter(tmp_path, "a") as node:
        node.append_to("emma", [event("1")], expected_sequence=0)
        with pytest.raises(SequenceConflict) as conflict:
            node.append_to("emma", [event("2")], expected_sequence=0)
        assert conflict.value.current == 1
        assert node.append_to("emma", [event("2")], expected_sequence=1).last_sequence == 2
        assert node.last_sequence("emma") == 2
        assert node.last_sequence("nobody") == 0


def test_the_same_events_again_get_their_first_receipt_from_any_owner_and_any_node(tmp_path: Path) -> None:
    events = [event("1"), event("2")]
    with NodeWriter(tmp_path, "a") as node:
        receipt = node.append_to("emma", events)
        node.append_to("emma", [event("3")])
        assert node.append_to("emma", events) == receipt
    with NodeWriter(tmp_path, "a", take_over=True) as node:
        assert node.append_to("emma", events, expected_sequence=7) == receipt
        node.release([slot_of("emma")])
        with NodeWriter(tmp_path, "b") as other:
            assert other.append_to("emma", events) == receipt
            with pytest.raises(EventRefused, match="'9' are not"):
                other.append_to("emma", [event("2"), event("9")])
    assert all_ids(tmp_path) == [("1", 1), ("2", 2), ("3", 3)]


@pytest.mark.parametrize("deleted", [False, True])
def test_the_index_may_be_deleted(tmp_path: Path, deleted: bool) -> None:
    with NodeWriter(tmp_path, "a") as node:
        receipt = node.append_to("emma", [event("1")])
        node._index.flush()
    if deleted:
        for path in (tmp_path / "nodes" / "a" / "1" / "index").iterdir():
            path.unlink()
    with NodeWriter(tmp_path, "a") as node:
        assert node.append_to("emma", [event("1")]) == receipt
        assert node.append_to("emma", [event("2")]).last_sequence == 2


def test_an_index_of_other_logs_is_made_anew(tmp_path: Path) -> None:
    for folder, count in ((tmp_path / "one", 3), (tmp_path / "other", 1)):
        with NodeWriter(folder, "a") as node:
            node.append_to("emma", [event(f"{folder.name}-{number}") for number in range(count)])
            node._index.flush()
    for path in (tmp_path / "one" / "nodes" / "a" / "1" / "index").iterdir():
        path.replace(tmp_path / "other" / "nodes" / "a" / "1" / "index" / path.name)
    with NodeWriter(tmp_path / "other", "a") as node:
        assert node.last_sequence("emma") == 1


# Entities that move


def test_an_entity_is_written_by_one_node_until_that_releases_it(tmp_path: Path) -> None:
    with NodeWriter(tmp_path, "a") as one, NodeWriter(tmp_path, "b") as other:
        one.append_to("emma", [event("1")])
        with pytest.raises(EntityElsewhere, match="by the node a"):
            other.append_to("emma", [event("2")])
        one.release([slot_of("emma")])
        assert other.append_to("emma", [event("2")]).first_sequence == 2
        with pytest.raises(EntityElsewhere, match="by the node b"):
            one.append_to("emma", [event("3")])
        other.release(other.slots)
        assert one.append_to("emma", [event("3")]).first_sequence == 3


def test_a_node_keeps_its_slots_when_it_is_closed(tmp_path: Path) -> None:
    with NodeWriter(tmp_path, "a") as one:
        one.claim(range(10))
    with NodeWriter(tmp_path, "b") as other:
        with pytest.raises(EntityElsewhere):
            other.claim([9])
        other.claim([10])
    with NodeWriter(tmp_path, "a") as one:
        assert one.slots == list(range(10))


def test_a_release_settles_what_an_append_that_failed_has_left(tmp_path: Path) -> None:
    """The frame is whole, but behind the end mark: it must count before another node gives its sequence away."""
    with NodeWriter(tmp_path, "a") as one, NodeWriter(tmp_path, "b") as other:
        one.append_to("emma", [event("1")])
        with at_call("fdatasync", 1, die), pytest.raises(Killed):
            one.append_to("emma", [event("2")])
        one.release([slot_of("emma")])
        assert other.append_to("emma", [event("3")]).first_sequence == 3
        assert other.append_to("emma", [event("2")]).position == Position.of({"a.1": 2})


def test_a_release_that_a_fenced_owner_had_begun_comes_too_late(tmp_path: Path) -> None:
    one = NodeWriter(tmp_path, "a")
    one.append_to("emma", [event("1")])
    successors = []

    def take_over() -> None:
        successors.append(NodeWriter(tmp_path, "a", take_over=True))

    with after_check(2, take_over), pytest.raises(JournalFenced):
        one.release([slot_of("emma")])
    with successors[0] as successor, NodeWriter(tmp_path, "b") as other:
        with pytest.raises(EntityElsewhere):
            other.append_to("emma", [event("2")])
        assert successor.append_to("emma", [event("2")]).first_sequence == 2
    kill(one)


# Takeovers

PAUSES: dict[str, Callable[[Callable[[], None]], AbstractContextManager[object]]] = {
    "before the frame": lambda action: at_call("pwrite", 1, action),
    "inside the frame": lambda action: at_call("pwrite", 2, action),
    "before its sync": lambda action: at_call("fdatasync", 1, action),
    "before the fence": lambda action: at_call("check", 2, action, Held),
    "behind the fence": lambda action: after_check(2, action),
    "before the mark": lambda action: at_call("pwrite", 3, action),
}


@pytest.mark.parametrize("where", PAUSES)
@pytest.mark.parametrize("segment_bytes_max", [1, 1 << 20])
def test_an_owner_paused_anywhere_is_fenced_or_its_event_counts(
    tmp_path: Path, where: str, segment_bytes_max: int
) -> None:
    """Acknowledged: in the log, before the successor's events. Fenced: never beside them with the same sequence."""
    paused = NodeWriter(tmp_path, "a", segment_bytes_max=segment_bytes_max)
    paused.append_to("emma", [event("1"), event("2")])
    seen: list[tuple[str, int | None]] = []

    def succeed() -> None:
        with NodeWriter(tmp_path, "a", take_over=True) as successor:
            assert successor.epoch == 2
            successor.append_to("emma", [event("new")])
        seen.extend(all_ids(tmp_path))

    try:
        with PAUSES[where](succeed):
            paused.append_to("emma", [event("paused")])
        acknowledged = True
    except JournalFenced:
        acknowledged = False
    assert seen, "there was no pause"
    assert all_ids(tmp_path) == seen, "what the fenced owner still wrote counts nowhere"
    assert [sequence for _, sequence in seen] == list(range(1, len(seen) + 1))
    assert ("paused" in dict(seen)) >= acknowledged
    with pytest.raises(JournalFenced, match="the owner of epoch 2 has the node now"):
        paused.append_to("emma", [event("later")])
    with pytest.raises(JournalFenced):
        paused.release([slot_of("emma")])
    kill(paused)
    with NodeWriter(tmp_path, "a") as successor:
        assert successor.append_to("emma", [event("paused")]).last_sequence == dict(seen).get("paused", len(seen) + 1)


@pytest.mark.parametrize(("where", "acknowledged"), [("before the fence", False), ("behind the fence", True)])
def test_the_fence_decides(tmp_path: Path, where: str, acknowledged: bool) -> None:
    paused = NodeWriter(tmp_path, "a")
    paused.append_to("emma", [event("1")])
    outcome = None
    with PAUSES[where](lambda: NodeWriter(tmp_path, "a", take_over=True).close()):
        try:
            outcome = paused.append_to("emma", [event("2")])
        except JournalFenced:
            outcome = None
    assert (outcome is not None) == acknowledged
    assert all_ids(tmp_path) == [("1", 1), ("2", 2)], "it was whole before the seal in both cases"
    kill(paused)


def test_a_torn_frame_of_a_paused_owner_is_outside_the_seal_even_if_it_is_finished_later(tmp_path: Path) -> None:
    paused = NodeWriter(tmp_path, "a")
    paused.append_to("emma", [event("1")])
    with (
        at_call("pwrite", 2, lambda: NodeWriter(tmp_path, "a", take_over=True).close()),
        pytest.raises(JournalFenced),
    ):
        paused.append_to("emma", [event("2")])
    log = node_logs(tmp_path)["a.1"]
    assert is_sealed(log.directory)
    assert ids(log) == [("1", 1)]
    kill(paused)


STEPS = [("replace", Path, call) for call in range(1, 5)] + [("fsync", os, call) for call in range(1, 8)]


@pytest.mark.parametrize(("function", "owner", "call"), STEPS)
def test_a_takeover_killed_at_any_step_is_finished_by_the_next_owner(
    tmp_path: Path, function: str, owner: object, call: int
) -> None:
    first = NodeWriter(tmp_path, "a")
    first.append_to("emma", [event("1"), event("2")])
    died = False
    try:
        with at_call(function, call, die, owner):
            NodeWriter(tmp_path, "a", take_over=True).close()
    except Killed:
        died = True
    changed = node_lease(tmp_path / "nodes" / "a").newest() != first._held.claim
    if changed:
        with pytest.raises(JournalFenced):
            first.append_to("emma", [event("fenced")])
    else:
        assert first.append_to("emma", [event("3")]).last_sequence == 3
    kill(first)
    with NodeWriter(tmp_path, "a") as next_one:
        assert next_one.epoch == (2 if changed else 1)
        assert next_one.append_to("emma", [event("4")]).last_sequence == (3 if changed else 4)
    assert is_sealed(tmp_path / "nodes" / "a" / "1") == changed
    assert died or call > 2


def test_after_a_failed_sync_the_owner_takes_nothing_more_and_the_next_one_goes_on(tmp_path: Path) -> None:
    def fail() -> None:
        raise OSError(5, "Input/output error")

    with NodeWriter(tmp_path, "a") as node:
        node.append_to("emma", [event("1")])
        with at_call("fdatasync", 1, fail), pytest.raises(OperatingError, match="failed to sync"):
            node.append_to("emma", [event("2")])
        with pytest.raises(OperatingError, match="Open the journal again"):
            node.append_to("emma", [event("3")])
    with NodeWriter(tmp_path, "a") as node:
        assert node.append_to("emma", [event("3")]).last_sequence == 3
        assert node.append_to("emma", [event("2")]).last_sequence == 2


def test_a_claim_that_a_fenced_owner_had_begun_does_not_keep_its_successor_from_a_release(tmp_path: Path) -> None:
    """Found by the machine in test_any_order: the successor released by a grant that was not the newest any more."""
    paused, successors = NodeWriter(tmp_path, "a"), []

    def succeed() -> None:
        successors.append(NodeWriter(tmp_path, "a", take_over=True))
        successors[0].append_to("emma", [event("1")])

    with after_check(1, succeed), pytest.raises(JournalFenced):
        paused.append_to("emma", [event("2")])
    with successors[0] as successor, NodeWriter(tmp_path, "b") as other:
        successor.release(successor.slots)
        assert other.append_to("emma", [event("3")]).first_sequence == 2
    kill(paused)


def test_an_owner_s_own_accident_is_settled_at_its_next_append(tmp_path: Path) -> None:
    with NodeWriter(tmp_path, "a") as node:
        node.append_to("emma", [event("1")])
        with at_call("fdatasync", 1, die), pytest.raises(Killed):
            node.append_to("emma", [event("2")])
        assert node.append_to("emma", [event("3")]).first_sequence == 3
        assert node.append_to("emma", [event("2")]).first_sequence == 2


def test_a_release_syncs_the_end_mark_before_the_slot_is_free(tmp_path: Path) -> None:
    with NodeWriter(tmp_path, "a") as node:
        node.append_to("emma", [event("1")])
        order: list[object] = []
        real = Path.symlink_to

        def link(path: Path, target: str) -> None:
            order.append(target)
            real(path, target)

        with patch.object(os, "fdatasync", side_effect=order.append), patch.object(Path, "symlink_to", link):
            node.release([slot_of("emma")])
        assert order == [node._log._mark, "-"]


def test_what_a_paused_owner_did_not_sync_is_written_again_before_it_is_sealed(tmp_path: Path) -> None:
    paused = NodeWriter(tmp_path, "a")
    paused.append_to("emma", [event("1")])
    begin, calls = paused._log._end.segment_bytes, []
    with at_call("fdatasync", 1, die), pytest.raises(Killed):
        paused.append_to("emma", [event("2")])
    frame = os.pread(paused._log._file, 10_000, begin)

    def recorded(name: str) -> Callable[..., object]:
        real = getattr(os, name)

        def noted(handle: int, *rest: Any) -> object:
            calls.append((name, *map(bytes, rest[:1]), *rest[1:]))
            return real(handle, *rest)

        return noted

    with patch.object(os, "pwrite", recorded("pwrite")), patch.object(os, "fdatasync", recorded("fdatasync")):
        NodeWriter(tmp_path, "a", take_over=True).close()
    at = calls.index(("pwrite", frame, begin))
    assert calls[at + 1] == ("fdatasync",)
    kill(paused)


def test_threads_share_a_node(tmp_path: Path) -> None:
    with NodeWriter(tmp_path, "a") as node, ThreadPoolExecutor(8) as threads:
        entities = [f"entity-{number % 3}" for number in range(90)]
        receipts = threads.map(
            lambda at: node.append_to(entities[at], [event(f"{at}", entities[at])]), range(len(entities))
        )
        found = sorted((entity, receipt.first_sequence) for entity, receipt in zip(entities, receipts, strict=True))
    assert found == [(f"entity-{number}", sequence) for number in range(3) for sequence in range(1, 31)]


def test_a_batch_gets_its_sequences_whatever_it_has(tmp_path: Path) -> None:
    with NodeWriter(tmp_path, "a") as node:
        node.append_batch(encode([event("1"), event("2", "ben"), event("3")], 7))
        assert node.append_batch(encode([], 7)) == Position.of({"a.1": 3})
    assert all_ids(tmp_path) == [("1", 1), ("2", 1), ("3", 2)]


def test_a_disk_that_refuses_is_told_and_nothing_is_acknowledged(tmp_path: Path) -> None:
    def fail() -> None:
        raise OSError(28, "No space left on device")

    with at_call("mkdir", 1, fail, Path), pytest.raises(OperatingError, match="No space left on device"):
        NodeWriter(tmp_path, "a")
    with NodeWriter(tmp_path, "a") as node:
        with at_call("symlink_to", 1, fail, Path), pytest.raises(OperatingError, match="Make room or mend the disk"):
            node.append_to("emma", [event("1")])
        with at_call("pwrite", 1, fail), pytest.raises(OperatingError, match="No space left on device"):
            node.append_to("emma", [event("1")])
        assert node.append_to("emma", [event("1")]).first_sequence == 1


def test_threads_share_the_syncs_of_their_node(tmp_path: Path) -> None:
    with NodeWriter(tmp_path, "a") as node, ThreadPoolExecutor(32) as threads:
        node.claim(range(SLOTS))
        real = os.fdatasync

        def slow(handle: int) -> None:
            time.sleep(0.005)
            real(handle)

        with patch.object(os, "fdatasync", side_effect=slow) as syncs:
            receipts = list(threads.map(lambda at: node.append([event(f"{at}", f"entity-{at % 7}")]), range(200)))
        assert syncs.call_count < 100
    found = [one.id for one in node_logs(tmp_path)["a.1"].events()]
    assert [found[receipt["a.1"] - 1] for receipt in receipts] == [f"{at}" for at in range(200)]


def test_an_append_for_another_node_is_refused_before_it_joins_others(tmp_path: Path) -> None:
    with NodeWriter(tmp_path, "a") as node, NodeWriter(tmp_path, "b") as other:
        node.append([event("1")])
        with pytest.raises(EntityElsewhere):
            other.append([event("2", "ben"), event("3")])
        with pytest.raises(EventRefused, match="Event 1 of the batch"):
            other.append([event("2", "ben"), event("3", "\ud800")])
        assert other.append([event("2", "ben")]) == Position.of({"b.1": 1})


def test_no_sequence_is_given_while_a_log_is_missing(tmp_path: Path) -> None:
    """Else an acknowledged event would be dropped as a duplicate when the log is back."""
    with NodeWriter(tmp_path, "b") as other:
        other.append_to("emma", [event("1")])
    with NodeWriter(tmp_path, "b", take_over=True) as other:
        other.append_to("emma", [event("2")])
        other.release(other.slots)
    with NodeWriter(tmp_path, "a") as node:
        for missing in (tmp_path / "nodes" / "b", tmp_path / "nodes" / "b" / "1", tmp_path / "nodes" / "b" / "2"):
            away = missing.rename(tmp_path / "away")
            for _ in range(2):
                with pytest.raises(JournalAway, match=r"The log b\.[12] is missing"):
                    node.append_to("emma", [event("3")])
            with pytest.raises(JournalAway, match="is missing"):
                NodeWriter(tmp_path, "c")
            away.rename(missing)
        assert node.append_to("emma", [event("3")]).first_sequence == 3


def test_an_id_of_another_entity_s_event_is_refused_and_not_taken_for_a_repetition(tmp_path: Path) -> None:
    with NodeWriter(tmp_path, "a") as node:
        node.append_to("ben", [event("1", "ben")])
        with pytest.raises(EventRefused, match="'1' is that of an event of 'ben'"):
            node.append_to("emma", [event("1", "emma")])
        assert node.last_sequence("emma") == 0


def test_a_node_that_gets_an_entity_knows_the_ids_that_others_stored_meanwhile(tmp_path: Path) -> None:
    with NodeWriter(tmp_path, "a") as one, NodeWriter(tmp_path, "b") as other:
        other.append_to("ben", [event("ben", "ben")])
        other.append_to("ben", [event("ben", "ben")])  # by now it has an index of all ids
        receipt = one.append_to("emma", [event("1")])
        one.release(one.slots)
        assert other.append_to("emma", [event("1")]) == receipt
        assert other.append_to("emma", [event("2")]).first_sequence == 2


LATER_OWNER = """
import sys
from pathlib import Path
from stateside.journal import Event
from stateside.journal.backends.nodes import NodeWriter
with NodeWriter(Path(sys.argv[1]), "a") as node:
    print(node.append_to("emma", [Event("2", "emma", "call", 1, {})]).position)
"""


@not_in_fast("whole processes")
def test_of_two_owners_of_one_epoch_the_later_one_counts(tmp_path: Path, run_python: Callable[..., str]) -> None:
    """The lock is on a file that somebody deleted: both have one."""
    first = NodeWriter(tmp_path, "a")
    first.append_to("emma", [event("1")])
    (tmp_path / "nodes" / "a" / "1" / "owner").unlink()
    assert run_python(LATER_OWNER, tmp_path) == "a.1:2\n"
    with pytest.raises(JournalFenced):
        first.append_to("emma", [event("3")])
    kill(first)
    assert all_ids(tmp_path) == [("1", 1), ("2", 2)]


def test_a_fenced_owner_makes_no_end_mark_where_one_is_missing(tmp_path: Path) -> None:
    node = NodeWriter(tmp_path, "a")
    node.append_to("emma", [event("1")])
    mark = tmp_path / "nodes" / "a" / "1" / "end"
    mark.unlink()
    assert node_lease(tmp_path / "nodes" / "a").claim(Owner.of(2), after=node._held.claim)
    node._log._settled = False
    with pytest.raises(JournalFenced), node._log.turn():
        pass
    assert not mark.exists()
    kill(node)


def test_what_a_producer_has_no_receipt_for_is_looked_for_behind_its_last_one_in_all_epochs(tmp_path: Path) -> None:
    with NodeWriter(tmp_path, "a") as node:
        last = node.append([event("1")])
        node.append([event("2")])
    with NodeWriter(tmp_path, "a", take_over=True) as node:
        found = node.append_unstored([event("2"), event("3")], since=last)
        assert found == Position.of({"a.1": 2, "a.2": 1})
        assert node.append_unstored([event("1"), event("2"), event("3")], since=Position.start()) == found
        assert all_ids(tmp_path) == [("1", 1), ("2", 2), ("3", 3)]
        since = node.append([event("4")])
        assert node.append_unstored([event("2"), event("3"), event("4")], since=since).covers(since)
    assert [id_ for id_, _ in all_ids(tmp_path)] == ["1", "2", "3", "4"]


def test_an_append_of_what_is_stored_once_gives_each_event_s_own_receipt(tmp_path: Path) -> None:
    with NodeWriter(tmp_path, "a") as one, NodeWriter(tmp_path, "b") as other:
        one.append_to("emma", [event("1")])
        one.release(one.slots)
        told = other.append_once([event("2"), event("1"), event("3"), event("2")])
        assert [str(receipt) for receipt in told] == ["b.1:1", "a.1:1", "b.1:2", "b.1:1"]
        assert other.append_once([event("3"), event("1")]) == [told[2], told[1]]
    assert sorted(all_ids(tmp_path)) == [("1", 1), ("2", 2), ("3", 3)]


# Errors behind an event that is stored

NOTHING = "Nothing was stored"


def test_who_cannot_look_into_the_epoch_behind_a_sync_takes_nothing_more(tmp_path: Path) -> None:
    def fail() -> None:
        raise OSError(24, "Too many open files")

    with NodeWriter(tmp_path, "a") as node:
        node.append([event("1")])
        with at_call("check", 2, fail, Held), pytest.raises(JournalAway, match="Too many open files") as raised:
            node.append([event("2")])
        assert NOTHING not in str(raised.value)
        with pytest.raises(JournalAway, match="Open the journal again"):
            node.append([event("2")])
    with NodeWriter(tmp_path, "a") as node:
        node.append_unstored([event("2")], since=Position.of({"a.1": 1}))
    assert all_ids(tmp_path) == [("1", 1), ("2", 2)]


def test_an_index_that_cannot_be_written_stops_an_append_before_it_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "UNWRITTEN_MAX", 1)
    full = OSError(28, "No space left on device")
    with NodeWriter(tmp_path, "a") as node:
        node.append([event("1")])
        with (
            patch.object(Lasts, "_put", side_effect=full),
            pytest.raises(JournalAway, match=NOTHING),
        ):
            node.append([event("2")])
        assert all_ids(tmp_path) == [("1", 1)]
        node.append([event("2")])
    assert all_ids(tmp_path) == [("1", 1), ("2", 2)]


# Files


def test_a_closed_writer_touches_no_file_any_more_and_may_be_closed_again(tmp_path: Path) -> None:
    node = NodeWriter(tmp_path / "journal", "a")
    node.append([event("1")])
    node.close()
    grants = sorted((tmp_path / "journal" / "slots").iterdir())
    others = strangers(tmp_path, 8)
    for act in (
        lambda: node.append([event("2")]),
        lambda: node.append_to("ben", [event("2", "ben")]),
        lambda: node.claim(range(SLOTS)),
        lambda: node.release(range(SLOTS)),
    ):
        with pytest.raises(JournalAway, match="closed"):
            act()
    node.close()
    assert {os.pread(handle, 200, 0) for handle in others} == {b"V" * 100}
    for handle in others:
        os.close(handle)
    assert sorted((tmp_path / "journal" / "slots").iterdir()) == grants
    assert all_ids(tmp_path / "journal") == [("1", 1)]


def test_an_opening_that_fails_leaves_no_file_open(tmp_path: Path) -> None:
    NodeWriter(tmp_path, "a").close()
    with NodeWriter(tmp_path, "b") as other:
        other.append([event("1")])
    shutil.rmtree(tmp_path / "nodes" / "b" / "1")
    before = open_files(tmp_path)
    for _ in range(2):
        with pytest.raises(JournalAway, match=r"log b\.1 is missing") as raised:
            NodeWriter(tmp_path, "a")
        assert open_files(tmp_path) == before, raised  # while the error, and all it knows, is still there


def open_files(folder: Path) -> list[str]:
    """The files of this folder that the process has open."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the one that lists them
            found.append(str(link.readlink()))
    return sorted(name for name in found if name.startswith(str(folder)))


def test_a_repeated_append_looks_the_logs_and_its_ids_up_once(tmp_path: Path) -> None:
    """Its events lie so far apart that each is read by itself."""
    gap = [event(f"other-{number}") for number in range(append_batch.GAP_MAX + 1)]
    with NodeWriter(tmp_path, "a") as node:
        for number in range(5):
            node.append([event(f"{number}"), *gap], compare_ids=False)
        repeated = [event(f"{number}") for number in range(5)]
        receipt = node.append(repeated)
        with patch.object(node_writer, "complete_logs", wraps=complete_logs) as looked:
            assert node.append(repeated) == receipt
        assert looked.call_count == 1
        first = node.append_to("emma", [event("once")])
        with patch.object(NodeIds, "places", autospec=True, side_effect=NodeIds.places) as places:
            assert node.append_to("emma", [event("once")]) == first
        assert places.call_count == 1
