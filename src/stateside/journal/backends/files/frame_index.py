"""Frame index: where the frames of a finished segment begin, cached in a file for random access to large journals.

In the journal's folder, `frames/00000000000000001234.frames`, named after the segment (numbers little-endian):

    ┌──────────┬────────┬────────────┬───────────────┬────────┬────────────────────┬───────────────────┐
    │ magic 8  │ u32    │ UUID 16    │ u64           │ u32    │ i64 each: first    │ i64 each: byte at │
    │ STATEFRA │ crc32  │ journal id │ segment bytes │ frames │ offset, and next   │ which they begin  │
    └──────────┴────────┴────────────┴───────────────┴────────┴────────────────────┴───────────────────┘
                of all that follows

The file is derived from the segment and may be deleted at any time. A reader with write access stores the file; a
reader without computes the index each time. A file that is damaged or does not match its segment is ignored; a wrong
place would fail the frame's own checksum.
"""

from __future__ import annotations

import logging
import struct
import zlib
from array import array
from pathlib import Path
from uuid import UUID

from stateside.core.storage import write_atomically

FOLDER = "frames"
FRAMES_MIN = 64  # a segment with fewer frames is scanned as fast

_HEAD = struct.Struct("<8sI")
_FIELDS = struct.Struct("<16sQI")
_MAGIC = b"STATEFRA"

log = logging.getLogger(__name__)

Places = tuple["array[int]", "array[int]"]


def load(segment: Path, journal_id: UUID, segment_bytes: int) -> Places | None:
    """First offsets and first bytes of a finished segment's frames, plus the next of each; None if not cached."""
    try:
        content = _path(segment).read_bytes()
    except OSError:
        return None
    if len(content) < _HEAD.size + _FIELDS.size:
        return None
    magic, crc = _HEAD.unpack_from(content)
    found_id, found_bytes, frames = _FIELDS.unpack_from(content, _HEAD.size)
    if magic != _MAGIC or crc != zlib.crc32(content[_HEAD.size :]):
        return None
    if (found_id, found_bytes) != (journal_id.bytes, segment_bytes):
        return None
    numbers = array("q", content[_HEAD.size + _FIELDS.size :])
    return numbers[: frames + 1], numbers[frames + 1 :]


def keep(segment: Path, journal_id: UUID, segment_bytes: int, firsts: array[int], begins: array[int]) -> None:
    """Cache the index for the next reader, if this process has write access."""
    if len(firsts) <= FRAMES_MIN:
        return
    content = _FIELDS.pack(journal_id.bytes, segment_bytes, len(firsts) - 1) + firsts.tobytes() + begins.tobytes()
    try:
        write_atomically(_path(segment), _HEAD.pack(_MAGIC, zlib.crc32(content)) + content, durable=False)
    except OSError as error:
        log.info("where the frames of %s begin is not kept: %s", segment, error)


def forget(segment: Path) -> None:
    """Delete the index of a deleted segment."""
    _path(segment).unlink(missing_ok=True)


def _path(segment: Path) -> Path:
    return segment.parent / FOLDER / f"{segment.stem}.frames"
