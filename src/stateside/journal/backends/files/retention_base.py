"""The base of a journal: the last sequences of entities, from events that retention dropped.

The file `base` beside the segments (numbers little-endian); absent until the first drop:

    ┌──────────┬────────────┬────────┬────────┬───────────────────────────────────────────────────────────┐
    │ magic 8  │ UUID 16    │ u64    │ u32    │ Arrow IPC stream: entity string, sequence int64           │
    │ STATEBSE │ journal id │ offset │ crc32  │ every entity's last sequence among the events before it   │
    └──────────┴────────────┴────────┴────────┴───────────────────────────────────────────────────────────┘
                                      of the fields before it and the stream

Events before `offset` may be gone, events from `offset` on exist. Retention writes the base before it deletes the first
segment, so that an entity's next event gets the next sequence even if every index is rebuilt.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import pyarrow as pa

from stateside.core.errors import EventsGone, JournalCorrupt, StatesideError
from stateside.core.storage import write_atomically
from stateside.journal.backends.files import segment

NAME = "base"
_HEAD = struct.Struct("<8s16sQI")
_MAGIC = b"STATEBSE"
_CHECKED_BYTES = _HEAD.size - 4
_SCHEMA = pa.schema([pa.field("entity", pa.string()), pa.field("sequence", pa.int64())])


@dataclass(frozen=True, slots=True)
class Base:
    """Events before `offset` may be gone; `lasts` are the entities' last sequences there."""

    offset: int
    lasts: Mapping[str, int]

    def write(self, directory: Path, journal_id: UUID) -> None:
        """Write the file beside the segments, durably and atomically."""
        sink = pa.BufferOutputStream()
        columns = [pa.array(list(self.lasts), pa.string()), pa.array(list(self.lasts.values()), pa.int64())]
        with pa.ipc.new_stream(sink, _SCHEMA) as writer:
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=_SCHEMA))
        body = sink.getvalue().to_pybytes()
        head = _HEAD.pack(_MAGIC, journal_id.bytes, self.offset, 0)[:_CHECKED_BYTES]
        write_atomically(directory / NAME, head + struct.pack("<I", zlib.crc32(body, zlib.crc32(head))) + body)


def read(directory: Path) -> Base:
    """The folder's base, empty if nothing was dropped; JournalCorrupt if damaged, or of another journal.

    Memory: every entity in the base.
    """
    try:
        content = (directory / NAME).read_bytes()
    except FileNotFoundError:
        return Base(0, {})
    offset = _offset(directory, content)
    if zlib.crc32(content[_HEAD.size :], zlib.crc32(content[:_CHECKED_BYTES])) != _HEAD.unpack_from(content)[3]:
        raise _damaged(directory, "its checksum does not match")
    table = pa.ipc.open_stream(pa.py_buffer(content[_HEAD.size :])).read_all()
    return Base(offset, dict(zip(*(table.column(name).to_pylist() for name in _SCHEMA.names), strict=True)))


def offset(directory: Path) -> int:
    """The offset before which events may be gone; 0 if nothing was dropped. Reads some 40 bytes."""
    try:
        with (directory / NAME).open("rb") as file:
            return _offset(directory, file.read(_HEAD.size))
    except FileNotFoundError:
        return 0


def missing(directory: Path, at: int) -> StatesideError:
    """The error for a durable event that is not there: EventsGone if retention dropped it, else JournalCorrupt."""
    begin = next(iter(segment.segment_offsets(directory)), 0)
    if at < offset(directory):
        return EventsGone(
            f"The events at offsets {at} to {begin - 1} are gone: the journal begins at {begin} now",
            where=str(directory),
            next_step=f"Bring their segments back from a copy, or begin at {segment.PARTITION}:{begin} without them; "
            "`stateside journal archive` keeps what it drops as Parquet",
        )
    return JournalCorrupt(
        f"The journal's segments have no event at offset {at}, which was durable",
        where=str(directory),
        next_step="Restore the missing or shortened segment from a copy; nothing was skipped",
    )


def _offset(directory: Path, content: bytes) -> int:
    if len(content) < _HEAD.size or content[:8] != _MAGIC:
        raise _damaged(directory, "it is none")
    _, journal_id, found, _ = _HEAD.unpack_from(content)
    if UUID(bytes=journal_id) != segment.journal_id(directory):
        raise _damaged(directory, f"it is of the journal {UUID(bytes=journal_id)}")
    return int(found)


def _damaged(directory: Path, reason: str) -> JournalCorrupt:
    return JournalCorrupt(
        f"The journal's base cannot be used: {reason}",
        where=str(directory / NAME),
        next_step="Restore this file from a copy: without it entities would get their sequences a second time",
    )
