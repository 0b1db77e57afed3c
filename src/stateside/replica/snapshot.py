"""Snapshots of a replica: rows, rollups and batch as they stood at one moment, of the newest batch or an older one.

A table of a replica as of an older batch: the present one, with what later batches replaced laid over it.

Nothing is copied: for a range of keys, the undo records of all later batches are read side by side in order of their
keys, and so are the present rows. Memory: one chunk for each later batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import merge
from itertools import takewhile
from typing import Protocol

from stateside.core.errors import HistoryGone, NotFreshEnough
from stateside.replica.batch_marker import AppliedBatch
from stateside.replica.history import ROLLUPS, ROWS, Entry, History, UndoRecord
from stateside.replica.key_table import OrderedRows
from stateside.replica.lmdb import Tables
from stateside.replica.rollup_tables import Kept, parse_computed, parse_kept
from stateside.replica.shard import Share
from stateside.views.catalogue import Computed


class PastTable:
    """What `OrderedRows` offers to readers, as of the batch before these records."""

    def __init__(self, now: OrderedRows, table: int, history: History, later: Sequence[UndoRecord]) -> None:
        self._now, self._table, self._history = now, table, history
        self._later = [record for record in later if record.chunks[table]]

    def get(self, key: bytes) -> bytes | None:
        """The row of this very key."""
        for record in self._later:
            found = next(self._entries(record, key), None)
            if found is not None and found[0] == key:
                return found[1]
        return self._now.get(key)

    def get_all(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The rows of these very keys, in their order."""
        return [self.get(key) for key in keys]

    def range(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The keys that begin with these bytes, in order, each with its row."""
        changed = takewhile(lambda entry: entry[0].startswith(prefix), self._changed(prefix))
        return _laid_over(changed, self._now.range(prefix))

    def between(self, first: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The keys from `first` on and before `end`, in order, each with its row."""
        changed = takewhile(lambda entry: entry[0] < end, self._changed(first))
        return _laid_over(changed, self._now.between(first, end))

    def last(self, prefix: bytes) -> bytes | None:
        """The last of the keys that begin with these bytes."""
        changed = takewhile(lambda entry: entry[0].startswith(prefix), self._changed(prefix))
        replaced = max((key for key, row in changed if row is not None), default=None)
        now = self._now.last(prefix)
        if now is None or self.get(now) is not None:
            return max((key for key in (now, replaced) if key is not None), default=None)
        return max((key for key, _ in self.range(prefix)), default=None)  # the last one of now was not there yet

    def _changed(self, first: bytes) -> Iterator[Entry]:
        """The keys from `first` on that any later batch changed, in order, each with its row as of the batch."""
        last = None
        for key, _, row in merge(*(self._numbered(record, first) for record in self._later)):
            if key != last:  # of several batches that changed it the first one has the row that is asked for
                yield key, row
            last = key

    def _numbered(self, record: UndoRecord, first: bytes) -> Iterator[tuple[bytes, int, bytes | None]]:
        return ((key, record.batch, row) for key, row in self._entries(record, first))

    def _entries(self, record: UndoRecord, first: bytes) -> Iterator[Entry]:
        """What a batch replaced, from this key on."""
        return self._history.entries(record, self._table, first)


def _laid_over(changed: Iterator[Entry], now: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    """Both in order of their keys; where both have a key the changed one counts, and takes it away if it is None."""
    over = next(changed, None)
    for key, row in now:
        while over is not None and over[0] < key:
            if over[1] is not None:
                yield over[0], over[1]
            over = next(changed, None)
        if over is None or over[0] != key:
            yield key, row
            continue
        if over[1] is not None:
            yield key, over[1]
        over = next(changed, None)
    while over is not None:
        if over[1] is not None:
            yield over[0], over[1]
        over = next(changed, None)


class ReplicaTable(Protocol):
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
        self._rows: ReplicaTable = OrderedRows(tables.rows)

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

    def rows(self) -> ReplicaTable:
        """All rows, by their keys."""
        return self._rows

    def rollup_rows(self) -> ReplicaTable:
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

    def __init__(self, tables: Tables, later: list[UndoRecord]) -> None:
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

    def rollup_rows(self) -> ReplicaTable:
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
