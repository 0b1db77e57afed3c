"""What history costs a batch, in time and on disk, and what reading as of an older batch costs."""

from __future__ import annotations

import random
import statistics
import struct
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

from benchmarks.compare import Figure, Result, Side, compare
from stateside.core.positions import Position
from stateside.replica.history import Keep
from stateside.replica.keys import KeyCodec
from stateside.replica.store import AppliedBatch, ReplicaReader, ReplicaWriter, Snapshot

ROWS, CHANGED = 1_000_000, 200_000
PAST_ROWS, PAST_BATCHES, PAST_CHANGED = 100_000, 1_000, 1_000
PAGE_ROWS = 1_000
LOOKS = 50
_ROW = struct.Struct("<qqqqqq")


def run(folder: Path) -> Iterator[Result | Figure]:
    keys = _keys(ROWS)
    yield compare(
        f"batches of {CHANGED:,} changed rows of {ROWS:,}",
        "rows/s",
        _side(folder, "with history", Keep(), keys),
        _side(folder, "without", Keep(seconds=0), keys),
    )
    yield from _past(folder, keys[:PAST_ROWS])


def _keys(rows: int) -> list[bytes]:
    codec = KeyCodec(["string", "timestamp", "string"])
    return [codec.encode([f"c{n:07d}", 1_770_000_000_000_000, "call"]) for n in range(rows)]


def _batch(number: int) -> AppliedBatch:
    return AppliedBatch("q", number, Position.start(), 0, 0)


def _side(folder: Path, name: str, keep: Keep, keys: list[bytes]) -> Side:
    writer, numbers, draw = ReplicaWriter(folder / name, keep=keep), count(1), random.Random(1)
    writer.apply(_batch(0), [(key, bytes(_ROW.size)) for key in keys])
    drawn = [[(key, _ROW.pack(*range(n, n + 6))) for key in draw.sample(keys, CHANGED)] for n in range(3)]

    def apply() -> int:
        number = next(numbers)
        writer.apply(_batch(number), drawn[number % len(drawn)])
        return CHANGED

    return Side(name, apply)


def _past(folder: Path, keys: list[bytes]) -> Iterator[Figure]:
    """Batches with some of the rows each, and how long it takes to look through them."""
    sizes = [_filled(folder / name, keep, keys) for name, keep in (("past", Keep()), ("no past", Keep(seconds=0)))]
    yield Figure("history on disk, a changed row", "bytes", (sizes[0] - sizes[1]) / (PAST_BATCHES * PAST_CHANGED))
    reader = ReplicaReader(folder / "past")
    for back in (0, PAST_BATCHES // 100, PAST_BATCHES // 10, PAST_BATCHES):
        ago = f"as of {back:,} batches of {PAST_CHANGED:,} rows ago"
        yield Figure(f"a lookup {ago}", "ms", _median_ms(reader, PAST_BATCHES - back, keys, _look_up))
        yield Figure(f"{PAGE_ROWS:,} rows {ago}", "ms", _median_ms(reader, PAST_BATCHES - back, keys, _look_through))
    reader.close()


def _filled(folder: Path, keep: Keep, keys: list[bytes]) -> int:
    """The size of a replica with many batches applied."""
    writer, draw = ReplicaWriter(folder, keep=keep), random.Random(2)
    writer.apply(_batch(0), [(key, bytes(_ROW.size)) for key in keys])
    for number in range(1, PAST_BATCHES + 1):
        row = _ROW.pack(*range(number, number + 6))
        writer.apply(_batch(number), [(key, row) for key in draw.sample(keys, PAST_CHANGED)])
    writer.close()
    return (folder / "data.mdb").stat().st_size


def _median_ms(
    reader: ReplicaReader, as_of: int, keys: list[bytes], look: Callable[[Snapshot, list[bytes], int], None]
) -> float:
    draw, took_ms = random.Random(3), []
    for _ in range(LOOKS):
        at, begun_s = draw.randrange(len(keys) - PAGE_ROWS), time.perf_counter()
        with reader.snapshot(as_of) as snapshot:
            look(snapshot, keys, at)
        took_ms.append(1_000 * (time.perf_counter() - begun_s))
    return statistics.median(took_ms)


def _look_up(snapshot: Snapshot, keys: list[bytes], at: int) -> None:
    assert snapshot.get(keys[at]) is not None


def _look_through(snapshot: Snapshot, keys: list[bytes], at: int) -> None:
    assert len(list(snapshot.between(keys[at], keys[at + PAGE_ROWS]))) == PAGE_ROWS
