"""Snapshots of a replica: rows, rollups and batch at one moment, of the newest batch or an older one.

A table as of an older batch is the present one overlaid with the undo records of later batches. Nothing is copied: for
a range of keys, the undo records of all later batches and the present rows are merged in key order. Memory: one chunk
for each later batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import merge
from itertools import takewhile
from typing import Protocol

from stateside.core.errors import HistoryGone, NotFreshEnough
from stateside.replica.batch_marker import AppliedBatch
from stateside.replica.environment import Tables
from stateside.replica.history import ROLLUPS, ROWS, Entry, History, UndoRecord
from stateside.replica.key_table import OrderedRows
from stateside.replica.rollup_tables import Kept, parse_computed, parse_kept
from stateside.replica.shard import Share
from stateside.views.catalogue import Computed


class PastTable:
    """A `ReplicaTable` as of the batch before the records `later`."""

    def __init__(self, now: OrderedRows, table: int, history: History, later: Sequence[UndoRecord]) -> None:
        self._now, self._table, self._history = now, table, history
        self._later = [record for record in later if record.chunks[table]]

    def get(self, key: bytes) -> bytes | None:
        for record in self._later:
            found = next(self._entries(record, key), None)
            if found is not None and found[0] == key:
                return found[1]
        return self._now.get(key)

    def get_all(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self.get(key) for key in keys]

    def range(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        changed = takewhile(lambda entry: entry[0].startswith(prefix), self._changed(prefix))
        return _laid_over(changed, self._now.range(prefix))

    def between(self, first: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        changed = takewhile(lambda entry: entry[0] < end, self._changed(first))
        return _laid_over(changed, self._now.between(first, end))

    def last(self, prefix: bytes) -> bytes | None:
        changed = takewhile(lambda entry: entry[0].startswith(prefix), self._changed(prefix))
        replaced = max((key for key, row in changed if row is not None), default=None)
        now = self._now.last(prefix)
        if now is None or self.get(now) is not None:
            return max((key for key in (now, replaced) if key is not None), default=None)
        return max((key for key, _ in self.range(prefix)), default=None)  # the present last key did not exist yet

    def _changed(self, first: bytes) -> Iterator[Entry]:
        """The keys from `first` on changed by any later batch, in order, each with its row as of the batch."""
        last = None
        for key, _, row in merge(*(self._numbered(record, first) for record in self._later)):
            if key != last:  # the first later batch has the wanted row
                yield key, row
            last = key

    def _numbered(self, record: UndoRecord, first: bytes) -> Iterator[tuple[bytes, int, bytes | None]]:
        return ((key, record.batch, row) for key, row in self._entries(record, first))

    def _entries(self, record: UndoRecord, first: bytes) -> Iterator[Entry]:
        """The before images of a batch, from key `first` on."""
        return self._history.entries(record, self._table, first)


def _laid_over(changed: Iterator[Entry], now: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    """Both merged in key order; for a key in both, the changed row counts, and None deletes the key."""
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
    """Keys and rows in order, for readers."""

    def get(self, key: bytes) -> bytes | None:
        """The row of exactly this key."""

    def get_all(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The rows of exactly these keys, in their order."""

    def range(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The keys with a prefix, in order, each with its row."""

    def between(self, first: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The keys with first <= key < end, in order, each with its row."""

    def last(self, prefix: bytes) -> bytes | None:
        """The last key with a prefix."""


class Snapshot:
    """One transaction: the rows and the batch at one moment. Valid while the transaction is open.

    `place` identifies the environment, and changes with a bootstrap.
    """

    def __init__(self, tables: Tables) -> None:
        self._tables, self.place = tables, tables.place
        self._rows: ReplicaTable = OrderedRows(tables.rows)

    def batch(self) -> AppliedBatch | None:
        """The batch of the rows; None before the first one."""
        content = self._meta(b"batch")
        return AppliedBatch.parse(content) if content is not None else None

    def fresh_us(self) -> int | None:
        """When this batch was last known to be up to date; None without a heartbeat."""
        content = self._meta(b"fresh")
        return int(content) if content is not None else None

    def trouble(self) -> str | None:
        """Why the replica does not advance; None while it does."""
        content = self._meta(b"trouble")
        return content.decode() if content is not None else None

    def invalid(self) -> str | None:
        """Why the replica must not be read until rebuilt; None if readable."""
        content = self._meta(b"invalid")
        return content.decode() if content is not None else None

    def replica(self) -> str:
        """The replica's own name."""
        content = self._meta(b"replica")
        assert content is not None, "every replica is given a name when it is made"
        return content.decode()

    def is_named(self) -> bool:
        return self._meta(b"replica") is not None

    def share(self) -> Share | None:
        """The replica's shard of the view's keys; None if it holds all keys."""
        text = self.share_text()
        return None if text is None else Share.parse(text)

    def share_text(self) -> str | None:
        """As `share`, as text."""
        content = self._meta(b"share")
        return None if content is None else content.decode()

    def rollups(self) -> Kept:
        """The replica's rollups, by their columns; a rollup's number is its index here."""
        content = self._meta(b"rollups")
        return parse_kept(content) if content is not None else ()

    def computed(self) -> tuple[Computed, ...]:
        """The computed columns of the rollups."""
        content = self._meta(b"rollups")
        return parse_computed(content) if content is not None else ()

    def rollup(self, number: int, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The coarser keys of a rollup with a prefix, in order, each with its row."""
        return ((key[1:], row) for key, row in self.rollup_rows().range(bytes([number]) + prefix))

    def chunks(self, prefix: bytes, rows_max: int) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """All rows of the newest batch with a key prefix, as of `OrderedRows.chunks`."""
        return OrderedRows(self._tables.rows).chunks(prefix, rows_max)

    def rollup_chunks(self, number: int, prefix: bytes, rows_max: int) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """As `chunks` for a rollup, with its coarser keys."""
        found = OrderedRows(self._tables.rollups).chunks(bytes([number]) + prefix, rows_max)
        return (([key[1:] for key in keys], rows) for keys, rows in found)

    def get(self, key: bytes) -> bytes | None:
        return self._rows.get(key)

    def get_all(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return self._rows.get_all(keys)

    def range(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self._rows.range(prefix)

    def between(self, first: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self._rows.between(first, end)

    def last(self, prefix: bytes) -> bytes | None:
        return self._rows.last(prefix)

    def count(self) -> int:
        """The number of rows."""
        return self._tables.rows.count()

    def oldest(self) -> int | None:
        """The oldest batch readable with `as_of`; None before the first one."""
        recorded = self.history().oldest()
        applied = self.batch() if recorded is None else None
        return recorded - 1 if recorded is not None else applied.batch if applied is not None else None

    def rows(self) -> ReplicaTable:
        """All rows, by key."""
        return self._rows

    def rollup_rows(self) -> ReplicaTable:
        """The rows of all rollups, by number and coarser key."""
        return OrderedRows(self._tables.rollups)

    def history(self) -> History:
        """The undo records of the last batches."""
        return History(self._tables)

    def as_of(self, batch: int, fingerprint: str | None = None) -> Snapshot:
        """The same snapshot as of a batch; errors as for `snapshot_as_of`."""
        return snapshot_as_of(self._tables, batch, fingerprint)

    def _meta(self, name: bytes) -> bytes | None:
        return self._tables.meta.get(name)


class PastSnapshot(Snapshot):
    """A snapshot as of an older batch. Its `trouble` is the present one: why there is no newer batch."""

    def __init__(self, tables: Tables, later: list[UndoRecord]) -> None:
        super().__init__(tables)
        self._history, self._later = History(tables), later
        self._rows = PastTable(OrderedRows(tables.rows), ROWS, self._history, later)

    def batch(self) -> AppliedBatch | None:
        return AppliedBatch.parse(self._later[0].before)

    def fresh_us(self) -> int | None:
        """When this batch was last known to be up to date, before the next one was applied."""
        return self._later[0].fresh_us

    def count(self) -> int:
        return self._later[0].rows

    def rollup_rows(self) -> ReplicaTable:
        now = OrderedRows(self._tables.rollups)
        return PastTable(now, ROLLUPS, self._history, self._later)


def snapshot_as_of(tables: Tables, batch: int, fingerprint: str | None = None) -> Snapshot:
    """The snapshot as of a batch, and of exactly the run with this fingerprint, if given.

    HistoryGone if the batch is too old, or of another run; NotFreshEnough if the replica does not have it yet.
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
        next_step="Begin again at the newest batch. Older ones are kept for a time and up to a size, none from before"
        " the replica was loaded or rebuilt, or its rollups were declared again (see docs/replicas.md)",
    )
