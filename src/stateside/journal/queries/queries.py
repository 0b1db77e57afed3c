"""Queries: what a stream's events can be asked for, as they are now and as they come."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Generic, TypeVar

from stateside.core.errors import RequestInvalid
from stateside.core.positions import OFFSET_MAX, Position
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
from stateside.journal.stream import Stream
from stateside.journal.upcasters import Upcasters

LOOK_S = 0.25  # so often a live query looks whether it is to stop, and whether its stream is still the same one
PAUSE_S_MIN = 0.001
PAUSE_S_MAX = 0.05  # of an async query: it holds no thread while it waits

Item = TypeVar("Item")


class Query(Generic[Item]):
    """A question that can be answered as of now, or live. Any number of readers may ask it, each at its own pace.

    What comes is pulled: a reader that is slow, or stops, costs one page (1,024 events and what they were read from,
    a few MiB or one append of the journal), and holds no transaction. Each item has the position from which the same
    query goes on behind it, in this process or another one. PositionAhead if the stream does not reach a start.
    """

    def __init__(self, stream: Stream, begin: Callable[[Position | None], Walker[Item]]) -> None:
        self._stream, self._begin = stream, begin

    def current(self, start: Position | None = None, stop: Position | None = None) -> Iterator[Item]:
        """What is there from a position up to another, or to the end that the stream has now if that comes first."""
        walker, end = self._begin(start), self._stop(stop)
        return (item for page in walker.pages(end) for item in page)

    def live(self, start: Position | None = None, stop: threading.Event | None = None) -> Iterator[Item]:
        """The same, and then what comes, for ever, or until `stop` is set or nothing more can come."""
        return self._live(self._begin(start), stop or threading.Event())

    def current_async(self, start: Position | None = None, stop: Position | None = None) -> AsyncIterator[Item]:
        """As `current`, for an event loop: pages are read in threads."""
        walker, end = self._begin(start), self._stop(stop)
        return _in_threads(walker.pages(end))

    def live_async(self, start: Position | None = None) -> AsyncIterator[Item]:
        """As `live`, for an event loop, until it is cancelled or closed. While it waits it holds no thread."""
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
                walker.check_stream()  # another one may be shorter, and then never get beyond the end

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
    """All that can be asked of a stream. What its views do not have yet is read from the stream: never behind.

    Events come in the stream's order: of each partition by offset, and so of each entity by sequence, the same on every
    read. No order is promised between the events of two partitions; `current` reads one partition after the other.
    """

    def __init__(self, stream: Stream, views: QueryViews, upcasters: Upcasters | None = None) -> None:
        self._stream, self._views, self._upcasters = stream, views, upcasters

    @property
    def stream(self) -> Stream:
        """What is asked."""
        return self._stream

    def upcast(self, event: Event) -> Event:
        """An event as an answer would have it."""
        return event if self._upcasters is None else self._upcasters.upcast(event)

    def entity(self, entity: str, from_sequence: int = 1, to_sequence: int | None = None) -> Query[FoundEvent]:
        """An entity's events from a sequence to another, both included; every one of them has its sequence."""
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
        """Every event."""
        return self._events(AllEvents())

    def between(self, from_us: int, to_us: int) -> Query[FoundEvent]:
        """Events that happened at a time from the one up to, and without, the other; in the stream's order."""
        return self._events(EventsBetween(from_us, to_us))

    def entities(self, prefix: str = "", after: str | None = None) -> EntityIds:
        """The ids of all entities with a prefix, in the order of their bytes, from behind one of them on."""
        return EntityIds(self._stream, self._views, prefix, after)

    def born(self, prefix: str = "") -> Query[FirstEvent]:
        """The ids of all entities with a prefix in the order in which their first events came; live, too."""
        return Query(self._stream, lambda start: BirthWalk(self._stream, self._views, prefix, start))

    def last_sequence(self, entity: str) -> int:
        """The sequence of an entity's newest event; 0 if it has none."""
        walk = EntityWalk(self._stream, self._views, EntityEvents(entity), None)
        return walk.last_sequence(self._stream.end())

    def _events(self, question: EventQuery) -> Query[FoundEvent]:
        return Query(self._stream, lambda start: Walk(self._stream, self._views, question, start, self._upcasters))


async def _in_threads(pages: Iterator[list[Item]]) -> AsyncIterator[Item]:
    while page := await asyncio.to_thread(next, pages, None):
        for item in page:
            yield item
