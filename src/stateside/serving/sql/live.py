"""Views and their rollups as DuckDB reads them: the rows of one snapshot, in Arrow's columns.

What was read is *kept*, for as long as the replica stands at that batch and there is room: the next statement finds it
in memory. What would take too much of it is not kept but *scanned*: DuckDB draws the rows out of the snapshot, some ten
thousands at a time, each time that it needs them, and memory stays small however many there are.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from stateside.serving.sql.columns import Columns
from stateside.serving.sql.ending import Ending
from stateside.serving.sql.scope import Scope

CHUNK_ROWS = 50_000  # decoded at once
KEPT_BYTES_MAX = 512 << 20  # in all, of one worker process
KEPT_RELATION_BYTES_MAX = 256 << 20  # of one relation: a larger one is scanned
_TURN_S = 0.05

Chunks = Callable[[], Iterator[tuple[list[bytes], list[bytes]]]]


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a relation in a snapshot: where they come from, what they become, and how many there are at most.

    `state` says what they depend on: rows with an equal one are the same rows.
    """

    name: str
    state: tuple[Any, ...]
    columns: Columns
    chunks: Chunks
    count: int


class Scan:
    """Rows that DuckDB draws out of a snapshot, anew each time that it asks. Valid as long as the snapshot is.

    A snapshot is read by one thread at a time, whatever DuckDB does: `turn` is the lock for it.
    """

    def __init__(self, rows: Rows, scope: Scope, ending: Ending, turn: threading.Lock) -> None:
        self._rows, self._scope, self._ending, self._turn = rows, scope, ending, turn

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        return self._rows.columns.schema

    def __arrow_c_schema__(self) -> object:
        return self.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return pa.RecordBatchReader.from_batches(self.schema, self._told()).__arrow_c_stream__(requested_schema)

    def _told(self) -> Iterator[pa.RecordBatch]:
        """The batches; what goes wrong is noted, for DuckDB would tell of it in its own words."""
        try:
            yield from self._batches()
        except Exception as error:
            self._ending.end(error)
            raise

    def _batches(self) -> Iterator[pa.RecordBatch]:
        chunks = self._rows.chunks()
        while True:
            self._ending.check()
            with self._turn:
                chunk = next(chunks, None)
            if chunk is None:
                return
            yield self._scope.of(self._rows.columns.batch(*chunk))


class Kept:
    """What was read of relations, the newest batch of each, up to a size; what was not asked for longest goes first."""

    def __init__(self, bytes_max: int = KEPT_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._tables: OrderedDict[str, tuple[tuple[Any, ...], pa.Table]] = OrderedDict()
        self._turns: dict[str, threading.Lock] = {}

    def get(self, name: str, state: tuple[Any, ...]) -> pa.Table | None:
        """The rows of a relation in this state, if they are kept."""
        with self._lock:
            found = self._tables.get(name)
            if found is None or found[0] != state:
                return None
            self._tables.move_to_end(name)
            return found[1]

    def put(self, name: str, state: tuple[Any, ...], table: pa.Table) -> None:
        """Keep these rows in place of those that were kept of the relation."""
        with self._lock:
            self._tables.pop(name, None)
            self._tables[name] = state, table
            while self.bytes() > self._bytes_max:
                self._tables.popitem(last=False)

    def bytes(self) -> int:
        """How much memory they take."""
        return sum(table.nbytes for _, table in self._tables.values())

    @contextmanager
    def turn(self, name: str, ending: Ending) -> Iterator[None]:
        """One reads a relation at a time: the others then find it kept."""
        with self._lock:
            turn = self._turns.setdefault(name, threading.Lock())
        while not turn.acquire(timeout=_TURN_S):
            ending.check()
        try:
            yield
        finally:
            turn.release()


def read(rows: Rows, scope: Scope, kept: Kept, ending: Ending) -> pa.Table | None:
    """The rows that the scope has, in memory; None if they would take up too much, and are to be scanned."""
    if scope.prefix:  # a part of them: not worth to be kept, and never all of them
        return _gathered(rows, scope, ending)
    with kept.turn(rows.name, ending):
        table = kept.get(rows.name, rows.state)
        if table is None:
            table = _gathered(rows, Scope(), ending)
            if table is None:
                return None
            kept.put(rows.name, rows.state, table)
    return scope.of(table)


def _gathered(rows: Rows, scope: Scope, ending: Ending) -> pa.Table | None:
    batches, size, seen = [], 0, 0
    for chunk in rows.chunks():
        ending.check()
        batch = scope.of(rows.columns.batch(*chunk))
        batches.append(batch)
        size, seen = size + batch.nbytes, seen + len(chunk[0])
        expected = size if scope.prefix else size * max(rows.count, seen) // seen
        if expected > KEPT_RELATION_BYTES_MAX:
            return None
    return pa.Table.from_batches(batches, rows.columns.schema)
