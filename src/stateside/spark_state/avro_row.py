"""Avro rows of a state store (`spark.sql.streaming.stateStore.encodingFormat=avro`), without their version byte.

    row      := id (i16, little-endian)  record      the id of the schema with which the row was written
    key part := record                               the first of the two parts of a key has no id
    record   := Avro's binary form of the columns, in the schema that Spark makes of them:

    boolean, float, double, string, binary           as they are
    byte, short, integer, date                       int; days since 1970
    long, timestamp, timestamp_ntz                   long; microseconds since 1970
    decimal                                          fixed, of the fewest bytes that hold its digits, big-endian
    array, map (with strings as keys), struct        array, map, record
    column, field of a struct                        union of null and its type; so are arrays, maps and structs inside
                                                     arrays and maps, other elements are not

Schema evolution: a query's value may get other columns at a restart. New rows then have the new id; older rows keep
theirs and follow Avro's schema resolution: by name, with null for a missing column. Keys never change.

`Encoding` is a query's row encoding, UnsafeRow or Avro; only a `transformWithState` can have Avro. The setting is in
every `offsets/N` and never changes after the query's first run. Only RocksDB's store heeds it.
"""

from __future__ import annotations

import decimal
import struct
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from io import BytesIO
from typing import Any

import fastavro

from stateside.core.errors import CheckpointInvalid
from stateside.spark_state.batch_log import Checkpoint
from stateside.spark_state.changelog import check_encoding
from stateside.spark_state.types import Array, Column, Decimal, Map, Primitive, SparkType, Struct, parse_type
from stateside.spark_state.unsafe_row import RowDecoder, Value

Versions = Callable[[], Mapping[int, Sequence[Column]]]  # the columns by schema id, read again at every call
_ID = struct.Struct("<h")
_EXACT = decimal.Context(prec=decimal.MAX_PREC)
_PRIMITIVES = {
    **{name: name for name in ("boolean", "float", "double", "string", "long")},
    **dict.fromkeys(("byte", "short", "integer", "date"), "int"),
    **dict.fromkeys(("timestamp", "timestamp_ntz"), "long"),
    "binary": "bytes",
    "void": "null",
    "null": "null",
}


class AvroDecoder:
    """Decodes rows into the given columns. Without `versions` all rows have these columns, whatever their id.

    Rows without `versions` and without an id (`identified`) are first parts of keys. CheckpointInvalid at once for a
    type without an Avro form, and for a malformed row.
    """

    def __init__(self, columns: Sequence[Column], versions: Versions | None = None, *, identified: bool = True) -> None:
        self._schema = _schema(columns)
        self._convert = [(column.name, _converter(parse_type(column.type))) for column in columns]
        self._versions, self._identified = versions, identified
        self._written: dict[int, Any] = {}

    def decode(self, row: bytes) -> tuple[Value, ...]:
        """The row's values, in the order of the columns."""
        try:
            written = self._written_as(_ID.unpack_from(row)[0]) if self._identified else self._schema
            stream = BytesIO(row)
            stream.seek(_ID.size if self._identified else 0)
            record: Any = fastavro.schemaless_reader(stream, written, self._schema)
            return tuple(convert(record[name]) for name, convert in self._convert)
        except CheckpointInvalid:
            raise
        except Exception as error:  # fastavro raises anything on malformed bytes
            raise CheckpointInvalid(f"A row of the state is no Avro as expected: {error!r}") from error

    def _written_as(self, schema_id: int) -> Any:
        if self._versions is None:
            return self._schema
        if schema_id not in self._written:
            self._written = {number: _schema(columns) for number, columns in self._versions().items()}
        if schema_id not in self._written:
            raise CheckpointInvalid(
                f"A row of the state was written with schema {schema_id}, which is in none of its schema files",
                next_step="See whether files in _stateSchema were deleted by hand",
            )
        return self._written[schema_id]


def _schema(columns: Sequence[Column]) -> Any:
    fields = Struct(tuple(column.name for column in columns), tuple(parse_type(column.type) for column in columns))
    return fastavro.parse_schema(_record(fields, "row"))


def _record(type_: Struct, name: str) -> dict[str, Any]:
    """Record names are free, but must be unique: Spark's own do not matter, so the path to the record serves."""
    fields = [
        {"name": field, "type": _or_null(_avro(part, f"{name}_{place}")), "default": None}
        for place, (field, part) in enumerate(zip(type_.names, type_.types, strict=True))
    ]
    return {"type": "record", "name": name, "fields": fields}


def _avro(type_: SparkType, name: str) -> Any:
    match type_:
        case Primitive(plain) if plain in _PRIMITIVES:
            return _PRIMITIVES[plain]
        case Decimal():
            return {"type": "fixed", "name": name, "size": _decimal_bytes(type_)}
        case Struct():
            return _record(type_, name)
        case Array(element):
            return {"type": "array", "items": _element(element, name)}
        case Map(Primitive("string"), value):
            return {"type": "map", "values": _element(value, name)}
    raise CheckpointInvalid(f"Spark has no Avro for the type {type_}")


def _element(type_: SparkType, name: str) -> Any:
    inner = _avro(type_, name)
    return _or_null(inner) if isinstance(type_, Struct | Array | Map) else inner


def _or_null(avro: Any) -> Any:
    return avro if avro == "null" else ["null", avro]


def _decimal_bytes(type_: Decimal) -> int:
    return next(size for size in range(1, 18) if 10**type_.precision <= 1 << 8 * size - 1)


def _converter(type_: SparkType) -> Callable[[Any], Value]:
    """A converter from fastavro's values to ours."""
    some = _some(type_)
    return lambda value: None if value is None else some(value)


def _some(type_: SparkType) -> Callable[[Any], Value]:
    match type_:
        case Decimal():
            return lambda raw: decimal.Decimal(int.from_bytes(raw, "big", signed=True)).scaleb(-type_.scale, _EXACT)
        case Struct(names, types):
            fields = [(name, _converter(part)) for name, part in zip(names, types, strict=True)]
            return lambda record: tuple(convert(record[name]) for name, convert in fields)
        case Array(element):
            each = _converter(element)
            return lambda values: tuple(map(each, values))
        case Map(_, value):
            of_value = _converter(value)
            return lambda pairs: tuple((key, of_value(item)) for key, item in pairs.items())
    return lambda value: value


_SETTING = "spark.sql.streaming.stateStore.encodingFormat"


class Encoding(Enum):
    """A row encoding, by Spark's name."""

    UNSAFE_ROW = "unsaferow"
    AVRO = "avro"

    def decoder(
        self, columns: Sequence[Column], versions: Versions | None = None, *, identified: bool = True
    ) -> RowDecoder | AvroDecoder:
        """A decoder of rows with these columns; for the other parameters see `AvroDecoder`."""
        if self is Encoding.AVRO:
            return AvroDecoder(columns, versions, identified=identified)
        return RowDecoder(columns)


def encoding_of(checkpoint: Checkpoint) -> Encoding:
    """The encoding of the query's rows; FileNotFoundError before its first batch is committed."""
    plan, path = checkpoint.newest_plan()
    check_encoding(plan, path)
    return Encoding(plan.conf.get(_SETTING, Encoding.UNSAFE_ROW.value).lower())


def refuse_avro(checkpoint: Checkpoint) -> None:
    """CheckpointInvalid for Avro rows of an operator other than `transformWithState`."""
    if encoding_of(checkpoint) is Encoding.AVRO:
        raise CheckpointInvalid(
            "The state's rows are encoded as avro, which can be read of a transformWithState only",
            where=checkpoint.storage.path("offsets"),
            next_step=f"Run the query on a new folder with {_SETTING}=unsaferow",
        )
