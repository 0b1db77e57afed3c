"""The journal as a stream of Spark's: its life reads top down."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from stateside.errors import PositionInvalid
from stateside.journal.segment import PARTITION, DurableEnd
from stateside.journal.selecting import shares
from stateside.journal.stored import StoredStream
from stateside.pipeline.event_reader import EVENTS_PER_TASK_MIN, EventReader, check_there, check_within
from stateside.pipeline.sources import EVENTS_PER_BATCH_MAX
from stateside.positions import Position

JOURNAL = "journal"  # in an offset, beside the position: which stream it is a position of
TASKS_MAX = 8
MARKS_MAX = 64

Offset = dict[str, int | str]


class JournalStreamReader(EventReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batches on the driver and reads them in the tasks.

    An offset has each partition of the stream. If that is merged, it also has how far each node's log lies before it,
    with all its events: so a stamp covers a node's receipt.
    """

    def __init__(self, schema: StructType, options: Mapping[str, str]) -> None:
        super().__init__(schema, options)
        self._limit = int(options.get("eventsPerBatchMax", EVENTS_PER_BATCH_MAX))
        self._stop_at = Position.parse(options["stopAt"]) if "stopAt" in options else None
        self._pause_file = Path(options["pauseFile"]) if "pauseFile" in options else None
        self._marks: dict[str, deque[DurableEnd]] = {}

    def initialOffset(self) -> Offset:
        """A new query starts at the journal's start, or where it was told to."""
        stored = self._stored()
        first = self._first(stored)
        if not first.parts:
            return {PARTITION: 0}
        check_within(stored, first, "start")
        return self._offset(stored, {name: first[name] for name in stored.journals})

    def getDefaultReadLimit(self) -> ReadLimit:
        """So many events a batch at most."""
        return ReadMaxRows(self._limit)

    def prepareForTriggerAvailableNow(self) -> None:
        """Everything durable now is to be read, nothing that comes later."""
        end = self._stored().end()
        self._stop_at = end if self._stop_at is None else _least(end, self._stop_at)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Where the next batch ends: the durable end, or as far as the limit allows, shared by the partitions."""
        with self._noticing_absence():
            return self._latest(start, limit)

    def _latest(self, start: Offset, limit: ReadLimit) -> Offset:
        stored = self._stored()
        self._check_stream(stored, start)
        if self._pause_file is not None and self._pause_file.exists():
            return start
        ends = stored.ends()
        for name, end in ends.items():
            self._marks.setdefault(name, deque(maxlen=MARKS_MAX)).append(end)
        stops = {name: self._stop(name, end.offset) for name, end in ends.items()}
        waiting = {name: max(0, stop - int(start.get(name, 0))) for name, stop in stops.items()}
        if isinstance(limit, ReadMaxRows):
            waiting = shares(waiting, limit.max_rows)
        else:
            assert isinstance(limit, ReadAllAvailable), limit
        if not any(waiting.values()):
            return start
        return self._offset(stored, {name: int(start.get(name, 0)) + more for name, more in waiting.items()}, start)

    def reportLatestOffset(self) -> Offset:
        """The durable end, for Spark's progress reports."""
        stored = self._stored()
        return {**(stored.end().as_dict() or {PARTITION: 0}), JOURNAL: stored.id or ""}

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """The batch's ranges in equal parts, as many as are worth a task each."""
        with self._noticing_absence():
            return self._planned(start, end)

    def _planned(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        stored = self._stored()
        self._check_stream(stored, end)  # a batch that is run again after a restart comes here first
        check_there(stored, _position(stored, start))
        ranges = {name: (int(start.get(name, 0)), int(end.get(name, 0))) for name in stored.journals}
        events = sum(last - first for first, last in ranges.values())
        count = min(TASKS_MAX, max(1, events // EVENTS_PER_TASK_MIN))
        return self._tasks(stored, ranges, -(-events // count), self._mark_before)

    def _stop(self, partition: str, end: int) -> int:
        return end if self._stop_at is None else min(self._stop_at[partition], end)

    def _offset(self, stored: StoredStream, offsets: Mapping[str, int], before: Offset | None = None) -> Offset:
        """An offset as Spark keeps it; `before` is one that came earlier."""
        marks = {name: self._mark_before(name, offset - 1) for name, offset in offsets.items() if offset}
        others = {name: at for name, at in (before or {}).items() if name not in (*offsets, PARTITION, JOURNAL)}
        known = Position.of({name: int(at) for name, at in others.items()})
        sources = stored.sources(offsets, {name: mark for name, mark in marks.items() if mark}).joined(known)
        return {**offsets, **sources.as_dict(), JOURNAL: stored.id or ""}

    def _check_stream(self, stored: StoredStream, offset: Offset) -> None:
        """Refuse to go on in another stream than the one that the query has read so far, or in a shorter one."""
        read, expected, end = _position(stored, offset), offset.get(JOURNAL), stored.end()
        if expected and stored.id is None:
            raise self._away()
        if expected is not None and (stored.id != expected or not end.covers(read)):
            raise PositionInvalid(
                f"This query has read journal {expected} up to {read}; here is {stored.id}, up to {end}",
                where=str(self._folder),
                next_step="Bring the right journal back, or run the view on a new folder",
            )
        check_there(stored, read)

    def _mark_before(self, partition: str, offset: int) -> DurableEnd | None:
        marks = (mark for mark in self._marks.get(partition, ()) if mark.offset <= offset)
        return max(marks, key=lambda mark: mark.offset, default=None)


def _position(stored: StoredStream, offset: Offset) -> Position:
    """The offset as a position in the stream, without the nodes' logs."""
    return Position.of({name: int(offset.get(name, 0)) for name in stored.journals})


def _least(one: Position, other: Position) -> Position:
    return Position.of({name: min(offset, other[name]) for name, offset in one.parts})
