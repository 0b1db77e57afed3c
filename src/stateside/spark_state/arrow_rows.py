"""Columnar decoding: many rows to Arrow, a column at a time (`unsafe_row` decodes single rows).

    boolean, byte, short, integer, long, float, double   the same
    string, binary                                       the same
    decimal(p,s)                                         decimal128(p,s)
    date                                                 date32
    timestamp, timestamp_ntz                             timestamp[us], with the zone UTC or without one
    intervals of years and months                        int32, in months
    intervals of days to seconds                         duration[us]
    interval (of the calendar)                           month_day_nano_interval
    void                                                 null
    struct, array, map                                   struct, list, map

Numbers, times, small decimals, texts, and structs of these are decoded for all rows at once. The other types (arrays,
maps, large decimals, calendar intervals) go through the decoder of single rows. A missing row is a row of nulls.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stateside.core.errors import CheckpointInvalid
from stateside.spark_state.slices import Numbers, Slices, numbers_at
from stateside.spark_state.types import Array, Column, Decimal, Map, Primitive, SparkType, Struct, parse_type
from stateside.spark_state.unsafe_row import RowDecoder, Value, reader_of

_FIXED: dict[str, tuple[str, pa.DataType]] = {
    "byte": ("<i1", pa.int8()),
    "short": ("<i2", pa.int16()),
    "integer": ("<i4", pa.int32()),
    "long": ("<i8", pa.int64()),
    "float": ("<f4", pa.float32()),
    "double": ("<f8", pa.float64()),
    "date": ("<i4", pa.date32()),
    "timestamp": ("<i8", pa.timestamp("us", "UTC")),
    "timestamp_ntz": ("<i8", pa.timestamp("us")),
}
_TEXTS: dict[str, pa.DataType] = {"string": pa.string(), "binary": pa.binary()}
_OTHERS: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "interval": pa.month_day_nano_interval(),
    "void": pa.null(),
    "null": pa.null(),
}
_WORD_BYTES = 8
_TEXT_BYTES_MAX = 2**31 - 1


class RowsToArrow:
    """Turns rows of the given columns into record batches; CheckpointInvalid at once for an unknown type."""

    def __init__(self, columns: Sequence[Column]) -> None:
        RowDecoder(columns)  # refuses unknown types
        self._types = [parse_type(column.type) for column in columns]
        self.schema = pa.schema(
            [pa.field(column.name, arrow_type(type_)) for column, type_ in zip(columns, self._types, strict=True)]
        )

    def batch(self, rows: Slices | Sequence[bytes | None]) -> pa.RecordBatch:
        """The rows as a record batch. CheckpointInvalid if a row does not fit its columns."""
        slices = rows if isinstance(rows, Slices) else Slices.of(rows)
        if not self._types:
            return pa.RecordBatch.from_struct_array(pa.array([{}] * len(slices), pa.struct([])))
        try:
            return pa.RecordBatch.from_arrays(_columns(slices, self._types), schema=self.schema)
        except (struct.error, IndexError, ValueError) as error:  # Arrow's errors are ValueErrors
            raise _unfit(str(error)) from error


def arrow_type(type_: SparkType) -> pa.DataType:
    match type_:
        case Decimal(precision, scale):
            return pa.decimal128(precision, scale)
        case Struct(names, types):
            return pa.struct([pa.field(name, arrow_type(part)) for name, part in zip(names, types, strict=True)])
        case Array(element):
            return pa.list_(arrow_type(element))
        case Map(key, value):
            return pa.map_(arrow_type(key), arrow_type(value))
        case Primitive(name) if name in _FIXED:
            return _FIXED[name][1]
        case Primitive(name) if name in _TEXTS:
            return _TEXTS[name]
        case Primitive(name) if name in _OTHERS:
            return _OTHERS[name]
        case Primitive(name) if _in_months(name):
            return pa.int32()
    return pa.duration("us")


def array_of(
    type_: pa.DataType, there: Numbers, *buffers: Numbers, parts: Sequence[pa.Array] | None = None
) -> pa.Array:
    """The array of these buffers, or a struct array of `parts`, with nulls where `there` is false.

    Not `pa.array`: its first call imports pandas, which takes a second.
    """
    nulls = None if there.all() else pa.py_buffer(np.packbits(there, bitorder="little"))
    filled = [nulls, *(pa.py_buffer(np.ascontiguousarray(buffer)) for buffer in buffers)]
    return pa.Array.from_buffers(type_, len(there), filled, children=parts)


def value_array(type_: SparkType, values: Sequence[object]) -> pa.Array:
    """Values of the decoder of single rows as an array."""
    return pa.array([plain(type_, value) for value in values], arrow_type(type_))  # type: ignore[arg-type]


def filled_numbers(column: pa.Array, instead: int = 0) -> npt.NDArray[np.int64]:
    """A column's whole numbers, with `instead` for nulls."""
    filled = column.fill_null(instead) if column.null_count else column
    numbers: npt.NDArray[np.int64] = filled.to_numpy(zero_copy_only=False)
    return numbers


def valid_rows(column: pa.Array) -> npt.NDArray[np.bool_]:
    """The mask of values that are not null."""
    return np.array(column.is_valid().to_numpy(zero_copy_only=False))


def _in_months(name: str) -> bool:
    return name in ("interval year", "interval month", "interval year to month")


def _columns(rows: Slices, types: Sequence[SparkType]) -> list[pa.Array]:
    """The columns of rows, or of structs inside rows."""
    first = (len(types) + 63) // 64 * _WORD_BYTES
    if ((rows.sizes >= 0) & (rows.sizes < first + _WORD_BYTES * len(types))).any():
        raise _unfit("a row is cut short")
    return [_column(_Cells(rows, index, first + index * _WORD_BYTES), type_) for index, type_ in enumerate(types)]


class _Cells:
    """One column of many rows: which rows have a value, and the eight bytes that hold or locate the value."""

    def __init__(self, rows: Slices, index: int, at_byte: int) -> None:
        self.rows, self.at_byte = rows, at_byte
        self._all, self.there = False, rows.sizes >= 0
        self.there &= self.numbers("u1", index // 8 - at_byte) >> index % 8 & 1 == 0
        self._all = bool(self.there.all())

    def __len__(self) -> int:
        return len(self.rows)

    def numbers(self, type_: str, at_byte: int = 0) -> Numbers:
        """The column's numbers of this numpy type; 0 where the value is null."""
        places = self.rows.begins + self.at_byte + at_byte
        if self._all:
            return numbers_at(self.rows.content, places, type_)
        numbers = np.zeros(len(self), type_)
        numbers[self.there] = numbers_at(self.rows.content, places[self.there], type_)
        return numbers

    def elsewhere(self) -> Slices:
        """The variable-length values, located by the size and offset in the eight bytes."""
        sizes, offsets = self.numbers("<u4").astype(np.int64), self.numbers("<u4", 4).astype(np.int64)
        if (self.there & (offsets + sizes > self.rows.sizes)).any():
            raise _unfit("a value lies beyond the end of its row")
        return Slices(self.rows.content, self.rows.begins + offsets, np.where(self.there, sizes, -1))

    def array(self, type_: pa.DataType, *buffers: Numbers) -> pa.Array:
        """The array of these buffers, with nulls where there are no values."""
        return array_of(type_, self.there, *buffers)


def _column(cells: _Cells, type_: SparkType) -> pa.Array:
    match type_:
        case Primitive(name) if name in _FIXED:
            return cells.array(_FIXED[name][1], cells.numbers(_FIXED[name][0]))
        case Primitive("boolean"):
            return cells.array(pa.bool_(), np.packbits(cells.numbers("u1") != 0, bitorder="little"))
        case Primitive(name) if name in _TEXTS:
            return _texts(cells, _TEXTS[name])
        case Decimal() if type_.compact:
            low = cells.numbers("<i8")
            return cells.array(arrow_type(type_), np.stack([low, low >> 63], axis=1))
        case Struct(_, types) if types:
            return array_of(arrow_type(type_), cells.there, parts=_columns(cells.elsewhere(), types))
        case Primitive(name) if name.startswith("interval "):
            return cells.array(arrow_type(type_), cells.numbers("<i4" if _in_months(name) else "<i8"))
    return _one_by_one(cells, type_)


def _texts(cells: _Cells, type_: pa.DataType) -> pa.Array:
    texts = cells.elsewhere()
    sizes = np.maximum(texts.sizes, 0)
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if len(ends) else 0
    assert total <= _TEXT_BYTES_MAX, "a batch has less than 2 GiB of text in a column"
    places = np.repeat(texts.begins - (ends - sizes), sizes) + np.arange(total)
    offsets = np.concatenate([[0], ends]).astype(np.int32)
    array = cells.array(type_, offsets, np.frombuffer(texts.content, np.uint8)[places])
    array.validate(full=True)  # a text must be UTF-8
    return array


def _one_by_one(cells: _Cells, type_: SparkType) -> pa.Array:
    read, at_byte = reader_of(type_), cells.at_byte
    rows = zip(cells.there.tolist(), cells.rows.array(), strict=True)
    values = [plain(type_, read(row, at_byte)) if there else None for there, row in rows]
    return pa.array(values, arrow_type(type_))


def plain(type_: SparkType, value: Value) -> Any:
    """The value in the form that Arrow accepts."""
    match type_, value:
        case Struct(names, types), tuple():
            return {name: plain(part, each) for name, part, each in zip(names, types, value, strict=True)}
        case Array(element), tuple():
            return [plain(element, each) for each in value]
        case Map(key, of), tuple():
            return [(plain(key, each), plain(of, its)) for each, its in value]  # type: ignore[misc, str-unpack]
        case Primitive("interval"), (int(months), int(days), int(micros)):
            return pa.MonthDayNano([months, days, micros * 1_000])
    return value


def _unfit(reason: str) -> CheckpointInvalid:
    return CheckpointInvalid(f"Rows of the state are not as the schema says: {reason}")
