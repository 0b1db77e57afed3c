"""The merged stream for readers, and its tail: events that are durable in a node's log but not in the stream yet.

The tail serves an entity that reads its own writes without waiting for the merger. The stream's last frames record how
far each log is done; the tail reads each log from there to its end, so some events are in both the stream and the tail.

Coverage: how much of the nodes' logs a reader of the merged stream has read, from any offsets. A frame states which
positions of the logs are *done*, in the whole stream. A reader that has the frame may still lack events of other
partitions. So:

1. Frames are stored one after the other, and the *read* position of the logs in them only grows: a clock.
2. In each partition the first frame that the reader does not wholly have shows a time. The reader has every event of
   all frames before the earliest of these times.
3. The reader has the positions that those frames state as done.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from stateside.core.clock import Clock
from stateside.core.errors import JournalCorrupt, PositionInvalid
from stateside.core.positions import OFFSET_MAX, Position
from stateside.journal.backends.files import segment
from stateside.journal.backends.files.file_journal import FileJournal
from stateside.journal.backends.files.file_log import FileLog
from stateside.journal.backends.files.frames import Offsets
from stateside.journal.backends.files.segment import PARTITION, DurableEnd, Frame, Segment
from stateside.journal.backends.nodes.log import node_logs
from stateside.journal.backends.nodes.node_writer import NodeWriter
from stateside.journal.backends.nodes.partition import (
    MERGED,
    Gap,
    Gaps,
    MergedPartition,
    Sources,
    StreamIdentity,
    sources_of,
    without_sources,
)
from stateside.journal.backends.nodes.receipts import Wanted
from stateside.journal.columns import decode
from stateside.journal.contract import Journal, only
from stateside.journal.event import Event
from stateside.journal.upcasters import Upcasters


def sources_at(
    partitions: Mapping[str, MergedPartition], offsets: Mapping[str, int], marks: Mapping[str, DurableEnd]
) -> Position:
    """A position in the logs, all events before which are before these offsets. The true position may be further."""
    before, next_times = {}, [OFFSET_MAX]
    for name, partition in partitions.items():
        before[name] = _Before(partition, offsets.get(name, 0), marks.get(name))
    for name, partition in partitions.items():  # after `before` is complete: later frames have later times
        next_times.append(_next_time(partition, offsets.get(name, 0), marks.get(name)))
    found = Position.start()
    for frames in before.values():
        found = found.joined(frames.done(min(next_times)))
    return found


class _Before:
    """The frames of a partition's last relevant segment that are wholly before an offset."""

    def __init__(self, partition: MergedPartition, offset: int, mark: DurableEnd | None) -> None:
        self._path = None
        self._frames: list[Frame] = []
        first = _segment_of(partition, offset - 1) if offset else None
        if first is not None:
            self._path = segment.segment_path(partition.directory, first)
            self._frames = _heads(partition, first, offset, mark)

    def done(self, before_time: int) -> Position:
        """The done position of the last frame stored before this time."""
        if self._path is None:
            return Position.start()
        opened = Segment(self._path)
        try:
            at = bisect_left(self._frames, before_time, key=lambda frame: _time(_sources(opened, frame)))
            return _sources(opened, self._frames[at - 1]).done if at else Position.start()
        finally:
            opened.close()


def _next_time(partition: MergedPartition, offset: int, mark: DurableEnd | None) -> int:
    """The time of the frame with the event at this offset; OFFSET_MAX if there is none yet."""
    end = partition.durable_end()
    if offset >= end.offset:
        return OFFSET_MAX
    first = _segment_of(partition, offset)
    assert first is not None, "there are events"
    opened = Segment(segment.segment_path(partition.directory, first))
    try:
        stop_byte = end.segment_bytes if first == end.segment_offset else None
        return _time(_sources(opened, next(opened.frames(offset, stop_byte, mark))))
    finally:
        opened.close()


def _heads(partition: MergedPartition, first: int, offset: int, mark: DurableEnd | None) -> list[Frame]:
    """The frames of a segment that are wholly before an offset, from the mark on if the mark applies."""
    end = partition.durable_end()
    opened = Segment(segment.segment_path(partition.directory, first))
    try:
        stop_byte = end.segment_bytes if first == end.segment_offset else None
        mark = mark if mark is not None and mark.offset < offset else None
        return [frame for frame in opened.heads(offset - 1, stop_byte, mark) if frame.next_offset <= offset]
    finally:
        opened.close()


def _segment_of(partition: MergedPartition, offset: int) -> int | None:
    """The first offset of the segment that has the event at this offset."""
    return max((first for first in segment.segment_offsets(partition.directory) if first <= offset), default=None)


def _sources(opened: Segment, frame: Frame) -> Sources:
    return sources_of(opened.batch(frame)) or Sources()


def _time(sources: Sources) -> int:
    return sources.read.events()


SHARED = "shared"  # the node of all writers that are no node of their own: servers, the clockwork, commands
_ONE_PARTITION = "Merge into one partition, for good: `stateside journal merge --partitions 1` on a new folder"


def tail(folder: Path, done: Position, entity: str, first: int, last: int) -> list[Event]:
    """The entity's events with sequences `first` to `last`, both included, up to the first gap.

    `done`: the position up to which all events of the logs are in the stream. Memory: the returned events and one
    append.
    """
    found: dict[int, Event] = {}
    for name, log in node_logs(folder).items():
        for _, batch in log.batches(done[name], log.durable_end().offset):
            wanted = batch.filter(pc.equal(batch.column("entity"), entity))
            found.update((event.sequence, event) for event in decode(wanted) if event.sequence is not None)
    following = []
    for sequence in range(first, last + 1):
        if sequence not in found:
            break
        following.append(found[sequence])
    return following


class PartitionLog(FileLog):
    """A partition of a merged stream, with the journal's columns only."""

    shown = staticmethod(without_sources)

    def in_stamps(self, position: Position) -> Position:
        return Position.of({self.directory.name: position.one()})


class MergedJournal(Journal):
    """All events of all nodes. Before its first merger the journal is empty, and has no partitions.

    `node`: the name of the node that `writer` appends as; by default the node `SHARED`, as one of its owners.
    """

    def __init__(self, folder: Path, node: str | None = None, *, upcasters: Upcasters | None = None) -> None:
        self.upcasters = upcasters or Upcasters()
        self._folder, self._merged, self._node = folder, folder / MERGED, node
        self._files: dict[str, FileJournal] = {}

    @property
    def where(self) -> str:
        return str(self._folder)

    def log(self, partition: str | None = None) -> PartitionLog:
        if partition is None:
            partition = only(self.partitions(), self.where, _ONE_PARTITION)
        return PartitionLog(self._merged / partition, upcasters=self.upcasters)

    def writer(self, *, clock: Clock | None = None, known: str | None = None, take_over: bool = False) -> NodeWriter:
        """The owner of the node, or one of the owners of the node `SHARED`.

        `take_over`: even if the former owner may still live.
        """
        self._check_known(known)
        shared = self._node is None
        return NodeWriter(self._folder, self._node or SHARED, take_over=take_over, shared=shared, clock=clock)

    def acknowledged(self) -> Position:
        return self.end().joined(Position.of(self.log_ends()))

    def log_ends(self) -> dict[str, int]:
        """The ends of the nodes' logs."""
        return {name: log.durable_end().offset for name, log in node_logs(self._folder).items()}

    def id(self) -> str | None:
        """None before the first merger."""
        born = StreamIdentity.read(self._merged)
        return None if born is None else born.id

    def partitions(self) -> Sequence[str]:
        born = StreamIdentity.read(self._merged)
        return [] if born is None else born.names()

    def end(self) -> Position:
        return Position.of({name: self._partition(name).durable_end().offset for name in self.partitions()})

    def begin(self) -> Position:
        return Position.of({name: self._partition(name).begin()[PARTITION] for name in self.partitions()})

    def batches(self, partition: str, start: int, stop: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The events of many small frames come as one batch."""
        yield from self._opened(partition).batches(partition, start, stop)

    def gather(self, partition: str, offsets: Offsets) -> Iterator[tuple[Offsets, pa.RecordBatch]]:
        """Reads only the frames with these events."""
        yield from self._opened(partition).gather(partition, offsets)

    def position_of(self, receipt: Position) -> Position | None:
        """The position in this stream just after the events of a node's receipt; None if the events are not merged.

        PositionInvalid if there is no such log, PositionAhead if the log ends before the receipt. If retention has
        trimmed the receipt's events from the node's log, returns the stream's current end: the events are before it,
        and their exact place is lost.
        """
        wanted = self.wanted(receipt)
        return None if wanted is None else wanted.position()

    def covers(self, receipt: Position) -> bool:
        """Whether the events of a node's receipt are in the stream."""
        return self.position_of(receipt) is not None

    def wait_for(self, receipt: Position, timeout_s: float) -> Position | None:
        """Wait at most `timeout_s` for a node's events to be merged; returns as `position_of`."""
        deadline, wanted = time.monotonic() + timeout_s, None
        while True:
            end = self.end()
            wanted = wanted or self.wanted(receipt)
            found = None if wanted is None else wanted.position()
            if found is not None or not self.wait(end, max(0.0, deadline - time.monotonic())):
                return found

    def tail(self, entity: str, first: int, last: int) -> list[Event]:
        """An entity's events of these sequences in the nodes' logs that may not be merged yet (see `tail`)."""
        return tail(self._folder, self.merged().done, entity, first, last)

    def sources(self, offsets: Mapping[str, int], marks: Mapping[str, DurableEnd] | None = None) -> Position:
        return sources_at(
            {name: self._partition(name) for name in {*self.partitions(), *offsets}}, offsets, marks or {}
        )

    def merged(self) -> Sources:
        """How far the nodes' logs are in this stream, and how far the merger had read them."""
        found = Sources()
        for name in self.partitions():
            found = found.joined(self._partition(name).sources())
        return found

    def gaps(self) -> list[Gap]:
        """The gaps last published by the merger, oldest first, at most 1,000."""
        return list(self.stalled().shown)

    def stalled(self) -> Gaps:
        """As `gaps`, with the number of all gaps."""
        return Gaps.read(self._merged)

    def wanted(self, receipt: Position) -> Wanted | None:
        """A repeatable `position_of`; None before the first merger."""
        born = StreamIdentity.read(self._merged)
        return None if born is None else Wanted(self._folder, born, receipt, self.end)

    def _opened(self, partition: str) -> FileJournal:
        """A partition to read; JournalCorrupt if the files belong to another stream or another partition."""
        born = StreamIdentity.read(self._merged)
        if born is None or partition not in born.names():
            raise PositionInvalid(
                f"This stream has no partition {partition!r}",
                where=str(self._merged),
                next_step="The reader's position belongs to another stream",
            )
        files = self._files.setdefault(partition, FileJournal(self._merged / partition, without_sources, partition))
        if files.id() not in (None, str(born.journal_id(partition))):
            raise JournalCorrupt(
                f"What lies there is not partition {partition} of this stream",
                where=str(self._merged / partition),
                next_step="Restore the folder from a copy; nothing was skipped or changed",
            )
        return files

    def _partition(self, name: str) -> MergedPartition:
        return MergedPartition(self._merged / name)
