"""A view's state gets another number of partitions: the same rows, and the query goes on. Real Spark."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import stateside
from stateside.core.errors import CheckpointInvalid, RequestInvalid, SettingInvalid, ViewInvalid
from stateside.core.layout import Layout
from stateside.core.storage import Storage
from stateside.journal import Event
from stateside.leadership import ApplicationLease, alone
from stateside.pipeline import App
from stateside.pipeline.declaration import check_partitions, state_partitions
from stateside.pipeline.rescale import rescale
from stateside.pipeline.runner import Runner
from stateside.pipeline.settings import RunSettings
from stateside.spark_state.batch_log import Checkpoint
from stateside.testing import answer, append, rollup, rows
from stateside.views.view_generations import roll_back
from tests.spark_settings import STATE, conf

pytestmark = pytest.mark.spark
HOUR_US = 3_600_000_000
START_US = 1_767_225_600_000_000  # 2026-01-01
PARTITIONS = "spark.sql.shuffle.partitions"


def shop() -> App:
    app = stateside.App("shop", fields="amount long, country string")

    @app.view(key=["entity", "country"], rollups=[["country"]], sink=stateside.sinks.delta("changes"), rows="changed")
    def spending(events: DataFrame) -> DataFrame:
        sums = F.sum("amount").alias("total"), F.count("*").alias("orders"), F.avg("amount").alias("mean")
        return events.groupBy("entity", "country").agg(*sums)

    @app.reaction(sink=stateside.sinks.delta("seen", key=["id"]))
    def seen(events: DataFrame) -> DataFrame:
        return events.select("id")

    return app


def orders(first: int, count: int) -> list[Event]:
    return [
        Event(f"o{n}", f"k{n % 40}", "order", START_US + n, {"amount": n * 7 % 101, "country": ("DE", "SE")[n % 2]})
        for n in range(first, first + count)
    ]


def run(app: App, layout: Layout, spark: SparkSession, events: list[Event], **settings: Any) -> None:
    append(layout, events)
    with Runner(app, layout, RunSettings.of(("here", settings)), session=spark) as runner:
        runner.run_to_end()


def state(spark: SparkSession, layout: Layout, view: str = "spending") -> dict[Any, Any]:
    """The rows that Spark's own reader has."""
    found = spark.read.format("statestore").load(str(layout.view(view).checkpoint)).collect()
    return {tuple(row["key"]): tuple(row["value"]) for row in found}


def stored(path: Path) -> list[dict[str, Any]]:
    from deltalake import DeltaTable

    found: list[dict[str, Any]] = DeltaTable(path).to_pyarrow_table().to_pylist()
    return found


def test_a_state_brought_to_more_partitions_and_to_fewer_keeps_all_rows_and_goes_on(
    spark: SparkSession, layout: Layout, tmp_path: Path
) -> None:
    app, first = shop(), layout.view("spending")
    with conf(spark, {PARTITIONS: "2"}):
        run(app, layout, spark, orders(0, 500))
    before, told, sums = state(spark, layout), answer(layout, "spending"), rollup(layout, "spending", ["country"])
    for number, partitions in enumerate((5, 3), 2):
        made = rescale(layout.root, partitions, session=spark)
        assert [(each.view, each.rows, each.after.number) for each in made] == [("spending", len(before), number)]
        assert state(spark, layout) == before, "as Spark's own reader has them"
        assert state_partitions(layout.view("spending")) == partitions
        after = answer(layout, "spending")
        assert after.rows == told.rows and after.stamp.position == told.stamp.position
        assert after.stamp.generation == number
        assert rollup(layout, "spending", ["country"]) == sums
    assert first.checkpoint.exists() is False, "one generation is kept"
    assert rescale(layout.root, 3, session=spark) == []

    changes = Counter(map(str, stored(layout.table("changes"))))
    run(app, layout, spark, orders(500, 300), partitions=3)
    with pytest.raises(SettingInvalid, match=r"stateside rescale --dir .* --partitions 4"):
        check_partitions(app, layout, RunSettings.of(("here", {"partitions": 4})))
    fresh = Layout(tmp_path / "fresh")
    with conf(spark, {PARTITIONS: "3"}):
        run(app, fresh, spark, orders(0, 500))
        run(app, fresh, spark, orders(500, 300))
    assert rows(layout, "spending") == rows(fresh, "spending") and state(spark, layout) == state(spark, fresh)
    assert rollup(layout, "spending", ["country"]) == rollup(fresh, "spending", ["country"])
    delivered = Counter(map(str, stored(layout.table("changes"))))
    assert delivered == Counter(map(str, stored(fresh.table("changes")))) and changes < delivered
    assert len(stored(layout.table("seen"))) == 800


def test_a_rescale_is_taken_back_and_made_again(spark: SparkSession, layout: Layout) -> None:
    app = shop()
    with conf(spark, {PARTITIONS: "2"}):
        run(app, layout, spark, orders(0, 100))
    before = rows(layout, "spending")
    rescale(layout.root, 4, ["spending"], session=spark)
    assert roll_back(layout, "spending").number == 1
    assert roll_back(layout, "spending").number == 2, "and forward again"
    assert roll_back(layout, "spending").number == 1
    assert rows(layout, "spending") == before and state_partitions(layout.view("spending")) == 2
    run(app, layout, spark, orders(100, 50))
    assert roll_back(layout, "spending").number == 2
    assert rows(layout, "spending") == before and state_partitions(layout.view("spending")) == 4
    run(app, layout, spark, orders(150, 50))
    assert sum(row["orders"] for row in rows(layout, "spending")) == 200
    delivered = stored(layout.table("changes"))
    assert len({str(row) for row in delivered}) == len(delivered)


def hourly() -> App:
    app = stateside.App("shop", fields="n long")

    @app.view(key=["entity", "window"], archive="sealed", late="corrections")
    def hours(events: DataFrame) -> DataFrame:
        timed = events.withWatermark("time", "0 seconds").select("entity", "n", "time")
        return timed.groupBy("entity", F.window("time", "1 hour")).agg(F.sum("n").alias("total"))

    return app


def seen(number: int, hour: float, n: int = 1) -> Event:
    return Event(f"e{number}", f"k{number % 7}", "seen", START_US + round(hour * HOUR_US), {"n": n})


STEPS = [
    [seen(n, n / 40) for n in range(100)],
    [seen(100 + n, 2.4 + n / 40) for n in range(100)],
    [seen(200, 0.5, 5), seen(201, 4.0, 7), *(seen(210 + n, 5 + n / 40) for n in range(40))],  # some of them late
    [seen(300, 4.9, 11), seen(301, 2.0, 13), seen(302, 9.0)],
]


def test_an_archive_goes_on_across_a_rescale_and_late_events_are_found(
    spark: SparkSession, layout: Layout, tmp_path: Path
) -> None:
    scaled, fresh = layout, Layout(tmp_path / "fresh")
    for number, events in enumerate(STEPS):
        with conf(spark, {PARTITIONS: "2"}):
            for each in scaled, fresh:
                run(hourly(), each, spark, events)
        before = rows(scaled, "hours")
        if number in (1, 2):
            rescale(scaled.root, number + 2, session=spark)
            assert rows(scaled, "hours") == before
    for name in ("sealed", "sealed_corrections"):
        archived, expected = (
            Counter((row["entity"], str(row["window"]), row["total"]) for row in stored(each.view("hours").table(name)))
            for each in (scaled, fresh)
        )
        assert archived == expected and len(expected) > 2, name
    assert rows(scaled, "hours") == rows(fresh, "hours")
    assert len(stored(scaled.table("sealed"))) < len(stored(fresh.table("sealed"))), "the first one stays as it was"


def test_a_batch_that_is_not_finished_is_finished_first(spark: SparkSession, layout: Layout) -> None:
    with conf(spark, {PARTITIONS: "2"}):
        run(shop(), layout, spark, orders(0, 100))
    checkpoint = Checkpoint(Storage.at(layout.view("spending").checkpoint))
    last = checkpoint.commits()[-1]
    planned = layout.view("spending").checkpoint / "offsets" / str(last + 1)
    planned.write_bytes((planned.parent / str(last)).read_bytes())
    with pytest.raises(ViewInvalid, match=r"last batch of the view 'spending' is not finished.*--until-caught-up"):
        rescale(layout.root, 4, session=spark)
    abandoned = planned.read_text().replace(f'"{PARTITIONS}":"2"', f'"{PARTITIONS}":"9"')
    planned.write_text(abandoned)  # an attempt of Spark's own, in place, to repartition to another number
    assert [each.view for each in rescale(layout.root, 4, session=spark)] == ["spending"]
    run(shop(), layout, spark, orders(100, 20))
    assert sum(row["orders"] for row in rows(layout, "spending")) == 120


def test_a_folder_with_a_lease_is_rescaled_by_its_leader(spark: SparkSession, layout: Layout) -> None:
    with conf(spark, {PARTITIONS: "2"}):
        run(shop(), layout, spark, orders(0, 50))
    before = rows(layout, "spending")
    ApplicationLease(layout.root).make()
    with alone(layout.root):
        pass  # somebody has led here, and leads no longer
    epoch = ApplicationLease(layout.root).newest()
    assert [each.rows for each in rescale(layout.root, 3, session=spark)] == [len(before)]
    leader = ApplicationLease(layout.root).newest()
    assert epoch is not None and leader is not None and leader.epoch == epoch.epoch + 1
    assert rows(layout, "spending") == before and state_partitions(layout.view("spending")) == 3


def test_what_spark_cannot_repartition_stays_as_it_is(spark: SparkSession, layout: Layout) -> None:
    app = stateside.App("shop", fields="amount long")

    @app.view(key=["entity"])
    def total(events: DataFrame) -> DataFrame:
        return events.groupBy("entity").agg(F.sum("amount").alias("total"))

    hdfs = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
    with conf(spark, {PARTITIONS: "2", f"{STATE}.providerClass": hdfs, f"{STATE}.checkpointFormatVersion": "1"}):
        run(app, layout, spark, orders(0, 100))
        with pytest.raises(ViewInvalid, match=r"cannot be repartitioned: .*HDFSBacked.* Nothing was changed"):
            rescale(layout.root, 4, session=spark)
        assert layout.pointers() == {} and layout.view("total").generation == 1
        with pytest.raises(RequestInvalid, match="No view 'other' has run here"):
            rescale(layout.root, 4, ["other"], session=spark)
        run(app, layout, spark, orders(100, 20))


def test_a_state_with_other_rows_than_before_is_not_switched_to(
    spark: SparkSession, layout: Layout, tmp_path: Path
) -> None:
    other = Layout(tmp_path / "other")
    with conf(spark, {PARTITIONS: "2"}):
        run(shop(), layout, spark, orders(0, 10))
        run(shop(), other, spark, [*orders(0, 9), *orders(10, 1)])
    before = rows(layout, "spending")

    def exchange(step: int) -> None:
        if step == 3:
            copy = layout.root / "views" / "spending" / "generations" / "2" / "checkpoint"
            shutil.rmtree(copy)
            shutil.copytree(other.view("spending").checkpoint, copy)

    with pytest.raises(CheckpointInvalid, match=r"10 in 0/ .* and should have 10 in 0/ "):
        rescale(layout.root, 4, session=spark, on_step=exchange)
    assert layout.pointers() == {} and rows(layout, "spending") == before
    assert rescale(layout.root, 4, session=spark)[0].rows == 10
