"""Live and sealed rows together behind real Spark, windows and sessions: a replica that follows batch by batch."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

import stateside
from stateside.core.errors import RequestInvalid
from stateside.core.layout import Layout
from stateside.core.positions import Position
from stateside.journal import Event
from stateside.replica.tail import Tail
from stateside.serving.rows.floor import AsOf, Floor
from stateside.serving.rows.relation import Relation, SumAnswer
from stateside.serving.rows.row_query import ScanPage, lookup, page, parse_keys
from stateside.serving.rows.sums import BucketRange
from stateside.serving.rows.view_reader import ViewReader
from stateside.serving.stamp import Source, iso_time
from stateside.spark_state.unsafe_row import Value
from stateside.testing import append, run_to
from stateside.views.catalogue import Catalogue
from tests.serving.sql.asking import Asker

from .shop import Asked

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

HOUR_US, START_US = 3_600_000_000, 1_767_225_600_000_000
CUSTOMERS = ("emma", "ben")
TABLES = {"hourly": "hours", "visits": "visits"}
EVENTS = [
    Event(f"{n}", CUSTOMERS[n % 2], "order", START_US + n * HOUR_US // 3, {"amount": n, "price": f"{n}.25"})
    for n in range(30)
]


def shop() -> stateside.App:
    from pyspark.sql import functions as F

    app = stateside.App("shop", fields="amount long, price string")

    def folded(events: DataFrame, period: Any) -> DataFrame:
        named = events.selectExpr("entity as customer", "time", "amount", "cast(price as decimal(20,2)) as price")
        return (
            named.withWatermark("time", "1 hour")
            .groupBy("customer", period)
            .agg(F.count("*").alias("orders"), F.sum("price").alias("paid"), F.max("time").alias("last"))
        )

    @app.view(key=["customer", "window"], archive="hours")
    def hourly(events: DataFrame) -> DataFrame:
        return folded(events, F.window("time", "1 hour"))

    @app.view(key=["customer", "session"], archive="visits")
    def visits(events: DataFrame) -> DataFrame:
        return folded(events, F.session_window("time", "10 minutes").alias("session"))

    return app


def expected(view: str, customer: str, events: Sequence[Event]) -> list[dict[str, Any]]:
    """What all events up to a position come to: hours, or a session for each event."""
    groups: dict[tuple[int, int], list[Event]] = defaultdict(list)
    for event in events:
        if event.entity == customer:
            start_us = event.time_us - event.time_us % HOUR_US if view == "hourly" else event.time_us
            end_us = start_us + (HOUR_US if view == "hourly" else 600_000_000)
            groups[start_us, end_us].append(event)
    return [
        {
            "customer": customer,
            "window" if view == "hourly" else "session": {"start": iso_time(start_us), "end": iso_time(end_us)},
            "orders": len(group),
            "paid": f"{sum(25 + 100 * event.payload['amount'] for event in group) / 100:.2f}",
            "last": iso_time(max(event.time_us for event in group)),
        }
        for (start_us, end_us), group in sorted(groups.items())
    ]


def ask(reader: ViewReader, asked: Asked, batch: int | None = None) -> ScanPage:
    return asyncio.run(page(Relation(reader), asked.question(reader), Floor(wait_ms=0), as_of=AsOf(batch)))


def follow(layout: Layout, view: str) -> None:
    tail = Tail(layout.view(view))
    while tail.step():
        pass
    tail.close()


def test_every_period_is_there_once_as_of_every_batch_live_or_sealed(spark: SparkSession, layout: Layout) -> None:
    """The table has all that was sealed in the end: of it counts what was sealed up to the batch that is read."""
    end = append(layout, EVENTS)
    for position in (Position.of({"0": 5}), end):
        run_to(shop(), layout, spark, position, events_per_batch=5)
        for view in TABLES:
            follow(layout, view)
    for view, table in TABLES.items():
        assert Catalogue.load(layout.view(view).catalogue).archive == table
        reader = ViewReader(layout.view(view))
        check(reader, view)
        reader.close()
        assert_selected(layout, view)


def check(reader: ViewReader, view: str) -> None:
    newest = ask(reader, Asked(parts=("emma",))).stamp.batch
    sealed_counts = set()
    for batch in range(newest - 5, newest + 1):
        for customer in CUSTOMERS:
            answer = ask(reader, Asked(parts=(customer,)), batch)
            assert (answer.stamp.batch, answer.stamp.source) == (batch, "both")
            assert answer.rows == expected(view, customer, EVENTS[: answer.stamp.position["0"]])
            sealed = ask(reader, Asked(parts=(customer,), source="archive"), batch).rows
            live = ask(reader, Asked(parts=(customer,), source="live"), batch).rows
            assert sealed + live == answer.rows, "sealed ones are the older ones"
            sealed_counts.add(len(sealed))
    assert len(sealed_counts) > 2, "rows were sealed by several of these batches"
    start = iso_time(EVENTS[0].time_us)
    (first,) = ask(reader, Asked(parts=("emma", start))).rows
    assert first["last"] >= start
    assert ask(reader, Asked(parts=("emma", start), source="live")).rows == []
    assert_scanned(reader, view, newest)
    found = asyncio.run(lookup(Relation(reader), reader_keys(reader, first), Floor(), source="both"))
    assert found.rows == [first], "a row's own key finds it"


def assert_scanned(reader: ViewReader, view: str, batch: int) -> None:
    """A scan has each row once, live or sealed; a sum over hours that are closed has all of them."""
    scanned = ask(reader, Asked(source="both", limit=1_000), batch)
    events = EVENTS[: scanned.stamp.position["0"]]
    assert scanned.rows == [row for customer in sorted(CUSTOMERS) for row in expected(view, customer, events)]
    if view == "hourly":
        for customer in CUSTOMERS:
            assert_summed(reader, expected(view, customer, events))


def assert_summed(reader: ViewReader, rows: Sequence[dict[str, Any]]) -> None:
    def summed(from_us: int | None = START_US, source: Source | None = None) -> SumAnswer:
        span = BucketRange(from_us=from_us, to_us=START_US + 24 * HOUR_US)
        return asyncio.run(Relation(reader).sum([rows[0]["customer"]], span, Floor(), source=source))

    answer = summed()
    (total,) = answer.rows
    assert (answer.stamp.source, answer.buckets) == ("both", len(rows))
    assert (total["orders"], total["last"]) == (sum(row["orders"] for row in rows), max(row["last"] for row in rows))
    assert Decimal(total["paid"]) == sum(Decimal(row["paid"]) for row in rows)
    live, sealed, every = summed(None, "live"), summed(source="archive"), summed(None, "both")
    assert live.buckets and sealed.buckets
    assert live.buckets + sealed.buckets == every.buckets == len(rows)
    assert every.rows[0]["orders"] == total["orders"] == live.rows[0]["orders"] + sealed.rows[0]["orders"]
    with pytest.raises(RequestInvalid, match="are closed and have left the state"):
        summed(source="live")


def assert_selected(layout: Layout, view: str) -> None:
    """SQL over the whole view, with the windows' borders as plain columns."""
    period = "window" if view == "hourly" else "session"
    reader = ViewReader(layout.view(view))
    position = asyncio.run(reader.stamp()).position["0"]
    reader.close()
    rows = [row for customer in sorted(CUSTOMERS) for row in expected(view, customer, EVENTS[:position])]
    asker = Asker(layout)
    text = f"SELECT customer, {period}_start, {period}_end, orders, last FROM {view}__all ORDER BY ALL"
    borders = [[row["customer"], row[period]["start"], row[period]["end"], row["orders"], row["last"]] for row in rows]
    assert asker.rows(text) == borders
    live = f"SELECT count(*) FILTER ({period}_start < {period}_end), count(*) FROM {view}"
    ((fitting, count),) = asker.rows(live)
    assert 0 < fitting == count < len(rows)
    asker.let_go()


def reader_keys(reader: ViewReader, row: dict[str, Any]) -> Sequence[Sequence[Value]]:
    """A row's key as a lookup's body has it; of a session its start is the key's part."""
    customer, period = list(row.values())[:2]
    return parse_keys(reader.shape, {"keys": [[customer, period["start"] if "session" in row else period]]})
