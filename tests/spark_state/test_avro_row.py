"""Rows in Avro: what a writer with Spark's schema wrote comes out, and what was written with an older one too."""

import json
import struct
from decimal import Decimal
from io import BytesIO
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateside.core.errors import CheckpointInvalid
from stateside.spark_state.avro_row import AvroDecoder
from stateside.spark_state.types import Column

INT, LONG = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
ARRAY = {"type": "array", "elementType": "long", "containsNull": False}
MAP = {"type": "map", "keyType": "string", "valueType": "integer", "valueContainsNull": False}
STRUCT = {
    "type": "struct",
    "fields": [{"name": "name", "type": "string"}, {"name": "price", "type": "decimal(20,2)"}],
}
ARRAYS = {"type": "array", "elementType": STRUCT, "containsNull": True}
COLUMNS = [
    *(Column(name, name) for name in ("boolean", "short", "long", "double", "string", "binary", "date", "timestamp")),
    Column("small", "decimal(5,3)"),
    *(Column(name, json.dumps(type_)) for name, type_ in (("a", ARRAY), ("m", MAP), ("s", STRUCT), ("n", ARRAYS))),
    Column("nothing", "void"),
]


def fixed(name: str, digits: int, scale: int, size: int) -> dict[str, Any]:
    return {
        "type": "fixed",
        "name": f"{name}.fixed",
        "size": size,
        "logicalType": "decimal",
        "precision": digits,
        "scale": scale,
    }


def record(name: str, price: str) -> dict[str, Any]:
    fields = [field("name", "string"), field("price", fixed(price, 20, 2, 9))]
    return {"type": "record", "name": name, "fields": fields}


def field(name: str, type_: Any) -> dict[str, Any]:
    return {"name": name, "type": ["null", type_], "default": None}


SCHEMA = fastavro.parse_schema(
    {
        "type": "record",
        "name": "topLevelRecord",
        "fields": [
            field("boolean", "boolean"),
            field("short", "int"),
            field("long", "long"),
            field("double", "double"),
            field("string", "string"),
            field("binary", "bytes"),
            field("date", "int"),
            field("timestamp", "long"),
            field("small", fixed("small", 5, 3, 3)),
            field("a", {"type": "array", "items": "long"}),
            field("m", {"type": "map", "values": "int"}),
            field("s", record("s", "price")),
            field("n", {"type": "array", "items": ["null", record("n", "other")]}),
            {"name": "nothing", "type": "null", "default": None},
        ],
    }
)

decimals = st.integers(-(10**20) + 1, 10**20 - 1).map(lambda unscaled: Decimal(unscaled).scaleb(-2))
structs = st.none() | st.fixed_dictionaries({"name": st.none() | st.text(), "price": st.none() | decimals})
records = st.fixed_dictionaries(
    {
        "boolean": st.none() | st.booleans(),
        "short": st.none() | st.integers(-(2**15), 2**15 - 1),
        "long": st.none() | LONG,
        "double": st.none() | st.floats(allow_nan=False),
        "string": st.none() | st.text(),
        "binary": st.none() | st.binary(),
        "date": st.none() | INT,
        "timestamp": st.none() | LONG,
        "small": st.none() | st.integers(-99_999, 99_999).map(lambda unscaled: Decimal(unscaled).scaleb(-3)),
        "a": st.none() | st.lists(LONG),
        "m": st.none() | st.dictionaries(st.text(), INT),
        "s": structs,
        "n": st.none() | st.lists(structs),
        "nothing": st.none(),
    }
)


def written(schema: Any, values: dict[str, Any], schema_id: int | None = 0) -> bytes:
    stream = BytesIO()
    fastavro.schemaless_writer(stream, schema, values)
    return (b"" if schema_id is None else struct.pack("<h", schema_id)) + stream.getvalue()


def plain(value: Any) -> Any:
    """A value as our decoders give it."""
    if isinstance(value, dict) and value.keys() == {"name", "price"}:
        return value["name"], value["price"]
    if isinstance(value, dict):
        return tuple(value.items())
    return tuple(map(plain, value)) if isinstance(value, list) else value


@given(records)
def test_a_row_comes_out_as_it_was_written_with_sparks_schema(values: dict[str, Any]) -> None:
    expected = tuple(plain(values[column.name]) for column in COLUMNS)
    assert AvroDecoder(COLUMNS).decode(written(SCHEMA, values)) == expected
    assert AvroDecoder(COLUMNS, lambda: {3: COLUMNS}).decode(written(SCHEMA, values, 3)) == expected
    assert AvroDecoder(COLUMNS, identified=False).decode(written(SCHEMA, values, None)) == expected


def test_rows_of_an_older_schema_have_null_where_they_lack_a_column_and_wider_numbers() -> None:
    old = [Column("gone", "string"), Column("count", "integer")]
    new = [Column("added", "long"), Column("count", "long")]
    schemas = [
        fastavro.parse_schema({"type": "record", "name": "topLevelRecord", "fields": fields})
        for fields in (
            [field("gone", "string"), field("count", "int")],
            [field("added", "long"), field("count", "long")],
        )
    ]
    asked = []
    decoder = AvroDecoder(new, lambda: asked.append(1) or {0: old, 1: new})  # type: ignore[func-returns-value]
    assert decoder.decode(written(schemas[0], {"gone": "x", "count": 7}, 0)) == (None, 7)
    assert decoder.decode(written(schemas[1], {"added": 1, "count": 2**40}, 1)) == (1, 2**40)
    assert asked == [1]


def test_a_schema_that_is_in_no_file_is_looked_up_anew_and_then_refused_by_its_number() -> None:
    versions = {0: COLUMNS}
    decoder = AvroDecoder(COLUMNS, lambda: versions)
    row = written(SCHEMA, dict.fromkeys(column.name for column in COLUMNS), 1)
    with pytest.raises(CheckpointInvalid, match="written with schema 1, which is in none"):
        decoder.decode(row)
    versions[1] = COLUMNS
    assert decoder.decode(row) == (None,) * len(COLUMNS)


def test_a_row_that_is_cut_short_is_refused() -> None:
    row = written(SCHEMA, {column.name: None for column in COLUMNS} | {"string": "some text"})
    for cut in range(len(row)):
        with pytest.raises(CheckpointInvalid, match="no Avro as expected"):
            AvroDecoder(COLUMNS).decode(row[:cut])


def test_a_type_that_avro_has_not_is_refused_at_once() -> None:
    with pytest.raises(CheckpointInvalid, match="no Avro for the type"):
        AvroDecoder([Column("span", "interval day to second")])
