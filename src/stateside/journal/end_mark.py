"""The end mark: the file `end` beside a journal's segments, which says how far the journal is durable."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stateside.errors import JournalCorrupt

END_NAME: Final = "end"

_END = struct.Struct("<8sQQQI")
_MAGIC = b"STATEEND"
_READ_TRIES = 100


@dataclass(frozen=True, slots=True)
class DurableEnd:
    """How far a journal is durable: the next offset, and the byte in its last segment where the next frame goes.

    It stands in the file `end`, which is written in place after each `fdatasync` of a segment. What it promises:

    - Every event before it is durable, always.
    - Every acknowledged event lies before it, as long as the machine keeps its power. Processes may be killed.
    - After a loss of power it may come back as it was earlier, yet never as it was before the last segment got its
      first frame: it is synced when the journal is opened, when a segment begins, and when the journal is closed. A
      sync for each append would double what an append costs.

    So what is missing before the mark was acknowledged, but what is damaged behind it need not be unacknowledged.
    `recovery` says how the two are told apart. Until a writer has opened the journal, readers stop at the earlier mark.
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
        """The mark in this folder; None where there is none yet."""
        path = directory / END_NAME
        for _ in range(_READ_TRIES):  # the writer may be half-way through its 36 bytes
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
