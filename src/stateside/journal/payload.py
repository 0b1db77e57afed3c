"""Payload fields as columns: JSON objects to Arrow, many at once."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pajson


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
        return pa.concat_tables([_parse_one(payload, schema) for payload in payloads])


def _parse(payloads: pa.Array, schema: pa.Schema) -> pa.Table:
    lines = pc.binary_join_element_wise(payloads, "", "\n").cast(pa.large_binary())
    offsets = memoryview(lines.buffers()[1]).cast("q")
    document = lines.buffers()[2].slice(0, offsets[len(lines)])  # the column's bytes: all lines, one after the other
    options = pajson.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    read = pajson.ReadOptions(use_threads=False, block_size=document.size + 1)
    table = pajson.read_json(pa.BufferReader(document), read_options=read, parse_options=options)
    if table.num_rows != len(payloads):
        raise pa.ArrowInvalid("a payload with a line break")
    return table


def _parse_one(payload: pa.Scalar, schema: pa.Schema) -> pa.Table:
    try:
        return _parse(pa.array([payload.as_py()], pa.string()), schema)
    except pa.ArrowInvalid:
        return pa.Table.from_pylist([dict.fromkeys(schema.names)], schema=schema)
