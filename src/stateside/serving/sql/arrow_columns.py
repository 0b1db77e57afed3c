"""Arrow columns of a replica's rows: keys and rows of a snapshot, up to 50,000 at once, as a record batch.

Columns have their names and order in answers. State rows are converted, finished and computed column by column, with
the results of `views.aggregates` and `views.functions` for single rows; rows of state variables and groups, and
rollups, are decoded row by row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa

from stateside.core.storage import Storage
from stateside.replica.key_blocks import KeyColumns
from stateside.replica.rollup_tables import RollupRows
from stateside.spark_state.arrow_rows import (
    RowsToArrow,
    array_of,
    arrow_type,
    filled_numbers,
    valid_rows,
    value_array,
)
from stateside.spark_state.slices import Slices
from stateside.spark_state.types import Primitive, SparkType, parse_type
from stateside.spark_state.unsafe_row import RowDecoder
from stateside.views.aggregates import aggregate_of
from stateside.views.catalogue import Catalogue
from stateside.views.functions import TYPE, ComputedColumns, KnownFunctions
from stateside.views.state_catalogue import Decoder, stored_schema, value_decoder

_MONTHS = ("interval year", "interval month", "interval year to month")
_INTERVAL = np.dtype([("months", "<i4"), ("days", "<i4"), ("nanoseconds", "<i8")])


def shown_type(type_: SparkType) -> pa.DataType:
    """The Arrow type of a view's column in SQL: as in the state, with all intervals as intervals."""
    return pa.month_day_nano_interval() if _in_months(type_) else arrow_type(type_)


def shown(type_: SparkType, column: pa.Array) -> pa.Array:
    """A column of the state converted for SQL."""
    if not _in_months(type_):
        return column if column.type == arrow_type(type_) else column.cast(arrow_type(type_))
    parts = np.zeros(len(column), _INTERVAL)
    parts["months"] = filled_numbers(column)
    return array_of(pa.month_day_nano_interval(), valid_rows(column), parts)


def _in_months(type_: SparkType) -> bool:
    return isinstance(type_, Primitive) and type_.name in _MONTHS


class ArrowColumns(Protocol):
    """Converts keys and rows to record batches."""

    schema: pa.Schema

    def batch(self, keys: Sequence[bytes], rows: Sequence[bytes]) -> pa.RecordBatch: ...


class ViewColumns:
    """The columns of a view's rows."""

    def __init__(self, catalogue: Catalogue, storage: Storage, functions: KnownFunctions) -> None:
        self._key = catalogue.key
        self._aggregates = [aggregate_of(column) for column in catalogue.columns]
        self._keys = KeyColumns([column.asked_type for column in catalogue.key])
        self._stored = _stored(catalogue, storage)
        self._computed = ComputedColumns(catalogue, functions)
        columns = [(column.name, column.type) for column in catalogue.key]
        columns += [(column.name, column.type) for column in catalogue.columns]
        columns += [(each.name, TYPE) for each in catalogue.computed]
        self._types = [parse_type(type_) for _, type_ in columns]
        self.schema = _schema([name for name, _ in columns], self._types)

    def batch(self, keys: Sequence[bytes], rows: Sequence[bytes]) -> pa.RecordBatch:
        """ValueOverflow if a number is too large, CheckpointInvalid for a malformed row."""
        stored = self._stored.columns(rows)
        asked = zip(self._key, self._keys.arrays(keys), strict=True)
        key = [array if column.whole is None else stored[column.whole.index] for column, array in asked]
        columns = [each.finish_arrays([stored[place] for place in each.places]) for each in self._aggregates]
        arrays = [*key, *columns, *self._computed.arrays(key, columns)]
        return _batch(self.schema, self._types, arrays, len(keys))


class RollupColumns:
    """The columns of a view's rollup: its key, then the columns with a sum."""

    def __init__(self, catalogue: Catalogue, by: Sequence[str]) -> None:
        types = {column.name: column.asked_type for column in catalogue.key}
        self._keys = KeyColumns([types[name] for name in by])
        self._rows = RollupRows(catalogue.columns, catalogue.computed)
        self._types = [parse_type(types[name]) for name in by]
        self._sums = [parse_type(type_) for _, type_ in self._rows.columns]
        self.schema = _schema([*by, *(name for name, _ in self._rows.columns)], [*self._types, *self._sums])

    def batch(self, keys: Sequence[bytes], rows: Sequence[bytes]) -> pa.RecordBatch:
        """ValueOverflow if a sum is too large for its type."""
        values = zip(*map(self._rows.values, rows), strict=True) if rows else [()] * len(self._sums)
        sums = [value_array(type_, column) for type_, column in zip(self._sums, values, strict=True)]
        return _batch(self.schema, [*self._types, *self._sums], [*self._keys.arrays(keys), *sums], len(keys))


class _Stored(Protocol):
    def columns(self, rows: Sequence[bytes]) -> Sequence[pa.Array]:
        """The state's columns of these rows, in the order of the catalogue's `index`."""


class _AtOnce:
    def __init__(self, catalogue: Catalogue, storage: Storage) -> None:
        self._rows = RowsToArrow(stored_schema(catalogue, storage).value)

    def columns(self, rows: Sequence[bytes]) -> Sequence[pa.Array]:
        columns: Sequence[pa.Array] = self._rows.batch(Slices.of_all(rows)).columns
        return columns


class _RowByRow:
    def __init__(self, catalogue: Catalogue, decoder: Decoder) -> None:
        stored = [buffer for column in catalogue.columns for buffer in column.buffers]
        types = {buffer.index: parse_type(buffer.type) for buffer in stored}
        self._decoder, self._types = decoder, types

    def columns(self, rows: Sequence[bytes]) -> Sequence[pa.Array]:
        decoded = [self._decoder.decode(row) for row in rows]
        empty = pa.nulls(len(rows))
        count = max(self._types, default=-1) + 1
        return [
            value_array(self._types[place], [row[place] for row in decoded]) if place in self._types else empty
            for place in range(count)
        ]


def _stored(catalogue: Catalogue, storage: Storage) -> _Stored:
    decoder = value_decoder(catalogue, storage)
    return _AtOnce(catalogue, storage) if isinstance(decoder, RowDecoder) else _RowByRow(catalogue, decoder)


def _schema(names: Sequence[str], types: Sequence[SparkType]) -> pa.Schema:
    return pa.schema([pa.field(name, shown_type(type_)) for name, type_ in zip(names, types, strict=True)])


def _batch(schema: pa.Schema, types: Sequence[SparkType], arrays: Sequence[pa.Array], rows: int) -> pa.RecordBatch:
    if not types:  # a view without any columns
        return pa.RecordBatch.from_struct_array(pa.array([{}] * rows, pa.struct([])))
    columns = [shown(type_, array) for type_, array in zip(types, arrays, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
