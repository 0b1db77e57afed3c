"""A new generation of a view with real Spark, in one session: its sinks, its archive and its readers."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

import stateside
from stateside import sinks
from stateside.core.layout import Layout
from stateside.core.positions import Position
from stateside.journal import Event
from stateside.pipeline.apply import apply
from stateside.pipeline.declaration import state_partitions
from stateside.pipeline.foreground import LinesForPeople
from stateside.pipeline.runner import Runner
from stateside.pipeline.settings import RunSettings
from stateside.replica.tail import Tail
from stateside.serving.health.status import newest_batches
from stateside.serving.rows.floor import Floor
from stateside.serving.rows.relation import Relation
from stateside.serving.rows.row_query import RowQuery, page
from stateside.serving.rows.view_readers import ViewReaders
from stateside.spark_state.batch_log import SHUFFLE_PARTITIONS
from stateside.testing import append, rows, run_to

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

HOUR_US = 3_600_000_000
Fold = Callable[["DataFrame"], "DataFrame"]


def events(first: int, count: int) -> list[Event]:
    """One event every ten minutes, in turns of two sites."""
    return [
        Event(f"v{number}", "site", "visit", number * HOUR_US // 6, {"site": f"s{number % 2}", "seconds": number})
        for number in range(first, first + count)
    ]


def app(fold: Fold, **declared: Any) -> stateside.App:
    made = stateside.App("visits", fields="site string, seconds long")
    made.view(key=["site", "window"], name="hours", **declared)(fold)
    return made


def sums(events: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    grouped = events.withWatermark("time", "0 seconds").groupBy("site", F.window("time", "1 hour").alias("window"))
    return grouped.agg(F.sum("seconds").alias("seconds"))


def sums_and_counts(events: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    grouped = events.withWatermark("time", "0 seconds").groupBy("site", F.window("time", "1 hour").alias("window"))
    return grouped.agg(F.sum("seconds").alias("seconds"), F.count("*").alias("visits"))


def apply_here(changed: stateside.App, layout: Layout, session: SparkSession, partitions: int = 0) -> None:
    """`apply` in this process's session, while nothing runs."""
    before = {name: layout.view(name).generation for name in changed.views}
    apply(changed, layout.root, RunSettings(partitions=partitions), LinesForPeople(sys.stderr), session=session)
    assert all(layout.view(name).generation != before[name] for name in changed.views)


def all_rows(layout: Layout) -> list[dict[str, Any]]:
    """Live and archived rows, as a server answers."""
    tail = Tail(layout.view("hours"))
    tail.step()
    tail.close()
    views = ViewReaders(layout)
    relation = Relation(views.get("hours"))
    try:
        question = RowQuery.parse(relation, [], (), {"source": "both"}, 100)
        answer = asyncio.run(page(relation, question, Floor(wait_ms=0)))
        assert answer.stamp.generation == layout.view("hours").generation
        return answer.rows
    finally:
        for replica in views._replicas.values():
            replica.close()


def test_a_new_generation_has_an_archive_of_its_own(spark: SparkSession, layout: Layout) -> None:
    append(layout, events(0, 30))
    run_to(app(sums, archive="closed"), layout, spark)
    before = all_rows(layout)
    apply_here(app(sums_and_counts, archive="closed"), layout, spark)
    after = all_rows(layout)
    assert [{**row, "visits": 3} for row in before] == after and len(after) == 10
    first, second = layout.at("hours", layout.pointers()["hours"].kept[0]), layout.view("hours")
    assert first.table("closed") == layout.table("closed") != second.table("closed")
    append(layout, events(30, 6))
    run_to(app(sums_and_counts, archive="closed"), layout, spark)
    assert len(all_rows(layout)) == 12, "it goes on in its own table"


def test_a_new_generation_has_as_many_partitions_as_the_one_before_unless_told_otherwise(
    spark: SparkSession, layout: Layout
) -> None:
    append(layout, events(0, 6))
    with Runner(app(sums), layout, RunSettings(partitions=1), session=spark) as runner:
        runner.run_to_end()
    assert state_partitions(layout.view("hours")) == 1
    *_, last = newest_batches(layout.view("hours").progress)
    assert (last["partitions"], last["cores"]) == (1, spark.sparkContext.defaultParallelism)
    apply_here(app(sums_and_counts), layout, spark)
    assert state_partitions(layout.view("hours")) == 1
    apply_here(app(sums), layout, spark, partitions=3)
    assert state_partitions(layout.view("hours")) == 3, "not the kept generation, which has one"
    assert spark.conf.get(SHUFFLE_PARTITIONS) == str(spark.sparkContext.defaultParallelism)


def test_a_sink_with_a_key_gets_no_row_twice(spark: SparkSession, layout: Layout) -> None:
    from deltalake import DeltaTable

    keyed = sinks.delta("sealed", key=["site", "window"])
    append(layout, events(0, 30))
    run_to(app(sums, sink=keyed), layout, spark)
    before = DeltaTable(layout.table("sealed")).to_pyarrow_table().num_rows
    apply_here(app(lambda events: sums(events.where("seconds >= 0")), sink=keyed), layout, spark)
    assert DeltaTable(layout.table("sealed")).to_pyarrow_table().num_rows == before > 0
    append(layout, events(30, 12))
    run_to(app(lambda events: sums(events.where("seconds >= 0")), sink=keyed), layout, spark)
    table = DeltaTable(layout.table("sealed")).to_pyarrow_table()
    keys = [(row["site"], row["window"]["start"]) for row in table.to_pylist()]
    assert len(keys) == len(set(keys)) > before
    assert rows(layout, "hours")


def delivering(least: int, backfill: str) -> stateside.App:
    """Closed hours as files, and all ids in a table without a key."""
    made = app(lambda events: sums(events.where(f"seconds >= {least}")), sink=FILES, backfill=backfill)

    @made.reaction(sink=sinks.delta("seen"), backfill=backfill)  # type: ignore[arg-type]
    def seen(events: DataFrame) -> DataFrame:
        return events.where(f"seconds >= {least}").select("id")

    return made


FILES = sinks.files("hours", format="jsonl")


def delivered(layout: Layout) -> tuple[list[tuple[str, str]], list[str]]:
    from deltalake import DeltaTable

    lines = [line for path in layout.files("hours").glob("*.jsonl") for line in path.read_text().splitlines()]
    hours = [(row["site"], str(row["window"])) for row in map(json.loads, lines)]
    return sorted(hours), sorted(DeltaTable(layout.table("seen")).to_pyarrow_table()["id"].to_pylist())


def test_a_sink_gets_nothing_of_a_backfill_that_it_skips_and_every_row_once(
    spark: SparkSession, layout: Layout
) -> None:
    """The old job has not read the last events: their rows are the new generation's to deliver."""
    append(layout, events(0, 30))
    run_to(delivering(0, "skip"), layout, spark, Position.of({"0": 20}))
    hours, ids = delivered(layout)
    assert len(ids) == 20 and hours
    apply_here(delivering(-1, "skip"), layout, spark)
    assert delivered(layout) == (hours, ids)
    run_to(delivering(-1, "skip"), layout, spark)
    hours, ids = delivered(layout)
    assert ids == sorted(f"v{number}" for number in range(30))
    assert len(hours) == len(set(hours)) == 8, "two sites, all hours before the last"
    apply_here(delivering(-2, "deliver"), layout, spark)
    assert delivered(layout) == (sorted(2 * hours), sorted(2 * ids)), "as declared"
