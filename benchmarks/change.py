"""Changing an application: a backfill against the streaming run, the bytes and seconds of rescales and savepoints."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from benchmarks import app as bench
from benchmarks.compare import Figure, Result, Side, compare
from stateside.core.clock import SystemClock
from stateside.core.layout import Layout
from stateside.core.storage import size_of
from stateside.ops.restore import parts_of, restore
from stateside.pipeline.apply import AT_FULL_SPEED
from stateside.pipeline.rescale import rescale
from stateside.pipeline.runner import Runner
from stateside.pipeline.settings import RunSettings
from stateside.testing import session
from stateside.views.savepoint import Savepoint, take

EVENTS = int(os.environ.get("STATESIDE_BENCH_EVENTS", 4_000_000))
KEYS = int(os.environ.get("STATESIDE_BENCH_KEYS", 1_000_000))
MORE = 10_000  # events between two savepoints
ROUNDS = 3


def run(folder: Path) -> Iterator[Result | Figure]:
    bench.KEYS = KEYS
    bench.fill(folder / "journal", EVENTS)
    with session(folder / "spark") as spark:
        backfill = Side("backfill", lambda: _folded(spark, folder, {**AT_FULL_SPEED}), others_do_it=True)
        stream = Side("streaming run", lambda: _folded(spark, folder, {"events_per_batch_max": 100_000}), True)
        yield compare(f"{EVENTS:,} events over {KEYS:,} keys", "events/s", backfill, stream, ROUNDS)
        yield from _savepoints(spark, folder)


def _savepoints(spark: SparkSession, folder: Path) -> Iterator[Figure]:
    layout = _new_folder(folder)
    bench.fill(layout.journal, KEYS)
    _run(spark, layout, RunSettings())
    first, took_s = _taken(layout)
    yield Figure(f"a savepoint of {KEYS:,} keys", "MB", first.bytes / 1e6)
    yield Figure("the savepoint", "ms", 1_000 * took_s)
    bench.fill(layout.journal, MORE, KEYS)
    _run(spark, layout, RunSettings())
    second, took_s = _taken(layout)
    new = {path.stat().st_ino: path.stat().st_size for path in second.folder.rglob("*") if path.is_file()}
    for path in first.folder.rglob("*"):
        new.pop(path.stat().st_ino, None)
    yield Figure(f"the next one, {MORE:,} events later: new files", "MB", sum(new.values()) / 1e6)
    yield Figure("the next one", "ms", 1_000 * took_s)
    began_s = time.monotonic()
    restore(layout, parts_of(layout, first.name, [layout.view("total")]))
    yield Figure("a restore of the first one", "ms", 1_000 * (time.monotonic() - began_s))
    for partitions in (16, 4):
        began_s = time.monotonic()
        (made,) = rescale(layout.root, partitions, session=spark)
        yield Figure(f"rescale to {partitions} partitions", "rows/s", made.rows / (time.monotonic() - began_s))
    yield Figure("the state's checkpoint after it", "MB", size_of(layout.view("total").checkpoint) / 1e6)


def _folded(spark: SparkSession, folder: Path, settings: dict[str, Any]) -> int:
    layout = _new_folder(folder)
    layout.journal.symlink_to(folder / "journal")
    _run(spark, layout, replace(RunSettings(), **settings))
    return EVENTS


def _run(spark: SparkSession, layout: Layout, settings: RunSettings) -> None:
    with Runner(bench.app, layout, settings, session=spark) as runner:
        runner.run_to_end()


def _taken(layout: Layout) -> tuple[Savepoint, float]:
    began_s = time.monotonic()
    made = take(layout.view("total"), SystemClock().now_us())
    return made, time.monotonic() - began_s


def _new_folder(folder: Path) -> Layout:
    layout = Layout(bench._new(folder))
    layout.root.mkdir()
    return layout
