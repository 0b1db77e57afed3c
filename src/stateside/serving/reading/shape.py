"""The shape of a view: how its rows are asked for by key, and what they look like in an answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from stateside.checkpoint.catalogue import Catalogue
from stateside.checkpoint.computed import TYPE, ComputedColumns, KnownSteps
from stateside.checkpoint.finalise import Finaliser, finaliser
from stateside.checkpoint.types import parse_type
from stateside.checkpoint.unsafe_row import Value
from stateside.checkpoint.variable_catalogue import check_state, completed, value_decoder
from stateside.replica.keys import KeyCodec
from stateside.serving.reading.columns import Columns
from stateside.serving.reading.rollups import RollupReader
from stateside.serving.reading.sums import Sums
from stateside.serving.reading.values import parse_key
from stateside.storage import Storage


class Shape:
    """What a catalogue and the checkpoint's schema say of a view; ViewInvalid if they do not fit, or it has no way.

    A view with computed columns needs its steps too.
    """

    def __init__(self, catalogue: Catalogue, storage: Storage, steps: KnownSteps | None = None) -> None:
        self.catalogue = completed(catalogue, storage)
        asked = [column.asked_type for column in self.catalogue.key]
        self.key_parts = [(c.name, parse_type(type_)) for c, type_ in zip(self.catalogue.key, asked, strict=True)]
        self.codec = KeyCodec(asked)
        check_state(self.catalogue, storage)
        self._decoder = value_decoder(self.catalogue, storage)
        self._finalisers = [finaliser(column) for column in self.catalogue.columns]
        self._finish = [(each.places[0], each.places, _finish(each)) for each in self._finalisers]
        wholes = [None if column.whole is None else column.whole.index for column in self.catalogue.key]
        self._wholes = wholes if any(at is not None for at in wholes) else []  # where the row has a session's window
        shown = [(column.name, column.type) for column in self.catalogue.key]
        shown += [(column.name, column.type) for column in self.catalogue.columns]
        shown += [(column.name, TYPE) for column in self.catalogue.computed]
        self.columns = Columns([(name, parse_type(type_)) for name, type_ in shown])
        self._computed = ComputedColumns(self.catalogue, steps)
        self.sums = Sums(self.catalogue, self.codec, self._decoder, self._finalisers, self._computed)
        self.rollups = RollupReader(self.catalogue)

    def parse_key(self, parts: Sequence[str]) -> list[Value]:
        """The key's values from their texts; KeyInvalid if there are too many, or one is not of its column's type."""
        return parse_key(repr(self.catalogue.view), self.key_parts, parts)

    def row(self, key: bytes, row: bytes) -> dict[str, Any]:
        """A row of the replica as it stands in an answer."""
        return self.columns.shown(self.values(key, row))

    def values(self, key: bytes, row: bytes) -> tuple[Value, ...]:
        """The values of a row of the replica, in the order of `columns`."""
        keys: Sequence[Value] = self.codec.decode(key)
        stored = self._decoder.decode(row)
        if self._wholes:
            keys = [value if at is None else stored[at] for at, value in zip(self._wholes, keys, strict=True)]
        values = [
            stored[place] if finish is None else finish([stored[p] for p in places])
            for place, places, finish in self._finish
        ]
        return self.completed(keys, values) if self._computed.columns else (*keys, *values)

    def completed(self, keys: Sequence[Value], values: Sequence[Value]) -> tuple[Value, ...]:
        """The values of all columns, from those of the key and of the catalogue's others; computed ones last."""
        return (*keys, *values, *self._computed.values(keys, values))


def _finish(each: Finaliser) -> Callable[[Sequence[Value]], Value] | None:
    """What makes a column's value of its buffers; None where that is its one buffer."""
    return None if type(each).finish is Finaliser.finish else each.finish
