"""Savepoints: taken while a job runs, and a job that is begun again from one goes on as if nothing had been."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
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
    PipelineRunning,
    RequestInvalid,
)
from stateside.core.layout import Layout, ViewLayout
from stateside.core.positions import Position
from stateside.core.storage import Storage, try_lock, write_atomically
from stateside.journal import Event, FileLog, JournalWriter
from stateside.journal.backends.nodes.partition import StreamIdentity
from stateside.leadership import ApplicationLease, Candidate, Gates, Leadership
from stateside.ops.journal_readers import known_readers
from stateside.ops.restore import restore
from stateside.pipeline.runner import Runner
from stateside.spark_state.batch_log import Checkpoint
from stateside.views.savepoint import Savepoint, check_whole, savepoints, take
from tests.billing.written_bills import catalogue
from tests.sizes import in_full
from tests.written import WORDS, Written

NOW_US = 1_800_000_000_000_000


class Words:
    """A view that counts words, whose checkpoint is written as Spark does it."""

    def __init__(self, layout: Layout) -> None:
        self.layout, self.view = layout, layout.view("words")
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
        restore(words.layout, words.view, damaged.name, NOW_US)
    assert restore(words.layout, words.view, taken.name, NOW_US) is not None


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
        restore(words.layout, words.view, taken.name, NOW_US)
    assert files(words.view.checkpoint) == before


class TestRestoring:
    def test_the_savepoint_takes_the_checkpoint_s_place_which_is_put_aside(self, words: Words) -> None:
        taken = take(words.view, NOW_US)
        words.batch("d")
        old = files(words.view.checkpoint)
        aside = restore(words.layout, words.view, taken.name, NOW_US)
        assert aside is not None
        assert files(aside) == old
        assert files(words.view.checkpoint) == files(taken.checkpoint)
        assert Checkpoint(Storage.at(words.view.checkpoint)).commits() == [0, 1]

    def test_it_can_be_used_again_whatever_is_written_to_the_copy(self, words: Words) -> None:
        taken = take(words.view, NOW_US)
        before = files(taken.checkpoint)
        restore(words.layout, words.view, taken.name, NOW_US)
        for path in words.view.checkpoint.rglob("*"):
            if path.is_file():
                path.write_bytes(b"!")
        assert files(taken.checkpoint) == before

    def test_while_a_job_runs_it_is_refused(self, words: Words) -> None:
        taken = take(words.view, NOW_US)
        assert try_lock(words.layout.driver_lock) is not None
        with pytest.raises(PipelineRunning, match="A job runs on this folder"):
            restore(words.layout, words.view, taken.name, NOW_US)

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
            restore(words.layout, words.view, taken.name, NOW_US)
        shutil.rmtree(claims.parent)
        claims.parent.symlink_to("lease")  # any error but that it is absent
        with pytest.raises(OSError, match="symbolic links"):
            restore(words.layout, words.view, taken.name, NOW_US)
        assert files(words.view.checkpoint) == before

    def test_a_leader_that_was_only_paused_can_write_nothing_after_it(self, words: Words) -> None:
        taken = take(words.view, NOW_US)
        old = led(words.layout, "a", lease_s=0.4)
        assert try_lock(words.layout.driver_lock, shared=True) is not None, "its JVM has it, as leaders do"
        old.end()
        aside = restore(words.layout, words.view, taken.name, NOW_US)
        assert aside == words.view.root / f"checkpoint.before-{NOW_US}" and aside.is_dir()
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
        assert restore(words.layout, words.view, taken.name, NOW_US) is not None

    def test_who_loses_the_leadership_while_it_restores_changes_nothing_more(
        self, words: Words, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It is paused between the two renames; the job that leads then does not begin again, and says why."""
        taken = take(words.view, NOW_US)
        led(words.layout, "a").release()
        others: list[Leadership] = []

        def pause(self: Path, target: Path) -> Path:
            moved = rename(self, target)
            if "before" in target.name:
                epoch = ApplicationLease(words.layout.root).newest().epoch + 1  # type: ignore[union-attr]
                monkeypatch.setattr(Candidate, "_epoch_to_take", lambda candidate: epoch)  # a lease later
                others.append(led(words.layout, "c"))
            return moved

        rename = Path.rename
        monkeypatch.setattr(Path, "rename", pause)
        with pytest.raises(LeadershipLost, match=r"c .process"):
            restore(words.layout, words.view, taken.name, NOW_US)
        monkeypatch.undo()
        assert not words.view.checkpoint.exists()
        others[0].release()
        with pytest.raises(CheckpointInvalid, match=r"was interrupted.*Repeat"):
            start(words.layout)
        assert restore(words.layout, words.view, taken.name, NOW_US + 1) is None
        check_whole(words.layout)
        assert files(words.view.checkpoint) == files(taken.checkpoint)
        assert not list(words.view.root.glob("checkpoint.restoring*"))

    def test_an_unknown_name_is_told_with_those_that_there_are(self, words: Words) -> None:
        taken = take(words.view, NOW_US)
        with pytest.raises(RequestInvalid, match=f"no savepoint 'x'. There are: {taken.name}"):
            restore(words.layout, words.view, "x", NOW_US)

    def test_events_that_the_journal_has_dropped_are_missed_before_anything_is_moved(
        self, words: Words, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with JournalWriter(words.layout.journal) as writer:
            end = writer.append([Event(f"e-{number}", "emma", "word", 0, {}) for number in range(9)])
        taken, before = take(words.view, NOW_US), files(words.view.checkpoint)
        monkeypatch.setattr(FileLog, "begin", lambda journal: end)
        with pytest.raises(EventsGone, match="begins at 0:9, behind the savepoint's position 0:3"):
            restore(words.layout, words.view, taken.name, NOW_US)
        assert files(words.view.checkpoint) == before

    def test_so_are_those_of_any_partition_of_a_merged_stream(
        self, words: Words, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        taken, before = take(words.view, NOW_US), files(words.view.checkpoint)
        note = taken.folder / "savepoint.json"
        note.write_text(json.dumps(json.loads(note.read_bytes()) | {"position": "0:3,1:4"}))
        StreamIdentity.bear(words.layout.journal / "merged", 2)
        monkeypatch.setattr(FileLog, "begin", lambda journal: Position.of({"0": int(journal.directory.name) * 5}))
        with pytest.raises(EventsGone, match="behind the savepoint's position"):
            restore(words.layout, words.view, taken.name, NOW_US)
        assert files(words.view.checkpoint) == before

    def test_after_a_crash_between_the_two_renames_no_job_begins_and_the_same_command_does_the_rest(
        self, words: Words
    ) -> None:
        taken = take(words.view, NOW_US)
        shutil.copytree(taken.checkpoint, words.view.root / "checkpoint.restoring-1")
        check_whole(words.layout)  # a crash before them changes nothing
        words.view.checkpoint.rename(words.view.root / "checkpoint.before-1")
        with pytest.raises(CheckpointInvalid, match=r"was interrupted.*Repeat `stateside savepoint restore`"):
            start(words.layout)
        assert restore(words.layout, words.view, taken.name, NOW_US) is None
        assert files(words.view.checkpoint) == files(taken.checkpoint)


def test_the_commands_take_list_and_restore(words: Words) -> None:
    run, folder = CliRunner().invoke, str(words.layout.root)
    assert run(main, ["savepoint", "list", "--dir", folder]).output == "There is no savepoint.\n"
    told = json.loads(run(main, ["savepoint", "take", "--dir", folder, "--json"]).output)
    assert (told["batch"], told["position"]) == (1, "0:3")
    assert told["name"] in run(main, ["savepoint", "list", "--dir", folder, "--view", "words"]).output
    done = run(main, ["savepoint", "restore", told["name"], "--dir", folder, "--yes"])
    assert f"{told['name']} is the checkpoint now" in done.output
    unknown = run(main, ["savepoint", "restore", "typo", "--dir", folder])
    assert "has no savepoint 'typo'" in unknown.output and "Go on?" not in unknown.output
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
