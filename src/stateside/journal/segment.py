"""The journal's file format: segments of checksummed frames, each a group of events as an Arrow record batch.

A segment is named after the offset of its first event, `00000000000000001234.segment`, and looks like this (all numbers
little-endian):

    segment := header frame*

    header  := ┌──────────┬─────────┬─────────────┬────────┬────────────────────────────┐
               │ magic 8  │ u32     │ u32         │ u32    │ Arrow IPC schema message   │
               │ STATEJRN │ version │ schema size │ crc32  │ padded to 8 bytes          │
               └──────────┴─────────┴─────────────┴────────┴────────────────────────────┘
                                                    of the schema message with its padding

    frame   := ┌──────────┬──────────┬───────────┬──────────────┬────────┬──────────────┐
               │ u32      │ u32      │ u32       │ u64          │ u32    │ Arrow IPC    │
               │ FRAM     │ rows     │ body size │ first offset │ crc32  │ record batch │
               └──────────┴──────────┴───────────┴──────────────┴────────┴──────────────┘
                                                    of the fields before it and the body

One append is one frame, so the events of an append are stored all or none. The schema stands in the header, so that a
later version of Stateside can add columns from one segment to the next. A segment's header is written aside and renamed
into place: there is no segment with half a header.

Beside the segments lies `end` (see `DurableEnd`): how far the journal is durable. Readers never look beyond it.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from stateside.errors import EventRefused, JournalCorrupt
from stateside.storage import write_atomically

VERSION = 1
SUFFIX = ".segment"
FRAME_BYTES_MAX = 256 * 1024 * 1024

_HEADER = struct.Struct("<8sIII")
_HEADER_MAGIC = b"STATEJRN"
_FRAME = struct.Struct("<4sIIQI")
_FRAME_MAGIC = b"FRAM"
_FRAME_CHECKED_BYTES = _FRAME.size - 4  # all but the checksum itself
_END = struct.Struct("<8sQQQI")
_END_MAGIC = b"STATEEND"
END_NAME = "end"


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame as found in a segment: where it lies, and which events it holds."""

    begin_byte: int
    end_byte: int
    first_offset: int
    rows: int
    crc: int

    @property
    def next_offset(self) -> int:
        """The offset after the frame's last event."""
        return self.first_offset + self.rows


class Segment:
    """A segment opened for reading. Frames are read by memory map: nothing is copied before it is needed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.first_offset = int(path.stem)
        self._map = pa.memory_map(str(path))
        self.size = self._map.size()
        self.schema, self.frames_begin = self._read_header()

    def frames(self, start: int = 0, stop_byte: int | None = None, mark: DurableEnd | None = None) -> Iterator[Frame]:
        """The frames from the one that holds offset `start` up to a byte (the segment's end by default).

        Each one is checked; JournalCorrupt at the first bad one. Frames before `start` are stepped over by their
        headers; a mark in this segment, at or before `start`, spares even that.
        """
        stop_byte = self.size if stop_byte is None else stop_byte
        at_byte, expected = self.frames_begin, self.first_offset
        if mark and mark.segment_offset == self.first_offset and mark.offset <= start:
            at_byte, expected = max(mark.segment_bytes, at_byte), mark.offset  # 0 bytes: before there was a segment
        while at_byte < stop_byte:
            frame = self._frame(at_byte, stop_byte, expected)
            if frame.next_offset > start:
                self._check(frame)
                yield frame
            at_byte, expected = frame.end_byte, frame.next_offset

    def batch(self, frame: Frame) -> pa.RecordBatch:
        """The frame's events, as stored."""
        return pa.ipc.read_record_batch(self._body(frame), self.schema)

    def close(self) -> None:
        """Let the file go; batches already read stay valid."""
        self._map.close()

    def _read_header(self) -> tuple[pa.Schema, int]:
        if self.size < _HEADER.size:
            raise self._corrupt(0, "the header is cut short")
        magic, version, size, crc = _HEADER.unpack(self._map.read_at(_HEADER.size, 0))
        if magic != _HEADER_MAGIC:
            raise self._corrupt(0, "this is no journal segment")
        if version != VERSION:
            raise self._corrupt(0, f"format version {version} is not known, this program reads version {VERSION}")
        message = self._map.read_at(size, _HEADER.size)
        if zlib.crc32(message) != crc:
            raise self._corrupt(0, "the header's checksum does not match")
        return pa.ipc.read_schema(pa.py_buffer(message)), _HEADER.size + size

    def _frame(self, at_byte: int, stop_byte: int, expected_offset: int) -> Frame:
        stop_byte = min(stop_byte, self.size)  # the file may have lost bytes that the end mark still promises
        if at_byte + _FRAME.size > stop_byte:
            raise self._corrupt(at_byte, "a frame's header is cut short", TornFrame)
        magic, rows, size, first_offset, crc = _FRAME.unpack(self._map.read_at(_FRAME.size, at_byte))
        if magic != _FRAME_MAGIC or size > FRAME_BYTES_MAX:
            raise self._corrupt(at_byte, "there is no frame where one must begin")
        end_byte = at_byte + _FRAME.size + size
        if end_byte > stop_byte:
            raise self._corrupt(at_byte, f"a frame of {size} bytes is cut short", TornFrame)
        if first_offset != expected_offset:
            raise self._corrupt(at_byte, f"a frame begins at offset {first_offset}, {expected_offset} was expected")
        return Frame(at_byte, end_byte, first_offset, rows, crc)

    def _body(self, frame: Frame) -> pa.Buffer:
        self._map.seek(frame.begin_byte + _FRAME.size)
        return self._map.read_buffer(frame.end_byte - frame.begin_byte - _FRAME.size)

    def _check(self, frame: Frame) -> None:
        head = self._map.read_at(_FRAME_CHECKED_BYTES, frame.begin_byte)
        if zlib.crc32(self._body(frame), zlib.crc32(head)) != frame.crc:
            raise self._corrupt(frame.begin_byte, "a frame's checksum does not match")

    def _corrupt(self, at_byte: int, reason: str, kind: type[JournalCorrupt] = JournalCorrupt) -> JournalCorrupt:
        return kind(
            f"The journal is damaged: {reason}",
            where=f"{self.path}, byte {at_byte}",
            next_step="Nothing was skipped or changed. Restore this file from a copy, then start again",
        )


class TornFrame(JournalCorrupt):
    """A frame that the segment ends in the middle of: after a crash in mid-write, the owner may cut it off."""


@dataclass(frozen=True, slots=True)
class DurableEnd:
    """How far a journal is durable: the next offset, and the byte in its last segment where the next frame goes.

    Written into the file `end` after each `fsync` of a segment, so it never promises more than the disk holds. It tells
    a frame that a crash tore (beyond this mark: cut off) from acknowledged events gone missing (before it: an error).
    """

    offset: int
    segment_offset: int
    segment_bytes: int

    def pack(self) -> bytes:
        """The file's content: magic, the three numbers, crc32 of all before."""
        content = _END.pack(_END_MAGIC, self.offset, self.segment_offset, self.segment_bytes, 0)[:-4]
        return content + struct.pack("<I", zlib.crc32(content))

    @classmethod
    def read(cls, directory: Path) -> DurableEnd | None:
        """The mark in this folder; None where there is none yet."""
        path = directory / END_NAME
        for _ in range(_END_READ_TRIES):  # the writer may be half-way through its 36 bytes
            try:
                content = path.read_bytes()
            except FileNotFoundError:
                return None
            if len(content) == _END.size and zlib.crc32(content[:-4]) == struct.unpack("<I", content[-4:])[0]:
                _, offset, segment_offset, segment_bytes, _ = _END.unpack(content)
                return cls(offset, segment_offset, segment_bytes)
        raise JournalCorrupt(
            "The journal's end mark is damaged",
            where=str(path),
            next_step="Delete this file: the journal then opens at its last whole frame",
        )


_END_READ_TRIES = 100


def create(directory: Path, first_offset: int, schema: pa.Schema) -> Path:
    """A new segment with nothing but its header, durable."""
    message = schema.serialize().to_pybytes()
    message += b"\0" * (-len(message) % 8)
    path = segment_path(directory, first_offset)
    write_atomically(path, _HEADER.pack(_HEADER_MAGIC, VERSION, len(message), zlib.crc32(message)) + message)
    return path


def pack_frame(first_offset: int, batch: pa.RecordBatch) -> list[bytes | memoryview]:
    """The bytes of one frame, ready for a gathered write; EventRefused if no reader would take so large a one."""
    body = memoryview(batch.serialize())
    if len(body) > FRAME_BYTES_MAX:
        raise EventRefused(
            f"The append of {batch.num_rows} events has {len(body)} bytes, {FRAME_BYTES_MAX} are allowed",
            next_step="Nothing of it was stored; append the events in smaller batches",
        )
    checked = _FRAME.pack(_FRAME_MAGIC, batch.num_rows, len(body), first_offset, 0)[:_FRAME_CHECKED_BYTES]
    return [checked + struct.pack("<I", zlib.crc32(body, zlib.crc32(checked))), body]


def segment_path(directory: Path, first_offset: int) -> Path:
    """Where the segment that begins at this offset lies."""
    return directory / f"{first_offset:020d}{SUFFIX}"


def segment_offsets(directory: Path) -> list[int]:
    """The first offsets of all segments in a folder, ascending."""
    names = (entry.name for entry in os.scandir(directory))
    return sorted(int(name.removesuffix(SUFFIX)) for name in names if name.endswith(SUFFIX))
