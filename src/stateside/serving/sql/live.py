"""Views and rollups as DuckDB reads them: the rows of one snapshot, in Arrow columns.

Rows read are cached (`cache`) for the next statement. A relation too large for the cache is *scanned*: DuckDB pulls the
rows from the snapshot, up to 50,000 at a time and again for every pass, so memory stays small for any number of rows.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import pyarrow as pa

from stateside.core.errors import HistoryGone
from stateside.replica.changes import Extent
from stateside.replica.key_table import SHORT_KEY_BYTES_MAX
from stateside.replica.snapshot import Snapshot
from stateside.serving.sql.arrow_columns import ArrowColumns
from stateside.serving.sql.cache import ROWS_MAX, CachedRelation, Change, Chunk, RelationCache, RelationState
from stateside.serving.sql.row_filter import RowFilter
from stateside.serving.sql.sql_query import Ending

CHANGED_SHARE_MAX = 5  # if more than 1 in 5 rows changed, reading all again is as fast
_CHANGED_MIN = 1_000

Read = Iterator[tuple[list[bytes], list[bytes]]]


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a relation in a snapshot: of a view, or of its rollup with this number."""

    name: str
    state: RelationState
    columns: ArrowColumns
    snapshot: Snapshot
    rollup: int | None = None

    def chunks(self, prefix: bytes = b"") -> Read:
        """All rows with this key prefix, up to ROWS_MAX at a time."""
        if self.rollup is None:
            return self.snapshot.chunks(prefix, ROWS_MAX)
        return self.snapshot.rollup_chunks(self.rollup, ROWS_MAX)

    def count(self) -> int:
        """The number of rows; 0 if unknown."""
        return self.snapshot.count() if self.rollup is None else 0

    def changes(self, since: RelationState) -> Iterator[Change]:
        """The changes since an earlier state, in key order; HistoryGone if unknown."""
        self.snapshot.as_of(since.batch, since.fingerprint)  # raises if the batch is of another run
        changed = Extent(rollup=self.rollup).changed(self.snapshot, since.batch, self.state.batch)
        return ((each.key, each.after) for each in changed)


class Whole:
    """Rows in memory, for any number of passes by DuckDB.

    DuckDB takes a table too, but through Arrow's datasets, which take 1 s to import and are no faster.
    """

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_schema__(self) -> object:
        return self._table.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


class SnapshotScan:
    """Rows that DuckDB pulls from a snapshot, again for every pass. Valid as long as the snapshot.

    `turn` is a lock: one thread at a time reads the snapshot, whatever DuckDB does.
    """

    def __init__(self, rows: Rows, scope: RowFilter, ending: Ending, turn: threading.Lock) -> None:
        self._rows, self._scope, self._ending, self._turn = rows, scope, ending, turn

    @property
    def schema(self) -> pa.Schema:
        return self._rows.columns.schema

    def __arrow_c_schema__(self) -> object:
        return self.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return pa.RecordBatchReader.from_batches(self.schema, self._told()).__arrow_c_stream__(requested_schema)

    def _told(self) -> Iterator[pa.RecordBatch]:
        """The batches; errors are noted in `ending`, because DuckDB would reword them."""
        try:
            yield from self._batches()
        except Exception as error:
            self._ending.end(error)
            raise

    def _batches(self) -> Iterator[pa.RecordBatch]:
        chunks = self._rows.chunks(self._scope.prefix)
        while True:
            self._ending.check()
            with self._turn:
                chunk = next(chunks, None)
            if chunk is None:
                return
            yield self._scope.of(self._rows.columns.batch(*chunk))


def read(rows: Rows, scope: RowFilter, kept: RelationCache, ending: Ending) -> pa.Table | None:
    """The rows in scope, in memory; None if they would take too much memory and must be scanned."""
    if scope.prefix:  # a part of the rows: not worth caching
        return _part(rows, scope, kept.relation_bytes_max, ending)
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
    return scope.of(found.table())


def _part(rows: Rows, scope: RowFilter, bytes_max: int, ending: Ending) -> pa.Table | None:
    batches, size = [], 0
    for chunk in rows.chunks(scope.prefix):
        ending.check()
        batches.append(scope.of(rows.columns.batch(*chunk)))
        size += batches[-1].nbytes
        if size > bytes_max:
            return None
    return pa.Table.from_batches(batches, rows.columns.schema)


def _all(rows: Rows, bytes_max: int, ending: Ending) -> CachedRelation | None:
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


def _moved(rows: Rows, found: CachedRelation, bytes_max: int) -> CachedRelation | None:
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
