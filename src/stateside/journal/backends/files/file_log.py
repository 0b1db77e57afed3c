"""Reads of a journal on files, from any process, while others write."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pyarrow as pa

from stateside.core.errors import PositionInvalid, StatesideError
from stateside.core.positions import Position
from stateside.journal.backends.files import retention_base, segment
from stateside.journal.backends.files.segment import PARTITION, DurableEnd, Frame, Segment
from stateside.journal.columns import conformed
from stateside.journal.contract import Log
from stateside.journal.upcasters import Upcasters


class FileLog(Log):
    """A log in a folder. A folder without a writer so far is an empty log."""

    shown = staticmethod(conformed)  # converts a stored batch for readers

    def __init__(self, directory: Path, *, upcasters: Upcasters | None = None) -> None:
        self.directory = directory
        self.upcasters = upcasters or Upcasters()

    @property
    def where(self) -> str:
        return str(self.directory)

    def id(self) -> str | None:
        """A random UUID."""
        found = segment.journal_id(self.directory)
        return None if found is None else str(found)

    def begin(self) -> Position:
        """Reports the recorded decision of retention: a first segment missing without one is a loss, and reading from
        here reports the loss.
        """
        first = next(iter(segment.segment_offsets(self.directory)), 0)
        offset = min(first, retention_base.offset(self.directory)) if first else 0
        return self.in_stamps(Position.of({PARTITION: offset}))

    def durable_end(self) -> DurableEnd:
        """JournalCorrupt if there are events but no end mark."""
        return segment.durable_end(self.directory)

    def batches(self, start: int, stop: int, mark: DurableEnd | None = None) -> Iterator[tuple[int, pa.RecordBatch]]:
        end = self.check(start, stop)
        segments = self._segments(start, stop)
        journal_id = segment.journal_id(self.directory) if segments else None
        for first_offset in segments:
            if first_offset > start:
                break
            stop_byte = end.segment_bytes if first_offset == end.segment_offset else None
            try:
                opened = Segment(segment.segment_path(self.directory, first_offset), journal_id)
            except FileNotFoundError:
                raise self._missing(start) from None
            try:
                frames = opened.frames(start, stop_byte, mark)
                start = yield from _cut_frames(opened, frames, start, stop, self.shown)
            finally:
                opened.close()
        if start < stop:
            raise self._missing(start)

    def check(self, start: int, stop: int) -> DurableEnd:
        """The journal's end; PositionInvalid if the range is invalid or goes beyond the end."""
        end = self.durable_end()
        if not 0 <= start <= stop <= end.offset:
            raise PositionInvalid(
                f"Offsets {start} to {stop} do not lie in this journal, which ends at {end.offset}",
                where=str(self.directory),
                next_step="The reader's position belongs to another journal, or this one was replaced or cut. "
                "After a loss of power, let a writer open it first",
            )
        return end

    def _segments(self, start: int, stop: int) -> list[int]:
        """The first offsets of the segments that hold this range."""
        if start == stop:
            return []
        offsets = segment.segment_offsets(self.directory)
        begin = bisect_right(offsets, start) - 1
        if begin < 0:
            raise self._missing(start)
        return [offset for offset in offsets[begin:] if offset < stop]

    def _missing(self, offset: int) -> StatesideError:
        return retention_base.missing(self.directory, offset)


def _cut_frames(
    opened: Segment, frames: Iterator[Frame], start: int, stop: int, shown: Callable[[pa.RecordBatch], pa.RecordBatch]
) -> Generator[tuple[int, pa.RecordBatch], None, int]:
    """The frames' batches within the range; returns the offset reached."""
    for frame in frames:
        next_offset = min(stop, frame.next_offset)
        yield start, shown(opened.batch(frame)).slice(start - frame.first_offset, next_offset - start)
        start = next_offset
        if start == stop:
            break
    return start
