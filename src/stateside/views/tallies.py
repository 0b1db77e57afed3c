"""Tallies: an aggregate's buffers as integers, added for rows that enter a rollup and subtracted for rows that leave.

A rollup changes by the difference of a row's new and old buffers. Subtraction is exact only for integers of unlimited
size, so a tally consists of such, and the finaliser's buffers are derived from them at read time:

    finaliser                    tally
    count                        the count
    sum of whole numbers         sum, rows with a sum
    unscaled_sum                 the same
    sum of doubles               sum, rows with a sum
    try_sum, decimal_sum         sum, rows that are not empty, rows that were too large
    average, unscaled_average    sum, count
    decimal_average              sum, count, rows that were too large

    where doubles are summed     the sum of the finite ones, in units of 2^-1074, of which each is a multiple; then how
                                 many are NaN, Infinity, -Infinity

A sum of doubles is therefore rounded once, and is the same in whatever order rows came and went. An overflow ends once
the rows at fault have left. Other finalisers have no tally: a minimum cannot be updated when a row leaves.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable, Iterable, Sequence

from stateside.core.errors import ValueOverflow
from stateside.spark_state.types import Decimal, Primitive
from stateside.spark_state.unsafe_row import Value
from stateside.views.catalogue import Catalogue, ViewColumn
from stateside.views.finalisers import Buffers, Finaliser, finaliser

Numbers = Sequence[int]

_LONG_MIN, _LONG_MAX = -(1 << 63), (1 << 63) - 1
_DOUBLE_BITS = 1_074
_EXACT = decimal.Context(prec=200)


def tallied(columns: Iterable[ViewColumn]) -> list[ViewColumn]:
    """The columns with a tally: the columns of a view's rollups."""
    return [column for column in columns if column.finaliser in _TALLIES]


def not_in_rollups(catalogue: Catalogue) -> list[str]:
    """The columns missing from the view's rollups, such as minima and maxima; none without rollups."""
    return [column.name for column in catalogue.columns if catalogue.rollups and column.finaliser not in _TALLIES]


class Tally:
    """The tally of one column. `numbers` of several rows are added element by element; `value` is that of their sum."""

    size = 1  # the count of numbers

    def __init__(self, column: ViewColumn) -> None:
        self.column = column
        self._finaliser: Finaliser = finaliser(column)
        self._first, self._second = (*self._finaliser.places, -1)[:2]
        self._type = self._finaliser.buffer_type

    def numbers(self, row: Buffers) -> Numbers:
        """The numbers of one row of the state, from its buffers."""
        raise NotImplementedError

    def value(self, numbers: Numbers) -> Value:
        """The column's value; null or ValueOverflow if too large, as for a row."""
        return self._finaliser.finish(self._buffers(numbers))

    def _buffers(self, numbers: Numbers) -> Buffers:
        raise NotImplementedError

    def _long(self, number: int) -> int:
        """The number; ValueOverflow if too large for the buffer, which has no null for an overflow."""
        if not _LONG_MIN <= number <= _LONG_MAX:
            raise ValueOverflow(
                f"The column {self.column.name!r} of all rows together is too large for {self.column.type}",
                next_step="Ask for the rows; or run the view on a new folder with a wider type, or with try_sum",
            )
        return number


def tally(column: ViewColumn) -> Tally:
    """The tally of a column from `tallied`."""
    return _TALLIES[column.finaliser](column)


class _Count(Tally):
    def numbers(self, row: Buffers) -> Numbers:
        return (row[self._first],)

    def _buffers(self, numbers: Numbers) -> Buffers:
        return [self._long(numbers[0])]


class _Sum(Tally):
    size = 2

    def numbers(self, row: Buffers) -> Numbers:
        total = row[self._first]
        return (0, 0) if total is None else (total, 1)

    def _buffers(self, numbers: Numbers) -> Buffers:
        return [self._long(numbers[0]) if numbers[1] else None]


class _DoubleSum(Tally):
    size = 5

    def numbers(self, row: Buffers) -> Numbers:
        total = row[self._first]
        return (0, 0, 0, 0, 0) if total is None else (*_exact(total), 1)

    def _buffers(self, numbers: Numbers) -> Buffers:
        return [_rounded(numbers[:4]) if numbers[4] else None]


class _SumOrEmpty(Tally):
    size = 3

    def numbers(self, row: Buffers) -> Numbers:
        total, empty = row[self._first], row[self._second]
        if empty:
            return 0, 0, 0
        return (0, 1, 1) if total is None else (self._unscaled(total), 1, 0)

    def _buffers(self, numbers: Numbers) -> Buffers:
        total, full, too_large = numbers
        return [None if too_large else self._scaled(total), not full]

    def _unscaled(self, total: decimal.Decimal) -> int:
        return _unscaled(self._decimal, total)

    def _scaled(self, total: int) -> Value:
        return _scaled(self._decimal, total)

    @property
    def _decimal(self) -> Decimal:
        assert isinstance(self._type, Decimal)
        return self._type


class _TrySum(_SumOrEmpty):
    def _unscaled(self, total: int) -> int:  # type: ignore[override]
        return total

    def _scaled(self, total: int) -> Value:
        return total if _LONG_MIN <= total <= _LONG_MAX else None


class _Average(Tally):
    size = 5

    def numbers(self, row: Buffers) -> Numbers:
        return (*_exact(row[self._first]), row[self._second])

    def _buffers(self, numbers: Numbers) -> Buffers:
        return [_rounded(numbers[:4]), numbers[4]]


class _DecimalAverage(Tally):
    size = 3

    def numbers(self, row: Buffers) -> Numbers:
        assert isinstance(self._type, Decimal)
        total, count = row[self._first], row[self._second]
        return (0, count, 1) if total is None else (_unscaled(self._type, total), count, 0)

    def _buffers(self, numbers: Numbers) -> Buffers:
        assert isinstance(self._type, Decimal)
        total, count, too_large = numbers
        return [None if too_large else _scaled(self._type, total), count]


def _sum(column: ViewColumn) -> Tally:
    return (_DoubleSum if finaliser(column).buffer_type == Primitive("double") else _Sum)(column)


_TALLIES: dict[str, Callable[[ViewColumn], Tally]] = {
    "count": _Count,
    "sum": _sum,
    "unscaled_sum": _Sum,
    "try_sum": _TrySum,
    "decimal_sum": _SumOrEmpty,
    "average": _Average,
    "unscaled_average": _Average,
    "decimal_average": _DecimalAverage,
}


def _exact(number: float) -> tuple[int, int, int, int]:
    """A double as integers: its units of 2^-1074, then whether it is NaN, Infinity, -Infinity."""
    if number - number == 0.0:
        numerator, denominator = number.as_integer_ratio()
        return numerator * ((1 << _DOUBLE_BITS) // denominator), 0, 0, 0
    return 0, int(number != number), int(number > 0), int(number < 0)


def _rounded(numbers: Numbers) -> float:
    """The double nearest to a sum of such numbers; infinity beyond the largest double, as in addition of doubles."""
    units, nans, above, below = numbers
    if nans or (above and below):
        return float("nan")
    if above or below:
        return float("inf" if above else "-inf")
    try:
        return units / (1 << _DOUBLE_BITS)
    except OverflowError:
        return float("inf" if units > 0 else "-inf")


def _unscaled(type_: Decimal, total: decimal.Decimal) -> int:
    return int(total.scaleb(type_.scale, _EXACT))


def _scaled(type_: Decimal, unscaled: int) -> decimal.Decimal | None:
    """The decimal, or null if too large for the buffer."""
    if abs(unscaled) >= 10**type_.precision:
        return None
    return decimal.Decimal(unscaled).scaleb(-type_.scale, _EXACT)
