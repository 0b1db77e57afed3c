"""Streams: what queries and views follow. A journal on files is one; merged logs and Kafka's topics are others.

A stream has partitions, each a row of events with offsets from 0 on. An event never changes its offset, and all events
of an entity stand in one partition, in the order of their sequence. There is an event at each offset, unless the stream
is `Sparse`: then some offsets have none, and never will.
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
from stateside.journal import retention_base, segment
from stateside.journal.columns import conformed
from stateside.journal.event import Event
from stateside.journal.frames import Frames, Offsets, Shown
from stateside.journal.reader import Journal
from stateside.journal.segment import PARTITION, DurableEnd

PAUSE_S_MIN = 0.0005
PAUSE_S_MAX = 0.01  # a look at the end mark takes some 20 µs: a reader that waits costs two thousandths of a core
SEGMENTS_OPEN_MAX = 16
GAP_EVENTS = 64  # of a stream that cannot gather: it is cheaper to read over so many events than to ask anew


class Stream(Protocol):
    """Durable events by partition and offset. Any number of threads may read."""

    def id(self) -> str | None:
        """Which stream this is, the same for its whole life and for no other one; None before it was begun."""

    def end(self) -> Position:
        """The position after the last durable event of every partition. It never goes back."""

    def partitions(self) -> Sequence[str]:
        """The names of the partitions, always in the same order; new ones come last."""

    def batches(self, partition: str, start: int, stop: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The events with offsets start <= offset < stop, each batch with the offset of its first event.

        A batch has no gap in it, and is in the journal's schema (`columns`). PositionInvalid if the range goes beyond
        the end; JournalCorrupt where events that were there are not any more, EventsGone if somebody decided so
        (`Trimmed`). Memory: one batch, of a few MiB or of one append.
        """

    def wait(self, position: Position, timeout_s: float) -> bool:
        """Wait until the end has moved beyond the position, so long at most; whether it has. 0 s: only look."""


@runtime_checkable
class Gathering(Protocol):
    """A stream that can read single events, wherever they stand, better than by ranges."""

    def gather(self, partition: str, offsets: Offsets) -> Iterator[tuple[Offsets, pa.RecordBatch]]:
        """The events at these offsets, which ascend: some of them at a time, with their offsets."""


@runtime_checkable
class Sparse(Protocol):
    """A stream with gaps between its events, as those of a Kafka topic, in which transactions take offsets too.

    Its end may lie behind a gap. So `end` covers every receipt, and need not be one.
    """

    def located(self, partition: str, start: int, stop: int) -> Iterator[tuple[Offsets, pa.RecordBatch]]:
        """As `batches`, with the offset of each event: a batch may go on behind a gap."""


@runtime_checkable
class Trimmed(Protocol):
    """A stream that may have lost events at its beginning, by somebody's decision."""

    def begin(self) -> Position:
        """The position of the first events that are there."""


@runtime_checkable
class Tailed(Protocol):
    """A stream that is made of logs, and may be behind them."""

    def tail(self, entity: str, first: int, last: int) -> list[Event]:
        """Of an entity's events from one sequence to another, both included, those of the logs, from the first one on.

        As far as they follow each other; none if the first one is not there: then the stream has it by now.
        """


def begin(stream: Stream | Trimmed) -> Position:
    """The position of the first events of any stream that are there."""
    return stream.begin() if isinstance(stream, Trimmed) else Position.start()


def located(stream: Stream, partition: str, start: int, stop: int) -> Iterator[tuple[Offsets, pa.RecordBatch]]:
    """The events of any stream with offsets start <= offset < stop, some at a time, each with its offset."""
    if isinstance(stream, Sparse):
        yield from stream.located(partition, start, stop)
        return
    for first, batch in stream.batches(partition, start, stop):
        yield np.arange(first, first + batch.num_rows), batch


def gather(stream: Stream, partition: str, offsets: Offsets) -> Iterator[tuple[Offsets, pa.RecordBatch]]:
    """The events at these offsets, which ascend, of any stream: some of them at a time, with their offsets."""
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
    """Look at a stream's end, at first often, until it is beyond the position, so long at most; whether it is."""
    deadline, pause_s = time.monotonic() + timeout_s, PAUSE_S_MIN
    while position.covers(end()):
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            return False
        time.sleep(min(pause_s, left_s))
        pause_s = min(2 * pause_s, pause_s_max)
    return True


class FileStream:
    """A journal on files as a stream: its log is the one partition.

    It keeps the newest segments that were read open, and where their frames begin. A folder that is replaced, or a
    segment that is cut or deleted meanwhile, is noticed with the next read.
    """

    def __init__(self, directory: Path, shown: Shown = conformed, partition: str = PARTITION) -> None:
        """`shown`: how a stored batch is shown to readers; `partition`: what the log is called in positions."""
        self.journal, self._shown, self._partition = Journal(directory), shown, partition
        self._open: OrderedDict[int, Frames] = OrderedDict()
        self._opening = threading.Lock()

    def id(self) -> str | None:
        """The journal's id. Asked for with every page of an answer, so the newest segment stays open for it."""
        offsets = segment.segment_offsets(self.journal.directory)
        if not offsets:
            return None
        with self._opening:
            return str(self._opened(offsets[-1]).journal_id)

    def end(self) -> Position:
        """The journal's end."""
        return Position.of({self._partition: self.journal.durable_end().offset})

    def begin(self) -> Position:
        """The journal's begin."""
        return Position.of({self._partition: self.journal.begin()[PARTITION]})

    def partitions(self) -> Sequence[str]:
        """The one that there is."""
        return (self._partition,)

    def batches(self, partition: str, start: int, stop: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """As `Stream` says. The events of many small appends come as one batch."""
        for frames, low, high in self._parts(start, stop):
            yield from frames.batches(low, high)

    def gather(self, partition: str, offsets: Offsets) -> Iterator[tuple[Offsets, pa.RecordBatch]]:
        """As `Gathering` says: reads the frames that have these events and no others."""
        if not len(offsets):
            return
        for frames, low, high in self._parts(int(offsets[0]), int(offsets[-1]) + 1):
            wanted = offsets[slice(*np.searchsorted(offsets, [low, high]))]
            if len(wanted):
                yield from frames.gather(wanted)

    def wait(self, position: Position, timeout_s: float) -> bool:
        """As `Stream` says. Looks at the end mark: to be told of changes would take looking as well."""
        return moved(self.end, position, timeout_s)

    def _parts(self, start: int, stop: int) -> Iterator[tuple[Frames, int, int]]:
        """The segments that hold this range, each with its part of it."""
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
        """A segment with all its durable frames, and the offset behind these. It is of the newest one's journal."""
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
