"""The oracle for kinds of state: after every batch a replica has the rows that Spark's own reader of the state has.

Each case runs a query of its own, unknown to Stateside. Its views are inferred, its commits are then replayed one by
one; and in the end another replica, which sees the last commit only, has to load the state from snapshots.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from stateside.checkpoint.catalogue import Catalogue, KeyColumn, Stored, ViewColumn
from stateside.checkpoint.groups import views_of_groups
from stateside.checkpoint.join import views_of_join
from stateside.checkpoint.log import Checkpoint
from stateside.checkpoint.schema import read_schema
from stateside.checkpoint.variable_catalogue import completed, views_of_variables
from stateside.storage import Storage

from .staged import Staged, conf, oracle

pytestmark = pytest.mark.spark

STREAMING = "spark.sql.streaming"
STATE = f"{STREAMING}.stateStore"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
HDFS = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
MINUTE_MS = 60_000
SCHEMA = "customer string, kind string, amount long, at_ms long"


def keeper(*, more: bool = False) -> Any:
    """A processor with a variable of each sort; with `more` its records have one more field."""
    from pyspark.sql.streaming import StatefulProcessor

    class Keeper(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.handle = handle
            record = "amount long, price decimal(20,2), note string, tags array<string>, named struct<a:int,b:date>"
            self.value = handle.getValueState("value", record + (", more double" if more else ""))
            self.map = handle.getMapState("map", "kind string, size int", "amount long, counts map<string,int>")
            self.list = handle.getListState("list", "amount long, note string")
            self.fresh = handle.getListState("fresh", "amount long", ttlDurationMs=3_600_000)
            self.brief = handle.getListState("brief", "amount long", ttlDurationMs=1)

        def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
            from datetime import date

            for row in rows:
                if row.kind == "forget":
                    for state in (self.value, self.map, self.list, self.fresh):
                        state.clear()
                    for at_ms in list(self.handle.listTimers()):
                        self.handle.deleteTimer(at_ms)
                    continue
                price, note = Decimal(row.amount) / 4, row.kind if row.amount % 2 else None
                tags, named = [row.kind] * (row.amount % 4), (row.amount, date(2026, 1, 1 + row.amount % 9))
                record = (row.amount, price, note, tags, named if row.amount % 5 else None)
                self.value.update((*record, float(row.amount)) if more else record)
                self.map.updateValue((row.kind, row.amount % 3), (row.amount, {row.kind: row.amount}))
                if row.kind == "b":
                    self.map.removeKey(("a", 1))
                    self.list.put([(row.amount, "put"), (-row.amount, None)])
                    self.fresh.put([(row.amount,)])
                    for at_ms in list(self.handle.listTimers()):
                        self.handle.deleteTimer(at_ms)
                elif row.kind == "c":
                    self.list.appendList([(row.amount, "one"), (row.amount, "two" * 9)])
                    self.fresh.appendList([(1,), (2,)])
                else:
                    self.list.appendValue((row.amount, None))
                    self.fresh.appendValue((row.amount,))
                self.brief.appendValue((row.amount,))
                self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 3_600_000 + row.amount)
            yield Row(customer=key[0])

        def close(self) -> None: ...

    return Keeper()


def variables(events: DataFrame, **changes: bool) -> DataFrame:
    grouped = events.groupBy("customer", "size")
    return grouped.transformWithState(keeper(**changes), "customer string", "Update", "processingTime")


def joined(how: str) -> Callable[[DataFrame], DataFrame]:
    def join(events: DataFrame) -> DataFrame:
        timed = events.withWatermark("at", "10 minutes")
        left = timed.where("kind != 'b'").select("customer", "size", F.col("amount").alias("paid"), "at")
        right = timed.where("kind != 'a'").select(
            F.col("customer").alias("who"),
            F.col("size").alias("index"),
            F.col("amount").alias("got"),
            F.col("at").alias("then"),
        )
        near = F.expr("customer = who AND size = index AND then BETWEEN at AND at + INTERVAL 20 MINUTES")
        return left.join(right, near, how)

    return join


def grouped(events: DataFrame) -> DataFrame:
    def count(key: Any, frames: Iterator[Any], state: Any) -> Iterator[Any]:
        import pandas as pd

        if state.hasTimedOut:
            state.remove()
        else:
            number, total, _ = state.get if state.exists else (0, 0.0, None)
            for frame in frames:
                number += len(frame)
                total += float(frame["amount"].sum())
            state.update((number, total, f"{number}" if number % 3 else None))
            if number % 2:
                state.setTimeoutTimestamp(state.getCurrentWatermarkMs() + 30 * 60_000)
        yield pd.DataFrame({"customer": [key[0]]})

    timed = events.withWatermark("at", "10 minutes").groupBy("customer", "size")
    state = "number int, total double, text string"  # pyspark 4.2 fails with types that have parts
    return timed.applyInPandasWithState(count, "customer string", state, "Update", "EventTimeTimeout")


def counted(events: DataFrame) -> DataFrame:
    return events.groupBy("customer", "size").agg(F.count("*"), F.sum("amount"), F.max("at"))


def sessions(events: DataFrame) -> DataFrame:
    timed = events.withWatermark("at", "10 minutes")
    return timed.groupBy("customer", F.session_window("at", "5 minutes")).agg(F.sum("amount"))


def test_variables_lists_and_timers_are_those_that_spark_has(
    spark: SparkSession, tmp_path: Path, rocksdb: dict[str, str]
) -> None:
    """Values and maps of nested types, lists that are appended to, replaced, cleared and expire, and timers."""
    with conf(spark, rocksdb):
        feed_and_run(spark, tmp_path, variables, batches=6)
        views = views_of_variables(checkpoint(tmp_path), 0)
        assert {view.view for view in views} == {"value", "map", "list", "fresh", "brief", "timers"}
        sizes = replayed(spark, tmp_path, {view.view: (view, *ask_variable(view)) for view in views})
    for name in ("value", "map", "list", "fresh", "timers"):
        assert any(later < earlier for earlier, later in pairwise(sizes[name])), f"nothing ever left {name}"
    assert max(sizes["brief"]) > 0


@pytest.fixture(
    params=[("2", "2", "unsaferow"), ("1", "1", "avro")],  # a list in format 1: test_state_views; Avro in 2: below
    ids=["format-2", "avro-format-1-merge-1"],
)
def rocksdb(request: pytest.FixtureRequest) -> dict[str, str]:
    """Settings of RocksDB's store: checkpoint format, merge operator, encoding."""
    form, merge, encoding = request.param
    return {
        f"{STATE}.providerClass": ROCKSDB,
        f"{STATE}.checkpointFormatVersion": form,
        f"{STATE}.rocksdb.mergeOperatorVersion": merge,
        f"{STATE}.encodingFormat": encoding,
        f"{STREAMING}.noDataMicroBatches.enabled": "false",
    }


def test_a_value_in_avro_may_get_another_field_and_older_rows_lack_it(spark: SparkSession, tmp_path: Path) -> None:
    settings = {
        f"{STATE}.providerClass": ROCKSDB,
        f"{STATE}.checkpointFormatVersion": "2",
        f"{STATE}.encodingFormat": "avro",
        f"{STREAMING}.noDataMicroBatches.enabled": "false",
    }
    with conf(spark, settings):
        feed_and_run(spark, tmp_path, variables, batches=2)
        [old] = [view for view in views_of_variables(checkpoint(tmp_path), 0) if view.view == "value"]
        before = completed(old, checkpoint(tmp_path).storage)
        feed_and_run(spark, tmp_path, lambda events: variables(events, more=True), batches=1, begin=2)
        [new] = [view for view in views_of_variables(checkpoint(tmp_path), 0) if view.view == "value"]
        staged = Staged(tmp_path / "checkpoint", tmp_path / "staged")
        for batch in staged.batches():
            staged.let_through(batch)
        rows = staged.rows(new)
        assert rows == oracle(spark, tmp_path / "checkpoint", 2, ["key", "value"], stateVarName="value")
    assert {row[-1] is None for row in rows} == {True, False}
    assert [column.name for column in completed(new, staged.storage).columns][-1] == "more"
    assert [column.name for column in before.columns][-1] == "named"


@pytest.mark.parametrize(
    ("how", "version", "provider", "form"),
    [
        ("left_outer", "2", ROCKSDB, "2"),
        ("full_outer", "2", HDFS, "1"),
        ("inner", "3", ROCKSDB, "2"),
        ("left_outer", "3", ROCKSDB, "1"),
    ],
    ids=["left-2-rocksdb", "full-2-hdfs", "inner-3", "left-3-format-1"],
)
def test_the_sides_of_a_join_are_those_that_spark_has(
    spark: SparkSession, tmp_path: Path, how: str, version: str, provider: str, form: str
) -> None:
    settings = {
        f"{STATE}.providerClass": provider,
        f"{STATE}.checkpointFormatVersion": form,
        f"{STREAMING}.join.stateFormatVersion": version,
    }
    with conf(spark, settings):
        feed_and_run(spark, tmp_path, joined(how), batches=6)
        views = views_of_join(checkpoint(tmp_path), 0)
        asked = {
            view.view: (view, ["key", "value"], {"storeName": f"{view.view}-keyWithIndexToValue"}) for view in views
        }
        sizes = replayed(spark, tmp_path, asked)
        _compare_sides(spark, tmp_path, views)
    for side in ("left", "right"):
        assert any(later < earlier for earlier, later in pairwise(sizes[side])), f"nothing ever left the {side} side"


def _compare_sides(spark: SparkSession, folder: Path, views: list[Catalogue]) -> None:
    """Asked for a side, and not for a store, Spark's reader goes by the numbers of rows, and shows less of them."""
    last = Staged(folder / "checkpoint", folder / "sides")
    last.let_through(last.batches()[-1])
    for view in views:
        index = len(view.key) - 1
        rows = [row[:index] + row[index + 1 : -1] for row in last.rows(view)]
        expected = oracle(spark, folder / "checkpoint", last.batches()[-1], ["key", "value"], joinSide=view.view)
        assert sorted(rows, key=repr) == expected


@pytest.mark.parametrize(("provider", "form"), [(ROCKSDB, "2"), (HDFS, "1")], ids=["rocksdb", "hdfs"])
def test_groups_are_those_that_spark_has(spark: SparkSession, tmp_path: Path, provider: str, form: str) -> None:
    settings = {f"{STATE}.providerClass": provider, f"{STATE}.checkpointFormatVersion": form}
    with conf(spark, settings):
        feed_and_run(spark, tmp_path, grouped, batches=6)
        [view] = views_of_groups(checkpoint(tmp_path), 0)
        fields = [f"value.groupState.{name}" for name in ("number", "total", "text")]
        parts = ["key", *fields, "nullif(value.timeoutTimestamp, -1) AS timeout"]
        sizes = replayed(spark, tmp_path, {"groups": (view, parts, {})})
    assert any(later < earlier for earlier, later in pairwise(sizes["groups"])), "no group ever timed out"


@pytest.mark.parametrize("form", ["1", "2"])
@pytest.mark.parametrize("query", [counted, sessions, variables], ids=["aggregation", "sessions", "variables"])
def test_without_changelogs_the_changes_are_found_between_two_versions_and_nothing_is_loaded(
    spark: SparkSession, tmp_path: Path, query: Callable[[DataFrame], DataFrame], form: str
) -> None:
    settings = {
        f"{STATE}.providerClass": ROCKSDB,
        f"{STATE}.checkpointFormatVersion": form,
        f"{STATE}.rocksdb.changelogCheckpointing.enabled": "false",
        f"{STREAMING}.noDataMicroBatches.enabled": "false",
    }
    with conf(spark, settings):
        feed_and_run(spark, tmp_path, query, batches=8)  # RocksDB merges tables from the fourth on
        if query is variables:
            views = [view for view in views_of_variables(checkpoint(tmp_path), 0) if view.view in ("map", "list")]
            asked = {view.view: (view, *ask_variable(view)) for view in views}
        else:
            view = whole_view(checkpoint(tmp_path).storage, "session" if query is sessions else "aggregation")
            asked = {view.view: (view, ["key", "value.sum"] if query is sessions else ["key", "value"], {})}
        sizes = replayed(spark, tmp_path, asked)
    assert not list((tmp_path / "staged").glob("views/*/replica/current")), "a replica was loaded"
    assert not list((tmp_path / "checkpoint").glob("state/0/*/*.changelog"))
    if query is not counted:
        assert any(later < earlier for size in sizes.values() for earlier, later in pairwise(size)), "nothing ever left"


def whole_view(storage: Storage, kind: Any) -> Catalogue:
    """The state as it is stored, buffers and all."""
    schema = read_schema(storage, 0)
    key = [KeyColumn(c.name, c.type, Stored(i, c.name, c.type), c.name) for i, c in enumerate(schema.key)]
    values = [(Stored(i, c.name, c.type), c) for i, c in enumerate(schema.value)]
    others = len(key) if kind == "session" else 0
    if others:
        window = next(stored for stored, column in values if column.name == "session_window")
        key = [replace(column, whole=window) if column.name == "sessionStartTime" else column for column in key]
    columns = [ViewColumn(f"{c.name}{s.index}", c.type, "value", (s,), c.name) for s, c in values[others:]]
    return Catalogue("", "whole", 0, tuple(key), tuple(columns), kind=kind)


def ask_variable(view: Catalogue) -> tuple[list[str], dict[str, str]]:
    """What to ask Spark's reader for."""
    assert view.family is not None
    parts = {
        "value": ["key", "value"],
        "map": ["key", "user_map_key", "user_map_value"],
        "timers": ["key", "expiration_timestamp_ms"],
    }.get(view.family, ["key", "list_element"])
    options = {"readRegisteredTimers": "true"} if view.family == "timers" else {"stateVarName": view.family}
    return parts, options


def replayed(spark: SparkSession, folder: Path, asked: dict[str, Any]) -> dict[str, list[int]]:
    """Compare after every batch, then load the last one anew; returns the numbers of rows."""
    staged = Staged(folder / "checkpoint", folder / "staged")
    sizes: dict[str, list[int]] = {name: [] for name in asked}
    for batch in staged.batches():
        staged.let_through(batch)
        for name, (view, parts, options) in asked.items():
            expected = oracle(spark, folder / "checkpoint", batch, parts, **options)
            assert staged.rows(view) == expected, (name, batch)
            sizes[name].append(len(expected))
    late = Staged(folder / "checkpoint", folder / "late")
    late.let_through(late.batches()[-1])
    for name, (view, _, _) in asked.items():
        assert late.rows(view) == staged.rows(view), name
        assert late.batch(view) == late.batches()[-1]
    return sizes


def checkpoint(folder: Path) -> Checkpoint:
    return Checkpoint(Storage.at(folder / "checkpoint"))


def feed_and_run(
    spark: SparkSession, folder: Path, query: Callable[[DataFrame], DataFrame], batches: int, begin: int = 0
) -> None:
    """Run the query with one file a batch; time goes on by half an hour a batch, so that watermarks take rows away."""
    (folder / "feed").mkdir(exist_ok=True)
    for number in range(begin, begin + batches):
        feed(folder / "feed", number)
    reader = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
    events = reader.json(str(folder / "feed")).selectExpr(
        "customer", "kind", "amount", "cast(amount % 2 AS int) AS size", "timestamp_millis(at_ms) AS at"
    )
    mode = "append" if query.__name__ in ("join", "sessions") else "update"
    writer = query(events).writeStream.format("noop").outputMode(mode).trigger(availableNow=True)
    writer.option("checkpointLocation", str(folder / "checkpoint")).start().awaitTermination()


def feed(folder: Path, number: int) -> None:
    draw = random.Random(number)
    events = [
        {
            "customer": draw.choice(["emma", "oliver", None, "mia" * 9]),
            "kind": draw.choices(["a", "b", "c", "forget"], [3, 2, 3, 2])[0],
            "amount": draw.randrange(100),
            "at_ms": (30 * number + draw.randrange(30)) * MINUTE_MS,
        }
        for _ in range(14)
    ]
    hidden = folder / f".{number}"
    hidden.write_text("".join(json.dumps(event) + "\n" for event in events))
    os.utime(hidden, (time.time() - 1_000 + number,) * 2)  # the order in which Spark takes the files
    hidden.rename(folder / f"{number}.json")
