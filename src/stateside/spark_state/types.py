"""Spark's types, and the schema of a state store: its columns, from `state/OPERATOR/0/_metadata/schema`.

    file   := "v1" (UTF)  text (of the key)  text (of the value)      up to Spark 3.0
            | "v2" (UTF)  schema (of the key)  schema (of the value)
    schema := chunks (i32)  text*      together one text
    text   := UTF                      JSON of a Spark struct type

`column_families` has version 3, in other files, for stores with column families.
"""

from __future__ import annotations

import json
import re
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stateside.core.errors import CheckpointInvalid

if TYPE_CHECKING:
    from stateside.core.storage import Storage

_DECIMAL = re.compile(r"decimal\((\d+),\s*(-?\d+)\)")
_DECIMAL_DIGITS_IN_8_BYTES = 18


@dataclass(frozen=True, slots=True)
class Primitive:
    """A type without parts: `long`, `string`, `timestamp`, …"""

    name: str


@dataclass(frozen=True, slots=True)
class Decimal:
    precision: int
    scale: int

    @property
    def compact(self) -> bool:
        """Whether the unscaled value fits in 8 bytes."""
        return self.precision <= _DECIMAL_DIGITS_IN_8_BYTES


@dataclass(frozen=True, slots=True)
class Struct:
    names: tuple[str, ...]
    types: tuple[SparkType, ...]


@dataclass(frozen=True, slots=True)
class Array:
    element: SparkType


@dataclass(frozen=True, slots=True)
class Map:
    key: SparkType
    value: SparkType


SparkType = Primitive | Decimal | Struct | Array | Map


def parse_type(text: str) -> SparkType:
    """The type of a column's type text: a name, or the JSON of a type with parts."""
    return _parse(json.loads(text) if text.startswith("{") else text)


def _parse(node: Any) -> SparkType:
    if isinstance(node, str):
        decimal = _DECIMAL.fullmatch(node)
        return Decimal(int(decimal[1]), int(decimal[2])) if decimal else Primitive(_plain(node))
    match node:
        case {"type": "struct", "fields": list(fields)}:
            return Struct(tuple(f["name"] for f in fields), tuple(_parse(f["type"]) for f in fields))
        case {"type": "array", "elementType": element}:
            return Array(_parse(element))
        case {"type": "map", "keyType": key, "valueType": value}:
            return Map(_parse(key), _parse(value))
        case {"type": "udt", "sqlType": stored}:
            return _parse(stored)
    raise CheckpointInvalid(f"The type {json.dumps(node)[:200]} is not known")


def _plain(name: str) -> str:
    """A type's name without details irrelevant to storage: a length, a collation."""
    return "string" if name.startswith(("char(", "varchar(", "string collate")) else name


@dataclass(frozen=True, slots=True)
class Column:
    """A column's name and its Spark type, as Spark's JSON writes it (`long`, `decimal(10,2)`, …)."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class StateSchema:
    """The columns of keys and values; a value's columns are aggregation buffers."""

    key: tuple[Column, ...]
    value: tuple[Column, ...]


def read_schema(storage: Storage, operator: int) -> StateSchema:
    """The schema of an operator's state; FileNotFoundError before its first batch."""
    from stateside.spark_state.checksum import read_checked  # needs numpy; clients use this module's columns without

    name = f"state/{operator}/0/_metadata/schema"
    content = read_checked(storage, name)
    try:
        version, at_byte = read_utf(content, 0)
        if version not in _READERS:
            raise ValueError(f"version {version!r} is not known")
        read = _READERS[version]
        key, at_byte = read(content, at_byte)
        value, _ = read(content, at_byte)
        return StateSchema(columns_of(key), columns_of(value))
    except (struct.error, ValueError, KeyError) as error:
        raise CheckpointInvalid(f"The state's schema cannot be read: {error}", where=storage.path(name)) from error


def read_utf(content: bytes, at_byte: int) -> tuple[str, int]:
    """A text with its length before it, and the byte after it."""
    (size,) = struct.unpack_from(">H", content, at_byte)
    begin = at_byte + 2
    return content[begin : begin + size].decode(), begin + size


def read_chunks(content: bytes, at_byte: int) -> tuple[dict[str, Any], int]:
    """A JSON object from its chunks, and the byte after them."""
    (count,) = struct.unpack_from(">i", content, at_byte)
    at_byte += 4
    text = ""
    for _ in range(count):
        chunk, at_byte = read_utf(content, at_byte)
        text += chunk
    value: dict[str, Any] = json.loads(text)
    return value, at_byte


def _read_text(content: bytes, at_byte: int) -> tuple[dict[str, Any], int]:
    text, at_byte = read_utf(content, at_byte)
    value: dict[str, Any] = json.loads(text)
    return value, at_byte


_READERS = {"v1": _read_text, "v2": read_chunks}


def columns_of(struct_type: dict[str, Any]) -> tuple[Column, ...]:
    """The columns of a struct type in Spark's JSON."""
    return tuple(Column(field["name"], _type_name(field["type"])) for field in struct_type["fields"])


def _type_name(spark_type: Any) -> str:
    return spark_type if isinstance(spark_type, str) else json.dumps(spark_type, sort_keys=True)
