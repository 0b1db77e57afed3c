"""What history costs, what reading as of an older batch costs, and how soon a batch is visible after its commit."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.compare import Result, Side, compare
from stateside.layout import Layout
from stateside.positions import Position
from stateside.replica.history import Keep
from stateside.replica.keys import KeyCodec
from stateside.replica.store import AppliedBatch, ReplicaReader, ReplicaWriter
from tests.replica.spark_job import Job

ROWS = 1_000_000
CHANGED = 200_000
PAST_BATCHES, PAST_CHANGED = 1_000, 1_000
COMMITS, COMMIT_ROWS, COMMIT_PAUSE_S = 200, 1_000, 0.1
_ROW = struct.Struct("<qqqqqq")


@dataclass(frozen=True)
class Latencies:
    """How long something took, many times over."""

    name: str
    seconds: list[float]

    def _ms(self, share: float) -> float:
        return round(1_000 * sorted(self.seconds)[min(int(share * len(self.seconds)), len(self.seconds) - 1)], 2)

    def as_dict(self) -> dict[str, Any]:
        return {"name": self.name, "unit": "ms", "p50": self._ms(0.5), "p99": self._ms(0.99), "max": self._ms(1)}

    def __str__(self) -> str:
        return f"{self.name}: p50 {self._ms(0.5)} ms, p99 {self._ms(0.99)} ms, of {len(self.seconds)}"


def run(folder: Path) -> Iterator[Result | Latencies]:
    yield _history(folder)
    yield from _as_of(folder)
    yield from _visible(folder)


def _keys() -> list[bytes]:
    codec = KeyCodec(["string", "timestamp", "string"])
    return [codec.encode([f"c{n:07d}", 1_770_000_000_000_000, "call"]) for n in range(ROWS)]


def _batch(number: int) -> AppliedBatch:
    return AppliedBatch("q", number, Position.start(), 0, 0)


def _history(folder: Path) -> Result:
    keys, draw = _keys(), random.Random(1)

    def side(name: str, keep: Keep) -> Side:
        writer, numbers = ReplicaWriter(folder / name, keep=keep), count(1)
        writer.apply(_batch(0), [(key, bytes(_ROW.size)) for key in keys])
        drawn = [[(key, _ROW.pack(*range(n, n + 6))) for key in draw.sample(keys, CHANGED)] for n in range(3)]

        def apply() -> int:
            number = next(numbers)
            writer.apply(_batch(number), drawn[number % len(drawn)])
            return CHANGED

        return Side(name, apply)

    sides = side("with history", Keep()), side("without", Keep(seconds=0))
    return compare(f"batches of {CHANGED:,} changed rows of {ROWS:,}", "rows/s", *sides)


def _as_of(folder: Path) -> Iterator[Latencies]:
    """A batch that many later ones lie upon, each with some of the rows."""
    writer, keys, draw = ReplicaWriter(folder / "past"), _keys()[:100_000], random.Random(2)
    writer.apply(_batch(0), [(key, bytes(_ROW.size)) for key in keys])
    for number in range(1, PAST_BATCHES + 1):
        row = _ROW.pack(*range(number, number + 6))
        writer.apply(_batch(number), [(key, row) for key in draw.sample(keys, PAST_CHANGED)])
    writer.close()
    reader = ReplicaReader(folder / "past")
    for back in (None, 0, PAST_BATCHES // 10, PAST_BATCHES):
        as_of = None if back is None else PAST_BATCHES - back
        gets, pages = [], []
        for key in draw.sample(keys, 100):
            begun_s = time.perf_counter()
            with reader.snapshot(as_of) as snapshot:
                assert snapshot.batch() and snapshot.get(key)
            gets.append(time.perf_counter() - begun_s)
        for at in range(0, len(keys) - 1_000, 10_000):
            begun_s = time.perf_counter()
            with reader.snapshot(as_of) as snapshot:
                assert len(list(snapshot.between(keys[at], keys[at + 1_000]))) == 1_000
            pages.append(time.perf_counter() - begun_s)
        name = "the newest batch" if back is None else f"as of {back} batches of {PAST_CHANGED:,} rows ago"
        yield Latencies(f"a lookup, {name}", gets)
        yield Latencies(f"a page of 1,000 rows, {name}", pages)
    reader.close()


_FOLLOW = """
import sys, threading
from pathlib import Path
from stateside.layout import ViewLayout
from stateside.replica.tail import Tail
tail, stop = Tail(ViewLayout(Path(sys.argv[1]))), threading.Event()
if sys.argv[2] == "polled":
    tail._folders = list
thread = threading.Thread(target=tail.run, args=(stop,))
thread.start()
print("open", flush=True)
sys.stdin.read()
stop.set()
thread.join()
"""


def _visible(folder: Path) -> Iterator[Latencies]:
    """From the rename of `commits/N` to the first snapshot in another process that has batch N."""
    for how in ("told by the file system", "polled"):
        job = Job(Layout(folder / how).view("spending"))
        command = [sys.executable, "-c", _FOLLOW, str(job.view.root), how]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            process.stdout.readline()
            reader, draw = ReplicaReader(job.view.replica), random.Random(3)
            seconds = [_seconds_until_visible(job, reader, draw) for _ in range(COMMITS)]
            process.communicate()
        reader.close()
        yield Latencies(f"batches of {COMMIT_ROWS:,} rows, visible after their commit, {how}", seconds)


def _seconds_until_visible(job: Job, reader: ReplicaReader, draw: random.Random) -> float:
    number = job.batch
    job.plan()
    job.store({(f"customer {row}", "de"): (number + 1, row) for row in range(COMMIT_ROWS)})
    time.sleep(COMMIT_PAUSE_S * (0.5 + draw.random()))
    job.commit()
    begun_s = time.perf_counter()
    while True:
        with reader.snapshot() as snapshot:
            batch = snapshot.batch()
        if batch is not None and batch.batch >= number:
            return time.perf_counter() - begun_s
        time.sleep(0.0005)
