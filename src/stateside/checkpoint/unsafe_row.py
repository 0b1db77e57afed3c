"""UnsafeRow, Spark's binary row.

    row := ┌───────────────────────┬───────────────────┬──────────────────────┐
           │ null bits             │ 8 bytes a column  │ variable part        │
           │ 8 bytes a 64 columns  │                   │                      │
           └───────────────────────┴───────────────────┴──────────────────────┘

All numbers little-endian. A column of fixed size stands in its 8 bytes; of another one the 8 bytes hold its size (low
half) and its offset from the row's start (high half).

Values come out as Python's `bool`, `int`, `float`, `str`, `bytes`; a date as days and a timestamp as microseconds since
1970, both `int`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from stateside.checkpoint.schema import Column
from stateside.errors import CheckpointInvalid

Value = bool | int | float | str | bytes | None

_FIXED: dict[str, str] = {
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
}
_VARIABLE: dict[str, Callable[[bytes], Value]] = {"string": lambda raw: raw.decode(), "binary": bytes}
SERVED_TYPES = frozenset([*_FIXED, *_VARIABLE])
_SIZE_AND_OFFSET = struct.Struct("<II")


class RowDecoder:
    """Decodes rows of one schema; CheckpointInvalid at once if a type is not supported."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._readers = [_reader(column, index, len(columns)) for index, column in enumerate(columns)]

    def decode(self, row: bytes) -> tuple[Value, ...]:
        """The row's values, in the order of the columns."""
        return tuple(reader(row) for reader in self._readers)


def _reader(column: Column, index: int, count: int) -> Callable[[bytes], Value]:
    null_byte, null_bit = index // 8, 1 << index % 8
    at_byte = (count + 63) // 64 * 8 + index * 8
    read = _field_reader(column, at_byte)
    return lambda row: None if row[null_byte] & null_bit else read(row)


def _field_reader(column: Column, at_byte: int) -> Callable[[bytes], Value]:
    if column.type in _FIXED:
        fixed = struct.Struct(_FIXED[column.type])
        return lambda row: fixed.unpack_from(row, at_byte)[0]
    if column.type in _VARIABLE:
        convert = _VARIABLE[column.type]

        def read(row: bytes) -> Value:
            size, offset = _SIZE_AND_OFFSET.unpack_from(row, at_byte)
            return convert(row[offset : offset + size])

        return read
    raise CheckpointInvalid(
        f"The state's column {column.name!r} has the type {column.type}, which cannot be served yet",
        next_step=f"Types served: {', '.join([*_FIXED, *_VARIABLE])}",
    )
