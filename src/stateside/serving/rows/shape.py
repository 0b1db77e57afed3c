"""The shape of a view and of its rollups: parses keys, and turns stored rows into values and rows of an answer.

A rollup adds a view's rows up by a subset of the key's columns; rows and rollups come from the same snapshot. The
snapshot names its rollups, because rollups may be declared again while a server runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import cached_property
from operator import itemgetter
from typing import Any

from stateside.core.errors import NotFreshEnough, RequestInvalid
from stateside.core.storage import Storage
from stateside.replica.changes import Extent
from stateside.replica.keys import KeyCodec
from stateside.replica.rollup_tables import Kept, RollupRows
from stateside.replica.store import Snapshot
from stateside.serving.rows.columns import ArrowColumns, ColumnSet, RollupArrow, Values, ViewArrow
from stateside.serving.rows.floor import STUCK
from stateside.serving.rows.sums import BucketSums
from stateside.serving.rows.values import JsonKeys, KeyTexts
from stateside.spark_state.types import Primitive, parse_type
from stateside.spark_state.unsafe_row import RowDecoder, Value
from stateside.views.aggregates import Aggregate, aggregate_of, in_rollups
from stateside.views.catalogue import Catalogue
from stateside.views.functions import TYPE, ComputedColumns, KnownFunctions
from stateside.views.state_catalogue import check_state, completed, value_decoder


class StoredTable:
    """Rows of a replica with the same key and columns: those of a view, or of its rollup `by` some columns."""

    by: tuple[str, ...] | None = None

    def __init__(self, catalogue: Catalogue, key: Sequence[tuple[str, str]], named: str) -> None:
        self.catalogue = catalogue
        self.key_parts = [(name, parse_type(type_)) for name, type_ in key]
        self.codec = KeyCodec([type_ for _, type_ in key])  # refuses types that no key can have
        self.key_texts = KeyTexts(named, self.key_parts)
        self.columns: ColumnSet

    def parse_key(self, parts: Sequence[str]) -> list[Value]:
        """Key values from texts; KeyInvalid for too many parts, or a part of the wrong type."""
        return self.key_texts.parse(parts)

    def number(self, snapshot: Snapshot) -> int | None:
        """The number of the rollup in a snapshot; None of a view."""
        return None

    def extent(self, snapshot: Snapshot, prefix: bytes = b"") -> Extent:
        """The snapshot's range of keys with a prefix."""
        return Extent(prefix, self.number(snapshot))

    def values(self, key: bytes, row: bytes) -> Values:
        """The values of a stored row, in the order of `columns`."""
        raise NotImplementedError

    @cached_property
    def arrow(self) -> ArrowColumns:
        """The conversion of stored rows for SQL."""
        raise NotImplementedError

    def row(self, key: bytes, row: bytes) -> dict[str, Any]:
        """A stored row as a row of an answer."""
        return self.columns.shown(self.values(key, row))

    def rows(self, snapshot: Snapshot) -> Iterator[dict[str, Any]]:
        """All rows of a snapshot, in key order."""
        return (self.row(key, row) for key, row in self.extent(snapshot).rows(snapshot))


class Rollup(StoredTable):
    """A rollup of a view; RequestInvalid for a column that the view's key lacks."""

    def __init__(self, catalogue: Catalogue, by: Sequence[str]) -> None:
        types = {column.name: column.asked_type for column in catalogue.key}
        for name in by:
            if name not in types:
                raise RequestInvalid(
                    f"The key of {catalogue.view!r} has no column {name[:80]!r}",
                    next_step=f"It has: {', '.join(types)}",
                )
        super().__init__(catalogue, [(name, types[name]) for name in by], f"the rollup by {_named(by)}")
        self.by: tuple[str, ...] = tuple(by)
        self.sums = RollupRows(catalogue.columns, catalogue.computed)
        self.columns = ColumnSet([*self.key_parts, *((name, parse_type(type_)) for name, type_ in self.sums.columns)])

    def number(self, snapshot: Snapshot) -> int:
        """RequestInvalid if there is no such rollup; NotFreshEnough while the snapshot's are not the declared ones."""
        kept = snapshot.rollups()
        if self.by not in kept and self.by not in self.catalogue.rollups:
            raise self._unknown(kept)
        if self.by not in kept or snapshot.computed() != self.catalogue.computed:
            raise self._not_yet(snapshot)
        return kept.index(self.by)

    def values(self, key: bytes, row: bytes) -> Values:
        return (*self.codec.decode(key), *self.sums.values(row))

    @cached_property
    def arrow(self) -> ArrowColumns:
        types = {column.name: column.asked_type for column in self.catalogue.key}
        return RollupArrow(self.columns, [types[name] for name in self.by], self.sums)

    def made_of(self) -> dict[str, Any]:
        """The arguments of `RollupRows`, with which a client turns tallies into values."""
        return {
            "columns": [each.column.as_document() for each in in_rollups(self.catalogue.columns)],
            "computed": [asdict(each) for each in self.catalogue.computed],
        }

    def _not_yet(self, snapshot: Snapshot) -> NotFreshEnough:
        trouble = snapshot.trouble()
        differ = "have other computed columns" if self.by in snapshot.rollups() else "are others"
        return NotFreshEnough(
            f"The rollups of {self.catalogue.view!r} {differ} than were declared last" + (STUCK if trouble else ""),
            where=trouble,
            next_step="Ask again in a moment: the replica rebuilds them",
        )

    def _unknown(self, kept: Kept) -> RequestInvalid:
        return RequestInvalid(
            f"The view {self.catalogue.view!r} has no rollup by {_named(self.by)}",
            next_step=f"It has rollups by: {'; '.join(map(_named, kept))}"
            if kept
            else f"Declare it with rollups=[{list(self.by)}], and start `run` again",
        )


def _named(columns: Sequence[str]) -> str:
    return ",".join(columns) or "nothing (the total)"


Finish = Callable[[Sequence[Value]], Value]


class Shape(StoredTable):
    """A view by its catalogue and the checkpoint's schema; ViewInvalid if the two differ, or a type cannot be served.

    A view with computed columns needs its functions too.
    """

    def __init__(self, catalogue: Catalogue, storage: Storage, functions: KnownFunctions | None = None) -> None:
        catalogue = completed(catalogue, storage)
        super().__init__(catalogue, [(each.name, each.asked_type) for each in catalogue.key], repr(catalogue.view))
        self.json_keys = JsonKeys(repr(self.catalogue.view), self.key_parts)
        self.keys_as_asked = all(isinstance(type_, Primitive) for _, type_ in self.key_parts)
        check_state(self.catalogue, storage)
        self._storage, self._rollups = storage, dict[tuple[str, ...], Rollup]()
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
        self.computed = ComputedColumns(self.catalogue, functions)
        self.sums = BucketSums(self.catalogue, self.codec, self._decoder, self._aggregates, self.computed)

    def rollup(self, by: Sequence[str]) -> Rollup:
        """The view's rollup by these columns, declared or not; RequestInvalid for a column that the key lacks."""
        found = self._rollups.get(tuple(by))
        if found is None:
            found = Rollup(self.catalogue, by)
            if found.by in self.catalogue.rollups:
                self._rollups[found.by] = found
        return found

    @cached_property
    def arrow(self) -> ArrowColumns:
        return ViewArrow(self.columns, self.catalogue, self._storage, self.computed)

    def values(self, key: bytes, row: bytes) -> tuple[Value, ...]:
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
        if self._pick is None or self._wholes or self.computed.columns or not rows:
            return list(map(self._values, keys, stored))
        columns = self._pick(list(zip(*stored, strict=True)))
        return list(zip(*zip(*keys, strict=True), *columns, strict=True))

    def _values(self, keys: Sequence[Value], stored: Sequence[Value]) -> tuple[Value, ...]:
        if self._wholes:
            keys = [value if at is None else stored[at] for at, value in zip(self._wholes, keys, strict=True)]
        values = self._pick(stored) if self._pick is not None else self._finished(stored)
        return self.completed(keys, values) if self.computed.columns else (*keys, *values)

    def _finished(self, stored: Sequence[Value]) -> Sequence[Value]:
        return [
            stored[place] if finish is None else finish([stored[p] for p in places])
            for place, places, finish in self._finish
        ]

    def completed(self, keys: Sequence[Value], values: Sequence[Value]) -> tuple[Value, ...]:
        """The values of all columns from the key's and the stored ones: computed columns are added last."""
        return (*keys, *values, *self.computed.values(keys, values))


def _picker(columns: Sequence[tuple[int, Sequence[int], Finish | None]]) -> Callable[[Any], tuple[Value, ...]] | None:
    """A getter of all columns' values, if each column is exactly one stored buffer; else None."""
    if len(columns) < 2 or any(finish is not None for _, _, finish in columns):
        return None
    return itemgetter(*(place for place, _, _ in columns))


def _finish(each: Aggregate) -> Finish | None:
    """The function from a column's buffers to its value; None where the value is the one buffer."""
    return None if each.is_stored else each.finish
