"""Tumbling and session windows, and sliding sums over buckets, on real Spark, against plain Python and Spark itself."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import stateside
from stateside.core.errors import KeyInvalid, RequestInvalid, ViewInvalid
from stateside.core.layout import Layout
from stateside.core.positions import Position
from stateside.journal import Event, FileLog
from stateside.replica.tail import Tail
from stateside.serving.rows.relation import Relation, SumAnswer
from stateside.serving.rows.sums import BucketRange
from stateside.serving.rows.view_readers import Floor, ViewReader
from stateside.serving.stamp import iso_time
from stateside.testing import answer, append, rows, run_to

pytestmark = pytest.mark.spark

MINUTE_US = 60_000_000
HOUR_US = 60 * MINUTE_US
DAY_US = 24 * HOUR_US
LONG = "\U0001f600" * 150  # longer than LMDB's keys can be
START_US = 1_767_225_600_000_000  # 2026-01-01


def impressions(delay: str | None = None, size: str = "1 hour", offset: str | None = None) -> stateside.App:
    app = stateside.App("shop", fields="n long, price string")

    @app.view(key=["item", "window"])
    def hourly(events: DataFrame) -> DataFrame:
        timed = events.withWatermark("time", delay) if delay else events
        named = timed.withColumnRenamed("entity", "item").withColumn("price", F.expr("cast(price as decimal(18,2))"))
        bucket = F.window("time", size, startTime=offset) if offset else F.window("time", size)
        aggregates = ["count(*) as events", "sum(n) as total", "min(n) as least", "max(n) as most", "avg(n) as mean"]
        aggregates += ["sum(price) as paid", "avg(price) as paid_mean"]
        aggregates += ["max_by(n, struct(time, id)) as latest", "bit_or(n) as bits"]
        aggregates += ["avg(cast(price as decimal(8,2))) as mean8", "sum(cast(price as decimal(8,2))) as paid8"]
        return named.groupBy("item", bucket).agg(*map(F.expr, aggregates))

    return app


def seen(number: int, item: str, minute: int, n: int | None, price: str | None = None) -> Event:
    return Event(f"{number}", item, "seen", START_US + minute * MINUTE_US, {"n": n, "price": price})


def arrivals(seed: int, count: int, minutes: int = 60 * 30) -> list[Event]:
    draw = random.Random(seed)
    return [
        seen(
            number,
            draw.choice(["lamp", "lamp/desk", "chair", LONG]),
            draw.randrange(minutes),
            draw.choice([None, *range(-9, 9)]),
            draw.choice([None, "0.05", "1.10", "-3.33", "999.99"]),
        )
        for number in range(count)
    ]


def test_a_window_is_asked_for_by_its_start_and_shown_with_both_ends(spark: SparkSession, layout: Layout) -> None:
    append(layout, [seen(1, "lamp", 5, 7), seen(2, "lamp", 70, 2), seen(3, "chair", 5, 1)])
    run_to(impressions(), layout, spark)
    first, second = rows(layout, "hourly", "lamp")
    assert first["window"] == {"start": "2026-01-01T00:00:00Z", "end": "2026-01-01T01:00:00Z"}
    assert (first["total"], second["total"]) == (7, 2)
    assert rows(layout, "hourly", "lamp", "2026-01-01T01:00:00Z") == [second]
    assert rows(layout, "hourly", "lamp", "2026-01-01T01:00:00Z", "2026-01-01T02:00:00Z") == [second]
    assert rows(layout, "hourly", "lamp", "2026-01-01T01:30:00Z") == []
    with pytest.raises(KeyInvalid, match="key of 'hourly' has 3") as refused:
        rows(layout, "hourly", "lamp", "2026-01-01T01:00:00Z", "2026-01-01T02:00:00Z", "more")
    assert refused.value.next_step == "Its parts are: item (string), window.start (timestamp), window.end (timestamp)"


def test_buckets_leave_with_the_watermark_and_stay_what_spark_says(spark: SparkSession, layout: Layout) -> None:
    """Over several batches, the rows served are those of Spark's own reader of the state."""
    events = sorted(arrivals(1, 120), key=lambda event: event.time_us)
    append(layout, events)
    end, counts = FileLog(layout.journal).end()["0"], []
    for stop in range(40, end + 1, 40):
        run_to(impressions("3 hours"), layout, spark, Position.of({"0": stop}))
        found = answer(layout, "hourly")
        reader = spark.read.format("statestore").option("batchId", str(found.stamp.batch))
        state = reader.load(str(layout.view("hourly").checkpoint)).select("key.*").toArrow().to_pylist()
        assert [(row["item"], row["window"]["start"]) for row in found.rows] == sorted(
            (row["item"], as_iso(row["window"]["start"])) for row in state
        )
        for row in found.rows:
            times = [e.time_us for e in events[:stop] if e.entity == row["item"]]
            assert row["events"] == sum(row["window"]["start"] <= iso_time(t) < row["window"]["end"] for t in times)
        counts.append(sum(row["events"] for row in found.rows))
    assert counts[-1] < len(events) - 20, "no bucket ever left the state"


def test_a_key_may_be_an_expression_or_a_column_under_another_name(spark: SparkSession, layout: Layout) -> None:
    app = stateside.App("shop", fields="n long, price string")

    @app.view(key=["bucket", "name", "price", "place"])
    def named(events: DataFrame) -> DataFrame:
        place = F.struct(F.col("type").alias("kind"), F.struct(F.col("n")).alias("inner")).alias("place")
        price = F.expr("cast(price as decimal(9,2))").alias("price")
        keys = (F.upper("entity").alias("name"), F.window("time", "1 hour").alias("bucket"), price, place)
        counted = events.groupBy(*keys).agg(F.count("*").alias("events"), F.sum("n").alias("unused"))
        return counted.select("events", "place", F.col("name"), "bucket", "price")

    append(layout, [seen(1, "lamp", 5, 7, "1.5"), seen(2, "Lamp", 6, 7, "1.50"), seen(3, "chair", 5, 1, "-2")])
    run_to(app, layout, spark)
    bucket = {"start": "2026-01-01T00:00:00Z", "end": "2026-01-01T01:00:00Z"}
    place = {"kind": "seen", "inner": {"n": 7}}
    lamp = {"name": "LAMP", "bucket": bucket, "price": "1.50", "place": place, "events": 2}
    whole = ("2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z", "LAMP", "1.5", "seen", "7")
    for parts in (3, 4, 5, 6):
        assert rows(layout, "named", *whole[:parts]) == [lamp]
    assert [row["name"] for row in rows(layout, "named", *whole[:2])] == ["CHAIR", "LAMP"]
    for wrong in ("1.501", "1e99", "NaN", "x"):
        with pytest.raises(KeyInvalid):
            rows(layout, "named", *whole[:3], wrong)


def test_sessions_merge_grow_and_leave_as_in_plain_python(spark: SparkSession, layout: Layout) -> None:
    """Sessions with a gap of 10 minutes; the middle event comes last and joins two sessions into one."""
    app = stateside.App("web", fields="n long")

    @app.view(key=["user", "session_window"])
    def visits(events: DataFrame) -> DataFrame:
        timed = events.withColumnRenamed("entity", "user").withWatermark("time", "2 hours")
        gap = F.session_window("time", "10 minutes")
        return timed.groupBy(gap, "user").agg(F.sum("n").alias("total"), F.avg("n").alias("mean"), F.count("*"))

    steps = [
        [seen(1, "emma", 0, 1), seen(2, "emma", 15, 2), seen(3, "oliver", 3, 5)],
        [seen(4, "emma", 8, 4), seen(5, "oliver", 40, 1)],  # joins emma's two
        [seen(6, "emma", -5, 8)],  # the session begins earlier now: another key in the state
        [seen(7, "oliver", 60 * 5, 1)],  # closes all that ended three hours before
    ]
    everything: list[Event] = []
    for step in steps:
        append(layout, step)
        everything += step
        run_to(app, layout, spark)
        found = answer(layout, "visits")
        live = [visit for visit in sessions(everything) if visit[2] > found.stamp.watermark_us]
        assert [(r["user"], r["session_window"], r["total"], r["count(1)"]) for r in found.rows] == [
            (user, {"start": iso_time(start), "end": iso_time(end)}, sum(ns), len(ns)) for user, start, end, ns in live
        ]
        assert [row["mean"] for row in found.rows] == [sum(ns) / len(ns) for *_, ns in live]
    assert len(found.rows) == 1
    assert rows(layout, "visits", "oliver", iso_time(START_US + 300 * MINUTE_US)) == found.rows
    assert rows(layout, "visits", "oliver", iso_time(START_US)) == []
    with pytest.raises(RequestInvalid, match="has no buckets to sum"):
        summed(layout, "visits", ["oliver"])


def sessions(events: Sequence[Event]) -> list[tuple[str, int, int, list[int]]]:
    gap_us, found = 10 * MINUTE_US, list[tuple[str, int, int, list[int]]]()
    for event in sorted(events, key=lambda event: (event.entity, event.time_us)):
        n = event.payload["n"]
        if found and found[-1][0] == event.entity and event.time_us < found[-1][2]:
            user, start, _, ns = found.pop()
            found.append((user, start, event.time_us + gap_us, [*ns, n]))
        else:
            found.append((event.entity, event.time_us, event.time_us + gap_us, [n]))
    return found


def test_sums_over_any_range_of_buckets_equal_a_recomputation(spark: SparkSession, layout: Layout) -> None:
    events = arrivals(3, 150)
    append(layout, events)
    run_to(impressions(), layout, spark, events_per_batch=60)
    draw = random.Random(5)
    for item in ("lamp", "lamp/desk", "chair", LONG, "nobody"):
        for _ in range(6):
            first, last = sorted(draw.sample(range(-2, 33), 2))
            start_us, end_us = START_US + first * HOUR_US, START_US + last * HOUR_US
            found = summed(layout, "hourly", [item], start_us, end_us)
            assert found.rows == recomputed(spark, item, events, start_us, end_us)
            assert found.range == {"from": iso_time(start_us), "to": iso_time(end_us)}


def recomputed(
    spark: SparkSession, item: str, events: Sequence[Event], start_us: int, end_us: int
) -> list[dict[str, Any]]:
    """The same columns over all events in the range at once, by hand."""
    inside = [e for e in events if e.entity == item and start_us <= e.time_us < end_us]
    if not inside:
        return []
    ns = [e.payload["n"] for e in inside if e.payload["n"] is not None]
    cents = [int(e.payload["price"].replace(".", "")) for e in inside if e.payload["price"] is not None]
    bits = 0
    for n in ns:
        bits |= n
    paid = f"{sum(cents) / 100:.2f}" if cents else None
    [row] = [
        {
            "item": item,
            "window": {"start": iso_time(start_us), "end": iso_time(end_us)},
            "events": len(inside),
            "total": sum(ns) if ns else None,
            "least": min(ns, default=None),
            "most": max(ns, default=None),
            "mean": sum(ns) / len(ns) if ns else None,
            "paid": paid,
            "paid_mean": half_up(sum(cents), len(cents), 6),
            "latest": max(inside, key=lambda e: (e.time_us, e.id)).payload["n"],
            "bits": bits if ns else None,
            "mean8": half_up(sum(cents), len(cents), 6),
            "paid8": paid,
        }
    ]
    return [row]


def half_up(cents: int, count: int, digits: int) -> str | None:
    if not count:
        return None
    unscaled = (2 * abs(cents) * 10 ** (digits - 2) + count) // (2 * count)
    text = f"{unscaled:0{digits + 1}d}"
    return f"{'-' * (cents < 0 and unscaled > 0)}{text[:-digits]}.{text[-digits:]}"


def test_the_last_hours_end_with_the_newest_bucket_of_the_key(spark: SparkSession, layout: Layout) -> None:
    append(layout, [seen(1, "lamp", 5, 7), seen(2, "lamp", 185, 2), seen(3, "chair", 600, 1)])
    run_to(impressions(), layout, spark)
    assert summed(layout, "hourly", ["lamp"], last_us=3 * HOUR_US).rows[0]["total"] == 2
    both = summed(layout, "hourly", ["lamp"], last_us=4 * HOUR_US)
    assert (both.rows[0]["total"], both.buckets) == (9, 2)
    assert both.range == {"from": "2026-01-01T00:00:00Z", "to": "2026-01-01T04:00:00Z"}
    assert summed(layout, "hourly", ["lamp"]).rows == both.rows
    assert summed(layout, "hourly", ["nobody"]).range is None
    assert summed(layout, "hourly", ["nobody"], last_us=HOUR_US).rows == []


def test_under_a_watermark_the_last_hours_end_with_the_newest_event_of_all_keys(
    spark: SparkSession, layout: Layout
) -> None:
    append(layout, [seen(1, "lamp", 5, 7), seen(2, "lamp", 60 * 10, 2), seen(3, "chair", 60 * 28 + 3, 1)])
    run_to(impressions("24 hours"), layout, spark)
    found = summed(layout, "hourly", ["lamp"], last_us=20 * HOUR_US)
    assert found.range == {"from": "2026-01-01T09:00:00Z", "to": "2026-01-02T05:00:00Z"}
    assert found.rows[0]["total"] == 2
    with pytest.raises(RequestInvalid, match=r"before 2026-01-01T04:00:00Z are closed and have left") as closed:
        summed(layout, "hourly", ["lamp"], START_US, START_US + DAY_US)
    assert "longer delay" in str(closed.value.next_step)
    assert summed(layout, "hourly", ["lamp"], START_US + 4 * HOUR_US, START_US + DAY_US).rows[0]["total"] == 2


def test_a_range_that_cuts_a_bucket_or_has_no_key_is_refused(spark: SparkSession, layout: Layout) -> None:
    append(layout, [seen(1, "lamp", 25, 7), seen(2, "lamp", 45, 2)])
    run_to(impressions(size="30 minutes", offset="10 minutes"), layout, spark)
    start_us = START_US + 10 * MINUTE_US
    assert summed(layout, "hourly", ["lamp"], start_us, start_us + HOUR_US).rows[0]["total"] == 9
    with pytest.raises(RequestInvalid, match="inside a bucket; buckets are 30m long") as cut:
        summed(layout, "hourly", ["lamp"], START_US, start_us + HOUR_US)
    assert cut.value.next_step == "Take 2025-12-31T23:40:00Z or 2026-01-01T00:10:00Z"
    with pytest.raises(RequestInvalid, match="inside a bucket"):
        summed(layout, "hourly", ["lamp"], last_us=45 * MINUTE_US)
    with pytest.raises(RequestInvalid, match="is empty"):
        summed(layout, "hourly", ["lamp"], start_us, start_us)
    with pytest.raises(RequestInvalid, match="of one key"):
        summed(layout, "hourly", [], start_us, start_us + HOUR_US)


def test_columns_that_depend_on_the_order_of_arrival_are_not_combined(spark: SparkSession, layout: Layout) -> None:
    app = stateside.App("shop", fields="n long")

    @app.view(key=["entity", "window"])
    def firsts(events: DataFrame) -> DataFrame:
        return events.groupBy("entity", F.window("time", "1 hour")).agg(F.first("n").alias("earliest"))

    append(layout, [seen(1, "lamp", 25, 7)])
    run_to(app, layout, spark)
    with pytest.raises(RequestInvalid, match="'earliest' cannot be combined over buckets: it depends on the order"):
        summed(layout, "firsts", ["lamp"])


def test_an_aggregation_above_dropped_duplicates_is_served(spark: SparkSession, layout: Layout) -> None:
    """Two operators with state: the aggregation is the one nearest to the sink, and that one is served."""
    app = stateside.App("shop", fields="n long")

    @app.view(key=["entity"])
    def once(events: DataFrame) -> DataFrame:
        return events.dropDuplicates(["entity", "n"]).groupBy("entity").agg(F.sum("n").alias("total"))

    append(layout, [seen(1, "lamp", 1, 7), seen(2, "lamp", 2, 7)])
    run_to(app, layout, spark)
    append(layout, [seen(3, "lamp", 3, 7), seen(4, "lamp", 4, 5)])
    run_to(app, layout, spark)
    assert rows(layout, "once", "lamp") == [{"entity": "lamp", "total": 12}]


def test_a_view_whose_window_has_another_size_is_a_changed_view(spark: SparkSession, layout: Layout) -> None:
    append(layout, [seen(1, "lamp", 25, 7)])
    run_to(impressions(), layout, spark)
    with pytest.raises(ViewInvalid, match=r"its window was .*size_us=3600000000.* and is .*size_us=7200000000"):
        run_to(impressions(size="2 hours"), layout, spark)


def summed(
    layout: Layout,
    view: str,
    key: Sequence[str],
    from_us: int | None = None,
    to_us: int | None = None,
    last_us: int | None = None,
) -> SumAnswer:
    tail = Tail(layout.view(view))
    tail.step()
    tail.close()
    reader = ViewReader(layout.view(view))
    try:
        return asyncio.run(
            Relation(reader).sum(reader.shape.parse_key(key), BucketRange(from_us, to_us, last_us), Floor(wait_ms=0))
        )
    finally:
        reader.close()


def as_iso(moment: datetime) -> str:
    return iso_time((moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1))
