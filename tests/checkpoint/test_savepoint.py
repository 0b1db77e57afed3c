"""Savepoints: taken while a job runs, and a job that is begun again from one goes on as if nothing had been."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from stateside.checkpoint.log import Checkpoint
from stateside.checkpoint.savepoint import Savepoint, savepoints, take
from stateside.cli import main
from stateside.clock import ManualClock
from stateside.errors import CheckpointGap, CheckpointInvalid, EventsGone, PipelineRunning, RequestInvalid
from stateside.journal import Event, JournalWriter
from stateside.layout import Layout, ViewLayout
from stateside.leadership import Candidate
from stateside.ops import restoring
from stateside.ops.journal_readers import known_readers
from stateside.ops.restoring import restore
from stateside.storage import Storage, try_lock, write_atomically
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


def test_a_damaged_one_is_told_with_its_place(words: Words) -> None:
    taken = take(words.view, NOW_US)
    (taken.folder / "savepoint.json").write_text("{}")
    with pytest.raises(CheckpointInvalid, match=r"savepoint\.json"):
        savepoints(words.view)


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
    words.view.checkpoint.rename(
        words.view.root / "checkpoint.before-1"
    )  # as a crash in the middle of restoring has it
    found = {reader.name.split()[1]: str(reader.position) for reader in known_readers(words.layout)}
    assert found == {"savepoint": "0:3"}


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

    def test_while_somebody_leads_or_stands_by_on_whichever_machine_it_is_refused(self, words: Words) -> None:
        taken = take(words.view, NOW_US)
        leader = Candidate(words.layout.root, "a", lease_s=2.0, clock=ManualClock(NOW_US)).wait(lambda: False)
        assert leader is not None
        with pytest.raises(PipelineRunning, match="stand by for it: a on"):
            restore(words.layout, words.view, taken.name, NOW_US + 5_900_000)
        leader.end()  # as if it were killed
        restore(words.layout, words.view, taken.name, NOW_US + 6_100_000)

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
        monkeypatch.setattr(restoring.Journal, "begin", lambda journal: end)
        with pytest.raises(EventsGone, match="begins at 9, behind the savepoint's position 0:3"):
            restore(words.layout, words.view, taken.name, NOW_US)
        assert files(words.view.checkpoint) == before

    def test_after_a_crash_between_the_two_renames_the_same_command_does_the_rest(self, words: Words) -> None:
        taken = take(words.view, NOW_US)
        words.view.checkpoint.rename(words.view.root / "checkpoint.before-1")
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


def ran(spark: Any, folder: Path, checkpoint: Path, kind: str, number: int) -> list[Sequence[Any]]:
    """What a query says in the batch of one more file."""
    events, found = folder / "events", list[Sequence[Any]]()
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
