"""Rollup tables: sums over a replica's rows by some of the key's columns, updated in the rows' transactions.

    key     := u8 number of the rollup, then the parts of the coarser key, encoded as in `keys`
    row     := integer*     the number of rows below it, then the numbers of each column's tally, those of computed
                            columns last
    integer := u16 zeros    number of lowest bytes that are zero and left out (a double's are, mostly)
               u16 size, then `size` bytes, little-endian, two's complement

A batch subtracts its rows' old values and adds their new ones. Tallies are exact (see `views.aggregates`), so that in
every snapshot a rollup is the sum of its live rows, to the last unit. A rollup's row without rows below is deleted.

A column whose values cannot be subtracted again has no place in rollups: min, max, first, last and so on.
`ComputedNumbers` has the computed columns' numbers for a row, from its key's bytes and its buffers.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from operator import add, sub
from typing import Any

from stateside.core.storage import Storage
from stateside.replica.key_table import Changes, Ordered
from stateside.replica.keys import KeyCodec
from stateside.spark_state.unsafe_row import RowDecoder, Value
from stateside.views.aggregates import Tally, in_rollups
from stateside.views.catalogue import Catalogue, Computed, ViewColumn
from stateside.views.functions import ColumnFunction, KnownFunctions, computed_buffers, computed_sum
from stateside.views.state_catalogue import check_state, value_decoder

Kept = tuple[tuple[str, ...], ...]
VERSION = 1  # of the rows' content: a replica with another one rebuilds its rollups
ROWS_AT_ONCE = 100_000  # rows whose sums are held in memory before they are stored
_HEAD = struct.Struct("<HH")
_TEXT = KeyCodec(["string"])


class ComputedNumbers:
    """The numbers that the computed columns of a view add to its rollups."""

    def __init__(self, catalogue: Catalogue, functions: KnownFunctions) -> None:
        names = [column.name for column in catalogue.key]
        buffers = {column.name: column.buffers[0].index for column in catalogue.columns if column.buffers}
        self._columns = [(buffers[each.of], computed_sum(each)) for each in catalogue.computed]
        self._by = [names.index(name) for name in catalogue.computed[0].by]
        self._functions = functions
        self._met: dict[tuple[bytes, ...], ColumnFunction | None] = {}  # by the key's bytes: decoded once

    def of(self, parts: Sequence[bytes], row: Sequence[Value]) -> list[int]:
        """The numbers of a row with these key parts; CheckpointInvalid if the table has no function for it."""
        by = tuple([parts[place] for place in self._by])
        if by not in self._met:
            self._met[by] = self._look_up(by)
        function, numbers = self._met[by], list[int]()
        for place, total in self._columns:
            numbers += total.partial(computed_buffers(function, row[place]))
        return numbers

    def _look_up(self, by: tuple[bytes, ...]) -> ColumnFunction | None:
        texts = [_TEXT.decode(part)[0] for part in by]
        return None if None in texts else self._functions.of(tuple(map(str, texts)))


def rollups_of(catalogue: Catalogue, storage: Storage, functions: KnownFunctions) -> Rollups:
    """The rollups of a view; ViewInvalid if the checkpoint's state is not the catalogue's."""
    if not catalogue.rollups and not catalogue.computed:
        return Rollups()
    check_state(catalogue, storage)
    decoder = value_decoder(catalogue, storage)
    assert isinstance(decoder, RowDecoder), "a state variable's view has neither rollups nor computed columns"
    return Rollups(catalogue, decoder, functions)


def parse_kept(content: bytes) -> Kept:
    """The rollups written by `Rollups.as_json`; none if of another version."""
    document: dict[str, Any] = json.loads(content)
    return tuple(tuple(columns) for columns in document["rollups"]) if document["version"] == VERSION else ()


def parse_computed(content: bytes) -> tuple[Computed, ...]:
    """The computed columns of these rollups."""
    found = json.loads(content).get("computed", ())  # older replicas have none
    return tuple(Computed(each["name"], each["of"], tuple(each["by"])) for each in found)


class Rollups:
    """Maintains the rollups of one view. Without rollups and computed columns, does nothing.

    Computed columns are computed for every new row, even if no rollup has them: a replica does not move to a batch with
    a row that cannot be shown to readers.
    """

    def __init__(
        self,
        catalogue: Catalogue | None = None,
        decoder: RowDecoder | None = None,
        functions: KnownFunctions | None = None,
    ) -> None:
        self.kept: Kept = ()
        self.computed: tuple[Computed, ...] = ()
        self._numbers_of: ComputedNumbers | None = None
        if catalogue is not None and decoder is not None:
            self.kept, self.computed = catalogue.rollups, catalogue.computed
            self._codec = KeyCodec([column.asked_type for column in catalogue.key])
            self._layout, self._decoder = RollupRows(catalogue.columns, self.computed), decoder
            names = [column.name for column in catalogue.key]
            self._marks = [(bytes([n]), [names.index(name) for name in each]) for n, each in enumerate(self.kept)]
        if catalogue is not None and functions is not None and self.computed:
            self._numbers_of = ComputedNumbers(catalogue, functions)
        assert self._numbers_of or not self.computed, "computed columns need the table of functions"

    @property
    def idle(self) -> bool:
        return not self.kept and not self.computed

    def as_json(self) -> bytes:
        """As stored in the replica's `meta`."""
        computed = [asdict(each) for each in self.computed]
        return json.dumps({"version": VERSION, "rollups": self.kept, "computed": computed}).encode()

    def follow(self, changes: Changes, before: Sequence[bytes | None], rollups: Ordered) -> Changes:
        """Change the rollups for changed rows with these before images; returns the rollups' before images."""
        if self.idle:
            return Changes([], [])
        sums = _Sums(self._layout)
        for (key, row), old in zip(changes, before, strict=True):
            if old != row:
                parts = self._codec.split(key)
                self._add(sums, parts, list(map(sub, self._numbers(parts, row), self._numbers(parts, old))))
        return sums.store(rollups)

    def add_all(self, rows: Iterator[tuple[bytes, bytes]], rollups: Ordered) -> None:
        """Add rows that are in no rollup yet, any number of them in bounded memory."""
        while not self.idle and (some := list(islice(rows, ROWS_AT_ONCE))):
            sums = _Sums(self._layout)
            for key, row in some:
                parts = self._codec.split(key)
                self._add(sums, parts, self._numbers(parts, row))
            sums.store(rollups)

    def _add(self, sums: _Sums, parts: Sequence[bytes], numbers: Tally) -> None:
        for mark, places in self._marks:
            sums.add(mark + b"".join([parts[place] for place in places]), numbers)

    def _numbers(self, parts: Sequence[bytes], row: bytes | None) -> Tally:
        if row is None:
            return self._layout.none
        stored = self._decoder.decode(row)
        numbers = self._layout.numbers(stored)
        return numbers if self._numbers_of is None else numbers + self._numbers_of.of(parts, stored)


class RollupRows:
    """The layout of rollup rows with these columns."""

    def __init__(self, columns: Sequence[ViewColumn], computed: Sequence[Computed] = ()) -> None:
        self._aggregates = in_rollups(columns)
        self._all = [*self._aggregates, *map(computed_sum, computed)]
        self.columns = [(each.column.name, each.column.type) for each in self._all]
        self.none: Tally = [0] * (1 + sum(each.tally_size for each in self._all))

    def numbers(self, row: Sequence[Value]) -> list[int]:
        """The numbers of one row of the state, without those of computed columns, which come after."""
        found = [1]
        for each in self._aggregates:
            found += each.partial(row)
        return found

    def finished_numbers(self, values: Mapping[str, Value]) -> list[int]:
        """The numbers of a row by its finished values; 0 for columns that `apart_finished` keeps out."""
        found = [1]
        for each in self._all:
            found += [0] * each.tally_size if each.apart_finished else each.partial_of(values[each.column.name])
        return found

    @property
    def apart_finished(self) -> list[str]:
        """The columns that finished values of rows cannot be added to."""
        return [each.column.name for each in self._all if each.apart_finished]

    def values(self, row: bytes | Tally) -> list[Value]:
        """The columns' values; ValueOverflow if one is too large for its type."""
        numbers, begin = unpack(row) if isinstance(row, bytes) else row, 1
        values: list[Value] = []
        for each in self._all:
            values.append(each.total(numbers[begin : begin + each.tally_size]))
            begin += each.tally_size
        return values


class _Sums:
    """A batch's additions to the rollups, by coarser key."""

    def __init__(self, layout: RollupRows) -> None:
        self._layout = layout
        self._sums: dict[bytes, Tally] = {}

    def add(self, key: bytes, numbers: Tally) -> None:
        before = self._sums.get(key)
        self._sums[key] = numbers if before is None else list(map(add, before, numbers))

    def store(self, rollups: Ordered) -> Changes:
        """Add the sums to the rollups; returns the before images of their rows."""
        keys = sorted(self._sums)
        before = rollups.get_sorted(keys)
        rollups.put_sorted(Changes(keys, list(map(self._after, keys, before))))
        return Changes(keys, before)

    def _after(self, key: bytes, stored: bytes | None) -> bytes | None:
        before = self._layout.none if stored is None else unpack(stored)
        after = list(map(add, before, self._sums[key]))
        assert after[0] > 0 or not any(after), "a rollup without rows has nothing left in it"
        return pack(after) if after[0] else None


def pack(numbers: Tally) -> bytes:
    """Integers of any size as bytes."""
    packed = bytearray()
    for number in numbers:
        zeros = ((number & -number).bit_length() - 1) // 8 if number else 0
        kept = number >> 8 * zeros
        raw = kept.to_bytes(kept.bit_length() // 8 + 1, "little", signed=True)
        packed += _HEAD.pack(zeros, len(raw)) + raw
    return bytes(packed)


def unpack(packed: bytes) -> list[int]:
    """The integers packed by `pack`."""
    numbers, at_byte = [], 0
    while at_byte < len(packed):
        zeros, size = _HEAD.unpack_from(packed, at_byte)
        at_byte += _HEAD.size + size
        numbers.append(int.from_bytes(packed[at_byte - size : at_byte], "little", signed=True) << 8 * zeros)
    return numbers
