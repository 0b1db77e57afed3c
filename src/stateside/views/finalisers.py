"""Finalisers: how an aggregate's buffers become a column's value, and how buffers of several buckets are merged.

    finaliser           buffers                     value                                    over several buckets
    count               count                       the count                                added
    sum                 sum                         the sum; null if there was no value      added
    try_sum             sum, isEmpty                the sum; null too if it was too large    added
    decimal_sum         sum, isEmpty                the sum                                  added
    unscaled_sum        sum (long)                  the sum with its decimal point           added
    average             sum (double), count         sum / count                              both added
    decimal_average     sum, count                  sum / count, rounded half up             both added
    unscaled_average    sum (double), count         sum / count / 10^scale, as a decimal     both added
    min, max            min or max                  the buffer                               the least, the largest
    bit_and, _or, _xor  the bits                    the buffer                               combined
    max_by, min_by      value, ordering             the value                                the extreme one's value
    first, last         value, valueSet             the value                                not possible
    value               a state variable's field    the field                                not possible

Spark keeps small decimals (up to 8 digits in sums, 11 in averages) as their unscaled numbers; the two `unscaled`
finalisers are for these. The results are those of Spark 4.2, to the last digit; `tests/pipeline/test_aggregates.py`
compares both. A number that grew too large is null or ValueOverflow, as in Spark, never a wrong one.
"""

from __future__ import annotations

import decimal
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

from stateside.core.errors import CheckpointInvalid, ValueOverflow
from stateside.spark_state.types import Decimal, SparkType, parse_type
from stateside.spark_state.unsafe_row import Value
from stateside.views.catalogue import ViewColumn

Buffers = Sequence[Any]

_LONG_MIN, _LONG_MAX = -(1 << 63), (1 << 63) - 1
_EXACT = decimal.Context(prec=200, rounding=decimal.ROUND_HALF_UP)


class Finaliser:
    """One column's finaliser: `finish` returns the value, `merge` combines two sets of buffers (if `apart` is None)."""

    apart: str | None = None  # why the column's values of several buckets cannot be combined

    def __init__(self, column: ViewColumn) -> None:
        self.column = column
        self.places = [buffer.index for buffer in column.buffers]
        self.type = parse_type(column.type)
        self.buffer_type = parse_type(column.buffers[0].type)

    def finish(self, buffers: Buffers) -> Value:
        """The column's value."""
        value: Value = buffers[0]
        return value

    def merge(self, one: Buffers, other: Buffers) -> Buffers:
        """The merged buffers, `other` being the later ones; only where `apart` is None."""
        raise AssertionError(f"{self.column.name} stays apart: {self.apart}")

    def _overflown(self) -> None:
        """Spark's behaviour for a number too large: null, or an error."""
        if not self.column.null_on_overflow:
            raise ValueOverflow(
                f"The column {self.column.name!r} has grown too large for its type {self.column.type}",
                next_step="Ask for a shorter range; or run the view on a new folder with a wider type, or with try_sum",
            )


def finaliser(column: ViewColumn) -> Finaliser:
    """The finaliser of a column, by its name in the catalogue; CheckpointInvalid if unknown to this version."""
    if column.finaliser not in _FINALISERS:
        raise CheckpointInvalid(
            f"The catalogue finalises the column {column.name!r} by {column.finaliser!r}, which is not known",
            next_step="It was written by a newer Stateside: serve it with that one",
        )
    return _FINALISERS[column.finaliser](column)


class _Count(Finaliser):
    def merge(self, one: Buffers, other: Buffers) -> Buffers:
        return [_fitting(self, one[0] + other[0])]


class _Sum(Finaliser):
    def merge(self, one: Buffers, other: Buffers) -> Buffers:
        if one[0] is None or other[0] is None:
            return [one[0] if other[0] is None else other[0]]
        return [_fitting(self, one[0] + other[0])]


class _SumOrEmpty(Finaliser):
    """A sum that is null but not empty was too large."""

    def finish(self, buffers: Buffers) -> Value:
        total, empty = buffers
        if not empty and total is None:
            self._overflown()
        return None if empty else total

    def merge(self, one: Buffers, other: Buffers) -> Buffers:
        (total, empty), (further, without) = one, other
        if (total is None and not empty) or (further is None and not without):
            return [None, False]
        return [_fitting(self, _EXACT.add(total, further)), empty and without]


class _TrySum(_SumOrEmpty):
    def merge(self, one: Buffers, other: Buffers) -> Buffers:
        (total, empty), (further, without) = one, other
        if (total is None and not empty) or (further is None and not without):
            return [None, False]
        total += further
        return [total if _LONG_MIN <= total <= _LONG_MAX else None, empty and without]


class _UnscaledSum(_Sum):
    def finish(self, buffers: Buffers) -> Value:
        assert isinstance(self.type, Decimal)
        if buffers[0] is None:
            return None
        if abs(buffers[0]) >= 10**self.type.precision:
            self._overflown()
            return None
        return decimal.Decimal(buffers[0]).scaleb(-self.type.scale, _EXACT)


class _Average(Finaliser):
    def finish(self, buffers: Buffers) -> Value:
        total, count = buffers
        return total / count if count else None

    def merge(self, one: Buffers, other: Buffers) -> Buffers:
        return [one[0] + other[0], one[1] + other[1]]


class _DecimalAverage(Finaliser):
    def finish(self, buffers: Buffers) -> Value:
        assert isinstance(self.type, Decimal)
        assert isinstance(self.buffer_type, Decimal)
        total, count = buffers
        if not count:
            return None
        if total is None:
            self._overflown()
            return None
        unscaled = int(total.scaleb(self.type.scale, _EXACT))
        rounded = (2 * abs(unscaled) + count) // (2 * count)
        if rounded >= 10**self.type.precision:
            self._overflown()
            return None
        return decimal.Decimal(rounded if unscaled >= 0 else -rounded).scaleb(-self.type.scale, _EXACT)

    def merge(self, one: Buffers, other: Buffers) -> Buffers:
        known = one[0] is not None and other[0] is not None
        return [_fitting(self, _EXACT.add(one[0], other[0])) if known else None, one[1] + other[1]]


class _UnscaledAverage(_Average):
    def finish(self, buffers: Buffers) -> Value:
        assert isinstance(self.type, Decimal)
        mean = super().finish(buffers)
        if mean is None:
            return None
        digits_behind = self.type.scale - 4  # of the summed numbers: Spark's average of a decimal has 4 more
        exact = decimal.Decimal(repr(mean / math.pow(10.0, digits_behind)))  # type: ignore[operator]
        return exact.quantize(decimal.Decimal(1).scaleb(-self.type.scale), context=_EXACT)


class _Extreme(Finaliser):
    def merge(self, one: Buffers, other: Buffers) -> Buffers:
        if one[0] is None or other[0] is None:
            return one if other[0] is None else other
        first = in_order(one[0]) <= in_order(other[0])
        return one if first == (self.column.finaliser == "min") else other


class _ExtremeBy(Finaliser):
    def merge(self, one: Buffers, other: Buffers) -> Buffers:
        if one[1] is None or other[1] is None:
            return one if other[1] is None else other
        left, right = in_order(one[1]), in_order(other[1])
        return one if (left > right if self.column.finaliser == "max_by" else left < right) else other


class _Bits(Finaliser):
    def merge(self, one: Buffers, other: Buffers) -> Buffers:
        if one[0] is None or other[0] is None:
            return one if other[0] is None else other
        return [_BIT_OPERATORS[self.column.finaliser](one[0], other[0])]


class _Met(Finaliser):
    apart = "it depends on the order in which events came in, which buckets do not keep"


class _Free(Finaliser):
    apart = "only the processor that keeps it knows what it means"


_BIT_OPERATORS: dict[str, Callable[[int, int], int]] = {
    "bit_and": operator.and_,
    "bit_or": operator.or_,
    "bit_xor": operator.xor,
}
_FINALISERS: dict[str, type[Finaliser]] = {
    "count": _Count,
    "sum": _Sum,
    "try_sum": _TrySum,
    "decimal_sum": _SumOrEmpty,
    "unscaled_sum": _UnscaledSum,
    "average": _Average,
    "decimal_average": _DecimalAverage,
    "unscaled_average": _UnscaledAverage,
    **dict.fromkeys(("min", "max"), _Extreme),
    **dict.fromkeys(("max_by", "min_by"), _ExtremeBy),
    **dict.fromkeys(_BIT_OPERATORS, _Bits),
    **dict.fromkeys(("first", "last"), _Met),
    "value": _Free,
}


def in_order(value: Value) -> tuple[Any, ...]:
    """A sort key in Spark's order: null before everything else, NaN after all numbers."""
    if value is None:
        return (0,)
    if isinstance(value, tuple):
        return (1, tuple(in_order(part) for part in value))
    if isinstance(value, float) and math.isnan(value):
        return (2,)
    return (1, value)


def _fitting(of: Finaliser, total: Any) -> Any:
    """The total, if it fits the buffer; else null for a decimal, ValueOverflow for an integer, which has no null."""
    if _fits(of.buffer_type, total):
        return total
    if not isinstance(total, decimal.Decimal):
        raise ValueOverflow(
            f"The column {of.column.name!r} of these buckets together is too large for {of.column.type}",
            next_step="Ask for a shorter range",
        )
    return None


def _fits(type_: SparkType, total: Any) -> bool:
    if isinstance(total, float):
        return True
    if isinstance(type_, Decimal):
        return bool(total.copy_abs().scaleb(type_.scale, _EXACT) < 10**type_.precision)
    return bool(_LONG_MIN <= total <= _LONG_MAX)
