"""How much of what the disk can do is left after the journal's checks, encoding and marks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from benchmarks.compare import Result, Side, compare
from stateside.journal import Event, Journal, JournalWriter

EVENTS = 1_000
APPENDS = 20


def run(folder: Path) -> Iterator[Result]:
    numbers = count()
    with JournalWriter(folder / "journal") as writer:

        def append() -> int:
            for _ in range(APPENDS):
                writer.append(
                    [
                        Event(
                            f"e{next(numbers)}", f"c{i % 97}", "call", 1_760_000_000_000_000 + i, {"amount_micros": i}
                        )
                        for i in range(EVENTS)
                    ]
                )
            return EVENTS * APPENDS

        append()
        frame = b"x" * (sum(path.stat().st_size for path in (folder / "journal").glob("*.segment")) // APPENDS)
        handle = os.open(folder / "bare", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

        def bare() -> int:
            for _ in range(APPENDS):
                os.write(handle, frame)
                os.fdatasync(handle)
            return EVENTS * APPENDS

        name = f"durable appends of {EVENTS:,} events"
        yield compare(name, "events/s", Side("journal", append), Side("bare write + fdatasync", bare))
        os.close(handle)
    yield _reading(folder)


def _reading(folder: Path) -> Result:
    journal = Journal(folder / "journal")
    end = journal.end()["0"]
    paths = sorted((folder / "journal").glob("*.segment"))

    def read() -> int:
        return sum(batch.num_rows for _, batch in journal.batches(0, end))

    def bare() -> int:
        return end if all(path.read_bytes() for path in paths) else 0

    return compare("reading all events as Arrow", "events/s", Side("journal", read), Side("bare file read", bare))
