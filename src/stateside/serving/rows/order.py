"""Column order: the first rows of an answer by one column instead of by key.

Rows with equal values stand in key order. Null is the least of all values, NaN the greatest.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass

from stateside.serving.rows.view_columns import ColumnSet, Comparable, Values

Found = tuple[bytes, Values]  # encoded key, values


@dataclass(frozen=True, slots=True)
class Order:
    """Ascending or descending order by a column."""

    column: Comparable
    descending: bool

    @classmethod
    def parse(cls, columns: ColumnSet, text: str) -> Order:
        """`total`, or `-total` for descending; RequestInvalid if there is no such comparable column."""
        descending = text.startswith("-")
        return cls(columns.comparable(text[1:] if descending else text), descending)

    def first(self, rows: Iterable[Found], count: int) -> list[Found]:
        """The first `count` rows in this order, of rows in key order. Memory: `count` rows."""
        choose = heapq.nlargest if self.descending else heapq.nsmallest  # both are stable
        return choose(count, rows, key=lambda row: self._rank(row))

    def is_behind(self, row: Found, last: Found) -> bool:
        """Whether a row comes after another one."""
        rank, before = self._rank(row), self._rank(last)
        if rank == before:
            return row[0] > last[0]
        return (rank < before) == self.descending

    def _rank(self, row: Found) -> tuple[object, ...]:
        return self.column.rank(self.column.of(row[1]))
