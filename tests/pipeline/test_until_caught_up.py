"""A run that ends once its views have the events of its start: nightly jobs, CI, backfills. Real Spark."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import stateside
from stateside.core.layout import Layout
from stateside.inspection.batch_reports import events_left
from stateside.journal import Event
from stateside.pipeline.runner import Runner
from stateside.pipeline.settings import RunSettings
from stateside.pipeline.sinks.sink import BatchId, SinkFactory
from stateside.testing import CrashingSource, append, crash_marker, rows
from tests.pipeline.test_supervision import commits, orders, totals

ENDING = RunSettings(until_caught_up=True, events_per_batch_max=10, restart_pause_s=0.05)
WAIT_S_MAX = 60
SEEN = [("a", "emma", 0), ("b", "emma", 1), ("c", "ben", 86_400_000_000)]
SHOP = """
import stateside
from pyspark.sql import functions as F

app = stateside.App("shop", fields="amount long")

@app.view(key=["entity"])
def total(events):
    return events.groupBy("entity").agg(F.sum("amount").alias("total"))
"""


def caught_up(app: stateside.App, layout: Layout, session: SparkSession, settings: RunSettings = ENDING) -> Runner:
    deadline = time.monotonic() + WAIT_S_MAX
    with Runner(app, layout, settings, session=session) as runner:
        runner.wait(lambda: time.monotonic() > deadline)
    assert runner.caught_up
    return runner


@pytest.mark.spark
def test_a_run_ends_at_the_journals_end_of_its_start(spark: SparkSession, layout: Layout) -> None:
    append(layout, orders(25))

    class Appending:
        """Appends in every batch: a run up to the journal's present end would never end."""

        def write(self, rows: pa.Table, batch: BatchId) -> None:
            append(layout, orders(20))

    runner = caught_up(totals(lambda _: Appending()), layout, spark)
    assert rows(layout, "total") == [{"entity": "emma", "total": 25}]
    assert len(commits(layout)) == 3
    assert str(runner.reached()["total"]) == "0:25"
    caught_up(totals(), layout, spark)
    assert rows(layout, "total") == [{"entity": "emma", "total": 85}]
    caught_up(totals(), layout, spark)  # with nothing to do


@pytest.mark.spark
def test_a_batch_that_fails_on_the_way_is_repeated_and_the_run_still_ends(spark: SparkSession, layout: Layout) -> None:
    spark.dataSource.register(CrashingSource)
    append(layout, [*orders(12), crash_marker(), *orders(3)])
    caught_up(totals(), layout, spark)
    assert rows(layout, "total") == [{"entity": "emma", "total": 15}]


def days(sink: SinkFactory) -> stateside.App:
    app = stateside.App("shop")

    @app.view(key=["entity", "window"], sink=sink)
    def daily(events: DataFrame) -> DataFrame:
        days = F.window("time", "1 day")
        return events.withWatermark("time", "0 seconds").groupBy("entity", days).agg(F.count("*").alias("events"))

    return app


@pytest.mark.spark
def test_what_the_last_event_closes_is_closed_before_the_run_ends(spark: SparkSession, layout: Layout) -> None:
    """The batch without data after the last event belongs to the run: a nightly job seals its day."""
    closed: list[dict[str, Any]] = []

    class Keeping:
        def write(self, rows: pa.Table, batch: BatchId) -> None:
            closed.extend(rows.select(["entity", "events"]).to_pylist())

    append(layout, [Event(id, who, "seen", at_us, {}) for id, who, at_us in SEEN])
    caught_up(days(lambda _: Keeping()), layout, spark)
    assert closed == [{"entity": "emma", "events": 2}]


@pytest.mark.spark
def test_files_in_a_folder_have_an_end_as_well(spark: SparkSession, layout: Layout, tmp_path: Path) -> None:
    for n in range(3):
        (tmp_path / f"{n}.json").write_text('{"word": "hello"}\n')
    source = stateside.sources.files(tmp_path, fields="word string", files_per_batch_max=1)
    app = stateside.App("words", source=source)

    @app.view(key=["word"])
    def words(lines: DataFrame) -> DataFrame:
        return lines.groupBy("word").agg(F.count("*").alias("times"))

    caught_up(app, layout, spark)
    assert rows(layout, "words") == [{"word": "hello", "times": 3}]


def started(folder: Path, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "stateside", "run", "shop:app", "--dir", "data", "--until-caught-up", *more]
    environment = os.environ | {"PYTHONPATH": str(folder)}
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.spark
@pytest.mark.e2e
def test_the_command_ends_with_0_when_caught_up_and_with_1_when_stopped_before(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "data")
    (tmp_path / "shop.py").write_text(SHOP)
    append(layout, orders(30))
    explicit = ("--events-per-batch-max", "10", "--batch-interval-ms", "0")
    process = started(tmp_path, "--json", "--profile", "throughput", *explicit)
    told, errors = process.communicate(timeout=180)
    assert process.returncode == 0, errors
    assert "Profile throughput: driver_memory = 2g.\n" in errors, "the others are given"
    lines = [json.loads(line) for line in told.splitlines()]
    batches = [line for line in lines if "batch" in line]
    assert [(batch["events"], batch["left"]) for batch in batches] == [(10, 20), (10, 10), (10, 0)]
    assert lines[-1] == {"note": "caught up: total at 0:30"}
    append(layout, orders(1_000))
    process = started(tmp_path, "--events-per-batch-max", "1")
    while len(commits(layout)) < 5:
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=180)
    assert process.returncode == 1
    assert "The run was stopped before all views had caught up: total at 0:" in errors
    assert "events left after batch" in errors
    assert "Traceback" not in errors


def test_the_events_left_are_counted_for_journals_and_topics_and_unknown_for_other_sources() -> None:
    def left(end: Any, latest: Any) -> int | None:
        return events_left({"sources": [{"endOffset": end, "latestOffset": latest}]})

    assert left({"journal": "x", "0": 7}, {"journal": "x", "0": 9}) == 2
    assert left({"journal": "x", "0": 7, "a.1": 5}, {"journal": "x", "0": 7, "1": 3}) == 3
    assert left({"calls": {"0": 7, "1": 1}}, {"calls": {"0": 9, "1": 1}}) == 2
    assert left({"logOffset": 3}, {"logOffset": 9}) is None
    assert left({"calls": {"0": 7}}, None) is None
    assert events_left({"sources": []}) is None
