"""Vectorised key codec: encodes and decodes the keys of a whole block at once, to the same bytes as `keys` one by one.

Encoding lays the parts of all keys side by side in a matrix, one row per key, as wide as the longest of each part. A
mask selects the bytes that count: none of a null's value, and the actual length of a text. The selected bytes, row by
row, are the encoded keys.

    01  80 00 00 00 00 00 00 07   01  e m m a 00 . . .
    01  80 00 00 00 00 00 00 09   01  c a r o l i n 00         . does not count
    00  .  .  .  .  .  .  .  .    01  b o b 00 . . . .

Unsuitable keys are left to the codec: long texts, texts with bytes to escape, and malformed rows. So are all keys with
a decimal of more than 18 digits.

Decoding turns keys into Arrow columns, one part of all keys at a time. A part's place depends on the parts before, so a
cursor in each key moves on part by part. A text ends at the next zero byte, looked up among all zero bytes of all keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import add

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stateside.replica.keys import NO_KEY, KeyCodec
from stateside.spark_state.arrow_rows import array_of, arrow_type
from stateside.spark_state.slices import Numbers, Places, Slices, numbers_at
from stateside.spark_state.types import Column, Decimal, Primitive, SparkType, Struct, parse_type
from stateside.spark_state.unsafe_row import RowDecoder

AT_ONCE_ROWS_MIN = 16  # fewer are faster one by one
TEXT_BYTES_MAX = 128  # a longer text would widen the matrix for all others
_ESCAPED_MAX = 1
_SIGN = np.uint64(1 << 63)
_INTEGERS = {
    **{"byte": "<i1", "short": "<i2", "integer": "<i4", "date": "<i4"},
    **{"long": "<i8", "timestamp": "<i8", "timestamp_ntz": "<i8"},
}
_FLOATS = {"float": "<f4", "double": "<f8"}
_TEXTS = {"string", "binary"}
_WORD_BYTES = 8
Bytes = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]


class KeyEncoder:
    """Encodes key rows of these columns as the codec does; `order` has the column of each part of a key."""

    def __init__(self, columns: Sequence[Column], order: Sequence[int], codec: KeyCodec) -> None:
        self._order, self._codec = order, codec
        self._types = [parse_type(column.type) for column in columns]
        self._decoder = RowDecoder(columns)
        self._first_decoder, self._rest_decoder = RowDecoder(columns[:-1]), RowDecoder(columns[-1:])
        types = [self._types[index] for index in order]
        self._at_once = list(codec.types) == types and all(map(_at_once, types))

    def encode(self, rows: Slices, rests: Slices | None = None) -> Slices:
        """The encoded keys. For prefixed keys, `rests` has the last column, each in a row of its own."""
        if not self._at_once or len(rows) < AT_ONCE_ROWS_MIN:
            return Slices.of(self._one_by_one(rows, rests))
        # The padding keeps reads beyond a row, or beyond a text, inside the buffer.
        room = _fixed_bytes(self._types) + TEXT_BYTES_MAX + 1
        keys, first, rest = _Keys(len(rows)), rows.padded(room), rests and rests.padded(room)
        for index in self._order:
            if rest is None:
                keys.add(first, self._types, index)
            elif index < len(self._types) - 1:
                keys.add(first, self._types[:-1], index)
            else:
                keys.add(rest, self._types[-1:], 0)
        others = np.flatnonzero(keys.others)
        return keys.encoded().replaced(others, self._one_by_one(rows.part(others), rests and rests.part(others)))

    def _one_by_one(self, rows: Slices, rests: Slices | None) -> list[bytes]:
        decoded = map(self._decoder.decode, rows.array())
        if rests is not None:
            first, rest = map(self._first_decoder.decode, rows.array()), map(self._rest_decoder.decode, rests.array())
            decoded = map(add, first, rest)
        return [self._codec.encode([row[index] for index in self._order]) or NO_KEY for row in decoded]


def _at_once(type_: SparkType) -> bool:
    match type_:
        case Struct(_, types):
            return all(map(_at_once, types))
        case Decimal():
            return type_.compact
    return True


def _fixed_bytes(types: Sequence[SparkType]) -> int:
    """An upper bound of the bytes of the fixed parts of rows of these types, including nested structs."""
    nested = (_fixed_bytes(type_.types) for type_ in types if isinstance(type_, Struct))
    return _first_byte(types) + _WORD_BYTES * len(types) + sum(nested)


def _first_byte(types: Sequence[SparkType]) -> int:
    return (len(types) + 63) // 64 * _WORD_BYTES


class _Keys:
    """The matrix, built part by part. `others` marks the rows left to the codec."""

    def __init__(self, count: int) -> None:
        self._there: Flags = np.ones(count, bool)
        self._parts: list[Bytes] = []
        self._masks: list[Flags] = []
        self._sizes = np.zeros(count, np.int64)
        self.others: Flags = np.zeros(count, bool)

    def encoded(self) -> Slices:
        """The selected bytes of the matrix, row by row."""
        counted = np.hstack(self._parts)[np.hstack(self._masks)]
        return Slices(counted.tobytes(), np.cumsum(self._sizes) - self._sizes, self._sizes)

    def add(self, rows: Slices, types: Sequence[SparkType], index: int) -> None:
        """Add a part, the column `index` of rows of these types: its first byte, and its value if not null."""
        first = _first_byte(types)
        self._leave(rows.sizes < first + len(types) * _WORD_BYTES)
        nulls = (self._numbers(rows, rows.begins + index // 8, "u1") >> index % 8) & 1
        before, self._there = self._there, self._there & (nulls == 0)
        self._put(self._there[:, None].astype(np.uint8), before[:, None], before)
        self._add_value(types[index], rows, rows.begins + first + index * _WORD_BYTES)
        self._there = before

    def _add_value(self, type_: SparkType, rows: Slices, places: Places) -> None:
        match type_:
            case Struct(_, types):
                struct = self._elsewhere(rows, places)
                for index in range(len(types)):
                    self.add(struct, types, index)
            case Primitive(name) if name in _TEXTS:
                self._add_text(self._elsewhere(rows, places))
            case Primitive("boolean"):
                self._put_number(self._numbers(rows, places, "u1") != 0, "u1")
            case Primitive(name) if name in _FLOATS:
                self._put_number(_in_order(self._numbers(rows, places, _FLOATS[name])), ">u8")
            case _:
                numbers = self._numbers(rows, places, _INTEGERS[type_.name] if isinstance(type_, Primitive) else "<i8")
                self._put_number(numbers.astype(np.int64).view(np.uint64) ^ _SIGN, ">u8")

    def _add_text(self, texts: Slices) -> None:
        self._leave(texts.sizes > TEXT_BYTES_MAX)
        sizes = np.where(self.others, 0, texts.sizes)[:, None]
        longest = int(sizes.max()) + 1  # with the terminating byte
        text = self._numbers(texts, texts.begins, f"V{longest}").view(np.uint8).reshape(-1, longest)
        inside = np.arange(longest) < sizes
        escaped = (text <= _ESCAPED_MAX) & inside
        if escaped.any():
            self._leave(escaped.any(axis=1))
        mask = (np.arange(longest) <= sizes) & self._there[:, None]
        self._put(text * inside, mask, (sizes[:, 0] + 1) * self._there)

    def _elsewhere(self, rows: Slices, places: Places) -> Slices:
        """The variable-length values whose size and offset stand at these places."""
        sizes = self._numbers(rows, places, "<u4").astype(np.int64)
        offsets = self._numbers(rows, places + 4, "<u4").astype(np.int64)
        self._leave(offsets + sizes > rows.sizes)
        known = self._there & ~self.others
        return Slices(rows.content, np.where(known, rows.begins + offsets, 0), np.where(known, sizes, 0))

    def _leave(self, rows: Flags | np.bool_) -> None:
        self.others |= rows & self._there

    def _numbers(self, rows: Slices, places: Places, type_: str) -> Numbers:
        return numbers_at(rows.content, np.where(self.others, 0, places), type_)

    def _put_number(self, numbers: Numbers, type_: str) -> None:
        part = numbers.astype(type_).view(np.uint8).reshape(len(numbers), -1)
        self._put(part, np.broadcast_to(self._there[:, None], part.shape), part.shape[1] * self._there)

    def _put(self, part: Bytes, mask: Flags, sizes: Numbers) -> None:
        self._parts.append(part)
        self._masks.append(mask)
        self._sizes += sizes


def _in_order(numbers: Numbers) -> Numbers:
    """The bits of doubles, in numeric order."""
    bits = numbers.astype(np.float64).view(np.uint64)
    return bits ^ np.where(bits & _SIGN, ~np.uint64(0), _SIGN)


_PADDING = bytes(32)  # after the last key: bytes there are read, and then ignored
_DECODED_FLOATS = {"float": np.float32, "double": np.float64}
_DECODED_INTEGERS = {
    **{"byte": np.int8, "short": np.int16, "integer": np.int32, "date": np.int32},
    **{"long": np.int64, "timestamp": np.int64, "timestamp_ntz": np.int64},
}
Mask = npt.NDArray[np.bool_]


class KeyColumns:
    """Decodes keys encoded by `KeyCodec` with these Spark types into Arrow columns."""

    def __init__(self, types: Sequence[str]) -> None:
        self._types = KeyCodec(types).types
        self.types = [arrow_type(type_) for type_ in self._types]

    def arrays(self, keys: Sequence[bytes]) -> list[pa.Array]:
        """A column for each part of the keys."""
        slices = Slices.of_all(keys)
        content = _Content(slices.content + _PADDING)
        at, there = slices.begins, np.ones(len(keys), np.bool_)
        arrays = []
        for type_ in self._types:
            array, at = content.part(type_, at, there)
            arrays.append(array)
        return arrays


@dataclass
class _Content:
    """The bytes of all keys."""

    content: bytes

    @cached_property
    def octets(self) -> Numbers:
        return np.frombuffer(self.content, np.uint8)

    @cached_property
    def zeros(self) -> Places:
        return np.flatnonzero(self.octets == 0)

    @cached_property
    def escapes(self) -> Places:
        return np.flatnonzero(self.octets == 1)

    def part(self, type_: SparkType, at: Places, there: Mask) -> tuple[pa.Array, Places]:
        """The parts of this type at these places, of keys marked `there`; and the places of the next parts."""
        has = there & (self.octets[at] == 1)
        begins = np.where(there, at + 1, at)
        match type_:
            case Struct():
                return self._struct(type_, begins, has)
            case Primitive("string" | "binary"):
                return self._texts(type_, begins, has)
            case Decimal() if not type_.compact:
                size, buffer = 16, self._long_decimals(begins)
            case Decimal():
                low = self._longs(begins)
                size, buffer = 8, np.stack([low, low >> 63], axis=1)
            case Primitive("boolean"):
                size, buffer = 1, np.packbits(self.octets[begins] == 1, bitorder="little")
            case Primitive(name) if name in _DECODED_FLOATS:
                with np.errstate(all="ignore"):  # places without a value may have any bytes
                    size, buffer = 8, self._doubles(begins).astype(_DECODED_FLOATS[name])
            case Primitive(name):
                size, buffer = 8, self._longs(begins).astype(_DECODED_INTEGERS[name])
            case _:
                raise AssertionError(f"no key has a part of type {type_}")
        return array_of(arrow_type(type_), has, buffer), begins + size * has

    def _longs(self, begins: Places) -> npt.NDArray[np.int64]:
        return (numbers_at(self.content, begins, ">u8").astype(np.uint64) ^ _SIGN).view(np.int64)

    def _doubles(self, begins: Places) -> npt.NDArray[np.float64]:
        bits = numbers_at(self.content, begins, ">u8").astype(np.uint64)
        return np.where(bits & _SIGN, bits ^ _SIGN, ~bits).view(np.float64)

    def _long_decimals(self, begins: Places) -> Numbers:
        low = numbers_at(self.content, begins + 8, ">u8").astype(np.uint64).view(np.int64)
        return np.stack([low, self._longs(begins)], axis=1)

    def _struct(self, type_: Struct, at: Places, has: Mask) -> tuple[pa.Array, Places]:
        arrays = []
        for part in type_.types:
            array, at = self.part(part, at, has)
            arrays.append(array)
        return array_of(arrow_type(type_), has, parts=arrays), at

    def _texts(self, type_: SparkType, begins: Places, has: Mask) -> tuple[pa.Array, Places]:
        ends = np.where(has, self.zeros[np.searchsorted(self.zeros, begins)], begins)
        nexts = ends + has
        if (np.searchsorted(self.escapes, begins) < np.searchsorted(self.escapes, ends)).any():
            return pa.array(self._unescaped(begins, ends, has), pa.binary()).cast(arrow_type(type_)), nexts
        sizes = ends - begins
        stops = np.cumsum(sizes)
        places = np.repeat(begins - (stops - sizes), sizes) + np.arange(int(sizes.sum()))
        offsets = np.concatenate([[0], stops]).astype(np.int32)
        return array_of(arrow_type(type_), has, offsets, self.octets[places]), nexts

    def _unescaped(self, begins: Places, ends: Places, has: Mask) -> list[bytes | None]:
        parts = zip(begins.tolist(), ends.tolist(), has.tolist(), strict=True)
        raw = (self.content[begin:end] if there else None for begin, end, there in parts)
        return [None if one is None else one.replace(b"\1\1", b"\0").replace(b"\1\2", b"\1") for one in raw]
