"""Views of state variables: what a `transformWithState` keeps, served; Spark's `statestore` reader is the oracle."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

import stateside
from stateside.core.errors import PipelineFailed, ViewInvalid
from stateside.core.layout import Layout
from stateside.journal import Event
from stateside.testing import answer, append, crash_marker, rows, run_to
from stateside.views.catalogue import Catalogue
from tests.sizes import sized
from tests.spark_settings import conf

pytestmark = pytest.mark.spark

TTL_MS = 3_600_000
SERVED = ("total", "kinds", "last", "fresh", "fresh_kinds", "timers")
FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
NO_DATA_BATCHES = "spark.sql.streaming.noDataMicroBatches.enabled"


def keeper() -> Any:
    """A processor with a variable of each sort; made in a function, so that it goes to Spark's workers by value."""
    from pyspark.sql.streaming import StatefulProcessor

    class Keeper(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.handle = handle
            self.kinds = handle.getMapState("kinds", "kind string", "amount long")
            self.last = handle.getListState("last", "amount long")
            self.total = handle.getValueState("total", "amount long, orders int, note string")
            self.fresh = handle.getValueState("fresh", "amount long", ttlDurationMs=TTL_MS)
            self.fresh_kinds = handle.getMapState(
                "fresh_kinds", "kind string, size int", "n long", ttlDurationMs=TTL_MS
            )

        def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
            for row in rows:
                if row.type == "forget":
                    for variable in (self.kinds, self.last, self.total, self.fresh, self.fresh_kinds):
                        variable.clear()
                    continue
                amount, orders, _ = self.total.get() or (0, 0, None)
                self.total.update((amount + row.amount, orders + 1, row.type if orders else None))
                before = self.kinds.getValue((row.type,)) or (0,)
                self.kinds.updateValue((row.type,), (before[0] + row.amount,))
                if row.type == "b":
                    self.kinds.removeKey(("a",))
                if row.amount % 7 == 0:
                    self.last.put([(row.amount,)])
                else:
                    self.last.appendList([(row.amount,), (-row.amount,)])
                self.fresh.update((row.amount,))
                self.fresh_kinds.updateValue((row.type, row.amount % 3), (row.amount,))
            self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + TTL_MS)
            yield Row(user=key[0], amount=0)

        def handleExpiredTimer(self, key: Any, timerValues: Any, info: Any) -> Iterator[Row]:  # noqa: N802, N803
            yield from ()

        def close(self) -> None: ...

    return Keeper()


def summer(*, removed: bool = False, more: bool = False) -> Any:
    """A processor that keeps a sum, in pandas; `removed` it forgets it, with `more` it keeps another one as well."""
    from pyspark.sql.streaming import StatefulProcessor

    class Summer(StatefulProcessor):
        def init(self, handle: Any) -> None:
            if more:
                self.more = handle.getValueState("more", "amount long")
            if removed:
                handle.deleteIfExists("total")
            self.total = handle.getValueState("again" if removed else "total", "amount long")

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
            import pandas as pd

            amount = sum(int(frame["amount"].sum()) for frame in rows)
            before = self.total.get()[0] if self.total.exists() else 0
            self.total.update((before + amount,))
            if more:
                self.more.update((-1,))
            yield pd.DataFrame({"user": [key[0]], "amount": [before + amount]})

        def close(self) -> None: ...

    return Summer()


def shop(state: str = "total", key: tuple[str, ...] = ("region", "user")) -> stateside.App:
    app = stateside.App("shop", fields="region int, amount long")

    @app.view(key=key, state=state)
    def spending(events: DataFrame) -> DataFrame:
        named = events.select(F.col("entity").alias("user"), "region", "type", "amount")
        return named.groupBy("user", "region").transformWithState(
            keeper(), "user string, amount long", "Update", "processingTime"
        )

    return app


def summed(function: Callable[[DataFrame], DataFrame], key: tuple[str, ...] = ("entity",)) -> stateside.App:
    app = stateside.App("shop", fields="region int, amount long")
    app.view(key=key, state="total", name="spending")(function)
    return app


def in_pandas(events: DataFrame, **changes: bool) -> DataFrame:
    grouped = events.groupBy("entity")
    return grouped.transformWithStateInPandas(summer(**changes), "user string, amount long", "Update", "none")


def orders(seed: int, count: int) -> list[Event]:
    chance = random.Random(seed)
    return [
        Event(
            f"{seed}-{number}",
            chance.choice(["emma", "oliver", "mia"]),
            chance.choices(["a", "b", "forget"], [5, 3, 2])[0],
            0,
            {"region": chance.choice([None, 0, 1]), "amount": chance.randrange(-50, 100)},
        )
        for number in range(count)
    ]


def recomputed(events: list[Event]) -> dict[str, list[dict[str, Any]]]:
    """What the variables `total` and `kinds` hold after these events, in plain Python."""
    total: dict[tuple[int | None, str], tuple[int, int, str | None]] = {}
    kinds: dict[tuple[int | None, str], dict[str, int]] = {}
    for event in events:
        key, amount = (event.payload["region"], event.entity), event.payload["amount"]
        if event.type == "forget":
            total.pop(key, None)
            kinds.pop(key, None)
            continue
        before = total.get(key, (0, 0, None))
        total[key] = (before[0] + amount, before[1] + 1, event.type if before[1] else None)
        of_key = kinds.setdefault(key, {})
        of_key[event.type] = of_key.get(event.type, 0) + amount
        if event.type == "b":
            of_key.pop("a", None)
    totals = [
        {"region": region, "user": user, "amount": amount, "orders": count, "note": note}
        for (region, user), (amount, count, note) in total.items()
    ]
    entries = [
        {"region": region, "user": user, "kind": kind, "amount": amount}
        for (region, user), of_key in kinds.items()
        for kind, amount in of_key.items()
    ]
    return {"total": sorted(totals, key=_order), "kinds": sorted(entries, key=_order)}


def also_serve(layout: Layout, variables: tuple[str, ...]) -> None:
    """Views of further variables of the same checkpoint."""
    catalogue = Catalogue.load(layout.view("spending").catalogue)
    for name in variables:
        places = layout.view(name)
        places.root.mkdir(parents=True, exist_ok=True)
        if not places.checkpoint.exists():
            places.checkpoint.symlink_to(layout.view("spending").checkpoint)
        places.catalogue.write_bytes(replace(catalogue, view=name, family=name).as_json())


def stored(spark: SparkSession, layout: Layout, variable: str, batch: int) -> list[dict[str, Any]]:
    """The variable's rows as Spark's own reader has them, in the view's order of columns."""
    reader = spark.read.format("statestore").option("batchId", str(batch))
    asked = ("readRegisteredTimers", "true") if variable == "timers" else ("stateVarName", variable)
    frame = reader.option(*asked).load(str(layout.view("spending").checkpoint))
    parts: list[str] = [
        name for name in ("key", "user_map_key", "value", "user_map_value", "list_element") if name in frame.columns
    ]
    found = [_flat(row.asDict(recursive=True), parts) for row in frame.collect()]
    return sorted(_placed(found) if "list_element" in parts else found, key=_order)


def _placed(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Entries of lists with their places in them, as the view has them."""
    seen: Counter[tuple[Any, ...]] = Counter()
    placed = []
    for entry in entries:
        key = {name: entry.pop(name) for name in ("region", "user")}
        placed.append({**key, "index": seen[tuple(key.values())], **entry})
        seen[tuple(key.values())] += 1
    return placed


def _order(row: dict[str, Any]) -> tuple[Any, ...]:
    region = -1 if row["region"] is None else row["region"]  # null comes first
    return region, row["user"], row.get("kind", ""), row.get("size", row.get("index", row.get("expires_ms", 0)))


def _flat(row: dict[str, Any], parts: list[str]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for part in parts:
        fields = dict(row[part])
        if "ttlExpirationMs" in fields:
            fields = {**fields["value"], "expires_ms": fields["ttlExpirationMs"]}
        flat |= fields
    if "expiration_timestamp_ms" in row:
        flat["expires_ms"] = row["expiration_timestamp_ms"]
    return flat


@pytest.mark.parametrize("format_version", sized(short=["2"], full=["1", "2"]))
def test_after_every_batch_a_view_has_what_its_state_variable_holds(
    spark: SparkSession, layout: Layout, format_version: str
) -> None:
    """Values and maps, also with a time to live, a list, timers; keys come, change, are cleared, come again."""
    events: list[Event] = []
    with conf(spark, {FORMAT: format_version, NO_DATA_BATCHES: "false"}):
        for seed in range(3):
            events += orders(seed, 12)
            append(layout, events[-12:])
            run_to(shop(), layout, spark, events_per_batch=7)
            also_serve(layout, SERVED)
            batch = answer(layout, "spending").stamp.batch
            for variable in SERVED:
                assert rows(layout, variable) == stored(spark, layout, variable, batch), (variable, batch)
            expected = recomputed(events)
            assert rows(layout, "spending") == rows(layout, "total") == expected["total"]
            assert rows(layout, "kinds") == expected["kinds"]
        assert expected["kinds"]
        assert {row["index"] for row in rows(layout, "last")} >= {0, 1, 2}
        assert rows(layout, "kinds", "1", "emma") == [
            row for row in expected["kinds"] if (row["region"], row["user"]) == (1, "emma")
        ]


def test_a_variable_that_there_is_not_is_refused_as_soon_as_that_is_known(spark: SparkSession, layout: Layout) -> None:
    append(layout, orders(1, 3))
    reason = r"no state variable 'sum'.* has: fresh, fresh_kinds, kinds, last, timers, total"
    with conf(spark, {NO_DATA_BATCHES: "false"}), pytest.raises(ViewInvalid, match=reason):
        run_to(shop("sum"), layout, spark)


@pytest.mark.parametrize("state", ["last", "timers"])
def test_an_application_may_serve_a_list_or_the_timers(spark: SparkSession, layout: Layout, state: str) -> None:
    append(layout, orders(1, 12))
    with conf(spark, {NO_DATA_BATCHES: "false"}):
        run_to(shop(state), layout, spark)
        found = answer(layout, "spending")
        assert found.rows == stored(spark, layout, state, found.stamp.batch)
    assert found.rows


def test_a_processor_in_pandas_is_served_alike_and_crashes_neither_lose_nor_double(
    spark: SparkSession, layout: Layout
) -> None:
    append(layout, [*orders(1, 5), crash_marker(), *orders(2, 5)])
    app = summed(in_pandas)
    with pytest.raises(PipelineFailed, match="crashes here"):
        run_to(app, layout, spark)
    run_to(app, layout, spark)
    expected: dict[str, int] = {}
    for event in orders(1, 5) + orders(2, 5):
        expected[event.entity] = expected.get(event.entity, 0) + event.payload["amount"]
    assert {row["entity"]: row["amount"] for row in rows(layout, "spending")} == expected


def test_variables_may_come_and_go_and_a_served_one_that_went_has_no_rows_when_it_comes_again(
    spark: SparkSession, layout: Layout
) -> None:
    def one_more_batch(**changes: bool) -> None:
        append(layout, [Event(f"{changes}-{len(seen)}", "emma", "order", 0, {"amount": 5})])
        run_to(summed(lambda events: in_pandas(events, **changes)), layout, spark)

    seen: list[list[dict[str, Any]]] = []
    append(layout, [Event("first", "oliver", "order", 0, {"amount": 1})])
    for changes in ({}, {"more": True}):
        one_more_batch(**changes)
        seen.append(rows(layout, "spending"))
    with pytest.raises(ViewInvalid, match=r"no state variable 'total'.* has: again, more"):
        one_more_batch(removed=True, more=True)
    one_more_batch()
    seen.append(rows(layout, "spending"))

    oliver = {"entity": "oliver", "amount": 1}
    assert seen == [
        [{"entity": "emma", "amount": 5}, oliver],
        [{"entity": "emma", "amount": 10}, oliver],
        [{"entity": "emma", "amount": 5}],
    ]


def test_what_becomes_of_the_rows_that_come_out_does_not_matter(spark: SparkSession, layout: Layout) -> None:
    append(layout, orders(1, 4))
    run_to(summed(lambda events: in_pandas(events).where("amount > 10").select("user")), layout, spark)
    assert sum(row["amount"] for row in rows(layout, "spending")) == sum(e.payload["amount"] for e in orders(1, 4))


@pytest.mark.parametrize(
    ("function", "key", "reason"),
    [
        (in_pandas, ("user",), r"its key is \['user'\], but it groups by \['entity'\]"),
        (lambda events: events.groupBy("entity").count(), ("entity",), "its query ends in Aggregate"),
        (lambda events: in_pandas(events).groupBy("user").count(), ("user",), "its query ends in Aggregate"),
        (lambda events: events.sparkSession.range(1), ("id",), "not streaming"),
    ],
)
def test_a_query_without_such_a_state_is_refused_at_the_start(
    spark: SparkSession, layout: Layout, function: Any, key: tuple[str, ...], reason: str
) -> None:
    append(layout, orders(1, 1))
    with pytest.raises(ViewInvalid, match=reason):
        run_to(summed(function, key), layout, spark)
    assert not layout.view("spending").checkpoint.exists()
