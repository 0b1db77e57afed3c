"""How long after Spark's commit a reader has the batch, with the tail in a process of its own.

Spark's part is played: files of the real format, laid down as Spark does, the commit last.
"""

from __future__ import annotations

import multiprocessing
import random
import statistics
import time
from collections.abc import Iterator
from multiprocessing.synchronize import Event
from pathlib import Path

import numpy as np

from benchmarks.compare import Figure
from benchmarks.played_spark import PlayedSpark
from stateside.core.layout import ViewLayout
from stateside.replica.store import ReplicaReader
from stateside.replica.tail import Tail

BATCHES = 300
ROWS = 1_000
ACCOUNTS = 100_000
GAP_S_MAX = 0.1
WAIT_S_MAX = 30.0


def run(folder: Path) -> Iterator[Figure]:
    layout = ViewLayout(folder / "bench")
    spark, chance, context = PlayedSpark(layout), random.Random(1), multiprocessing.get_context("spawn")
    numbers = np.random.default_rng(1)
    stop = context.Event()
    process = context.Process(target=follow, args=(layout.root, stop))
    process.start()
    reader = _reader(layout, spark)
    waits_ms = []
    for _ in range(BATCHES):
        changelogs = spark.changelogs(np.unique(numbers.integers(0, ACCOUNTS, ROWS)))
        time.sleep(chance.random() * GAP_S_MAX)
        spark.commit(changelogs)
        waits_ms.append(1_000 * _wait(reader, spark.batch))
    stop.set()
    process.join()
    reader.close()
    name = f"visible after the commit of {ROWS:,} changed rows"
    for label, share in (("p50", 50), ("p99", 99)):
        yield Figure(f"{name}, {label}", "ms", statistics.quantiles(waits_ms, n=100)[share - 1])


def follow(root: Path, stop: Event) -> None:
    """Tail the checkpoint, in a process of its own."""
    Tail(ViewLayout(root)).run(stop)  # type: ignore[arg-type]  # it has what the tail needs of threading's


def _reader(layout: ViewLayout, spark: PlayedSpark) -> ReplicaReader:
    spark.commit(spark.changelogs(np.arange(ACCOUNTS)))
    while True:
        try:
            reader = ReplicaReader(layout.replica)
        except FileNotFoundError:
            time.sleep(0.01)
            continue
        _wait(reader, spark.batch)
        return reader


def _wait(reader: ReplicaReader, batch: int) -> float:
    """Seconds until a reader has the batch."""
    began_s = time.perf_counter()
    while time.perf_counter() - began_s < WAIT_S_MAX:
        with reader.snapshot() as snapshot:
            found = snapshot.batch()
        if found is not None and found.batch >= batch:
            return time.perf_counter() - began_s
        time.sleep(0.000_5)
    raise TimeoutError(f"batch {batch} was not visible after {WAIT_S_MAX} s")
