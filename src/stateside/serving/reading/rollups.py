"""Rollups as readers see them: a view's rows added up by a coarser key, out of the same snapshot as its rows.

Which rollups there are the replica says, snapshot by snapshot: they may be declared anew while a server runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from types import MappingProxyType
from typing import Any, Final

from stateside.checkpoint.catalogue import Catalogue
from stateside.checkpoint.tallies import tallied
from stateside.checkpoint.types import parse_type
from stateside.checkpoint.unsafe_row import Value
from stateside.errors import KeyInvalid, NotFreshEnough, RequestInvalid
from stateside.replica.keys import KeyCodec
from stateside.replica.rollups import Kept, RollupRows, unpack
from stateside.replica.store import Snapshot
from stateside.serving.reading.floor import STUCK
from stateside.serving.reading.values import KeyTexts, Leaf, renderer

NOTHING: Final[Mapping[str, Value]] = MappingProxyType({})


class RollupReader:
    """Reads the rollups of one view."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._view = catalogue.view
        self._types = {column.name: column.asked_type for column in catalogue.key}
        self._computed = catalogue.computed
        self._rows = RollupRows(catalogue.columns, catalogue.computed)
        self._columns = tallied(catalogue.columns)
        self._render = [(name, renderer(parse_type(type_))) for name, type_ in self._rows.columns]

    def parse_key(self, columns: Sequence[str], parts: Sequence[str]) -> list[Value]:
        """A coarser key's values from their texts; KeyInvalid if they are none, RequestInvalid for other columns."""
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
        """The rows of the rollup by these columns whose coarser key begins with these values.

        Of these only the ones that have the `wanted` values in their key's columns.
        With `tallies` each has the numbers that its values are made of in their place: those of several shares can be
        added up, which averages and rounded sums cannot.
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
        """What encodes the coarser keys of the rollup by these columns."""
        return KeyCodec([self._types[name] for name in columns])

    def number(self, snapshot: Snapshot, columns: Sequence[str]) -> int:
        """The number of the rollup by these columns in a snapshot.

        RequestInvalid if there is none; NotFreshEnough while they have other computed columns than the catalogue.
        """
        kept = snapshot.rollups()
        if tuple(columns) not in kept:
            raise self._unknown(columns, kept)
        if snapshot.computed() != self._computed:
            raise self._not_yet(snapshot)
        return kept.index(tuple(columns))

    def values(self, columns: Sequence[str]) -> Callable[[bytes, bytes], tuple[Value, ...]]:
        """What makes the values of a row of this rollup, the key's columns first, out of what a snapshot has."""
        codec = self.codec(columns)
        return lambda coarser, row: (*codec.decode(coarser), *self._rows.values(row))

    def shower(self, columns: Sequence[str]) -> Callable[[Sequence[Value]], dict[str, Any]]:
        """What makes of these values the row of an answer."""
        render = [(name, renderer(type_)) for name, type_ in self._leaves(columns)] + self._render
        return lambda values: {name: show(value) for (name, show), value in zip(render, values, strict=True)}

    def columns(self) -> dict[str, Any]:
        """How tallies become values: what `RollupRows` is made of."""
        return {"columns": [asdict(each) for each in self._columns], "computed": [asdict(c) for c in self._computed]}

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
            next_step="Ask again in a moment: the replica makes them anew",
        )

    def _unknown(self, columns: Sequence[str], kept: Kept) -> RequestInvalid:
        return RequestInvalid(
            f"The view {self._view!r} has no rollup by {_named(columns)}",
            next_step=f"It has rollups by: {'; '.join(map(_named, kept))}"
            if kept
            else f"Declare it with rollups=[{list(columns)}], and start `run` again",
        )


def _tallies(row: bytes) -> dict[str, Any]:
    return {"tallies": [str(number) for number in unpack(row)]}  # as texts: JSON's numbers would lose some


def _named(columns: Sequence[str]) -> str:
    return ",".join(columns) or "nothing (the total)"
