"""Replay: an entity's state out of what is at hand (an image, else a snapshot) and the events behind that.

The events come from the queries: from the views as far as these have come, then from the stream itself; and where the
stream is made of several writers' logs and behind them, from the tail of these. Up to which sequence, the writer says,
in whose turn that is exact; so who appended just now reads that too.

What a replay begins with must be borne out by the log: the event that it was made up to is read again, and has the same
id. If not (the log was cut, or is another one) it begins with the first event. Where retention has dropped that event,
what was made up to it counts if it reaches up to the first one that is left; else EventsGone.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain
from typing import Any, Generic

import orjson

from stateside.errors import EventsGone, JournalCorrupt, NotFreshEnough
from stateside.journal.entities.entity import Command, Entity, State
from stateside.journal.entities.images import Image
from stateside.journal.entities.snapshots import PLAIN, Kept, Snapshots, Whose
from stateside.journal.event import Event
from stateside.journal.queries import Queries
from stateside.journal.stream import Tailed, begin

WAIT_S_MAX = 10.0  # for a stream that is behind what the writer knows
GONE_S_MAX = 1.0  # for events that are in no stream, where some were dropped: it may only be behind
PAUSE_S = 0.005

log = logging.getLogger(__name__)


class Replay(Generic[State, Command]):
    """Finds the states of one kind's entities."""

    def __init__(
        self, queries: Queries, kind: Entity[State, Command], snapshots: Snapshots | None, snapshot_every: int
    ) -> None:
        self._queries, self._kind = queries, kind
        self._snapshots, self._every = snapshots, snapshot_every

    def image(self, entity: str, at_hand: Image[State] | None, sequence: int) -> Image[State]:
        """The entity as of its event with this sequence, which is its last one.

        NotFreshEnough if the stream does not come so far in time, EventsGone if it has lost what is missing.
        """
        trimmed = bool(begin(self._queries.stream).parts)
        deadline_s = time.monotonic() + (GONE_S_MAX if trimmed else WAIT_S_MAX)
        image, reached = self._begin(entity, at_hand, sequence), sequence == 0
        while not reached:
            image, reached = self._advanced(entity, image, sequence)
            if not reached:
                _wait(entity, image.sequence, sequence, deadline_s, trimmed=trimmed)
        return image

    def folded(self, image: Image[State], events: Iterable[Event]) -> Image[State]:
        """The image after these events, which are the next ones and have no append times."""
        state, sequence, last_id, fold = image.state, image.sequence, image.last_id, self._kind.fold
        for event in events:
            sequence, last_id = sequence + 1, event.id
            if event.sequence != sequence:
                raise _gap(event, sequence)
            try:
                state = fold(state, event)
            except Exception as error:
                error.add_note(f"while {self._kind.kind} folded event {sequence} of {event.entity!r}, {event.id!r}")
                raise
        return replace(image, state=state, sequence=sequence, last_id=last_id)

    def events(self, entity: str, first: int, last: int) -> list[Event]:
        """The entity's events with these sequences, both included, that are still there."""
        return list(self._events(entity, first, last))

    def kept(self, entity: str, image: Image[State]) -> Image[State]:
        """The image, of which there is a snapshot now if it is time for one."""
        if self._snapshots is None or image.last_id is None or image.sequence - image.kept < self._every:
            return image
        try:
            state = self._dumped(image.state)
        except Exception as error:
            log.error("no snapshots of %s are kept, as its state cannot be dumped: %r", self._kind.kind, error)
        else:
            self._snapshots.save(self._whose(entity), Kept(image.sequence, image.last_id, state))
        return replace(image, kept=image.sequence)

    def _begin(self, entity: str, at_hand: Image[State] | None, sequence: int) -> Image[State]:
        """What is at hand, unless it is ahead of the log; else the entity before its first event."""
        image = self._snapshot(entity) if at_hand is None and sequence else at_hand
        if image is None or image.sequence > sequence:
            return Image(self._kind.initial())
        return image

    def _advanced(self, entity: str, image: Image[State], sequence: int) -> tuple[Image[State], bool]:
        """The image after the events that the stream has up to this sequence, and whether these are all.

        EventsGone if retention has dropped events that are not in the image.
        """
        begin_at = begin(self._queries.stream)
        found = map(_untimed, self._events(entity, max(1, image.sequence), sequence))
        head = next(found, None)
        if begin_at.parts and _is_next(entity, image.sequence, head, sequence):  # and what it was made up to is gone
            image = image if head is None else self.folded(image, chain([head], found))
            return image, image.sequence >= sequence
        if head is None:
            return image, False
        if image.sequence and head.id != image.last_id:
            log.warning("what was kept of %r is not borne out by the journal: it is replayed", entity)
            return self._advanced(entity, Image(self._kind.initial()), sequence)
        image = self.folded(image, found if image.sequence else chain([head], found))
        return image, image.sequence >= sequence

    def _events(self, entity: str, first: int, last: int) -> Iterator[Event]:
        """The events that the stream has, and behind them those of the tail of the logs that it is made of."""
        stream = self._queries.stream
        for found in self._queries.entity(entity, first, last).current(begin(stream)):
            yield found.event
            first = (found.event.sequence or 0) + 1
        if first <= last and isinstance(stream, Tailed):
            yield from map(self._queries.upcast, stream.tail(entity, first, last))

    def _snapshot(self, entity: str) -> Image[State] | None:
        kept = self._snapshots.load(self._whose(entity)) if self._snapshots else None
        if kept is None:
            return None
        try:
            return Image(self._kind.load(kept.state), kept.sequence, kept.last_id, kept.sequence)
        except Exception as error:
            log.error("%s cannot load its snapshot of %r, which is replayed: %r", self._kind.kind, entity, error)
            return None

    def _dumped(self, state: State) -> Any:
        """The state as it will be read back. ValueError if that is another one: the kind must be mended then."""
        dumped = orjson.loads(orjson.dumps(self._kind.dump(state), option=PLAIN))
        if self._kind.load(dumped) != state:
            raise ValueError("`load` of what `dump` gave is not the same state")
        return dumped

    def _whose(self, entity: str) -> Whose:
        return Whose(self._kind.kind, entity, self._kind.version, self._queries.stream.id())


def _untimed(event: Event) -> Event:
    """The event without its append time. It was made for this replay, so nobody sees it change: a copy takes 4 µs."""
    object.__setattr__(event, "appended_us", None)
    return event


def _is_next(entity: str, reached: int, head: Event | None, sequence: int) -> bool:
    """Whether what the stream still has of the entity begins just behind what is reached; EventsGone if later."""
    if head is None:
        return reached == sequence
    assert head.sequence is not None, "queries number all events"
    if head.sequence > reached + 1:
        raise _gone(entity, reached + 1, head.sequence - 1)
    return head.sequence == reached + 1


def _gone(entity: str, first: int, last: int) -> EventsGone:
    return EventsGone(
        f"Of {entity!r} the events with sequences {first} to {last} are gone, and no usable snapshot has them",
        next_step="Bring their segments back from a copy, or a snapshot of the same version of the fold; retention "
        "is for entities whose snapshots are kept",
    )


def _wait(entity: str, reached: int, sequence: int, deadline_s: float, *, trimmed: bool) -> None:
    if time.monotonic() >= deadline_s and trimmed:
        raise _gone(entity, reached + 1, sequence)
    if time.monotonic() >= deadline_s:
        raise NotFreshEnough(
            f"The stream has {entity!r} up to sequence {reached} only, its writer up to {sequence}",
            next_step="See whether the merger of the writers' logs runs, then ask again",
        )
    time.sleep(PAUSE_S)


def _gap(event: Event, wanted: int) -> JournalCorrupt:
    return JournalCorrupt(
        f"Of {event.entity!r} the event after sequence {wanted - 1} has sequence {event.sequence}",
        next_step="Look through the journal with `stateside journal verify`; nothing was skipped",
    )
