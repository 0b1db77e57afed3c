"""Columns of a view out of the state's, many rows at once: what `finalise` and `computed` do with one row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateside.checkpoint.arrow_rows import arrow_type, plain
from stateside.checkpoint.catalogue import Catalogue
from stateside.checkpoint.computed import KnownSteps
from stateside.checkpoint.finalise import Finaliser
from stateside.checkpoint.types import Decimal, Primitive, SparkType

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
    parts["months"] = column.fill_null(0).to_numpy(zero_copy_only=False)
    nulls = pa.py_buffer(np.packbits(column.is_valid().to_numpy(zero_copy_only=False), bitorder="little"))
    return pa.Array.from_buffers(pa.month_day_nano_interval(), len(column), [nulls, pa.py_buffer(parts)])


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
                return pa.array(totals / counts, pa.float64(), mask=counts == 0)
    return None


def _unscaled(each: Finaliser, sums: pa.Array) -> pa.Array | None:
    assert isinstance(each.type, Decimal)
    low, largest = sums.fill_null(0).to_numpy(zero_copy_only=False), 10**each.type.precision
    if len(low) and (int(low.max()) >= largest or int(low.min()) <= -largest):
        return None
    nulls = pa.py_buffer(np.packbits(sums.is_valid().to_numpy(zero_copy_only=False), bitorder="little"))
    parts = pa.py_buffer(np.stack([low, low >> 63], axis=1))
    return pa.Array.from_buffers(arrow_type(each.type), len(sums), [nulls, parts])


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
        by = pa.table([key[place] for place in self._by], [str(place) for place in self._by])
        kinds = by.group_by(by.column_names, use_threads=False).aggregate([]).to_pylist()
        numbers = [columns[place] for place in self._of]
        longs = [each.fill_null(0).to_numpy(zero_copy_only=False) for each in numbers]
        found = [np.zeros(len(each), np.int64) for each in longs]
        known = np.zeros(by.num_rows, np.bool_)
        for kind in kinds:
            if None in kind.values():
                continue
            steps, which = self._steps.of(tuple(kind.values())), _rows_of(by, kind)
            known |= which
            for values, quantities, column in zip(found, longs, numbers, strict=True):
                these = which & column.is_valid().to_numpy(zero_copy_only=False)
                values[these] = steps.values(quantities[these])
        pairs = zip(found, numbers, strict=True)
        return [pa.array(v, pa.int64(), mask=~known | c.is_null().to_numpy(zero_copy_only=False)) for v, c in pairs]


def _rows_of(by: pa.Table, kind: dict[str, str]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which rows have these texts."""
    which = np.ones(by.num_rows, np.bool_)
    for name, text in kind.items():
        equal = pc.fill_null(pc.equal(by[name], text), False)
        which &= equal.combine_chunks().to_numpy(zero_copy_only=False)
    return which
