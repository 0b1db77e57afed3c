"""What the runner claims and counts in corners: sources that Spark alone knows, stops, restarts. Real Spark."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import stateside
from stateside.core.errors import OperatingError, PipelineFailed, SinkAway
from stateside.core.layout import Layout
from stateside.core.storage import Storage
from stateside.inspection.batch_reports import read_progress
from stateside.journal import Event
from stateside.pipeline.failures import Failure
from stateside.pipeline.runner import Runner
from stateside.pipeline.settings import RunSettings
from stateside.pipeline.sinks.sink import BatchId, Sink, SinkFactory
from stateside.pipeline.view_query import BatchDelivery, ViewQuery
from stateside.spark_state.batch_log import Checkpoint
from stateside.testing import CrashingSource, append, crash_marker
from stateside.views.heartbeat import Heartbeat

pytestmark = pytest.mark.spark

WAIT_S_MAX = 60
INTERVAL_MS = 3_000


def totals(sink: SinkFactory | None = None) -> stateside.App:
    app = stateside.App("shop", fields="amount long")

    @app.view(key=["entity"], sink=sink, rows="changed")
    def total(events: DataFrame) -> DataFrame:
        return events.groupBy("entity").agg(F.sum("amount").alias("total"))

    return app


def words(incoming: Path) -> stateside.App:
    incoming.mkdir(exist_ok=True)
    (incoming / "a.json").write_text('{"word": "hello"}\n')
    app = stateside.App("words", source=stateside.sources.files(incoming, fields="word string"))

    @app.view(key=["word"])
    def words(lines: DataFrame) -> DataFrame:
        return lines.groupBy("word").agg(F.count("*").alias("times"))

    return app


def orders(count: int) -> list[Event]:
    """So many new ones."""
    return [Event(f"o{next(_numbers)}", "emma", "order", 0, {"amount": 1}) for _ in range(count)]


_numbers = itertools.count()


def commits(layout: Layout, view: str = "total") -> list[int]:
    return Checkpoint(Storage.at(layout.view(view).checkpoint)).commits()


def beat(layout: Layout, view: str = "total") -> Heartbeat:
    return Heartbeat.load(layout.view(view).heartbeat) or Heartbeat(0, None, "stopped")


def until(condition: Callable[[], bool], runner: Runner) -> None:
    deadline = time.monotonic() + WAIT_S_MAX
    runner.wait(lambda: condition() or time.monotonic() > deadline)
    assert condition(), "it did not come about in time"


def for_s(seconds: float, runner: Runner) -> None:
    deadline = time.monotonic() + seconds
    runner.wait(lambda: time.monotonic() > deadline)


def test_between_two_looks_at_a_source_nothing_is_claimed_of_it(
    spark: SparkSession, layout: Layout, tmp_path: Path
) -> None:
    """Spark looks for files every few seconds: what came since is not in the last batch, and the heartbeat knows it."""
    app, settings = words(tmp_path / "incoming"), RunSettings(batch_interval_ms=INTERVAL_MS)
    with Runner(app, layout, settings, session=spark) as runner:
        until(lambda: beat(layout, "words").source_end is not None, runner)
        (tmp_path / "incoming" / "b.json").write_text('{"word": "hello"}\n')
        came_us = time.time_ns() // 1_000
        while beat(layout, "words").batch == 0:
            claim = beat(layout, "words")
            assert claim.source_end is None or claim.end_us is not None
            assert claim.batch != 0 or claim.source_end is None or (claim.end_us or 0) < came_us
            for_s(0.1, runner)


def test_a_run_that_finds_nothing_new_is_fresh_at_its_last_batch(
    spark: SparkSession, layout: Layout, tmp_path: Path
) -> None:
    app = words(tmp_path / "incoming")
    with Runner(app, layout, session=spark) as runner:
        until(lambda: commits(layout, "words") == [0], runner)
    with Runner(app, layout, session=spark) as runner:
        until(lambda: beat(layout, "words").source_end is not None, runner)
        assert beat(layout, "words").batch == 0


def test_the_last_batch_before_a_stop_is_told_too(spark: SparkSession, layout: Layout) -> None:
    append(layout, orders(300))
    told: list[int] = []

    def tell(view: str, heartbeat: Heartbeat, finished: list[dict[str, Any]]) -> None:
        told.extend(report["batchId"] for report in finished)

    settings = RunSettings(events_per_batch_max=10)
    for _ in range(2):
        before = len(commits(layout))
        with Runner(totals(), layout, settings, session=spark, on_beat=tell) as runner:
            until(lambda before=before: len(commits(layout)) > before + 1, runner)  # type: ignore[misc]
    assert [report["batchId"] for report in read_progress(layout.view("total").progress)] == commits(layout) == told
    assert beat(layout).batch == commits(layout)[-1]


def test_a_stop_does_not_wait_for_the_next_trigger(spark: SparkSession, layout: Layout) -> None:
    append(layout, orders(30))
    settings = RunSettings(events_per_batch_max=1, batch_interval_ms=600_000, stop_s_max=120)
    with Runner(totals(), layout, settings, session=spark) as runner:
        until(lambda: beat(layout).batch == 0, runner)
        began = time.monotonic()
    assert time.monotonic() - began < settings.stop_s_max / 2


def test_a_sink_that_does_not_return_holds_up_no_stop(spark: SparkSession, layout: Layout) -> None:
    called, release = threading.Event(), threading.Event()

    class Hanging:
        def write(self, rows: pa.Table, batch: BatchId) -> None:
            called.set()
            release.wait(600)

    append(layout, orders(1))
    try:
        with Runner(totals(lambda _: Hanging()), layout, RunSettings(stop_s_max=0.5), session=spark) as runner:
            until(called.is_set, runner)
    finally:
        release.set()
        while spark.streams.active:  # the session goes on, and with it the query until its sink returns
            time.sleep(0.05)


class Silent:
    def write(self, rows: pa.Table, batch: BatchId) -> None:
        """Takes anything."""


def test_a_restart_that_fails_counts_as_a_failure_and_is_tried_again(spark: SparkSession, layout: Layout) -> None:
    opened: list[int] = []

    def sink(context: object) -> Sink:
        opened.append(len(opened))
        if len(opened) in (2, 3):
            raise SinkAway("The notebook is not at its place")
        return Silent()

    spark.dataSource.register(CrashingSource)
    append(layout, [*orders(1), crash_marker()])
    settings = RunSettings(restart_pause_s=0.05, restarts_max=3)
    with Runner(totals(sink), layout, settings, session=spark) as runner:
        until(lambda: commits(layout) == [0], runner)
    assert len(opened) == 4


def test_whatever_ends_a_view_its_last_heartbeat_says_so(spark: SparkSession, layout: Layout) -> None:
    opened: list[int] = []

    def sink(context: object) -> Sink:
        opened.append(len(opened))
        if len(opened) > 1:
            raise SinkAway("The notebook is not at its place")
        return Silent()

    spark.dataSource.register(CrashingSource)
    append(layout, [*orders(1), crash_marker()])
    with (
        pytest.raises(PipelineFailed, match="2 times in a row: The notebook is not at its place"),
        Runner(totals(sink), layout, RunSettings(restart_pause_s=0.05, restarts_max=1), session=spark) as runner,
    ):
        runner.wait(lambda: False)
    assert (beat(layout).state, beat(layout).why) == ("failed", "The notebook is not at its place.")


def test_very_many_restarts_do_not_overflow_their_pause(spark: SparkSession, layout: Layout) -> None:
    app, settings = totals(), RunSettings(restart_pause_s=0.0, restarts_max=10_000)
    query = ViewQuery(app, app.views["total"], layout, spark, settings)
    for _ in range(1_100):
        query._fail(Failure("it is away", worth_retrying=True))
    assert query.state()[0] == "holding"


def test_reports_that_nobody_takes_keep_no_view_from_its_heartbeat(spark: SparkSession, layout: Layout) -> None:
    app = totals()
    app.view(key=["entity"], name="further")(app.views["total"].function)

    def tell(*_: object) -> None:
        raise BrokenPipeError("nobody reads")

    append(layout, orders(1))
    with Runner(app, layout, session=spark, on_beat=tell) as runner:
        until(lambda: all(beat(layout, view).state == "idle" for view in ("total", "further")), runner)


def test_a_batch_is_not_held_longer_than_it_may_be(layout: Layout) -> None:
    class Away:
        def write(self, rows: pa.Table, batch: BatchId) -> None:
            raise SinkAway("It is away")

    class Rows:
        def toArrow(self) -> pa.Table:  # noqa: N802
            return pa.table({})

    delivery = BatchDelivery(Away(), Checkpoint(Storage.at(layout.root)), hold_s_max=0.7)
    began = time.monotonic()
    with pytest.raises(OperatingError, match="It is away"):
        delivery._deliver(Rows(), BatchId("q", 0))  # type: ignore[arg-type]
    assert time.monotonic() - began >= 0.7
