"""Payload fields as columns: JSON objects to Arrow, many at once."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pajson
import pyarrow.types as pt

from stateside.errors import ViewInvalid

Check = Callable[[Any], bool]
_NO_NUMBERS = (bool, str, list, dict)


def payload_columns(payloads: pa.Array, schema: pa.Schema) -> pa.Table:
    """The named fields of every payload, a row each; fields that a payload lacks are null, other fields are left out.

    A payload with a value of another type than its field's gives nulls throughout, so that the view can see that the
    event is not what it should be; the other rows are not touched by it.
    """
    if not len(schema) or not len(payloads):
        return schema.empty_table() if len(schema) else pa.table({})
    try:
        return _parse(payloads, schema)
    except pa.ArrowInvalid:
        return _parse_in_halves(_without_hopeless(payloads, schema), schema).combine_chunks()


def check_fields(schema: pa.Schema) -> None:
    """ViewInvalid for a field that cannot be read from JSON; told at start, not by nulls."""
    for field in schema:
        if _as_read(field.type) is None:
            raise ViewInvalid(
                f"The payload field {field.name!r} has the type {field.type}, which cannot be read from a payload",
                next_step="Declare it as a struct with named fields, or parse the column `payload` with from_json",
            )


def _as_read(type_: pa.DataType) -> pa.DataType | None:
    """The type that Arrow's JSON reader reads it as: itself, but dates as texts; None for what it cannot read."""
    if pt.is_date(type_):
        return pa.string()
    if pt.is_list(type_):
        item = _as_read(type_.value_type)
        return None if item is None else pa.list_(item)
    if pt.is_struct(type_):
        parts = [(part.name, _as_read(part.type)) for part in type_]
        return None if any(part is None for _, part in parts) else pa.struct(parts)
    return None if pt.is_map(type_) or pt.is_interval(type_) or pt.is_duration(type_) else type_


def _parse(payloads: pa.Array, schema: pa.Schema) -> pa.Table:
    lines = pc.binary_join_element_wise(payloads, "", "\n").cast(pa.large_binary())
    offsets = memoryview(lines.buffers()[1]).cast("q")
    document = lines.buffers()[2].slice(0, offsets[len(lines)])  # the column's bytes: all lines, one after the other
    read_as = pa.schema([(field.name, _as_read(field.type)) for field in schema])
    options = pajson.ParseOptions(explicit_schema=read_as, unexpected_field_behavior="ignore")
    read = pajson.ReadOptions(use_threads=False, block_size=document.size + 1)
    table = pajson.read_json(pa.BufferReader(document), read_options=read, parse_options=options)
    if table.num_rows != len(payloads):
        raise pa.ArrowInvalid("a payload with a line break")
    return table if read_as.equals(schema) else table.cast(schema)


def _parse_in_halves(payloads: pa.Array, schema: pa.Schema) -> pa.Table:
    """As `_parse`, but a bad payload gives nulls: halving finds the few bad ones among many in few steps."""
    try:
        return _parse(payloads, schema)
    except pa.ArrowInvalid:
        if len(payloads) == 1:
            return pa.Table.from_pylist([dict.fromkeys(schema.names)], schema=schema)
    half = len(payloads) // 2
    return pa.concat_tables([_parse_in_halves(part, schema) for part in (payloads[:half], payloads[half:])])


def _without_hopeless(payloads: pa.Array, schema: pa.Schema) -> pa.Array:
    """The payloads with an empty one in place of each that Arrow would surely refuse.

    Each refusal costs Arrow more than a look at a hundred payloads; where one in a hundred is bad that is most of all
    time. What is not sure stays, so that it is Arrow alone that says what is good.
    """
    wrong = [(field.name, check) for field in schema if (check := _surely_wrong(field.type))]
    texts: list[str] = payloads.to_pylist()
    return pa.array(["{}" if _hopeless(text, wrong) else text for text in texts], pa.string())


def _hopeless(payload: str, wrong: list[tuple[str, Check]]) -> bool:
    try:
        found = json.loads(payload)
    except (ValueError, RecursionError):
        return False
    return not isinstance(found, dict) or any(check(found.get(name)) for name, check in wrong)


def _surely_wrong(type_: pa.DataType) -> Check | None:
    """What tells that a value is surely not of this type; None where only Arrow knows."""
    if pt.is_integer(type_):
        return lambda value: isinstance(value, _NO_NUMBERS) or (isinstance(value, float) and value % 1 != 0)
    if pt.is_floating(type_):
        return lambda value: isinstance(value, _NO_NUMBERS)
    if pt.is_boolean(type_):
        return lambda value: value is not None and not isinstance(value, bool)
    if pt.is_string(type_):
        return lambda value: value is not None and not isinstance(value, str)
    return None
