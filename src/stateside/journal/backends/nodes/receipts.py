"""Receipts: the place in the merged stream of the events of an append to a node.

A receipt is a position in a node's log, just after the last event of an append. The append is one frame of the log. The
search looks for all events of the append, by source and offset, as each event may be in another partition.

Bounds of the search: `sources_read` of a frame bounds the start, for an event beyond that position is in no earlier
frame. `sources_done` of a frame bounds the end: an event not found by then was dropped as a duplicate of a stored one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateside.core.errors import PositionAhead, PositionInvalid
from stateside.core.positions import Position
from stateside.journal.backends.files import retention_base, segment
from stateside.journal.backends.files.segment import Segment
from stateside.journal.backends.nodes.log import NodeLog, node_logs
from stateside.journal.backends.nodes.partition import MERGED, MergedPartition, StreamIdentity, sources_of


class Search:
    """A search for the events of one append in one partition of the stream. A repeated call resumes at the last end."""

    def __init__(self, partition: MergedPartition, log: str, offsets: set[int]) -> None:
        self._partition, self._log = partition, log
        self._missing, self._first, self._stop = offsets, min(offsets), max(offsets) + 1
        self._behind = 0
        self._looked: int | None = None

    def behind(self) -> int | None:
        """The offset after the last of the events; None while one of them is not merged."""
        if self._missing:
            end = self._partition.durable_end().offset
            start = self._begin() if self._looked is None else self._looked
            for first, batch in self._partition.batches(start, end):
                self._look(first, batch)
                self._looked = first + batch.num_rows
                if not self._missing:
                    break
        return None if self._missing else self._behind

    def _begin(self) -> int:
        """The first offset of a segment before which none of the events can be."""
        offsets = segment.segment_offsets(self._partition.directory)
        end = self._partition.durable_end().offset
        for first in reversed([offset for offset in offsets if offset < end]):
            if self._read_at(first) <= self._first:
                return first
        return offsets[0] if offsets else 0  # earlier segments are dropped; `sources_done` covers their events

    def _read_at(self, first: int) -> int:
        """How far the log was read when the frame at this offset was stored."""
        opened = Segment(segment.segment_path(self._partition.directory, first))
        try:
            sources = sources_of(opened.batch(next(opened.frames())))
        finally:
            opened.close()
        return 0 if sources is None else sources.read[self._log]

    def _look(self, first: int, batch: pa.RecordBatch) -> None:
        offsets = batch.column("source_offset")
        within = pc.and_(pc.greater_equal(offsets, self._first), pc.less(offsets, self._stop))
        found = pc.and_(within, pc.equal(batch.column("source"), self._log))
        for row in np.flatnonzero(found.to_numpy(zero_copy_only=False)).tolist():
            self._missing.discard(offsets[row].as_py())
            self._behind = first + row + 1
        sources = sources_of(batch)
        if self._missing and sources is not None and sources.done[self._log] >= self._stop:
            self._missing, self._behind = set(), first + batch.num_rows


class Wanted:
    """The place of a receipt in the stream, possibly in the future. `end` returns the stream's end."""

    def __init__(self, folder: Path, born: StreamIdentity, receipt: Position, end: Callable[[], Position]) -> None:
        self._end, self._trimmed = end, False
        self._searches: dict[tuple[str, str], Search] = {}
        for log, offset in receipt.parts:
            source = _log(folder, log, offset)
            if offset <= retention_base.offset(source.directory):
                self._trimmed = True
                continue
            for partition, offsets in _append(source, born, offset).items():
                merged = MergedPartition(folder / MERGED / partition)
                self._searches[log, partition] = Search(merged, log, offsets)

    def position(self) -> Position | None:
        """The position in the stream just after the events; None while one of them is not merged."""
        found: dict[str, int] = self._end().as_dict() if self._trimmed else {}
        for (_, partition), search in self._searches.items():
            behind = search.behind()
            if behind is None:
                return None
            found[partition] = max(behind, found.get(partition, 0))
        return Position.of(found)


def _log(folder: Path, log: str, offset: int) -> NodeLog:
    """The receipt's log."""
    source = node_logs(folder).get(log)
    if source is None:
        raise PositionInvalid(f"There is no log {log}", where=str(folder), next_step="Give a receipt of this folder")
    if offset > source.durable_end().offset:
        raise PositionAhead(
            f"The log {log} ends before {offset}", where=str(folder), next_step="Give a receipt that an append returned"
        )
    return source


def _append(source: NodeLog, born: StreamIdentity, offset: int) -> dict[str, set[int]]:
    """The offsets of the events of the append that ended at this offset of a log, by partition of the stream."""
    found: dict[str, set[int]] = {}
    for first, batch in _frame_before(source, offset):
        for at, entity in enumerate(batch.column("entity").to_pylist(), first):
            if at < offset:
                found.setdefault(born.partition_of(entity), set()).add(at)
    return found


def _frame_before(source: NodeLog, offset: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The frame with the event just before this offset."""
    before = [first for first in segment.segment_offsets(source.directory) if first < offset]
    if not before:
        raise retention_base.missing(source.directory, offset - 1)
    opened = Segment(segment.segment_path(source.directory, before[-1]))
    try:
        for frame in opened.frames(offset - 1):
            yield frame.first_offset, opened.batch(frame)
            return
    finally:
        opened.close()
    raise retention_base.missing(source.directory, offset - 1)
