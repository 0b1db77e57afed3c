"""Checkpoints that are retried, rolled back, replaced or thinned out under a tail: never a wrong row, nor none."""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from stateside.core.errors import CheckpointGap, CheckpointInvalid, ReplicaInvalid
from stateside.core.layout import Layout, ViewLayout
from stateside.replica import bootstrap
from stateside.replica.environment import current_folder
from stateside.replica.snapshot import Snapshot
from stateside.replica.tail import Tail
from tests.waiting import wait_until

from .spark_job import CODEC, DECODER, Changes, Job, answered, catalogue, has

CUSTOMERS, COUNTRIES = 8, 3


@pytest.fixture(params=[True, False], ids=["ids", "default store"])
def job(request: pytest.FixtureRequest, tmp_path: Path) -> Job:
    return Job(Layout(tmp_path).view("spending"), ids=request.param)


@contextmanager
def following(view: ViewLayout) -> Iterator[Tail]:
    tail = Tail(view)
    try:
        yield tail
    finally:
        tail.close()


def some(seed: int, rows: int = 6) -> Changes:
    draw = random.Random(seed)
    keys = {(f"customer {draw.randrange(CUSTOMERS)}", f"country {draw.randrange(COUNTRIES)}") for _ in range(rows)}
    return {key: None if draw.random() < 0.2 else (draw.randrange(9), draw.randrange(-99, 99)) for key in sorted(keys)}


def run(job: Job, seeds: Iterable[int]) -> None:
    for seed in seeds:
        job.run(some(seed))


def run_until(tail: Tail, told: Callable[[str], bool]) -> None:
    """Let it follow the checkpoint until readers are told this; nothing is told once it moves."""
    stop = threading.Event()
    thread = threading.Thread(target=tail.run, args=(stop,))
    thread.start()
    wait_until(lambda: told(tail._trouble or ""))
    stop.set()
    thread.join()


def test_every_batch_is_what_the_job_says_it_is(job: Job) -> None:
    with following(job.view) as tail:
        for seed in range(12):
            job.run(some(seed))
            assert tail.step()
            assert has(tail) == (seed, job.rows)
    for batch, rows in enumerate(job.states):
        assert answered(job.view, as_of=batch)[:2] == (batch, rows)


def test_of_a_batch_that_was_tried_several_times_the_attempt_that_was_committed_counts(job: Job) -> None:
    with following(job.view) as tail:
        job.run(some(0))
        job.plan()
        for seed in (1, 2, 3):
            job.store(some(seed))
            tail.step()
            assert has(tail) == (0, job.rows), "it is not committed"
        job.commit()
        tail.step()
        assert has(tail) == (1, job.rows)


def test_a_rolled_back_checkpoint_is_rebuilt_without_a_row_of_the_batches_that_are_undone(job: Job) -> None:
    with following(job.view) as tail:
        run(job, range(6))
        tail.step()
        job.roll_back(2)
        assert tail.step()
        assert has(tail) == (2, job.rows)
        run(job, range(100, 105))  # other events than the first time, past the batch that the replica had
        tail.step()
        assert has(tail) == (7, job.rows)


def test_a_checkpoint_rolled_back_and_gone_on_while_nobody_looked_is_rebuilt(job: Job) -> None:
    with following(job.view) as tail:
        run(job, range(6))
        tail.step()
    job.roll_back(2)
    run(job, range(100, 108))
    with following(job.view) as tail:
        tail.step()
        assert has(tail) == (10, job.rows)


def test_another_query_with_another_catalogue_is_read_by_that_one(job: Job) -> None:
    """A view that was declared again: its key's columns are in another order, its rollups are others."""
    run(job, range(3))
    with following(job.view) as tail:
        tail.step()
        shutil.rmtree(job.view.checkpoint)
        other = Job(job.view, ids=job.ids, rollups=[["country"]])
        declared = catalogue([["country"]])
        job.view.catalogue.write_bytes(replace(declared, key=declared.key[::-1]).as_json())
        other.run(some(7))
        tail.step()
        snapshot = Snapshot(tail._writer._published())
        found = {CODEC.decode(key)[::-1]: DECODER.decode(row) for key, row in snapshot.range(b"")}
        assert snapshot.rollups() == (("country",),)
    assert found == other.rows


def test_while_another_query_has_no_batch_yet_readers_keep_the_last_one_and_are_told(job: Job) -> None:
    run(job, range(3))
    with following(job.view) as tail:
        tail.step()
        shutil.rmtree(job.view.checkpoint)
        other = Job(job.view, ids=job.ids)
        with pytest.raises(CheckpointGap, match="was replaced, or rolled back before batch 2"):
            tail.step()
        assert has(tail) == (2, job.rows)
        other.run(some(7))
        tail.step()
        assert has(tail) == (0, other.rows)
        other.run(some(8))
        tail.step()
        assert has(tail) == (1, other.rows)


def test_readers_have_the_last_batch_until_the_new_one_is_whole(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at the replica after every row of a rebuild."""
    monkeypatch.setattr(bootstrap, "ROWS_AT_ONCE", 1)
    run(job, range(5))
    before = job.rows
    with following(job.view) as tail:
        tail.step()
        job.roll_back(1)
        seen = []

        class Looks(threading.Event):
            def is_set(self) -> bool:
                seen.append(has(tail))
                return False

        tail._stop = Looks()
        tail.step()
        assert seen.count((4, before)) > 3
        assert has(tail) == (1, job.rows)
        assert all(each in ((4, before), (1, job.rows)) for each in seen)


def test_a_replica_behind_batches_that_are_gone_is_loaded_from_snapshots(job: Job) -> None:
    with following(job.view) as tail:
        run(job, range(3))
        tail.step()
        for seed in range(3, 20):
            job.run(some(seed))
            if seed == 17:
                job.snapshot()
        job.purge(15)
        tail.step()
        assert has(tail) == (19, job.rows)


def test_a_file_missing_in_the_middle_is_told_by_name_and_the_replica_goes_on_once_it_is_back(job: Job) -> None:
    run(job, range(3))
    with following(job.view) as tail:
        tail.step()
        run(job, range(3, 6))
        missing = job.changes_file(4)
        content = missing.read_bytes()
        missing.unlink()
        for _ in range(2):
            with pytest.raises(CheckpointGap, match="The changes of batch 4 are gone") as error:
                tail.step()
            assert str(missing) in str(error.value)
            assert has(tail) == (3, job.states[3])
        missing.write_bytes(content)
        tail.step()
        assert has(tail) == (5, job.rows)


def test_a_file_missing_in_the_middle_is_not_needed_once_there_is_a_snapshot_after_it(job: Job) -> None:
    run(job, range(6))
    job.changes_file(2).unlink()
    job.snapshot(4)
    with following(job.view) as tail:
        tail.step()
        assert has(tail) == (5, job.rows)


@pytest.mark.parametrize("damage", ["cut short", "a bit flipped", "empty"])
def test_a_damaged_newest_snapshot_is_passed_over_for_an_older_one(job: Job, damage: str) -> None:
    run(job, range(12))
    job.snapshot(4)
    newest = job.snapshot(9)[1]
    job.purge(3)
    content = newest.read_bytes()
    flipped = content[:40] + bytes([content[40] ^ 4]) + content[41:]
    newest.write_bytes({"cut short": content[:-30], "a bit flipped": flipped, "empty": b""}[damage])
    with following(job.view) as tail:
        tail.step()
        assert has(tail) == (11, job.rows)


def test_if_all_snapshots_are_damaged_the_newest_is_told_and_readers_keep_the_last_batch(job: Job) -> None:
    run(job, range(2))
    with following(job.view) as tail:
        tail.step()
        run(job, range(2, 12))
        damaged = [*job.snapshot(4), *job.snapshot(9)]
        job.purge(3)
        for path in damaged:
            path.write_bytes(b"")
        with pytest.raises(Exception, match=r"/10[_.]") as error:
            tail.step()
        assert str(job.view.checkpoint) in str(error.value), "it names the file in the checkpoint, not a copy of it"
        assert has(tail) == (1, job.states[1])


def test_a_damaged_file_after_a_snapshot_is_told_by_its_place_in_the_checkpoint(job: Job) -> None:
    run(job, range(2))
    with following(job.view) as tail:
        tail.step()
        run(job, range(2, 12))
        job.snapshot(9)
        job.purge(8)
        damaged = [job.changes_file(10, partition) for partition in range(2)]
        contents = [path.read_bytes() for path in damaged]
        for path in damaged:
            path.write_bytes(path.read_bytes()[:-40])
        with pytest.raises(CheckpointInvalid) as error:
            tail.step()
        assert str(damaged[0]) in str(error.value)
        assert has(tail) == (1, job.states[1])
        for path, content in zip(damaged, contents, strict=True):
            path.write_bytes(content)
        tail.step()
        assert has(tail) == (11, job.rows)


def test_a_tail_that_is_to_end_stops_between_two_batches_of_many(job: Job) -> None:
    run(job, range(30))
    stop, tail = threading.Event(), Tail(job.view)
    stop.set()
    tail._stop = stop
    tail.step()
    batch, rows = has(tail)
    tail.close()
    assert 0 <= batch < 29
    assert rows == job.states[batch]


def test_random_histories_of_retries_rollbacks_and_replacements_never_leave_a_wrong_row(tmp_path: Path) -> None:
    for seed in range(6):
        draw = random.Random(seed)
        job = Job(Layout(tmp_path / str(seed)).view("spending"), ids=bool(seed % 2))
        with following(job.view) as tail:
            for step in range(25):
                match draw.choice(["run", "run", "run", "retry", "back", "replace", "snapshot", "purge"]):
                    case "run":
                        job.run(some(draw.randrange(10**6)))
                    case "retry":
                        job.plan()
                        job.store(some(draw.randrange(10**6)))
                        job.store(some(draw.randrange(10**6)))
                        job.commit()
                    case "back" if job.batch > 1:
                        job.roll_back(draw.randrange(max(0, job.batch - 3), job.batch - 1))
                        for each in (job.view.checkpoint / "state" / "0").rglob("*.snapshot"):
                            each.unlink()  # one of a batch that is undone would deceive Spark as well
                    case "replace":
                        shutil.rmtree(job.view.checkpoint)
                        job = Job(job.view, ids=job.ids)
                    case "snapshot" if job.batch:
                        job.snapshot()
                    case "purge" if job.batch > 4 and not step % 3:
                        job.snapshot(job.batch - 2)
                        job.purge(job.batch - 2)
                if draw.random() < 0.6 and job.batch:
                    tail.step()
                    assert has(tail) == (job.batch - 1, job.rows), f"seed {seed}, step {step}"


def test_what_happens_during_a_rebuild_is_told_to_readers_and_taken_back(job: Job) -> None:
    run(job, range(3))
    tail = Tail(job.view)
    tail.step()
    shutil.rmtree(job.view.checkpoint)
    other = Job(job.view, ids=job.ids)
    run_until(tail, lambda told: "no state to load yet" in told)
    assert "no state to load yet" in (answered(job.view)[2] or "")
    other.run(some(5))
    run_until(Tail(job.view), lambda told: not told)
    assert answered(job.view) == (0, other.rows, None)


@pytest.mark.parametrize("deleted", ["the folder", "the environment alone"])
def test_a_replica_deleted_under_its_tail_is_rebuilt_at_another_place_so_that_readers_follow(
    job: Job, deleted: str
) -> None:
    """Again and again: each time what was rebuilt is deleted."""
    run(job, range(3))
    with following(job.view) as tail:
        tail.step()
        places = [current_folder(job.view.replica)]
        for seed in range(3, 6):
            for path in (job.view.replica,) if deleted == "the folder" else job.view.replica.rglob("*.mdb"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            assert has(tail)[1] == job.rows, "who had it open has it still"
            run(job, [seed])
            assert tail.step()
            assert has(tail) == (seed, job.rows)
            places.append(current_folder(job.view.replica))
        with pytest.raises(ReplicaInvalid, match="Another process"):
            Tail(job.view)
    assert len(set(places)) == len(places)
    assert answered(job.view)[:2] == (5, job.rows)


def test_a_replica_deleted_before_there_is_a_state_to_load_waits_for_one(job: Job) -> None:
    with following(job.view) as tail:
        shutil.rmtree(job.view.replica)
        with pytest.raises(ReplicaInvalid, match="no state to load yet"):
            tail.step()
        run(job, range(2))
        assert tail.step()
        assert has(tail) == (1, job.rows)
    assert answered(job.view)[:2] == (1, job.rows)
