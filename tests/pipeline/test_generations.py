"""A new generation of a view with real Spark, in one session: its sinks, its archive and its readers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

import stateside
from stateside import sinks
from stateside.core.layout import POINTERS, Layout
from stateside.journal import Event
from stateside.pipeline import comparison
from stateside.pipeline.apply import register, switched
from stateside.pipeline.declaration import state_partitions
from stateside.pipeline.runner import Runner
from stateside.pipeline.settings import RunSettings
from stateside.pipeline.view_plan import Planner
from stateside.replica.tail import Tail
from stateside.serving.health.status import newest_batches
from stateside.serving.rows.floor import Floor
from stateside.serving.rows.relation import Relation
from stateside.serving.rows.row_query import RowQuery, page
from stateside.serving.rows.view_readers import ViewReaders
from stateside.spark_state.batch_log import SHUFFLE_PARTITIONS
from stateside.testing import append, rows, run_to
from stateside.views.view_generations import alone

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
    """The steps of `apply` in this process's session, while nothing runs."""
    settings = RunSettings(partitions=partitions)
    planner = Planner(changed, layout, settings, layout.pause)
    plans = {name: planner.plan(view, session) for name, view in changed.views.items()}
    found = comparison.compare(changed, layout, lambda view: plans[view.name])
    assert [each.verdict for each in found] == ["needs a backfill"]
    with alone(layout) as lock:
        register(layout, plans, (), partitions)
        pointers = layout.pointers()
        pinned = [layout.at(name, pointer.next) for name, pointer in pointers.items() if pointer.next]
        with Runner(changed, Layout(layout.root, tuple(pinned)), settings, session=session, lock=lock) as runner:
            runner.run_to_end()
        POINTERS.write(layout.generations, switched(pointers, found))


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
