"""The shape of a view: parses keys, and turns rows and rollup rows of a replica into rows of an answer.

A rollup adds a view's rows up by a subset of the key's columns; rows and rollups come from the same snapshot. The
snapshot names its rollups, because rollups may be declared again while a server runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from operator import itemgetter
from types import MappingProxyType
from typing import Any, Final

from stateside.core.errors import KeyInvalid, NotFreshEnough, RequestInvalid
from stateside.core.storage import Storage
from stateside.replica.keys import KeyCodec
from stateside.replica.rollup_tables import Kept, RollupRows, unpack
from stateside.replica.store import Snapshot
from stateside.serving.rows.floor import STUCK
from stateside.serving.rows.sums import BucketSums
from stateside.serving.rows.values import JsonKeys, KeyTexts, Leaf, renderer
from stateside.serving.rows.view_columns import ColumnSet
from stateside.spark_state.types import Primitive, parse_type
from stateside.spark_state.unsafe_row import RowDecoder, Value
from stateside.views.aggregates import Aggregate, aggregate_of, in_rollups
from stateside.views.catalogue import Catalogue
from stateside.views.functions import TYPE, ComputedColumns, KnownFunctions
from stateside.views.state_catalogue import check_state, completed, value_decoder

NOTHING: Final[Mapping[str, Value]] = MappingProxyType({})


class RollupReader:
    """Reads the rollups of one view."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._view = catalogue.view
        self._types = {column.name: column.asked_type for column in catalogue.key}
        self._computed = catalogue.computed
        self._rows = RollupRows(catalogue.columns, catalogue.computed)
        self._columns = [made.column for made in in_rollups(catalogue.columns)]
        self._render = [(name, renderer(parse_type(type_))) for name, type_ in self._rows.columns]

    def parse_key(self, columns: Sequence[str], parts: Sequence[str]) -> list[Value]:
        """A rollup key from texts; KeyInvalid for a wrong part, RequestInvalid for a column that the key lacks."""
        return KeyTexts(f"the rollup by {_named(columns)}", self._leaves(columns)).parse(parts)

    def rows(
        self,
        snapshot: Snapshot,
        columns: Sequence[str],
        key: Sequence[Value],
        rows_max: int,
        wanted: Mapping[str, Value] = NOTHING,
        *,
        tallies: bool = False,
    ) -> list[dict[str, Any]]:
        """The rows of the rollup by these columns whose rollup key begins with `key` and has the `wanted` values.

        With `tallies` each row has the numbers that make up its values instead: tallies of several shards can be added
        up, averages and rounded sums cannot.
        NotFreshEnough while the rollups have other computed columns than the catalogue.
        """
        codec, number = self.codec(columns), self.number(snapshot, columns)
        render = [(name, renderer(type_)) for name, type_ in self._leaves(columns)]
        rows: list[dict[str, Any]] = []
        places = [(place, wanted[name]) for place, name in enumerate(columns) if name in wanted]
        for coarser, row in snapshot.rollup(number, codec.encode(key)):
            decoded = codec.decode(coarser)
            if any(decoded[place] != value for place, value in places):
                continue
            if len(rows) == rows_max:
                raise KeyInvalid(f"More than {rows_max} rows begin with this key", next_step="Give more of its parts")
            shown = {name: show(value) for (name, show), value in zip(render, decoded, strict=True)}
            rows.append(shown | (_tallies(row) if tallies else self._values(row)))
        return rows

    def codec(self, columns: Sequence[str]) -> KeyCodec:
        """The key codec of the rollup by these columns."""
        return KeyCodec([self._types[name] for name in columns])

    def number(self, snapshot: Snapshot, columns: Sequence[str]) -> int:
        """The number of the rollup by these columns in a snapshot.

        RequestInvalid if there is none; NotFreshEnough while rollups and catalogue differ in computed columns.
        """
        kept = snapshot.rollups()
        if tuple(columns) not in kept:
            raise self._unknown(columns, kept)
        if snapshot.computed() != self._computed:
            raise self._not_yet(snapshot)
        return kept.index(tuple(columns))

    def values(self, columns: Sequence[str]) -> Callable[[bytes, bytes], tuple[Value, ...]]:
        """A decoder from a stored rollup key and row to the row's values, the key's columns first."""
        codec = self.codec(columns)
        return lambda coarser, row: (*codec.decode(coarser), *self._rows.values(row))

    def shower(self, columns: Sequence[str]) -> Callable[[Sequence[Value]], dict[str, Any]]:
        """A function from a rollup row's values to the row of an answer."""
        render = [(name, renderer(type_)) for name, type_ in self._leaves(columns)] + self._render
        return lambda values: {name: show(value) for (name, show), value in zip(render, values, strict=True)}

    def columns(self) -> dict[str, Any]:
        """The arguments of `RollupRows`, with which a client turns tallies into values."""
        return {
            "columns": [each.as_document() for each in self._columns],
            "computed": [asdict(c) for c in self._computed],
        }

    def _values(self, row: bytes) -> dict[str, Any]:
        values = zip(self._render, self._rows.values(row), strict=True)
        return {name: show(value) for (name, show), value in values}

    def _leaves(self, columns: Sequence[str]) -> list[Leaf]:
        for name in columns:
            if name not in self._types:
                raise RequestInvalid(
                    f"The key of {self._view!r} has no column {name[:80]!r}",
                    next_step=f"It has: {', '.join(self._types)}",
                )
        return [(name, parse_type(self._types[name])) for name in columns]

    def _not_yet(self, snapshot: Snapshot) -> NotFreshEnough:
        trouble = snapshot.trouble()
        return NotFreshEnough(
            f"The rollups of {self._view!r} have other computed columns than were declared last"
            + (STUCK if trouble else ""),
            where=trouble,
            next_step="Ask again in a moment: the replica rebuilds them",
        )

    def _unknown(self, columns: Sequence[str], kept: Kept) -> RequestInvalid:
        return RequestInvalid(
            f"The view {self._view!r} has no rollup by {_named(columns)}",
            next_step=f"It has rollups by: {'; '.join(map(_named, kept))}"
            if kept
            else f"Declare it with rollups=[{list(columns)}], and start `run` again",
        )


def _tallies(row: bytes) -> dict[str, Any]:
    return {"tallies": [str(number) for number in unpack(row)]}  # as texts: JSON numbers would lose digits


def _named(columns: Sequence[str]) -> str:
    return ",".join(columns) or "nothing (the total)"


Finish = Callable[[Sequence[Value]], Value]


class Shape:
    """A view by its catalogue and the checkpoint's schema; ViewInvalid if the two differ, or a type cannot be served.

    A view with computed columns needs its functions too.
    """

    def __init__(self, catalogue: Catalogue, storage: Storage, functions: KnownFunctions | None = None) -> None:
        self.catalogue = completed(catalogue, storage)
        asked = [column.asked_type for column in self.catalogue.key]
        self.key_parts = [(c.name, parse_type(type_)) for c, type_ in zip(self.catalogue.key, asked, strict=True)]
        self.codec = KeyCodec(asked)  # first: refuses types that no key can have
        self.key_texts = KeyTexts(repr(self.catalogue.view), self.key_parts)
        self.json_keys = JsonKeys(repr(self.catalogue.view), self.key_parts)
        self.keys_as_asked = all(isinstance(type_, Primitive) for _, type_ in self.key_parts)
        check_state(self.catalogue, storage)
        self._decoder = value_decoder(self.catalogue, storage)
        self._aggregates = [aggregate_of(column) for column in self.catalogue.columns]
        self._finish = [(each.places[0], each.places, _finish(each)) for each in self._aggregates]
        self._pick = _picker(self._finish)
        wholes = [None if column.whole is None else column.whole.index for column in self.catalogue.key]
        self._wholes = wholes if any(at is not None for at in wholes) else []  # a session's window in the stored row
        shown = [(column.name, column.type) for column in self.catalogue.key]
        shown += [(column.name, column.type) for column in self.catalogue.columns]
        shown += [(column.name, TYPE) for column in self.catalogue.computed]
        self.columns = ColumnSet([(name, parse_type(type_)) for name, type_ in shown])
        self._computed = ComputedColumns(self.catalogue, functions)
        self.sums = BucketSums(self.catalogue, self.codec, self._decoder, self._aggregates, self._computed)
        self.rollups = RollupReader(self.catalogue)

    def parse_key(self, parts: Sequence[str]) -> list[Value]:
        """Key values from texts; KeyInvalid for too many parts, or a part of the wrong type."""
        return self.key_texts.parse(parts)

    def row(self, key: bytes, row: bytes) -> dict[str, Any]:
        """A stored row as a row of an answer."""
        return self.columns.shown(self.values(key, row))

    def values(self, key: bytes, row: bytes) -> tuple[Value, ...]:
        """The values of a stored row, in the order of `columns`."""
        return self.values_of(self.codec.decode(key), row)

    def values_of(self, key: Sequence[Value], row: bytes) -> tuple[Value, ...]:
        """Like `values`, for a key that the caller has decoded, or parsed if `keys_as_asked`.

        Parsed keys of plain types equal the decoded ones; a parsed decimal, for one, may lack trailing zeros.
        """
        return self._values(key, self._decoder.decode(row))

    def values_of_all(self, keys: Sequence[Sequence[Value]], rows: Sequence[bytes]) -> list[tuple[Value, ...]]:
        """Like `values_of` for many rows; column by column where values are stored as shown."""
        decoder = self._decoder
        stored = decoder.decode_all(rows) if isinstance(decoder, RowDecoder) else map(decoder.decode, rows)
        if self._pick is None or self._wholes or self._computed.columns or not rows:
            return list(map(self._values, keys, stored))
        columns = self._pick(list(zip(*stored, strict=True)))
        return list(zip(*zip(*keys, strict=True), *columns, strict=True))

    def _values(self, keys: Sequence[Value], stored: Sequence[Value]) -> tuple[Value, ...]:
        if self._wholes:
            keys = [value if at is None else stored[at] for at, value in zip(self._wholes, keys, strict=True)]
        values = self._pick(stored) if self._pick is not None else self._finished(stored)
        return self.completed(keys, values) if self._computed.columns else (*keys, *values)

    def _finished(self, stored: Sequence[Value]) -> Sequence[Value]:
        return [
            stored[place] if finish is None else finish([stored[p] for p in places])
            for place, places, finish in self._finish
        ]

    def completed(self, keys: Sequence[Value], values: Sequence[Value]) -> tuple[Value, ...]:
        """The values of all columns from the key's and the stored ones: computed columns are added last."""
        return (*keys, *values, *self._computed.values(keys, values))


def _picker(columns: Sequence[tuple[int, Sequence[int], Finish | None]]) -> Callable[[Any], tuple[Value, ...]] | None:
    """A getter of all columns' values, if each column is exactly one stored buffer; else None."""
    if len(columns) < 2 or any(finish is not None for _, _, finish in columns):
        return None
    return itemgetter(*(place for place, _, _ in columns))


def _finish(each: Aggregate) -> Finish | None:
    """The function from a column's buffers to its value; None where the value is the one buffer."""
    return None if each.is_stored else each.finish
