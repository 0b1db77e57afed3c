"""Queries: selections of a stream's events, as of now or live."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Generic, TypeVar

from stateside.core.errors import RequestInvalid
from stateside.core.positions import OFFSET_MAX, Position
from stateside.journal.contract import Journal
from stateside.journal.event import Event
from stateside.journal.queries.entities import BirthWalk, EntityIds, FirstEvent
from stateside.journal.queries.predicate import (
    AllEvents,
    EntityEvents,
    EventQuery,
    EventsBetween,
    TaggedEvents,
    TypedEvents,
)
from stateside.journal.queries.query_reader import EntityWalk, FoundEvent, Walk, Walker
from stateside.journal.queries.query_views import QueryViews
from stateside.journal.upcasters import Upcasters

LOOK_S = 0.25  # how often a live query checks its stop flag and the identity of its stream
PAUSE_S_MIN = 0.001
PAUSE_S_MAX = 0.05  # of an async query, which holds no thread while it waits

Item = TypeVar("Item")


class Query(Generic[Item]):
    """A query that can be answered as of now, or live. Any number of readers may run it, each at its own pace.

    Readers pull: a slow or stopped reader costs one page (128 events and the batch they were read from, a few MiB or
    one append of the journal), and holds no transaction. Each item has the position just after it, from which the same
    query resumes, in any process. PositionAhead if the stream ends before a start.
    """

    def __init__(self, stream: Journal, begin: Callable[[Position | None], Walker[Item]]) -> None:
        self._stream, self._begin = stream, begin

    def current(self, start: Position | None = None, stop: Position | None = None) -> Iterator[Item]:
        """The items from `start` up to `stop`, at most up to the stream's present end."""
        walker, end = self._begin(start), self._stop(stop)
        return (item for page in walker.pages(end) for item in page)

    def live(self, start: Position | None = None, stop: threading.Event | None = None) -> Iterator[Item]:
        """As `current`, followed by new items forever, until `stop` is set or no more can come."""
        return self._live(self._begin(start), stop or threading.Event())

    def current_async(self, start: Position | None = None, stop: Position | None = None) -> AsyncIterator[Item]:
        """As `current`, for an event loop: pages are read in threads."""
        walker, end = self._begin(start), self._stop(stop)
        return _in_threads(walker.pages(end))

    def live_async(self, start: Position | None = None) -> AsyncIterator[Item]:
        """As `live`, for an event loop, until cancelled or closed. Holds no thread while waiting."""
        return self._live_async(self._begin(start))

    def _stop(self, stop: Position | None) -> Position:
        end = self._stream.end()
        if stop is None:
            return end
        return Position.of({partition: min(offset, stop[partition]) for partition, offset in end.parts})

    def _live(self, walker: Walker[Item], stop: threading.Event) -> Iterator[Item]:
        while not (stop.is_set() or walker.done):
            end = self._stream.end()
            for page in walker.pages(end):
                yield from page
                if stop.is_set():
                    return
            while not (stop.is_set() or walker.done or self._stream.wait(end, LOOK_S)):
                walker.check_stream()  # a replaced stream may be shorter, and then never pass the end

    async def _live_async(self, walker: Walker[Item]) -> AsyncIterator[Item]:
        pause_s, paused_s = PAUSE_S_MIN, 0.0
        while not walker.done:
            end = await asyncio.to_thread(self._stream.end)
            async for item in _in_threads(walker.pages(end)):
                yield item
                pause_s = PAUSE_S_MIN
            while not walker.done:
                if await asyncio.to_thread(self._stream.wait, end, 0.0):
                    break
                if paused_s >= LOOK_S:
                    await asyncio.to_thread(walker.check_stream)
                    paused_s = 0.0
                await asyncio.sleep(pause_s)
                paused_s += pause_s
                pause_s = min(2 * pause_s, PAUSE_S_MAX)


class Queries:
    """All queries of a stream. Events beyond the views are read from the stream, so answers are never stale.

    Events come in the stream's order: by offset in each partition, and so by sequence for each entity, the same on
    every read. There is no order between the events of two partitions; `current` reads one partition after the other.
    """

    def __init__(self, stream: Journal, views: QueryViews, upcasters: Upcasters | None = None) -> None:
        self._stream, self._views, self._upcasters = stream, views, upcasters

    @property
    def stream(self) -> Journal:
        return self._stream

    def upcast(self, event: Event) -> Event:
        """The event after the upcasters, as in an answer."""
        return event if self._upcasters is None else self._upcasters.upcast(event)

    def entity(self, entity: str, from_sequence: int = 1, to_sequence: int | None = None) -> Query[FoundEvent]:
        """An entity's events from a sequence to another, both included; every event has its sequence."""
        if from_sequence < 1 or (to_sequence is not None and to_sequence < from_sequence - 1):
            raise RequestInvalid(
                f"There are no sequences from {from_sequence} to {to_sequence}", next_step="Sequences count from 1"
            )
        question = EntityEvents(entity, from_sequence, OFFSET_MAX - 1 if to_sequence is None else to_sequence)
        return Query(
            self._stream, lambda start: EntityWalk(self._stream, self._views, question, start, self._upcasters)
        )

    def tagged(self, tag: str) -> Query[FoundEvent]:
        """Events with a tag."""
        return self._events(TaggedEvents(tag))

    def typed(self, type_: str) -> Query[FoundEvent]:
        """Events of a type."""
        return self._events(TypedEvents(type_))

    def all(self) -> Query[FoundEvent]:
        return self._events(AllEvents())

    def between(self, from_us: int, to_us: int) -> Query[FoundEvent]:
        """Events with from_us <= time < to_us, in the stream's order."""
        return self._events(EventsBetween(from_us, to_us))

    def entities(self, prefix: str = "", after: str | None = None) -> EntityIds:
        """The ids of all entities with a prefix, in byte order, after a given id."""
        return EntityIds(self._stream, self._views, prefix, after)

    def born(self, prefix: str = "") -> Query[FirstEvent]:
        """The ids of all entities with a prefix, in the order of their first events; also live."""
        return Query(self._stream, lambda start: BirthWalk(self._stream, self._views, prefix, start))

    def last_sequence(self, entity: str) -> int:
        """The sequence of an entity's newest event; 0 if there is none."""
        walk = EntityWalk(self._stream, self._views, EntityEvents(entity), None)
        return walk.last_sequence(self._stream.end())

    def _events(self, question: EventQuery) -> Query[FoundEvent]:
        return Query(self._stream, lambda start: Walk(self._stream, self._views, question, start, self._upcasters))


async def _in_threads(pages: Iterator[list[Item]]) -> AsyncIterator[Item]:
    while page := await asyncio.to_thread(next, pages, None):
        for item in page:
            yield item
