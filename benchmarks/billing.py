"""Billing at a million customers: rating against the bare aggregation, the price of de-duplication, sealing.

Sizes come from the environment: STATESIDE_BENCH_CUSTOMERS, _EVENTS, _EVENTS_PER_BATCH, _ROUNDS. Speeds are those of the
batches themselves, as Spark reports them: starting the query, and filling the state first, are not measured. Beside the
speed by the clock stands that by the processor's time, of Spark's JVM and Python workers together.

The bare aggregation is what an application would write that takes every event as it is: the same journal, batches and
settings of the state, the journal's own source with the one field that it needs, a key less (`plan`), and no sink.
"""

from __future__ import annotations

import os
import shutil
import statistics
import threading
import time
from collections.abc import Iterator
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import stateside
from benchmarks.compare import Figure, Result
from benchmarks.processor import ProcessorWatch
from stateside.billing.book.book import BookKeeper
from stateside.billing.calendar import Cycle
from stateside.billing.model import ASSIGN, DAY_US, GRACE_US, HOUR_US, USAGE_TYPES, clock_tick, usage
from stateside.billing.pipeline import EVENT_TIME, app, app_without_deduplication
from stateside.billing.plans.file import CREDIT, PlanVersion, plan_event
from stateside.billing.plans.tiers import Tier, Tiers
from stateside.core.clock import ManualClock
from stateside.core.layout import Layout
from stateside.core.storage import Storage
from stateside.inspection.batch_reports import read_progress
from stateside.journal import Event, FileLog, JournalWriter
from stateside.journal.columns import GIVEN
from stateside.pipeline.runner import Runner
from stateside.pipeline.session import start_session, stop_session
from stateside.pipeline.settings import RunSettings
from stateside.pipeline.sinks.sink import BatchId, SinkContext
from stateside.spark_state.batch_log import Checkpoint


def _size(name: str, default: int) -> int:
    return int(os.environ.get(f"STATESIDE_BENCH_{name}", default))


CUSTOMERS = _size("CUSTOMERS", 1_000_000)
EVENTS = _size("EVENTS", 2_000_000)
EVENTS_PER_BATCH = _size("EVENTS_PER_BATCH", 500_000)
ROUNDS = _size("ROUNDS", 3)
WAIT_S_MAX = 900.0

ZONE = "Europe/Berlin"
MONTH = Cycle("month", ZONE).containing(1_768_000_000_000_000)  # January 2026
TYPES = np.array(["call", "message", "data"])
PRICES = {
    "call": Tiers((Tier(0, 0, 1), Tier(6_000, 90_000, 60))),
    "message": Tiers((Tier(0, 100_000, 1), Tier(1_000, 50_000, 1))),
    "data": Tiers((Tier(0, 10_000, 1_000_000),)),
    "credit": CREDIT,
}
PLAN = PlanVersion("basic", 1, MONTH.start_us, "EUR", Cycle("month", ZONE), "half-even", PRICES)
_ROWS_PER_APPEND = 50_000
_numbers = count()


class Discard:
    """A sink that keeps nothing."""

    def write(self, rows: pa.Table, batch: BatchId) -> None:
        pass


def _discard(context: SinkContext) -> Discard:
    return Discard()


bare = stateside.App("bare", fields="quantity long")


@bare.view(key=["customer", "period_end", "type"], sink=_discard)
def bill(events: DataFrame) -> DataFrame:
    """The aggregation without rating: each customer's month by type."""
    local = F.from_utc_timestamp("time", ZONE)
    end = F.to_utc_timestamp(F.add_months(F.trunc(local, "month"), 1), ZONE)
    marked = events.where(F.col("type").isin(*USAGE_TYPES)).withWatermark("time", f"{GRACE_US // 1_000} milliseconds")
    period_end = end.alias("period_end", metadata=EVENT_TIME)
    rows = marked.select(F.col("entity").alias("customer"), period_end, "type", "quantity")
    sums = F.sum("quantity").alias("quantity"), F.count("*").alias("events")
    return rows.groupBy("customer", "period_end", "type").agg(*sums)


_SIDES = (app_without_deduplication, bare, app)


def run(folder: Path) -> Iterator[Result | Figure]:
    prepared = Prepared(folder / "prepared")
    spark = _session(folder / "spark")
    try:
        for application in _SIDES:
            prepared.measured(spark, application)  # unmeasured: the JVM warms up
        runs: dict[stateside.App, list[Measured]] = {application: [] for application in _SIDES}
        for number in range(ROUNDS):
            for application in _SIDES if number % 2 == 0 else reversed(_SIDES):
                runs[application].append(prepared.measured(spark, application))
        rated, plain, unique = ([run.speed for run in runs[application]] for application in _SIDES)
        rated_cpu, plain_cpu, unique_cpu = ([run.speed_cpu for run in runs[application]] for application in _SIDES)
        name = f"events rated and folded, of {CUSTOMERS:,} customers"
        yield Result(name, "events/s", rated, plain, "billing", "the bare aggregation", rated_cpu, plain_cpu)
        yield Figure("de-duplication of a million events", "s", _more_s(unique, rated))
        yield Figure("de-duplication of a million events, processor's time", "s", _more_s(unique_cpu, rated_cpu))
        yield Figure("its changelogs, of a million events", "MB", runs[app][-1].bytes_per_event)
        yield from sealing(spark, prepared, folder)
    finally:
        stop_session(spark)


def _more_s(speeds: list[float], speeds_without: list[float]) -> float:
    """How many seconds more a million events take, in the median of the rounds."""
    pairs = zip(speeds, speeds_without, strict=True)
    return statistics.median(1_000_000 * (1 / with_it - 1 / without) for with_it, without in pairs)


class Measured:
    """What a run over the prepared journal took, once the state was filled."""

    def __init__(self, layout: Layout, begin: int, processor_s: float) -> None:
        batches = [each for each in read_progress(layout.view("bill").progress) if _start(each) >= begin]
        events = sum(each["numInputRows"] for each in batches)
        self.speed = 1_000 * events / sum(each["durationMs"]["triggerExecution"] for each in batches)
        self.speed_cpu = events / processor_s
        removal = layout.view("bill").checkpoint / "state" / "1"
        written = sum(file.stat().st_size for file in removal.rglob("*.changelog"))
        self.bytes_per_event = written / (CUSTOMERS + EVENTS)


class Prepared:
    """A journal with a plan, the customers, one event of each to fill the state, and the events to be measured."""

    def __init__(self, folder: Path) -> None:
        self.layout = Layout(folder)
        self._random = np.random.default_rng(1)
        with JournalWriter(self.layout.journal, clock=ManualClock(PLAN.effective_us - DAY_US)) as writer:
            writer.append([plan_event(PLAN, "plan", PLAN.effective_us - DAY_US)])
            for numbers in _parts(np.arange(CUSTOMERS)):
                writer.append_batch(_assignments(numbers))
            for numbers in _parts(np.arange(CUSTOMERS)):
                writer.append_batch(self._usage(numbers, numbers))
            # The plan is an event too: with the last of these, and one less of those to come, batches are all full.
            self.begin = int(writer.end["0"]) - 1
            for numbers in _parts(np.arange(EVENTS - 1)):
                writer.append_batch(self._usage(numbers, self._random.integers(0, CUSTOMERS, len(numbers))))
        keeper = BookKeeper(FileLog(self.layout.journal), folder / "book")
        keeper.at(self.begin)
        keeper.save(now=True)

    def new(self, folder: Path) -> Layout:
        """A folder in which nothing has run, over a link to the journal, with the book at hand."""
        layout = Layout(folder)
        layout.view("bill").root.mkdir(parents=True)
        layout.journal.symlink_to(self.layout.journal)
        shutil.copytree(self.layout.root / "book", layout.view("bill").root / "book")
        return layout

    def measured(self, spark: SparkSession, application: stateside.App) -> Measured:
        """Run an application over the whole journal."""
        layout = self.new(self.layout.root.parent / f"run-{next(_numbers)}")
        watch = ProcessorWatch(lambda: _has_filled(layout, self.begin))
        with Runner(application, layout, _settings(), session=spark) as runner, watch:
            runner.run_to_end()
        measured = Measured(layout, self.begin, watch.used_s)
        shutil.rmtree(layout.root)
        return measured

    def _usage(self, numbers: np.ndarray, customers: np.ndarray) -> pa.RecordBatch:
        times_us = MONTH.start_us + (MONTH.end_us - MONTH.start_us - DAY_US) // EVENTS * (numbers % EVENTS)
        quantities = self._random.integers(1, 600, len(numbers)).astype(str)
        payloads = np.char.add(np.char.add('{"quantity":', quantities), "}")
        types = TYPES[self._random.integers(0, len(TYPES), len(numbers))]
        return _batch(self._ids(len(numbers)), customers, types, times_us, times_us, payloads)

    def _ids(self, count: int) -> np.ndarray:
        """Random ones, of a UUID's 32 digits: ids that count up would cost de-duplication too little."""
        return np.frombuffer(self._random.bytes(16 * count).hex().encode(), "S32").astype("U32")


def sealing(spark: SparkSession, prepared: Prepared, folder: Path) -> Iterator[Figure]:
    """A live system whose month ends: every customer's invoice, while events of the next month go on coming."""
    layout = prepared.new(folder / "sealing")
    layout.journal.unlink()
    shutil.copytree(prepared.layout.journal, layout.journal)
    feeding = threading.Event()
    with Runner(app_without_deduplication, layout, _settings(), session=spark) as runner:
        runner.run_to_end()
        live = _batches(layout)[-1] + 1
        feeder = threading.Thread(target=_feed, args=(layout, feeding))
        feeder.start()
        sealed = _sealed_batch(layout)
        time.sleep(5)
        feeding.set()
        feeder.join()
    took_s = {each["batchId"]: _took_s(each) for each in read_progress(layout.view("bill").progress)}
    yield Figure(f"sealing {CUSTOMERS:,} invoices", "s", took_s[sealed])
    commits = layout.view("bill").checkpoint / "commits"
    times_s = [(commits / str(batch)).stat().st_mtime for batch in _batches(layout) if batch >= live]
    gaps_s = [after - before for before, after in pairwise(times_s)]
    yield Figure("the longest time without a new batch of running bills", "s", max(gaps_s))


def _feed(layout: Layout, stop: threading.Event) -> None:
    """A few events of February every fifth of a second; after some of them the clock says that January is over."""
    for number in count():
        if stop.wait(0.2):
            return
        now_us = MONTH.end_us + HOUR_US + number * 200_000
        events: list[Event] = [usage(f"live-{number}", f"c{number % CUSTOMERS:07d}", "call", now_us, 60)]
        if number == 25:
            now_us = MONTH.end_us + GRACE_US
            events.append(clock_tick(now_us, "tick"))
        with JournalWriter(layout.journal, clock=ManualClock(now_us)) as writer:
            writer.append(events)


def _sealed_batch(layout: Layout) -> int:
    """Wait for the batch that seals January."""
    deadline = time.monotonic() + WAIT_S_MAX
    checkpoint = _checkpoint(layout)
    while time.monotonic() < deadline:
        for batch in _batches(layout)[-10:]:
            if checkpoint.plan(batch).watermark_us >= MONTH.end_us:
                return batch
        time.sleep(0.2)
    raise TimeoutError("the month was not sealed in time")


def _batches(layout: Layout) -> list[int]:
    return sorted(_checkpoint(layout).commits())


def _checkpoint(layout: Layout) -> Checkpoint:
    return Checkpoint(Storage.at(layout.view("bill").checkpoint))


def _session(folder: Path) -> SparkSession:
    return start_session("bench", folder, conf=_settings().spark_conf())


def _settings() -> RunSettings:
    cache = {"spark.sql.streaming.stateStore.rocksdb.blockCacheSizeMB": "512"}
    return RunSettings(events_per_batch_max=EVENTS_PER_BATCH, driver_memory="3g", spark=cache)


def _parts(numbers: np.ndarray) -> Iterator[np.ndarray]:
    for first in range(0, len(numbers), _ROWS_PER_APPEND):
        yield numbers[first : first + _ROWS_PER_APPEND]


def _assignments(numbers: np.ndarray) -> pa.RecordBatch:
    payload = f'{{"plan":"basic","effective_us":{PLAN.effective_us}}}'
    times_us = np.full(len(numbers), PLAN.effective_us - DAY_US)
    ids, payloads = np.char.add("a", numbers.astype(str)), np.full(len(numbers), payload)
    return _batch(ids, numbers, np.full(len(numbers), ASSIGN), times_us, times_us, payloads)


def _batch(ids: Any, customers: Any, types: Any, times_us: Any, appended_us: Any, payloads: Any) -> pa.RecordBatch:
    names = np.char.add("c", np.char.zfill(customers.astype(str), 7))
    times, appended = (pa.array(each).cast(GIVEN.field("time").type) for each in (times_us, appended_us))
    tags = pa.array([[]] * len(ids), GIVEN.field("tags").type)
    columns = [pa.array(ids), pa.array(names), pa.array(types), times, appended, tags, pa.array(payloads)]
    return pa.RecordBatch.from_arrays(columns, schema=GIVEN)


def _start(progress: dict[str, Any]) -> int:
    start = progress["sources"][0]["startOffset"]
    return int(start["0"]) if start else 0


def _has_filled(layout: Layout, begin: int) -> bool:
    """Whether the batches that fill the state are done."""
    progress = read_progress(layout.view("bill").progress)
    return any(int(each["sources"][0]["endOffset"]["0"]) >= begin for each in progress)


def _took_s(progress: dict[str, Any]) -> float:
    return float(progress["durationMs"]["triggerExecution"]) / 1_000
