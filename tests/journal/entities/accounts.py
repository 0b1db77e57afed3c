"""A kind of entities for tests: accounts that must not go below zero, and remember the ids that they saw."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stateside.core.errors import CommandRefused
from stateside.journal import Event, JournalWriter
from stateside.journal.backends.files.file_journal import FileJournal
from stateside.journal.entities import Entities, Entity, NewEvent, Snapshots
from stateside.journal.queries import Queries, QueryViews


@dataclass(frozen=True)
class Balance:
    """What an account has, after how many events, and a number that depends on the order of these."""

    cents: int = 0
    events: int = 0
    mixed: int = 0


@dataclass(frozen=True)
class Pay:
    """Pay in, or out if it is negative, in so many parts."""

    cents: int
    parts: int = 1


class Account(Entity[Balance, Pay]):
    def __init__(self, version: int = 1) -> None:
        self.version = version  # type: ignore[misc]
        self.folded = 0

    def initial(self) -> Balance:
        return Balance()

    def fold(self, state: Balance, event: Event) -> Balance:
        assert event.appended_us is None
        assert event.sequence == state.events + 1
        self.folded += 1
        cents = event.payload.get("cents", 0)
        return Balance(state.cents + cents, state.events + 1, (state.mixed * 31 + cents * self.version) % 1_000_003)

    def decide(self, state: Balance, command: Pay) -> Sequence[NewEvent]:
        if state.cents + command.cents * command.parts < 0:
            raise CommandRefused(f"There are {state.cents} cents only")
        return [NewEvent("paid", {"cents": command.cents}) for _ in range(command.parts)]

    def dump(self, state: Balance) -> Any:
        return asdict(state)

    def load(self, dumped: Any) -> Balance:
        return Balance(**dumped)


@dataclass
class Bank:
    """A journal's folder with all that entities need."""

    folder: Path
    writer: JournalWriter
    views: QueryViews
    queries: Queries
    snapshots: Snapshots

    def accounts(self, kind: Account | None = None, **settings: Any) -> Entities[Balance, Pay]:
        return Entities(
            self.writer,
            self.queries,
            kind or Account(),
            **{"snapshots": self.snapshots, "snapshot_every": 10, **settings},
        )

    def model(self, entity: str, version: int = 1) -> Balance:
        """The state by definition: the fold of the whole log."""
        kind, state, number = Account(version), Balance(), 0
        for event in FileJournal(self.folder / "journal").events():
            if event.entity == entity:
                number += 1
                state = kind.fold(state, Event(event.id, entity, event.type, 0, event.payload, sequence=number))
        return state


@contextmanager
def bank(folder: Path) -> Iterator[Bank]:
    stream = FileJournal(folder / "journal")
    with (
        JournalWriter(folder / "journal", durability="written") as writer,
        QueryViews(stream, folder / "views") as views,
        Snapshots(folder / "snapshots") as snapshots,
    ):
        yield Bank(folder, writer, views, Queries(stream, views), snapshots)


def paid(id_: str, entity: str, cents: int) -> Event:
    return Event(id_, entity, "paid", 0, {"cents": cents})
