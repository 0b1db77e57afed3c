"""Reads of a journal on files, from any process, while others write."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from stateside.core.errors import PositionInvalid, StatesideError
from stateside.core.positions import Position
from stateside.journal.backends.files import retention_base, segment
from stateside.journal.backends.files.segment import PARTITION, DurableEnd, Frame, Segment
from stateside.journal.columns import conformed, decode
from stateside.journal.event import Event
from stateside.journal.upcasters import Upcasters


class FileLog:
    """A journal's folder, read only. Shows exactly the durable events, whose append was, or will be, acknowledged.

    A journal without a writer so far is empty. With `upcasters`, `events` converts each event to its type's newest
    schema.
    """

    shown = staticmethod(conformed)  # converts a stored batch for readers

    def __init__(self, directory: Path, *, upcasters: Upcasters | None = None) -> None:
        self.directory = directory
        self._upcasters = upcasters or Upcasters()

    def id(self) -> str | None:
        """The journal's id: a random UUID, constant for its life and unique to it.

        None before the first writer. Read from disk at each call, as a folder may be replaced.
        """
        found = segment.journal_id(self.directory)
        return None if found is None else str(found)

    def end(self) -> Position:
        """The position after the last durable event."""
        return Position.of({PARTITION: self.durable_end().offset})

    def begin(self) -> Position:
        """The position of the first event not dropped: the start, until retention drops some.

        Reports the recorded decision of retention: a first segment missing without one is a loss, and reading from here
        reports the loss.
        """
        first = next(iter(segment.segment_offsets(self.directory)), 0)
        return Position.of({PARTITION: min(first, retention_base.offset(self.directory)) if first else 0})

    def durable_end(self) -> DurableEnd:
        """The end with its place in the files: later reads from there find their frame without a search.

        JournalCorrupt if there are events but no end mark.
        """
        return segment.durable_end(self.directory)

    def in_stamps(self, position: Position) -> Position:
        """A position in this journal, such as a receipt, in the form of the stamps of a view on the journal."""
        return position

    def offset_at(self, position: Position) -> int:
        """The offset of a position from a stamp; PositionInvalid if the position is not in this journal."""
        offset = position.one()
        if self.in_stamps(Position.of({PARTITION: offset})) != position:
            raise PositionInvalid(
                f"{str(position)[:80]!r} is no position in this folder's journal, and its events cannot be shown",
                where=str(self.directory),
                next_step="The view has read another journal, or a topic: ask where that is",
            )
        return offset

    def events(self, start: Position | None = None, stop: Position | None = None) -> Iterator[Event]:
        """The events from one position up to another (the end by default), in order."""
        first = 0 if start is None else start[PARTITION]
        last = (stop or self.end())[PARTITION]
        for _, batch in self.batches(first, last):
            yield from self._upcasters.all(decode(batch))

    def unstored(self, events: Sequence[Event], since: Position) -> list[Event]:
        """The events whose ids are not in the journal from a position on.

        For a producer that got no receipt: `since` is its last receipt, and it appends the returned events again. A
        writer must have opened the journal meanwhile, to settle the fate of the append.
        """
        wanted = {event.id for event in events}
        for _, batch in self.batches(since[PARTITION], self.end()[PARTITION]):
            wanted.difference_update(batch.column("id").to_pylist())
        return [event for event in events if event.id in wanted]

    def batches(self, start: int, stop: int, mark: DurableEnd | None = None) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The events with offsets start <= offset < stop, each batch with the offset of its first event.

        Batches are in the journal's schema (`columns`), whatever version of Stateside wrote them.

        `mark` is an earlier `durable_end` at or before `start`, if the reader has one: it saves the search for the
        frame.
        """
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
