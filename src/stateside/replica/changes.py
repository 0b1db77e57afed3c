"""Changes between two batches, from the undo records: the keys, each with its row before and after.

Every batch records, for each key put or deleted, the row before it. The row *after* batch B is therefore the row
recorded by the next batch for the key, and the present row if there is none:

    batch             5         6         7         now
    recorded of k     r4        -         r6
    k's row           r4 | r6   r6        r6 | r9   r9        before | after

So one merge of the records of all later batches, in key order, finds every change. Memory: one chunk for each batch
after the first. A key stored again with the same row has not changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import merge
from itertools import groupby, takewhile
from operator import itemgetter

from stateside.core.errors import HistoryGone
from stateside.replica.batch_marker import AppliedBatch
from stateside.replica.history import ROLLUPS, ROWS, Entry, UndoRecord
from stateside.replica.key_table import behind
from stateside.replica.snapshot import ReplicaTable, Snapshot

_END = b"\xff\xff"  # after all keys of either table

Recorded = tuple[bytes, int, bytes | None]  # a key, a batch that recorded it, its row before the batch


@dataclass(frozen=True, slots=True)
class Changed:
    """A key with its row before and after; None where there is none."""

    key: bytes
    before: bytes | None
    after: bytes | None


@dataclass(frozen=True, slots=True)
class Extent:
    """A range of a replica's keys: those of its rows, or of the rollup with this number, with a prefix."""

    prefix: bytes = b""
    rollup: int | None = None

    def rows(self, snapshot: Snapshot, begin: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """The keys, in order, each with its row; with `begin` only this key and later ones."""
        first, end = max(self._whole_prefix, self._mark + begin), behind(self._whole_prefix) or _END
        return ((key[self._mark_bytes :], row) for key, row in self._table(snapshot).between(first, end))

    def changed(self, snapshot: Snapshot, after: int, upto: int, beyond: bytes | None = None) -> Iterator[Changed]:
        """The keys whose row as of batch `upto` differs from that as of batch `after`, in order.

        The snapshot is the newest one, whose history must reach back to `after`: else HistoryGone.
        """
        now = self._table(snapshot)
        for key, recorded in self._by_key(snapshot, after, beyond):
            _, first, before = recorded[0]
            if first <= upto:
                later = [row for _, batch, row in recorded if batch > upto]
                row = later[0] if later else now.get(key)
                if row != before:
                    yield Changed(key[self._mark_bytes :], before, row)

    def steps(self, snapshot: Snapshot, after: int) -> Iterator[tuple[int, Changed]]:
        """Every single change since batch `after`, with its batch; by keys, and for each key in order."""
        now = self._table(snapshot)
        for key, recorded in self._by_key(snapshot, after):
            rows = [*(row for _, _, row in recorded[1:]), now.get(key)]
            for (_, batch, before), row in zip(recorded, rows, strict=True):
                if row != before:
                    yield batch, Changed(key[self._mark_bytes :], before, row)

    @property
    def _mark(self) -> bytes:
        return b"" if self.rollup is None else bytes([self.rollup])

    @property
    def _mark_bytes(self) -> int:
        return 0 if self.rollup is None else 1

    @property
    def _whole_prefix(self) -> bytes:
        return self._mark + self.prefix

    def _first(self, beyond: bytes | None) -> bytes:
        return self._whole_prefix if beyond is None else self._mark + beyond + b"\x00"

    def _table(self, snapshot: Snapshot) -> ReplicaTable:
        return snapshot.rows() if self.rollup is None else snapshot.rollup_rows()

    def _by_key(
        self, snapshot: Snapshot, after: int, beyond: bytes | None = None
    ) -> Iterator[tuple[bytes, list[Recorded]]]:
        """The keys recorded by later batches, in order, each with its records, batch by batch."""
        first, history = self._first(beyond), snapshot.history()
        records = _records(snapshot, after)
        recorded = merge(*(self._recorded(history.entries(each, self._number, first), each) for each in records))
        return ((key, list(group)) for key, group in groupby(recorded, key=itemgetter(0)))

    def _recorded(self, entries: Iterator[Entry], record: UndoRecord) -> Iterator[Recorded]:
        inside = takewhile(lambda entry: entry[0].startswith(self._whole_prefix), entries)
        return ((key, record.batch, row) for key, row in inside)

    @property
    def _number(self) -> int:
        return ROWS if self.rollup is None else ROLLUPS


def _records(snapshot: Snapshot, after: int) -> list[UndoRecord]:
    """The undo records of the batches after this one; HistoryGone if the first of them is not kept."""
    records = list(snapshot.history().records(after + 1))
    now = snapshot.batch()
    assert now is not None, "what stands at no batch has no changes"
    if after < now.batch and (not records or records[0].batch != after + 1):
        raise HistoryGone(
            f"What changed since batch {after} is not known any more",
            next_step="Begin again at the newest batch (see docs/replicas.md for how long it is kept)",
        )
    return records


def touched(snapshot: Snapshot, since: AppliedBatch, bytes_max: int) -> Iterator[bytes] | None:
    """The keys of rows put or deleted since this batch, some perhaps repeatedly.

    None if unknown, because the history does not reach back to this very run of the batch, or if there are more than
    `bytes_max` bytes to read.
    """
    now, history = snapshot.batch(), snapshot.history()
    records = list(history.records(since.batch + 1))
    if now is None or not records or sum(record.chunk_bytes for record in records) > bytes_max:
        return None
    follows = (records[0].batch, records[-1].batch) == (since.batch + 1, now.batch)
    if not follows or AppliedBatch.parse(records[0].before) != since:
        return None
    return (key for record in records for key, _ in history.entries(record, ROWS, b""))
