"""The columns of a relation (a view or a rollup): rendering, comparison, and Arrow arrays for SQL.

Comparable are columns of plain types, and the fields of structs as `window.start`; not arrays, maps and intervals.
Null sorts before all values, NaN after them; -0.0 and 0.0 are equal.

In Arrow, columns have their names and order in answers. State rows are converted, finished and computed column by
column, with the results of `views.aggregates` and `views.functions` for single rows; rows of state variables and
groups, and rollups, are decoded row by row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from stateside.core.errors import KeyInvalid, RequestInvalid
from stateside.core.storage import Storage
from stateside.replica.key_blocks import KeyColumns
from stateside.replica.keys import keyable
from stateside.replica.rollup_tables import RollupRows
from stateside.serving.rows.values import Render, parse, renderer_if_any
from stateside.spark_state.arrow_rows import (
    RowsToArrow,
    array_of,
    arrow_type,
    filled_numbers,
    valid_rows,
    value_array,
)
from stateside.spark_state.slices import Slices
from stateside.spark_state.types import Primitive, SparkType, Struct, parse_type
from stateside.spark_state.unsafe_row import RowDecoder, Value
from stateside.views.aggregates import aggregate_of
from stateside.views.catalogue import Catalogue
from stateside.views.functions import ComputedColumns
from stateside.views.state_catalogue import Decoder, stored_schema, value_decoder

Values = Sequence[Value]
Found = tuple[bytes, Values]  # encoded key, values

_FLOATS = (Primitive("float"), Primitive("double"))


@dataclass(frozen=True, slots=True)
class Comparable:
    """A column or struct field whose values can be compared; `places` is its path in a row's values."""

    name: str
    type: SparkType
    places: tuple[int, ...]

    def of(self, values: Values) -> Value:
        """The column's value in a row."""
        found: Any = values
        for place in self.places:
            if found is None:
                return None
            found = found[place]
        return found  # type: ignore[no-any-return]

    def parse(self, text: str) -> Value:
        """Parses a value, written as in a key; RequestInvalid if the text is not of the column's type."""
        try:
            return parse(self.name, self.type, text)
        except KeyInvalid as error:
            raise RequestInvalid(
                error.what.replace("the key's part", "the column"), next_step=error.next_step
            ) from None

    def rank(self, value: Value) -> tuple[Any, ...]:
        """The sort key of a value."""
        if value is None:
            return (0,)
        if self.type in _FLOATS:
            assert isinstance(value, float)
            return (2,) if math.isnan(value) else (1, value)
        return (1, value)


class Show:
    """Renders rows of an answer from rows' values: the chosen columns, each from its place."""

    def __init__(self, columns: Sequence[tuple[str, int, Render | None]]) -> None:
        self._columns = columns
        self._names = [name for name, _, _ in columns]

    def __call__(self, values: Values) -> dict[str, Any]:
        """Renders one row."""
        return {
            name: values[place] if render is None else render(values[place]) for name, place, render in self._columns
        }

    def all(self, rows: Sequence[Values]) -> list[dict[str, Any]]:
        """Renders many rows, column by column."""
        given = list(zip(*rows, strict=True))
        if not given or not self._columns:
            return [self(row) for row in rows]
        shown = [given[place] if render is None else map(render, given[place]) for _, place, render in self._columns]
        return [dict(zip(self._names, row, strict=True)) for row in zip(*shown, strict=True)]


class ColumnSet:
    """All columns of a relation in row order: key, values, computed columns."""

    def __init__(self, columns: Sequence[tuple[str, SparkType]]) -> None:
        self.types = dict(columns)
        self._render = {name: (place, renderer_if_any(type_)) for place, (name, type_) in enumerate(columns)}
        self.shown = self.shower(list(self.types))
        found = [each for place, (name, type_) in enumerate(columns) for each in _comparable(name, type_, (place,))]
        found.sort(key=lambda each: -len(each.places))
        self._comparable = {each.name: each for each in found}  # the last wins: a column, not a field of this name

    def comparable(self, name: str) -> Comparable:
        """The column of this name; RequestInvalid if no comparable column has the name."""
        if name not in self._comparable:
            raise RequestInvalid(f"There is no column {name[:80]!r} that can be compared", next_step=self.advice())
        return self._comparable[name]

    def named_first(self, text: str) -> list[Comparable]:
        """The columns whose names the text begins with, longest name first."""
        fitting = [each for name, each in self._comparable.items() if text.startswith(name)]
        return sorted(fitting, key=lambda each: -len(each.name))

    def shower(self, names: Sequence[str]) -> Show:
        """The renderer for these columns; RequestInvalid for an unknown column."""
        for name in names:
            if name not in self.types:
                raise RequestInvalid(
                    f"There is no column {name[:80]!r}", next_step=f"There are: {', '.join(self.types)}"
                )
        return Show([(name, *self._render[name]) for name in names])

    def advice(self) -> str:
        """The comparable columns, as the next step of an error."""
        return f"These can be: {', '.join(sorted(self._comparable))}"

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns in SQL."""
        return pa.schema([pa.field(name, shown_type(type_)) for name, type_ in self.types.items()])

    def batch(self, arrays: Sequence[pa.Array], rows: int) -> pa.RecordBatch:
        """Arrays of the state, one per column, as a record batch of `schema`."""
        if not self.types:
            return pa.RecordBatch.from_struct_array(pa.array([{}] * rows, pa.struct([])))
        columns = [shown(type_, array) for type_, array in zip(self.types.values(), arrays, strict=True)]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def _comparable(name: str, type_: SparkType, places: tuple[int, ...]) -> Iterator[Comparable]:
    if isinstance(type_, Struct):
        for place, (field, part) in enumerate(zip(type_.names, type_.types, strict=True)):
            yield from _comparable(f"{name}.{field}", part, (*places, place))
    elif keyable(type_):
        yield Comparable(name, type_, places)


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


class ArrowStream:
    """Rows as DuckDB pulls them, again for every pass.

    DuckDB takes a table too, but through Arrow's datasets, which take 1 s to import and are no faster.
    """

    def __init__(self, schema: pa.Schema, rows: Callable[[], pa.Table | pa.RecordBatchReader]) -> None:
        self.schema, self._rows = schema, rows

    @classmethod
    def of_batches(cls, schema: pa.Schema, batches: Callable[[], Iterator[pa.RecordBatch]]) -> ArrowStream:
        return cls(schema, lambda: pa.RecordBatchReader.from_batches(schema, batches()))

    def __arrow_c_schema__(self) -> object:
        return self.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._rows().__arrow_c_stream__(requested_schema)


class ArrowColumns(Protocol):
    """Converts keys and rows of a replica to record batches, up to 50,000 at once."""

    @property
    def schema(self) -> pa.Schema: ...

    def batch(self, keys: Sequence[bytes], rows: Sequence[bytes]) -> pa.RecordBatch: ...


class ViewArrow:
    """Converts a view's rows."""

    def __init__(self, columns: ColumnSet, catalogue: Catalogue, storage: Storage, computed: ComputedColumns) -> None:
        self._columns, self.schema, self._key = columns, columns.schema, catalogue.key
        self._aggregates = [aggregate_of(column) for column in catalogue.columns]
        self._keys = KeyColumns([column.asked_type for column in catalogue.key])
        self._stored = _stored(catalogue, storage)
        self._computed = computed

    def batch(self, keys: Sequence[bytes], rows: Sequence[bytes]) -> pa.RecordBatch:
        """ValueOverflow if a number is too large, CheckpointInvalid for a malformed row."""
        stored = self._stored.columns(rows)
        asked = zip(self._key, self._keys.arrays(keys), strict=True)
        key = [array if column.whole is None else stored[column.whole.index] for column, array in asked]
        columns = [each.finish_arrays([stored[place] for place in each.places]) for each in self._aggregates]
        return self._columns.batch([*key, *columns, *self._computed.arrays(key, columns)], len(keys))


class RollupArrow:
    """Converts a rollup's rows: its key, then the columns with a sum."""

    def __init__(self, columns: ColumnSet, key_types: Sequence[str], rows: RollupRows) -> None:
        self._columns, self.schema, self._rows = columns, columns.schema, rows
        self._keys, self._sums = KeyColumns(key_types), [parse_type(type_) for _, type_ in rows.columns]

    def batch(self, keys: Sequence[bytes], rows: Sequence[bytes]) -> pa.RecordBatch:
        """ValueOverflow if a sum is too large for its type."""
        values = zip(*map(self._rows.values, rows), strict=True) if rows else [()] * len(self._sums)
        sums = [value_array(type_, column) for type_, column in zip(self._sums, values, strict=True)]
        return self._columns.batch([*self._keys.arrays(keys), *sums], len(keys))


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
