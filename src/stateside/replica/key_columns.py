"""Keys by the thousand to Arrow's columns: what `keys` decodes one by one, decoded a part of all keys at a time.

Where a part begins depends on the parts before it, so there is a place in each key, which moves on part by part. A text
ends at the next zero byte, which is looked up among all zero bytes of all keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stateside.checkpoint.arrow_rows import array_of, arrow_type
from stateside.checkpoint.slices import Numbers, Places, Slices, numbers_at
from stateside.checkpoint.types import Decimal, Primitive, SparkType, Struct
from stateside.replica.keys import KeyCodec

_SIGN = np.uint64(1 << 63)
_PADDING = bytes(32)  # behind the last key: what is not there is looked at too, and then left out
_FLOATS = {"float": np.float32, "double": np.float64}
_INTEGERS = {
    **{"byte": np.int8, "short": np.int16, "integer": np.int32, "date": np.int32},
    **{"long": np.int64, "timestamp": np.int64, "timestamp_ntz": np.int64},
}

Mask = npt.NDArray[np.bool_]


class KeyColumns:
    """Turns keys of these Spark types, which `KeyCodec` encoded, into Arrow's columns."""

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
        """The parts of this type that begin at these places, of keys that are there; and where the next ones begin."""
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
            case Primitive(name) if name in _FLOATS:
                with np.errstate(all="ignore"):  # at places where there is no value, any bytes may stand
                    size, buffer = 8, self._doubles(begins).astype(_FLOATS[name])
            case Primitive(name):
                size, buffer = 8, self._longs(begins).astype(_INTEGERS[name])
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
        behind = ends + has
        if (np.searchsorted(self.escapes, begins) < np.searchsorted(self.escapes, ends)).any():
            return pa.array(self._unescaped(begins, ends, has), pa.binary()).cast(arrow_type(type_)), behind
        sizes = ends - begins
        stops = np.cumsum(sizes)
        places = np.repeat(begins - (stops - sizes), sizes) + np.arange(int(sizes.sum()))
        offsets = np.concatenate([[0], stops]).astype(np.int32)
        return array_of(arrow_type(type_), has, offsets, self.octets[places]), behind

    def _unescaped(self, begins: Places, ends: Places, has: Mask) -> list[bytes | None]:
        parts = zip(begins.tolist(), ends.tolist(), has.tolist(), strict=True)
        raw = (self.content[begin:end] if there else None for begin, end, there in parts)
        return [None if one is None else one.replace(b"\1\1", b"\0").replace(b"\1\2", b"\1") for one in raw]
