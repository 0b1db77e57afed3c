"""Rows as canonical JSON: the same text for the same row, for files of lines, for requests, and as a sort key.

type                    JSON
integers, booleans      as they are
floats                  a number; "NaN", "Infinity", "-Infinity" as text
decimals                text, so that no digit is lost
timestamps              text, ISO 8601, in UTC with Z if the type has a time zone
dates, times            text, ISO 8601
durations               a number of microseconds
binary                  text, base64
structs                 an object
lists                   an array
maps                    an object if the keys are text, with sorted names; else an array of pairs, sorted
"""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections.abc import Callable
from datetime import UTC, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from stateside.core.errors import ViewInvalid

Encode = Callable[[Any], Any]

_MICROSECOND = timedelta(microseconds=1)


def json_texts(rows: pa.Table) -> list[str]:
    """Each row as one line of JSON, columns in schema order."""
    encode = _struct(rows.schema)
    return [_text(encode(row)) for row in rows.to_pylist()]


def check_json(schema: pa.Schema) -> None:
    """ViewInvalid if the schema has a type without a JSON form."""
    _struct(schema)


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _struct(fields: Any) -> Encode:
    encoders = {field.name: _nullable(field.type, field.name) for field in fields}
    return lambda row: {name: encode(row[name]) for name, encode in encoders.items()}


def _nullable(kind: pa.DataType, column: str) -> Encode:
    encode = _encoder(kind, column)
    return lambda value: None if value is None else encode(value)


def _encoder(kind: pa.DataType, column: str) -> Encode:
    for test, encode in _PLAIN:
        if test(kind):
            return encode
    if pt.is_struct(kind):
        return _struct(kind)
    if pt.is_map(kind):
        return _map(kind, column)
    if pt.is_list(kind) or pt.is_large_list(kind):
        item = _nullable(kind.value_type, column)
        return lambda values: [item(value) for value in values]
    raise ViewInvalid(
        f"The column {column!r} is of the type {kind}, which has no JSON form", next_step="Cast it, or leave it out"
    )


def _map(kind: Any, column: str) -> Encode:
    key, item = _nullable(kind.key_type, column), _nullable(kind.item_type, column)
    if pt.is_string(kind.key_type) or pt.is_large_string(kind.key_type):
        return lambda pairs: {key(name): item(value) for name, value in sorted(pairs, key=lambda pair: pair[0])}
    return lambda pairs: sorted(([key(name), item(value)] for name, value in pairs), key=_text)


def _same(value: Any) -> Any:
    return value


def _float(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


def _timestamp(value: Any) -> str:
    text: str = value.isoformat() if value.tzinfo is None else value.astimezone(UTC).isoformat()
    return text.replace("+00:00", "Z")


_PLAIN: tuple[tuple[Callable[[pa.DataType], bool], Encode], ...] = (
    (pt.is_integer, _same),
    (pt.is_boolean, _same),
    (pt.is_string, _same),
    (pt.is_large_string, _same),
    (pt.is_null, _same),
    (pt.is_floating, _float),
    (pt.is_decimal, str),
    (pt.is_timestamp, _timestamp),
    (pt.is_date, lambda value: value.isoformat()),
    (pt.is_time, lambda value: value.isoformat()),
    (pt.is_duration, lambda value: value // _MICROSECOND),
    (pt.is_binary, lambda value: b64encode(value).decode()),
    (pt.is_large_binary, lambda value: b64encode(value).decode()),
)
