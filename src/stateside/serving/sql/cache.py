"""Live rows as DuckDB reads them: Arrow columns of one snapshot, cached for the next statement.

A relation too large for the cache is *scanned*: DuckDB pulls the rows from the snapshot, up to 50,000 at a time and
again for every pass, so memory stays small for any number of rows.

The cache has one state of each relation, of the newest batch read so far. When the replica has moved on, only the
changes found in its history are read: so a statement over a view that is being written is nearly as fast as over one at
rest. All rows are read again if the history does not reach back, too much changed, or the view was declared again.

A chunk has adjacent rows in key order, and the bytes of their keys. So a chunk can be *moved* to a later batch: rows of
changed keys are replaced, inserted or left out, and all others are copied unchanged, column by column.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stateside.core.errors import HistoryGone
from stateside.replica.key_table import SHORT_KEY_BYTES_MAX
from stateside.serving.rows.columns import ArrowColumns, ArrowStream
from stateside.serving.rows.relation import RelationSnapshot
from stateside.serving.sql.sql_query import Ending
from stateside.spark_state.arrow_rows import array_of

ROWS_MAX = 50_000  # decoded at once; a chunk is divided beyond twice as many
Change = tuple[bytes, bytes | None]  # a key, and its new row


class Keys(Sequence[bytes]):
    """Keys packed into one byte string: four bytes of overhead per key."""

    __slots__ = ("_content", "_ends")

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._content = b"".join(keys)
        sizes = np.fromiter(map(len, keys), np.int32, len(keys))
        self._ends: npt.NDArray[np.int32] = np.cumsum(sizes, dtype=np.int32)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, place: int) -> bytes:  # type: ignore[override]
        begin = int(self._ends[place - 1]) if place else 0
        return self._content[begin : int(self._ends[place])]

    def all(self) -> list[bytes]:
        ends = self._ends.tolist()
        return [self._content[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]

    @property
    def nbytes(self) -> int:
        return len(self._content) + self._ends.nbytes


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some rows and, in the same order, their keys."""

    keys: Keys
    rows: pa.RecordBatch

    @classmethod
    def of(cls, columns: ArrowColumns, keys: Sequence[bytes], rows: Sequence[bytes]) -> Chunk:
        """The chunk of these rows of a replica."""
        return cls(Keys(keys), columns.batch(keys, rows))

    @property
    def nbytes(self) -> int:
        return int(self.rows.nbytes) + self.keys.nbytes

    def moved(self, columns: ArrowColumns, changes: Sequence[Change]) -> Iterator[Chunk]:
        """The chunk with these changes, given in key order: several chunks if too large, none without rows."""
        there = [(key, row) for key, row in changes if row is not None]
        new = columns.batch([key for key, _ in there], [row for _, row in there])
        order, keys = self._order(changes)
        both = pa.concat_batches([self.rows, new])
        rows = both.take(array_of(pa.int64(), np.ones(len(order), np.bool_), order))
        yield from Chunk(keys, rows).divided()

    def divided(self) -> Iterator[Chunk]:
        """The chunk as chunks of at most 2 * ROWS_MAX rows; none without rows."""
        if len(self.keys) <= 2 * ROWS_MAX:
            yield from [self] if len(self.keys) else []
            return
        listed = self.keys.all()
        for first in range(0, len(listed), ROWS_MAX):
            yield Chunk(Keys(listed[first : first + ROWS_MAX]), self.rows.slice(first, ROWS_MAX))

    def _order(self, changes: Sequence[Change]) -> tuple[npt.NDArray[np.int64], Keys]:
        """The new order, as row numbers of the old rows followed by the new ones; and the keys in this order."""
        order, behind = np.arange(len(self.keys)), len(self.keys)
        added: list[tuple[int, int, bytes]] = []
        for key, row in changes:
            place = bisect_left(self.keys, key)
            known = place < len(self.keys) and self.keys[place] == key
            if row is None:
                if known:
                    order[place] = -1
                continue
            if known:
                order[place] = behind
            else:
                added.append((place, behind, key))
            behind += 1
        if not added and not (order < 0).any():
            return order, self.keys
        places = [place for place, _, _ in added]
        keys = np.insert(np.array(self.keys.all(), object), places, np.array([key for _, _, key in added], object))
        order = np.insert(order, places, [number for _, number, _ in added])
        return order[order >= 0], Keys(keys[order >= 0].tolist())


KEPT_BYTES_MAX = 1 << 30
KEPT_RELATION_BYTES_MAX = 768 << 20  # of one relation, 3/4 of the total: a larger relation is scanned
_TURN_S = 0.05


@dataclass(frozen=True, slots=True)
class RelationState:
    """The state that rows belong to: a batch by number and fingerprint, and the replica's identity `so`."""

    so: tuple[Any, ...]
    batch: int
    fingerprint: str


@dataclass(frozen=True, slots=True)
class CachedRelation:
    """The rows of a relation in a state. Only a relation with keys `in_order` can be moved."""

    state: RelationState
    schema: pa.Schema
    chunks: tuple[Chunk, ...]
    in_order: bool = True

    def table(self) -> pa.Table:
        """All rows; nothing is copied."""
        return pa.Table.from_batches([chunk.rows for chunk in self.chunks], self.schema)

    @property
    def nbytes(self) -> int:
        return sum(chunk.nbytes for chunk in self.chunks)

    @property
    def count(self) -> int:
        return sum(len(chunk.keys) for chunk in self.chunks)

    def moved(self, state: RelationState, columns: ArrowColumns, changes: Sequence[Change]) -> CachedRelation:
        """The rows in a later state with these changes, given in key order."""
        chunks: list[Chunk] = []
        if not self.chunks:
            there = [(key, row) for key, row in changes if row is not None]
            new = Chunk.of(columns, [key for key, _ in there], [row for _, row in there])
            return CachedRelation(state, self.schema, tuple(new.divided()))
        firsts = [chunk.keys[0] for chunk in self.chunks[1:]]
        touched = {
            place: list(of) for place, of in groupby(changes, key=lambda change: bisect_right(firsts, change[0]))
        }
        for place, chunk in enumerate(self.chunks):
            chunks.extend(chunk.moved(columns, touched[place]) if place in touched else [chunk])
        return CachedRelation(state, self.schema, tuple(chunks))


class RelationCache:
    """An LRU cache of the rows of one SQL process, limited in bytes."""

    def __init__(self, bytes_max: int = KEPT_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._rows: OrderedDict[str, CachedRelation] = OrderedDict()
        self._turns: dict[str, threading.Lock] = {}

    @property
    def relation_bytes_max(self) -> int:
        """The memory limit of one relation."""
        return min(KEPT_RELATION_BYTES_MAX, self._bytes_max * 3 // 4)

    def get(self, name: str) -> CachedRelation | None:
        with self._lock:
            if name in self._rows:
                self._rows.move_to_end(name)
            return self._rows.get(name)

    def put(self, name: str, rows: CachedRelation) -> None:
        """Cache these rows in place of the relation's older ones, and evict the least recently used relations."""
        with self._lock:
            self._rows.pop(name, None)
            self._rows[name] = rows
            while self.nbytes > self._bytes_max:
                self._rows.popitem(last=False)

    @property
    def nbytes(self) -> int:
        return sum(rows.nbytes for rows in self._rows.values())

    @contextmanager
    def turn(self, name: str, ending: Ending) -> Iterator[None]:
        """A lock per relation: one statement reads, and the others then find the rows cached."""
        with self._lock:
            turn = self._turns.setdefault(name, threading.Lock())
        while not turn.acquire(timeout=_TURN_S):
            ending.check()
        try:
            yield
        finally:
            turn.release()


CHANGED_SHARE_MAX = 5  # if more than 1 in 5 rows changed, reading all again is as fast
_CHANGED_MIN = 1_000

Read = tuple[list[bytes], list[bytes]]  # keys and rows of the replica


class LiveRows:
    """The live rows of a relation in a snapshot, for SQL; of its keys those that the scope's `prefix` begins."""

    def __init__(self, name: str, at: RelationSnapshot) -> None:
        self.name, self._at, self.scope = name, at, at.scope
        self.columns: ArrowColumns = at.table.arrow
        self.prefix = at.table.codec.encode(at.scope.narrowed([]))
        applied = at.snapshot.batch()
        assert applied is not None, "a snapshot with a stamp has a batch"
        so = (at.stamp.replica, applied.query, at.table.catalogue)
        self.state = RelationState(so, applied.batch, applied.fingerprint)

    def chunks(self) -> Iterator[Read]:
        """All rows with the prefix, up to ROWS_MAX at a time."""
        return self._at.chunks(self.prefix, ROWS_MAX)

    def batch(self, chunk: Read) -> pa.RecordBatch:
        """The rows in scope of a chunk."""
        return self.scope.of_arrow(self.columns.batch(*chunk))

    def count(self) -> int:
        """The number of rows; 0 if unknown."""
        return self._at.snapshot.count() if self._at.table.by is None else 0

    def changes(self, since: RelationState) -> Iterator[Change]:
        """The changes since an earlier state, in key order; HistoryGone if unknown."""
        snapshot = self._at.snapshot
        snapshot.as_of(since.batch, since.fingerprint)  # raises if the batch is of another run
        extent = self._at.table.extent(snapshot)
        return ((each.key, each.after) for each in extent.changed(snapshot, since.batch, self.state.batch))


def scanned(rows: LiveRows, ending: Ending, turn: threading.Lock) -> ArrowStream:
    """Rows that DuckDB pulls from a snapshot. Valid as long as the snapshot.

    `turn` is a lock: one thread at a time reads the snapshot, whatever DuckDB does. Errors are noted in `ending`, since
    DuckDB would reword them.
    """

    def batches() -> Iterator[pa.RecordBatch]:
        chunks = rows.chunks()
        try:
            while True:
                ending.check()
                with turn:
                    chunk = next(chunks, None)
                if chunk is None:
                    return
                yield rows.batch(chunk)
        except Exception as error:
            ending.end(error)
            raise

    return ArrowStream.of_batches(rows.columns.schema, batches)


def read(rows: LiveRows, kept: RelationCache, ending: Ending) -> pa.Table | None:
    """The rows in scope, in memory; None if they would take too much memory and must be scanned."""
    if rows.prefix:  # a part of the rows: not worth caching
        return _part(rows, kept.relation_bytes_max, ending)
    with kept.turn(rows.name, ending):
        found = kept.get(rows.name)
        if found is None or found.state != rows.state:
            moved = None if found is None else _moved(rows, found, kept.relation_bytes_max)
            newer = found is not None and found.state.so == rows.state.so and found.state.batch > rows.state.batch
            found = moved or _all(rows, kept.relation_bytes_max, ending)
            if found is None:
                return None
            if not newer:  # the cache may hold a later batch of another statement
                kept.put(rows.name, found)
    return rows.scope.of_arrow(found.table())


def _part(rows: LiveRows, bytes_max: int, ending: Ending) -> pa.Table | None:
    batches, size = [], 0
    for chunk in rows.chunks():
        ending.check()
        batches.append(rows.batch(chunk))
        size += batches[-1].nbytes
        if size > bytes_max:
            return None
    return pa.Table.from_batches(batches, rows.columns.schema)


def _all(rows: LiveRows, bytes_max: int, ending: Ending) -> CachedRelation | None:
    chunks: list[Chunk] = []
    size, seen, in_order = 0, 0, True
    for keys, values in rows.chunks():
        ending.check()
        chunks.append(Chunk.of(rows.columns, keys, values))
        size, seen = size + chunks[-1].nbytes, seen + len(keys)
        in_order = in_order and max(map(len, keys)) < SHORT_KEY_BYTES_MAX // 2
        if size * max(rows.count(), seen) // seen > bytes_max:
            return None
    return CachedRelation(rows.state, rows.columns.schema, tuple(chunks), in_order)


def _moved(rows: LiveRows, found: CachedRelation, bytes_max: int) -> CachedRelation | None:
    """The cached rows, moved to the snapshot's batch; None if impossible, or no faster than reading all."""
    if found.state.so != rows.state.so or found.state.batch >= rows.state.batch or not found.in_order:
        return None
    most = max(_CHANGED_MIN, found.count // CHANGED_SHARE_MAX)
    try:
        changes = list(islice(rows.changes(found.state), most + 1))
    except HistoryGone:
        return None
    if len(changes) > most or any(len(key) >= SHORT_KEY_BYTES_MAX // 2 for key, _ in changes):
        return None
    moved = found.moved(rows.state, rows.columns, changes)
    return moved if moved.nbytes <= bytes_max else None
