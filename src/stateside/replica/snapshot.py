"""Snapshots of a replica: rows, rollups and batch as they stood at one moment, of the newest batch or an older one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from stateside.checkpoint.catalogue import Computed
from stateside.errors import HistoryGone, NotFreshEnough
from stateside.replica.applied import AppliedBatch
from stateside.replica.environment import Tables
from stateside.replica.history import ROLLUPS, ROWS, History, Record
from stateside.replica.ordered import OrderedRows
from stateside.replica.past import PastTable
from stateside.replica.rollups import Kept, parse_computed, parse_kept
from stateside.replica.share import Share


class Table(Protocol):
    """Keys and rows in order, as readers ask for them."""

    def get(self, key: bytes) -> bytes | None:
        """The row of this very key."""

    def get_all(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The rows of these very keys, in their order."""

    def range(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The keys that begin with these bytes, in order, each with its row."""

    def between(self, first: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The keys from `first` on and before `end`, in order, each with its row."""

    def last(self, prefix: bytes) -> bytes | None:
        """The last of the keys that begin with these bytes."""


class Snapshot:
    """One transaction: the rows and the batch as they stood at one moment. Valid as long as that is open.

    `place` stands for its environment: another one once that was loaded anew.
    """

    def __init__(self, tables: Tables) -> None:
        self._tables, self.place = tables, tables.place
        self._rows: Table = OrderedRows(tables.rows)

    def batch(self) -> AppliedBatch | None:
        """The batch that the rows stand at; None before the first one."""
        content = self._meta(b"batch")
        return AppliedBatch.parse(content) if content is not None else None

    def fresh_us(self) -> int | None:
        """When this batch was last known to be up to date; None if no heartbeat ever said so."""
        content = self._meta(b"fresh")
        return int(content) if content is not None else None

    def trouble(self) -> str | None:
        """Why the replica does not move on; None while it does."""
        content = self._meta(b"trouble")
        return content.decode() if content is not None else None

    def invalid(self) -> str | None:
        """Why the replica is not to be read until it is rebuilt; None if it is."""
        content = self._meta(b"invalid")
        return content.decode() if content is not None else None

    def replica(self) -> str:
        """The replica's own name."""
        content = self._meta(b"replica")
        assert content is not None, "every replica is given a name when it is made"
        return content.decode()

    def is_named(self) -> bool:
        """Whether the replica was given its name."""
        return self._meta(b"replica") is not None

    def share(self) -> Share | None:
        """The share of the view's keys that the replica holds; None if it holds them all."""
        text = self.share_text()
        return None if text is None else Share.parse(text)

    def share_text(self) -> str | None:
        """The same as a text."""
        content = self._meta(b"share")
        return None if content is None else content.decode()

    def rollups(self) -> Kept:
        """The rollups that the replica keeps, by their columns; a rollup's number is its place here."""
        content = self._meta(b"rollups")
        return parse_kept(content) if content is not None else ()

    def computed(self) -> tuple[Computed, ...]:
        """The computed columns that these rollups have."""
        content = self._meta(b"rollups")
        return parse_computed(content) if content is not None else ()

    def rollup(self, number: int, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The coarser keys of a rollup that begin with these bytes, in order, each with its row."""
        return ((key[1:], row) for key, row in self.rollup_rows().range(bytes([number]) + prefix))

    def chunks(self, prefix: bytes, rows_max: int) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """All rows of the newest batch whose keys begin with these bytes, as `Ordered.chunks` has them."""
        return OrderedRows(self._tables.rows).chunks(prefix, rows_max)

    def rollup_chunks(self, number: int, rows_max: int) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """The same of a rollup, its coarser keys."""
        found = OrderedRows(self._tables.rollups).chunks(bytes([number]), rows_max)
        return (([key[1:] for key in keys], rows) for keys, rows in found)

    def get(self, key: bytes) -> bytes | None:
        """The row of this very key."""
        return self._rows.get(key)

    def get_all(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The rows of these very keys, in their order."""
        return self._rows.get_all(keys)

    def range(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The keys that begin with these bytes, in order, each with its row."""
        return self._rows.range(prefix)

    def between(self, first: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The keys from `first` on and before `end`, in order, each with its row."""
        return self._rows.between(first, end)

    def last(self, prefix: bytes) -> bytes | None:
        """The last of the keys that begin with these bytes."""
        return self._rows.last(prefix)

    def count(self) -> int:
        """How many rows there are."""
        return self._tables.rows.count()

    def oldest(self) -> int | None:
        """The oldest batch that the replica can be read as of; None before the first one."""
        recorded = self.history().oldest()
        applied = self.batch() if recorded is None else None
        return recorded - 1 if recorded is not None else applied.batch if applied is not None else None

    def rows(self) -> Table:
        """All rows, by their keys."""
        return self._rows

    def rollup_rows(self) -> Table:
        """The rows of all rollups, by number and coarser key."""
        return OrderedRows(self._tables.rollups)

    def history(self) -> History:
        """What the last batches up to now replaced."""
        return History(self._tables)

    def as_of(self, batch: int, fingerprint: str | None = None) -> Snapshot:
        """The same snapshot as of a batch; errors as for `snapshot_as_of`."""
        return snapshot_as_of(self._tables, batch, fingerprint)

    def _meta(self, name: bytes) -> bytes | None:
        return self._tables.meta.get(name)


class PastSnapshot(Snapshot):
    """The same as of an older batch. Its trouble is that of now: it tells why there is no newer batch."""

    def __init__(self, tables: Tables, later: list[Record]) -> None:
        super().__init__(tables)
        self._history, self._later = History(tables), later
        self._rows = PastTable(OrderedRows(tables.rows), ROWS, self._history, later)

    def batch(self) -> AppliedBatch | None:
        """The batch that was asked for."""
        return AppliedBatch.parse(self._later[0].before)

    def fresh_us(self) -> int | None:
        """When this batch was last known to be up to date, before the next one was applied."""
        return self._later[0].fresh_us

    def count(self) -> int:
        """How many rows there were."""
        return self._later[0].rows

    def rollup_rows(self) -> Table:
        """The rows of all rollups as of the batch."""
        now = OrderedRows(self._tables.rollups)
        return PastTable(now, ROLLUPS, self._history, self._later)


def snapshot_as_of(tables: Tables, batch: int, fingerprint: str | None = None) -> Snapshot:
    """The rows as of a batch, and of this very run of it where its fingerprint is given.

    HistoryGone if it is too old, or was of another run; NotFreshEnough if the replica does not have it yet.
    """
    now = Snapshot(tables)
    applied, oldest = now.batch(), now.oldest()
    if applied is None or oldest is None or batch > applied.batch:
        stands = "has no batch yet" if applied is None else f"stands at batch {applied.batch}"
        raise NotFreshEnough(f"The replica {stands}, and batch {batch} was asked for", next_step="Ask again later")
    if batch < oldest:
        raise _gone(f"Batch {batch} is too old to be read: the oldest one kept is {oldest}")
    found = now
    if batch < applied.batch:
        found = PastSnapshot(tables, list(History(tables).records(batch + 1)))
    state = found.batch()
    if fingerprint is not None and (state is None or state.fingerprint != fingerprint):
        raise _gone(f"Batch {batch} is not the one that it was: the checkpoint was replaced, or rolled back")
    return found


def _gone(what: str) -> HistoryGone:
    return HistoryGone(
        what,
        next_step="Begin anew at the newest batch. Older ones are kept for a time and up to a size, none from before"
        " the replica was loaded or rebuilt, or its rollups were declared anew (see docs/replicas.md)",
    )
