"""Order-preserving key encoding: rows sort as their keys do, so a prefix of a key is a range.

    key    := part*
    part   := 00                 null, before everything else
            | 01 integer         8 bytes, big-endian, sign bit flipped
            | 01 boolean         1 byte
            | 01 double          8 bytes, big-endian; sign bit flipped, of negatives all bits
            | 01 decimal         its unscaled number as an integer; 16 bytes if it has more than 18 digits
            | 01 text or bytes   with 00 written as 01 01 and 01 as 01 02, ended by 00
            | 01 part*           a struct: its fields one after the other

Dates and timestamps are integers. Encoding is reversible, and `encode(a) < encode(b)` exactly if `a < b`; -0.0 stands
just before 0.0, since Spark keeps a group for each (its aggregations and duplicates know 0.0 only).

No part's bytes begin with those of another, so a key begins with the bytes of some parts exactly if these are its
leading parts. The leading fields of a struct are leading parts of a key as well.
"""

from __future__ import annotations

import decimal
import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from stateside.core.errors import CheckpointInvalid, KeyInvalid, ViewInvalid
from stateside.spark_state.types import Decimal, Primitive, SparkType, Struct, parse_type
from stateside.spark_state.unsafe_row import Value

Encode = Callable[[Any], bytes]
Decode = Callable[[bytes, int], tuple[Value, int]]

NO_KEY = b"\x00"  # of the one row of a view without key columns: LMDB has no empty keys
_INTEGERS = {"byte", "short", "integer", "long", "date", "timestamp", "timestamp_ntz"}
_FLOATS = {"float", "double"}
_TEXTS = {"string", "binary"}
_SIGN = 1 << 63
_ALL = (1 << 64) - 1
_U64 = struct.Struct(">Q")
_THERE_U64 = struct.Struct(">BQ")
_F64 = struct.Struct(">d")
_EXACT = decimal.Context(prec=decimal.MAX_PREC)


class KeyCodec:
    """Encodes keys of these Spark types, or leading parts of keys; refuses other types at once."""

    def __init__(self, types: Sequence[str]) -> None:
        self.types = tuple(_parsed(type_) for type_ in types)
        self._ends = [_end(type_) for type_ in self.types]
        self._encoders = [_encoder(type_) for type_ in self.types]
        self._decoders = [_decoder(type_) for type_ in self.types]

    def encode(self, values: Sequence[Value]) -> bytes:
        """The bytes of a key, or of its first parts. A struct is a tuple; the last one may be incomplete."""
        if len(values) > len(self.types):
            raise KeyInvalid(f"The key has {len(values)} parts, the view's key has {len(self.types)}")
        return b"".join([encode(value) for encode, value in zip(self._encoders, values, strict=False)])

    def encode_all(self, keys: Sequence[Sequence[Value]]) -> list[bytes]:
        """As `encode` for many whole keys, a column at a time."""
        if not keys or not self.types:
            return [b""] * len(keys)
        columns = zip(self.types, self._encoders, zip(*keys, strict=True), strict=True)
        parts = [_encode_column(type_, encode, column) for type_, encode, column in columns]
        return parts[0] if len(parts) == 1 else list(map(b"".join, zip(*parts, strict=True)))

    def decode(self, key: bytes) -> tuple[Value, ...]:
        """The parts of an encoded key."""
        if not self.types:
            return ()
        values, end = _decode_all(self._decoders, key, 0)
        assert end == len(key), "a key has bytes left over"
        return values

    def split(self, key: bytes) -> list[bytes]:
        """The bytes of each part of a whole key, as `encode` returns for the part alone."""
        parts, begin = [], 0
        for end_of in self._ends:
            end = end_of(key, begin)
            parts.append(key[begin:end])
            begin = end
        return parts

    def leading(self, key: bytes) -> bytes:
        """The bytes of the first part of a whole key; empty if keys have no parts."""
        return key[: self._ends[0](key, 0)] if self._ends else b""

    def leading_of(self, prefix: bytes) -> bytes | None:
        """As `leading` for a key's first parts; None if they lack a part of the first one."""
        try:
            return self.leading(prefix)
        except (IndexError, ValueError):  # no part at all, or only the first fields of a struct
            return None


def keyable(type_: SparkType) -> bool:
    """Whether keys of this type can be served."""
    match type_:
        case Struct(_, types):
            return all(map(keyable, types))
        case Primitive(name):
            return name in _INTEGERS | _FLOATS | _TEXTS | {"boolean"}
    return isinstance(type_, Decimal)


def _parsed(text: str) -> SparkType:
    try:
        type_: SparkType | None = parse_type(text)
    except CheckpointInvalid:
        type_ = None
    if type_ is None or not keyable(type_):
        raise ViewInvalid(f"A key column of type {text} cannot be served", next_step="Cast it to a string")
    return type_


def _encoder(type_: SparkType) -> Encode:
    """The encoder of a type, chosen once: keys are encoded with every request and every change."""
    if isinstance(type_, Primitive) and type_.name in _INTEGERS:
        return partial(_encode_integer, type_)
    if type_ == Primitive("string"):
        return _encode_text
    encode = _encoder_of_some(type_)
    return lambda value: b"\x00" if value is None else encode(value)


def _encoder_of_some(type_: SparkType) -> Callable[[Any], bytes]:
    """The encoder of a type's values other than null."""
    match type_:
        case Struct(_, types):
            parts = [_encoder(part) for part in types]
            return lambda value: b"\x01" + b"".join([part(field) for part, field in zip(parts, value, strict=False)])
        case Decimal():
            return lambda value: b"\x01" + _integer(_unscaled(type_, value), _decimal_bytes(type_), type_)
        case Primitive("binary"):
            return lambda value: b"\x01" + _escaped(bytes(value)) + b"\x00"
        case Primitive("boolean"):
            return lambda value: b"\x01\x01" if value else b"\x01\x00"
    return _double


def _encode_integer(type_: Primitive, value: int | None) -> bytes:
    if value is None:
        return b"\x00"
    try:
        return _THERE_U64.pack(1, value + _SIGN)
    except struct.error:
        raise _too_large(value, type_) from None


def _encode_text(value: str | None) -> bytes:
    return b"\x00" if value is None else b"\x01%b\x00" % _escaped(value.encode())


def _encode_column(type_: SparkType, encode: Encode, values: Sequence[Any]) -> list[bytes]:
    """The parts of many keys; texts mostly at once, since few need escapes."""
    if type_ == Primitive("string") and None not in values:
        together = "".join(values)
        if "\x00" not in together and "\x01" not in together:
            return [b"\x01%b\x00" % text.encode() for text in values]
    return list(map(encode, values))


def _escaped(raw: bytes) -> bytes:
    return raw.replace(b"\x01", b"\x01\x02").replace(b"\x00", b"\x01\x01")


def _double(value: float) -> bytes:
    (bits,) = _U64.unpack(_F64.pack(value))
    return b"\x01" + _U64.pack(bits ^ (_ALL if bits & _SIGN else _SIGN))


def _integer(value: int, size: int, type_: SparkType) -> bytes:
    sign = 1 << 8 * size - 1
    if not -sign <= value < sign:
        raise _too_large(value, type_)
    return (value + sign).to_bytes(size, "big")


def _unscaled(type_: Decimal, value: decimal.Decimal) -> int:
    if value.copy_abs() >= decimal.Decimal(1).scaleb(type_.precision - type_.scale):
        raise _too_large(value, type_)
    unscaled = value.scaleb(type_.scale, _EXACT)
    if unscaled != int(unscaled):
        raise KeyInvalid(
            f"{value} has more than {type_.scale} digits after the point", next_step="No row has such a key"
        )
    return int(unscaled)


def _decimal_bytes(type_: Decimal) -> int:
    return 8 if type_.compact else 16


def _too_large(value: int | decimal.Decimal, type_: SparkType) -> KeyInvalid:
    name = type_.name if isinstance(type_, Primitive) else "decimal"
    return KeyInvalid(f"{value} is no {name}: it is too large", next_step="No row has such a key")


def _decode_all(decoders: Sequence[Decode], key: bytes, at_byte: int) -> tuple[tuple[Value, ...], int]:
    values: list[Value] = []
    for decode in decoders:
        value, at_byte = decode(key, at_byte)
        values.append(value)
    return tuple(values), at_byte


def _end(type_: SparkType) -> Callable[[bytes, int], int]:
    """A function from a key and the begin of a part of this type to the part's end."""
    match type_:
        case Primitive(name) if name in _TEXTS:
            return lambda key, at_byte: key.index(0, at_byte + 1) + 1 if key[at_byte] else at_byte + 1
        case Struct(_, types):
            return _struct_end([_end(part) for part in types])
        case Decimal():
            size = 1 + _decimal_bytes(type_)
        case _:
            size = 2 if type_ == Primitive("boolean") else 1 + _U64.size
    return lambda key, at_byte: at_byte + size if key[at_byte] else at_byte + 1


def _struct_end(ends: Sequence[Callable[[bytes, int], int]]) -> Callable[[bytes, int], int]:
    def end(key: bytes, at_byte: int) -> int:
        there, at_byte = key[at_byte], at_byte + 1
        for end_of in ends if there else ():
            at_byte = end_of(key, at_byte)
        return at_byte

    return end


def _decoder(type_: SparkType) -> Decode:
    """A function from a key and the begin of a part of this type to the part's value and end."""
    decode = _decoder_of_some(type_)
    return lambda key, at_byte: decode(key, at_byte + 1) if key[at_byte] else (None, at_byte + 1)


def _decoder_of_some(type_: SparkType) -> Decode:
    """As `_decoder` for values other than null, after the marker byte."""
    match type_:
        case Struct(_, types):
            return partial(_decode_all, [_decoder(part) for part in types])
        case Decimal():
            return partial(_decode_decimal, type_.scale, _decimal_bytes(type_))
        case Primitive("string"):
            return _decode_text
        case Primitive("binary"):
            return _decode_bytes
        case Primitive("boolean"):
            return lambda key, begin: (key[begin] == 1, begin + 1)
        case Primitive(name) if name in _INTEGERS:
            return lambda key, begin: (_U64.unpack_from(key, begin)[0] - _SIGN, begin + 8)
    return _decode_double


def _decode_decimal(scale: int, size: int, key: bytes, begin: int) -> tuple[Value, int]:
    unscaled = int.from_bytes(key[begin : begin + size], "big") - (1 << 8 * size - 1)
    return decimal.Decimal(unscaled).scaleb(-scale, _EXACT), begin + size


def _decode_bytes(key: bytes, begin: int) -> tuple[bytes, int]:
    end = key.index(0, begin)
    return key[begin:end].replace(b"\x01\x01", b"\x00").replace(b"\x01\x02", b"\x01"), end + 1


def _decode_text(key: bytes, begin: int) -> tuple[Value, int]:
    raw, end = _decode_bytes(key, begin)
    return raw.decode(), end


def _decode_double(key: bytes, begin: int) -> tuple[Value, int]:
    (bits,) = _U64.unpack_from(key, begin)
    return _F64.unpack(_U64.pack(bits ^ (_SIGN if bits & _SIGN else _ALL)))[0], begin + 8
