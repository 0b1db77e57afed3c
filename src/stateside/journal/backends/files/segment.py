"""The journal's file format: segments of checksummed frames, each a group of events as an Arrow record batch.

A segment is named after the offset of its first event, `00000000000000001234.segment`, and has this layout (all numbers
little-endian):

    segment := header frame*

    header  := ┌──────────┬─────────┬─────────────┬────────────┬────────┬──────────────────────────┐
               │ magic 8  │ u32     │ u32         │ UUID 16    │ u32    │ Arrow IPC schema message │
               │ STATEJRN │ version │ schema size │ journal id │ crc32  │ padded to 8 bytes        │
               └──────────┴─────────┴─────────────┴────────────┴────────┴──────────────────────────┘
                                                                of the fields before it and the message

    frame   := ┌──────────┬──────────┬───────────┬──────────────┬────────┬──────────────┐
               │ magic 4  │ u32      │ u32       │ u64          │ u32    │ Arrow IPC    │
               │ FRAM     │ rows     │ body size │ first offset │ crc32  │ record batch │
               └──────────┴──────────┴───────────┴──────────────┴────────┴──────────────┘
                                                of the journal id, the fields before it and the body

One append is one frame, so the events of an append are stored all or none. The header has the schema, so that a later
version of Stateside can add columns from one segment to the next (`columns`): a writer with another schema begins a new
segment. Format version 1 equals version 2, but its writers and readers relied on its seven columns. A header is written
to a temporary file and renamed: no segment has half a header.

The journal id is random, drawn at the journal's creation, and the same in all its segments: it distinguishes two
journals even if their offsets agree. The frames' checksums begin with the id, so no frame of another journal, and no
bytes inside an event made to look like a frame, pass for a frame of this journal.

The file `end` beside the segments is the end mark (see `DurableEnd`): how far the journal is durable. Readers never
look beyond the mark.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import UUID

import pyarrow as pa

from stateside.core.errors import EventRefused, JournalCorrupt
from stateside.core.storage import write_atomically

END_NAME: Final = "end"
_END = struct.Struct("<8sQQQI")
_MAGIC = b"STATEEND"
_READ_TRIES = 100


@dataclass(frozen=True, slots=True)
class DurableEnd:
    """How far a journal is durable: the next offset, and the byte in its last segment where the next frame goes.

    Stored in the file `end`, which is written in place after each `fdatasync` of a segment. Guarantees:

    - Every event before the mark is durable, always.
    - Every acknowledged event is before the mark, as long as the machine keeps its power. Processes may be killed.
    - After a power failure an earlier mark may come back, but never one from before the first frame of the last
      segment: the mark is synced when the journal is opened, when a segment begins, and when the journal is closed. A
      sync for each append would double the cost of an append.

    So events missing before the mark were acknowledged, but damage after the mark may also hit acknowledged events;
    `writer` describes how recovery distinguishes the two. Until a writer has opened the journal, readers stop at the
    earlier mark.
    """

    offset: int
    segment_offset: int
    segment_bytes: int

    def pack(self) -> bytes:
        """The file's content: magic, the three numbers, crc32 of all before."""
        content = _END.pack(_MAGIC, self.offset, self.segment_offset, self.segment_bytes, 0)[:-4]
        return content + struct.pack("<I", zlib.crc32(content))

    @classmethod
    def read(cls, directory: Path) -> DurableEnd | None:
        """The mark in this folder; None if there is none yet."""
        path = directory / END_NAME
        for _ in range(_READ_TRIES):  # a writer may be in the middle of its 36 bytes
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


PARTITION = "0"  # the only partition of a journal on files
VERSION = 2
VERSIONS_READ = (1, VERSION)
SUFFIX = ".segment"
FRAME_BYTES_MAX = 256 * 1024 * 1024
_HEADER = struct.Struct("<8sII16sI")
_HEADER_MAGIC = b"STATEJRN"
_HEADER_CHECKED_BYTES = _HEADER.size - 4  # all but the checksum itself
_FRAME = struct.Struct("<4sIIQI")
_FRAME_MAGIC = b"FRAM"
_FRAME_CHECKED_BYTES = _FRAME.size - 4


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame as found in a segment: its bytes and its offsets."""

    begin_byte: int
    end_byte: int
    first_offset: int
    rows: int
    crc: int

    @property
    def next_offset(self) -> int:
        return self.first_offset + self.rows


class Segment:
    """A segment opened for reading. Frames are memory-mapped: bytes are copied only when needed.

    With a journal id, a segment of another journal is refused.
    """

    def __init__(self, path: Path, journal_id: UUID | None = None) -> None:
        self.path = path
        self.first_offset = int(path.stem)
        self._map = pa.memory_map(str(path))
        self.size = self._map.size()
        self.journal_id, self.schema, self.frames_begin = self._read_header()
        if journal_id not in (None, self.journal_id):
            raise self._corrupt(0, f"this segment is of the journal {self.journal_id}, the newest one of {journal_id}")

    def frames(self, start: int = 0, stop_byte: int | None = None, mark: DurableEnd | None = None) -> Iterator[Frame]:
        """The frames from the one with offset `start` up to a byte (default: the segment's end).

        Verifies each frame; JournalCorrupt at the first bad one. Frames before `start` are skipped by their headers; a
        mark in this segment, at or before `start`, saves even the skipping.
        """
        for frame in self.heads(start, stop_byte, mark):
            if frame.next_offset > start:
                self._check(frame)
                yield frame

    def heads(self, start: int = 0, stop_byte: int | None = None, mark: DurableEnd | None = None) -> Iterator[Frame]:
        """As `frames`, by headers alone, and including frames before `start`: from the segment's begin, or the mark."""
        stop_byte = self.size if stop_byte is None else stop_byte
        at_byte, expected = self.frames_begin, self.first_offset
        if mark and mark.segment_offset == self.first_offset < mark.offset <= start:
            at_byte, expected = mark.segment_bytes, mark.offset
        while at_byte < stop_byte:
            frame = self._frame(at_byte, stop_byte)
            if frame.first_offset != expected:
                raise self._corrupt(at_byte, f"a frame begins at offset {frame.first_offset}, {expected} was expected")
            yield frame
            at_byte, expected = frame.end_byte, frame.next_offset

    def batch(self, frame: Frame) -> pa.RecordBatch:
        return pa.ipc.read_record_batch(self._body(frame), self.schema)

    def bytes_from(self, at_byte: int) -> bytes:
        return bytes(self._map.read_at(self.size - at_byte, at_byte))

    def whole_frame_from(self, at_byte: int) -> Frame | None:
        """The first whole frame at or after this byte; None if there is none.

        Whole means: the checksum matches and the offset is possible in this segment. After damage no length can be
        trusted, so every occurrence of the frame magic is tried.
        """
        content = self.bytes_from(at_byte)
        found = content.find(_FRAME_MAGIC)
        while found >= 0:
            frame = self._whole_frame(at_byte + found)
            if frame:
                return frame
            found = content.find(_FRAME_MAGIC, found + 1)
        return None

    def close(self) -> None:
        """Close the file; batches already read stay valid."""
        self._map.close()

    def _read_header(self) -> tuple[UUID, pa.Schema, int]:
        if self.size < _HEADER.size:
            raise self._corrupt(0, "the header is cut short")
        head = self._map.read_at(_HEADER.size, 0)
        magic, version, size, journal_id, crc = _HEADER.unpack(head)
        if magic != _HEADER_MAGIC:
            raise self._corrupt(0, "this is no journal segment")
        if version not in VERSIONS_READ:
            raise self._corrupt(0, f"format version {version} is not known, this program reads {VERSIONS_READ}")
        message = self._map.read_at(size, _HEADER.size)
        if zlib.crc32(message, zlib.crc32(head[:_HEADER_CHECKED_BYTES])) != crc:
            raise self._corrupt(0, "the header's checksum does not match")
        return UUID(bytes=journal_id), pa.ipc.read_schema(pa.py_buffer(message)), _HEADER.size + size

    def _frame(self, at_byte: int, stop_byte: int) -> Frame:
        stop_byte = min(stop_byte, self.size)  # the file may have lost bytes before the end mark
        if at_byte + _FRAME.size > stop_byte:
            raise self._corrupt(at_byte, "a frame's header is cut short")
        magic, rows, size, first_offset, crc = _FRAME.unpack(self._map.read_at(_FRAME.size, at_byte))
        if magic != _FRAME_MAGIC or size > FRAME_BYTES_MAX:
            raise self._corrupt(at_byte, "there is no frame where one must begin")
        end_byte = at_byte + _FRAME.size + size
        if end_byte > stop_byte:
            raise self._corrupt(at_byte, f"a frame of {size} bytes is cut short")
        return Frame(at_byte, end_byte, first_offset, rows, crc)

    def _whole_frame(self, at_byte: int) -> Frame | None:
        """The frame that begins here, if any. The offset is checked first, as the cheapest test."""
        try:
            frame = self._frame(at_byte, self.size)
            if not self.first_offset <= frame.first_offset <= self.first_offset + self.size:  # an event takes a byte
                return None
            self._check(frame)
        except JournalCorrupt:
            return None
        return frame

    def _body(self, frame: Frame) -> pa.Buffer:
        self._map.seek(frame.begin_byte + _FRAME.size)
        return self._map.read_buffer(frame.end_byte - frame.begin_byte - _FRAME.size)

    def _check(self, frame: Frame) -> None:
        head = self._map.read_at(_FRAME_CHECKED_BYTES, frame.begin_byte)
        if _frame_crc(self.journal_id, head, self._body(frame)) != frame.crc:
            raise self._corrupt(frame.begin_byte, "a frame's checksum does not match")

    def _corrupt(self, at_byte: int, reason: str) -> JournalCorrupt:
        return corrupt(self.path, at_byte, reason)


def create(directory: Path, first_offset: int, schema: pa.Schema, journal_id: UUID) -> Path:
    """Create a segment with only its header, durably."""
    message = schema.serialize().to_pybytes()
    message += b"\0" * (-len(message) % 8)
    path = segment_path(directory, first_offset)
    fields = _HEADER.pack(_HEADER_MAGIC, VERSION, len(message), journal_id.bytes, 0)[:_HEADER_CHECKED_BYTES]
    write_atomically(path, fields + struct.pack("<I", zlib.crc32(message, zlib.crc32(fields))) + message)
    return path


def pack_frame(journal_id: UUID, first_offset: int, batch: pa.RecordBatch) -> list[bytes | memoryview]:
    """The bytes of one frame, for a gathered write; EventRefused if the frame is too large for readers."""
    body = memoryview(batch.serialize())
    if len(body) > FRAME_BYTES_MAX:
        raise EventRefused(
            f"The append of {batch.num_rows} events has {len(body)} bytes, {FRAME_BYTES_MAX} are allowed",
            next_step="Nothing of it was stored; append the events in smaller batches",
        )
    checked = _FRAME.pack(_FRAME_MAGIC, batch.num_rows, len(body), first_offset, 0)[:_FRAME_CHECKED_BYTES]
    return [checked + struct.pack("<I", _frame_crc(journal_id, checked, body)), body]


def journal_id(directory: Path) -> UUID | None:
    """The id of the journal in this folder, from its newest segment; None before the first writer."""
    offsets = segment_offsets(directory)
    if not offsets:
        return None
    newest = Segment(segment_path(directory, offsets[-1]))
    newest.close()
    return newest.journal_id


def durable_end(directory: Path) -> DurableEnd:
    """How far the journal in this folder is durable; JournalCorrupt if there are events but no end mark.

    A writer creates a journal in three steps: the first segment with only its header; the mark; frames. So a crash
    after the first step leaves an empty journal, while a journal with frames and no mark has lost its mark. The mark is
    read again after frames were seen, as a writer may have come between.
    """
    marked = DurableEnd.read(directory)
    if marked is None and _has_frames(directory):
        marked = DurableEnd.read(directory)
        if marked is None:
            raise JournalCorrupt(
                "The journal has events, but its end mark is missing: nobody knows which of them were acknowledged",
                where=str(directory / END_NAME),
                next_step="Restore this file from a copy. Or let a writer open the journal (`stateside append`), which"
                " takes the last whole frame for the end",
            )
    return marked or DurableEnd(0, 0, 0)


def _has_frames(directory: Path) -> bool:
    """Whether the folder has more than the first segment's header."""
    offsets = segment_offsets(directory)
    if offsets != [0]:
        return bool(offsets)
    first = Segment(segment_path(directory, 0))
    first.close()
    return bool(first.size > first.frames_begin)


def schema(path: Path) -> pa.Schema:
    opened = Segment(path)
    opened.close()
    return opened.schema


def segment_path(directory: Path, first_offset: int) -> Path:
    return directory / f"{first_offset:020d}{SUFFIX}"


def segment_offsets(directory: Path) -> list[int]:
    """The first offsets of all segments in a folder, ascending; empty without a folder."""
    try:
        with os.scandir(directory) as entries:
            names = [entry.name for entry in entries]
    except FileNotFoundError:
        return []
    return sorted(int(name.removesuffix(SUFFIX)) for name in names if name.endswith(SUFFIX))


def _frame_crc(journal_id: UUID, fields: bytes, body: pa.Buffer | memoryview) -> int:
    return zlib.crc32(body, zlib.crc32(fields, zlib.crc32(journal_id.bytes)))


FRAME_HEAD_BYTES = _FRAME.size
_FRAME_CRC = struct.Struct("<I")


def frame_head(content: bytes | memoryview, at: int) -> tuple[int, int, int, int] | None:
    """Rows, body size, first offset and checksum of the frame whose header is there; None if there is no frame."""
    magic, rows, size, first_offset, crc = _FRAME.unpack_from(content, at)
    return None if magic != _FRAME_MAGIC or size > FRAME_BYTES_MAX else (rows, size, first_offset, crc)


def frame_is_whole(seed: int, content: memoryview, begin: int, end: int) -> bool:
    """Whether header and body match their checksum. `seed` is the crc32 of the journal's id."""
    crc = zlib.crc32(
        content[begin + _FRAME.size : end], zlib.crc32(content[begin : begin + _FRAME_CHECKED_BYTES], seed)
    )
    return crc == int(_FRAME_CRC.unpack_from(content, begin + _FRAME_CHECKED_BYTES)[0])


def corrupt(path: Path, at_byte: int, reason: str) -> JournalCorrupt:
    """The error for a damaged segment."""
    return JournalCorrupt(
        f"The journal is damaged: {reason}",
        where=f"{path}, byte {at_byte}",
        next_step="Nothing was skipped or changed. Restore this file from a copy, then start again",
    )


def write_again(handle: int, marked: DurableEnd, end: DurableEnd) -> None:
    """Rewrite the bytes between mark and end unchanged, so that the following sync covers them.

    A crash left them written but not synced, or their sync failed: the operating system then considers the pages clean
    and would not write them again.
    """
    at_byte = marked.segment_bytes if marked.segment_offset == end.segment_offset else 0
    if at_byte < end.segment_bytes:
        write_all(handle, [os.pread(handle, end.segment_bytes - at_byte, at_byte)], at_byte)


def write_all(handle: int, parts: list[bytes | memoryview], at_byte: int) -> None:
    """Write these parts consecutively, from this byte on."""
    for part in parts:
        view = memoryview(part)
        while view:
            written = os.pwrite(handle, view, at_byte)
            view, at_byte = view[written:], at_byte + written
