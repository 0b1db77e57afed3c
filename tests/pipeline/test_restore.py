"""A job restored from a savepoint: its views go on, and no sink gets a row twice or misses one. Real Spark."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import stateside
from stateside.cli import main
from stateside.core.errors import CheckpointGap, CheckpointInvalid
from stateside.core.layout import Layout
from stateside.core.storage import Storage
from stateside.journal import Event, open_journal
from stateside.ops.restore import fork, parts_of, restore
from stateside.pipeline import App, comparison
from stateside.pipeline.rescale import rescale, verify_rows
from stateside.pipeline.runner import Runner
from stateside.pipeline.settings import RunSettings
from stateside.spark_state.batch_log import Checkpoint
from stateside.testing import append, rows
from stateside.views.savepoint import living_views, savepoint_sets, take, take_all
from stateside.views.view_generations import roll_back
from tests.sizes import in_full
from tests.waiting import wait_until

pytestmark = pytest.mark.spark
START_US = 1_767_225_600_000_000  # 2026-01-01
MINUTE_US = 60_000_000
NOW_US = 1_800_000_000_000_000
Stored = dict[str, Counter[str]]


def shop(outside: Path | None = None) -> App:
    app = stateside.App("shop", fields="amount long")

    @app.view(key=["entity"], sink=stateside.sinks.delta("changes"), rows="changed")
    def spending(events: DataFrame) -> DataFrame:
        return events.groupBy("entity").agg(F.sum("amount").alias("total"), F.count("*").alias("orders"))

    @app.view(key=["entity", "window"], archive="sealed", late="corrections")
    def hours(events: DataFrame) -> DataFrame:
        timed = events.withWatermark("time", "0 seconds").select("entity", "amount", "time")
        return timed.groupBy("entity", F.window("time", "1 hour")).agg(F.sum("amount").alias("total"))

    @app.reaction(sink=stateside.sinks.files(str(outside) if outside else "copies", format="jsonl"))
    def copies(events: DataFrame) -> DataFrame:
        return events.select("id", "amount")

    @app.reaction(source=stateside.sources.journal(types=["order"]), sink=stateside.sinks.journal())
    def thanks(events: DataFrame) -> DataFrame:
        return events.selectExpr("entity", "'thanks' as type", "time", "0 as amount")

    return app


def orders(first: int, count: int) -> list[Event]:
    """Two minutes apart; each tenth one comes four hours late."""
    return [
        Event(f"o{n}", f"k{n % 5}", "order", START_US + (2 * n - 240 * (n % 10 == 9)) * MINUTE_US, {"amount": n % 7})
        for n in range(first, first + count)
    ]


def run(app: App, layout: Layout, spark: SparkSession, events: list[Event], per_batch: int) -> None:
    append(layout, events)
    settings = RunSettings.of(("here", {"events_per_batch_max": per_batch, "restarts_max": 0}))
    with Runner(app, layout, settings, session=spark) as runner:
        for _ in range(2):  # the second time for the events that the first one has appended
            runner.run_to_end()


def delta(path: Path) -> list[dict[str, Any]]:
    from deltalake import DeltaTable

    found: list[dict[str, Any]] = DeltaTable(path).to_pyarrow_table().to_pylist() if path.exists() else []
    return found


def stored(layout: Layout, copies: Path | None = None) -> Stored:
    """All that the sinks have, row by row."""
    files = [path.read_text() for path in (copies or layout.files("copies")).glob("*.jsonl")]
    hours, log = layout.view("hours"), open_journal(layout.journal)
    events = [event for _, batch in log.batches("0", 0, log.end()["0"]) for event in batch.to_pylist()]
    return {
        "changes": Counter(str(row) for row in delta(layout.table("changes"))),
        "sealed": Counter(str(row) for row in delta(hours.table("sealed"))),
        "corrections": Counter(str(row) for row in delta(hours.table("sealed_corrections"))),
        "copies": Counter(json.loads(line)["id"] for text in files for line in text.splitlines()),
        "journal": Counter(event["id"] for event in events),
    }


@pytest.fixture
def ran(spark: SparkSession, layout: Layout) -> App:
    """The shop, with a savepoint of all views after 100 orders, and 100 more since, in several batches."""
    app = shop()
    run(app, layout, spark, orders(0, 100), 500)
    take_all(layout, list(living_views(layout).values()), NOW_US)
    run(app, layout, spark, orders(100, 100), 90)
    return app


def test_after_a_restore_every_sink_has_every_row_once(spark: SparkSession, layout: Layout, ran: App) -> None:
    (savepoint,) = savepoint_sets(layout)
    before, total = stored(layout), rows(layout, "spending")
    assert min(map(len, before.values())) > 3, before
    made = restore(layout, parts_of(layout, savepoint.name, []))
    assert {each.view for each in made} == {"spending", "hours", "copies", "thanks"}
    assert min(each.replayed for each in made) > 2
    assert sum(row["orders"] for row in rows(layout, "spending")) < sum(row["orders"] for row in total)
    run(ran, layout, spark, [], 500)
    assert stored(layout) == before, "the batches after the savepoint were repeated as they were"
    assert rows(layout, "spending") == total

    run(ran, layout, spark, orders(200, 60), 500)
    after = stored(layout)
    assert set(after["copies"].values()) == set(after["journal"].values()) == {1}
    assert len(after["copies"]) == len(after["journal"]) == 2 * 260
    assert set(after["sealed"].values()) == {1} and after["sealed"] > before["sealed"]
    assert all(after[name] >= before[name] for name in before)

    for view in ("spending", "hours", "copies", "thanks"):  # and back: the generation before lacks the last 60
        assert roll_back(layout, view).number == 1
    run(ran, layout, spark, [], 500)
    assert stored(layout) == after
    assert sum(row["orders"] for row in rows(layout, "spending")) == 2 * 260


@in_full("the test before rolls a restore back, by the same way")
def test_a_rescale_is_taken_back_after_the_view_has_run_on(spark: SparkSession, layout: Layout, ran: App) -> None:
    rescale(layout.root, 3, ["spending"], session=spark)
    run(ran, layout, spark, orders(200, 30), 20)
    before, total = stored(layout), rows(layout, "spending")
    assert roll_back(layout, "spending").number == 1
    run(ran, layout, spark, [], 500)
    assert stored(layout) == before and rows(layout, "spending") == total


@in_full("tests/spark_state/test_savepoint.py has a fork without Spark")
@pytest.mark.parametrize("where", ["outside", "inside"])
def test_what_the_sinks_of_a_fork_write_stays_in_the_fork(
    spark: SparkSession, layout: Layout, tmp_path: Path, where: str
) -> None:
    outside = tmp_path / "outside" if where == "outside" else None
    app, copies = shop(outside), outside or layout.files("copies")
    run(app, layout, spark, orders(0, 60), 500)
    savepoint = take_all(layout, list(living_views(layout).values()), NOW_US)
    run(app, layout, spark, orders(60, 60), 70)
    before = stored(layout, copies)
    forked = fork(layout, savepoint.name, savepoint.parts(layout), tmp_path / "forked")
    run(app, forked, spark, orders(120, 10), 500)
    assert stored(layout, copies) == before
    found = stored(forked, forked.files("copies"))
    assert set(found["journal"].values()) == set(found["copies"].values()) == {1}
    assert len(found["copies"]) == 2 * 130 - (2 * 60 if outside else 0), "outside lies what came before the savepoint"
    assert set(found["sealed"].values()) == {1} and found["sealed"] >= before["sealed"]
    assert sum(row["orders"] for row in rows(forked, "spending")) == 2 * 130


def test_views_that_run_end_a_batch_at_the_barrier(spark: SparkSession, layout: Layout) -> None:
    """Taken by the run itself, again and again, while events come."""
    app = comparison.part_of(shop(), ["spending", "hours"])
    settings = RunSettings.of(("here", {"events_per_batch_max": 30, "savepoint_every_s": 0.1, "savepoints_kept": 2}))
    append(layout, orders(0, 100))
    with Runner(app, layout, settings, session=spark):
        wait_until(lambda: len(savepoint_sets(layout)) == 1)
        first = savepoint_sets(layout)[0].name
        for number in range(10):
            append(layout, orders(100 + number * 9, 9))
        wait_until(lambda: first not in [one.name for one in savepoint_sets(layout)])
    found = savepoint_sets(layout)
    assert len(found) <= 2 and found[-1].automatic and not layout.barrier.exists()
    for savepoint in found:
        for view, part in savepoint.parts(layout).items():
            stands = Checkpoint(Storage.at(part.checkpoint)).plan(part.batch).position
            assert stands == savepoint.position, view
    assert len(list(layout.view("spending").savepoints.glob("batch-*"))) <= 2


def test_spark_reads_the_rows_of_a_savepoint(spark: SparkSession, layout: Layout) -> None:
    run(comparison.part_of(shop(), ["spending", "hours"]), layout, spark, orders(0, 20), 500)
    for view, count in (("spending", 5), ("hours", len(rows(layout, "hours")))):
        taken = take(layout.view(view), NOW_US)
        assert verify_rows(taken, spark) == {"0": count}
    state = next(taken.checkpoint.glob("state/0/*/*.changelog"))
    state.write_bytes(state.read_bytes()[:-20])
    with pytest.raises((CheckpointInvalid, CheckpointGap)):
        verify_rows(taken, spark)
    command = ["savepoint", "verify", taken.name, "--dir", str(layout.root), "--no-spark"]
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 1 and "its content has changed" in done.output, done.output
