"""A journal on files, with its most recently read segments open."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from uuid import UUID

import numpy as np
import pyarrow as pa

from stateside.core.clock import Clock
from stateside.core.errors import PositionInvalid, StatesideError
from stateside.core.positions import Position
from stateside.journal.backends.files import retention_base, segment
from stateside.journal.backends.files.file_log import FileLog
from stateside.journal.backends.files.file_writer import JournalWriter
from stateside.journal.backends.files.frames import Frames, Offsets, Shown
from stateside.journal.backends.files.segment import PARTITION, DurableEnd
from stateside.journal.columns import conformed
from stateside.journal.contract import Journal
from stateside.journal.upcasters import Upcasters

SEGMENTS_OPEN_MAX = 16


class FileJournal(Journal):
    """A journal of one partition.

    Keeps the most recently read segments open, with their frame indexes. The next read notices a replaced folder, or a
    truncated or deleted segment.
    """

    def __init__(
        self,
        directory: Path,
        shown: Shown = conformed,
        partition: str = PARTITION,
        *,
        upcasters: Upcasters | None = None,
    ) -> None:
        """`shown` converts a stored batch for readers; `partition` is the log's name in positions."""
        self._log, self._shown, self._partition = FileLog(directory, upcasters=upcasters), shown, partition
        self.directory, self.upcasters = directory, upcasters or Upcasters()
        self._open: OrderedDict[int, Frames] = OrderedDict()
        self._opening = threading.Lock()

    @property
    def where(self) -> str:
        return str(self.directory)

    def id(self) -> str | None:
        """Called with every page of an answer, so the newest segment stays open."""
        offsets = segment.segment_offsets(self.directory)
        if not offsets:
            return None
        with self._opening:
            return str(self._opened(offsets[-1]).journal_id)

    def log(self, partition: str | None = None) -> FileLog:
        return self._log

    def writer(self, *, clock: Clock | None = None, known: str | None = None) -> JournalWriter:
        return JournalWriter(self.directory, clock=clock, known=None if known is None else UUID(known))

    def end(self) -> Position:
        return Position.of({self._partition: self._log.durable_end().offset})

    def begin(self) -> Position:
        return Position.of({self._partition: self._log.begin()[PARTITION]})

    def partitions(self) -> Sequence[str]:
        return (self._partition,)

    def batches(self, partition: str, start: int, stop: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The events of many small appends come as one batch."""
        for frames, low, high in self._parts(start, stop):
            yield from frames.batches(low, high)

    def gather(self, partition: str, offsets: Offsets) -> Iterator[tuple[Offsets, pa.RecordBatch]]:
        """Reads only the frames with these events."""
        if not len(offsets):
            return
        for frames, low, high in self._parts(int(offsets[0]), int(offsets[-1]) + 1):
            wanted = offsets[slice(*np.searchsorted(offsets, [low, high]))]
            if len(wanted):
                yield from frames.gather(wanted)

    def _parts(self, start: int, stop: int) -> Iterator[tuple[Frames, int, int]]:
        """The segments that hold this range, each with its part of the range."""
        end = self._log.durable_end()
        if not 0 <= start <= stop <= end.offset:
            raise PositionInvalid(
                f"Offsets {start} to {stop} do not lie in this journal, which ends at {end.offset}",
                where=str(self.directory),
                next_step="The reader's position belongs to another journal, or this one was replaced or cut",
            )
        offsets = segment.segment_offsets(self.directory)
        for number in range(max(0, bisect_right(offsets, start) - 1), len(offsets)):
            if start >= stop or offsets[number] > start:
                break
            frames, reached = self._frames(offsets[number], offsets[-1], end)
            high = min(stop, reached)
            if start < high:
                yield frames, start, high
                start = high
        if start < stop:
            raise self._missing(start)

    def _frames(self, first_offset: int, newest: int, end: DurableEnd) -> tuple[Frames, int]:
        """A segment with all its durable frames, and the offset after them; JournalCorrupt if of another journal."""
        with self._opening:
            journal_id = None if first_offset == newest else self._opened(newest).journal_id
            frames = self._opened(first_offset)
            if journal_id not in (None, frames.journal_id):
                raise segment.corrupt(
                    frames.path,
                    0,
                    f"this segment is of the journal {frames.journal_id}, the newest one of {journal_id}",
                )
        return frames, frames.extend(end.segment_bytes if first_offset == end.segment_offset else None)

    def _opened(self, first_offset: int) -> Frames:
        found = self._open.pop(first_offset, None)
        if found is None or not found.is_in_place():
            try:
                found = Frames(segment.segment_path(self.directory, first_offset), self._shown)
            except FileNotFoundError:
                raise self._missing(first_offset) from None
        self._open[first_offset] = found
        if len(self._open) > SEGMENTS_OPEN_MAX:
            self._open.popitem(last=False)
        return found

    def _missing(self, offset: int) -> StatesideError:
        return retention_base.missing(self.directory, offset)
