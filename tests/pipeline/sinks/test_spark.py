"""Sinks behind real Spark: a query that crashes around its sink's commit stores every row once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import stateside
from stateside import sinks
from stateside.core.errors import PipelineFailed
from stateside.core.layout import Layout
from stateside.journal import Event
from stateside.pipeline.sinks.delta import archive_sink
from stateside.pipeline.sinks.sink import Guarantee, Sink, SinkContext, SinkFactory, with_guarantee
from stateside.testing import CrashingSink, append, run_to

from .endpoint import Store, endpoint

pytestmark = pytest.mark.spark

Row = tuple[str, int]
EVENTS = [Event(f"{n}", f"c{n % 3}", "order", n * 1_000_000, {"amount": n}) for n in range(20)]
LARGE = [(event.id, event.payload["amount"]) for event in EVENTS if event.payload["amount"] >= 5]


@dataclass(frozen=True)
class Kind:
    """A sink as a user declares it, with its other side."""

    factory: Callable[[str], SinkFactory]  # of the other side's address
    read_back: Callable[[Layout], list[dict[str, Any]]]
    other_side: Callable[[Layout], AbstractContextManager[str]] = lambda layout: nullcontext("")


def read_table(layout: Layout) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = DeltaTable(layout.table("large")).to_pyarrow_table().to_pylist()
    return found


def read_parquet(layout: Layout) -> list[dict[str, Any]]:
    return [row for path in layout.files("large").glob("*.parquet") for row in pq.ParquetFile(path).read().to_pylist()]


def store(layout: Layout) -> Store:
    return Store(layout.root / "endpoint.jsonl")


@contextmanager
def serving(layout: Layout) -> Iterator[str]:
    with endpoint(store(layout)) as url:
        yield url


KINDS = {
    "delta": Kind(lambda _: sinks.delta("large"), read_table),
    "delta with a key": Kind(lambda _: sinks.delta("large", key=["id"]), read_table),
    "files": Kind(lambda _: sinks.files("large"), read_parquet),
    "http": Kind(sinks.http, lambda layout: store(layout).rows(), serving),
}


def shop(sink: SinkFactory) -> stateside.App:
    app = stateside.App("shop", fields="amount long")

    @app.reaction(sink=sink)
    def large(events: DataFrame) -> DataFrame:
        return events.where("amount >= 5").select("id", "entity", "amount", "time")

    return app


def crashing(sink: SinkFactory, when: Literal["before", "after"], guarantee: Guarantee = "exactly-once") -> SinkFactory:
    def crash(context: SinkContext) -> Sink:
        places = context.layout.view(context.view)
        return with_guarantee(CrashingSink(sink(context), when), guarantee, places)

    return crash


def stored(kind: Kind, layout: Layout) -> list[Row]:
    return sorted((row["id"], row["amount"]) for row in kind.read_back(layout))


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_crash_around_the_sink_neither_loses_nor_doubles_a_row(
    spark: SparkSession, layout: Layout, kind: Kind, when: Literal["before", "after"]
) -> None:
    append(layout, EVENTS)
    with kind.other_side(layout) as address:
        sink = kind.factory(address)
        with pytest.raises(PipelineFailed, match=f"crashes here, {when}"):
            run_to(shop(crashing(sink, when)), layout, spark, events_per_batch=8)
        run_to(shop(sink), layout, spark, events_per_batch=8)
    assert stored(kind, layout) == sorted(LARGE)


def test_the_same_crash_at_least_once_doubles_the_batch(spark: SparkSession, layout: Layout) -> None:
    append(layout, EVENTS)
    kind = KINDS["delta"]
    for _ in range(2):
        app = shop(crashing(kind.factory(""), "after", "at-least-once"))
        with pytest.raises(PipelineFailed):
            run_to(app, layout, spark)
    assert stored(kind, layout) == sorted(LARGE * 2)


def test_closed_windows_go_to_the_archive_with_the_batch_that_closed_them(spark: SparkSession, layout: Layout) -> None:
    app = stateside.App("shop", fields="amount long")

    @app.reaction(sink=archive_sink("hours"))
    def hours(events: DataFrame) -> DataFrame:
        windows = events.withWatermark("time", "0 seconds").groupBy("entity", F.window("time", "5 seconds"))
        return windows.agg(F.sum("amount").alias("amount"))

    append(layout, EVENTS)
    run_to(app, layout, spark, events_per_batch=8)
    run_to(app, layout, spark)
    rows = DeltaTable(layout.table("hours")).to_pyarrow_table().to_pylist()
    closed = [event for event in EVENTS if event.time_us < 15_000_000]
    assert sum(row["amount"] for row in rows) == sum(event.payload["amount"] for event in closed)
    assert len({(row["entity"], row["window"]["start"]) for row in rows}) == len(rows)
    assert len({row["sealed_batch"] for row in rows}) > 1
