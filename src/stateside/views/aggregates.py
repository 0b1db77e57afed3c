"""Aggregates: all that Stateside knows about an aggregate function of Spark, one class for each.

    aggregate           buffers                     value                                    over several rows
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
aggregates are for these. The results are those of Spark 4.2, to the last digit; `tests/pipeline/test_aggregates.py`
compares both. A number that grew too large is null or ValueOverflow, as in Spark, never a wrong one.

A rollup changes by the difference of a row's new and old buffers. Subtraction is exact only for integers of unlimited
size, so rollups, and sums over buckets, have the buffers as such integers, the *tally*:

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
the rows at fault have left. Other aggregates have no tally: a minimum cannot be updated when a row leaves.
An impossible rollup is refused, with the reason, before anything runs (`declared_rollups`, `check_rollups`).

To add an aggregate, write its class and add the class to `AGGREGATES`.
"""

from __future__ import annotations

import decimal
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateside.core.errors import CheckpointInvalid, ValueOverflow
from stateside.spark_state.arrow_rows import array_of, arrow_type, filled_numbers, valid_rows, value_array
from stateside.spark_state.types import Decimal, Primitive, SparkType, parse_type
from stateside.spark_state.unsafe_row import Value
from stateside.views.catalogue import Catalogue, ViewColumn, refused

Partial = Sequence[Any]
Tally = Sequence[int]

_LONG_MIN, _LONG_MAX = -(1 << 63), (1 << 63) - 1
_DOUBLE_BITS = 1_074
ROLLUPS_MAX = 16
_ROLLUPS_EXAMPLE = 'Write it like key=["customer", "country"], rollups=[["country"]]'
_AVERAGE_DIGITS = 4  # that Spark's average of decimals has more than the decimals
_WHOLE_TYPES = tuple(map(Primitive, ("byte", "short", "integer", "long")))
_EXACT = decimal.Context(prec=200, rounding=decimal.ROUND_HALF_UP)


@dataclass(frozen=True, slots=True)
class BufferType:
    """The types that a buffer can have, and their description."""

    described: str
    fits: Callable[[SparkType], bool]


_LONG = BufferType("a long", lambda type_: type_ == Primitive("long"))
_WHOLE = BufferType("a byte, short, integer or long", lambda type_: type_ in _WHOLE_TYPES)
_DOUBLE = BufferType("a double", lambda type_: type_ == Primitive("double"))
_LONG_OR_DOUBLE = BufferType("a long or a double", lambda type_: type_ in (Primitive("long"), Primitive("double")))
_DECIMAL = BufferType("a decimal", lambda type_: isinstance(type_, Decimal))
_EMPTY = BufferType("a boolean (isEmpty)", lambda type_: type_ == Primitive("boolean"))
_SET = BufferType("a boolean (valueSet)", lambda type_: type_ == Primitive("boolean"))
_ANY = BufferType("one buffer of any type", lambda type_: True)


class Aggregate:
    """One column of a view: its value in a row, over several rows, in a rollup, and in Arrow.

    Over several rows, `partial` has a row's part, `merge` combines two parts, and `total` is the value of the result.
    """

    name: ClassVar[str]  # in the catalogue and in declarations
    function: ClassVar[str | None] = None  # Spark's class in a plan; None: has a form of its own in `derivation`
    buffers: ClassVar[tuple[BufferType, ...]] = (_ANY,)
    has_buffer_type: ClassVar[bool] = True  # the column's type is that of its first buffer
    apart: ClassVar[str | None] = None  # why values of several rows cannot be combined
    apart_finished: ClassVar[str | None] = None  # why not, if only their finished values are known
    if_too_large: ClassVar[str] = (  # the next step
        "Ask for a shorter range; or run the view on a new folder with a wider type, or with try_sum"
    )
    tally_size: int = 0  # the count of integers in a rollup; 0: no rollup has the column

    def __init__(self, column: ViewColumn) -> None:
        self.column = column
        self.places = [buffer.index for buffer in column.buffers]
        self.type = parse_type(column.type)
        self.buffer_type = parse_type(column.buffers[0].type)
        self._first, self._second = (*self.places, -1)[:2]

    @classmethod
    def fits(cls, types: Sequence[SparkType]) -> bool:
        """Whether buffers of these types can be the aggregate's."""
        pairs = zip(cls.buffers, types, strict=False)
        return len(types) == len(cls.buffers) and all(buffer.fits(type_) for buffer, type_ in pairs)

    @property
    def is_stored(self) -> bool:
        """Whether the value is the first buffer as it is."""
        return type(self).finish is Aggregate.finish

    def finish(self, buffers: Partial) -> Value:
        """The column's value from its buffers."""
        value: Value = buffers[0]
        return value

    def finish_arrays(self, buffers: Sequence[pa.Array]) -> pa.Array:
        """The column's values in many rows, the same as of `finish`."""
        if self.is_stored:
            return buffers[0]
        found = self._finish_at_once(buffers)
        if found is not None:
            return found
        rows = zip(*(buffer.to_pylist() for buffer in buffers), strict=True)
        return value_array(self.type, [self.finish(row) for row in rows])

    def partial(self, row: Sequence[Any]) -> Partial:
        """The part of a row of the state: its buffers, or its tally."""
        return [row[place] for place in self.places]

    def partial_of(self, value: Value) -> Partial:
        """The part of a row by its finished value, as an archive has it; only where `apart_finished` is None.

        ValueOverflow for a null that may stand for nothing, or for a number that was too large.
        """
        if value is None and self.column.null_on_overflow:
            raise ValueOverflow(
                f"A sealed row has no {self.column.name!r}: it had no values, or became too large",
                next_step="Ask for the rows, or for live ones alone: source=live",
            )
        return self.partial({self._first: self._buffer_of(value), self._second: value is None})  # type: ignore[arg-type]

    def _buffer_of(self, value: Value) -> Any:
        """The first buffer of a row with this value."""
        return value

    def merge(self, one: Partial, other: Partial) -> Partial:
        """Two parts combined, `other` being the later one; only where `apart` is None."""
        raise AssertionError(f"{self.column.name} stays apart: {self.apart}")

    def total(self, partial: Partial) -> Value:
        """The value of combined parts; null or ValueOverflow if too large, as for a row."""
        return self.finish(partial)

    def _finish_at_once(self, buffers: Sequence[pa.Array]) -> pa.Array | None:
        """The finished column; None where some row needs a closer look, or there is no vector form."""
        return None

    def _overflown(self) -> None:
        """Spark's behaviour for a number too large: null, or an error."""
        if not self.column.null_on_overflow:
            raise ValueOverflow(
                f"The column {self.column.name!r} has grown too large for its type {self.column.type}",
                next_step=self.if_too_large,
            )


class _Additive(Aggregate):
    """An aggregate with a tally: parts are integers, added for rows that come and subtracted for rows that leave."""

    def __init__(self, column: ViewColumn) -> None:
        super().__init__(column)
        self._scale = self.buffer_type.scale if isinstance(self.buffer_type, Decimal) else None

    def merge(self, one: Partial, other: Partial) -> Partial:
        return list(map(operator.add, one, other))

    def total(self, partial: Partial) -> Value:
        return self.finish(self._buffers(partial))

    def _buffers(self, tally: Tally) -> Partial:
        """The buffers that a tally stands for."""
        raise NotImplementedError

    def _long(self, number: int) -> int:
        """The number; ValueOverflow if too large for the buffer, which has no null for an overflow."""
        if not _LONG_MIN <= number <= _LONG_MAX:
            raise ValueOverflow(
                f"The column {self.column.name!r} of all rows together is too large for {self.column.type}",
                next_step="Ask for the rows, or for a shorter range; or run the view on a new folder with a wider type,"
                " or with try_sum",
            )
        return number

    def _scaled(self, unscaled: int) -> Value:
        """The buffer's number; null if too large for the buffer."""
        if not isinstance(self.buffer_type, Decimal):
            return unscaled if _LONG_MIN <= unscaled <= _LONG_MAX else None
        return _decimal(self.buffer_type, unscaled) if abs(unscaled) < 10**self.buffer_type.precision else None


class Count(_Additive):
    name, function, buffers, tally_size = "count", "Count", (_LONG,), 1

    def partial(self, row: Sequence[Any]) -> Tally:
        return (row[self._first],)

    def _buffers(self, tally: Tally) -> Partial:
        return [self._long(tally[0])]


class Sum(_Additive):
    name, buffers = "sum", (_LONG_OR_DOUBLE,)
    function: ClassVar[str | None] = "Sum"

    def __init__(self, column: ViewColumn) -> None:
        super().__init__(column)
        self._of_doubles = self.buffer_type == Primitive("double")
        self.tally_size = 5 if self._of_doubles else 2

    def partial(self, row: Sequence[Any]) -> Tally:
        number = row[self._first]
        if self._of_doubles:
            return (0, 0, 0, 0, 0) if number is None else (*_units(number), 1)
        return (0, 0) if number is None else (number, 1)

    def _buffers(self, tally: Tally) -> Partial:
        if not tally[-1]:
            return [None]
        return [_double(tally[:-1]) if self._of_doubles else self._long(tally[0])]


class UnscaledSum(Sum):
    name, function, buffers, has_buffer_type = "unscaled_sum", None, (_LONG,), False

    def _buffer_of(self, value: Any) -> Any:
        assert isinstance(self.type, Decimal)
        return None if value is None else int(value.scaleb(self.type.scale, _EXACT))

    def finish(self, buffers: Partial) -> Value:
        assert isinstance(self.type, Decimal)
        if buffers[0] is None:
            return None
        if abs(buffers[0]) >= 10**self.type.precision:
            self._overflown()
            return None
        return _decimal(self.type, buffers[0])

    def _finish_at_once(self, buffers: Sequence[pa.Array]) -> pa.Array | None:
        assert isinstance(self.type, Decimal)
        low, largest = filled_numbers(buffers[0]), 10**self.type.precision
        if len(low) and (int(low.max()) >= largest or int(low.min()) <= -largest):
            return None
        return array_of(arrow_type(self.type), valid_rows(buffers[0]), np.stack([low, low >> 63], axis=1))


class TrySum(_Additive):
    """A sum that is null but not empty was too large."""

    name, function, buffers, tally_size = "try_sum", "Sum", (_LONG, _EMPTY), 3

    def finish(self, buffers: Partial) -> Value:
        total, empty = buffers
        if not empty and total is None:
            self._overflown()
        return None if empty else total

    def partial(self, row: Sequence[Any]) -> Tally:
        total = row[self._first]
        if row[self._second]:
            return 0, 0, 0
        if total is None:
            return 0, 1, 1
        return (total if self._scale is None else int(total.scaleb(self._scale, _EXACT))), 1, 0

    def _buffers(self, tally: Tally) -> Partial:
        total, full, too_large = tally
        return [None if too_large else self._scaled(total), not full]

    def _finish_at_once(self, buffers: Sequence[pa.Array]) -> pa.Array | None:
        total, empty = buffers
        if empty.null_count or pc.any(pc.and_(pc.is_null(total), pc.invert(empty))).as_py():
            return None  # a sum overflowed
        return pc.if_else(empty, pa.scalar(None, total.type), total)


class DecimalSum(TrySum):
    name, buffers = "decimal_sum", (_DECIMAL, _EMPTY)


class _Mean(_Additive):
    tally_size, apart_finished = 5, "a sealed row has the average without its count"

    def finish(self, buffers: Partial) -> Value:
        total, count = buffers
        return total / count if count else None

    def partial(self, row: Sequence[Any]) -> Tally:
        return *_units(row[self._first]), row[self._second]

    def _buffers(self, tally: Tally) -> Partial:
        return [_double(tally[:-1]), tally[-1]]


class Average(_Mean):
    name, function, buffers = "average", "Average", (_DOUBLE, _LONG)

    def _finish_at_once(self, buffers: Sequence[pa.Array]) -> pa.Array | None:
        if buffers[0].null_count or buffers[1].null_count:
            return None
        totals, counts = (buffer.to_numpy(zero_copy_only=False) for buffer in buffers)
        with np.errstate(all="ignore"):  # a count of 0 has no average
            return array_of(pa.float64(), counts != 0, totals / counts)


class UnscaledAverage(_Mean):
    name, buffers, has_buffer_type = "unscaled_average", (_DOUBLE, _LONG), False

    def finish(self, buffers: Partial) -> Value:
        assert isinstance(self.type, Decimal)
        mean = super().finish(buffers)
        if mean is None:
            return None
        exact = decimal.Decimal(repr(mean / math.pow(10.0, self.type.scale - _AVERAGE_DIGITS)))  # type: ignore[operator]
        return exact.quantize(decimal.Decimal(1).scaleb(-self.type.scale), context=_EXACT)


class DecimalAverage(_Additive):
    name, function, buffers, has_buffer_type = "decimal_average", "Average", (_DECIMAL, _LONG), False
    tally_size, apart_finished = 3, _Mean.apart_finished

    def finish(self, buffers: Partial) -> Value:
        assert isinstance(self.type, Decimal)
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
        return _decimal(self.type, rounded if unscaled >= 0 else -rounded)

    def partial(self, row: Sequence[Any]) -> Tally:
        total, count = row[self._first], row[self._second]
        return (0, count, 1) if total is None else (int(total.scaleb(self._scale, _EXACT)), count, 0)

    def _buffers(self, tally: Tally) -> Partial:
        total, count, too_large = tally
        return [None if too_large else self._scaled(total), count]


class _Extreme(Aggregate):
    """The part with the extreme last buffer; parts without one do not count."""

    def merge(self, one: Partial, other: Partial) -> Partial:
        if one[-1] is None or other[-1] is None:
            return one if other[-1] is None else other
        return one if self._prefers(in_order(one[-1]), in_order(other[-1])) else other

    def _prefers(self, one: Any, other: Any) -> bool:
        """Whether the earlier one stays."""
        raise NotImplementedError


class Min(_Extreme):
    name, function = "min", "Min"

    def _prefers(self, one: Any, other: Any) -> bool:
        return bool(one < other)


class Max(_Extreme):
    name, function = "max", "Max"

    def _prefers(self, one: Any, other: Any) -> bool:
        return bool(one > other)


class MinBy(Min):
    name, function, buffers = "min_by", "MinBy", (_ANY, _ANY)
    apart_finished = "a sealed row has the value without its ordering"


class MaxBy(Max):
    name, function, buffers = "max_by", "MaxBy", (_ANY, _ANY)
    apart_finished = MinBy.apart_finished


class _Bits(Aggregate):
    buffers = (_WHOLE,)

    def merge(self, one: Partial, other: Partial) -> Partial:
        if one[0] is None or other[0] is None:
            return one if other[0] is None else other
        return [self._combine(one[0], other[0])]

    def _combine(self, one: int, other: int) -> int:
        raise NotImplementedError


class BitAnd(_Bits):
    name, function = "bit_and", "BitAndAgg"

    def _combine(self, one: int, other: int) -> int:
        return one & other


class BitOr(_Bits):
    name, function = "bit_or", "BitOrAgg"

    def _combine(self, one: int, other: int) -> int:
        return one | other


class BitXor(_Bits):
    name, function = "bit_xor", "BitXorAgg"

    def _combine(self, one: int, other: int) -> int:
        return one ^ other


class First(Aggregate):
    name, function, buffers = "first", "First", (_ANY, _SET)
    apart = "it depends on the order in which events came in, which buckets do not keep"


class Last(First):
    name, function = "last", "Last"


class StateField(Aggregate):
    name = "value"
    apart = "only the processor that keeps it knows what it means"


AGGREGATES: dict[str, type[Aggregate]] = {
    each.name: each
    for each in (
        *(Count, Sum, TrySum, DecimalSum, UnscaledSum, Average, DecimalAverage, UnscaledAverage),
        *(Min, Max, MinBy, MaxBy, BitAnd, BitOr, BitXor, First, Last, StateField),
    )
}


def aggregate_of(column: ViewColumn) -> Aggregate:
    """The aggregate of a column; CheckpointInvalid if unknown to this version."""
    if column.aggregate not in AGGREGATES:
        raise CheckpointInvalid(
            f"The catalogue makes the column {column.name!r} by {column.aggregate!r}, which is not known",
            next_step="It was written by a newer Stateside: serve it with that one",
        )
    return AGGREGATES[column.aggregate](column)


def in_rollups(columns: Iterable[ViewColumn]) -> list[Aggregate]:
    """The aggregates with a tally: the columns of a view's rollups."""
    return [made for made in map(aggregate_of, columns) if made.tally_size]


def not_in_rollups(catalogue: Catalogue) -> list[str]:
    """The columns missing from the view's rollups, such as minima and maxima; none without rollups."""
    kept = [made.column for made in in_rollups(catalogue.columns)]
    return [column.name for column in catalogue.columns if catalogue.rollups and column not in kept]


def declared_rollups(view: str, key: Sequence[str], rollups: Sequence[Sequence[str]]) -> tuple[tuple[str, ...], ...]:
    """The rollups of a view's declaration; ViewInvalid if one is no coarser key of this key."""
    if isinstance(rollups, str) or any(isinstance(columns, str) for columns in rollups):
        raise refused(view, f"its rollups are {rollups!r}, not a list of lists of columns", _ROLLUPS_EXAMPLE)
    declared = tuple(tuple(columns) for columns in rollups)
    if len(declared) > ROLLUPS_MAX:
        raise refused(view, f"it has {len(declared)} rollups, more than {ROLLUPS_MAX}", "Ask for fewer of them")
    for number, columns in enumerate(declared):
        _check_rollup(view, key, columns)
        if columns in declared[:number]:
            raise refused(view, f"its rollup {list(columns)} is there twice", "Leave one of them out")
    return declared


def check_rollups(catalogue: Catalogue) -> None:
    """ViewInvalid if the view's columns or the kind of its key do not allow its rollups."""
    if not catalogue.rollups:
        return
    if catalogue.kind == "state-variable":
        raise refused(
            catalogue.view,
            "it has rollups of a state variable, of which only the processor that keeps it knows how to add it up",
            "Leave the rollups out, or keep the sums in a state variable of their own",
        )
    sessions = {column.name for column in catalogue.key if column.whole is not None}
    for columns in catalogue.rollups:
        for name in sessions.intersection(columns):
            raise refused(
                catalogue.view,
                f"its rollup {list(columns)} has the session window {name!r}, which no two rows have in common",
                f"Leave {name!r} out of it",
            )
    if not in_rollups(catalogue.columns):
        raise refused(
            catalogue.view,
            f"none of its columns {[column.name for column in catalogue.columns]} can be added up and taken away again",
            "Rollups have counts, sums and averages: serve one of these as well, or leave the rollups out",
        )


def _check_rollup(view: str, key: Sequence[str], columns: Sequence[str]) -> None:
    for name in columns:
        if name not in key:
            raise refused(
                view, f"its rollup {list(columns)} has {name!r}, which its key does not", f"Its key has {list(key)}"
            )
        if "," in name or "/" in name:
            raise refused(
                view, f"its rollup's column {name!r} has a comma or a slash", "Give it another name with alias(…)"
            )
    if len(set(columns)) < len(columns):
        raise refused(view, f"its rollup {list(columns)} has a column twice", "Name each once")
    if set(columns) == set(key):
        raise refused(
            view, f"its rollup {list(columns)} has all columns of its key", "Leave some out: else it is the view itself"
        )


def in_order(value: Value) -> tuple[Any, ...]:
    """A sort key in Spark's order: null before everything else, NaN after all numbers."""
    if value is None:
        return (0,)
    if isinstance(value, tuple):
        return (1, tuple(in_order(part) for part in value))
    if isinstance(value, float) and math.isnan(value):
        return (2,)
    return (1, value)


def _decimal(type_: Decimal, unscaled: int) -> decimal.Decimal:
    return decimal.Decimal(unscaled).scaleb(-type_.scale, _EXACT)


def _units(number: float) -> tuple[int, int, int, int]:
    """A double as integers: its units of 2^-1074, then whether it is NaN, Infinity, -Infinity."""
    if number - number == 0.0:
        numerator, denominator = number.as_integer_ratio()
        return numerator * ((1 << _DOUBLE_BITS) // denominator), 0, 0, 0
    return 0, int(number != number), int(number > 0), int(number < 0)


def _double(numbers: Tally) -> float:
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
