"""Random access to the frames of one segment, with many small frames joined into one record batch.

A segment has no index of its own. The first access walks the frame headers once and keeps two numbers per frame while
the segment is open: at most some 1.5 MB for a segment of 64 MiB. For a finished segment they are also cached in a file
(`frame_index`). Files are read, not memory-mapped: a file truncated meanwhile gives an error and does not end the
process.

Joining copies the record batches of many small frames into one, buffer by buffer. Arrow takes some 10 µs to read a
record batch and 5 µs more to join it to others, whatever its size: several times the cost of the event in an append of
a single event. But appends of one schema are all alike: an Arrow IPC message

    ┌────────────┬──────────┬─────────────────────────────────────────────────────┬──────────────────┐
    │ i32 -1     │ i32 size │ metadata: a flatbuffer with, among others, rows,    │ body: the        │
    │            │          │ (rows, nulls) of each array, (begin, size) of each  │ arrays' buffers  │
    │            │          │ of its buffers                                      │                  │
    └────────────┴──────────┴─────────────────────────────────────────────────────┴──────────────────┘

has its numbers at the same places, and all other metadata bytes are equal. So `joined` locates the numbers in the first
message, reads them from all messages at once, and copies each column's buffers together. Arrow reads all other cases
(different metadata, compression, an array with both nulls and values, an unsupported type).
"""

from __future__ import annotations

import os
import struct
import threading
import weakref
import zlib
from array import array
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stateside.journal.backends.files import frame_index
from stateside.journal.backends.files.segment import FRAME_HEAD_BYTES, Segment, corrupt, frame_head, frame_is_whole
from stateside.journal.columns import conformed

_RECORD_BATCH = 3  # in the flatbuffer's union of headers
_PREFIX_BYTES = 8
Numbers = npt.NDArray[np.int64]


class Unusual(Exception):
    """Messages outside the simple case: Arrow must read them."""


def joined(messages: list[memoryview], schema: pa.Schema) -> pa.RecordBatch:
    """The events of these record batches of one schema, as one batch; Unusual if Arrow must read them."""
    try:
        return _joined(messages, schema)
    except (struct.error, IndexError, ValueError, StopIteration) as error:  # not the layout above
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
    """The places of the numbers in the metadata of a record batch."""

    body_size: int
    rows: int
    arrays: int
    arrays_count: int
    buffers: int
    buffers_count: int

    @classmethod
    def of(cls, metadata: bytes) -> _Places:
        """Parse the flatbuffer: a table begins with the distance back to its vtable, the list of its fields' places."""

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
        """Unusual if the metadata differ outside the ranges of these numbers."""
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
    """The arrays of all batches in schema order, each joined over the batches."""

    def __init__(self, content: Any, bodies: Numbers, arrays: Numbers, buffers: Numbers) -> None:
        self._content, self._bodies = content, bodies
        self._arrays = iter(np.split(arrays, arrays.shape[1] // 2, axis=1))
        self._buffers = iter(np.split(buffers, buffers.shape[1] // 2, axis=1))

    def next(self, type_: pa.DataType) -> pa.Array:
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
        """Unusual if there are more arrays than schema fields."""
        if next(self._arrays, None) is not None or next(self._buffers, None) is not None:
            raise Unusual("more arrays than columns")

    def _texts(self, type_: pa.DataType, rows: Numbers, validity: pa.Buffer | None) -> pa.Array:
        lengths, firsts, sizes = self._lengths(rows)
        begins, _ = self._buffer(firsts + sizes)
        buffers = [validity, _offsets(lengths), pa.py_buffer(self._copied(begins + firsts, sizes))]
        return pa.Array.from_buffers(type_, int(rows.sum()), buffers)

    def _validity(self, rows: Numbers, nulls: Numbers) -> pa.Buffer | None:
        """The validity bitmap; None without nulls. Within a batch, either all rows have a value or none has."""
        next(self._buffers)
        if not nulls.any():
            return None
        if not ((nulls == 0) | (nulls == rows)).all():
            raise Unusual("an array with some nulls")
        return pa.py_buffer(np.packbits(np.repeat(nulls == 0, rows), bitorder="little"))

    def _lengths(self, rows: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """From an array's offsets: the length of each item; for each batch the first offset and the total length."""
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
        """Where the next buffer begins in each batch, and its needed size. Unusual if the buffer is shorter."""
        begins, sizes = next(self._buffers).T
        if (sizes < needed).any():
            raise Unusual("a buffer is shorter than its array")
        return self._bodies + begins, needed

    def _copied(self, begins: Numbers, sizes: Numbers) -> Any:
        """The bytes at these places, concatenated."""
        if len(sizes) and (sizes == sizes[0]).all():
            return _rows(self._content, begins, int(sizes[0])).ravel()
        places = np.repeat(begins - np.cumsum(sizes) + sizes, sizes)
        places += np.arange(len(places))
        return self._content[places]


def _rows(content: Any, begins: Numbers, size: int) -> Any:
    """The `size` bytes at each place, as a matrix. IndexError beyond the content."""
    return np.lib.stride_tricks.sliding_window_view(content, size)[begins] if size else np.empty((len(begins), 0), "u1")


def _numbers(metadata: Any, at: int, count: int) -> Numbers:
    return np.ascontiguousarray(metadata[:, at : at + 8 * count]).view("<i8").astype(np.int64)


def _offsets(lengths: Numbers) -> pa.Buffer:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return pa.py_buffer(offsets.astype("<i4"))


GROUP_BYTES = 2 << 20  # of frames read together; a larger frame is read alone
JOINED_BYTES_MAX = 4 << 10  # average size of a frame below which joining beats Arrow
_WINDOW_BYTES = 16 << 10
Offsets = npt.NDArray[np.int64]
Shown = Callable[[pa.RecordBatch], pa.RecordBatch]


class Frames:
    """A segment opened for random access. Any number of threads may read."""

    def __init__(self, path: Path, shown: Shown = conformed) -> None:
        """JournalCorrupt if the header is damaged. `shown` converts a stored batch for readers."""
        opened = Segment(path)
        opened.close()
        self.path, self.journal_id = path, opened.journal_id
        self._schema, self._shown = opened.schema, shown
        self._handle = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._handle)
        self._file = _file(os.fstat(self._handle))
        self._firsts = array("q", [opened.first_offset])  # of each frame, and of the next frame to come
        self._begins = array("q", [opened.frames_begin])
        self._extending = threading.Lock()

    def is_in_place(self) -> bool:
        """Whether the path still names the opened file, and the file has all bytes seen so far."""
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return False
        return _file(found) == self._file and found.st_size >= self._begins[-1]

    def extend(self, stop_byte: int | None = None) -> int:
        """Find all frames up to a byte, or all frames of a finished segment; returns the offset after the last one."""
        with self._extending:
            if stop_byte is not None:
                self._find(stop_byte)
            elif (size := os.fstat(self._handle).st_size) > self._begins[-1]:
                self._find_all(size)
            return self._firsts[-1]

    def batches(self, start: int, stop: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The events with start <= offset < stop, all found already; each batch with its first offset."""
        firsts, begins = self._found()
        frame, last = (int(np.searchsorted(firsts, at, "right")) - 1 for at in (start, stop - 1))
        while frame <= last:
            behind = int(np.searchsorted(begins, begins[frame] + GROUP_BYTES, "right")) - 1
            behind = min(max(behind, frame + 1), last + 1)
            low, high = max(start, int(firsts[frame])), min(stop, int(firsts[behind]))
            batch = self._batch(self._bodies(frame, behind))
            yield low, batch.slice(low - int(firsts[frame]), high - low)
            frame = behind

    def gather(self, offsets: Offsets) -> Iterator[tuple[Offsets, pa.RecordBatch]]:
        """The events at these ascending offsets, all found already: in groups, each with its offsets."""
        firsts, begins = self._found()
        frame_of = np.searchsorted(firsts, offsets, "right") - 1
        numbers, frame_of = np.unique(frame_of, return_inverse=True)
        behind_bytes = np.cumsum(begins[numbers + 1] - begins[numbers])
        at = 0
        while at < len(numbers):
            read = int(behind_bytes[at - 1]) if at else 0
            behind = max(at + 1, int(np.searchsorted(behind_bytes, read + GROUP_BYTES, "right")))
            low, high = np.searchsorted(frame_of, [at, behind])
            yield self._taken(numbers[at:behind], offsets[low:high], frame_of[low:high] - at, firsts)
            at = behind

    def _taken(
        self, numbers: Offsets, offsets: Offsets, frame_of: Offsets, firsts: Offsets
    ) -> tuple[Offsets, pa.RecordBatch]:
        """The events at these offsets out of the frames `numbers`; `frame_of` is each event's index into `numbers`."""
        bodies = [body for low, high in _adjacent(numbers) for body in self._bodies(low, high)]
        rows = firsts[numbers + 1] - firsts[numbers]
        places = np.cumsum(rows) - rows
        wanted = places[frame_of] + offsets - firsts[numbers][frame_of]
        batch = self._batch(bodies)
        return offsets, batch if len(wanted) == batch.num_rows else batch.take(pa.array(wanted))

    def _found(self) -> tuple[Offsets, Offsets]:
        """Copies: numpy lets other threads run while it copies, and an array that is being copied cannot grow."""
        with self._extending:
            return np.array(self._firsts), np.array(self._begins)

    def _find_all(self, size: int) -> None:
        """Load the cached frame index of a finished segment, or build and cache one."""
        kept = frame_index.load(self.path, self.journal_id, size)
        if kept is not None:
            self._firsts, self._begins = kept
            return
        self._find(size)
        frame_index.keep(self.path, self.journal_id, size, self._firsts, self._begins)

    def _find(self, stop_byte: int) -> None:
        """Walk from header to header."""
        window, window_at = b"", 0
        while (at := self._begins[-1]) < stop_byte:
            if not window_at <= at <= window_at + len(window) - FRAME_HEAD_BYTES:
                window, window_at = os.pread(self._handle, _WINDOW_BYTES, at), at
            self._add(window, at - window_at, stop_byte)

    def _add(self, window: bytes, at: int, stop_byte: int) -> None:
        """Record the frame whose header is at this place of the window."""
        at_byte = self._begins[-1]
        if at + FRAME_HEAD_BYTES > len(window):
            raise corrupt(self.path, at_byte, "a frame's header is cut short")
        head = frame_head(window, at)
        if head is None:
            raise corrupt(self.path, at_byte, "there is no frame where one must begin")
        rows, size, first_offset, _ = head
        if first_offset != self._firsts[-1]:
            raise corrupt(
                self.path, at_byte, f"a frame begins at offset {first_offset}, {self._firsts[-1]} was expected"
            )
        if at_byte + FRAME_HEAD_BYTES + size > stop_byte:
            raise corrupt(self.path, at_byte, f"a frame of {size} bytes is cut short")
        self._begins.append(at_byte + FRAME_HEAD_BYTES + size)
        self._firsts.append(first_offset + rows)

    def _bodies(self, frame: int, behind: int) -> list[memoryview]:
        """The verified bodies of adjacent frames, from one read."""
        begin = self._begins[frame]
        content = memoryview(_read(self._handle, begin, self._begins[behind] - begin))
        bodies, seed = [], zlib.crc32(self.journal_id.bytes)
        for low, high in pairwise(at - begin for at in self._begins[frame : behind + 1]):
            if len(content) < high:
                raise corrupt(self.path, begin + low, "a frame is cut short")
            if not frame_is_whole(seed, content, low, high):
                raise corrupt(self.path, begin + low, "a frame's checksum does not match")
            bodies.append(content[low + FRAME_HEAD_BYTES : high])
        return bodies

    def _batch(self, bodies: list[memoryview]) -> pa.RecordBatch:
        """The frames' events as one batch: small frames are joined, Arrow reads others as one stream."""
        if len(bodies) == 1:
            return self._shown(pa.ipc.read_record_batch(pa.py_buffer(bodies[0]), self._schema))
        if sum(map(len, bodies)) < JOINED_BYTES_MAX * len(bodies):
            with suppress(Unusual):
                return self._shown(joined(bodies, self._schema))
        stream = pa.py_buffer(b"".join([self._schema.serialize().to_pybytes(), *bodies]))
        table = pa.ipc.open_stream(stream).read_all().combine_chunks()
        return self._shown(table.to_batches()[0])


def _read(handle: int, at_byte: int, size: int) -> bytes:
    """Read `size` bytes, fewer at the end of the file."""
    content = os.pread(handle, size, at_byte)
    while len(content) < size and (more := os.pread(handle, size - len(content), at_byte + len(content))):
        content += more
    return content


def _adjacent(numbers: Offsets) -> Iterator[tuple[int, int]]:
    """The runs of consecutive numbers, as ranges."""
    breaks = np.flatnonzero(np.diff(numbers) != 1) + 1
    for run in np.split(numbers, breaks):
        yield int(run[0]), int(run[-1]) + 1


def _file(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino
