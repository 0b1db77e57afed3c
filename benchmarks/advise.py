"""The advised configuration of a state (`stateside advise`) against the other store, on three workloads.

    10k keys hot       few keys, and a batch changes most of them
    1M keys uniform    a batch changes one key in a hundred, anywhere
    5M wide rows       the same with rows of 450 bytes: more than the caches hold

Each side is a process with a Spark of its own, so that no side has the other's heap to collect, and runs its batches
only while the other one waits. A ratio above 1 means that the advice was right. Sizes come from the environment:
STATESIDE_BENCH_HOT_KEYS, _UNIFORM_KEYS, _WIDE_KEYS (0: without this workload), _BATCHES (of a round) and _ROUNDS.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Semaphore
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.compare import Result, Side, compare
from stateside.ops.advise import Measured, advise
from stateside.ops.doctor import memory_bytes
from stateside.pipeline.session import start_session, stop_session
from stateside.pipeline.settings import RunSettings
from stateside.spark_state.provider import Provider

CORES = 2
FILLED = 250_000  # keys of a batch that fills the state
NUMBERS_BYTES = 40  # of a row: the key, and the sum with the head of its row
WARM_UP = 12  # batches, so that both sides are compiled


def size(name: str, default: int) -> int:
    return int(os.environ.get(f"STATESIDE_BENCH_{name}", default))


@dataclass(frozen=True)
class Workload:
    """A state of so many keys; each batch has so many events, on random keys, with a text of so many bytes in a row."""

    name: str
    keys: int
    events_per_batch: int
    text_bytes: int = 0

    def measured(self) -> Measured:
        """At a batch a second."""
        changed = min(self.keys, self.events_per_batch)
        row_bytes = NUMBERS_BYTES + self.text_bytes
        return Measured(self.keys, row_bytes, changed, memory_bytes(), CORES, updates_per_batch=changed)


def workloads() -> list[Workload]:
    hot, uniform, wide = size("HOT_KEYS", 10_000), size("UNIFORM_KEYS", 1_000_000), size("WIDE_KEYS", 5_000_000)
    found = [
        Workload(f"{hot:,} keys hot", hot, 2 * hot),
        Workload(f"{uniform:,} keys uniform", uniform, uniform // 100),
        Workload(f"{wide:,} wide rows", wide, wide // 100, text_bytes=400),
    ]
    return [workload for workload in found if workload.keys]


def run(folder: Path) -> Iterator[Result]:
    for number, workload in enumerate(workloads()):
        advised = Provider.HDFS if advise(workload.measured()).in_memory else Provider.ROCKSDB
        other = Provider.ROCKSDB if advised is Provider.HDFS else Provider.HDFS
        with (
            _side(workload, advised, folder / f"{number}-advised") as ours,
            _side(workload, other, folder / f"{number}-other") as peer,
        ):
            title = f"{workload.name}, {workload.events_per_batch:,} events a batch"
            yield compare(title, "events/s", ours, peer, size("ROUNDS", 5))


@contextmanager
def _side(workload: Workload, store: Provider, folder: Path) -> Iterator[Side]:
    """A process whose state is filled, and that runs some batches on demand."""
    context = get_context("spawn")
    here, there = context.Pipe()
    settings = advise(workload.measured(), store).settings()
    process = context.Process(target=serve, args=(there, workload, settings, folder))
    process.start()
    there.close()
    assert here.recv() == "filled"

    def work() -> int:
        here.send(size("BATCHES", 4))
        return int(here.recv())

    try:
        yield Side("in memory" if store is Provider.HDFS else "RocksDB", work, others_do_it=True)
    finally:
        here.close()
        process.join()


def serve(orders: Connection, workload: Workload, settings: dict[str, Any], folder: Path) -> None:
    """Fill the state, then run as many batches as each order says, until the connection ends."""
    conf = RunSettings.of(("advised", settings)).spark_conf()
    spark = start_session("bench", folder / "spark", master=f"local[{CORES}]", conf=conf)
    try:
        keys_per_batch = min(FILLED, workload.keys)
        with gated(spark, workload, folder, keys_per_batch) as filling:
            filling.run(-(-workload.keys // keys_per_batch))
        with gated(spark, workload, folder, workload.events_per_batch) as gate, suppress(EOFError):
            gate.run(WARM_UP)
            orders.send("filled")
            while True:
                batches = orders.recv()
                gate.run(batches)
                orders.send(batches * workload.events_per_batch)
    finally:
        stop_session(spark)


class Gate:
    """Holds a query after each batch until the next one is ordered."""

    def __init__(self) -> None:
        self._ordered, self._done, self._open = Semaphore(0), Semaphore(0), False

    def __call__(self, rows: DataFrame, _: int) -> None:
        if not self._open:
            self._ordered.acquire()
        rows.write.format("noop").mode("append").save()
        self._done.release()

    def run(self, batches: int) -> None:
        for _ in range(batches):
            self._ordered.release()
            self._done.acquire()

    def open(self) -> None:
        self._open = True
        self._ordered.release()


@contextmanager
def gated(spark: SparkSession, workload: Workload, folder: Path, rows_per_batch: int) -> Iterator[Gate]:
    gate = Gate()
    writer = totals(spark, workload, rows_per_batch).writeStream.outputMode("update").foreachBatch(gate)
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).start()
    try:
        yield gate
    finally:
        gate.open()
        _stop(query)


def _stop(query: StreamingQuery) -> None:
    while query.isActive:
        with suppress(PySparkException):  # the batch that is running may take longer than Spark waits for it
            query.stop()


def totals(spark: SparkSession, workload: Workload, rows_per_batch: int) -> DataFrame:
    """A sum by key: first of every key in order, then of random ones."""
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows_per_batch)
    events = source.option("numPartitions", CORES).load()
    anywhere = F.pmod(F.xxhash64("value"), F.lit(workload.keys))
    key = F.when(F.col("value") < workload.keys, F.col("value")).otherwise(anywhere)
    text = F.rpad(F.col("value").cast("string"), workload.text_bytes, "x")
    sums = [F.sum("value").alias("total"), *([F.max(text).alias("text")] if workload.text_bytes else [])]
    return events.groupBy(key.alias("key")).agg(*sums)
