"""Joining: the record batches of many small frames as one, buffer by buffer.

Arrow takes some 10 µs to read a record batch and 5 more to join it to others, whatever is in it: for an append of a
single event that is several times what its event takes. But appends of one schema are all alike: an Arrow IPC message

    ┌────────────┬──────────┬─────────────────────────────────────────────────────┬──────────────────┐
    │ i32 -1     │ i32 size │ metadata: a flatbuffer with, among others, rows,    │ body: the        │
    │            │          │ (rows, nulls) of each array, (begin, size) of each  │ arrays' buffers  │
    │            │          │ of its buffers                                      │                  │
    └────────────┴──────────┴─────────────────────────────────────────────────────┴──────────────────┘

has those numbers at the same places, and all other bytes of its metadata are the same. So the places are looked up in
the first one, the numbers of all are taken at once, and each column's buffers are copied together. Whatever is not so
plain (another metadata, compression, an array with some nulls and some values, another type) is left to Arrow.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_RECORD_BATCH = 3  # of the flatbuffer's union of headers
_PREFIX_BYTES = 8

Numbers = npt.NDArray[np.int64]


class Unusual(Exception):
    """Not the plain case: Arrow must read these."""


def joined(messages: list[memoryview], schema: pa.Schema) -> pa.RecordBatch:
    """The events of these record batches, all of this schema, as one; Unusual if that is not done here."""
    try:
        return _joined(messages, schema)
    except (struct.error, IndexError, ValueError, StopIteration) as error:  # another layout than the one above
        raise Unusual(str(error)) from error


def _joined(messages: list[memoryview], schema: pa.Schema) -> pa.RecordBatch:
    content = np.frombuffer(b"".join(messages), np.uint8)
    sizes = np.array([len(message) for message in messages])
    begins = np.cumsum(sizes) - sizes
    prefixes = _rows(content, begins, _PREFIX_BYTES).view("<i4")
    size = int(prefixes[0, 1])
    if not (prefixes == [-1, size]).all():
        raise Unusual("the metadata have several sizes")
    metadata = _rows(content, begins + _PREFIX_BYTES, size)
    places = _Places.of(metadata[0].tobytes())
    places.check(metadata)
    arrays = _Arrays(
        content,
        begins + _PREFIX_BYTES + size,
        _numbers(metadata, places.arrays, 2 * places.arrays_count),
        _numbers(metadata, places.buffers, 2 * places.buffers_count),
    )
    columns = [arrays.next(field.type) for field in schema]
    arrays.check_end()
    return pa.RecordBatch.from_arrays(columns, schema=schema)


@dataclass(frozen=True, slots=True)
class _Places:
    """Where the numbers stand in the metadata of a record batch."""

    body_size: int
    rows: int
    arrays: int
    arrays_count: int
    buffers: int
    buffers_count: int

    @classmethod
    def of(cls, metadata: bytes) -> _Places:
        """Looked up as a flatbuffer has it: a table begins with the way back to the list of its fields' places."""

        def number(code: str, at: int) -> int:
            return int(struct.unpack_from(code, metadata, at)[0])

        def field(table: int, index: int) -> int:
            places = table - number("<i", table)
            entry = 4 + 2 * index
            return table + number("<H", places + entry) if entry < number("<H", places) else table

        message = number("<I", 0)
        header = field(message, 2) + number("<I", field(message, 2))
        vectors = [field(header, index) + number("<I", field(header, index)) for index in (1, 2)]
        if number("<B", field(message, 1)) != _RECORD_BATCH or field(header, 3) != header:
            raise Unusual("no plain record batch")
        (arrays, buffers), counts = (at + 4 for at in vectors), [number("<I", at) for at in vectors]
        return cls(field(message, 3), field(header, 0), arrays, counts[0], buffers, counts[1])

    def check(self, metadata: Any) -> None:
        """Unusual if they differ in anything but these numbers."""
        ranges = [
            (self.body_size, 8),
            (self.rows, 8),
            (self.arrays, 16 * self.arrays_count),
            (self.buffers, 16 * self.buffers_count),
        ]
        at = 0
        for begin, size in [*sorted(ranges), (metadata.shape[1], 0)]:
            if not (metadata[:, at:begin] == metadata[0, at:begin]).all():
                raise Unusual("the metadata differ")
            at = begin + size


class _Arrays:
    """The arrays of all batches, one after the other in the schema's order, each joined over the batches."""

    def __init__(self, content: Any, bodies: Numbers, arrays: Numbers, buffers: Numbers) -> None:
        self._content, self._bodies = content, bodies
        self._arrays = iter(np.split(arrays, arrays.shape[1] // 2, axis=1))
        self._buffers = iter(np.split(buffers, buffers.shape[1] // 2, axis=1))

    def next(self, type_: pa.DataType) -> pa.Array:
        """The next array, which is of this type."""
        rows, nulls = next(self._arrays).T
        validity = self._validity(rows, nulls)
        if pa.types.is_string(type_) or pa.types.is_binary(type_):
            return self._texts(type_, rows, validity)
        if pa.types.is_list(type_):
            lengths, _, _ = self._lengths(rows)
            return pa.Array.from_buffers(
                type_, int(rows.sum()), [validity, _offsets(lengths)], children=[self.next(type_.value_type)]
            )
        if not (pa.types.is_integer(type_) or pa.types.is_timestamp(type_)):
            raise Unusual(f"a column of {type_}")
        values = self._copied(*self._buffer(rows * (type_.bit_width // 8)))
        return pa.Array.from_buffers(type_, int(rows.sum()), [validity, pa.py_buffer(values)])

    def check_end(self) -> None:
        """Unusual if there are more than the schema has."""
        if next(self._arrays, None) is not None or next(self._buffers, None) is not None:
            raise Unusual("more arrays than columns")

    def _texts(self, type_: pa.DataType, rows: Numbers, validity: pa.Buffer | None) -> pa.Array:
        lengths, firsts, sizes = self._lengths(rows)
        begins, _ = self._buffer(firsts + sizes)
        buffers = [validity, _offsets(lengths), pa.py_buffer(self._copied(begins + firsts, sizes))]
        return pa.Array.from_buffers(type_, int(rows.sum()), buffers)

    def _validity(self, rows: Numbers, nulls: Numbers) -> pa.Buffer | None:
        """Which rows have a value; None if all have one. In each batch all have one, or none."""
        next(self._buffers)
        if not nulls.any():
            return None
        if not ((nulls == 0) | (nulls == rows)).all():
            raise Unusual("an array with some nulls")
        return pa.py_buffer(np.packbits(np.repeat(nulls == 0, rows), bitorder="little"))

    def _lengths(self, rows: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """By an array's offsets: how long each of its items is; and of each batch the first offset and all lengths."""
        begins, sizes = self._buffer(np.where(rows > 0, 4 * (rows + 1), 0))
        offsets = self._copied(begins, sizes).view("<i4").astype(np.int64)
        behind = np.cumsum(sizes // 4)
        filled = rows > 0
        firsts, lasts = np.zeros_like(rows), np.zeros_like(rows)
        lasts[filled] = offsets[behind[filled] - 1]
        firsts[filled] = offsets[(behind - sizes // 4)[filled]]
        lengths = np.delete(np.diff(offsets), behind[filled][:-1] - 1)
        return lengths, firsts, lasts - firsts

    def _buffer(self, needed: Numbers) -> tuple[Numbers, Numbers]:
        """Where the next buffer begins in each batch, and how much of it is needed. Unusual if it is shorter."""
        begins, sizes = next(self._buffers).T
        if (sizes < needed).any():
            raise Unusual("a buffer is shorter than its array")
        return self._bodies + begins, needed

    def _copied(self, begins: Numbers, sizes: Numbers) -> Any:
        """So many bytes from each of these places, one after the other."""
        if len(sizes) and (sizes == sizes[0]).all():
            return _rows(self._content, begins, int(sizes[0])).ravel()
        places = np.repeat(begins - np.cumsum(sizes) + sizes, sizes)
        places += np.arange(len(places))
        return self._content[places]


def _rows(content: Any, begins: Numbers, size: int) -> Any:
    """So many bytes from each of these places, as a matrix. IndexError if there are none."""
    return np.lib.stride_tricks.sliding_window_view(content, size)[begins] if size else np.empty((len(begins), 0), "u1")


def _numbers(metadata: Any, at: int, count: int) -> Numbers:
    return np.ascontiguousarray(metadata[:, at : at + 8 * count]).view("<i8").astype(np.int64)


def _offsets(lengths: Numbers) -> pa.Buffer:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return pa.py_buffer(offsets.astype("<i4"))
