"""Keys in byte order: the encoding that keeps rows sorted as their keys are, so that a prefix of a key is a range.

    key    := part*
    part   := 00                 null, before everything else
            | 01 integer         8 bytes, big-endian, sign bit flipped
            | 01 boolean         1 byte
            | 01 double          8 bytes, big-endian; sign bit flipped, of negatives all bits
            | 01 text or bytes   with 00 written as 01 01 and 01 as 01 02, ended by 00

Dates and timestamps are integers. Encoding is reversible, and `encode(a) < encode(b)` exactly if `a < b`. No part's
bytes begin with those of another, so that exactly the keys with the same leading parts begin with these parts' bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from stateside.checkpoint.unsafe_row import Value
from stateside.errors import KeyInvalid, ViewInvalid

_INTEGERS = {"byte", "short", "integer", "long", "date", "timestamp", "timestamp_ntz"}
_FLOATS = {"float", "double"}
_TEXTS = {"string", "binary"}
_SIGN = 1 << 63
_ALL = (1 << 64) - 1
_U64 = struct.Struct(">Q")
_F64 = struct.Struct(">d")


class KeyCodec:
    """Encodes keys of these Spark types, or leading parts of them; refuses other types at once."""

    def __init__(self, types: Sequence[str]) -> None:
        unknown = [type_ for type_ in types if type_ not in _INTEGERS | _FLOATS | _TEXTS | {"boolean"}]
        if unknown:
            raise ViewInvalid(f"A key column of type {unknown[0]} cannot be served", next_step="Cast it to a string")
        self.types = tuple(types)

    def encode(self, values: Sequence[Value]) -> bytes:
        """The bytes of a key, or of its first parts."""
        if len(values) > len(self.types):
            raise KeyInvalid(f"The key has {len(values)} parts, the view's key has {len(self.types)}")
        return b"".join(_encode(type_, value) for type_, value in zip(self.types, values, strict=False))

    def decode(self, key: bytes) -> tuple[Value, ...]:
        """The parts that `encode` made these bytes from."""
        values: list[Value] = []
        at_byte = 0
        for type_ in self.types:
            value, at_byte = _decode(type_, key, at_byte)
            values.append(value)
        assert at_byte == len(key), "a key has bytes left over"
        return tuple(values)


def _encode(type_: str, value: Value) -> bytes:
    if value is None:
        return b"\x00"
    if type_ in _TEXTS:
        raw = value.encode() if isinstance(value, str) else bytes(value)  # type: ignore[arg-type]
        return b"\x01" + raw.replace(b"\x01", b"\x01\x02").replace(b"\x00", b"\x01\x01") + b"\x00"
    if type_ in _INTEGERS:
        assert isinstance(value, int)
        if not -_SIGN <= value < _SIGN:
            raise KeyInvalid(f"{value} is no {type_}: it is too large", next_step="No row has such a key")
        return b"\x01" + _U64.pack(value + _SIGN)
    if type_ == "boolean":
        return b"\x01\x01" if value else b"\x01\x00"
    assert isinstance(value, float)
    (bits,) = _U64.unpack(_F64.pack(value + 0.0))  # -0.0 and 0.0 are one key
    return b"\x01" + _U64.pack(bits ^ (_ALL if bits & _SIGN else _SIGN))


def _decode(type_: str, key: bytes, at_byte: int) -> tuple[Value, int]:
    if key[at_byte] == 0:
        return None, at_byte + 1
    begin = at_byte + 1
    if type_ in _TEXTS:
        end = key.index(0, begin)
        raw = key[begin:end].replace(b"\x01\x01", b"\x00").replace(b"\x01\x02", b"\x01")
        return (raw.decode() if type_ == "string" else raw), end + 1
    if type_ == "boolean":
        return key[begin] == 1, begin + 1
    (bits,) = _U64.unpack_from(key, begin)
    if type_ in _INTEGERS:
        return bits - _SIGN, begin + 8
    return _F64.unpack(_U64.pack(bits ^ (_SIGN if bits & _SIGN else _ALL)))[0], begin + 8
