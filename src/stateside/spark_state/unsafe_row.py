"""UnsafeRow, Spark's binary row format.

    row   := ┌───────────────────────┬───────────────────┬──────────────────────┐
             │ null bits             │ 8 bytes a column  │ variable part        │
             │ 8 bytes a 64 columns  │                   │                      │
             └───────────────────────┴───────────────────┴──────────────────────┘
    array := ┌──────────┬──────────────────────┬───────────────────┬───────────────┐
             │ i64      │ null bits            │ elements, 1 to 8  │ variable part │
             │ elements │ 8 bytes a 64 of them │ bytes each        │               │
             └──────────┴──────────────────────┴───────────────────┴───────────────┘
    map   := i64 size of the keys' array, array of keys, array of values

All numbers little-endian. Fixed-size values are in place; for all others the 8 bytes hold the value's size (low half)
and its offset (high half) from the start of its row or array. A struct is a row of its own. A decimal of up to 18
digits is its unscaled number in 8 bytes; a larger one is that number's bytes, big-endian.

Values are decoded to Python's `bool`, `int`, `float`, `str`, `bytes`, `Decimal`; a date to days and a timestamp to
microseconds since 1970, intervals to months or microseconds, all `int`; a struct to a tuple, an array to a tuple, a map
to a tuple of pairs, a calendar interval to (months, days, microseconds).
"""

from __future__ import annotations

import decimal
import struct
from collections.abc import Callable, Sequence

from stateside.core.errors import CheckpointInvalid
from stateside.spark_state.types import Array, Column, Decimal, Map, Primitive, SparkType, Struct, parse_type

Value = bool | int | float | str | bytes | decimal.Decimal | tuple["Value", ...] | None
Read = Callable[[bytes, int], Value]  # a value, from its row or array and the byte of its 8-byte cell

_DAY_TIME_PARTS = (
    *("day", "hour", "minute", "second", "day to hour", "day to minute", "day to second"),
    *("hour to minute", "hour to second", "minute to second"),
)
FIXED: dict[str, str] = {
    "boolean": "<?",
    "byte": "<b",
    "short": "<h",
    "integer": "<i",
    "long": "<q",
    "float": "<f",
    "double": "<d",
    "date": "<i",
    "timestamp": "<q",
    "timestamp_ntz": "<q",
    **{f"interval {part}": "<i" for part in ("year", "month", "year to month")},
    **{f"interval {part}": "<q" for part in _DAY_TIME_PARTS},
}
_TEXTS: dict[str, Callable[[bytes], Value]] = {"string": lambda raw: raw.decode(), "binary": bytes}
SERVED_TYPES = frozenset(name for name in (*FIXED, *_TEXTS) if not name.startswith("interval"))
_SIZE_AND_OFFSET = struct.Struct("<II")
_COUNT = struct.Struct("<q")
_CALENDAR_INTERVAL = struct.Struct("<iiq")
_WORD_BYTES = 8
_EXACT = decimal.Context(prec=decimal.MAX_PREC)


class RowDecoder:
    """Decodes rows of one schema; CheckpointInvalid at once for an unknown type."""

    def __init__(self, columns: Sequence[Column]) -> None:
        readers = [_column_reader(column) for column in columns]
        self._words = _words([column.type for column in columns])
        self._read = _row_reader(readers) if self._words is None else _fixed_row_reader(self._words)

    def decode(self, row: bytes) -> tuple[Value, ...]:
        """The row's values, in the order of the columns."""
        return self._read(row)

    def decode_all(self, rows: Sequence[bytes]) -> Sequence[Sequence[Value]]:
        """The same for many rows: all at once, if all columns are numbers."""
        if self._words is None or set(map(len, rows)) != {self._words.size}:
            return list(map(self._read, rows))
        found = self._words.iter_unpack(b"".join(rows))
        return [values[1:] if not values[0] else _without(values[0], values[1:]) for values in found]


def _column_reader(column: Column) -> Read:
    try:
        return reader_of(parse_type(column.type))
    except CheckpointInvalid as error:
        raise CheckpointInvalid(
            f"The state's column {column.name!r} has the type {column.type}, which is not known", next_step=error.what
        ) from error


def _row_reader(readers: Sequence[Read]) -> Callable[[bytes], tuple[Value, ...]]:
    first_byte = null_bytes(len(readers))
    places = [(i // 8, 1 << i % 8, first_byte + i * _WORD_BYTES, read) for i, read in enumerate(readers)]

    def read_row(row: bytes) -> tuple[Value, ...]:
        return tuple(None if row[at] & bit else read(row, place) for at, bit, place, read in places)

    return read_row


def _words(types: Sequence[str]) -> struct.Struct | None:
    """The layout of a row of numbers only, such as counts and sums, null bits first; None for others."""
    if not 0 < len(types) <= 64 or not all(type_ in FIXED for type_ in types):
        return None
    words = (FIXED[type_][1:] + f"{_WORD_BYTES - struct.calcsize(FIXED[type_])}x" for type_ in types)
    return struct.Struct("<Q" + "".join(words))


def _fixed_row_reader(row_of_words: struct.Struct) -> Callable[[bytes], tuple[Value, ...]]:
    """A reader of rows with numbers only, all columns at once."""

    def read_row(row: bytes) -> tuple[Value, ...]:
        nulls, *values = row_of_words.unpack_from(row)
        return _without(nulls, values) if nulls else tuple(values)

    return read_row


def _without(nulls: int, values: Sequence[Value]) -> tuple[Value, ...]:
    """The values, with None where the null bit is set."""
    return tuple(None if nulls >> place & 1 else value for place, value in enumerate(values))


def reader_of(type_: SparkType) -> Read:
    """A reader for values of this type; CheckpointInvalid for an unknown type."""
    match type_:
        case Primitive(name) if name in FIXED:
            fixed = struct.Struct(FIXED[name])
            return lambda row, at: fixed.unpack_from(row, at)[0]
        case Primitive(name) if name in _TEXTS:
            return _variable(_TEXTS[name])
        case Primitive("interval"):
            return _variable(_CALENDAR_INTERVAL.unpack)
        case Primitive("void" | "null"):
            return lambda row, at: None
        case Decimal():
            return _decimal_reader(type_)
        case Struct(_, types):
            return _variable(_row_reader([reader_of(part) for part in types]))
        case Array(element):
            return _variable(_array_reader(element))
        case Map(key, value):
            return _variable(_map_reader(key, value))
    raise CheckpointInvalid(f"Types that are known: {', '.join([*FIXED, *_TEXTS])}, decimal, struct, array, map")


def _variable(convert: Callable[[bytes], Value]) -> Read:
    """A reader for variable-length values, located by the size and offset in the cell."""

    def read(row: bytes, at: int) -> Value:
        size, offset = _SIZE_AND_OFFSET.unpack_from(row, at)
        return convert(row[offset : offset + size])

    return read


def _decimal_reader(type_: Decimal) -> Read:
    def scaled(unscaled: int) -> Value:
        return decimal.Decimal(unscaled).scaleb(-type_.scale, _EXACT)

    if type_.compact:
        return lambda row, at: scaled(_COUNT.unpack_from(row, at)[0])
    return _variable(lambda raw: scaled(int.from_bytes(raw, "big", signed=True)))


def _array_reader(element: SparkType) -> Callable[[bytes], tuple[Value, ...]]:
    read, size = reader_of(element), element_bytes(element)

    def read_array(array: bytes) -> tuple[Value, ...]:
        (count,) = _COUNT.unpack_from(array)
        first = _WORD_BYTES + null_bytes(count)
        return tuple(None if _is_null(array, i) else read(array, first + i * size) for i in range(count))

    return read_array


def _map_reader(key: SparkType, value: SparkType) -> Callable[[bytes], tuple[Value, ...]]:
    read_keys, read_values = _array_reader(key), _array_reader(value)

    def read_map(content: bytes) -> tuple[Value, ...]:
        (size,) = _COUNT.unpack_from(content)
        keys = read_keys(content[_WORD_BYTES : _WORD_BYTES + size])
        return tuple(zip(keys, read_values(content[_WORD_BYTES + size :]), strict=True))

    return read_map


def element_bytes(type_: SparkType) -> int:
    """The size of an element in an array: less than 8 bytes for the small types."""
    return struct.calcsize(FIXED[type_.name]) if isinstance(type_, Primitive) and type_.name in FIXED else _WORD_BYTES


def _is_null(array: bytes, index: int) -> bool:
    return bool(array[_WORD_BYTES + index // 8] & 1 << index % 8)


def null_bytes(count: int) -> int:
    return (count + 63) // 64 * 8
