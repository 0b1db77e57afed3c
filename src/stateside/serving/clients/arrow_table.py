"""Rows as Arrow tables, with the types of their view's columns."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal as Number
from typing import Any

import pyarrow as pa

from stateside.serving.stamp import parse_time
from stateside.spark_state.types import Array, Decimal, Map, Primitive, SparkType, Struct, parse_type

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TYPES: dict[str, pa.DataType] = {
    "string": pa.string(),
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "binary": pa.binary(),
}
_VALUES: dict[str, Callable[[Any], Any]] = {
    "float": float,  # "NaN" and "Infinity" are texts in JSON
    "double": float,
    "date": date.fromisoformat,
    "timestamp": lambda text: _EPOCH + timedelta(microseconds=parse_time(text)),
    "timestamp_ntz": lambda text: (_EPOCH + timedelta(microseconds=parse_time(text))).replace(tzinfo=None),
    "binary": base64.urlsafe_b64decode,
}


def arrow_table(rows: Sequence[Mapping[str, Any]], types: Mapping[str, str]) -> pa.Table:
    """The rows as an Arrow table; columns without a type get Arrow's inference from JSON values."""
    names = dict.fromkeys([*(name for name in types if not rows or name in rows[0]), *(n for row in rows for n in row)])
    columns = {name: [row.get(name) for row in rows] for name in names}
    return pa.table({name: _column(values, types.get(name)) for name, values in columns.items()})


def _column(values: Sequence[Any], type_: str | None) -> pa.Array:
    if type_ is None:
        return pa.array(values)
    spark = parse_type(type_)
    value_of = _value_of(spark)
    return pa.array([None if value is None else value_of(value) for value in values], _arrow_type(spark))


def _arrow_type(type_: SparkType) -> pa.DataType:
    match type_:
        case Primitive(name):
            return _TYPES.get(name, pa.string())  # intervals stay texts
        case Decimal(precision, scale):
            return pa.decimal128(precision, scale)
        case Array(element):
            return pa.list_(_arrow_type(element))
        case Map(key, value):
            return pa.map_(_arrow_type(key), _arrow_type(value))
        case Struct(names, types):
            return pa.struct([(name, _arrow_type(part)) for name, part in zip(names, types, strict=True)])
    raise AssertionError(f"no Arrow type for {type_}")


def _value_of(type_: SparkType) -> Callable[[Any], Any]:
    """The conversion from JSON to a Python value."""
    match type_:
        case Primitive(name):
            return _VALUES.get(name, lambda value: value)
        case Decimal():
            return Number
        case Array(element):
            one = _or_none(element)
            return lambda values: [one(value) for value in values]
        case Map(key, value):
            left, right = _or_none(key), _or_none(value)
            return lambda pairs: [(left(k), right(v)) for k, v in _pairs(pairs)]
        case Struct(names, types):
            fields = [(name, _or_none(part)) for name, part in zip(names, types, strict=True)]
            return lambda value: {name: one(value[name]) for name, one in fields}
    return lambda value: value


def _or_none(type_: SparkType) -> Callable[[Any], Any]:
    some = _value_of(type_)
    return lambda value: None if value is None else some(value)


def _pairs(shown: Any) -> list[tuple[Any, Any]]:
    return list(shown.items()) if isinstance(shown, dict) else [(pair["key"], pair["value"]) for pair in shown]
