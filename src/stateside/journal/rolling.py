"""Rolling: when a journal's newest segment is finished, and the next append begins another one.

A segment is finished when it is large enough, when its first event was appended long enough ago (so that retention by
age finds segments that are wholly old), or when its columns are not those that this Stateside writes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from stateside.journal.reader import Journal
from stateside.journal.segment import DurableEnd

SEGMENT_BYTES_MAX: Final = 64 * 1024 * 1024
SEGMENT_S_MAX: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class Limits:
    """How large and how old a segment grows."""

    bytes_max: int = SEGMENT_BYTES_MAX
    s_max: float = SEGMENT_S_MAX


class Rolling:
    """Tells of one journal when it is time. Asked at each append, it reads a segment's first event once."""

    def __init__(self, journal: Journal, limits: Limits) -> None:
        self._journal, self._limits = journal, limits
        self._segment, self._began_us = -1, 0

    def is_due(self, end: DurableEnd, now_us: int) -> bool:
        """Whether the segment that ends here is to get nothing more."""
        if end.offset == end.segment_offset:  # it has nothing yet
            return False
        if end.segment_bytes >= self._limits.bytes_max:
            return True
        if self._segment != end.segment_offset:
            self._segment, self._began_us = end.segment_offset, self._first_appended_us(end.segment_offset)
        return now_us - self._began_us >= self._limits.s_max * 1_000_000

    def _first_appended_us(self, offset: int) -> int:
        _, batch = next(iter(self._journal.batches(offset, offset + 1)))
        return int(batch.column("appended").cast(pa.int64())[0].as_py())
