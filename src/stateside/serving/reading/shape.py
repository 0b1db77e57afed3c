"""The shape of a view: how its rows are asked for by key, and what they look like in an answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

from stateside.checkpoint.catalogue import Catalogue
from stateside.checkpoint.computed import TYPE, ComputedColumns, KnownSteps
from stateside.checkpoint.finalise import Finaliser, finaliser
from stateside.checkpoint.types import Primitive, parse_type
from stateside.checkpoint.unsafe_row import RowDecoder, Value
from stateside.checkpoint.variable_catalogue import check_state, completed, value_decoder
from stateside.replica.keys import KeyCodec
from stateside.serving.reading.columns import Columns
from stateside.serving.reading.json_key import JsonKeys
from stateside.serving.reading.rollups import RollupReader
from stateside.serving.reading.sums import Sums
from stateside.serving.reading.values import KeyTexts
from stateside.storage import Storage

Finish = Callable[[Sequence[Value]], Value]


class Shape:
    """What a catalogue and the checkpoint's schema say of a view; ViewInvalid if they do not fit, or it has no way.

    A view with computed columns needs its steps too.
    """

    def __init__(self, catalogue: Catalogue, storage: Storage, steps: KnownSteps | None = None) -> None:
        self.catalogue = completed(catalogue, storage)
        asked = [column.asked_type for column in self.catalogue.key]
        self.key_parts = [(c.name, parse_type(type_)) for c, type_ in zip(self.catalogue.key, asked, strict=True)]
        self.codec = KeyCodec(asked)  # first: it refuses types that no key can have
        self.key_texts = KeyTexts(repr(self.catalogue.view), self.key_parts)
        self.json_keys = JsonKeys(repr(self.catalogue.view), self.key_parts)
        self.keys_as_asked = all(isinstance(type_, Primitive) for _, type_ in self.key_parts)
        check_state(self.catalogue, storage)
        self._decoder = value_decoder(self.catalogue, storage)
        self._finalisers = [finaliser(column) for column in self.catalogue.columns]
        self._finish = [(each.places[0], each.places, _finish(each)) for each in self._finalisers]
        self._pick = _picker(self._finish)
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
        return self.key_texts.parse(parts)

    def row(self, key: bytes, row: bytes) -> dict[str, Any]:
        """A row of the replica as it stands in an answer."""
        return self.columns.shown(self.values(key, row))

    def values(self, key: bytes, row: bytes) -> tuple[Value, ...]:
        """The values of a row of the replica, in the order of `columns`."""
        return self.values_of(self.codec.decode(key), row)

    def values_of(self, key: Sequence[Value], row: bytes) -> tuple[Value, ...]:
        """The same for the key's values as they were asked for, if these are `keys_as_asked`.

        So are those of plain types; a decimal, for one, has all of its zeros only once it was read back.
        """
        return self._values(key, self._decoder.decode(row))

    def values_of_all(self, keys: Sequence[Sequence[Value]], rows: Sequence[bytes]) -> list[tuple[Value, ...]]:
        """The same for many rows; a column at a time, where values are as they are stored."""
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
        """The values of all columns, from those of the key and of the catalogue's others; computed ones last."""
        return (*keys, *values, *self._computed.values(keys, values))


def _picker(columns: Sequence[tuple[int, Sequence[int], Finish | None]]) -> Callable[[Any], tuple[Value, ...]] | None:
    """What takes the columns' values out of a row's, where each is one of its buffers as it is."""
    if len(columns) < 2 or any(finish is not None for _, _, finish in columns):
        return None
    return itemgetter(*(place for place, _, _ in columns))


def _finish(each: Finaliser) -> Finish | None:
    """What makes a column's value of its buffers; None where that is its one buffer."""
    return None if type(each).finish is Finaliser.finish else each.finish
