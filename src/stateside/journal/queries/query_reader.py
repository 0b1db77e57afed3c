"""Query readers: cursors over the events of a query, page by page, up to an end looked up before.

Partition after partition, each in the order of its offsets: the same start and end give the same items in the same
order on every read, whatever happens to the views. All events of an entity stand in one partition, in the order of
their sequences, and are returned so.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from stateside.core.errors import EventsGone, JournalAway, PositionAhead
from stateside.core.positions import Position
from stateside.journal.columns import decode
from stateside.journal.contract import Journal
from stateside.journal.event import Event
from stateside.journal.queries.format import Offsets, ViewsDamaged
from stateside.journal.queries.indexer import numbered
from stateside.journal.queries.predicate import LOOK_EVENTS, EntityEvents, EventQuery
from stateside.journal.queries.query_views import QueryViews
from stateside.journal.queries.view_snapshot import Postings
from stateside.journal.upcasters import Upcasters

Item = TypeVar("Item")


class Walker(ABC, Generic[Item]):
    """A cursor over a stream. Not for two threads at the same time."""

    def __init__(self, stream: Journal, views: QueryViews, start: Position | None) -> None:
        """PositionAhead if the stream ends before `start`, EventsGone if retention has dropped events after `start`."""
        self._stream, self._views = stream, views
        self._at = dict((start or Position.start()).parts)
        self._id = stream.id()
        if start is not None and not stream.end().covers(start):
            raise PositionAhead(
                f"The position {start} lies beyond the end of this stream, {stream.end()}",
                next_step="It is of another stream, or of one that was replaced: begin again",
            )
        for partition, offset in stream.begin().parts:
            if self._at.get(partition, 0) < offset:
                raise EventsGone(
                    f"The events at {partition}:{self._at.get(partition, 0)} to {partition}:{offset - 1} are gone",
                    where=f"the stream {self._id}",
                    next_step=f"Start at {stream.begin()} to do without them, or bring them back from a copy",
                )

    @property
    def done(self) -> bool:
        """Whether no more items can come, however far the stream grows."""
        return False

    def pages(self, end: Position) -> Iterator[list[Item]]:
        """All non-empty pages up to `end`. Afterwards the cursor is at `end`.

        JournalAway if another stream has replaced the original one.
        """
        for partition in self._stream.partitions():
            at, stop = self._at.get(partition, 0), end[partition]
            while at < stop and not self.done:
                self.check_stream()
                for page, reached in self._read(partition, at, stop):
                    at = self._at[partition] = reached
                    if page:
                        yield page
            self._at[partition] = max(at, stop)

    @abstractmethod
    def _read(self, partition: str, at: int, stop: int) -> Iterator[tuple[list[Item], int]]:
        """The next pages, each with the offset reached. Called again until the offset is `stop`."""

    def _position(self, partition: str, offset: int) -> Position:
        """The cursor's position with this offset in this partition."""
        if self._at.keys() <= {partition}:
            return Position(((partition, offset),))
        return Position.of(self._at | {partition: offset})

    def check_stream(self) -> None:
        """JournalAway if another stream has replaced the original one."""
        found = self._stream.id()
        if self._id not in (None, found):
            raise JournalAway(
                f"The stream is another one than it was when the query began: {found}, not {self._id}",
                next_step="Begin the query again",
            )
        self._id = found


PAGE_EVENTS = 128  # larger pages cost more in garbage collection than the additional pages do


class FoundEvent(NamedTuple):
    """An event and its place. A plain tuple, as there are many."""

    event: Event
    partition: str
    offset: int
    others: tuple[tuple[str, int], ...] = ()  # how far the query has read the other partitions

    @property
    def position(self) -> Position:
        """The position just after this event, from which the same query resumes."""
        return Position(tuple(sorted((*self.others, (self.partition, self.offset + 1)))))


Page = list[FoundEvent]


class Walk(Walker[FoundEvent]):
    """A reader of all events of a query: by the views as far as they cover the stream, then by scanning.

    Memory: one batch of the stream (a few MiB or one append), and one page of events.
    """

    def __init__(
        self,
        stream: Journal,
        views: QueryViews,
        question: EventQuery,
        start: Position | None,
        upcasters: Upcasters | None = None,
    ) -> None:
        super().__init__(stream, views, start)
        self._question, self._upcasters = question, upcasters

    def _read(self, partition: str, at: int, stop: int) -> Iterator[tuple[Page, int]]:
        """The next pages, each with the offset reached. No pages if the views were damaged."""
        places = self._look(partition, at, stop)
        if isinstance(places, Postings):
            yield from self._by_places(partition, places)
        else:
            yield from self._by_range(partition, places)

    def _look(self, partition: str, at: int, stop: int) -> Postings | range:
        """Where to read: the places from the views if they reach so far, else the whole rest. Holds no snapshot."""
        try:
            with self._views.snapshot() as snapshot:
                covered = min(stop, snapshot.state.covers(partition)) if snapshot else 0
                if snapshot and at < covered:
                    return self._question.look(snapshot, partition, at, covered)
        except ViewsDamaged:
            pass
        return range(at, stop)

    def _by_places(self, partition: str, places: Postings) -> Iterator[tuple[Page, int]]:
        for offsets, batch in self._stream.gather(partition, places.offsets):
            if not np.all(self._question.matches(batch)):
                self._views.condemn(f"an event at {partition}:{offsets[0]} or soon after is not what they say of it")
                return
            yield from self._paged(partition, offsets, batch)
        yield [], places.behind

    def _by_range(self, partition: str, places: range) -> Iterator[tuple[Page, int]]:
        for offsets, batch in self._stream.located(partition, places.start, places.stop):
            rows = np.flatnonzero(self._question.matches(batch))
            yield from self._paged(partition, offsets[rows], _taken(batch, rows))
            yield [], int(offsets[-1]) + 1
        yield [], places.stop

    def _paged(self, partition: str, offsets: Offsets, batch: pa.RecordBatch) -> Iterator[tuple[Page, int]]:
        for low in range(0, batch.num_rows, PAGE_EVENTS):
            some = offsets[low : low + PAGE_EVENTS].tolist()
            events = decode(batch.slice(low, PAGE_EVENTS))
            yield self._page(partition, some, self._upcasters.all(events) if self._upcasters else events), some[-1] + 1

    def _page(self, partition: str, offsets: Sequence[int], events: Iterable[Event]) -> Page:
        others = tuple(part for part in self._at.items() if part[0] != partition and part[1])
        pairs = zip(offsets, events, strict=True)
        return [FoundEvent(event, partition, offset, others) for offset, event in pairs]


class EntityWalk(Walk):
    """A reader of one entity's events. Events stored without a sequence get theirs on reading.

    Events beyond the views are numbered from the end of the views: a new reader scans once from there to its start.
    """

    def __init__(
        self,
        stream: Journal,
        views: QueryViews,
        entity: EntityEvents,
        start: Position | None,
        upcasters: Upcasters | None = None,
    ) -> None:
        super().__init__(stream, views, entity, start, upcasters)
        self._entity = entity.entity
        self._wanted = range(entity.from_sequence, entity.to_sequence + 1)
        self._numbered: dict[str, tuple[int, int]] = {}  # by partition: the offset reached, and the last sequence there

    @property
    def done(self) -> bool:
        """Whether the last requested sequence has been read."""
        return not self._wanted

    def last_sequence(self, end: Position) -> int:
        """The sequence of the entity's last event before `end`; 0 if neither the stream nor the views have one."""
        last = 0
        for partition in self._stream.partitions():
            covered, known = self._known(partition)
            last = max(last, known)
            start = max(min(covered, end[partition]), self._stream.begin()[partition])
            for _, batch in self._stream.located(partition, start, end[partition]):
                for given in batch.filter(pa.array(self._question.matches(batch)))["sequence"].to_pylist():
                    last = numbered(given, last) or last
        return last

    def _look(self, partition: str, at: int, stop: int) -> Postings | range:
        try:
            with self._views.snapshot() as snapshot:
                covered = min(stop, snapshot.state.covers(partition)) if snapshot else 0
                if snapshot and at < covered:
                    return snapshot.entity_places(self._entity, partition, at, covered, self._wanted, LOOK_EVENTS)
        except ViewsDamaged:
            pass
        if partition not in self._numbered or self._numbered[partition][0] != at:
            covered, last = self._known(partition)
            first = self._stream.begin()[partition]  # from here on every event has its own sequence
            self._numbered[partition] = (max(covered, first), last) if covered <= at else (first, 0)
        return range(at, stop)

    def _known(self, partition: str) -> tuple[int, int]:
        """The offset up to which the views have the entity's events, and the last sequence there."""
        try:
            with self._views.snapshot() as snapshot:
                term = snapshot.entity(self._entity) if snapshot else None
                return (snapshot.state.covers(partition) if snapshot else 0), (term.last if term else 0)
        except ViewsDamaged:
            return 0, 0

    def _by_places(self, partition: str, places: Postings) -> Iterator[tuple[Page, int]]:
        assert places.sequences is not None, "an entity's places are numbered"
        at = 0
        for offsets, batch in self._stream.gather(partition, places.offsets):
            sequences = places.sequences[at : at + len(offsets)]
            at += len(offsets)
            if not np.all(self._question.matches(batch)) or not _are(batch, sequences):
                self._views.condemn(f"an event at {partition}:{offsets[0]} or soon after is not what they say of it")
                return
            yield from self._numbered_pages(partition, offsets, sequences, batch)
        yield [], places.behind

    def _by_range(self, partition: str, places: range) -> Iterator[tuple[Page, int]]:
        start, last = self._numbered[partition]
        for offsets, batch in self._stream.located(partition, start, places.stop):
            rows, sequences = [], []
            matching = np.flatnonzero(self._question.matches(batch))
            for row, given in zip(matching.tolist(), batch["sequence"].take(matching).to_pylist(), strict=True):
                sequence = numbered(given, last)
                if sequence is not None and offsets[row] >= places.start and sequence in self._wanted:
                    rows.append(row)
                    sequences.append(sequence)
                last = sequence or last
            behind = int(offsets[-1]) + 1
            self._numbered[partition] = behind, last
            wanted = np.array(rows, np.int64)
            yield from self._numbered_pages(partition, offsets[wanted], np.array(sequences), _taken(batch, wanted))
            if self.done:
                return
            yield [], max(places.start, behind)
        self._numbered[partition] = places.stop, last
        yield [], places.stop

    def _numbered_pages(
        self, partition: str, offsets: Offsets, sequences: Offsets, batch: pa.RecordBatch
    ) -> Iterator[tuple[Page, int]]:
        """Pages of events, all with sequences."""
        if batch.column("sequence").null_count:
            at = batch.schema.get_field_index("sequence")
            batch = batch.set_column(at, batch.schema.field(at), pa.array(sequences, pa.int64()))
        for page, behind in self._paged(partition, offsets, batch):
            self._wanted = range(_sequence(page[-1].event) + 1, self._wanted.stop)
            yield page, behind


def _taken(batch: pa.RecordBatch, rows: Offsets) -> pa.RecordBatch:
    return batch if len(rows) == batch.num_rows else batch.take(pa.array(rows))


def _are(batch: pa.RecordBatch, sequences: Offsets) -> bool:
    """Whether the events' sequences equal `sequences`; events without one are skipped."""
    given = batch.column("sequence").to_pylist()
    return all(own in (None, sequence) for own, sequence in zip(given, sequences.tolist(), strict=True))


def _sequence(event: Event) -> int:
    assert event.sequence is not None, "it was numbered"
    return event.sequence
