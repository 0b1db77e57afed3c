"""Coverage: how much of the nodes' logs a reader of the merged stream has read, from any offsets. A frame states which
positions of the logs are *done*, in the whole stream. A reader that has the frame may still lack events of other
partitions. So:

1. Frames are stored one after the other, and the *read* position of the logs in them only grows: a clock.
2. In each partition the first frame that the reader does not wholly have shows a time. The reader has every event of
   all frames before the earliest of these times.
3. The reader has the positions that those frames state as done.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

from stateside.core.positions import OFFSET_MAX, Position
from stateside.journal.backends.files import segment
from stateside.journal.backends.files.segment import DurableEnd, Frame, Segment
from stateside.journal.backends.nodes.partition import (
    MergedPartition,
    Sources,
    sources_of,
)


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
