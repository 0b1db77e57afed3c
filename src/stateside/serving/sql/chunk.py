"""Chunks: rows of a relation that lie side by side, in the order of their keys, as Arrow has them.

A chunk has the keys' bytes too, so that it can be *moved* to a later batch: the rows of the keys that changed since
then are replaced, put in between, or left out, and all others are copied as they are, a column at a time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stateside.checkpoint.arrow_rows import array_of
from stateside.serving.sql.columns import Columns

ROWS_MAX = 50_000  # decoded at once; a chunk that grows to twice as many is divided

Change = tuple[bytes, bytes | None]  # a key, and its row now


class Keys(Sequence[bytes]):
    """Keys one after the other in some bytes: four bytes for each beside its own."""

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
        """The keys themselves."""
        ends = self._ends.tolist()
        return [self._content[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]

    @property
    def nbytes(self) -> int:
        """How much memory they take."""
        return len(self._content) + self._ends.nbytes


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some rows and, in the same order, their keys."""

    keys: Keys
    rows: pa.RecordBatch

    @classmethod
    def of(cls, columns: Columns, keys: Sequence[bytes], rows: Sequence[bytes]) -> Chunk:
        """The chunk of these rows of a replica."""
        return cls(Keys(keys), columns.batch(keys, rows))

    @property
    def nbytes(self) -> int:
        """How much memory it takes."""
        return int(self.rows.nbytes) + self.keys.nbytes

    def moved(self, columns: Columns, changes: Sequence[Change]) -> Iterator[Chunk]:
        """The same with these changes, in order of their keys: several if it grew too large, none without rows."""
        there = [(key, row) for key, row in changes if row is not None]
        new = columns.batch([key for key, _ in there], [row for _, row in there])
        order, keys = self._order(changes)
        both = pa.concat_batches([self.rows, new])
        rows = both.take(array_of(pa.int64(), np.ones(len(order), np.bool_), order))
        yield from Chunk(keys, rows).divided()

    def divided(self) -> Iterator[Chunk]:
        """The same as chunks that are not too large; none without rows."""
        if len(self.keys) <= 2 * ROWS_MAX:
            yield from [self] if len(self.keys) else []
            return
        listed = self.keys.all()
        for first in range(0, len(listed), ROWS_MAX):
            yield Chunk(Keys(listed[first : first + ROWS_MAX]), self.rows.slice(first, ROWS_MAX))

    def _order(self, changes: Sequence[Change]) -> tuple[npt.NDArray[np.int64], Keys]:
        """Which rows there are then, of the old ones and behind them the new ones; and their keys."""
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
