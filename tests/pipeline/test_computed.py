"""Computed columns of real queries, end to end: declared, written by a sink, served, and recomputed from the events."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import stateside
from stateside.billing.plans.tiers import Tier, Tiers
from stateside.core.errors import ViewInvalid
from stateside.core.layout import Layout
from stateside.journal import Event
from stateside.pipeline.app import View
from stateside.pipeline.sinks.sink import BatchId, SinkContext
from stateside.serving.rows.relation import Relation
from stateside.serving.rows.sums import BucketRange
from stateside.serving.rows.view_readers import Floor, ViewReader
from stateside.testing import append, rollup, rows, run_to
from stateside.views.functions import extend_functions

HOUR_US = 3_600_000_000
START_US = 1_767_225_600_000_000
AMOUNT = stateside.Computed("amount", of="quantity", by=("plan", "type"))


class Pricing:
    """A sink that has the functions of all given rows in the view's table, and remembers the columns it was given."""

    seen: ClassVar[set[str]] = set()

    def __init__(self, context: SinkContext) -> None:
        self._path = context.layout.view(context.view).functions

    def write(self, rows: pa.Table, batch: BatchId) -> None:
        Pricing.seen |= set(rows.column_names)
        keys = set(zip(rows["plan"].to_pylist(), rows["type"].to_pylist(), strict=True))
        extend_functions(self._path, {key: tiers(*key) for key in keys})


def tiers(plan: str, type_: str) -> Tiers:
    included = {"basic": 100, "plus": 1_000}[plan]
    return Tiers((Tier(0, 0, 1), Tier(included, {"call": 90, "data": 7}[type_], 60)))


def price(plan: str, type_: str, quantity: int) -> int:
    """The same, worked out by hand."""
    above = quantity - (100 if plan == "basic" else 1_000)
    return above * (90 if type_ == "call" else 7) // 60 if above > 0 else 0


def shop(computed: list[stateside.Computed], given: list[Layout] | None = None) -> stateside.App:
    app = stateside.App("shop", fields="plan string, quantity long")

    @app.view(
        key=["customer", "plan", "type", "window"],
        rollups=[["plan", "type"], ["customer"], []],
        computed=computed,
        sink=Pricing,
        rows="changed",
    )
    def bill(events: DataFrame, layout: Layout) -> DataFrame:
        if given is not None:
            given.append(layout)
        named = events.withColumnRenamed("entity", "customer")
        return named.groupBy("customer", "plan", "type", F.window("time", "1 hour")).agg(
            F.sum("quantity").alias("quantity"), F.count("*").alias("events")
        )

    return app


def usage(seed: int, count: int) -> list[Event]:
    chance = random.Random(seed)
    plans = ["basic"] if seed == 0 else ["basic", "plus"]
    return [
        Event(
            f"{seed}-{number}",
            f"c{chance.randrange(4)}",
            chance.choice(["call", "data"]),
            START_US + chance.randrange(2) * HOUR_US,
            {"plan": chance.choice(plans), "quantity": chance.randrange(300)},
        )
        for number in range(count)
    ]


def expected(events: list[Event]) -> dict[tuple[str, str, str, int], int]:
    """The amount of each row, from the events alone."""
    quantities: dict[tuple[str, str, str, int], int] = defaultdict(int)
    for event in events:
        hour = (event.time_us - START_US) // HOUR_US
        quantities[event.entity, event.payload["plan"], event.type, hour] += event.payload["quantity"]
    return {key: price(key[1], key[2], quantity) for key, quantity in quantities.items()}


@pytest.mark.spark
def test_rows_rollups_sums_and_older_batches_have_what_the_events_cost(spark: SparkSession, layout: Layout) -> None:
    given, so_far, past = list[Layout](), list[Event](), list[int]()
    app = shop([AMOUNT], given)
    for seed in range(3):
        so_far += usage(seed, 60)
        append(layout, so_far[-60:])
        run_to(app, layout, spark)
        amounts = expected(so_far)
        past.append(sum(amounts.values()))
        live = rows(layout, "bill")
        assert {_key(row): row["amount"] for row in live} == amounts
        assert list(live[0]) == ["customer", "plan", "type", "window", "quantity", "events", "amount"]
        assert [row["amount"] for row in rollup(layout, "bill", [])] == [past[-1]]
        for place, columns in (((0,), ["customer"]), ((1, 2), ["plan", "type"])):
            found = {tuple(row[name] for name in columns): row["amount"] for row in rollup(layout, "bill", columns)}
            assert found == added(amounts, place)
    assert set(given) == {layout}, "a function with a second parameter is given the layout"
    assert Pricing.seen == {"customer", "plan", "type", "window", "quantity", "events"}, "as Spark has the rows"
    assert_sums(layout, expected(so_far))
    assert set(past) <= totals_of_older_batches(layout)

    run_to(shop([replace(AMOUNT, name="cost")]), layout, spark)
    assert [row["cost"] for row in rollup(layout, "bill", [])] == [past[-1]], "declared again on an old folder"


def _key(row: dict[str, Any]) -> tuple[str, str, str, int]:
    return row["customer"], row["plan"], row["type"], int(row["window"]["start"][11:13])


def added(amounts: dict[tuple[str, str, str, int], int], places: tuple[int, ...]) -> dict[tuple[Any, ...], int]:
    found: dict[tuple[Any, ...], int] = defaultdict(int)
    for key, amount in amounts.items():
        found[tuple(key[place] for place in places)] += amount
    return dict(found)


def assert_sums(layout: Layout, amounts: dict[tuple[str, str, str, int], int]) -> None:
    """A range of buckets has the sum of its buckets' amounts, as a rollup has."""
    reader = ViewReader(layout.view("bill"))
    by_key = added(amounts, (0, 1, 2))
    for key in by_key:
        [row] = asyncio.run(Relation(reader).sum(key, BucketRange(), Floor(wait_ms=0))).rows
        assert row["amount"] == by_key[key]
    reader.close()


def totals_of_older_batches(layout: Layout) -> set[Any]:
    reader = ViewReader(layout.view("bill"))
    found = set()
    with reader._replica.snapshot() as snapshot:
        batch, oldest = snapshot.batch(), snapshot.oldest()
    assert batch is not None and oldest is not None
    for number in range(oldest, batch.batch + 1):
        with reader._replica.snapshot(as_of=number) as snapshot:
            found |= {row["amount"] for row in reader.shape.rollup([]).rows(snapshot)}
    reader.close()
    return found


@pytest.mark.spark
def test_a_computed_column_that_the_query_cannot_have_is_refused_at_the_start(
    spark: SparkSession, layout: Layout
) -> None:
    append(layout, usage(0, 1))
    with pytest.raises(ViewInvalid, match=r"of 'minutes', which it does not have. Its columns are: quantity, events"):
        run_to(shop([replace(AMOUNT, of="minutes")]), layout, spark)


def test_a_function_with_one_parameter_or_a_default_is_given_the_events_alone(tmp_path: Path) -> None:
    events, layout = "events", Layout(tmp_path)

    def ask(function: Any) -> Any:
        return View("bill", function).query(events, layout)  # type: ignore[arg-type]

    assert ask(lambda frame: frame) == events
    assert ask(lambda frame, limit=3: (frame, limit)) == (events, 3)
    assert ask(lambda frame, *, limit=3: (frame, limit)) == (events, 3)
    assert ask(lambda frame, place: (frame, place)) == (events, layout)
    assert ask(str) == events
