"""Savepoints: taken while a job runs, and a job that is begun again from one goes on as if nothing had been."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

import stateside
from stateside.cli import main
from stateside.core.clock import ManualClock
from stateside.core.errors import (
    CheckpointGap,
    CheckpointInvalid,
    EventsGone,
    LeadershipLost,
    LeaseInvalid,
    NotFreshEnough,
    PipelineRunning,
    RequestInvalid,
)
from stateside.core.layout import BARRIER, POINTERS, Layout, ViewLayout
from stateside.core.positions import Position
from stateside.core.storage import Storage, try_lock, write_atomically
from stateside.journal import Event, FileLog, JournalWriter, open_journal
from stateside.journal.backends.nodes.partition import StreamIdentity
from stateside.leadership import ApplicationLease, Candidate, Gates, Leadership
from stateside.ops.journal_readers import known_readers
from stateside.ops.restore import Restored, bring_back, copy, delete, fork, parts_of, restore
from stateside.pipeline.runner import Runner
from stateside.spark_state.batch_log import Checkpoint
from stateside.views.savepoint import (
    Savepoint,
    batch_at,
    check_whole,
    savepoint_sets,
    savepoints,
    take,
    take_all,
)
from stateside.views.view_generations import roll_back
from tests.billing.written_bills import catalogue
from tests.sizes import in_full
from tests.waiting import wait_until
from tests.written import WORDS, Written

NOW_US = 1_800_000_000_000_000


class Words:
    """A view that counts words, whose checkpoint is written as Spark does it."""

    def __init__(self, layout: Layout, name: str = "words") -> None:
        self.layout, self.view = layout, layout.view(name)
        self.view.root.mkdir(parents=True)
        write_atomically(self.view.catalogue, catalogue().as_json())
        self.written = Written(self.view.checkpoint, WORDS)
        self.counted = 0

    def batch(self, *words: str) -> None:
        self.counted += len(words)
        source = json.dumps({"journal": "6f7e", "0": self.counted})
        self.written.batch([([word], [1]) for word in words], source=source, watermark_us=5_000_000)


@pytest.fixture
def words(layout: Layout) -> Words:
    made = Words(layout)
    made.batch("a", "b")
    made.batch("c")
    return made


def restored(words: Words, name: str, **options: bool) -> Restored:
    (made,) = restore(words.layout, parts_of(words.layout, name, [words.view]), **options)
    return made


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_savepoint_is_of_the_newest_finished_batch_and_says_where_it_stands(words: Words) -> None:
    taken = take(words.view, NOW_US)
    assert (taken.batch, str(taken.position), taken.watermark_us, taken.taken_us) == (1, "0:3", 5_000_000, NOW_US)
    assert taken.bytes == sum(map(len, files(taken.checkpoint).values())) > 0
    assert savepoints(words.view) == [taken]
    assert Checkpoint(Storage.at(taken.checkpoint)).fingerprint(1) == taken.fingerprint


def test_it_stays_as_it_is_whatever_becomes_of_the_checkpoint(words: Words) -> None:
    taken = take(words.view, NOW_US)
    before = files(taken.checkpoint)
    words.batch("d")
    shutil.rmtree(words.view.checkpoint)
    assert files(taken.checkpoint) == before
    assert {name for name in before if name.startswith("state/0/0/") and "_" not in name} == {
        "state/0/0/1.delta",
        "state/0/0/2.delta",
    }


def test_a_batch_has_one_savepoint_and_the_next_batch_another(words: Words) -> None:
    first = take(words.view, NOW_US)
    assert take(words.view, NOW_US + 1) == first
    words.batch("d")
    second = take(words.view, NOW_US + 2)
    assert [one.batch for one in savepoints(words.view)] == [1, 2]
    assert second.name != first.name


def test_what_a_crash_left_is_no_savepoint_and_goes_with_the_next(words: Words) -> None:
    left = words.view.savepoints / ".taking-0123"
    (left / "checkpoint").mkdir(parents=True)
    assert savepoints(words.view) == []
    taken = take(words.view, NOW_US)
    assert (savepoints(words.view), left.exists()) == ([taken], False)


def test_without_a_finished_batch_there_is_none_and_that_is_said(layout: Layout) -> None:
    made = Words(layout)
    with pytest.raises(CheckpointInvalid, match="has no finished batch yet"):
        take(made.view, NOW_US)


def test_a_state_that_cannot_be_had_is_told_and_nothing_is_left(words: Words) -> None:
    (words.view.checkpoint / "state/0/0/1.delta").unlink()
    with pytest.raises(CheckpointGap):
        take(words.view, NOW_US)
    assert savepoints(words.view) == []
    assert [path.name for path in words.view.savepoints.iterdir()] == [".lock"]


def test_two_that_are_taken_at_once_do_not_disturb_each_other(words: Words) -> None:
    found: list[Savepoint] = []
    threads = [threading.Thread(target=lambda: found.append(take(words.view, NOW_US))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [found[0]] * 4
    assert len(savepoints(words.view)) == 1


@pytest.mark.parametrize("damage", [lambda note: {}, lambda note: note | {"position": "nowhere"}])
def test_a_damaged_one_is_told_with_its_place(words: Words, damage: Callable[[Any], Any]) -> None:
    taken = take(words.view, NOW_US)
    note = taken.folder / "savepoint.json"
    note.write_text(json.dumps(damage(json.loads(note.read_bytes()))))
    with pytest.raises(CheckpointInvalid, match=r"savepoint\.json"):
        savepoints(words.view)


def test_a_damaged_one_keeps_nobody_from_the_others(words: Words) -> None:
    damaged = take(words.view, NOW_US)
    (damaged.folder / "savepoint.json").write_text("{}")
    words.batch("d")
    taken = take(words.view, NOW_US)
    told = CliRunner().invoke(main, ["savepoint", "list", "--dir", str(words.layout.root)])
    assert told.exit_code == 0 and taken.name in told.output and "This savepoint cannot be read" in told.output
    with pytest.raises(CheckpointInvalid, match=damaged.name):
        restored(words, damaged.name)
    restored(words, taken.name)


def test_one_that_is_deleted_while_they_are_listed_is_none(words: Words, monkeypatch: pytest.MonkeyPatch) -> None:
    deleted = take(words.view, NOW_US)
    words.batch("d")
    taken = take(words.view, NOW_US)
    read = Savepoint.read.__func__  # type: ignore[attr-defined]

    def delete(cls: type[Savepoint], folder: Path) -> Savepoint:
        shutil.rmtree(deleted.folder, ignore_errors=True)
        return read(cls, folder)  # type: ignore[no-any-return]

    monkeypatch.setattr(Savepoint, "read", classmethod(delete))
    assert savepoints(words.view) == [taken]


def test_a_savepoint_is_durable_before_it_has_its_name(words: Words, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether its files are links or copies: neither Spark nor a copy makes them so."""
    durable: set[int] = set()
    fsync, rename = os.fsync, Path.rename

    def remember(handle: int) -> None:
        durable.add(os.fstat(handle).st_ino)
        fsync(handle)

    def look(self: Path, target: Path) -> Path:
        assert {path.stat().st_ino for path in [self, *self.rglob("*")]} <= durable
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", remember)
    monkeypatch.setattr(Path, "rename", look)
    taken = take(words.view, NOW_US)
    assert savepoints(words.view) == [taken]


def test_retention_keeps_what_comes_after_a_savepoint(words: Words) -> None:
    with JournalWriter(words.layout.journal) as writer:
        writer.append([Event(f"e-{number}", "emma", "word", 0, {}) for number in range(9)])
    take(words.view, NOW_US)
    for _ in range(2):
        words.batch("d")
    found = {reader.name.split()[1]: str(reader.position) for reader in known_readers(words.layout)}
    assert found == {"view": "0:4", "savepoint": "0:3"}


def test_retention_keeps_what_comes_after_a_savepoint_also_while_the_checkpoint_is_put_aside(words: Words) -> None:
    with JournalWriter(words.layout.journal) as writer:
        writer.append([Event("e-0", "emma", "word", 0, {})])
    take(words.view, NOW_US)
    words.view.checkpoint.rename(words.view.root / "checkpoint.before-1")  # as a crash in the middle of restoring does
    found = {reader.name.split()[1]: str(reader.position) for reader in known_readers(words.layout)}
    assert found == {"savepoint": "0:3"}


def led(layout: Layout, name: str, lease_s: float = 4.0, clock: ManualClock | None = None) -> Leadership:
    leadership = Candidate(layout.root, name, lease_s=lease_s, clock=clock).wait(lambda: False)
    assert leadership is not None
    return leadership


@contextmanager
def beating(standby: Candidate) -> Iterator[None]:
    """A standby for which it is never the right moment to lead: another one was, by a hair, each time."""
    standby._epoch_to_take = lambda: None  # type: ignore[method-assign]
    ended = threading.Event()
    thread = threading.Thread(target=standby.wait, args=(ended.is_set,))
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def start(layout: Layout) -> None:
    """Start a job that must be refused before Spark starts."""
    app = stateside.App("words")
    app.view(key=["entity"])(words_of)
    with Runner(app, layout):
        raise AssertionError("a job runs")


def words_of(events: Any) -> Any:
    raise AssertionError("Spark has started")


def refused(words: Words, taken: Savepoint, match: str) -> None:
    before = files(words.view.checkpoint)
    with pytest.raises(PipelineRunning, match=match):
        restored(words, taken.name)
    assert files(words.view.checkpoint) == before


class TestRestoring:
    def test_the_savepoint_becomes_a_generation_and_the_one_before_is_kept(self, words: Words) -> None:
        taken = take(words.view, NOW_US)
        words.batch("d")
        old = files(words.view.checkpoint)
        made = restored(words, taken.name)
        view = words.layout.view("words")
        assert (view.generation, made.before.number, made.replayed) == (2, 1, 1)
        assert files(words.view.checkpoint) == old
        assert files(view.checkpoint) == files(taken.checkpoint)
        assert Checkpoint(Storage.at(view.checkpoint)).commits() == [0, 1]
        assert words.layout.pointers()["words"].at_once, "readers go back in time"
        assert roll_back(words.layout, "words").number == 1

    def test_it_can_be_used_again_whatever_becomes_of_the_generation(self, words: Words) -> None:
        taken = take(words.view, NOW_US)
        before = files(taken.checkpoint)
        restored(words, taken.name)
        for path in words.layout.view("words").checkpoint.rglob("*.delta"):
            if path.is_file():
                write_atomically(path, b"!")  # as Spark does: it changes no file in place
        assert files(taken.checkpoint) == before
        assert restored(words, taken.name).after.number == 3

    def test_a_missing_or_changed_file_is_named_and_nothing_is_restored(self, words: Words) -> None:
        taken = take(words.view, NOW_US)
        state = taken.checkpoint / "state/0/0/1.delta"
        content = state.read_bytes()
        write_atomically(state, content[:-1] + b"!")
        with pytest.raises(CheckpointInvalid, match=r"its content has changed.*1\.delta"):
            restored(words, taken.name)
        state.unlink()
        with pytest.raises(CheckpointInvalid, match=r"it is missing.*1\.delta"):
            restored(words, taken.name)
        assert words.layout.view("words") == words.view
        state.write_bytes(content)
        assert taken.verify() > 5

    def test_batches_whose_plans_are_gone_are_not_repeated_unless_told(self, words: Words) -> None:
        taken = take(words.view, NOW_US)
        for word in "def":
            words.batch(word)
        (words.view.checkpoint / "offsets/3").unlink()
        with pytest.raises(CheckpointGap, match="after batch 2 are not known any more"):
            restored(words, taken.name)
        query = Checkpoint(Storage.at(words.view.checkpoint)).query_id()
        made = restored(words, taken.name, deliver_again=True)
        again = Checkpoint(Storage.at(words.layout.view("words").checkpoint)).query_id()
        assert made.replayed == 0 and again not in (None, query), "a sink takes no batch for one that it has"

    def test_while_a_job_runs_it_is_refused(self, words: Words) -> None:
        taken = take(words.view, NOW_US)
        assert try_lock(words.layout.driver_lock) is not None
        with pytest.raises(PipelineRunning, match="A job runs on this folder"):
            restored(words, taken.name)

    @pytest.mark.parametrize("clock_us", [NOW_US, 0, 2 * NOW_US])
    def test_while_somebody_leads_it_is_refused_whatever_the_clocks_say(self, words: Words, clock_us: int) -> None:
        taken = take(words.view, NOW_US)
        leader = led(words.layout, "a", clock=ManualClock(clock_us))
        refused(words, taken, "lead this folder or stand by for it: .*a")
        leader.check()
        leader.release()

    def test_a_leader_whose_name_another_process_has_leads_all_the_same(self, words: Words) -> None:
        taken = take(words.view, NOW_US)
        leader = led(words.layout, "a")
        member = words.layout.root / "lease" / "members" / "a.json"
        member.write_text(json.dumps(json.loads(member.read_bytes()) | {"token": "stranger"}))
        refused(words, taken, "stand by for it: a .process")
        leader.check()
        leader.release()

    @pytest.mark.parametrize("stands_by", [True, False])
    def test_while_somebody_stands_by_or_starts_it_is_refused(self, words: Words, stands_by: bool) -> None:
        taken = take(words.view, NOW_US)
        led(words.layout, "a", lease_s=30.0).release()
        other = Candidate(words.layout.root, "b", lease_s=2.0)
        assert other.enter(lambda: False)
        with beating(other) if stands_by else other.getting_ready():
            refused(words, taken, "stand by for it: b")

    def test_a_lease_that_cannot_be_read_is_not_taken_for_none(self, words: Words) -> None:
        taken, before = take(words.view, NOW_US), files(words.view.checkpoint)
        led(words.layout, "a").release()
        claims = words.layout.root / "lease" / "claims"
        (claims / "2.json").write_text("{")
        with pytest.raises(LeaseInvalid, match="claim of epoch 2 cannot be read"):
            restored(words, taken.name)
        shutil.rmtree(claims.parent)
        claims.parent.symlink_to("lease")  # any error but that it is absent
        with pytest.raises(OSError, match="symbolic links"):
            restored(words, taken.name)
        assert files(words.view.checkpoint) == before

    def test_a_leader_that_was_only_paused_can_write_nothing_after_it(self, words: Words) -> None:
        taken = take(words.view, NOW_US)
        old = led(words.layout, "a", lease_s=0.4)
        assert try_lock(words.layout.driver_lock, shared=True) is not None, "its JVM has it, as leaders do"
        old.end()
        restored(words, taken.name)
        with pytest.raises(LeadershipLost):
            old.check()
        with pytest.raises(OSError, match="symbolic links"):
            (Layout(old.root).view("words").checkpoint / "offsets" / "9").write_text("")
        led(words.layout, "c").release()  # at once: it was released

    def test_one_whom_the_storage_failed_once_does_not_take_itself_for_another(
        self, words: Words, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        taken = take(words.view, NOW_US)
        led(words.layout, "a").release()
        shut_before = Gates.shut_before

        def fail(gates: Gates, epoch: int) -> None:
            monkeypatch.setattr(Gates, "shut_before", shut_before)
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(Gates, "shut_before", fail)
        restored(words, taken.name)

    def test_who_loses_the_leadership_while_it_restores_changes_nothing(
        self, words: Words, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It is paused before the last step, in which all would change."""
        taken = take(words.view, NOW_US)
        led(words.layout, "a").release()
        others: list[Leadership] = []

        def pause(path: Path, plans: Any, **options: Any) -> None:
            epoch = ApplicationLease(words.layout.root).newest().epoch + 1  # type: ignore[union-attr]
            monkeypatch.setattr(Candidate, "_epoch_to_take", lambda candidate: epoch)  # a lease later
            others.append(led(words.layout, "c"))
            write(path, plans, **options)

        write = POINTERS.write
        monkeypatch.setattr("stateside.views.view_generations.POINTERS", SimpleNamespace(write=pause))
        with pytest.raises(LeadershipLost, match=r"c .process"):
            restored(words, taken.name)
        monkeypatch.undo()
        others[0].release()
        assert words.layout.view("words") == words.view
        assert restored(words, taken.name).after.number == 2

    def test_an_unknown_name_is_told_with_those_that_there_are(self, words: Words) -> None:
        taken = take(words.view, NOW_US)
        with pytest.raises(RequestInvalid, match=f"no savepoint 'x'.*There are: {taken.name}"):
            restored(words, "x")

    def test_events_that_the_journal_has_dropped_are_missed_before_anything_is_moved(
        self, words: Words, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with JournalWriter(words.layout.journal) as writer:
            end = writer.append([Event(f"e-{number}", "emma", "word", 0, {}) for number in range(9)])
        taken, before = take(words.view, NOW_US), files(words.view.checkpoint)
        monkeypatch.setattr(FileLog, "begin", lambda journal: end)
        with pytest.raises(EventsGone, match="begins at 0:9, after the savepoint's position 0:3"):
            restored(words, taken.name)
        assert files(words.view.checkpoint) == before

    def test_so_are_those_of_any_partition_of_a_merged_stream(
        self, words: Words, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        taken, before = take(words.view, NOW_US), files(words.view.checkpoint)
        note = taken.folder / "savepoint.json"
        note.write_text(json.dumps(json.loads(note.read_bytes()) | {"position": "0:3,1:4"}))
        StreamIdentity.bear(words.layout.journal / "merged", 2)
        monkeypatch.setattr(FileLog, "begin", lambda journal: Position.of({"0": int(journal.directory.name) * 5}))
        with pytest.raises(EventsGone, match="after the savepoint's position"):
            restored(words, taken.name)
        assert files(words.view.checkpoint) == before

    def test_after_an_interrupted_restore_of_0_1_0_no_job_begins_and_the_same_command_does_the_rest(
        self, words: Words
    ) -> None:
        taken = take(words.view, NOW_US)
        shutil.copytree(taken.checkpoint, words.view.root / "checkpoint.restoring-1")
        check_whole(words.layout)  # a crash before the two renames changes nothing
        words.view.checkpoint.rename(words.view.root / "checkpoint.before-1")
        with pytest.raises(CheckpointInvalid, match=r"was interrupted.*Repeat `stateside savepoint restore`"):
            start(words.layout)
        restored(words, taken.name)
        check_whole(words.layout)
        assert files(words.layout.view("words").checkpoint) == files(taken.checkpoint)


class TestWholeApplications:
    """Savepoints of all views."""

    def test_of_views_at_one_position_it_is_taken_at_once(self, words: Words) -> None:
        other = Words(words.layout, "others")
        other.batch("x", "y", "z")
        made = take_all(words.layout, [words.view, other.view], NOW_US)
        assert (str(made.position), sorted(made.views)) == ("0:3", ["others", "words"])
        assert savepoint_sets(words.layout) == [made] and not words.layout.barrier.exists()

    def test_views_of_another_source_are_taken_where_they_stand(self, words: Words) -> None:
        other = Words(words.layout, "others")
        other.written.batch([(["x"], [1])], source=json.dumps({"calls": {"0": 12}}))
        made = take_all(words.layout, [words.view, other.view], NOW_US)
        assert str(made.position) == "0:3,calls-0:12"

    def test_views_that_stand_elsewhere_are_told(self, words: Words) -> None:
        other = Words(words.layout, "others")
        other.batch("x")
        with pytest.raises(NotFreshEnough, match="words at 0:3, others at 0:1"):
            take_all(words.layout, [words.view, other.view], NOW_US, wait_s=0.05)
        assert savepoint_sets(words.layout) == [] and not words.layout.barrier.exists()

    def test_a_view_that_runs_on_meets_the_others_at_the_barrier(self, words: Words) -> None:
        other = Words(words.layout, "others")
        other.batch("x")

        def run() -> None:
            wait_until(words.layout.barrier.exists)
            assert str(BARRIER.read(words.layout.barrier)) == "0:3"
            words.batch("d")  # the foremost one has passed it, and does not wait
            other.batch("y", "z")
            other.batch("d")

        thread = threading.Thread(target=run)
        thread.start()
        made = take_all(words.layout, [words.view, other.view], NOW_US)
        thread.join()
        assert {view: part.batch for view, part in made.parts(words.layout).items()} == {"words": 1, "others": 1}

    def test_it_is_deleted_with_those_of_its_views_that_no_other_one_needs(self, words: Words) -> None:
        first = take_all(words.layout, [words.view], NOW_US)
        second = take_all(words.layout, [words.view], NOW_US + 1)
        assert first.views == second.views and first.name != second.name
        delete(words.layout, first.name, {})
        assert len(savepoints(words.view)) == 1
        delete(words.layout, second.name, {})
        assert (savepoints(words.view), savepoint_sets(words.layout)) == ([], [])

    def test_it_is_restored_whole_in_one_step(self, words: Words) -> None:
        other = Words(words.layout, "others")
        other.batch("x", "y", "z")
        made = take_all(words.layout, [words.view, other.view], NOW_US)
        words.batch("d")
        restore(words.layout, parts_of(words.layout, made.name, []))
        assert {each.name: each.generation for each in words.layout.views()} == {"others": 2, "words": 2}


def test_any_batch_that_spark_keeps_can_be_taken_by_number_or_by_time(words: Words) -> None:
    assert take(words.view, NOW_US, 0).batch == 0
    with pytest.raises(RequestInvalid, match=r"no batch 7 .*It has 0 to 1"):
        take(words.view, NOW_US, 7)
    for batch, time_s in ((0, 100), (1, 200)):
        os.utime(words.view.checkpoint / f"commits/{batch}", (time_s, time_s))
    assert [batch_at(words.view, time_s * 1_000_000) for time_s in (100, 199, 200, 999)] == [0, 0, 1, 1]
    with pytest.raises(RequestInvalid, match=r"The oldest one is of 1970-01-01T00:01:40Z"):
        batch_at(words.view, 99_000_000)


def test_a_second_one_reads_only_the_files_that_are_new(words: Words, monkeypatch: pytest.MonkeyPatch) -> None:
    first, read = take(words.view, NOW_US), list[str]()
    words.batch("d")

    def noted(path: Path) -> str:
        read.append(path.name)
        return ""

    monkeypatch.setattr("stateside.views.savepoint._digest", noted)
    second = take(words.view, NOW_US)
    assert {"3.delta", "2"} <= set(read) and not {"1.delta", "2.delta", "metadata"} & set(read)
    assert (second.checkpoint / "state/0/0/1.delta").samefile(first.checkpoint / "state/0/0/1.delta")


def test_a_copy_elsewhere_is_verified_and_can_be_restored(words: Words, tmp_path: Path) -> None:
    taken = take(words.view, NOW_US)
    made = copy(taken.name, {"words": taken}, tmp_path / "elsewhere")
    before = files(taken.checkpoint)
    shutil.rmtree(taken.folder)
    with pytest.raises(RequestInvalid, match="already"):
        copy(taken.name, {"words": taken}, tmp_path / "elsewhere")
    restore(words.layout, bring_back(words.layout, made))
    assert files(words.layout.view("words").checkpoint) == before
    (made / "words" / taken.name / "checkpoint/metadata").write_text("{}")
    with pytest.raises(CheckpointInvalid, match="its content has changed"):
        bring_back(words.layout, made)
    with pytest.raises(RequestInvalid, match="is no copy of a savepoint"):
        bring_back(words.layout, tmp_path)


def test_a_fork_has_the_state_and_the_events_and_nothing_of_it_comes_back(words: Words, tmp_path: Path) -> None:
    with JournalWriter(words.layout.journal) as writer:
        writer.append([Event(f"e-{number}", "emma", "word", 0, {}) for number in range(9)])
    taken = take(words.view, NOW_US)
    words.batch("d")
    made = fork(words.layout, taken.name, {"words": taken}, tmp_path / "fork")
    assert files(made.view("words").checkpoint) == files(taken.checkpoint)
    assert open_journal(made.journal).id() == open_journal(words.layout.journal).id()
    with JournalWriter(made.journal) as writer:
        writer.append([Event("f-0", "emma", "word", 0, {})])
    assert [str(open_journal(each.journal).end()) for each in (words.layout, made)] == ["0:9", "0:10"]
    assert json.loads(made.fork.read_text()) == {"of": str(words.layout.root), "savepoint": taken.name}
    with pytest.raises(RequestInvalid, match="already"):
        fork(words.layout, taken.name, {"words": taken}, tmp_path / "fork")


def test_the_commands_take_list_and_restore(words: Words) -> None:
    run, folder = CliRunner().invoke, str(words.layout.root)
    assert run(main, ["savepoint", "list", "--dir", folder]).output == "There is no savepoint.\n"
    told = json.loads(run(main, ["savepoint", "take", "--dir", folder, "--json"]).output)
    assert (told["batch"], told["position"]) == (1, "0:3")
    assert told["name"] in run(main, ["savepoint", "list", "--dir", folder, "--view", "words"]).output
    done = run(main, ["savepoint", "restore", told["name"], "--dir", folder, "--yes"])
    assert "words: goes on after batch 1; generation 2 is served from now on; generation 1 is kept" in done.output
    unknown = run(main, ["savepoint", "restore", "typo", "--dir", folder])
    assert "There is no savepoint 'typo'" in unknown.output and "Go on?" not in unknown.output
    missing = run(main, ["savepoint", "take", "--dir", folder, "--view", "x"])
    assert "There is no view 'x' in this folder" in missing.output


STATE = "spark.sql.streaming.stateStore"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
HDFS = ROCKSDB.replace("RocksDB", "HDFSBacked")
NO_CHANGELOGS = {f"{STATE}.rocksdb.changelogCheckpointing.enabled": "false"}
FORMAT_1 = {f"{STATE}.providerClass": HDFS, f"{STATE}.checkpointFormatVersion": "1"}


@pytest.mark.spark
@pytest.mark.parametrize(
    ("kind", "conf"),
    [
        ("sum", {}),
        ("join", {}),
        ("sum", NO_CHANGELOGS),
        pytest.param("sum", FORMAT_1, marks=in_full("Spark's default store, and its format without ids")),
        pytest.param("join", FORMAT_1, marks=in_full("Spark's default store, and its format without ids")),
    ],
)
def test_a_query_that_begins_again_from_a_savepoint_says_what_it_would_have_said(
    spark: Any, tmp_path: Path, kind: str, conf: dict[str, str]
) -> None:
    from tests.spark_settings import conf as configured

    view, again = ViewLayout(tmp_path / "views" / "v"), tmp_path / "again"
    with configured(spark, conf):
        for number in range(3):
            ran(spark, tmp_path, view.checkpoint, kind, number)
        taken = take(view, NOW_US)
        expected = ran(spark, tmp_path, view.checkpoint, kind, 3)
        shutil.rmtree(view.checkpoint)
        shutil.copytree(taken.checkpoint, again)
        assert ran(spark, tmp_path, again, kind, 3) == expected
    assert len(expected) > 1
    assert taken.batch == 2


def ran(spark: Any, folder: Path, checkpoint: Path, kind: str, number: int) -> list[tuple[Any, ...]]:
    """What a query says in the batch of one more file."""
    events, found = folder / "events", list[tuple[Any, ...]]()
    events.mkdir(exist_ok=True)
    lines = "".join(f"id{number}-{line % 7},{'abc'[(number + line) % 3]},{number * 10 + line}\n" for line in range(9))
    (events / f"{number}.csv").write_text(lines)

    def stream() -> Any:
        return spark.readStream.schema("id string, word string, n int").csv(str(events))

    if kind == "join":
        other = stream().selectExpr("word", "n as other")
        query, mode = stream().join(other, "word"), "append"
    else:
        query, mode = stream().dropDuplicates(["id"]).groupBy("word").sum("n"), "update"
    writer = query.writeStream.outputMode(mode).foreachBatch(lambda rows, _: found.extend(map(tuple, rows.collect())))
    started = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    started.awaitTermination()
    return sorted(found)
