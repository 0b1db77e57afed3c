"""Sealed rows: rows that left a view's state for its archive table, read as rows of the view.

At the moment of sealing no row is missing and none is there twice:

1. The view's sink stores the rows that batch N closes, with N as their `sealed_batch`, before Spark commits N.
2. Spark commits N. Its state no longer has these rows.
3. The replica moves to N, in one transaction.

A reader takes a snapshot of the replica at batch N, and opens the table after the snapshot: so the table has all rows
sealed up to N. Rows of N + 1 in the table are still live in the snapshot, and do not count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from stateside.archive.table import BATCH_COLUMN
from stateside.archive.table_reader import FollowedTable
from stateside.core.errors import ArchiveAway, KeyInvalid
from stateside.core.layout import ViewLayout
from stateside.serving.rows.order import Found
from stateside.serving.rows.shape import Shape
from stateside.serving.rows.view_columns import Values
from stateside.spark_state.types import Array, Map, Primitive, SparkType, Struct
from stateside.spark_state.unsafe_row import Value

SEALED_ROWS_MAX = 20_000  # read by one query

_FOUND_BY = ("string", "byte", "short", "integer", "long")  # column types that files are pruned by
_NUMBERS = {"timestamp": pa.int64(), "timestamp_ntz": pa.int64(), "date": pa.int32()}


class SealedRows:
    """The sealed rows of one view. Thread-safe."""

    def __init__(self, shape: Shape, table: FollowedTable) -> None:
        self._shape, self._table = shape, table
        self._key_names = [column.name for column in shape.catalogue.key]
        stored = [*self._key_names, *(column.name for column in shape.catalogue.columns)]
        self._types = {name: shape.columns.types[name] for name in stored}

    @classmethod
    def of(cls, shape: Shape, layout: ViewLayout) -> SealedRows | None:
        """The sealed rows of a view, by its catalogue; None without an archive."""
        name = shape.catalogue.archive
        if name is None:
            return None
        return cls(shape, FollowedTable(layout.table(name), layout.mark(name)))

    def rows(self, key: Sequence[Value], batch: int) -> list[Found]:
        """The rows sealed up to a batch whose key begins with these values, in key order.

        Call after taking the snapshot at this batch. KeyInvalid for more than `SEALED_ROWS_MAX` rows.
        """
        prefix = self._shape.codec.encode(key)
        found = self._read({name: [value] for name, value in zip(self._key_names, key, strict=False)}, batch)
        return sorted((row for row in found if row[0].startswith(prefix)), key=lambda row: row[0])

    def of_keys(self, keys: Sequence[Sequence[Value]], batch: int) -> dict[bytes, Values]:
        """The rows of these whole keys sealed up to a batch, by encoded key; otherwise like `rows`."""
        encoded = {self._shape.codec.encode(key) for key in keys}
        wanted = {name: [key[place] for key in keys] for place, name in enumerate(self._key_names)}
        return {key: values for key, values in self._read(wanted, batch) if key in encoded}

    def _read(self, wanted: Mapping[str, Sequence[Value]], batch: int) -> Iterator[Found]:
        """A superset of the rows with one of the wanted values in each key column: some types cannot be filtered by."""
        sets = {name: list(dict.fromkeys(values)) for name, values in wanted.items() if self._found_by(name, values)}
        equal = {name: values[0] for name, values in sets.items() if len(values) == 1}
        among = {name: values for name, values in sets.items() if name not in equal}
        try:
            table = self._table.read(list(self._types), equal=equal, below={BATCH_COLUMN: batch + 1}, among=among)
        except ArchiveAway as error:
            next_step = "Ask for the live rows alone (source=live), or again once the storage is back"
            raise ArchiveAway(error.what, where=error.where, next_step=next_step) from error
        if table is None:
            return iter(())
        for name in wanted:
            mask = None if name in sets else _mask(table[name], self._types[name], wanted[name])
            table = table if mask is None else table.filter(mask)
        if table.num_rows > SEALED_ROWS_MAX:
            raise KeyInvalid(
                f"More than {SEALED_ROWS_MAX:,} sealed rows would have to be looked at for this",
                next_step="Give more of the key's parts, or fewer keys; or ask for the live rows alone: source=live",
            )
        return (self._row(values) for values in self._values(table))

    def _found_by(self, name: str, values: Sequence[Value]) -> bool:
        type_ = self._types[name]
        return isinstance(type_, Primitive) and type_.name in _FOUND_BY and None not in values

    def _values(self, table: pa.Table) -> list[tuple[Value, ...]]:
        columns = [_listed(table[name].combine_chunks(), type_) for name, type_ in self._types.items()]
        return list(zip(*columns, strict=True))

    def _row(self, values: tuple[Value, ...]) -> Found:
        keys = values[: len(self._key_names)]
        columns = self._shape.catalogue.key
        asked = [v if column.whole is None else _start(v) for column, v in zip(columns, keys, strict=True)]
        return self._shape.codec.encode(asked), self._shape.completed(keys, values[len(keys) :])


def _start(session: Value) -> Value:
    assert isinstance(session, tuple), "a session is a struct of its start and its end"
    return session[0]


def _mask(column: Any, type_: SparkType, wanted: Sequence[Value]) -> Any:
    """The rows with one of the wanted values, in a struct field by field; None if the type cannot be filtered by."""
    if None in wanted:
        return None
    if isinstance(type_, Struct):
        tuples = [value if isinstance(value, tuple) else (value,) for value in wanted]  # a session: its start only
        parts = enumerate(zip(type_.types, zip(*tuples, strict=False), strict=False))
        masks = [_mask(pc.struct_field(column, [place]), part, fields) for place, (part, fields) in parts]
        return reduce(pc.and_, [mask for mask in masks if mask is not None], pc.is_valid(column))
    if isinstance(type_, Primitive) and type_.name in _NUMBERS:
        number = _NUMBERS[type_.name]
        return pc.is_in(column.cast(number), value_set=pa.array(wanted, number))
    return None


def _listed(column: Any, type_: SparkType) -> list[Any]:
    """The values of an Arrow array as a state decoder returns them: times as numbers, structs and lists as tuples."""
    match type_:
        case Struct(_, types):
            fields = [_listed(part, of) for part, of in zip(column.flatten(), types, strict=True)]
            rows = zip(*fields, strict=True)
            return [row if there else None for row, there in zip(rows, column.is_valid().to_pylist(), strict=True)]
        case Array(element):
            return _divided(column, _listed(column.flatten(), element))
        case Map(key, value):
            entry = pa.struct([pa.field("key", column.type.key_type, nullable=False), ("value", column.type.item_type)])
            return _listed(column.cast(pa.list_(entry)), Array(Struct(("key", "value"), (key, value))))
        case Primitive(name) if name in _NUMBERS:
            return list(column.cast(_NUMBERS[name]).to_pylist())
    return list(column.to_pylist())


def _divided(column: Any, flat: list[Any]) -> list[Any]:
    """The flattened elements of all lists, regrouped into the lists."""
    found: list[Any] = []
    begin = 0
    for length in pc.list_value_length(column).to_pylist():
        found.append(None if length is None else tuple(flat[begin : begin + length]))
        begin += length or 0
    return found
