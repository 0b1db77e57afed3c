"""The oracle: what Spark's own `statestore` reader says the state is, the replica must say too, batch for batch."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from pyspark.sql import SparkSession

from stateside.billing.generator import Generator, generate
from stateside.billing.generator.output import to_journal
from stateside.billing.pipeline import app
from stateside.core.layout import Layout
from stateside.core.positions import Position
from stateside.core.storage import Storage
from stateside.journal import FileLog
from stateside.serving.stamp import iso_time
from stateside.spark_state.batch_log import Checkpoint
from stateside.testing import answer, run_to

pytestmark = pytest.mark.spark

Row = tuple[str, str, str, str, int, int]


def test_after_every_batch_the_replica_has_the_rows_that_spark_says_the_state_has(
    spark: SparkSession, layout: Layout
) -> None:
    """Two periods of bills with restarts in between; the first one is sealed and leaves the state on the way."""
    generate(Generator(seed=7, customers=9, events_per_period=6, periods=1), to_journal(layout.journal))
    end = FileLog(layout.journal).end()["0"]
    seen: list[int] = []
    for stop in range(50, end + 50, 50):
        run_to(app, layout, spark, Position.of({"0": min(stop, end)}))
        found = answer(layout, "bill")
        assert sorted(map(_as_tuple, found.rows)) == _state(spark, layout, found.stamp.batch)
        seen.append(len(found.rows))
    assert len(seen) > 3
    assert any(later < earlier for earlier, later in pairwise(seen)), "no row ever left the state"


def test_the_stamp_is_that_of_the_batch(spark: SparkSession, layout: Layout) -> None:
    generate(Generator(seed=3, customers=2, events_per_period=5, periods=1), to_journal(layout.journal))
    receipt = FileLog(layout.journal).end()
    run_to(app, layout, spark)
    stamp = answer(layout, "bill").stamp
    checkpoint = Checkpoint(Storage.at(layout.view("bill").checkpoint))
    assert stamp.batch == checkpoint.commits()[-1]
    assert stamp.position == receipt == checkpoint.plan(stamp.batch).position
    assert stamp.watermark_us == checkpoint.plan(stamp.batch).watermark_us > 0
    assert stamp.age_basis == "heartbeat"


def _as_tuple(row: dict[str, object]) -> Row:
    return tuple(row[name] for name in ("customer", "period_end", "type", "plan", "quantity", "events"))  # type: ignore[return-value]


def _state(spark: SparkSession, layout: Layout, batch: int) -> list[Row]:
    reader = spark.read.format("statestore").option("batchId", str(batch))
    stored = reader.load(str(layout.view("bill").checkpoint)).select("key.*", "value.*").toArrow().to_pylist()
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    for row in stored:
        row["period_end"] = iso_time((row["period_end"] - epoch) // timedelta(microseconds=1))
    return sorted((r["customer"], r["period_end"], r["type"], r["plan"], r["sum"], r["count"]) for r in stored)
