"""Views whose state is in Spark's default store, or in another codec than lz4, served like any other."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import stateside
from stateside.core.errors import CheckpointInvalid, PipelineFailed
from stateside.core.layout import Layout
from stateside.journal import Event
from stateside.replica.tail import Tail
from stateside.spark_state.provider import Provider
from stateside.testing import append, crash_marker, rows, run_to
from tests.sizes import sized
from tests.spark_settings import stored

pytestmark = pytest.mark.spark

MINUTE_US = 60_000_000
START_US = 1_767_225_600_000_000  # 2026-01-01


def shop() -> stateside.App:
    app = stateside.App("shop", fields="amount long")

    @app.view(key=["entity", "type"])
    def spending(events: DataFrame) -> DataFrame:
        return events.groupBy("entity", "type").agg(F.sum("amount").alias("total"), F.count("*").alias("orders"))

    @app.view(key=["user", "session_window"])
    def visits(events: DataFrame) -> DataFrame:
        timed = events.withColumnRenamed("entity", "user").withWatermark("time", "2 hours")
        return timed.groupBy(F.session_window("time", "10 minutes"), "user").agg(F.sum("amount").alias("total"))

    return app


def orders(seed: int, minutes: range) -> list[Event]:
    draw = random.Random(seed)
    return [
        Event(
            f"{seed}-{minute}",
            draw.choice(["emma", "oliver", "mia/1"]),
            draw.choice(["a", "b"]),
            START_US + minute * MINUTE_US,
            {"amount": draw.randrange(-9, 99)},
        )
        for minute in minutes
    ]


def totals(events: list[Event]) -> dict[tuple[str, str], tuple[int, int]]:
    sums: Counter[tuple[str, str]] = Counter()
    counts = Counter((event.entity, event.type) for event in events)
    for event in events:
        sums[event.entity, event.type] += event.payload["amount"]
    return {key: (sums[key], counts[key]) for key in counts}


def served(layout: Layout) -> dict[tuple[str, str], tuple[int, int]]:
    return {(row["entity"], row["type"]): (row["total"], row["orders"]) for row in rows(layout, "spending")}


OTHERS = [(Provider.HDFS, "zstd"), (Provider.ROCKSDB, "snappy")]


@pytest.mark.parametrize(("provider", "codec"), sized(OTHERS[:1], OTHERS))
def test_a_view_in_another_store_or_codec_is_served_through_a_crash_and_restarts(
    spark: SparkSession, layout: Layout, provider: Provider, codec: str
) -> None:
    first, second, third = orders(1, range(0, 30)), orders(2, range(30, 60)), orders(3, range(400, 410))
    with stored(spark, provider, codec):
        append(layout, first)
        run_to(shop(), layout, spark)
        assert served(layout) == totals(first)
        append(layout, [*second, crash_marker()])
        with pytest.raises(PipelineFailed):
            run_to(shop(), layout, spark)
        run_to(shop(), layout, spark)
        assert served(layout) == totals([*first, *second])
        open_visits = rows(layout, "visits")
        append(layout, third)
        run_to(shop(), layout, spark)
    assert served(layout) == totals([*first, *second, *third])
    assert sum(row["total"] for row in open_visits) == sum(event.payload["amount"] for event in [*first, *second])
    left = rows(layout, "visits")
    assert {row["user"] for row in left} == {event.entity for event in third}
    assert sum(row["total"] for row in left) == sum(event.payload["amount"] for event in third)


def test_a_damaged_delta_leaves_the_replica_at_its_last_good_batch(spark: SparkSession, layout: Layout) -> None:
    first, second = orders(1, range(20)), orders(2, range(20, 40))
    with stored(spark, Provider.HDFS, "zstd"):
        append(layout, first)
        run_to(shop(), layout, spark)
        before = served(layout)
        append(layout, second)
        run_to(shop(), layout, spark)
    batch = max(int(file.name) for file in (layout.view("spending").checkpoint / "commits").glob("[0-9]*"))
    delta = layout.view("spending").checkpoint / "state" / "0" / "0" / f"{batch + 1}.delta"
    content = delta.read_bytes()
    delta.write_bytes(content[:30] + bytes([content[30] ^ 1]) + content[31:])
    tail = Tail(layout.view("spending"))
    with pytest.raises(CheckpointInvalid, match=rf"{batch + 1}\.delta, byte 0"):
        tail.step()
    tail.close()
    delta.write_bytes(content)
    assert before == totals(first)
    assert served(layout) == totals([*first, *second])
