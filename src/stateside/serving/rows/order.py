"""The order of an answer's rows, where it is not that of their keys: by one column, the first few.

Rows with the same value stand in the order of their keys. Null is the least of all values, NaN the greatest.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass

from stateside.serving.rows.view_columns import ColumnSet, Comparable, Values

Found = tuple[bytes, Values]  # a row: its key, as the replica has it, and its values


@dataclass(frozen=True, slots=True)
class Order:
    """By a column, from the least value on or, descending, from the greatest."""

    column: Comparable
    descending: bool

    @classmethod
    def parse(cls, columns: ColumnSet, text: str) -> Order:
        """`total`, or `-total` for descending; RequestInvalid if there is no such column, or it cannot be compared."""
        descending = text.startswith("-")
        return cls(columns.comparable(text[1:] if descending else text), descending)

    def first(self, rows: Iterable[Found], count: int) -> list[Found]:
        """The first rows in this order, of rows that come in the order of their keys. Memory: as many rows as that."""
        choose = heapq.nlargest if self.descending else heapq.nsmallest  # both leave equal ones in their order
        return choose(count, rows, key=lambda row: self._rank(row))

    def is_behind(self, row: Found, last: Found) -> bool:
        """Whether a row stands behind another one."""
        rank, before = self._rank(row), self._rank(last)
        if rank == before:
            return row[0] > last[0]
        return (rank < before) == self.descending

    def _rank(self, row: Found) -> tuple[object, ...]:
        return self.column.rank(self.column.of(row[1]))
