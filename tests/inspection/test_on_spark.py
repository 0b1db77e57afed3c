"""Findings of real jobs: three provoked, none on a healthy one, and a query of others estimated as it was."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import stateside
from stateside.core.layout import Layout
from stateside.inspection import Inspection, findings, inspect
from stateside.journal import Event
from stateside.pipeline import App
from stateside.pipeline.runner import Runner
from stateside.pipeline.session import session_conf
from stateside.pipeline.settings import RunSettings
from stateside.spark_state.batch_log import SHUFFLE_PARTITIONS
from stateside.testing import append

pytestmark = pytest.mark.spark

HOUR_US = 3_600_000_000
START_US = 1_767_225_600_000_000  # 2026-01-01
BATCHES = 6


def hourly() -> App:
    app = stateside.App("shop", fields="n long")

    @app.view(key=["item", "window"])
    def hours(events: DataFrame) -> DataFrame:
        timed = events.withWatermark("time", "0 seconds").withColumnRenamed("entity", "item")
        return timed.groupBy("item", F.window("time", "1 hour")).agg(F.sum("n").alias("total"))

    return app


def seen(number: int, hour: float, n: object = 1) -> Event:
    return Event(f"e{number}-{hour}", f"item{number % 7}", "seen", START_US + round(hour * HOUR_US), {"n": n})


def inspected(layout: Layout, session: SparkSession, batches: list[list[Event]], partitions: int) -> Inspection:
    """The inspection of a job that is idle after these batches."""
    with (
        session_conf(session, {SHUFFLE_PARTITIONS: partitions}),
        Runner(hourly(), layout, RunSettings(), session=session) as runner,
    ):
        for events in batches:
            append(layout, events)
            runner.run_to_end()
        inspection = inspect(layout.root)
    assert inspection.problems == []
    return inspection


def test_late_rows_dead_letters_and_few_partitions_are_found_and_nothing_on_a_healthy_job(
    spark: SparkSession, layout: Layout, tmp_path: Path
) -> None:
    good = [[seen(number, batch + 0.5) for number in range(20)] for batch in range(BATCHES)]
    bad = [[*events, seen(90, batch - 3.0), seen(91, batch + 0.5, "seven")] for batch, events in enumerate(good)]
    sick = inspected(Layout(layout.root / "sick"), spark, bad, 1)
    assert {each.code for each in findings(sick)} == {"late-data-lost", "dead-letters-rising", "partitions-few"}

    healthy = inspected(layout, spark, good, 2)
    assert findings(healthy) == []
    (view,) = healthy.views
    last = view.batches[-1]
    assert (last.cores, last.partitions, last.trigger_ms, last.late_kept) == (2, 2, 0, False)
    assert (last.task_ms or 0) > 0 and last.gc_ms is not None and "sink" in last.parts_ms
    assert sum(last.parts_ms.values()) <= (last.duration_ms or 0) + len(last.parts_ms)

    shutil.copytree(layout.view("hours").checkpoint, tmp_path / "foreign")  # with the files' times
    foreign, stopped = inspect(tmp_path / "foreign"), inspect(layout.root)
    assert findings(foreign) == []
    (estimated,), (reported,) = foreign.views, stopped.views
    assert estimated.partitions == reported.partitions
    rows = {batch.batch: batch.rows for batch in reported.batches}
    for batch in estimated.batches:  # one without data may have ended after the last report
        assert batch.rows in (None, rows.get(batch.batch, 0))
        assert batch.duration_ms is not None
