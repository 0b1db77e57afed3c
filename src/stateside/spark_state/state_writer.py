"""Writes rows of state as Spark's RocksDB store writes them in a checkpoint's first batch.

All other modules of this package read. A migration (`pipeline.migration`) makes rows that no batch computed, and Spark
has no interface for such rows: so they are encoded here, one changelog for each partition. `unsafe_row` draws the rows,
`changelog` the files, `compression` the envelope.

Spark replays the changelog when it opens the state, and writes a snapshot of its own after some batches.
"""

from __future__ import annotations

import decimal
import json
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import lz4.block
import xxhash

from stateside.spark_state.compression import CHECKSUM_MASK, LZ4, LZ4_HEADER, LZ4_MAGIC, SEED, STORED
from stateside.spark_state.types import Array, Column, Decimal, Map, Primitive, SparkType, Struct, parse_type
from stateside.spark_state.unsafe_row import FIXED, Value, element_bytes, null_bytes

Encode = Callable[[Any], bytes]
_BLOCK_BYTES = 64 * 1024  # Java's block; the low half of its token is log2 of it, less 10
_LEVEL = 6
_ROW_VERSION = b"\x00"
_INT = struct.Struct(">i")
_WORD_BYTES = 8
_EXACT = decimal.Context(prec=decimal.MAX_PREC, traps=[decimal.Inexact, decimal.InvalidOperation])
_NUMBERS: dict[str, tuple[type, ...]] = {"boolean": (bool,), "float": (float, int), "double": (float, int)}
_TEXTS: dict[str, Encode] = {"string": str.encode, "binary": bytes, "interval": lambda v: struct.pack("<iiq", *v)}


class RowEncoder:
    """Encodes rows of one schema; ValueError, with the column's name, for a value that its column cannot have."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._names = [column.name for column in columns]
        self._cells = [_cell(parse_type(column.type)) for column in columns]

    def encode(self, values: Sequence[Value]) -> bytes:
        try:
            return _row(self._cells, values)
        except (struct.error, TypeError, ValueError, AttributeError, ArithmeticError):
            raise self._misfit(values) from None

    def _misfit(self, values: Sequence[Value]) -> ValueError:
        if len(values) != len(self._cells):
            return ValueError(f"{len(values)} values for {len(self._cells)} columns")
        for name, cell, value in zip(self._names, self._cells, values, strict=True):
            try:
                _row([cell], [value])
            except (struct.error, TypeError, ValueError, AttributeError, ArithmeticError) as error:
                return ValueError(f"{value!r:.80} is no value of the column {name!r}: {error}")
        raise AssertionError("each value fits its column")


class _Cell:
    """The encoder of one type: in place if `fixed`, else to the variable part; `size` bytes wide in an array."""

    def __init__(self, encode: Encode, fixed: bool, size: int = _WORD_BYTES) -> None:
        self.encode, self.fixed, self.size = encode, fixed, size


def _cell(type_: SparkType) -> _Cell:
    match type_:
        case Primitive(name) if name in FIXED:
            return _Cell(_number_encoder(name), True, element_bytes(type_))
        case Primitive(name) if name in _TEXTS:
            return _Cell(_TEXTS[name], False)
        case Decimal() if type_.compact:
            return _Cell(lambda value: struct.pack("<q", _unscaled(value, type_)), True)
        case Decimal():
            return _Cell(lambda value: _signed(_unscaled(value, type_)), False)
        case Struct(_, types):
            cells = [_cell(part) for part in types]
            return _Cell(lambda values: _row(cells, values), False)
        case Array(element):
            return _Cell(_array_encoder(_cell(element)), False)
        case Map(key, of):
            keys, values = _array_encoder(_cell(key)), _array_encoder(_cell(of))
            return _Cell(lambda pairs: _map(keys([k for k, _ in pairs]), values([v for _, v in pairs])), False)
    raise ValueError(f"rows with a value of the type {type_} cannot be written")


def _number_encoder(name: str) -> Encode:
    pack, types = struct.Struct(FIXED[name]).pack, _NUMBERS.get(name, (int,))

    def encode(value: Any) -> bytes:
        if type(value) not in types:  # struct takes a text for a boolean, and a boolean for a number
            raise TypeError(f"{type(value).__name__} instead of {types[0].__name__}")
        return pack(value)

    return encode


def _row(cells: Sequence[_Cell], values: Sequence[Any]) -> bytes:
    return _cells(_null_bits(values), cells, values, _WORD_BYTES)


def _array_encoder(cell: _Cell) -> Encode:
    def encode(values: Sequence[Any]) -> bytes:
        head = struct.pack("<q", len(values)) + _null_bits(values)
        return _cells(head, [cell] * len(values), values, cell.size)

    return encode


def _map(keys: bytes, values: bytes) -> bytes:
    return struct.pack("<q", len(keys)) + keys + values


def _cells(head: bytes, cells: Sequence[_Cell], values: Sequence[Any], size: int) -> bytes:
    """A row or an array: the head, a cell of `size` bytes for each value, and the variable part."""
    fixed, variable = bytearray(), bytearray()
    begin = len(head) + _padded(size * len(cells))
    for cell, value in zip(cells, values, strict=True):
        content = b"" if value is None else cell.encode(value)
        if value is not None and not cell.fixed:
            content, raw = struct.pack("<II", len(content), begin + len(variable)), content
            variable += raw.ljust(_padded(len(raw)), b"\0")
        fixed += content.ljust(size, b"\0")
    return head + bytes(fixed).ljust(begin - len(head), b"\0") + bytes(variable)


def _null_bits(values: Sequence[Any]) -> bytes:
    nulls = sum(1 << index for index, value in enumerate(values) if value is None)
    return nulls.to_bytes(null_bytes(len(values)), "little")


def _padded(size: int) -> int:
    return size + -size % _WORD_BYTES


def _unscaled(value: decimal.Decimal, type_: Decimal) -> int:
    number = int(value.scaleb(type_.scale, _EXACT).to_integral_exact(context=_EXACT))
    if abs(number) >= 10**type_.precision:
        raise ValueError(f"it has more than {type_.precision} digits")
    return number


def _signed(number: int) -> bytes:
    return number.to_bytes((8 + (number + (number < 0)).bit_length()) // 8, "big", signed=True)


class ChangelogWriter:
    """Writes the changelog of a store's version 1, in checkpoint format v2: every row is put once."""

    def __init__(self, path: Path, state_id: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("wb")
        self._waiting = bytearray()
        lineage = json.dumps([{"version": 1, "checkpointUniqueId": state_id}]).encode()
        self._add(b"\x00\x02v3" + struct.pack(">H", len(lineage)) + lineage)

    def put(self, key: bytes, value: bytes) -> None:
        """Add an UnsafeRow under another one."""
        self._add(b"".join((_INT.pack(len(key) + 1), _ROW_VERSION, key)))
        self._add(b"".join((_INT.pack(len(value) + 1), _ROW_VERSION, value)))

    def close(self) -> None:
        self._add(_INT.pack(-1))
        self._file.write(_block(bytes(self._waiting)))
        self._file.write(LZ4_HEADER.pack(LZ4_MAGIC, STORED | _LEVEL, 0, 0, 0))
        self._file.close()

    def _add(self, content: bytes) -> None:
        self._waiting += content
        while len(self._waiting) > _BLOCK_BYTES:
            self._file.write(_block(bytes(self._waiting[:_BLOCK_BYTES])))
            del self._waiting[:_BLOCK_BYTES]


def _block(content: bytes) -> bytes:
    """A block of Java's LZ4 stream."""
    packed = lz4.block.compress(content, store_size=False)
    method, body = (LZ4, packed) if len(packed) < len(content) else (STORED, content)
    checksum = xxhash.xxh32_intdigest(content, seed=SEED) & CHECKSUM_MASK
    return LZ4_HEADER.pack(LZ4_MAGIC, method | _LEVEL, len(body), len(content), checksum) + body
