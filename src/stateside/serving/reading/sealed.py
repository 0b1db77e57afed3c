"""Sealed rows: those that have left a view's state for its table in the archive, as readers of the view see them.

At the moment of sealing no row is missing and none is there twice:

1. The view's sink stores the rows that batch N closes, with N as their `sealed_batch`, before Spark commits N.
2. Spark commits N. Its state has these rows no more.
3. The replica moves to N, in one transaction.

A reader takes a snapshot of the replica, which stands at N, and opens the table after that: so the table has all rows
that were sealed up to N. It may have those of N + 1 too, which the snapshot still has as live ones; they do not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from stateside.archive.followed import FollowedTable
from stateside.archive.table import BATCH_COLUMN
from stateside.checkpoint.types import Array, Map, Primitive, SparkType, Struct
from stateside.checkpoint.unsafe_row import Value
from stateside.errors import KeyInvalid
from stateside.layout import Layout, ViewLayout
from stateside.serving.reading.order import Found
from stateside.serving.reading.shape import Shape

SEALED_ROWS_MAX = 20_000  # that begin with one key

_FOUND_BY = ("string", "byte", "short", "integer", "long")  # types of columns that files are chosen by
_NUMBERS = {"timestamp": pa.int64(), "timestamp_ntz": pa.int64(), "date": pa.int32()}


class SealedRows:
    """The sealed rows of one view. Any thread may ask."""

    def __init__(self, shape: Shape, table: FollowedTable) -> None:
        self._shape, self._table = shape, table
        self._key_names = [column.name for column in shape.catalogue.key]
        stored = [*self._key_names, *(column.name for column in shape.catalogue.columns)]
        self._types = {name: shape.columns.types[name] for name in stored}

    @classmethod
    def of(cls, shape: Shape, layout: ViewLayout) -> SealedRows | None:
        """Those of a view, by its catalogue; None if it has no archive."""
        name = shape.catalogue.archive
        if name is None:
            return None
        folder = Layout(layout.root.parent.parent)
        return cls(shape, FollowedTable(folder.table(name), layout.mark(name)))

    def rows(self, key: Sequence[Value], batch: int) -> list[Found]:
        """The rows sealed up to a batch whose key begins with these values, in the order of their keys.

        Called after the snapshot was taken that stands at this batch. KeyInvalid if there are too many.
        """
        named = list(zip(self._key_names, key, strict=False))
        equal = {name: value for name, value in named if value is not None and self._found_by(name)}
        table = self._table.read(list(self._types), equal=equal, below={BATCH_COLUMN: batch + 1})
        if table is None:
            return []
        for name, value in named:
            mask = None if name in equal else _mask(table[name], self._types[name], value)
            table = table if mask is None else table.filter(mask)
        if table.num_rows > SEALED_ROWS_MAX:
            raise KeyInvalid(
                f"More than {SEALED_ROWS_MAX:,} sealed rows begin with this key",
                next_step="Give more of its parts, or ask for the live rows alone: source=live",
            )
        prefix = self._shape.codec.encode(key)
        found = (self._row(values) for values in self._values(table))
        return sorted((row for row in found if row[0].startswith(prefix)), key=lambda row: row[0])

    def _found_by(self, name: str) -> bool:
        type_ = self._types[name]
        return isinstance(type_, Primitive) and type_.name in _FOUND_BY

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


def _mask(column: Any, type_: SparkType, value: Value) -> Any:
    """Which rows have this value, or a struct these first fields; None where only the key's bytes tell."""
    if value is None:
        return pc.is_null(column)
    if isinstance(type_, Struct):
        fields = value if isinstance(value, tuple) else (value,)  # of a session its start is asked for
        parts = enumerate(zip(type_.types, fields, strict=False))
        masks = [_mask(pc.struct_field(column, [place]), part, field) for place, (part, field) in parts]
        return reduce(pc.and_, [mask for mask in masks if mask is not None], pc.is_valid(column))
    if isinstance(type_, Primitive) and type_.name in _NUMBERS:
        return pc.equal(column.cast(_NUMBERS[type_.name]), value)
    return None


def _listed(column: Any, type_: SparkType) -> list[Any]:
    """The values of an Arrow array as a state's decoder has them: times as numbers, structs and lists as tuples."""
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
    """The elements of all lists, divided into these lists."""
    found: list[Any] = []
    begin = 0
    for length in pc.list_value_length(column).to_pylist():
        found.append(None if length is None else tuple(flat[begin : begin + length]))
        begin += length or 0
    return found
