"""Streams: the interface that queries and views read. Journals on files, merged logs and Kafka topics are streams.

A stream has partitions, each a sequence of events with offsets from 0 on. An event never changes its offset, and all
events of an entity are in one partition, in the order of their sequence. Every offset has an event, unless the stream
is `Sparse`: then some offsets never have one.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import pyarrow as pa

from stateside.core.errors import PositionInvalid, StatesideError
from stateside.core.positions import Position
from stateside.journal.backends.files import retention_base, segment
from stateside.journal.backends.files.file_log import FileLog
from stateside.journal.backends.files.frames import Frames, Offsets, Shown
from stateside.journal.backends.files.segment import PARTITION, DurableEnd
from stateside.journal.columns import conformed
from stateside.journal.event import Event

PAUSE_S_MIN = 0.0005
PAUSE_S_MAX = 0.01  # reading the end mark takes some 20 µs: a waiting reader costs two thousandths of a core
SEGMENTS_OPEN_MAX = 16
GAP_EVENTS = 64  # in a stream without `gather`: reading so many unwanted events is cheaper than another request


class Stream(Protocol):
    """Durable events by partition and offset. Any number of threads may read."""

    def id(self) -> str | None:
        """The stream's id, constant for its life and unique to it; None before the stream was created."""

    def end(self) -> Position:
        """The position after the last durable event of every partition. Never moves back."""

    def partitions(self) -> Sequence[str]:
        """The names of the partitions, always in the same order; new ones come last."""

    def batches(self, partition: str, start: int, stop: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The events with offsets start <= offset < stop, each batch with the offset of its first event.

        A batch has no gaps, and is in the journal's schema (`columns`). PositionInvalid if the range goes beyond the
        end; JournalCorrupt if events are missing, EventsGone if they were dropped on purpose (`Trimmed`). Memory: one
        batch, of a few MiB or of one append.
        """

    def wait(self, position: Position, timeout_s: float) -> bool:
        """Wait until the end has moved beyond the position, or the timeout; whether it moved. 0 s: only check."""


@runtime_checkable
class Gathering(Protocol):
    """A stream that reads single events faster than by ranges."""

    def gather(self, partition: str, offsets: Offsets) -> Iterator[tuple[Offsets, pa.RecordBatch]]:
        """The events at these ascending offsets: in groups, each with its offsets."""


@runtime_checkable
class Sparse(Protocol):
    """A stream with gaps between its events, such as a Kafka topic, where transaction markers take offsets too.

    The end may lie after a gap, so `end` covers every receipt but need not equal one.
    """

    def located(self, partition: str, start: int, stop: int) -> Iterator[tuple[Offsets, pa.RecordBatch]]:
        """As `batches`, with the offset of each event: a batch may span a gap."""


@runtime_checkable
class Trimmed(Protocol):
    """A stream whose first events may have been dropped on purpose."""

    def begin(self) -> Position:
        """The position of the first events not dropped."""


@runtime_checkable
class Tailed(Protocol):
    """A stream merged from logs, and possibly behind them."""

    def tail(self, entity: str, first: int, last: int) -> list[Event]:
        """The entity's events in the logs with sequences `first` to `last`, both included, up to the first gap.

        Empty if the logs do not have the event `first`: then the stream has it by now.
        """


def begin(stream: Stream | Trimmed) -> Position:
    """The position of the first events of any stream that were not dropped."""
    return stream.begin() if isinstance(stream, Trimmed) else Position.start()


def located(stream: Stream, partition: str, start: int, stop: int) -> Iterator[tuple[Offsets, pa.RecordBatch]]:
    """The events of any stream with offsets start <= offset < stop, in groups, each event with its offset."""
    if isinstance(stream, Sparse):
        yield from stream.located(partition, start, stop)
        return
    for first, batch in stream.batches(partition, start, stop):
        yield np.arange(first, first + batch.num_rows), batch


def gather(stream: Stream, partition: str, offsets: Offsets) -> Iterator[tuple[Offsets, pa.RecordBatch]]:
    """The events of any stream at these ascending offsets: in groups, each with its offsets."""
    if isinstance(stream, Gathering):
        yield from stream.gather(partition, offsets)
        return
    for wanted in np.split(offsets, np.flatnonzero(np.diff(offsets) > GAP_EVENTS) + 1):
        if len(wanted):
            yield from _from_range(stream, partition, wanted)


def _from_range(stream: Stream, partition: str, offsets: Offsets) -> Iterator[tuple[Offsets, pa.RecordBatch]]:
    for found, batch in located(stream, partition, int(offsets[0]), int(offsets[-1]) + 1):
        rows = np.flatnonzero(np.isin(found, offsets, assume_unique=True))
        if len(rows):
            yield found[rows], batch.take(pa.array(rows))


def moved(end: Callable[[], Position], position: Position, timeout_s: float, pause_s_max: float = PAUSE_S_MAX) -> bool:
    """Poll a stream's end, with growing pauses, until the end is beyond the position or time is up; whether it is."""
    deadline, pause_s = time.monotonic() + timeout_s, PAUSE_S_MIN
    while position.covers(end()):
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            return False
        time.sleep(min(pause_s, left_s))
        pause_s = min(2 * pause_s, pause_s_max)
    return True


class FileJournal:
    """A journal on files as a stream with one partition.

    Keeps the most recently read segments open, with their frame indexes. The next read notices a replaced folder, or a
    truncated or deleted segment.
    """

    def __init__(self, directory: Path, shown: Shown = conformed, partition: str = PARTITION) -> None:
        """`shown` converts a stored batch for readers; `partition` is the log's name in positions."""
        self.journal, self._shown, self._partition = FileLog(directory), shown, partition
        self._open: OrderedDict[int, Frames] = OrderedDict()
        self._opening = threading.Lock()

    def id(self) -> str | None:
        """The journal's id. Called with every page of an answer, so the newest segment stays open."""
        offsets = segment.segment_offsets(self.journal.directory)
        if not offsets:
            return None
        with self._opening:
            return str(self._opened(offsets[-1]).journal_id)

    def end(self) -> Position:
        return Position.of({self._partition: self.journal.durable_end().offset})

    def begin(self) -> Position:
        return Position.of({self._partition: self.journal.begin()[PARTITION]})

    def partitions(self) -> Sequence[str]:
        return (self._partition,)

    def batches(self, partition: str, start: int, stop: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """As `Stream.batches`. The events of many small appends come as one batch."""
        for frames, low, high in self._parts(start, stop):
            yield from frames.batches(low, high)

    def gather(self, partition: str, offsets: Offsets) -> Iterator[tuple[Offsets, pa.RecordBatch]]:
        """As `Gathering.gather`: reads only the frames with these events."""
        if not len(offsets):
            return
        for frames, low, high in self._parts(int(offsets[0]), int(offsets[-1]) + 1):
            wanted = offsets[slice(*np.searchsorted(offsets, [low, high]))]
            if len(wanted):
                yield from frames.gather(wanted)

    def wait(self, position: Position, timeout_s: float) -> bool:
        """As `Stream.wait`. Polls the end mark; file notifications would need a read of the mark as well."""
        return moved(self.end, position, timeout_s)

    def _parts(self, start: int, stop: int) -> Iterator[tuple[Frames, int, int]]:
        """The segments that hold this range, each with its part of the range."""
        end = self.journal.durable_end()
        if not 0 <= start <= stop <= end.offset:
            raise PositionInvalid(
                f"Offsets {start} to {stop} do not lie in this journal, which ends at {end.offset}",
                where=str(self.journal.directory),
                next_step="The reader's position belongs to another journal, or this one was replaced or cut",
            )
        offsets = segment.segment_offsets(self.journal.directory)
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
                found = Frames(segment.segment_path(self.journal.directory, first_offset), self._shown)
            except FileNotFoundError:
                raise self._missing(first_offset) from None
        self._open[first_offset] = found
        if len(self._open) > SEGMENTS_OPEN_MAX:
            self._open.popitem(last=False)
        return found

    def _missing(self, offset: int) -> StatesideError:
        return retention_base.missing(self.journal.directory, offset)
