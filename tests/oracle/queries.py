"""Stateful queries over typed events, one for each operator of the matrix. They know nothing of Stateside."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from .typed_events import Events

WATERMARK = "10 minutes"
JOIN_FORMAT = "spark.sql.streaming.join.stateFormatVersion"
NO_DATA_BATCHES = "spark.sql.streaming.noDataMicroBatches.enabled"


@dataclass(frozen=True)
class Query:
    """A query on a stream: what it makes of it, in which output mode, with which settings.

    `leaving` says whether rows leave its state in the course of time.
    """

    frame: DataFrame
    mode: str = "append"
    leaving: bool = True
    conf: dict[str, str] = field(default_factory=dict)


def query(operator: str, stream: DataFrame, events: Events) -> Query:
    """The query of an operator of the matrix."""
    return _QUERIES[operator](stream, events)


def _aggregates(events: Events) -> list[Column]:
    """Of every value what has buffers of its type; and some with buffers of other types."""
    of = events.values.items()
    found = [F.first(name) for name, _ in of]
    found += [F.max(name) for name, type_ in of if type_.ordered]
    found += [aggregate(name) for name, type_ in of if type_.summed for aggregate in (F.sum, F.avg)]
    return [F.count("*"), *found, F.collect_set("kind"), F.max_by("kind", "n")]


def _aggregation(stream: DataFrame, events: Events) -> Query:
    expressions = (F.col("kind") == "a", F.col("n") % 2)  # which the state gives one name
    return Query(stream.groupBy(*events.keys, *expressions).agg(*_aggregates(events)), "update", leaving=False)


def _aggregation_without_key(stream: DataFrame, events: Events) -> Query:
    return Query(stream.groupBy().agg(*_aggregates(events)), "update", leaving=False)


def _window(stream: DataFrame, events: Events) -> Query:
    timed = stream.withWatermark("at", WATERMARK)
    return Query(timed.groupBy(F.window("at", "10 minutes"), *events.keys).agg(*_aggregates(events)))


def _session_window(stream: DataFrame, events: Events) -> Query:
    timed, (first, *others) = stream.withWatermark("at", WATERMARK), events.keys
    grouped = timed.groupBy(first, F.session_window("at", "5 minutes"), *others)
    return Query(grouped.agg(F.count("*"), *[F.first(name) for name in events.values]))


def _duplicates(stream: DataFrame, events: Events) -> Query:
    return Query(stream.withWatermark("at", WATERMARK).dropDuplicates([*events.keys, "at"]))


def _duplicates_within_watermark(stream: DataFrame, events: Events) -> Query:
    return Query(stream.withWatermark("at", WATERMARK).dropDuplicatesWithinWatermark([*events.keys]))


def _two_operators(stream: DataFrame, events: Events) -> Query:
    once = stream.withWatermark("at", WATERMARK).dropDuplicates([*events.keys, "at"])
    return Query(once.groupBy(*events.keys, F.window("at", "10 minutes", "5 minutes")).agg(*_aggregates(events)))


def _join(stream: DataFrame, events: Events, how: str, version: str) -> Query:
    timed = stream.withWatermark("at", WATERMARK)
    left = timed.where("kind != 'b'").select(*events.keys, *events.values, "at")
    theirs = [F.col(name).alias(f"their_{name}") for name in events.keys]
    right = timed.where("kind != 'a'").select(*theirs, F.col("n").alias("index"), F.col("at").alias("then"))
    same = " AND ".join(f"{name} = their_{name}" for name in events.keys)
    near = F.expr(f"{same} AND then BETWEEN at AND at + INTERVAL 20 MINUTES")
    return Query(left.join(right, near, how), conf={JOIN_FORMAT: version})


def _groups(stream: DataFrame, events: Events) -> Query:
    names = [name for name, type_ in events.keys.items() if type_.in_pandas_key]

    def count(key: Any, frames: Iterator[Any], state: Any) -> Iterator[Any]:
        import pandas as pd

        if state.hasTimedOut:
            state.remove()
        else:
            number, total, _ = state.get if state.exists else (0, 0.0, None)
            for frame in frames:
                number += len(frame)
                total += float(frame["n"].sum())
            state.update((number, total, f"{number}" if number % 3 else None))
            if number % 2:
                state.setTimeoutTimestamp(state.getCurrentWatermarkMs() + 60_000)
        yield pd.DataFrame({"number": [0]})

    grouped = stream.withWatermark("at", WATERMARK).select(*names, "n", "at").groupBy(*names)
    kept = "number int, total double, text string"  # pyspark 4.2 fails with types that have parts
    applied = grouped.applyInPandasWithState(count, "number int", kept, "Update", "EventTimeTimeout")
    return Query(applied, "update")


def _variables(stream: DataFrame, events: Events) -> Query:
    """Values, maps and lists, that expire and that do not; in processing time, which expiry needs."""
    names = [name for name, type_ in events.values.items() if type_.in_python]
    record = ", ".join(f"{name} {events.values[name].sql}" for name in names)
    grouped = stream.select(*events.keys, *names, "n", "kind").groupBy(*events.keys)
    kept = grouped.transformWithState(keeper(names, record), "n bigint", "Update", "processingTime")
    return Query(kept, "update", conf={NO_DATA_BATCHES: "false"})


def keeper(names: list[str], record: str) -> Any:
    """A processor; made in a function, so that it goes to Spark's workers by value."""
    from pyspark.sql.streaming import StatefulProcessor

    class Keeper(StatefulProcessor):
        def init(self, handle: Any) -> None:
            hour_ms = 3_600_000
            self.value = handle.getValueState("value", record)
            self.brief = handle.getValueState("brief", record, ttlDurationMs=1)
            self.map = handle.getMapState("map", "kind string, size int", record)
            self.fresh = handle.getMapState("fresh", "n bigint", "kind string", ttlDurationMs=hour_ms)
            self.list = handle.getListState("list", record)
            self.last = handle.getListState("last", "n bigint, kind string", ttlDurationMs=hour_ms)

        def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
            for row in rows:
                self.take(row, tuple(row[name] for name in names))
            yield Row(n=0)

        def take(self, row: Row, record: tuple[Any, ...]) -> None:
            if row.kind == "d":
                for state in (self.value, self.map, self.fresh, self.list, self.last):
                    state.clear()
                return
            self.value.update(record)
            self.map.updateValue((row.kind, row.n % 3), record)
            self.fresh.updateValue((row.n,), (row.kind,))
            if row.kind == "a":
                self.brief.update(record)
                self.list.appendValue(record)
                self.last.appendList([(row.n, "one"), (row.n, None)])
            elif row.kind == "b":
                self.map.removeKey(("a", 1))
                self.list.put([record, record])
                self.last.put([(row.n, "put")])
            else:
                self.list.appendList([record, record])
                self.last.appendValue((row.n, row.kind))

        def close(self) -> None: ...

    return Keeper()


def _timers(stream: DataFrame, events: Events) -> Query:
    """A value that a timer takes away when the watermark has passed it."""
    timed = stream.withWatermark("at", WATERMARK).select(*events.keys, "n", "kind", "at").groupBy(*events.keys)
    return Query(timed.transformWithState(_waiter(), "n bigint", "Update", "eventTime"), "update")


def _waiter() -> Any:
    from pyspark.sql.streaming import StatefulProcessor

    class Waiter(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.handle = handle
            self.seen = handle.getValueState("seen", "n bigint, kind string")

        def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
            for row in rows:
                self.seen.update((row.n, row.kind))
                if row.kind == "b":
                    for at_ms in list(self.handle.listTimers()):
                        self.handle.deleteTimer(at_ms)
                self.handle.registerTimer(timerValues.getCurrentWatermarkInMs() + row.n * 60_000)
            yield Row(n=0)

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: N802, N803
            self.seen.clear()
            yield Row(n=1)

        def close(self) -> None: ...

    return Waiter()


_QUERIES = {
    "aggregation": _aggregation,
    "aggregation without a key": _aggregation_without_key,
    "window": _window,
    "session window": _session_window,
    "dropDuplicates": _duplicates,
    "dropDuplicatesWithinWatermark": _duplicates_within_watermark,
    "dropDuplicates, then sliding window": _two_operators,
    "inner join, format 2": lambda stream, events: _join(stream, events, "inner", "2"),
    "full outer join, format 2": lambda stream, events: _join(stream, events, "full_outer", "2"),
    "inner join, format 3": lambda stream, events: _join(stream, events, "inner", "3"),
    "left outer join, format 3": lambda stream, events: _join(stream, events, "left_outer", "3"),
    "applyInPandasWithState": _groups,
    "transformWithState: values, maps, lists": _variables,
    "transformWithState: timers": _timers,
}
OPERATORS = tuple(_QUERIES)
