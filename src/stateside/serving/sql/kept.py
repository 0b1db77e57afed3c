"""What was read of relations, kept for the next statement.

Of each relation there is one state, that of the newest batch that somebody asked for. When the replica has moved on,
what changed meanwhile is found in its history, and only that is read: so a statement over a view that is being written
is nearly as fast as one over a view that stands still. Everything is read anew if the history does not reach back, too
much changed, or the view was declared anew.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import pyarrow as pa

from stateside.serving.sql.chunk import Change, Chunk
from stateside.serving.sql.columns import Columns
from stateside.serving.sql.ending import Ending

KEPT_BYTES_MAX = 1 << 30
KEPT_RELATION_BYTES_MAX = 768 << 20  # of one relation, and three quarters of all: a larger one is scanned
_TURN_S = 0.05


@dataclass(frozen=True, slots=True)
class State:
    """What rows depend on: a batch, by its number and fingerprint, of a replica that was made `so`."""

    so: tuple[Any, ...]
    batch: int
    fingerprint: str


@dataclass(frozen=True, slots=True)
class KeptRows:
    """The rows of a relation in a state. `in_order`: so are the keys, and it can be moved."""

    state: State
    schema: pa.Schema
    chunks: tuple[Chunk, ...]
    in_order: bool = True

    def table(self) -> pa.Table:
        """All rows; nothing is copied."""
        return pa.Table.from_batches([chunk.rows for chunk in self.chunks], self.schema)

    @property
    def nbytes(self) -> int:
        """How much memory they take."""
        return sum(chunk.nbytes for chunk in self.chunks)

    @property
    def count(self) -> int:
        """How many rows there are."""
        return sum(len(chunk.keys) for chunk in self.chunks)

    def moved(self, state: State, columns: Columns, changes: Sequence[Change]) -> KeptRows:
        """The rows in a later state, which differs by these changes, in order of their keys."""
        chunks: list[Chunk] = []
        if not self.chunks:
            there = [(key, row) for key, row in changes if row is not None]
            new = Chunk.of(columns, [key for key, _ in there], [row for _, row in there])
            return KeptRows(state, self.schema, tuple(new.divided()))
        firsts = [chunk.keys[0] for chunk in self.chunks[1:]]
        touched = {
            place: list(of) for place, of in groupby(changes, key=lambda change: bisect_right(firsts, change[0]))
        }
        for place, chunk in enumerate(self.chunks):
            chunks.extend(chunk.moved(columns, touched[place]) if place in touched else [chunk])
        return KeptRows(state, self.schema, tuple(chunks))


class Kept:
    """The kept rows of one SQL process, up to a size; what was not asked for longest goes first."""

    def __init__(self, bytes_max: int = KEPT_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._rows: OrderedDict[str, KeptRows] = OrderedDict()
        self._turns: dict[str, threading.Lock] = {}

    @property
    def relation_bytes_max(self) -> int:
        """How much memory the rows of one relation may take."""
        return min(KEPT_RELATION_BYTES_MAX, self._bytes_max * 3 // 4)

    def get(self, name: str) -> KeptRows | None:
        """What is kept of a relation."""
        with self._lock:
            if name in self._rows:
                self._rows.move_to_end(name)
            return self._rows.get(name)

    def put(self, name: str, rows: KeptRows) -> None:
        """Keep these rows in place of those that were kept of the relation."""
        with self._lock:
            self._rows.pop(name, None)
            self._rows[name] = rows
            while self.nbytes > self._bytes_max:
                self._rows.popitem(last=False)

    @property
    def nbytes(self) -> int:
        """How much memory it takes."""
        return sum(rows.nbytes for rows in self._rows.values())

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
