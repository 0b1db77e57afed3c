"""A state that Spark repartitions under a tail, by a batch that is all snapshots: no row is lost, none changes."""

from __future__ import annotations

import json
import shutil
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb
import pytest

from stateside.core.errors import CheckpointGap, CheckpointInvalid
from stateside.core.layout import Layout, ViewLayout
from stateside.replica.changes import Extent
from stateside.replica.keys import KeyCodec
from stateside.replica.replica_reader import ReplicaReader
from stateside.replica.rollup_tables import RollupRows
from stateside.replica.snapshot import Snapshot
from stateside.replica.store import ReplicaWriter
from stateside.replica.tail import Tail
from stateside.views.savepoint import take

from .spark_job import Changes, Job, answered, catalogue, has, replica_rows

STEPS = (2, 7, 1, 3)  # to how many partitions the state is brought


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(Layout(tmp_path).view("spending"), rollups=[["country"]])


@contextmanager
def following(view: ViewLayout) -> Iterator[Tail]:
    tail = Tail(view)
    try:
        yield tail
    finally:
        tail.close()


def some(number: int) -> Changes:
    rows = {(f"customer {each}", f"country {each % 3}"): (number, each) for each in range(40) if each % 4 != number % 4}
    return rows | {(f"customer {number}", f"country {number % 3}"): None}


def run(job: Job) -> None:
    """Two batches after each step."""
    for step, partitions in enumerate(STEPS):
        if step:
            job.repartition(partitions)
        for number in (2 * step, 2 * step + 1):
            job.run(some(number))


def rollup_by_country(snapshot: Snapshot) -> dict[str, int]:
    layout = RollupRows(catalogue().columns)
    found = {KeyCodec(["string"]).decode(key)[0]: layout.values(row) for key, row in snapshot.rollup(0, b"")}
    return {str(country): int(str(orders)) for country, (orders, _) in found.items()}


def check_as_of_every_batch(job: Job) -> None:
    """Rows and rollups, and that no batch of a repartitioning changed anything."""
    reader = ReplicaReader(job.view.replica)
    for batch, rows in enumerate(job.states):
        with reader.snapshot(as_of=batch) as snapshot:
            assert replica_rows(snapshot) == rows
            orders: dict[str, int] = defaultdict(int)
            for (_, country), (count, _) in rows.items():
                orders[country] += count
            assert rollup_by_country(snapshot) == orders
    with reader.snapshot() as snapshot:
        changed = [any(Extent().changed(snapshot, batch - 1, batch)) for batch in range(1, job.batch)]
    assert changed == [job.states[batch] != job.states[batch - 1] for batch in range(1, job.batch)]
    reader.close()


def test_a_replica_that_follows_has_every_row_after_every_batch_and_its_history(job: Job) -> None:
    with following(job.view) as tail:
        for step, partitions in enumerate(STEPS):
            if step:
                job.repartition(partitions)
                assert tail.step()
                assert has(tail) == (job.batch - 1, job.rows)
            for number in (2 * step, 2 * step + 1):
                job.run(some(number))
                assert tail.step()
                assert has(tail) == (job.batch - 1, job.rows)
    check_as_of_every_batch(job)
    assert not (job.view.replica / "current").exists(), "nothing had to be loaded"


def test_a_replica_that_finds_several_repartitionings_at_once_has_them_all(job: Job) -> None:
    run(job)
    with following(job.view) as tail:
        assert tail.step()
    check_as_of_every_batch(job)


def test_a_replica_that_comes_late_has_every_row_of_the_batch_that_it_finds(job: Job) -> None:
    run(job)
    commits = {batch: job.view.checkpoint / f"commits/{batch}" for batch in range(job.batch)}
    contents = {batch: commit.read_bytes() for batch, commit in commits.items()}
    for commit in commits.values():
        commit.unlink()
    for batch in range(2, job.batch):
        commits[batch].write_bytes(contents[batch])
        with following(job.view) as tail:
            assert tail.step()
            assert has(tail) == (batch, job.states[batch])
        shutil.rmtree(job.view.replica)
        commits[batch].unlink()


def test_a_failed_batch_that_spark_skips_before_it_repartitions_the_state_is_passed_over(job: Job) -> None:
    """`repartition(…, enforceExactlyOnceSink=False)`: that batch has a commit, and no state."""
    job.run(some(0))
    job.run(some(1))
    with following(job.view) as tail:
        tail.step()
        job.skip()
        with pytest.raises(CheckpointGap):
            tail.step()
        assert has(tail) == (1, job.rows)
        job.repartition(5)
        tail.step()
        assert has(tail) == (3, job.rows)
        job.run(some(2))
        tail.step()
        assert has(tail) == (4, job.rows)


@pytest.mark.parametrize("missing", ["4_*.zip", "SSTs/*.sst"])
def test_a_partition_that_is_not_there_is_told_and_nothing_is_answered_without_it(job: Job, missing: str) -> None:
    for number in range(3):
        job.run(some(number))
    with following(job.view) as tail:
        tail.step()
        job.repartition(7)
        (file, *_) = (job.view.checkpoint / "state/0/5").glob(missing)
        file.rename(job.view.root / "away")
        with pytest.raises(CheckpointGap):
            tail.step()
        assert has(tail) == (2, job.states[2])
        for batch in range(3):
            (job.view.checkpoint / f"commits/{batch}").unlink()
        late = ViewLayout(job.view.root / "late")
        late.root.mkdir()
        shutil.copy(job.view.catalogue, late.catalogue)
        shutil.copytree(job.view.checkpoint, late.checkpoint)
        with following(late) as cold:
            with pytest.raises(CheckpointGap):
                cold.step()
            assert has(cold) == (-1, {})
        (job.view.root / "away").rename(file)
        assert tail.step()
        assert has(tail) == (3, job.rows)


def test_a_damaged_snapshot_of_a_repartitioned_state_is_told_and_readers_keep_the_last_batch(job: Job) -> None:
    job.run(some(0))
    with following(job.view) as tail:
        tail.step()
        job.repartition(3)
        (file,) = (job.view.checkpoint / "state/0/2").glob("2_*.zip")
        content = file.read_bytes()
        file.write_bytes(content[:-30])
        with pytest.raises(CheckpointInvalid, match=file.name):
            tail.step()
        assert has(tail) == (0, job.states[0])
        file.write_bytes(content)
        tail.step()
    assert answered(job.view)[:2] == (1, job.rows)


def test_a_replica_of_an_older_version_is_loaded_again_for_it_may_lack_partitions(job: Job) -> None:
    job.run(some(0))
    job.repartition(7)
    with following(job.view) as tail:
        tail.step()
    make_older(job.view)
    assert len(answered(job.view)[1]) < len(job.rows)
    with following(job.view) as tail:
        assert tail.step()
        assert has(tail) == (1, job.rows)
        assert not tail.step()


def make_older(view: ViewLayout) -> None:
    """Leave the replica as the version before left it: without rows of some partitions, and not saying so."""
    writer = ReplicaWriter(view.replica)
    databases = writer._databases

    def change(transaction: lmdb.Transaction) -> None:
        batch = json.loads(bytes(transaction.get(b"batch", db=databases.meta) or b""))
        del batch["partitions"]
        transaction.put(b"batch", json.dumps(batch).encode(), db=databases.meta)
        with transaction.cursor(db=databases.rows) as cursor:
            assert cursor.first() and cursor.delete()

    writer._write(change)
    writer.close()


def test_savepoints_from_before_and_after_have_all_that_their_batches_need(job: Job) -> None:
    taken = []
    for step, partitions in enumerate(STEPS):
        if step:
            job.repartition(partitions)
            taken.append(take(job.view, now_us=1))
        job.run(some(step))
        taken.append(take(job.view, now_us=1))
    shutil.rmtree(job.view.checkpoint)
    for savepoint in taken:
        view = ViewLayout(job.view.root / savepoint.name)
        view.root.mkdir()
        shutil.copy(job.view.catalogue, view.catalogue)
        shutil.copytree(savepoint.checkpoint, view.checkpoint)
        with following(view) as tail:
            assert tail.step()
            assert has(tail) == (savepoint.batch, job.states[savepoint.batch])
