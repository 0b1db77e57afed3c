"""Every aggregate that is served, against Spark's own batch query over the same events."""

from __future__ import annotations

import base64
import math
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import stateside
from stateside.core.errors import ValueOverflow
from stateside.core.layout import Layout
from stateside.journal import Event
from stateside.testing import append, rows, run_to
from tests.sizes import sized

pytestmark = pytest.mark.spark

FIELDS = {
    **{"seq": "bigint", "n": "bigint", "small": "smallint", "x": "double", "f": "float", "word": "string"},
    **{
        "flag": "boolean",
        "d8": "decimal(8,2)",
        "d11": "decimal(11,3)",
        "d18": "decimal(18,4)",
        "d38": "decimal(38,10)",
    },
}
AGGREGATES = [
    *("count(*)", "count(n)", "count(n, x)", "count_if(n > 0)", "sum(n)", "sum(small)", "sum(x)", "sum(f)"),
    *("sum(d8)", "sum(d11)", "sum(d18)", "sum(d38)", "try_sum(n)", "try_sum(d8)", "try_sum(d18)"),
    *("sum(n) filter (where n > 0)", "count(*) filter (where flag)"),
    *("avg(n)", "avg(small)", "avg(x)", "avg(f)", "avg(d8)", "avg(d11)", "avg(d18)", "avg(d38)", "try_avg(d18)"),
    *(
        f"{name}({column})"
        for name in ("min", "max")
        for column in ("n", "x", "f", "word", "flag", "d8", "d38", "time")
    ),
    *("max(to_date(time))", "min(to_timestamp_ntz(time))", "max(cast(word as binary))"),
    *("max(struct(n, word))", "min(array(n, seq))", "max(array(struct(d8)))"),
    *("first(word)", "first(word, true)", "last(word)", "last(word, true)", "any_value(n)", "any_value(n, true)"),
    *("max_by(word, seq)", "min_by(struct(n, d18, array(f) as list), seq)", "max_by(d38, if(n > 0, seq, null))"),
    *("bool_and(flag)", "bool_or(flag)", "bit_and(n)", "bit_or(n)", "bit_xor(n)"),
]


def measured(events: DataFrame) -> DataFrame:
    typed = [F.expr(f"cast({name} as {type_})").alias(name) for name, type_ in FIELDS.items()]
    named = (F.expr(text).alias(f"c{number}") for number, text in enumerate(AGGREGATES))
    return events.select("entity", "time", *typed).groupBy("entity").agg(*named)


def drawn(draw: random.Random) -> dict[str, Any]:
    """The fields of an event, about one in six of them missing."""

    def decimal(digits: int, behind: int) -> str:
        return f"{draw.choice([draw.randint(-9, 9), draw.randint(-(10**digits) + 1, 10**digits - 1)])}e-{behind}"

    def double() -> str:  # sums of these are exact, so that their order makes no difference
        return draw.choice([*(str(draw.randint(-80, 80) / 8) for _ in range(20)), "NaN", "Infinity", "-0.0"])

    fields = {
        "n": draw.choice([draw.randint(-3, 3), draw.randint(-(10**14), 10**14)]),
        "small": draw.randint(-(2**15), 2**15 - 1),
        "x": double(),
        "f": double(),
        "word": draw.choice(["", "a", "ä", "Z", "zz", "\U0001f600"]),
        "flag": draw.choice([True, False]),
        "d8": decimal(8, 2),
        "d11": decimal(11, 3),
        "d18": decimal(18, 4),
        "d38": decimal(33, 10),
    }
    return {name: str(value) if draw.random() > 1 / 6 else None for name, value in fields.items()}


@pytest.mark.parametrize("seed", sized([1], [1, 2]))
def test_every_aggregate_is_served_as_spark_s_batch_query_has_it(
    spark: SparkSession, layout: Layout, seed: int
) -> None:
    """Many small groups, over three batches: each is an example of its own."""
    draw = random.Random(seed)
    events = [{**drawn(draw), "entity": f"g{draw.randrange(150)}"} for _ in range(450)]
    assert differences(served(spark, layout, events), expected(spark, events)) == []


def test_numbers_that_grow_too_large_are_null_where_spark_says_null(spark: SparkSession, layout: Layout) -> None:
    """With ANSI off, decimals that overflow are null; `try_sum` of whole numbers is null in any case."""
    most = {"n": str(2**62), "d8": "999999.99", "d11": "1", "d18": "99999999999999", "d38": "9" * 28}
    many = [{**most, "x": "1", "f": "1", "small": "1", "entity": "much"} for _ in range(12)]
    with setting(spark, "spark.sql.ansi.enabled", "false"):
        found, batch = served(spark, layout, many, events_per_batch=5), expected(spark, many)
    assert differences(found, batch) == []
    [row] = found
    null = {text for number, text in enumerate(AGGREGATES) if row[f"c{number}"] is None}
    assert {"sum(d38)", "try_sum(n)", "avg(d38)"} <= null
    assert "sum(d8)" not in null


def test_an_open_group_that_overflows_is_told_where_spark_would_fail(spark: SparkSession, layout: Layout) -> None:
    """Rows go to the sink only when they close, so Spark has not looked at this sum yet; it would fail on it."""
    app = stateside.App("sums", fields="d string")
    kept: list[Any] = []

    class Keep:
        def write(self, table: Any, batch: Any) -> None:
            kept.extend(table.to_pylist())

    @app.view(key=["entity", "window"], sink=lambda context: Keep())
    def totals(events: DataFrame) -> DataFrame:
        timed = events.withWatermark("time", "1 day").withColumn("d", F.expr("cast(d as decimal(38,0))"))
        return timed.groupBy("entity", F.window("time", "1 hour")).agg(F.sum("d").alias("total"))

    append(layout, [Event(f"{number}", "much", "x", 0, {"d": "9" * 38}) for number in range(2)])
    append(layout, [Event("other", "little", "x", 0, {"d": "7"})])
    run_to(app, layout, spark)
    assert rows(layout, "totals", "little")[0]["total"] == "7"
    with pytest.raises(ValueOverflow, match="'total' has grown too large for its type decimal"):
        rows(layout, "totals", "much")
    assert kept == []


def differences(found: Sequence[dict[str, Any]], batch: Sequence[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Group, aggregate, served, expected: wherever the last two differ."""
    assert [row["entity"] for row in found] == [row["entity"] for row in batch]
    return [
        (row["entity"], text, row[f"c{number}"], right[f"c{number}"])
        for row, right in zip(found, batch, strict=True)
        for number, text in enumerate(AGGREGATES)
        if row[f"c{number}"] != right[f"c{number}"]
    ]


@contextmanager
def setting(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    before = spark.conf.get(name)
    spark.conf.set(name, value)
    yield
    spark.conf.set(name, before)  # type: ignore[arg-type]


def served(
    spark: SparkSession, layout: Layout, events: Sequence[dict[str, Any]], events_per_batch: int = 0
) -> list[dict[str, Any]]:
    """What the view answers, after several batches."""
    app = stateside.App("oracle", fields=", ".join(f"{name} string" for name in FIELDS))
    app.view(key=["entity"])(measured)
    append(
        layout,
        [
            Event(str(number), event["entity"], "x", number * 10**10, payload(number, event))
            for number, event in enumerate(events)
        ],
    )
    run_to(app, layout, spark, events_per_batch=events_per_batch or max(2, len(events) // 3))
    return sorted(rows(layout, "measured"), key=lambda row: row["entity"])


def expected(spark: SparkSession, events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What Spark says to the same query over the same events, as a batch."""
    start = datetime(1970, 1, 1, tzinfo=UTC)
    columns = ", ".join(f"{name} string" for name in FIELDS)
    table = [
        (e["entity"], start + timedelta(microseconds=number * 10**10), *payload(number, e).values())
        for number, e in enumerate(events)
    ]
    frame = spark.createDataFrame(table, f"entity string, time timestamp, {columns}").coalesce(1)
    return sorted(map(as_json, measured(frame).toArrow().to_pylist()), key=lambda row: str(row["entity"]))


def payload(number: int, event: dict[str, Any]) -> dict[str, Any]:
    return {name: str(number) if name == "seq" else event.get(name) for name in FIELDS}


def as_json(value: Any) -> Any:
    match value:
        case dict():
            return {name: as_json(part) for name, part in value.items()}
        case list():
            return [as_json(part) for part in value]
        case Decimal():
            return f"{value:f}"
        case bytes() | bytearray():
            return base64.urlsafe_b64encode(value).decode()
        case float() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case datetime():
            return value.isoformat().replace("+00:00", "Z")
        case date():
            return value.isoformat()
    return value
