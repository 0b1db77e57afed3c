"""Rollups of real queries: what Spark itself would answer for the coarser key, batch for batch."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

import stateside
from stateside.core.errors import RequestInvalid, ViewInvalid
from stateside.core.layout import Layout
from stateside.journal import Event
from stateside.replica.tail import Tail
from stateside.testing import append, rollup, rows, run_to

pytestmark = pytest.mark.spark

HOUR_US = 3_600_000_000
START_US = 1_767_225_600_000_000
COUNTRIES = ("de", "fr", None)


def amounts(seed: int, count: int, hour: int = 0) -> list[Event]:
    chance = random.Random(seed)
    return [
        Event(
            f"{seed}-{number}",
            f"c{chance.randrange(5)}",
            "order",
            START_US + hour * HOUR_US + chance.randrange(HOUR_US),
            {
                "country": chance.choice(COUNTRIES),
                "amount": chance.choice([None, chance.randrange(-(10**6), 10**6)]),
                "price": f"{chance.randrange(-(10**5), 10**5) / 100:.2f}",
                "weight": chance.randrange(1_000) / 8,
            },
        )
        for number in range(count)
    ]


def served_columns() -> list[Column]:
    """Every kind of column that rollups have, and two that they do not."""
    small, large = F.col("price").cast("decimal(7,2)"), F.col("price").cast("decimal(20,2)")
    return [
        F.count("*").alias("orders"),
        F.sum("amount").alias("total"),
        F.expr("try_sum(amount)").alias("tried"),
        F.sum("weight").alias("weight"),
        F.avg("amount").alias("mean"),
        F.sum(small).alias("small"),
        F.avg(small).alias("small_mean"),
        F.sum(large).alias("large"),
        F.avg(large).alias("large_mean"),
        F.max("amount").alias("most"),
        F.first("amount").alias("earliest"),
    ]


FIELDS = "country string, amount long, price string, weight double"


def shop(rollups: Sequence[Sequence[str]], columns: Sequence[Column] | None = None) -> stateside.App:
    app = stateside.App("shop", fields=FIELDS)

    @app.view(key=["customer", "country"], rollups=rollups)
    def spending(events: DataFrame) -> DataFrame:
        named = events.withColumnRenamed("entity", "customer")
        return named.groupBy("customer", "country").agg(*(columns or served_columns()))

    return app


def test_a_rollup_is_what_spark_answers_for_the_coarser_key(spark: SparkSession, layout: Layout) -> None:
    app, so_far = shop([["country"], []]), list[Event]()
    for seed in range(3):
        so_far += amounts(seed, 40)
        append(layout, so_far[-40:])
        run_to(app, layout, spark)
        fields = [(e.payload["country"], e.payload["amount"], e.payload["price"], e.payload["weight"]) for e in so_far]
        frame = spark.createDataFrame(fields, FIELDS)
        kept = served_columns()[:-2]
        assert by_country(rollup(layout, "spending", ["country"])) == by_country(
            plain(frame.groupBy("country").agg(*kept))
        )
        assert rollup(layout, "spending", []) == plain(frame.agg(*kept))


def test_rows_that_the_watermark_closes_leave_the_rollups_too(spark: SparkSession, layout: Layout) -> None:
    app = stateside.App("shop", fields=FIELDS)

    @app.view(key=["customer", "country", "window"], rollups=[["country"], ["window", "country"], []], archive="hours")
    def hourly(events: DataFrame) -> DataFrame:
        named = events.withColumnRenamed("entity", "customer").withWatermark("time", "1 hour")
        return named.groupBy("customer", "country", F.window("time", "1 hour")).agg(
            F.count("*").alias("orders"), F.sum("amount").alias("total")
        )

    seen: list[int] = []
    for hour in (0, 1, 5, 6):
        append(layout, amounts(hour, 30, hour))
        run_to(app, layout, spark)
        live = rows(layout, "hourly")
        (everything,) = rollup(layout, "hourly", [])
        assert everything == {"orders": sum(row["orders"] for row in live), "total": total(live)}
        for columns in (["country"], ["window", "country"]):
            assert added(rollup(layout, "hourly", columns), columns) == added(live, columns)
        seen.append(everything["orders"])
    assert seen[0] == 30, "all of the first hour"
    assert min(after - before for before, after in pairwise(seen)) < 0, "some rows have left"
    starts = {row["window"]["start"] for row in rollup(layout, "hourly", ["window", "country"])}
    assert "2026-01-01T00:00:00Z" not in starts, "a rollup's row without rows is gone"
    assert rollup(layout, "hourly", ["window", "country"], "2026-01-01T00:00:00Z") == []


def test_sessions_that_grow_and_close_are_in_the_rollups_as_long_as_they_live(
    spark: SparkSession, layout: Layout
) -> None:
    app = stateside.App("shop", fields=FIELDS)

    @app.view(key=["customer", "country", "session"], rollups=[["country"], ["customer"]], archive="sessions")
    def visits(events: DataFrame) -> DataFrame:
        named = events.withColumnRenamed("entity", "customer").withWatermark("time", "1 hour")
        session = F.session_window("time", "10 minutes").alias("session")
        return named.groupBy("customer", "country", session).agg(
            F.count("*").alias("orders"), F.sum("amount").alias("total")
        )

    live_counts = []
    for seed, hour in enumerate((0, 0, 6, 7)):
        append(layout, amounts(seed, 30, hour))
        run_to(app, layout, spark)
        live = rows(layout, "visits")
        for columns in (["country"], ["customer"]):
            assert added(rollup(layout, "visits", columns), columns) == added(live, columns)
        live_counts.append(sum(row["orders"] for row in live))
    assert live_counts[1] == 60
    assert live_counts[-1] <= 60, "sessions were closed"


def test_other_rollups_on_an_old_folder_are_made_from_the_rows_while_it_is_followed(
    spark: SparkSession, layout: Layout
) -> None:
    append(layout, amounts(1, 50))
    run_to(shop([["country"]]), layout, spark)
    tail = Tail(layout.view("spending"))
    tail.step()
    run_to(shop([["customer"], []]), layout, spark)
    changelogs = list((layout.view("spending").checkpoint / "state" / "0").glob("*/*.changelog"))
    assert changelogs
    for changelog in changelogs:  # what Spark's retention takes away is not needed
        changelog.unlink()
    assert not tail.step(), "there is no new batch"
    tail.close()
    live = rows(layout, "spending")
    assert added(rollup(layout, "spending", ["customer"]), ["customer"]) == added(live, ["customer"])
    assert [row["orders"] for row in rollup(layout, "spending", [])] == [50]
    with pytest.raises(RequestInvalid, match=r"no rollup by country\. It has rollups by: customer; nothing"):
        rollup(layout, "spending", ["country"])


def test_rollups_are_kept_by_a_restarted_tail_and_gone_when_no_longer_declared(
    spark: SparkSession, layout: Layout
) -> None:
    for seed in range(2):
        append(layout, amounts(seed, 20))
        run_to(shop([["country"]]), layout, spark)
        assert sum(row["orders"] for row in rollup(layout, "spending", ["country"])) == 20 * (seed + 1)
    append(layout, amounts(2, 20))
    run_to(shop([]), layout, spark)
    assert sum(row["orders"] for row in rows(layout, "spending")) == 60
    with pytest.raises(RequestInvalid, match="Declare it with rollups="):
        rollup(layout, "spending", ["country"])


def test_a_view_with_nothing_to_add_up_is_refused(spark: SparkSession, layout: Layout) -> None:
    append(layout, amounts(1, 1))
    with pytest.raises(ViewInvalid, match=r"none of its columns \['most'\] can be added up"):
        run_to(shop([["country"]], [F.max("amount").alias("most")]), layout, spark)


def by_country(answer: list[dict[str, Any]]) -> dict[str | None, dict[str, Any]]:
    return {row["country"]: row for row in answer}


def plain(frame: DataFrame) -> list[dict[str, Any]]:
    """Spark's answer as ours shows it."""
    shown = [row.asDict() for row in frame.collect()]
    return [{name: f"{v:f}" if isinstance(v, Decimal) else v for name, v in row.items()} for row in shown]


def added(answer: list[dict[str, Any]], columns: Sequence[str]) -> dict[str, list[Any]]:
    orders: Counter[str] = Counter()
    totals: dict[str, list[int | None]] = {}
    for row in answer:
        key = str([row[name] for name in columns])
        orders[key] += row["orders"]
        totals.setdefault(key, []).append(row["total"])
    return {key: [orders[key], total([{"total": each} for each in totals[key]])] for key in orders}


def total(answer: list[dict[str, Any]]) -> int | None:
    there = [row["total"] for row in answer if row["total"] is not None]
    return sum(there) if there else None
