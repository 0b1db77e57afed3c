"""History: undo records of the last batches, so that a replica can be read as of an older batch.

past:   u64 batch -> u64 time at which it was applied (microseconds)   u64 rows before it
                     u64 bytes of its chunks   u64 bytes of all chunks ever, with these
                     u32 chunks of rows   u32 chunks of rollups   i64 fresh before it (-1: none)
                     then the batch before it, as JSON
undo:   u64 batch, u8 table (0 rows, 1 rollups), u32 number -> chunk
chunk   := u32 entries   u32 size of each key   i32 size of each row before (-1: there was none)   keys   rows

Keys are big-endian, so that batches are in order; the rest is little-endian. A batch's entries are in key order, over
all its chunks. The state as of batch B is the present one overlaid with the entries of B + 1, B + 2, …; for each key
the first one counts (see `snapshot.PastTable`).

The records of a batch are written in the transaction that applies the batch. The same transaction prunes the oldest
ones, a bounded number of chunks each time; a batch in `past` always has all of its chunks.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import lmdb

from stateside.replica.batch_marker import AppliedBatch
from stateside.replica.environment import Databases, Tables
from stateside.replica.key_table import Changes

HISTORY_S = 600  # an older batch stays readable for this long after the next one was applied
HISTORY_BYTES_MAX = 1 << 30  # …unless the undo records exceed this size
CHUNK_BYTES = 3_900  # approximate; a chunk then has an LMDB page to itself
PRUNED_CHUNKS_MIN = 64  # pruned per transaction, or twice as many as written

ROWS, ROLLUPS = 0, 1

Entry = tuple[bytes, bytes | None]

_BATCH = struct.Struct(">Q")
_CHUNK = struct.Struct(">QBI")
_RECORD = struct.Struct("<QQQQIIq")
_COUNT = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Keep:
    """How long older batches stay readable, and the maximum size of their records; 0 for no history."""

    seconds: float = HISTORY_S
    bytes_max: int = HISTORY_BYTES_MAX

    @property
    def nothing(self) -> bool:
        return self.seconds <= 0 or self.bytes_max <= 0


@dataclass(frozen=True, slots=True)
class UndoRecord:
    """The undo record of one batch: the rows it replaced, and the replica's state before it."""

    batch: int
    applied_us: int
    rows: int
    chunk_bytes: int
    written_bytes: int  # of all chunks up to this batch, pruned or not
    chunks: tuple[int, int]  # of rows, of rollups
    fresh_us: int | None
    before: bytes  # an AppliedBatch

    def pack(self) -> bytes:
        """As stored in `past`."""
        fresh = -1 if self.fresh_us is None else self.fresh_us
        sizes = (self.chunk_bytes, self.written_bytes, *self.chunks)
        return _RECORD.pack(self.applied_us, self.rows, *sizes, fresh) + self.before

    @classmethod
    def parse(cls, key: Any, content: Any) -> UndoRecord:
        """The record packed by `pack`, stored under this key."""
        applied_us, rows, size, written, of_rows, of_rollups, fresh = _RECORD.unpack_from(content)
        (batch,) = _BATCH.unpack(key)
        chunks, fresh_us = (of_rows, of_rollups), None if fresh < 0 else fresh
        return cls(batch, applied_us, rows, size, written, chunks, fresh_us, bytes(content[_RECORD.size :]))


class History:
    """The undo records of one replica, in one transaction. Valid while the transaction is open."""

    def __init__(self, tables: Tables) -> None:
        self._past, self._undo = tables.past, tables.undo

    def oldest(self) -> int | None:
        """The oldest recorded batch: its predecessor is still readable. None if there is no history."""
        first = next(self._past.pairs(b"\0"), None)
        return None if first is None else int(_BATCH.unpack(first[0])[0])

    def records(self, first: int) -> Iterator[UndoRecord]:
        """The undo records from this batch on."""
        return (UndoRecord.parse(key, content) for key, content in self._past.pairs(_BATCH.pack(first)))

    def chunk(self, batch: int, table: int, number: int) -> bytes:
        """One of a recorded batch's chunks."""
        found = self._undo.get(_CHUNK.pack(batch, table, number))
        assert found is not None, "a recorded batch has all of its chunks"
        return found

    def entries(self, record: UndoRecord, table: int, first: bytes) -> Iterator[Entry]:
        """The before images of a batch in a table, from key `first` on, in order; read lazily."""
        for number in range(self._chunk_with(record, table, first), record.chunks[table]):
            yield from entries_from(self.chunk(record.batch, table, number), first)

    def _chunk_with(self, record: UndoRecord, table: int, key: bytes) -> int:
        """The number of the last chunk that begins at or before this key; 0 if there is none."""
        low, high = 0, record.chunks[table]
        while high - low > 1:
            middle = (low + high) // 2
            if first_key(self.chunk(record.batch, table, middle)) <= key:
                low = middle
            else:
                high = middle
        return low


class HistoryWriter(History):
    """The history in the transaction that applies a batch."""

    def __init__(self, transaction: lmdb.Transaction, databases: Databases) -> None:
        super().__init__(databases.tables(transaction))
        self._transaction, self._databases = transaction, databases

    def write(
        self,
        before: AppliedBatch,
        undone: tuple[Changes, Changes],
        *,
        rows: int,
        fresh_us: int | None,
        now_us: int,
        keep: Keep,
    ) -> None:
        """Record the batch after `before`, by its before images of rows and rollups, then prune old records."""
        chunks = [pack_chunks(table) for table in undone]
        size = sum(len(chunk) for table in chunks for chunk in table)
        if keep.nothing or size > keep.bytes_max:
            self.forget()  # without this batch earlier ones are useless, too
            return
        batch, counts = before.batch + 1, (len(chunks[ROWS]), len(chunks[ROLLUPS]))
        written = self._written_bytes() + size
        record = UndoRecord(batch, now_us, rows, size, written, counts, fresh_us, before.as_json())
        items = [
            (_CHUNK.pack(batch, table, number), chunk)
            for table in (ROWS, ROLLUPS)
            for number, chunk in enumerate(chunks[table])
        ]
        with self._transaction.cursor(db=self._databases.undo) as cursor:
            cursor.putmulti(items, append=True)
        self._transaction.put(_BATCH.pack(batch), record.pack(), db=self._databases.past, append=True)
        self._prune(keep, now_us, max(PRUNED_CHUNKS_MIN, 2 * sum(counts)))

    def forget(self) -> None:
        """Drop all records: no earlier batch is readable any more."""
        for database in (self._databases.past, self._databases.undo):
            if self._transaction.stat(database)["entries"]:
                self._transaction.drop(database, delete=False)

    def _prune(self, keep: Keep, now_us: int, chunks_max: int) -> None:
        self._prune_records(keep, now_us)
        oldest = self.oldest()
        end = None if oldest is None else _CHUNK.pack(oldest, 0, 0)
        with self._transaction.cursor(db=self._databases.undo) as cursor:
            there = cursor.first()
            while there and chunks_max and (end is None or bytes(cursor.key()) < end):
                there, chunks_max = cursor.delete(), chunks_max - 1

    def _prune_records(self, keep: Keep, now_us: int) -> None:
        """Delete the records of batches that are too old or too large: they are no longer readable from now on."""
        written_bytes = self._written_bytes()
        with self._transaction.cursor(db=self._databases.past) as cursor:
            there = cursor.first()
            while there:
                record = UndoRecord.parse(cursor.key(), cursor.value())
                kept_bytes = written_bytes - record.written_bytes + record.chunk_bytes
                if record.applied_us >= now_us - 1_000_000 * keep.seconds and kept_bytes <= keep.bytes_max:
                    return
                there = cursor.delete()

    def _written_bytes(self) -> int:
        with self._transaction.cursor(db=self._databases.past) as cursor:
            return UndoRecord.parse(cursor.key(), cursor.value()).written_bytes if cursor.last() else 0


def pack_chunks(undone: Changes) -> list[bytes]:
    """Before images in key order, as chunks of about CHUNK_BYTES each."""
    keys, rows = undone.keys, undone.rows
    if not keys:
        return []
    size = sum(map(len, keys)) + sum(map(len, filter(None, rows))) + 8 * len(keys)
    step = max(1, CHUNK_BYTES * len(keys) // size)
    return [_pack(keys[at : at + step], rows[at : at + step]) for at in range(0, len(keys), step)]


def _pack(keys: list[bytes], rows: list[bytes | None]) -> bytes:
    there: list[bytes] = [row for row in rows if row is not None]
    row_sizes = map(len, there) if len(there) == len(rows) else [-1 if row is None else len(row) for row in rows]
    sizes = _COUNT.pack(len(keys)) + array("I", map(len, keys)).tobytes() + array("i", row_sizes).tobytes()
    return b"".join((sizes, *keys, *there))


def first_key(chunk: bytes) -> bytes:
    """The key of a chunk's first entry."""
    (count,) = _COUNT.unpack_from(chunk)
    (size,) = _COUNT.unpack_from(chunk, _COUNT.size)
    begin = _COUNT.size * (1 + 2 * count)
    return chunk[begin : begin + size]


def entries_from(chunk: bytes, first: bytes) -> Iterator[Entry]:
    """A chunk's entries from this key on, in order; unpacked lazily."""
    (count,) = _COUNT.unpack_from(chunk)
    sizes = struct.unpack_from(f"<{count}I{count}i", chunk, _COUNT.size)
    begins = list(accumulate(sizes[:count], initial=_COUNT.size * (1 + 2 * count)))
    start = bisect_left(range(count), first, key=lambda at: chunk[begins[at] : begins[at + 1]])
    at_byte = begins[-1] + sum(size for size in sizes[count : count + start] if size > 0)
    for at in range(start, count):
        size, key = sizes[count + at], chunk[begins[at] : begins[at + 1]]
        yield key, None if size < 0 else chunk[at_byte : at_byte + size]
        at_byte += max(size, 0)
