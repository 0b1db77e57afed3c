"""Rolling: when a journal's newest segment is finished, and the next append begins another one.

A segment is finished when it is large enough, when its first event was appended long enough ago (so that retention by
age finds segments that are wholly old), or when its columns are not those that this Stateside writes.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa

from stateside.errors import JournalCorrupt
from stateside.journal.segment import DurableEnd, Segment, segment_path

SEGMENT_BYTES_MAX: Final = 64 * 1024 * 1024
SEGMENT_S_MAX: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class Limits:
    """How large and how old a segment grows."""

    bytes_max: int = SEGMENT_BYTES_MAX
    s_max: float = SEGMENT_S_MAX


class Rolling:
    """Tells a writer when it is time. It reads a segment's first event when that is opened, never in an append."""

    def __init__(self, directory: Path, limits: Limits) -> None:
        self._directory, self._limits = directory, limits
        self._began_us = 0

    def opened(self, end: DurableEnd, now_us: int) -> None:
        """From now on the writer appends to the segment that ends here.

        One whose first event cannot be read is as old as this: to tell of damage is the readers' affair.
        """
        self._began_us = now_us
        if end.offset > end.segment_offset:
            with suppress(JournalCorrupt):
                self._began_us = self._first_appended_us(end)

    def is_due(self, end: DurableEnd, now_us: int) -> bool:
        """Whether the segment that ends here is to get nothing more."""
        if end.offset == end.segment_offset:  # it has nothing yet
            return False
        return end.segment_bytes >= self._limits.bytes_max or now_us - self._began_us >= self._limits.s_max * 1_000_000

    def _first_appended_us(self, end: DurableEnd) -> int:
        path = segment_path(self._directory, end.segment_offset)
        opened = Segment(path)
        try:
            frame = next(opened.frames(stop_byte=end.segment_bytes))
            return int(opened.batch(frame).column("appended").cast(pa.int64())[0].as_py())
        finally:
            opened.close()
