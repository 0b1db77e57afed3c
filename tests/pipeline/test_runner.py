"""The runner: restarts, held batches, states with reasons, stops at a batch boundary. Real Spark."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import stateside
from stateside.core.errors import PipelineFailed, SinkAway, SinkRefused, ViewBroken, ViewInvalid
from stateside.core.layout import Layout
from stateside.core.storage import Storage
from stateside.inspection.batch_reports import read_progress
from stateside.journal import Event
from stateside.pipeline.runner import Runner
from stateside.pipeline.settings import RunSettings
from stateside.pipeline.sinks.sink import BatchId, SinkFactory
from stateside.spark_state.batch_log import Checkpoint
from stateside.testing import CrashingSource, append, crash_marker, rows, run_to
from stateside.views.heartbeat import Heartbeat
from stateside.views.job_totals import JOB_TOTALS, WHOLE, JobTotals

pytestmark = pytest.mark.spark

WAIT_S_MAX = 60
QUICK = RunSettings(restart_pause_s=0.05, restarts_max=2)


def totals(sink: SinkFactory | None = None) -> stateside.App:
    app = stateside.App("shop", fields="amount long")

    @app.view(key=["entity"], sink=sink, rows="changed")
    def total(events: DataFrame) -> DataFrame:
        return events.groupBy("entity").agg(F.sum("amount").alias("total"))

    return app


def orders(*amounts: int, first: int = 0) -> list[Event]:
    return [Event(f"o{first + n}", "emma", "order", 0, {"amount": amount}) for n, amount in enumerate(amounts)]


def beat(layout: Layout, view: str = "total") -> Heartbeat | None:
    return Heartbeat.load(layout.view(view).heartbeat)


def counted(layout: Layout) -> JobTotals:
    return JOB_TOTALS.load(layout.view("total").totals)


def until(condition: Callable[[], bool], runner: Runner) -> None:
    """Let the runner work until the condition holds."""
    deadline = time.monotonic() + WAIT_S_MAX
    runner.wait(lambda: condition() or time.monotonic() > deadline)
    assert condition(), "it did not come about in time"


def test_a_failed_view_is_started_again_and_goes_on_where_it_was(spark: SparkSession, layout: Layout) -> None:
    spark.dataSource.register(CrashingSource)
    append(layout, [*orders(1, 2), crash_marker(), *orders(3, first=2)])
    with Runner(totals(), layout, QUICK, session=spark) as runner:
        until(lambda: bool(Checkpoint(Storage.at(layout.view("total").checkpoint)).commits()), runner)
    assert rows(layout, "total", "emma") == [{"entity": "emma", "total": 6}]


def test_a_view_that_fails_again_and_again_ends_the_run_with_its_reason(spark: SparkSession, layout: Layout) -> None:
    app = stateside.App("shop", fields="amount long")

    @F.udf("long")
    def picky(amount: int) -> int:
        raise ValueError(f"I do not like {amount}")

    @app.view(key=["entity"])
    def total(events: DataFrame) -> DataFrame:
        return events.select("entity", picky("amount").alias("amount")).groupBy("entity").agg(F.sum("amount"))

    append(layout, orders(7))
    with (
        pytest.raises(PipelineFailed, match="3 times in a row: ValueError: I do not like 7") as failed,
        Runner(app, layout, QUICK, session=spark) as runner,
    ):
        runner.wait(lambda: False)
    assert "\n" not in str(failed.value)
    last = beat(layout)
    assert last is not None
    assert (last.state, last.why) == ("failed", "ValueError: I do not like 7")


def test_a_restart_that_would_not_help_is_not_tried(spark: SparkSession, layout: Layout) -> None:
    calls = []

    class Refusing:
        def write(self, rows: pa.Table, batch: BatchId) -> None:
            calls.append(batch)
            raise SinkRefused("The other side does not like these rows")

    append(layout, orders(7))
    with (
        pytest.raises(ViewBroken, match="stopped: The other side does not like these rows"),
        Runner(totals(lambda _: Refusing()), layout, QUICK, session=spark) as runner,
    ):
        runner.wait(lambda: False)
    assert len(calls) == 1


class Notebook:
    """A sink with a switch: away or there."""

    def __init__(self) -> None:
        self.away = False
        self.pages: dict[int, list[dict[str, object]]] = {}

    def write(self, rows: pa.Table, batch: BatchId) -> None:
        if self.away:
            raise SinkAway("The notebook is away")
        self.pages.setdefault(batch.batch, []).extend(rows.to_pylist())


def test_while_a_sink_is_away_its_batch_is_held_and_readers_keep_the_last_one(
    spark: SparkSession, layout: Layout
) -> None:
    notebook = Notebook()
    append(layout, orders(1))
    with Runner(totals(lambda _: notebook), layout, QUICK, session=spark) as runner:
        until(lambda: 0 in notebook.pages, runner)
        notebook.away = True
        append(layout, orders(10, first=1))
        until(lambda: (b := beat(layout)) is not None and b.state == "holding", runner)
        held = beat(layout)
        assert held is not None
        assert held.why == "The notebook is away."
        assert rows(layout, "total", "emma") == [{"entity": "emma", "total": 1}]
        until(lambda: counted(layout).sink_held, runner)
        notebook.away = False
        until(lambda: 1 in notebook.pages, runner)
        until(lambda: (b := beat(layout)) is not None and b.state == "idle" and b.batch == 1, runner)
    assert notebook.pages == {0: [{"entity": "emma", "total": 1}], 1: [{"entity": "emma", "total": 11}]}
    found = counted(layout)
    assert (found.batches, found.rows, found.starts, found.sink_held, found.events_left) == (2, 2, 1, False, 0)
    assert all(sum(took.buckets) == 2 for took in found.took.values())
    assert found.took[WHOLE].sum_s >= found.took["execution"].sum_s > 0


def test_a_held_batch_does_not_keep_a_stop_waiting_and_comes_again(spark: SparkSession, layout: Layout) -> None:
    notebook = Notebook()
    notebook.away = True
    append(layout, orders(1))
    patient = replace(QUICK, stop_s_max=120)
    with Runner(totals(lambda _: notebook), layout, patient, session=spark) as runner:
        until(lambda: (b := beat(layout)) is not None and b.state == "holding", runner)
        began = time.monotonic()
    assert time.monotonic() - began < patient.stop_s_max / 2
    notebook.away = False
    run_to(totals(lambda _: notebook), layout, spark)
    assert notebook.pages == {0: [{"entity": "emma", "total": 1}]}
    assert (counted(layout).batches, counted(layout).starts) == (1, 2), "they are counted on in the next run"


def test_a_stop_comes_at_a_batch_boundary(spark: SparkSession, layout: Layout) -> None:
    """Events wait for more batches than there is time for; what was planned when the stop came is committed."""
    append(layout, orders(*[1] * 2_000))
    settings = RunSettings(events_per_batch_max=1)
    checkpoint = Checkpoint(Storage.at(layout.view("total").checkpoint))
    for _ in range(3):
        before = len(checkpoint.commits())
        with Runner(totals(), layout, settings, session=spark) as runner:
            until(lambda before=before: len(checkpoint.commits()) > before + 2, runner)  # type: ignore[misc]
        planned = max(int(name) for name in checkpoint.storage.names("offsets") if name.isdigit())
        assert planned == checkpoint.commits()[-1]
        assert not layout.pause.exists()
    last = beat(layout)
    assert last is not None
    assert last.state == "stopped"


def test_the_heartbeat_tells_idle_from_running_and_where_the_source_ends(spark: SparkSession, layout: Layout) -> None:
    receipt = append(layout, orders(1, 2))
    with Runner(totals(), layout, session=spark) as runner:
        until(lambda: (b := beat(layout)) is not None and b.state == "idle" and b.batch == 0, runner)
        idle = beat(layout)
    assert idle is not None
    assert idle.source_end == receipt


def test_a_source_whose_end_only_spark_knows_is_fresh_when_spark_waits_for_data(
    spark: SparkSession, layout: Layout, tmp_path: Path
) -> None:
    incoming = tmp_path / "incoming"
    incoming.mkdir()
    (incoming / "a.json").write_text(json.dumps({"word": "hello"}) + "\n")
    app = stateside.App("words", source=stateside.sources.files(incoming, fields="word string"))

    @app.view(key=["word"])
    def words(lines: DataFrame) -> DataFrame:
        return lines.groupBy("word").agg(F.count("*").alias("times"))

    with Runner(app, layout, session=spark) as runner:
        until(lambda: (b := beat(layout, "words")) is not None and b.source_end is not None, runner)
    assert rows(layout, "words", "hello") == [{"word": "hello", "times": 1}]


def test_every_batch_s_progress_is_kept_beside_the_checkpoint(spark: SparkSession, layout: Layout) -> None:
    append(layout, orders(1, 2, 3))
    with Runner(totals(), layout, RunSettings(events_per_batch_max=1), session=spark) as runner:
        until(lambda: len(list(read_progress(layout.view("total").progress))) == 3, runner)
    kept = list(read_progress(layout.view("total").progress))
    assert [(report["batchId"], report["numInputRows"]) for report in kept] == [(0, 1), (1, 1), (2, 1)]


def test_batches_start_as_far_apart_as_they_were_told_to(spark: SparkSession, layout: Layout) -> None:
    append(layout, orders(1))
    with Runner(totals(), layout, RunSettings(batch_interval_ms=100), session=spark) as runner:
        until(lambda: (b := beat(layout)) is not None and b.state == "idle" and b.batch == 0, runner)
    assert rows(layout, "total", "emma") == [{"entity": "emma", "total": 1}]


def test_a_view_that_is_not_declared_any_more_is_said_to_be_removed(spark: SparkSession, layout: Layout) -> None:
    before = totals()

    @before.view(key=["entity"])
    def counted(events: DataFrame) -> DataFrame:
        return events.groupBy("entity").count()

    append(layout, orders(3))
    run_to(before, layout, spark)
    stopped = beat(layout, "counted")
    assert stopped is not None and stopped.state == "stopped"
    run_to(totals(), layout, spark)
    assert beat(layout, "counted") == replace(stopped, state="removed"), "and its answers are as old as before"
    run_to(before, layout, spark)
    again = beat(layout, "counted")
    assert again is not None and again.state == "stopped"


def test_a_changed_filter_is_refused_with_the_difference_unless_it_is_accepted(
    spark: SparkSession, layout: Layout
) -> None:
    def app(least: int) -> stateside.App:
        app = stateside.App("shop", fields="amount long")

        @app.view(key=["entity"])
        def total(events: DataFrame) -> DataFrame:
            return events.where(F.col("amount") >= least).groupBy("entity").agg(F.sum("amount").alias("total"))

        return app

    append(layout, orders(1))
    run_to(app(0), layout, spark)
    append(layout, orders(5, 2, first=1))
    with pytest.raises(ViewInvalid, match=r"before: Filter .*>= .*0.*; now: Filter .*3"):
        run_to(app(3), layout, spark)
    with Runner(app(3), layout, RunSettings(accept_changes=True), session=spark) as runner:
        runner.run_to_end()
    assert rows(layout, "total", "emma") == [{"entity": "emma", "total": 6}]
