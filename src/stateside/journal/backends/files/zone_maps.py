"""Zone maps: types, tags and time ranges of a finished segment, so that a filtered read can skip the segment.

In the journal's folder, `summaries/00000000000000001234.summary`, named after the segment (numbers little-endian):

    ┌──────────┬────────┬────────────┬──────────┬───────────┬────────┬──────────────┬──────────────┬───────────┐
    │ magic 8  │ u32    │ UUID 16    │ u64 its  │ u64 its   │ u64    │ 2 i64: first │ 2 i64: first │ types,    │
    │ STATESUM │ crc32  │ journal id │ offset   │ bytes     │ events │ and last     │ and last     │ tags: two │
    │          │        │            │          │           │        │ event time   │ append time  │ sets      │
    └──────────┴────────┴────────────┴──────────┴───────────┴────────┴──────────────┴──────────────┴───────────┘
                of all that follows

    set := u32 n, then n u32: the CRC-32 of each text, ascending; n = 2^32 - 1 and nothing else if there are too many

A text missing from its set is certainly not in the segment; a text in the set may be (two texts in four thousand
million have the same CRC-32). The file is derived from the segment and may be deleted at any time: a reader that reads
a whole segment with a predicate, and has write access, stores the file. A file that is damaged or does not match its
segment is ignored.
"""

from __future__ import annotations

import logging
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateside.core.storage import write_atomically

FOLDER: Final = "summaries"
TEXTS_MAX: Final = 65_536  # per set; 256 KiB

_HEAD: Final = struct.Struct("<8sI")
_FIELDS: Final = struct.Struct("<16sQQQqqqq")
_COUNT: Final = struct.Struct("<I")
_MAGIC: Final = b"STATESUM"
_TOO_MANY: Final = 2**32 - 1

log = logging.getLogger(__name__)

Marks = frozenset[int] | None  # the CRC-32 of each text; None if there are too many


@dataclass(frozen=True, slots=True)
class Summary:
    """The zone map of a segment. Times in microseconds, both ends included."""

    events: int
    first_us: int
    last_us: int
    first_appended_us: int
    last_appended_us: int
    types: Marks
    tags: Marks


class Collector:
    """Builds the zone map of a segment from its events."""

    def __init__(self) -> None:
        self._events = 0
        self._times: list[tuple[int, int]] = []
        self._appended: list[tuple[int, int]] = []
        self._types, self._tags = _Set(), _Set()

    def take(self, batch: pa.RecordBatch) -> None:
        """Add a batch of at least one event."""
        self._events += batch.num_rows
        self._times.append(_span(batch.column("time")))
        self._appended.append(_span(batch.column("appended")))
        self._types.add(batch.column("type"))
        self._tags.add(pc.list_flatten(batch.column("tags")))

    def summary(self) -> Summary:
        spans = [(min(first for first, _ in s), max(last for _, last in s)) for s in (self._times, self._appended)]
        (first, last), (first_appended, last_appended) = spans
        return Summary(self._events, first, last, first_appended, last_appended, self._types.marks, self._tags.marks)


class _Set:
    def __init__(self) -> None:
        self.marks: Marks = frozenset()

    def add(self, texts: pa.Array) -> None:
        if self.marks is not None and len(texts):
            found = self.marks | marks_of(texts.unique().to_pylist())
            self.marks = found if len(found) <= TEXTS_MAX else None


def marks_of(texts: Iterable[str]) -> frozenset[int]:
    """The marks of these texts in a set."""
    return frozenset(zlib.crc32(text.encode()) for text in texts)


def load(segment: Path, journal_id: UUID, events: int) -> Summary | None:
    """The zone map of a finished segment with this number of events; None if none matches."""
    try:
        content, segment_bytes = path_of(segment).read_bytes(), segment.stat().st_size
    except OSError:
        return None
    if len(content) < _HEAD.size + _FIELDS.size:
        return None
    magic, crc = _HEAD.unpack_from(content)
    if magic != _MAGIC or crc != zlib.crc32(content[_HEAD.size :]):
        return None
    *whose, first, last, first_appended, last_appended = _FIELDS.unpack_from(content, _HEAD.size)
    if whose != [journal_id.bytes, int(segment.stem), segment_bytes, events]:
        return None
    types, behind = _unpacked(content, _HEAD.size + _FIELDS.size)
    tags, _ = _unpacked(content, behind)
    return Summary(events, first, last, first_appended, last_appended, types, tags)


def keep(segment: Path, journal_id: UUID, summary: Summary) -> None:
    """Store the zone map for later readers, if this process has write access."""
    times = summary.first_us, summary.last_us, summary.first_appended_us, summary.last_appended_us
    try:
        whose = journal_id.bytes, int(segment.stem), segment.stat().st_size, summary.events
        fields = _FIELDS.pack(*whose, *times)
        content = fields + _packed(summary.types) + _packed(summary.tags)
        write_atomically(path_of(segment), _HEAD.pack(_MAGIC, zlib.crc32(content)) + content, durable=False)
    except OSError as error:
        log.info("no summary of %s is kept: %s", segment, error)


def forget(segment: Path) -> None:
    """Delete the zone map of a deleted segment."""
    path_of(segment).unlink(missing_ok=True)


def path_of(segment: Path) -> Path:
    return segment.parent / FOLDER / f"{segment.stem}.summary"


def _span(times: pa.Array) -> tuple[int, int]:
    found = pc.min_max(times.cast(pa.int64()))
    return found["min"].as_py(), found["max"].as_py()


def _packed(marks: Marks) -> bytes:
    if marks is None:
        return _COUNT.pack(_TOO_MANY)
    return _COUNT.pack(len(marks)) + np.array(sorted(marks), "<u4").tobytes()


def _unpacked(content: bytes, at: int) -> tuple[Marks, int]:
    """A set, and where the next thing begins."""
    (count,) = _COUNT.unpack_from(content, at)
    at += _COUNT.size
    if count == _TOO_MANY:
        return None, at
    return frozenset(np.frombuffer(content, "<u4", count, at).tolist()), at + 4 * count
