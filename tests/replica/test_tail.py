"""The tail on real checkpoints that are replaced, rolled back, taken away or thinned out under it."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import stateside
from stateside.core.errors import CheckpointGap, CheckpointInvalid
from stateside.core.layout import Layout
from stateside.journal import Event
from stateside.replica.store import ReplicaReader, ReplicaWriter
from stateside.replica.tail import Tail
from stateside.testing import append, rows, run_to
from tests.waiting import wait_until

pytestmark = pytest.mark.spark

app = stateside.App("shop", fields="amount long")


@app.view(key=["entity"])
def spending(events: DataFrame) -> DataFrame:
    return events.groupBy("entity").agg(F.sum("amount").alias("total"))


def run(layout: Layout, spark: SparkSession, **amounts: int) -> None:
    """One more batch."""
    append(layout, [Event(f"{name}-{time.time_ns()}", name, "order", 0, {"amount": n}) for name, n in amounts.items()])
    run_to(app, layout, spark)


@contextmanager
def following(layout: Layout) -> Iterator[Tail]:
    """A tail that stands at the newest batch."""
    tail = Tail(layout.view("spending"))
    try:
        tail.step()
        yield tail
    finally:
        tail.close()


def totals(layout: Layout) -> dict[str, int]:
    return {row["entity"]: row["total"] for row in rows(layout, "spending")}


def test_a_checkpoint_that_is_replaced_while_it_is_followed_is_read_anew(spark: SparkSession, layout: Layout) -> None:
    """A new query on the same journal, some batches further than the replica: none of the old rows may stay."""
    run(layout, spark, emma=1, oliver=1)
    with following(layout) as tail:
        shutil.rmtree(layout.view("spending").root / "checkpoint")
        shutil.rmtree(layout.journal)
        for amount in (10, 20):
            run(layout, spark, emma=amount)
        tail.step()
    assert totals(layout) == {"emma": 30}


def test_a_checkpoint_that_was_rolled_back_and_went_on_is_read_anew(
    spark: SparkSession, layout: Layout, tmp_path: Path
) -> None:
    """The replica's batch was run a second time, with other events: its number alone says nothing."""
    places = layout.view("spending")
    run(layout, spark, emma=1)
    shutil.copytree(layout.root, tmp_path / "before", ignore=shutil.ignore_patterns("replica"))
    run(layout, spark, emma=2)
    with following(layout) as tail:
        for name in (places.checkpoint, layout.journal):
            shutil.rmtree(name)
            shutil.copytree(tmp_path / "before" / name.relative_to(layout.root), name)
        run(layout, spark, oliver=5)
        run(layout, spark, oliver=6)
        tail.step()
    assert totals(layout) == {"emma": 1, "oliver": 11}


def test_a_checkpoint_that_is_away_leaves_the_last_batch_to_readers(spark: SparkSession, layout: Layout) -> None:
    run(layout, spark, emma=1)
    places = layout.view("spending")
    with following(layout) as tail:
        places.checkpoint.rename(places.root / "away")
        with pytest.raises(CheckpointInvalid, match="gone"):
            tail.step()
        (places.root / "away").rename(places.checkpoint)
        run(layout, spark, emma=2)
        assert tail.step()
    assert totals(layout) == {"emma": 3}


def test_commits_that_are_gone_are_not_needed_while_all_changelogs_are_there(
    spark: SparkSession, layout: Layout
) -> None:
    for _ in range(3):
        run(layout, spark, emma=1, oliver=2)
    for batch in (0, 1):
        (layout.view("spending").checkpoint / "commits" / str(batch)).unlink()
    assert totals(layout) == {"emma": 3, "oliver": 6}


def test_batches_that_are_gone_before_they_were_read_are_told_to_readers(spark: SparkSession, layout: Layout) -> None:
    for _ in range(3):
        run(layout, spark, emma=1)
    places = layout.view("spending")
    for batch in (0, 1):
        (places.checkpoint / "commits" / str(batch)).unlink()
        for changelog in (places.checkpoint / "state").rglob(f"{batch + 1}_*.changelog"):
            changelog.unlink()
    tail, stop = Tail(places), threading.Event()
    with pytest.raises(CheckpointGap, match="Batch 0 is gone, the oldest one left is 2"):
        tail.step()
    thread = threading.Thread(target=tail.run, args=(stop,))
    thread.start()
    wait_until(lambda: "Batch 0 is gone" in (tail._trouble or ""))
    stop.set()
    thread.join()
    reader = ReplicaReader(places.replica)
    with reader.snapshot() as snapshot:
        assert "Batch 0 is gone" in (snapshot.trouble() or "")
    reader.close()


def test_what_a_killed_tail_told_readers_is_taken_back_once_the_next_one_moves(
    spark: SparkSession, layout: Layout
) -> None:
    run(layout, spark, emma=1)
    writer = ReplicaWriter(layout.view("spending").replica)
    writer.note_trouble("It was being loaded")
    writer.close()
    stop, tail = threading.Event(), Tail(layout.view("spending"))
    thread = threading.Thread(target=tail.run, args=(stop,))
    thread.start()
    wait_until(lambda: tail._trouble is None)
    stop.set()
    thread.join()
    reader = ReplicaReader(layout.view("spending").replica)
    with reader.snapshot() as snapshot:
        assert snapshot.trouble() is None
    reader.close()
