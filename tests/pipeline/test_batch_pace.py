"""The pace of batches: a pause after each commit, and as many events as a batch can take in its target duration."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from stateside.core.layout import Layout
from stateside.core.storage import Storage
from stateside.inspection.batch_reports import read_progress
from stateside.pipeline.progress import (
    EVENTS_MIN,
    GROWTH_MAX,
    NEXT_BATCH,
    RECENT,
    SHRINKING_MAX,
    BatchCost,
    BatchSizes,
    Pace,
    pace_file,
)
from stateside.pipeline.runner import Runner
from stateside.pipeline.settings import RunSettings
from stateside.pipeline.sinks.sink import BatchId
from stateside.spark_state.batch_log import Checkpoint
from stateside.testing import append, rows
from tests.pipeline.test_supervision import beat, commits, orders, totals, until

TARGET_MS = 1_000
MOST = 1_000_000
SIZES = BatchSizes(TARGET_MS, MOST)


def batches(
    events_per_s: int, limit: int, *, fixed_ms: int = 220, count: int = 40, waiting: int = MOST
) -> Iterator[tuple[int, float]]:
    """Limit and duration of each batch of a view with these costs, while so many events wait."""
    recent: list[BatchCost] = []
    for _ in range(count):
        events = min(limit, waiting)
        recent = [*recent, BatchCost(events, fixed_ms + events * 1_000 / events_per_s, fixed_ms)][-RECENT:]
        yield limit, recent[-1].took_ms
        limit = SIZES.after(limit, recent)


@pytest.mark.parametrize("events_per_s", [8_000, 100_000, 600_000])
@pytest.mark.parametrize("first", [EVENTS_MIN, 50_000, MOST])
def test_batches_come_near_their_target_and_stay_there(events_per_s: int, first: int) -> None:
    last = [took for _, took in batches(events_per_s, first)][-10:]
    assert all(0.9 * TARGET_MS <= took <= 1.1 * TARGET_MS for took in last), last


def test_a_batch_that_took_too_long_is_followed_by_a_smaller_one_at_once() -> None:
    sizes = [limit for limit, _ in batches(8_000, MOST, count=4)]
    assert sizes[1] == MOST / SHRINKING_MAX
    assert sizes[3] < 10_000


def test_batches_grow_by_steps_and_only_after_full_ones() -> None:
    sizes = [limit for limit, _ in batches(1_000_000, EVENTS_MIN)]
    assert all(after <= GROWTH_MAX * before for before, after in pairwise(sizes))
    assert sizes[-1] > 500_000
    assert {limit for limit, _ in batches(1_000_000, 50_000, waiting=10)} == {50_000}


def test_one_slow_batch_of_few_events_changes_nothing() -> None:
    assert SIZES.after(50_000, [BatchCost(10, 9_000, 200)]) == 50_000


def test_a_slow_store_costs_freshness_and_at_most_half_of_the_throughput() -> None:
    """Smaller batches would not help: the fixed cost alone is five times the target."""
    *_, (limit, took_ms) = batches(100_000, 78_000, fixed_ms=5_000)
    assert limit / took_ms * 1_000 >= 50_000
    *_, (_, took_ms) = batches(100_000, limit)  # the store has recovered
    assert took_ms == pytest.approx(TARGET_MS, rel=0.1)


@given(
    st.integers(EVENTS_MIN, MOST),
    st.lists(
        st.builds(BatchCost, st.integers(1, MOST), st.floats(1_000, 10**7), st.floats(0, 1_000)),
        min_size=1,
        max_size=RECENT,
    ),
)
def test_whatever_batches_took_the_next_one_is_within_its_bounds(limit: int, recent: list[BatchCost]) -> None:
    after = SIZES.after(limit, recent)
    assert max(EVENTS_MIN, int(limit / SHRINKING_MAX)) <= after <= min(MOST, round(GROWTH_MAX * limit))


def test_the_fixed_cost_of_a_batch_is_what_spark_reports_outside_of_its_work_and_for_the_states_commits() -> None:
    told = {"numInputRows": 7, "durationMs": {"triggerExecution": 900, "addBatch": 700}}
    told |= {"stateOperators": [{"commitTimeMs": 200, "numStateStoreInstances": 2}, {"commitTimeMs": 10}]}
    assert BatchCost.of(told) == BatchCost(7, 900, 300)


def report(events: int, took_ms: int, asked_ms: int = 2) -> dict[str, Any]:
    durations = {"triggerExecution": took_ms, "latestOffset": asked_ms}
    return {"numInputRows": events, "durationMs": durations, "processedRowsPerSecond": 1.0}


def test_the_pause_is_no_part_of_a_batchs_duration(tmp_path: Path) -> None:
    pace = Pace.of(RunSettings(batch_pause_ms=500), tmp_path / "next", [])
    pace.follow(told := report(100, 750, asked_ms=503))
    assert told["durationMs"] == {"triggerExecution": 250, "latestOffset": 3}
    assert told["processedRowsPerSecond"] == 400
    assert told["pace"] == {"paused_ms": 500, "target_ms": None, "events": None}


def test_a_run_goes_on_with_the_size_that_the_last_one_had_found(tmp_path: Path) -> None:
    settings, file = RunSettings(batch_target_ms=TARGET_MS), tmp_path / "next"
    pace = Pace.of(settings, file, [])
    pace.begin()
    assert NEXT_BATCH.read(file) == 50_000
    pace.follow(report(50_000, 60_000))  # the first batch of a run: it is cold, and shows nothing
    assert NEXT_BATCH.read(file) == 50_000
    pace.follow(told := report(50_000, 2_000))
    assert NEXT_BATCH.read(file) == told["pace"]["events"] == 25_000
    file.unlink()
    Pace.of(settings, file, [{}, told]).begin()
    assert NEXT_BATCH.read(file) == 25_000
    Pace.of(RunSettings(batch_target_ms=TARGET_MS, events_per_batch_max=10_000), file, [told]).begin()
    assert NEXT_BATCH.read(file) == 10_000


def test_without_a_pace_a_report_stays_as_it_is(tmp_path: Path) -> None:
    pace = Pace.of(RunSettings(), tmp_path / "next", [])
    pace.begin()
    pace.follow(told := report(100, 750))
    assert told == report(100, 750)
    assert not (tmp_path / "next").exists()


@pytest.mark.spark
def test_between_a_commit_and_the_next_plan_there_is_the_pause_however_long_batches_take(
    spark: SparkSession, layout: Layout
) -> None:
    class Slow:
        def write(self, rows: pa.Table, batch: BatchId) -> None:
            time.sleep(0.8)

    pause_ms = 700
    append(layout, orders(4))
    settings = RunSettings(events_per_batch_max=1, batch_pause_ms=pause_ms)
    with Runner(totals(lambda _: Slow()), layout, settings, session=spark) as runner:
        until(lambda: beat(layout).batch == 3, runner)
    checkpoint = layout.view("total").checkpoint
    for batch in range(3):
        committed, planned = checkpoint / "commits" / str(batch), checkpoint / "offsets" / str(batch + 1)
        assert planned.stat().st_mtime_ns - committed.stat().st_mtime_ns >= pause_ms * 1_000_000
    reports = list(read_progress(layout.view("total").progress))
    assert [report["pace"]["paused_ms"] for report in reports][1:] == [pause_ms] * 3
    assert rows(layout, "total") == [{"entity": "emma", "total": 4}]


@pytest.mark.spark
def test_a_stop_does_not_wait_for_the_end_of_a_pause(spark: SparkSession, layout: Layout) -> None:
    append(layout, orders(2))
    settings = RunSettings(events_per_batch_max=1, batch_pause_ms=600_000, stop_s_max=120)
    with Runner(totals(), layout, settings, session=spark) as runner:
        until(lambda: beat(layout).batch == 0, runner)
        began = time.monotonic()
    assert time.monotonic() - began < settings.stop_s_max / 2
    assert commits(layout) == [0]


@pytest.mark.spark
def test_batches_take_as_many_events_as_their_target_allows_and_no_more(spark: SparkSession, layout: Layout) -> None:
    """Each event of this sink's takes half a millisecond: batches of 8,000 events shrink to about 2,000."""

    class Slow:
        def write(self, rows: pa.Table, batch: BatchId) -> None:
            end = Checkpoint(Storage.at(layout.view("total").checkpoint)).plan(batch.batch).position.one()
            time.sleep((end - ends[-1]) / 2_000)
            ends.append(end)

    ends = [0]
    append(layout, orders(40_000))
    settings = RunSettings(batch_target_ms=2_000, events_per_batch_max=8_000, until_caught_up=True)
    with Runner(totals(lambda _: Slow()), layout, settings, session=spark) as runner:
        until(lambda: runner.caught_up, runner)
    sizes = [after - before for before, after in pairwise(ends)]
    assert sizes[0] == 8_000
    assert min(sizes[2:-1]) < 5_000, sizes
    assert NEXT_BATCH.read(pace_file(layout.view("total"))) is not None
    last = json.loads(layout.view("total").progress.read_text().splitlines()[-1])
    assert last["pace"]["target_ms"] == 2_000
    assert rows(layout, "total") == [{"entity": "emma", "total": 40_000}]
