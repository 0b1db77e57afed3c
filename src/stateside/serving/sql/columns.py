"""Rows of a replica as Arrow has them: the keys and rows of a snapshot, some ten thousands at once, to a record batch.

Columns have the names and the order that they have in answers. What Arrow can take out of all rows at once is; views
of state variables and groups, and rollups, are decoded row by row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa

from stateside.checkpoint.arrow_rows import RowsToArrow
from stateside.checkpoint.catalogue import Catalogue
from stateside.checkpoint.computed import TYPE, KnownSteps
from stateside.checkpoint.finalise import finaliser
from stateside.checkpoint.slices import Slices
from stateside.checkpoint.types import SparkType, parse_type
from stateside.checkpoint.unsafe_row import RowDecoder
from stateside.checkpoint.variable_catalogue import Decoder, stored_schema, value_decoder
from stateside.replica.key_columns import KeyColumns
from stateside.replica.rollups import RollupRows
from stateside.serving.sql.finishing import ComputedArrays, finished, shown, shown_type, values_array
from stateside.storage import Storage


class Columns(Protocol):
    """Makes record batches of keys and rows."""

    schema: pa.Schema

    def batch(self, keys: Sequence[bytes], rows: Sequence[bytes]) -> pa.RecordBatch:
        """These keys, each with its row."""


class ViewColumns:
    """The columns of a view's rows."""

    def __init__(self, catalogue: Catalogue, storage: Storage, steps: KnownSteps) -> None:
        self._key = catalogue.key
        self._finalisers = [finaliser(column) for column in catalogue.columns]
        self._keys = KeyColumns([column.asked_type for column in catalogue.key])
        self._stored = _stored(catalogue, storage)
        self._computed = ComputedArrays(catalogue, steps)
        columns = [(column.name, column.type) for column in catalogue.key]
        columns += [(column.name, column.type) for column in catalogue.columns]
        columns += [(each.name, TYPE) for each in catalogue.computed]
        self._types = [parse_type(type_) for _, type_ in columns]
        self.schema = _schema([name for name, _ in columns], self._types)

    def batch(self, keys: Sequence[bytes], rows: Sequence[bytes]) -> pa.RecordBatch:
        """These rows; ValueOverflow if a number grew too large, CheckpointInvalid if one is not as it should be."""
        stored = self._stored.columns(rows)
        asked = zip(self._key, self._keys.arrays(keys), strict=True)
        key = [array if column.whole is None else stored[column.whole.index] for column, array in asked]
        columns = [finished(each, [stored[place] for place in each.places]) for each in self._finalisers]
        arrays = [*key, *columns, *self._computed.arrays(key, columns)]
        return _batch(self.schema, self._types, arrays, len(keys))


class RollupColumns:
    """The columns of one of a view's rollups: the coarser key's, then those that have a sum."""

    def __init__(self, catalogue: Catalogue, by: Sequence[str]) -> None:
        types = {column.name: column.asked_type for column in catalogue.key}
        self._keys = KeyColumns([types[name] for name in by])
        self._rows = RollupRows(catalogue.columns, catalogue.computed)
        self._types = [parse_type(types[name]) for name in by]
        self._sums = [parse_type(type_) for _, type_ in self._rows.columns]
        self.schema = _schema([*by, *(name for name, _ in self._rows.columns)], [*self._types, *self._sums])

    def batch(self, keys: Sequence[bytes], rows: Sequence[bytes]) -> pa.RecordBatch:
        """These rows; ValueOverflow if a sum is too large for its type."""
        values = zip(*map(self._rows.values, rows), strict=True) if rows else [()] * len(self._sums)
        sums = [values_array(type_, column) for type_, column in zip(self._sums, values, strict=True)]
        return _batch(self.schema, [*self._types, *self._sums], [*self._keys.arrays(keys), *sums], len(keys))


class _Stored(Protocol):
    def columns(self, rows: Sequence[bytes]) -> Sequence[pa.Array]:
        """The state's columns of these rows, in the order that the catalogue's `index` counts in."""


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
            values_array(self._types[place], [row[place] for row in decoded]) if place in self._types else empty
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
