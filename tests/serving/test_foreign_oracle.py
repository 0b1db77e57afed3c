"""The oracle for inferred views: what is served of a plain query is what Spark's own reader says the state is.

Each case is a query that knows nothing of Stateside, run batch by batch, each time as a restart.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from stateside.replica.tail import Tail
from stateside.serving.foreign import Foreign, open_foreign
from stateside.serving.views import Floor, ViewReader

pytestmark = pytest.mark.spark

BATCHES = 4
STATE = "spark.sql.streaming.stateStore"
PROVIDERS = {"hdfs": "HDFSBackedStateStoreProvider", "rocksdb": "RocksDBStateStoreProvider"}
SCHEMA = "customer string, kind int, amount decimal(20,2), at timestamp"
Query = Callable[[DataFrame], DataFrame]


def counts(events: DataFrame) -> DataFrame:
    every = [F.count("*"), F.sum("amount"), F.avg("amount"), F.avg("kind"), F.max("at"), F.collect_set("kind")]
    pairs = F.max(F.struct("at", "kind"))
    return events.groupBy("customer", "kind").agg(*every, pairs, F.max_by("customer", "at"))


def total(events: DataFrame) -> DataFrame:
    return events.groupBy().agg(F.count("*"), F.sum("amount"))


def windows(events: DataFrame) -> DataFrame:
    return events.groupBy(F.window("at", "1 hour"), "customer").agg(F.avg("amount"), F.min("kind"))


def sliding(events: DataFrame) -> DataFrame:
    return events.groupBy("customer", F.window("at", "1 hour", "20 minutes")).count()


def expressions(events: DataFrame) -> DataFrame:
    return events.groupBy(F.upper("customer"), F.col("kind") % 2, F.to_date("at")).agg(F.sum("kind"), F.sum("amount"))


def sessions(events: DataFrame) -> DataFrame:
    return events.groupBy("customer", F.session_window("at", "10 minutes"), "kind").agg(F.sum("amount"))


def duplicates(events: DataFrame) -> DataFrame:
    return events.dropDuplicates(["customer", "at"])


def duplicates_for_a_while(events: DataFrame) -> DataFrame:
    return events.dropDuplicatesWithinWatermark(["customer", "kind"])


def two_operators(events: DataFrame) -> DataFrame:
    return events.dropDuplicates(["customer", "at"]).groupBy(F.window("at", "1 hour")).agg(F.count("*"))


CASES = [
    (counts, "hdfs", {}),
    (counts, "rocksdb", {}),
    (total, "hdfs", {}),
    (total, "rocksdb", {}),
    (windows, "hdfs", {}),
    (sliding, "rocksdb", {}),
    (expressions, "hdfs", {}),
    (expressions, "rocksdb", {"checkpointFormatVersion": "1"}),
    (sessions, "hdfs", {}),
    (sessions, "rocksdb", {}),
    (duplicates, "hdfs", {}),
    (duplicates, "rocksdb", {}),
    (duplicates_for_a_while, "hdfs", {}),
    (two_operators, "hdfs", {}),
    (two_operators, "rocksdb", {}),
]


@pytest.mark.parametrize(("query", "store", "more"), CASES, ids=[f"{q.__name__}-{s}-{len(m)}" for q, s, m in CASES])
def test_what_is_served_is_what_spark_says_the_state_is_after_every_batch(
    spark: SparkSession, tmp_path: Path, query: Query, store: str, more: dict[str, str]
) -> None:
    foreign = open_foreign(str(tmp_path / "checkpoint"), tmp_path / "replicas")
    with settings(spark, store, more):
        for number in range(BATCHES):
            feed(tmp_path / "feed", number)
            run(spark, tmp_path, query)
            foreign.start()
            views = [view.name for view in foreign.layout.views()]
            assert views == (["checkpoint-0", "checkpoint-1"] if query is two_operators else ["checkpoint"])
            for operator, view in enumerate(views):
                assert served(foreign, view) == state(spark, tmp_path / "checkpoint", operator)


def test_each_state_variable_is_a_view(spark: SparkSession, tmp_path: Path) -> None:
    def keep(events: DataFrame) -> DataFrame:
        grouped = events.groupBy("customer")
        return grouped.transformWithState(keeper(), "customer string", "update", "processingTime")

    foreign = open_foreign(str(tmp_path / "checkpoint"), tmp_path / "replicas")
    no_data = "spark.sql.streaming.noDataMicroBatches.enabled"
    with settings(spark, "rocksdb", {}):
        spark.conf.set(no_data, "false")
        try:
            for number in range(2):
                feed(tmp_path / "feed", number)
                run(spark, tmp_path, keep)
        finally:
            spark.conf.unset(no_data)
        foreign.start()
        for variable in ("total", "kinds"):
            reader = spark.read.format("statestore").option("stateVarName", variable)
            found = reader.load(str(tmp_path / "checkpoint")).drop("partition_id").toArrow().to_pylist()
            expected = [[leaf for part in shown(row).values() for leaf in part.values()] for row in found]
            assert served(foreign, f"checkpoint-{variable}") == sorted(expected, key=json.dumps)


def keeper() -> Any:
    """A processor with a value and a map; made in a function, so that it goes to Spark's workers by value."""
    from pyspark.sql.streaming import StatefulProcessor

    class Keeper(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.total = handle.getValueState("total", "n long, last string")
            self.kinds = handle.getMapState("kinds", "kind int", "n long")

        def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
            for row in rows:
                self.total.update(((self.total.get() or (0, ""))[0] + 1, str(row.kind)))
                kind = (row.kind or 0,)
                self.kinds.updateValue(kind, ((self.kinds.getValue(kind) or (0,))[0] + 1,))
            yield Row(customer=key[0])

        def close(self) -> None: ...

    return Keeper()


def served(foreign: Foreign, view: str) -> list[list[Any]]:
    """All rows of a view, each as its values."""
    places = foreign.layout.view(view)
    tail = Tail(places)
    tail.step()
    tail.close()
    reader = ViewReader(places)
    try:
        rows = asyncio.run(reader.rows((), Floor(wait_ms=0))).rows
    finally:
        reader.close()
    return sorted(([_plain(value) for value in row.values()] for row in rows), key=json.dumps)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return _plain(list(value.values()))
    return [_plain(part) for part in value] if isinstance(value, list) else value


def state(spark: SparkSession, checkpoint: Path, operator: int) -> list[list[Any]]:
    """What Spark's reader has, each row as the values of an inferred view."""
    reader = spark.read.format("statestore").option("operatorId", str(operator))
    frame = reader.load(str(checkpoint))
    found = frame.select(_numbered(frame, "key"), _numbered(frame, "value")).toArrow().to_pylist()
    return sorted((_values(shown(row["key"]), shown(row["value"])) for row in found), key=json.dumps)


def _numbered(frame: DataFrame, column: str) -> Column:
    """The struct with a name of its own for each field, which Arrow needs."""
    fields = frame.schema[column].dataType.fields  # type: ignore[attr-defined]
    names = [field.name for field in fields]
    fresh = [name if names.count(name) == 1 else f"{name}-{place}" for place, name in enumerate(names)]
    renamed = [StructField(name, field.dataType) for name, field in zip(fresh, fields, strict=True)]
    return F.col(column).cast(StructType(renamed)).alias(column)


def _values(key: dict[str, Any], value: dict[str, Any]) -> list[Any]:
    if "sessionStartTime" in key:  # its value row has all grouping columns; the session window comes last
        value = dict(value)
        session = value.pop("session_window")
        grouping = [value.pop(name) for name in list(key) if name != "sessionStartTime"]
        return _plain([*grouping, session, *value.values()])
    value.pop("__dummy__", None)
    return _plain([*key.values(), *value.values()])


def shown(value: Any) -> Any:
    """A value as it stands in an answer."""
    match value:
        case Mapping():
            return {name: shown(part) for name, part in value.items()}
        case list():
            return [shown(part) for part in value]
        case datetime():
            return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
        case date():
            return value.isoformat()
        case Decimal():
            return f"{value:f}"
        case bytes():
            return base64.urlsafe_b64encode(value).decode()
    return value


@contextmanager
def settings(spark: SparkSession, store: str, more: dict[str, str]) -> Iterator[None]:
    given = {
        f"{STATE}.providerClass": f"org.apache.spark.sql.execution.streaming.state.{PROVIDERS[store]}",
        f"{STATE}.checkpointFormatVersion": "1" if store == "hdfs" else "2",
        **{f"{STATE}.{name}": value for name, value in more.items()},
    }
    before = {name: spark.conf.get(name) for name in given}
    for name, value in given.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


def feed(folder: Path, number: int) -> None:
    draw, start = random.Random(number), datetime(2026, 1, 1) + timedelta(hours=2 * number)
    events = [
        {
            "customer": draw.choice(["emma", "oliver", None, "mia" * 9]),
            "kind": draw.choice([1, 2, None]),
            "amount": draw.choice([None, "0.05", "-3.33", "99999999999999999.99"]),
            "at": (start + timedelta(minutes=draw.randrange(90))).isoformat(),
        }
        for _ in range(12)
    ]
    folder.mkdir(exist_ok=True)
    hidden = folder / f".{number}"
    hidden.write_text("".join(json.dumps(event) + "\n" for event in events))
    os.utime(hidden, (time.time() - 1_000 + number,) * 2)
    hidden.rename(folder / f"{number}.json")


def run(spark: SparkSession, folder: Path, query: Query) -> None:
    events = spark.readStream.schema(SCHEMA).json(str(folder / "feed"))
    late = query in (windows, sessions, duplicates, duplicates_for_a_while, two_operators)
    watermarked = events.withWatermark("at", "30 minutes") if late else events
    writer = query(watermarked).writeStream.format("noop").outputMode("append" if late else "update")
    started = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    started.awaitTermination()
