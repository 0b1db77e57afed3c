"""The App against the same query by hand: throughput, the floor of small batches, the time to a first answer."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import stateside
from benchmarks.compare import Result, Side, compare
from stateside.core.errors import StatesideError
from stateside.core.layout import Layout
from stateside.core.processes import Child, free_port
from stateside.journal import Event, JournalWriter
from stateside.pipeline.journal_source import FORMAT
from stateside.pipeline.runner import Runner
from stateside.pipeline.settings import RunSettings
from stateside.serving.clients import Client
from stateside.testing import session

EVENTS = 2_000_000
KEYS = 50_000
EVENTS_PER_BATCH = 200_000
SMALL_BATCHES = 40
FIELDS = "amount long"
_numbers = count()

app = stateside.App("bench", fields=FIELDS)


@app.view(key=["entity"])
def total(events: DataFrame) -> DataFrame:
    return events.groupBy("entity").agg(F.sum("amount").alias("total"), F.count("*").alias("orders"))


def run(folder: Path) -> Iterator[Result]:
    large, small = folder / "large", folder / "small"
    fill(large, EVENTS)
    fill(small, SMALL_BATCHES)
    with session(folder / "spark") as spark:
        yield compare(
            f"a journal of {EVENTS:,} events through a view",
            "events/s",
            *_sides(spark, large, folder, EVENTS_PER_BATCH),
        )
        floor = compare("batches of one event", "batches/s", *_sides(spark, small, folder, 1))
        yield floor
    ours, peer = Side("run, serve, get", first_answer, True), Side("by hand", by_hand, True)
    yield compare("starts to a first answer", "starts/s", ours, peer)


def _sides(spark: SparkSession, journal: Path, folder: Path, events_per_batch: int) -> tuple[Side, Side]:
    units = EVENTS if events_per_batch > 1 else SMALL_BATCHES
    settings = RunSettings(events_per_batch_max=events_per_batch)

    def ours() -> int:
        layout = Layout(_new(folder))
        layout.root.mkdir()
        layout.journal.symlink_to(journal)
        with Runner(app, layout, settings, session=spark) as runner:
            runner.run_to_end()
        return units

    def peer() -> int:
        query = plain(spark, journal, _new(folder), events_per_batch)
        query.processAllAvailable()
        query.stop()
        return units

    return Side("App", ours, others_do_it=True), Side("the same query by hand", peer, others_do_it=True)


def plain(spark: SparkSession, journal: Path, folder: Path, events_per_batch: int) -> Any:
    events = spark.readStream.format(FORMAT).option("path", str(journal)).option("fields", FIELDS)
    grouped = total(events.option("eventsPerBatchMax", str(events_per_batch)).load())
    writer = grouped.writeStream.outputMode("update").format("noop")
    return writer.option("checkpointLocation", str(folder / "checkpoint")).start()


def fill(folder: Path, events: int, first_event: int = 0) -> None:
    end = first_event + events
    with JournalWriter(folder) as writer:
        for first in range(first_event, end, 10_000):
            last = min(first + 10_000, end)
            writer.append(
                [Event(f"e{n}", f"k{n * 7919 % KEYS}", "order", 0, {"amount": n}) for n in range(first, last)]
            )


def first_answer() -> int:
    """Whole processes, from nothing to the first answer over HTTP."""
    with tempfile.TemporaryDirectory(prefix="stateside-bench-") as name:
        folder, port = Path(name), free_port()
        fill(folder / "journal", 1)
        stateside_command = [sys.executable, "-m", "stateside"]
        children = [
            Child([*stateside_command, "run", "benchmarks.app:app", "--dir", name], folder / "run.log"),
            Child([*stateside_command, "serve", "--dir", name, "--port", str(port)], folder / "serve.log"),
        ]
        try:
            _until(lambda: _asked(port))
        finally:
            for child in reversed(children):
                child.stop()
    return 1


def by_hand() -> int:
    """The same query in a script of its own, up to its first committed batch."""
    with tempfile.TemporaryDirectory(prefix="stateside-bench-") as name:
        fill(Path(name) / "journal", 1)
        subprocess.run([sys.executable, "-m", "benchmarks.app", name], check=True)
    return 1


def _asked(port: int) -> bool:
    with suppress(StatesideError), Client(f"http://127.0.0.1:{port}", direct=True) as client:
        return bool(client.rows("total", "k0").rows)
    return False


def _until(condition: Callable[[], bool], wait_s: float = 120.0) -> None:
    deadline = time.monotonic() + wait_s
    while not condition():
        assert time.monotonic() < deadline, "no answer in time"
        time.sleep(0.05)


def _new(folder: Path) -> Path:
    return folder / f"run-{next(_numbers)}"


if __name__ == "__main__":
    here = Path(sys.argv[1])
    with session(here / "spark") as spark:
        query = plain(spark, here / "journal", here, 1)
        query.processAllAvailable()
        query.stop()
