"""Spark's types, parsed from the JSON in Spark's schemas."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from stateside.core.errors import CheckpointInvalid

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
