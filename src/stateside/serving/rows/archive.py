"""Sealed rows: rows that left a view's state for its archive, and the tables of the archive as a whole, for SQL.

At the moment of sealing no row is missing and none is there twice:

1. The view's sink stores the rows that batch N closes, with N as their `sealed_batch`, before Spark commits N.
2. Spark commits N. Its state no longer has these rows.
3. The replica moves to N, in one transaction.

A reader takes a snapshot of the replica at batch N, and opens the table after the snapshot: so the table has all rows
sealed up to N. Rows of N + 1 in the table are still live in the snapshot, and do not count.

So a table belongs to the view whose sink fills it, and its rows count by a gate, at the view's stamp:

- A table with `sealed_batch` is gated by that column: rows up to the stamp's batch count.
- An application may give gates for its own tables (`GatedTable`), as billing does.
- In any other table all rows count.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from stateside.archive.table import BATCH_COLUMN
from stateside.archive.table_reader import MARK, FollowedTable
from stateside.core.errors import AccessDenied, ArchiveAway, KeyInvalid, NotFreshEnough
from stateside.core.layout import Layout, ViewLayout
from stateside.replica.keys import KeyCodec
from stateside.serving.access.principal import Principal
from stateside.serving.rows.columns import ArrowStream, Values
from stateside.serving.rows.shape import Shape
from stateside.serving.stamp import Stamp
from stateside.spark_state.types import Array, Map, Primitive, SparkType, Struct
from stateside.spark_state.unsafe_row import Value
from stateside.views.catalogue import Catalogue

if TYPE_CHECKING:
    import pyarrow.dataset as pads  # takes 1 s to import: it imports pandas

SEALED_ROWS_MAX = 1_000_000  # looked at by one query, or for one page
WINDOW_ROWS = 1_000  # of the first window of a range
_FOUND_BY = ("string", "byte", "short", "integer", "long")  # column types that files are pruned by
_NUMBERS = {"timestamp": pa.int64(), "timestamp_ntz": pa.int64(), "date": pa.int32()}
_NO_KEY = (IndexError, ValueError, AssertionError, struct.error)  # raised for bytes that begin no key


class SealedRow(NamedTuple):
    """A sealed row: its encoded key, its values in the order of the view's columns, and the batch that sealed it."""

    key: bytes
    values: Values
    batch: int


class Batches(NamedTuple):
    """The batches up to one, and after another."""

    upto: int
    after: int = -1


class SealedRows:
    """The sealed rows of one view. Thread-safe. Call after taking the snapshot at the last batch that counts.

    KeyInvalid if more than `SEALED_ROWS_MAX` rows would have to be looked at.
    """

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

    def range(
        self, key: Sequence[Value], batches: Batches, begin: bytes = b"", end: bytes | None = None
    ) -> Iterator[SealedRow]:
        """The rows, in key order, whose key begins with these values, is at least `begin` and below `end`.

        Read in windows, each four times as large as the one before: a caller that takes a few rows pays for a few.
        Memory: the rows of one file and of one window.
        """
        count = WINDOW_ROWS
        while True:
            found = self._first(count, key, batches, begin, end)
            yield from found
            if len(found) < count:
                return
            begin, count = found[-1].key + b"\x00", count * 4

    def rows(self, key: Sequence[Value], batches: Batches) -> Iterator[SealedRow]:
        """The rows whose key begins with these values, in no order. Memory: the rows of one file."""
        prefix = self._shape.codec.encode(key)
        for part in self._parts(self._by_name(key), batches, {}):
            keys = enumerate(self._keys(part))
            yield from self._rows(part, [(each, at) for at, each in keys if each.startswith(prefix)])

    def _first(
        self, count: int, key: Sequence[Value], batches: Batches, begin: bytes, end: bytes | None
    ) -> list[SealedRow]:
        prefix, found = self._shape.codec.encode(key), list[SealedRow]()
        begin = max(prefix, begin)
        for part in self._parts(self._by_name(key), batches, {} if key else self._least(begin)):
            keys = enumerate(self._keys(part))
            inside = [(k, at) for at, k in keys if k >= begin and k.startswith(prefix) and (end is None or k < end)]
            found = sorted([*found, *self._rows(part, sorted(inside)[:count])], key=itemgetter(0))[:count]
        return found

    def _by_name(self, key: Sequence[Value]) -> dict[str, Sequence[Value]]:
        return {name: [value] for name, value in zip(self._key_names, key, strict=False)}

    def of_keys(self, keys: Sequence[Sequence[Value]], batches: Batches) -> dict[bytes, Values]:
        """The rows of these whole keys, by encoded key."""
        encoded = {self._shape.codec.encode(key) for key in keys}
        wanted = {name: [key[place] for key in keys] for place, name in enumerate(self._key_names)}
        parts = ((part, enumerate(self._keys(part))) for part in self._parts(wanted, batches, {}))
        found = [row for part, ks in parts for row in self._rows(part, [(k, at) for at, k in ks if k in encoded])]
        return {row.key: row.values for row in found}

    def _parts(
        self, wanted: Mapping[str, Sequence[Value]], batches: Batches, least: Mapping[str, Value]
    ) -> Iterator[pa.Table]:
        """A superset of the rows with one of the wanted values in each key column: some types cannot be filtered by."""
        sets = {name: list(dict.fromkeys(values)) for name, values in wanted.items() if self._found_by(name, values)}
        equal = {name: values[0] for name, values in sets.items() if len(values) == 1}
        among = {name: values for name, values in sets.items() if name not in equal}
        below, least = {BATCH_COLUMN: batches.upto + 1}, {BATCH_COLUMN: batches.after + 1, **least}
        columns, looked_at = [*self._types, BATCH_COLUMN], 0
        try:
            for part in self._table.parts(columns, equal=equal, below=below, least=least, among=among):
                for name in set(wanted) - set(sets):
                    mask = _mask(part[name], self._types[name], wanted[name])
                    part = part if mask is None else part.filter(mask)
                looked_at += part.num_rows
                _check_count(looked_at)
                yield part
        except ArchiveAway as error:
            next_step = "Ask for the live rows alone (source=live), or again once the storage is back"
            raise ArchiveAway(error.what, where=error.where, next_step=next_step) from error

    def _found_by(self, name: str, values: Sequence[Value]) -> bool:
        type_ = self._types[name]
        return isinstance(type_, Primitive) and type_.name in _FOUND_BY and None not in values

    def _least(self, begin: bytes) -> dict[str, Value]:
        """The least value of the key's first column from this key on, if files can be pruned by it."""
        try:
            codec = KeyCodec([self._shape.catalogue.key[0].asked_type])
            first = codec.decode(codec.leading(begin))[0]
        except _NO_KEY:
            return {}
        return {self._key_names[0]: first} if self._found_by(self._key_names[0], [first]) else {}

    def _keys(self, part: pa.Table) -> list[bytes]:
        """The encoded keys of all rows."""
        if not self._key_names:
            return [self._shape.codec.encode([])] * part.num_rows
        columns = [self._column(part, name) for name in self._key_names]
        for place, column in enumerate(self._shape.catalogue.key):
            if column.whole is not None:
                columns[place] = list(map(_start, columns[place]))
        return self._shape.codec.encode_all(list(zip(*columns, strict=True)))

    def _rows(self, part: pa.Table, chosen: Sequence[tuple[bytes, int]]) -> Iterator[SealedRow]:
        rows = part.take(pa.array([at for _, at in chosen], pa.int64()))
        columns = [self._column(rows, name) for name in self._types]
        keys = len(self._key_names)
        for (key, _), batch, values in zip(
            chosen, rows[BATCH_COLUMN].to_pylist(), zip(*columns, strict=True), strict=True
        ):
            yield SealedRow(key, self._shape.completed(values[:keys], values[keys:]), batch)

    def _column(self, part: pa.Table, name: str) -> list[Any]:
        return _listed(part[name].combine_chunks(), self._types[name])


def _check_count(looked_at: int) -> None:
    if looked_at > SEALED_ROWS_MAX:
        raise KeyInvalid(
            f"More than {SEALED_ROWS_MAX:,} sealed rows would have to be looked at for this",
            next_step="Give more of the key's parts, or fewer keys; or ask for live rows (source=live), or with SQL",
        )


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


Gate = Callable[[Stamp], pc.Expression]


@dataclass(frozen=True, slots=True)
class GatedTable:
    """A table that an application fills from a view, and the gate of its rows by a stamp of the view.

    `positions` are the columns with journal positions, hidden from scoped tokens.
    """

    application: str
    view: str
    table: str
    gate: Gate
    positions: tuple[str, ...] = ()


def table_folder(view: ViewLayout, table: str) -> Path:
    """The folder of a table of a view's sinks. Generations have an archive each; other tables are common to all."""
    archive = Catalogue.load(view.catalogue).archive if view.catalogue.exists() else None
    own = archive is not None and table in (archive, f"{archive}_corrections")
    return view.table(table) if own else Layout(view.application).table(table)


class ArchiveTables:
    """The archive tables of a folder."""

    def __init__(self, layout: Layout, gated: Sequence[GatedTable] = ()) -> None:
        self._layout, self._gated = layout, {(each.application, each.view, each.table): each for each in gated}
        self._lock = threading.Lock()
        self._tables: dict[Path, FollowedTable] = {}

    def tables(self) -> Mapping[str, str]:
        """The existing tables, each with its view; includes tables whose storage is away."""
        marks = [(view, mark) for view in self._layout.views() for mark in (view.root / "marks").glob("*.json")]
        return {mark.stem: view.name for view, mark in marks if MARK.read(mark) is not None}

    def schema(self, table: str, view: ViewLayout) -> pa.Schema:
        """The table's columns; ArchiveAway or ArchiveInvalid as for `FollowedTable`."""
        return self._dataset(table, view).schema

    def rows(
        self, table: str, view: ViewLayout, application: str, stamp: Stamp, predicate: pc.Expression | None
    ) -> pads.Dataset:
        """The rows that count at this stamp and meet the predicate; errors as for `schema`."""
        dataset = self._dataset(table, view)
        gate = self._gated.get((application, view.name, table))
        if gate is not None:
            dataset = dataset.filter(gate.gate(stamp))
        elif BATCH_COLUMN in dataset.schema.names:
            dataset = dataset.filter(pc.field(BATCH_COLUMN) <= stamp.batch)
        return dataset if predicate is None else dataset.filter(predicate)

    def hidden(self, table: str, view: str, holder: Principal) -> frozenset[str]:
        """The columns hidden from this principal."""
        found = [each.positions for (_, *of), each in self._gated.items() if of == [view, table]]
        return frozenset(name for names in found for name in names) if holder.is_scoped else frozenset()

    def check_there(self, table: str, view: ViewLayout) -> None:
        """ArchiveAway or ArchiveInvalid if the table cannot be read now."""
        self._followed(table, view).check_there()

    def _followed(self, table: str, view: ViewLayout) -> FollowedTable:
        mark = view.mark(table)
        with self._lock:
            if mark not in self._tables:
                self._tables[mark] = FollowedTable(table_folder(view, table), mark)
            return self._tables[mark]

    def _dataset(self, table: str, view: ViewLayout) -> pads.Dataset:
        dataset = self._followed(table, view).dataset()
        if dataset is None:
            raise NotFreshEnough(f"The table {table!r} was not made yet", next_step="Ask again in a moment")
        return dataset


def with_computed(rows: pads.Dataset, shape: Shape) -> ArrowStream:
    """The sealed rows of a view, with its computed columns."""
    key = [each.name for each in shape.catalogue.key]
    stored = [*key, *(each.name for each in shape.catalogue.columns)]

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in rows.to_batches(columns=stored):
            computed = shape.computed.arrays(batch.columns[: len(key)], batch.columns[len(key) :])
            yield shape.columns.batch([*batch.columns, *computed], len(batch))

    return ArrowStream.of_batches(shape.columns.schema, batches)


def table_scope(schema: pa.Schema, where: Mapping[str, str]) -> pc.Expression | None:
    """A scope as a predicate over a table's rows; AccessDenied if a column cannot have such a value."""
    found = None if not where else pc.scalar(True)
    for name, text in where.items():
        type_ = schema.field(name).type
        try:
            if pt.is_binary(type_):  # not comparable with text
                raise no_such(name, text)
            found = found & (pc.field(name) == pa.scalar(text, pa.string()).cast(type_))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            raise no_such(name, text) from None
    return found


def no_such(name: str, text: str) -> AccessDenied:
    """The error for a scope by a value that the column cannot have."""
    return AccessDenied(
        f"This token reaches rows whose column {name!r} is {text[:80]!r}: it cannot have its value in this view",
        next_step="Ask a view where it can, or with another token",
    )
