"""Selections: which events of a journal are meant, by where they stand and what they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
import pyarrow as pa

from stateside.errors import PositionAhead, RequestInvalid
from stateside.journal.event import TIME_US_MAX, TIME_US_MIN, Event
from stateside.journal.frames import Offsets
from stateside.journal.queries import Found, Queries, Query
from stateside.journal.queries.questions import EntityEvents, EventsBetween, Question, TaggedEvents, TypedEvents
from stateside.journal.stream import Stream
from stateside.positions import Position


@dataclass(frozen=True, slots=True)
class Selection:
    """Events from one position up to another (the end by default) that are all that is asked for here.

    Times are those at which the events happened: from the one up to, and without, the other.
    """

    start: Position = Position.start()  # noqa: RUF009 - a value
    stop: Position | None = None
    entity: str | None = None
    tag: str | None = None
    type: str | None = None
    from_us: int | None = None
    to_us: int | None = None

    def found(self, queries: Queries) -> Iterator[Found]:
        """The events that are there now, in order. The views are asked for what narrows the choice most."""
        return (one for one in self._query(queries).current(self.start, self.stop) if self._has(one.event))

    def live(self, queries: Queries) -> Iterator[Found]:
        """The same, and then those that come, for ever or up to the stop.

        RequestInvalid for a stop in a stream of several partitions, which have no common order.
        """
        stop, found = self.stop, self._query(queries).live(self.start)
        if stop is not None:
            if len(queries.stream.partitions()) > 1:
                raise RequestInvalid(
                    "A stream of several partitions is not followed up to a position",
                    next_step="Follow it without an end, or read what is there up to the position",
                )
            found = takewhile(lambda one: stop.covers(one.position), found)
        return (one for one in found if self._has(one.event))

    def batches(self, stream: Stream) -> Iterator[tuple[str, Offsets, pa.RecordBatch]]:
        """The events that are there now as they are stored, many at a time: partition, offsets, and themselves.

        Some may be empty. The whole range is read, whatever is asked for: at some millions of events a second.
        """
        start, stop = self.range(stream)
        questions = self._questions()
        for partition in stream.partitions():
            for first, batch in stream.batches(partition, start[partition], stop[partition]):
                wanted = np.ones(batch.num_rows, bool)
                for question in questions:
                    wanted &= question.matches(batch)
                rows = np.flatnonzero(wanted)
                yield partition, rows + first, batch if len(rows) == batch.num_rows else batch.take(pa.array(rows))

    def range(self, stream: Stream) -> tuple[Position, Position]:
        """From where to where it goes; PositionAhead or RequestInvalid if the journal has no such range."""
        end = stream.end()
        stop = self.stop or end
        for position in (self.start, stop):
            if not end.covers(position):
                raise PositionAhead(f"The journal ends at {end}, before {position}", next_step="Give a position in it")
        if not stop.covers(self.start):
            raise RequestInvalid(f"{self.start} lies behind {stop}", next_step="Give the earlier position first")
        return self.start, stop

    def _query(self, queries: Queries) -> Query[Found]:
        if self.entity is not None:
            return queries.entity(self.entity)
        if self.tag is not None:
            return queries.tagged(self.tag)
        if self.type is not None:
            return queries.typed(self.type)
        return queries.between(*self._times()) if self._is_timed() else queries.all()

    def _has(self, event: Event) -> bool:
        from_us, to_us = self._times()
        return (
            self.entity in (None, event.entity)
            and (self.tag is None or self.tag in event.tags)
            and self.type in (None, event.type)
            and from_us <= event.time_us < to_us
        )

    def _questions(self) -> list[Question]:
        found: list[Question] = []
        if self.entity is not None:
            found.append(EntityEvents(self.entity))
        if self.tag is not None:
            found.append(TaggedEvents(self.tag))
        if self.type is not None:
            found.append(TypedEvents(self.type))
        return [*found, EventsBetween(*self._times())] if self._is_timed() else found

    def _is_timed(self) -> bool:
        return (self.from_us, self.to_us) != (None, None)

    def _times(self) -> tuple[int, int]:
        return (
            TIME_US_MIN if self.from_us is None else self.from_us,
            TIME_US_MAX if self.to_us is None else self.to_us,
        )
