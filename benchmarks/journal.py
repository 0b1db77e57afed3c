"""How much of what the disk can do is left after the journal's checks, encoding and marks."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

from benchmarks.compare import ROUNDS, Result, Side, compare
from stateside.journal import Event, FileLog, JournalWriter

EVENTS = 1_000
APPENDS = 20
APPENDERS = 64  # threads, each with one event at a time
TURNS = 20


def run(folder: Path) -> Iterator[Result]:
    events = (_events(number) for number in count())
    made = iter([next(events) for _ in range(APPENDS * (ROUNDS + 2))])  # beforehand: making them takes longer
    with JournalWriter(folder / "journal") as writer:

        def append() -> int:
            for _ in range(APPENDS):
                writer.append(next(made))
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
    yield _concurrent(folder, "concurrent", lambda writer, events: writer.append(events))
    yield _concurrent(folder, "on conditions", _append_to)
    yield _reading(folder)


def _events(number: int) -> list[Event]:
    ids = range(number * EVENTS, (number + 1) * EVENTS)
    return [Event(f"e{i}", f"c{i % 97}", "call", 1_760_000_000_000_000 + i, {"amount_micros": i}) for i in ids]


def _append_to(writer: JournalWriter, events: list[Event]) -> None:
    writer.append_to(events[0].entity, events)


def _concurrent(folder: Path, name: str, append: Callable[[JournalWriter, list[Event]], object]) -> Result:
    """Single durable appends of many threads, against the least that any group commit in Python has to do."""
    handle = os.open(folder / "bare-group", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    bare, record = BareGroup(handle), b"x" * 150
    names = [f"{thread}-{turn}" for thread in range(APPENDERS) for turn in range(TURNS * (ROUNDS + 1))]
    made = iter([[Event(each, each.partition("-")[0], "call", 1_760_000_000_000_000, {"amount": 5})] for each in names])
    with JournalWriter(folder / name) as writer, ThreadPoolExecutor(APPENDERS) as pool:

        def journal_thread(_: int) -> None:
            for _ in range(TURNS):
                append(writer, next(made))

        def bare_thread(_: int) -> None:
            for _ in range(TURNS):
                bare.append(record)

        def all_of(thread: Callable[[int], None]) -> int:
            list(pool.map(thread, range(APPENDERS)))
            return APPENDERS * TURNS

        sides = Side("journal", lambda: all_of(journal_thread)), Side("bare group commit", lambda: all_of(bare_thread))
        result = compare(f"single durable appends of {APPENDERS} threads, {name}", "events/s", *sides)
    os.close(handle)
    return result


class BareGroup:
    """Whoever leads writes and syncs the bytes of all that wait; the first of those who came meanwhile leads next."""

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._line: list[tuple[bytes, threading.Lock]] = []
        self._led = False
        self._changing = threading.Lock()

    def append(self, record: bytes) -> None:
        gate = threading.Lock()
        gate.acquire()
        with self._changing:
            self._line.append((record, gate))
            leads, self._led = not self._led, True
        if not leads:
            gate.acquire()
        with self._changing:
            if not self._line or self._line[0][1] is not gate:
                return
            line, self._line = self._line, []
        os.write(self._handle, b"".join(record for record, _ in line))
        os.fdatasync(self._handle)
        for _, other in line[1:]:
            other.release()
        with self._changing:
            self._led = bool(self._line)
            if self._line:
                self._line[0][1].release()


def _reading(folder: Path) -> Result:
    journal = FileLog(folder / "journal")
    end = journal.end()["0"]
    paths = sorted((folder / "journal").glob("*.segment"))

    def read() -> int:
        return sum(batch.num_rows for _, batch in journal.batches(0, end))

    def bare() -> int:
        return end if all(path.read_bytes() for path in paths) else 0

    return compare("reading all events as Arrow", "events/s", Side("journal", read), Side("bare file read", bare))
