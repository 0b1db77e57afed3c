"""Merging: each entity's events in order, once, at offsets that never change, whatever is killed or missing."""

import json
import os
import shutil
from pathlib import Path

import pytest

from stateside.core.clock import ManualClock
from stateside.core.errors import (
    JournalAway,
    JournalCorrupt,
    JournalLocked,
    PositionInvalid,
    SettingInvalid,
    StatesideError,
)
from stateside.journal.backends.nodes import Gap, MergedJournal, Merger, NodeWriter
from stateside.journal.backends.nodes import merger as merger_module
from stateside.journal.backends.nodes.partition import MergedPartition
from tests.journal.nodes.dying import Killed, at_call, die, event
from tests.sizes import some


def merged(folder: Path) -> list[tuple[str, str, int | None]]:
    stream = MergedJournal(folder)
    events = [found for name in stream.partitions() for found in stream.log(name).events()]
    return [(found.id, found.entity, found.sequence) for found in events]


def moved_to_and_fro(folder: Path, rounds: int = 3) -> None:
    """Emma's events, by turns in the logs of b and a: whoever reads a first meets gaps."""
    for number in range(0, 4 * rounds, 4):
        for name, first in (("b", number), ("a", number + 2)):
            with NodeWriter(folder, name) as node:
                node.append_to("emma", [event(f"{first}"), event(f"{first + 1}")])
                node.release(node.slots)


def test_the_events_of_all_nodes_are_merged_each_entity_s_in_order(tmp_path: Path) -> None:
    moved_to_and_fro(tmp_path)
    with Merger(tmp_path) as merger:
        assert merger.merge() == 12
        assert merger.merge() == 0
        assert merger.gaps() == []
    assert merged(tmp_path) == [(f"{number}", "emma", number + 1) for number in range(12)]


def test_an_entity_s_events_are_all_in_one_partition(tmp_path: Path) -> None:
    with NodeWriter(tmp_path, "a") as node, Merger(tmp_path, partitions=3) as merger:
        for number in range(30):
            node.append([event(f"{number}", f"entity-{number % 7}")])
            if number % 4 == 0:
                merger.merge()
        merger.merge()
    stream = MergedJournal(tmp_path)
    assert list(stream.partitions()) == ["0", "1", "2"]
    assert stream.end().events() == 30
    places: dict[str, set[str]] = {
        found.entity: set() for name in stream.partitions() for found in stream.log(name).events()
    }
    for name in stream.partitions():
        for found in stream.log(name).events():
            places[found.entity].add(name)
    assert len(places) == 7
    assert all(len(names) == 1 for names in places.values())


def test_there_is_one_merger_at_a_time(tmp_path: Path) -> None:
    with Merger(tmp_path), pytest.raises(JournalLocked, match="Another process merges"):
        Merger(tmp_path)


def test_the_number_of_partitions_is_for_life(tmp_path: Path) -> None:
    Merger(tmp_path, partitions=2).close()
    with pytest.raises(SettingInvalid, match="born with 2 partitions, not 3"):
        Merger(tmp_path, partitions=3)
    with pytest.raises(SettingInvalid, match="Give it 1 to 1000"):
        Merger(tmp_path / "other", partitions=0)
    Merger(tmp_path, partitions=2).close()


# Gaps


def test_an_event_waits_for_the_one_before_it_and_the_gap_is_told(tmp_path: Path) -> None:
    clock = ManualClock(1_000)
    with NodeWriter(tmp_path, "b", clock=clock) as other:
        other.append_to("emma", [event("0")])
        other.release(other.slots)
    clock.advance(500)
    with NodeWriter(tmp_path, "a", clock=clock) as node:
        node.append_to("emma", [event("1"), event("2")])
        node.append_to("ben", [event("ben", "ben")])
    away = (tmp_path / "nodes" / "b").rename(tmp_path / "away")
    with Merger(tmp_path) as merger:
        assert merger.merge() == 1
        assert merged(tmp_path) == [("ben", "ben", 1)]
        assert merger.gaps() == MergedJournal(tmp_path).gaps() == [Gap("emma", 1, 1_500)]
        away.rename(tmp_path / "nodes" / "b")
        assert merger.merge() == 3
        assert merger.gaps() == MergedJournal(tmp_path).gaps() == []
    assert merged(tmp_path) == [("ben", "ben", 1), ("0", "emma", 1), ("1", "emma", 2), ("2", "emma", 3)]


@pytest.mark.parametrize("waiting_bytes_max", [0, 3_000, 1 << 20])
def test_what_finds_no_room_to_wait_is_read_again(tmp_path: Path, waiting_bytes_max: int) -> None:
    moved_to_and_fro(tmp_path, rounds=5)
    with Merger(tmp_path, waiting_bytes_max=waiting_bytes_max) as merger:
        assert merger.merge() == 20
        assert merger.gaps() == []
        assert merger.sources.done == merger.sources.read
    assert merged(tmp_path) == [(f"{number}", "emma", number + 1) for number in range(20)]


def test_a_forgotten_event_is_not_looked_for_while_nothing_moves(tmp_path: Path) -> None:
    moved_to_and_fro(tmp_path, rounds=1)
    (tmp_path / "nodes" / "b").rename(tmp_path / "away")
    with Merger(tmp_path, waiting_bytes_max=0) as merger:
        merger.merge()
        assert merger.gaps() == [Gap("emma", 1, merger.gaps()[0].since_us)]
        cursors = dict(merger._cursors)
        assert merger.merge() == 0
        assert merger._cursors == cursors == {"a.1": 2}
        assert merger.sources.done["a.1"] == 0


def test_a_merger_that_starts_again_reads_what_waited_again(tmp_path: Path) -> None:
    moved_to_and_fro(tmp_path, rounds=1)
    with NodeWriter(tmp_path, "a") as node:
        node.append_to("ben", [event("ben", "ben")])
    away = (tmp_path / "nodes" / "b").rename(tmp_path / "away")
    with Merger(tmp_path) as merger:
        assert merger.merge() == 1
    with Merger(tmp_path) as merger:
        assert merger.sources.done["a.1"] == 0
        merger.merge()
        assert [gap.entity for gap in merger.gaps()] == ["emma"]
        away.rename(tmp_path / "nodes" / "b")
        assert merger.merge() == 4
        assert merger.duplicates == 0


# Duplicates


def test_an_event_that_comes_a_second_time_is_dropped_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with NodeWriter(tmp_path, "a") as node:
        node.append_to("emma", [event("0"), event("1")])
    shutil.copytree(tmp_path / "nodes" / "a", tmp_path / "nodes" / "b")
    with Merger(tmp_path) as merger:
        assert merger.merge() == 2
        assert merger.duplicates == 2
    assert "dropped the event at b.1:1: 'emma' has a sequence 2 already" in caplog.text
    assert merged(tmp_path) == [("0", "emma", 1), ("1", "emma", 2)]


# Crashes


CALLS = [("pwrite", call) for call in range(1, 12)] + [("fdatasync", call) for call in range(1, 8)]


@pytest.mark.parametrize(("function", "call"), some(CALLS, 3))
def test_a_merger_killed_at_any_call_loses_and_doubles_nothing_and_keeps_its_offsets(
    tmp_path: Path, function: str, call: int
) -> None:
    with NodeWriter(tmp_path, "a") as node:
        node.append([event(f"{number}", f"entity-{number % 5}") for number in range(20)])
        with Merger(tmp_path, partitions=3) as merger:
            merger.merge()
        node.append([event(f"{number}", f"entity-{number % 5}") for number in range(20, 40)])
    stream = MergedJournal(tmp_path)
    before = {name: list(stream.log(name).events()) for name in stream.partitions()}
    dying = Merger(tmp_path, partitions=3)
    try:
        with at_call(function, call, die):
            dying.merge()
    except Killed:
        pass
    seen = {name: list(stream.log(name).events()) for name in stream.partitions()}
    _kill(dying)
    with Merger(tmp_path, partitions=3) as merger:
        merger.merge()
        assert merger.duplicates == 0
    after = {name: list(stream.log(name).events()) for name in stream.partitions()}
    for name in stream.partitions():
        assert seen[name][: len(before[name])] == before[name]
        assert after[name][: len(seen[name])] == seen[name]
    found = sorted(int(id_) for id_, _, _ in merged(tmp_path))
    assert found == list(range(40))


def test_a_merger_goes_on_by_itself_after_a_failure(tmp_path: Path) -> None:
    def fail() -> None:
        raise OSError(28, "No space left on device")

    with NodeWriter(tmp_path, "a") as node, Merger(tmp_path) as merger:
        node.append_to("emma", [event("0")])
        merger.merge()
        node.append_to("emma", [event("1")])
        with at_call("pwrite", 2, fail), pytest.raises(JournalAway):
            merger.merge()
        assert merger.merge() == 1
    assert [id_ for id_, _, _ in merged(tmp_path)] == ["0", "1"]


def test_a_log_that_cannot_be_read_keeps_no_other_one_waiting(tmp_path: Path) -> None:
    for name in ("a", "b"):
        with NodeWriter(tmp_path, name) as node:
            node.append_to(name, [event(name, name)])
    path = next((tmp_path / "nodes" / "a" / "1").glob("*.segment"))
    content = path.read_bytes()
    path.write_bytes(content[:-1] + b"?")
    with Merger(tmp_path) as merger:
        for _ in range(2):
            with pytest.raises(JournalCorrupt, match="checksum"):
                merger.merge()
        assert merged(tmp_path) == [("b", "b", 1)]
        path.write_bytes(content)
        assert merger.merge() == 1
    assert merged(tmp_path) == [("b", "b", 1), ("a", "a", 1)]


def test_the_index_may_be_deleted(tmp_path: Path) -> None:
    moved_to_and_fro(tmp_path)
    with Merger(tmp_path) as merger:
        merger.merge()
    shutil.rmtree(tmp_path / "merged" / "index")
    with Merger(tmp_path) as merger:
        assert merger.merge() == 0
        with NodeWriter(tmp_path, "a") as node:
            node.append_to("emma", [event("12")])
        assert merger.merge() == 1


def test_a_stream_whose_birth_was_interrupted_is_born_anew(tmp_path: Path) -> None:
    with at_call("fsync", 3, die), pytest.raises(Killed):
        Merger(tmp_path, partitions=2)
    assert MergedJournal(tmp_path).id() is None
    with NodeWriter(tmp_path, "a") as node, Merger(tmp_path, partitions=2) as merger:
        node.append_to("emma", [event("0")])
        assert merger.merge() == 1


def test_a_stream_with_events_is_not_born_a_second_time(tmp_path: Path) -> None:
    with NodeWriter(tmp_path, "a") as node, Merger(tmp_path) as merger:
        node.append_to("emma", [event("0")])
        merger.merge()
    born = tmp_path / "merged" / "born"
    content = born.read_bytes()
    born.unlink()
    with pytest.raises(JournalCorrupt, match="the file `born` is missing"):
        Merger(tmp_path)
    born.write_bytes(content)
    shutil.rmtree(tmp_path / "merged" / "0")
    with pytest.raises(StatesideError):
        Merger(tmp_path)
    assert json.loads(content)["partitions"] == 1


def test_many_events_become_frames_of_a_bounded_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merger_module, "FRAME_EVENTS_MAX", 10)
    with NodeWriter(tmp_path, "a") as node, Merger(tmp_path) as merger:
        for number in range(12):
            node.append([event(f"{number}-{row}", f"entity-{row}") for row in range(4)])
        assert merger.merge() == 48
    frames = [batch.num_rows for _, batch in MergedPartition(tmp_path / "merged" / "0").batches(0, 48)]
    assert frames == [12] * 4


def _kill(merger: Merger) -> None:
    """What the operating system does for a process that was killed: its locks and files are given back."""
    for log in merger._logs.values():
        log._close_all()
    assert merger._index is not None
    merger._index.close()
    os.close(merger._lock)


def test_an_end_mark_that_went_back_with_the_power_is_told_until_the_node_is_opened(tmp_path: Path) -> None:
    mark = tmp_path / "nodes" / "a" / "1" / "end"
    with NodeWriter(tmp_path, "a") as node:
        node.append_to("emma", [event("0")])
        earlier = mark.read_bytes()
        node.append_to("emma", [event("1")])
    with Merger(tmp_path) as merger:
        assert merger.merge() == 2
        mark.write_bytes(earlier)
        with pytest.raises(PositionInvalid, match="let a writer open it first"):
            merger.merge()
        with NodeWriter(tmp_path, "a") as node:
            assert node.append_to("emma", [event("2")]).first_sequence == 3
        assert merger.merge() == 1
    assert [id_ for id_, _, _ in merged(tmp_path)] == ["0", "1", "2"]


def test_what_says_which_stream_it_is_is_never_guessed(tmp_path: Path) -> None:
    Merger(tmp_path).close()
    (tmp_path / "merged" / "born").write_text("?")
    for question in (lambda: Merger(tmp_path), MergedJournal(tmp_path).id):
        with pytest.raises(JournalCorrupt, match="identity of the merged stream cannot be read"):
            question()
