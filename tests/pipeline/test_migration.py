"""A migrated state is the one that the new query would have folded itself, and Spark goes on from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import stateside
from stateside.core.errors import ViewInvalid
from stateside.core.layout import Layout
from stateside.journal import Event, JournalWriter
from stateside.pipeline import declaration
from stateside.pipeline.migration import Migrated, StateMigration
from stateside.pipeline.runner import Runner
from stateside.pipeline.settings import RunSettings
from stateside.pipeline.view_plan import Planner
from stateside.views.catalogue import Catalogue

pytestmark = pytest.mark.spark
FIELDS = "amount long, country string"
Query = Callable[[DataFrame], DataFrame]
HOUR_US = 3_600_000_000


def total(events: DataFrame) -> DataFrame:
    return events.groupBy("entity").agg(F.sum("amount").alias("total"), F.count("*").alias("orders"))


def with_mean(events: DataFrame) -> DataFrame:
    sums = F.avg("amount").alias("mean"), F.sum("amount").alias("total"), F.max("amount").alias("largest")
    return events.groupBy("entity").agg(*sums, F.count("*").alias("orders"))


def by_tenant(events: DataFrame) -> DataFrame:
    grouped = events.withColumn("tenant", F.lit("one")).groupBy("tenant", "entity")
    return grouped.agg(F.sum("amount").alias("total"), F.count("*").alias("orders"))


def hourly(events: DataFrame) -> DataFrame:
    marked = events.withWatermark("time", "1 hour").dropDuplicatesWithinWatermark(["id"])
    return marked.groupBy(F.window("time", "1 hour"), "entity").agg(F.sum("amount").alias("total"))


def hourly_counted(events: DataFrame) -> DataFrame:
    marked = events.withWatermark("time", "1 hour").dropDuplicatesWithinWatermark(["id"])
    sums = F.count("*").alias("orders"), F.sum("amount").alias("total")
    return marked.groupBy(F.window("time", "1 hour"), "entity").agg(*sums)


class Shop:
    """A folder with a journal, over which one query ran, and to which another is migrated."""

    def __init__(self, folder: Path, spark: SparkSession) -> None:
        self.folder, self.spark, self.count = folder, spark, 0
        self.settings = RunSettings(events_per_batch_max=150, partitions=3)

    def append(self, events: int) -> None:
        with JournalWriter(self.folder / "journal") as writer:
            first, self.count = self.count, self.count + events
            writer.append([self._event(number) for number in range(first, self.count)])

    def _event(self, number: int) -> Event:
        payload = {"amount": number * 7 % 101, "country": "DE"}
        return Event(f"e{number}", f"k{number % 40}", "order", number * HOUR_US // 100, payload)

    def app(self, query: Query, key: list[str]) -> stateside.App:
        made = stateside.App("shop", fields=FIELDS)
        made.view(key=key, name="spending")(query)
        return made

    def run(self, query: Query, key: list[str], folder: Path | None = None) -> dict[tuple[Any, ...], tuple[Any, ...]]:
        """Run to the journal's end; returns the rows of the state, as Spark's own reader has them."""
        layout = Layout(folder or self.folder)
        layout.root.mkdir(exist_ok=True)
        if folder is not None and not layout.journal.exists():
            layout.journal.symlink_to(self.folder / "journal")
        with Runner(self.app(query, key), layout, self.settings, session=self.spark) as runner:
            runner.run_to_end()
        return self.state(layout.view("spending").checkpoint)

    def state(self, checkpoint: Path) -> dict[tuple[Any, ...], tuple[Any, ...]]:
        rows = self.spark.read.format("statestore").load(str(checkpoint)).collect()
        return {tuple(row["key"]): tuple(row["value"]) for row in rows}

    def migrate(self, query: Query, key: list[str], function: Any, to: Path) -> Migrated:
        """Migrate the view to the query, in a folder of its own."""
        old, new = Layout(self.folder), Layout(to)
        new.view("spending").root.mkdir(parents=True)
        new.journal.symlink_to(old.journal)
        app, settings = self.app(query, key), RunSettings(events_per_batch_max=1)
        plan = Planner(app, new, settings, new.pause).plan(app.views["spending"], self.spark)
        assert plan.catalogue is not None
        declaration.keep(plan.catalogue, plan.text, new.view("spending"), accept_changes=False)
        before = Catalogue.load(old.view("spending").catalogue)
        checkpoints = old.view("spending").checkpoint, new.view("spending").checkpoint
        return StateMigration(*checkpoints, before, plan.catalogue, function).run(plan.frame)


@pytest.fixture
def shop(tmp_path: Path, spark: SparkSession) -> Iterator[Shop]:
    before = str(spark.conf.get("spark.sql.shuffle.partitions"))
    spark.conf.set("spark.sql.shuffle.partitions", 3)
    yield Shop(tmp_path / "shop", spark)
    spark.conf.set("spark.sql.shuffle.partitions", before)  # other tests share the session


def test_an_average_is_derived_from_a_sum_and_a_count(shop: Shop, tmp_path: Path) -> None:
    shop.append(1_000)
    old = shop.run(total, ["entity"])
    done = shop.migrate(
        with_mean,
        ["entity"],
        lambda row: {"mean": (float(row["total"]), row["orders"]), "largest": row["total"]},
        tmp_path / "new",
    )
    assert done.rows == len(old) == 40
    sums = {key: (float(total), count, total, total, count) for key, (total, count) in old.items()}
    assert shop.state(Layout(tmp_path / "new").view("spending").checkpoint) == sums
    shop.append(500)
    found, fresh = (shop.run(with_mean, ["entity"], tmp_path / name) for name in ("new", "fresh"))
    without_largest = [{key: value[:3] + value[4:] for key, value in rows.items()} for rows in (found, fresh)]
    assert without_largest[0] == without_largest[1]


def test_a_key_widened_by_a_constant_lies_where_spark_looks_for_it(shop: Shop, tmp_path: Path) -> None:
    shop.append(700)
    shop.run(total, ["entity"])
    shop.migrate(by_tenant, ["tenant", "entity"], lambda row: {"tenant": "one"}, tmp_path / "new")
    shop.append(300)
    found, fresh = (shop.run(by_tenant, ["tenant", "entity"], tmp_path / name) for name in ("new", "fresh"))
    assert found == fresh


def test_watermark_and_the_state_of_other_operators_are_carried_over(shop: Shop, tmp_path: Path) -> None:
    shop.append(1_000)
    shop.run(hourly, ["entity", "window"])
    counts = {(f"k{n % 40}", n * HOUR_US // 100 // HOUR_US): 0 for n in range(1_000)}
    for number in range(1_000):
        counts[f"k{number % 40}", number * HOUR_US // 100 // HOUR_US] += 1
    done = shop.migrate(
        hourly_counted,
        ["entity", "window"],
        lambda row: {"orders": counts[row["entity"], row["window"][0] // HOUR_US]},
        tmp_path / "new",
    )
    assert done.rows > 0
    shop.count -= 50  # the last events come again, and are known by their ids
    with JournalWriter(shop.folder / "journal") as writer:
        writer.append([Event(f"again{n}", "k0", "order", 9 * HOUR_US, {"amount": 1}) for n in range(3)])
    shop.count += 50
    shop.append(400)
    found, fresh = (shop.run(hourly_counted, ["entity", "window"], tmp_path / name) for name in ("new", "fresh"))
    assert found == fresh


def test_a_function_that_fails_at_one_row_names_it_and_leaves_the_old_view(shop: Shop, tmp_path: Path) -> None:
    shop.append(400)
    old = shop.run(total, ["entity"])

    def fails(row: dict[str, Any]) -> dict[str, Any]:
        return {"mean": (float(row["total"]), row["orders"]), "largest": 1 // (row["entity"] != "k7")}

    with pytest.raises(ViewInvalid, match=r"fails at the row \['k7'\]: ZeroDivisionError"):
        shop.migrate(with_mean, ["entity"], fails, tmp_path / "new")
    assert not (Layout(tmp_path / "new").view("spending").checkpoint / "metadata").exists()
    assert shop.run(total, ["entity"]) == old


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"mean": (1.0, 2)}, "it gives no 'largest', which the state before has not"),
        ({"mean": (1.0, "2"), "largest": 1}, "'2' is no value of the column 'count'"),
        ({"mean": (1.0, 2), "largest": 1, "other": 3}, "the view has the columns entity, largest, mean"),
    ],
)
def test_what_does_not_fit_the_new_columns_is_refused(shop: Shop, tmp_path: Path, given: Any, why: str) -> None:
    shop.append(10)
    shop.run(total, ["entity"])
    with pytest.raises(ViewInvalid, match=why):
        shop.migrate(with_mean, ["entity"], lambda row: given, tmp_path / "new")


def test_two_rows_with_one_key_are_refused(shop: Shop, tmp_path: Path) -> None:
    shop.append(100)
    shop.run(total, ["entity"])
    with pytest.raises(ViewInvalid, match="two rows the same key"):
        shop.migrate(by_tenant, ["tenant", "entity"], lambda row: {"tenant": "one", "entity": "k"}, tmp_path / "new")
