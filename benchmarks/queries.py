"""What queries take: all ids of a million entities, an entity's replay, and how fast views follow."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from benchmarks.compare import Figure, Result, Side, compare
from stateside.journal import Event, JournalWriter
from stateside.journal.backends.files.file_journal import FileJournal
from stateside.journal.columns import decode, encode
from stateside.journal.queries import Queries, QueryViews

ENTITIES = 1_000_000
REPLAYED = 10_000
APPEND_EVENTS = 10_000

LISTING = """
import sys, time
from pathlib import Path
from stateside.journal.queries import Queries, QueryViews
from stateside.journal.backends.files.file_journal import FileJournal
stream = FileJournal(Path(sys.argv[1]) / "journal")
views = QueryViews(stream, Path(sys.argv[1]) / sys.argv[2])
queries = Queries(stream, views)
def own_kib():
    with open("/proc/self/smaps_rollup") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("Anonymous:"))
before_kib, peak_kib, began = own_kib(), 0, time.perf_counter()
for count, _ in enumerate(queries.entities().current(), 1):
    if count % 20_000 == 0:
        peak_kib = max(peak_kib, own_kib())
print(count, time.perf_counter() - began, peak_kib / 1024, before_kib / 1024)
"""


def run(folder: Path) -> Iterator[Result | Figure]:
    yield from _listing(folder / "many")
    for appended, others in ((1, 0), (10, 0), (10, 90)):
        yield from _replay(folder / f"replay-{appended}-{others}", appended, others)


def _listing(folder: Path) -> Iterator[Result | Figure]:
    with JournalWriter(folder / "journal", durability="written") as writer:
        for first in range(0, ENTITIES, APPEND_EVENTS):
            numbers = range(first, first + APPEND_EVENTS)
            writer.append([Event(f"e{n}", f"customer-{n:07}", "call", n, {"seconds": 61}) for n in numbers])
    stream = FileJournal(folder / "journal")
    with QueryViews(stream, folder / "views") as views:
        began = time.perf_counter()
        views.rebuild()
        yield Figure(f"views made of {ENTITIES:,} entities", "events/s", ENTITIES / (time.perf_counter() - began))
    for name, where in (("by the views", "views"), ("without views", "none")):
        command = [sys.executable, "-c", LISTING, str(folder), where]
        count, took_s, peak_mib, before_mib = map(float, subprocess.check_output(command, text=True).split())
        assert count == ENTITIES
        yield Figure(f"all ids of {ENTITIES:,} entities {name}", "ids/s", count / took_s)
        yield Figure(f"    its peak of memory of its own, of which {before_mib:.0f} MiB before", "MiB", peak_mib)


def _replay(folder: Path, appended: int, others: int) -> Iterator[Result | Figure]:
    with JournalWriter(folder / "journal", durability="written") as writer:
        for first in range(0, REPLAYED, appended):
            mine = [_event(n, "emma") for n in range(first, first + appended)]
            writer.append([*mine, *(_event(first * others + n, f"c{n}", "o") for n in range(others))])
    stream = FileJournal(folder / "journal")
    batch = encode([_event(n, "emma") for n in range(REPLAYED)], 0)
    with QueryViews(stream, folder / "views") as views:
        views.follow()

        def replay() -> int:
            return sum(1 for _ in Queries(FileJournal(folder / "journal"), views).entity("emma").current())

        def bare() -> int:
            return sum(1 for _ in decode(pa.RecordBatch.from_arrays(batch.columns, schema=batch.schema)))

        others_text = f" beside {others} of others" if others else ""
        result = compare(
            f"replay of {REPLAYED:,} events, appended {appended} at a time{others_text}",
            "events/s",
            Side("query", replay),
            Side("decoding them alone", bare),
        )
        yield result
        yield Figure("    median", "ms", 1_000 * REPLAYED / sorted(result.ours)[len(result.ours) // 2])


def _event(number: int, entity: str, prefix: str = "e") -> Event:
    payload = {"amount_micros": number, "seconds": 61}
    return Event(f"{prefix}{number}", entity, "call", 1_760_000_000_000_000 + number, payload, ("roaming",))
