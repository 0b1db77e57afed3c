"""What entities take: a state by replay, with a snapshot and without, and commands beside bare conditional appends."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median

from benchmarks.compare import Figure, Result, Side, compare
from stateside.journal import Event, JournalWriter
from stateside.journal.backends.files.file_journal import FileJournal
from stateside.journal.entities import Entities, Entity, NewEvent, Snapshots
from stateside.journal.queries import Queries, QueryViews

REPLAYED = 10_000
APPENDED = 10  # of the entity at a time, beside so many of others:
OTHERS = 90
COMMANDS = 500
ROUNDS = 7


class Account(Entity[int, int]):
    """A balance in cents, and commands that add to it."""

    def initial(self) -> int:
        """Nothing."""
        return 0

    def fold(self, state: int, event: Event) -> int:
        """The sum."""
        return state + int(event.payload["cents"])

    def decide(self, state: int, command: int) -> Sequence[NewEvent]:
        """Everything is allowed."""
        return [NewEvent("paid", {"cents": command})]


def run(folder: Path) -> Iterator[Result | Figure]:
    stream = FileJournal(folder / "journal")
    with (
        JournalWriter(folder / "journal") as writer,
        QueryViews(stream, folder / "views") as views,
        Snapshots(folder / "snapshots") as snapshots,
    ):
        _fill(folder)
        views.follow()
        queries = Queries(stream, views)
        for name, kept in (("without a snapshot", None), ("with a snapshot", snapshots)):

            def replay(kept: Snapshots | None = kept) -> None:
                assert Entities(writer, queries, Account(), snapshots=kept).look("emma").sequence == REPLAYED

            replay()  # the first one leaves the snapshot
            yield Figure(f"state of {REPLAYED:,} events {name}, median", "ms", 1_000 * _median_s(replay))
        yield _commands(writer, queries)


def _commands(writer: JournalWriter, queries: Queries) -> Result:
    accounts, numbers = Entities(writer, queries, Account()), iter(range(1_000_000_000))

    def ask() -> int:
        for _ in range(COMMANDS):
            accounts.ask("asked", 1)
        return COMMANDS

    def append() -> int:
        for number in (next(numbers) for _ in range(COMMANDS)):
            writer.append_to("appended", [_event(number, "appended", "a")], number)
        return COMMANDS

    return compare("commands, one after the other", "commands/s", Side("ask", ask), Side("append_to alone", append))


def _fill(folder: Path) -> None:
    with JournalWriter(folder / "journal", durability="written") as writer:
        for first in range(0, REPLAYED, APPENDED):
            mine = [_event(number, "emma", "e") for number in range(first, first + APPENDED)]
            writer.append([*mine, *(_event(first * OTHERS + n, f"c{n}", "o") for n in range(OTHERS))])


def _median_s(work: Callable[[], None]) -> float:
    took_s = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        work()
        took_s.append(time.perf_counter() - began)
    return median(took_s)


def _event(number: int, entity: str, prefix: str) -> Event:
    return Event(f"{prefix}{number}", entity, "paid", 1_760_000_000_000_000 + number, {"cents": 1})
