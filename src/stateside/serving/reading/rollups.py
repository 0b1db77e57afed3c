"""Rollups as readers see them: a view's rows added up by a coarser key, out of the same snapshot as its rows.

Which rollups there are the replica says, snapshot by snapshot: they may be declared anew while a server runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from stateside.checkpoint.catalogue import Catalogue
from stateside.checkpoint.types import parse_type
from stateside.checkpoint.unsafe_row import Value
from stateside.errors import KeyInvalid, NotFreshEnough, RequestInvalid
from stateside.replica.keys import KeyCodec
from stateside.replica.rollups import Kept, RollupRows
from stateside.replica.store import Snapshot
from stateside.serving.reading.values import Leaf, parse_key, renderer


class RollupReader:
    """Reads the rollups of one view."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._view = catalogue.view
        self._types = {column.name: column.asked_type for column in catalogue.key}
        self._computed = catalogue.computed
        self._rows = RollupRows(catalogue.columns, catalogue.computed)
        self._render = [(name, renderer(parse_type(type_))) for name, type_ in self._rows.columns]

    def parse_key(self, columns: Sequence[str], parts: Sequence[str]) -> list[Value]:
        """A coarser key's values from their texts; KeyInvalid if they are none, RequestInvalid for other columns."""
        return parse_key(f"the rollup by {_named(columns)}", self._leaves(columns), parts)

    def rows(
        self, snapshot: Snapshot, columns: Sequence[str], key: Sequence[Value], rows_max: int
    ) -> list[dict[str, Any]]:
        """The rows of the rollup by these columns whose coarser key begins with these values.

        NotFreshEnough while the rollups have other computed columns than the catalogue.
        """
        codec, number, shown = self.codec(columns), self.number(snapshot, columns), self.shown(columns)
        rows: list[dict[str, Any]] = []
        for coarser, row in snapshot.rollup(number, codec.encode(key)):
            if len(rows) == rows_max:
                raise KeyInvalid(f"More than {rows_max} rows begin with this key", next_step="Give more of its parts")
            rows.append(shown(coarser, row))
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

    def shown(self, columns: Sequence[str]) -> Callable[[bytes, bytes], dict[str, Any]]:
        """What makes of a coarser key and its row what stands in an answer."""
        codec = self.codec(columns)
        render = [(name, renderer(type_)) for name, type_ in self._leaves(columns)] + self._render

        def show(coarser: bytes, row: bytes) -> dict[str, Any]:
            values = (*codec.decode(coarser), *self._rows.values(row))
            return {name: shown(value) for (name, shown), value in zip(render, values, strict=True)}

        return show

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
            + (f". Its replica does not move: {trouble}" if trouble else ""),
            next_step="Ask again in a moment: the replica makes them anew",
        )

    def _unknown(self, columns: Sequence[str], kept: Kept) -> RequestInvalid:
        return RequestInvalid(
            f"The view {self._view!r} has no rollup by {_named(columns)}",
            next_step=f"It has rollups by: {'; '.join(map(_named, kept))}"
            if kept
            else f"Declare it with rollups=[{list(columns)}], and start `run` again",
        )


def _named(columns: Sequence[str]) -> str:
    return ",".join(columns) or "nothing (the total)"
