"""Columns of a view out of the state's, many rows at once: what `finalise` and `computed` do with one row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from stateside.checkpoint.arrow_rows import array_of, arrow_type, plain
from stateside.checkpoint.catalogue import Catalogue
from stateside.checkpoint.computed import KnownSteps
from stateside.checkpoint.finalise import Finaliser
from stateside.checkpoint.types import Decimal, Primitive, SparkType

Longs = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_MONTHS = ("interval year", "interval month", "interval year to month")
_INTERVAL = np.dtype([("months", "<i4"), ("days", "<i4"), ("nanoseconds", "<i8")])


def finished(each: Finaliser, buffers: Sequence[pa.Array]) -> pa.Array:
    """The column's values out of its buffers; ValueOverflow if one grew too large for its type."""
    if type(each).finish is Finaliser.finish:  # the first buffer is the value
        return buffers[0]
    found = _at_once(each, buffers)
    return _one_by_one(each, buffers) if found is None else found


def shown_type(type_: SparkType) -> pa.DataType:
    """The type that SQL has a column of a view in: as in the state, with all intervals as intervals."""
    return pa.month_day_nano_interval() if _in_months(type_) else arrow_type(type_)


def shown(type_: SparkType, column: pa.Array) -> pa.Array:
    """A column of the state as SQL has it."""
    if not _in_months(type_):
        return column if column.type == arrow_type(type_) else column.cast(arrow_type(type_))
    parts = np.zeros(len(column), _INTERVAL)
    parts["months"] = _numbers(column)
    return array_of(pa.month_day_nano_interval(), _there(column), parts)


def values_array(type_: SparkType, values: Sequence[object]) -> pa.Array:
    """Values of the decoder of single rows as an array."""
    return pa.array([plain(type_, value) for value in values], arrow_type(type_))  # type: ignore[arg-type]


def _in_months(type_: SparkType) -> bool:
    return isinstance(type_, Primitive) and type_.name in _MONTHS


def _at_once(each: Finaliser, buffers: Sequence[pa.Array]) -> pa.Array | None:
    """None where some row needs a closer look, or there is no way."""
    match each.column.finaliser:
        case "try_sum" | "decimal_sum":
            total, empty = buffers
            if empty.null_count or pc.any(pc.and_(pc.is_null(total), pc.invert(empty))).as_py():
                return None  # one was too large
            return pc.if_else(empty, pa.scalar(None, total.type), total)
        case "unscaled_sum":
            return _unscaled(each, buffers[0])
        case "average" if not buffers[0].null_count and not buffers[1].null_count:
            totals, counts = (buffer.to_numpy(zero_copy_only=False) for buffer in buffers)
            with np.errstate(all="ignore"):  # where nothing was counted there is no average
                return array_of(pa.float64(), counts != 0, totals / counts)
    return None


def _unscaled(each: Finaliser, sums: pa.Array) -> pa.Array | None:
    assert isinstance(each.type, Decimal)
    low, largest = _numbers(sums), 10**each.type.precision
    if len(low) and (int(low.max()) >= largest or int(low.min()) <= -largest):
        return None
    return array_of(arrow_type(each.type), _there(sums), np.stack([low, low >> 63], axis=1))


def _one_by_one(each: Finaliser, buffers: Sequence[pa.Array]) -> pa.Array:
    rows = zip(*(buffer.to_pylist() for buffer in buffers), strict=True)
    return values_array(each.type, [each.finish(row) for row in rows])


class ComputedArrays:
    """The computed columns of a view, many rows at once. Rows with the same steps are computed together."""

    def __init__(self, catalogue: Catalogue, steps: KnownSteps) -> None:
        key, columns = ([each.name for each in some] for some in (catalogue.key, catalogue.columns))
        self._of = [columns.index(each.of) for each in catalogue.computed]
        self._by = [key.index(name) for name in catalogue.computed[0].by] if catalogue.computed else []
        self._steps = steps

    def arrays(self, key: Sequence[pa.Array], columns: Sequence[pa.Array]) -> list[pa.Array]:
        """The computed columns of rows with these keys and these other columns."""
        if not self._of:
            return []
        by = [key[place].dictionary_encode() for place in self._by]
        kinds, some = _kinds([_numbers(each.indices, -1) for each in by])
        numbers = [columns[place] for place in self._of]
        longs, there = [_numbers(each) for each in numbers], [_there(each) for each in numbers]
        found = [np.zeros(len(each), np.int64) for each in longs]
        for kind, row in some:
            texts: list[Any] = [
                each.dictionary[each.indices[row].as_py()].as_py() if each[row].is_valid else None for each in by
            ]
            which = kinds == kind
            steps = None if None in texts else self._steps.of(tuple(texts))
            for values, quantities, has in zip(found, longs, there, strict=True):
                has &= ~which if steps is None else True
                if steps is not None:
                    values[which & has] = steps.values(quantities[which & has])
        return [array_of(pa.int64(), has, values) for has, values in zip(there, found, strict=True)]


def _kinds(codes: Sequence[Longs]) -> tuple[Longs, list[tuple[int, int]]]:
    """A number for each row, the same for rows with the same codes; and each of these numbers with one of its rows."""
    kinds = np.zeros(len(codes[0]), np.int64)
    for each in codes:
        kinds = kinds * (int(each.max(initial=0)) + 2) + each + 1
    found, rows = np.unique(kinds, return_index=True)
    return kinds, list(zip(found.tolist(), rows.tolist(), strict=True))


def _numbers(column: pa.Array, instead: int = 0) -> Longs:
    """A column's whole numbers, with another one in place of nulls."""
    filled = column.fill_null(instead) if column.null_count else column
    numbers: Longs = filled.to_numpy(zero_copy_only=False)
    return numbers


def _there(column: pa.Array) -> Mask:
    """Which of its values are not null."""
    return np.array(column.is_valid().to_numpy(zero_copy_only=False))
