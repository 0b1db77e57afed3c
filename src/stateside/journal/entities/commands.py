"""Commands: entities execute them, from a cached or replayed state, as conditional appends.

How a command is executed; a crash between any two steps leaves all of its events, or none:

1. The entity's image is taken from memory. Without an image, the writer reports the entity's sequence, and `Replay`
   rebuilds the state: snapshot, views, tail of the stream.
2. The kind decides, and folds the decided events: an event that cannot be folded is not stored.
3. The events are appended, if the entity's sequence is still the image's. A command without events, or a refused one,
   appends nothing under the same condition: every answer to the caller was decided in the entity's state of that
   moment.
4. If the sequence differs, other processes appended meanwhile: the image is updated, and execution returns to step 2.
5. The image moves on, and now and then a snapshot is stored.

`Images` caches the states of recently used entities in memory: a bounded LRU cache.

`Replay` builds an entity's state from an image, else a snapshot, and the events after it. The events come from the
queries: from the views as far as they reach, then from the stream itself, and, if the stream is merged from several
writers' logs and behind them, from the tail of the logs. The writer reports the last sequence, exact within its turn;
so a replay includes the caller's own latest append.

The log must confirm a replay's starting point: the event at its sequence is read again, and must have the same id. If
not (the log was cut, or is another one) the replay starts with the first event. If retention has dropped that event,
the starting point counts if it reaches up to the first remaining event; else EventsGone.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Generic, Protocol
from uuid import uuid4

import orjson

from stateside.core.clock import Clock, SystemClock
from stateside.core.errors import EventRefused, EventsGone, JournalCorrupt, NotFreshEnough, SequenceConflict
from stateside.journal.columns import decode, encode
from stateside.journal.entities.entity import Command, Entity, NewEvent, State
from stateside.journal.entities.snapshots import PLAIN, EntitySnapshot, Snapshots, Whose
from stateside.journal.event import Event
from stateside.journal.queries import Queries
from stateside.journal.receipt import Receipt


@dataclass(frozen=True, slots=True)
class Image(Generic[State]):
    """An entity's state as of one of its events: the fold of all events up to there.

    `last_id` is the event's id, which reveals a log that was cut and continued differently. `kept` is the sequence of
    the newest known snapshot.
    """

    state: State
    sequence: int = 0
    last_id: str | None = None
    kept: int = 0


class Images(Generic[State]):
    """A bounded LRU cache of images by entity. For any number of threads."""

    def __init__(self, images_max: int) -> None:
        self._images_max = images_max
        self._images: OrderedDict[str, Image[State]] = OrderedDict()
        self._changing = threading.Lock()

    def __len__(self) -> int:
        return len(self._images)

    def get(self, entity: str) -> Image[State] | None:
        """The entity's image, if cached; marks the image as used."""
        with self._changing:
            image = self._images.get(entity)
            if image is not None:
                self._images.move_to_end(entity)
            return image

    def put(self, entity: str, image: Image[State]) -> None:
        """Cache the entity's image, as most recently used."""
        with self._changing:
            self._images[entity] = image
            self._images.move_to_end(entity)
            while len(self._images) > self._images_max:
                self._images.popitem(last=False)


WAIT_S_MAX = 10.0  # for a stream that is behind its writer
GONE_S_MAX = 1.0  # for missing events of a trimmed stream, which may only be behind
PAUSE_S = 0.005
log = logging.getLogger(__name__)


class Replay(Generic[State, Command]):
    """Rebuilds the states of one kind's entities."""

    def __init__(
        self, queries: Queries, kind: Entity[State, Command], snapshots: Snapshots | None, snapshot_every: int
    ) -> None:
        self._queries, self._kind = queries, kind
        self._snapshots, self._every = snapshots, snapshot_every

    def image(self, entity: str, at_hand: Image[State] | None, sequence: int) -> Image[State]:
        """The entity as of its event with this sequence, its last one.

        NotFreshEnough if the stream does not reach the sequence in time, EventsGone if retention dropped events.
        """
        trimmed = bool(self._queries.stream.begin().parts)
        deadline_s = time.monotonic() + (GONE_S_MAX if trimmed else WAIT_S_MAX)
        image, reached = self._begin(entity, at_hand, sequence), sequence == 0
        while not reached:
            image, reached = self._advanced(entity, image, sequence)
            if not reached:
                _wait(entity, image.sequence, sequence, deadline_s, trimmed=trimmed)
        return image

    def folded(self, image: Image[State], events: Iterable[Event]) -> Image[State]:
        """The image after these events, the next ones, without append times."""
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
        """The entity's events with these sequences, both included, that were not dropped."""
        return list(self._events(entity, first, last))

    def kept(self, entity: str, image: Image[State]) -> Image[State]:
        """The image, after storing a snapshot if one is due."""
        if self._snapshots is None or image.last_id is None or image.sequence - image.kept < self._every:
            return image
        try:
            state = self._dumped(image.state)
        except Exception as error:
            log.error("no snapshots of %s are kept, as its state cannot be dumped: %r", self._kind.kind, error)
        else:
            self._snapshots.save(self._whose(entity), EntitySnapshot(image.sequence, image.last_id, state))
        return replace(image, kept=image.sequence)

    def _begin(self, entity: str, at_hand: Image[State] | None, sequence: int) -> Image[State]:
        """The image at hand, unless ahead of the log; else the entity before its first event."""
        image = self._snapshot(entity) if at_hand is None and sequence else at_hand
        if image is None or image.sequence > sequence:
            return Image(self._kind.initial())
        return image

    def _advanced(self, entity: str, image: Image[State], sequence: int) -> tuple[Image[State], bool]:
        """The image after the stream's events up to this sequence, and whether the sequence was reached.

        EventsGone if retention has dropped events that the image lacks.
        """
        begin_at = self._queries.stream.begin()
        found = map(_untimed, self._events(entity, max(1, image.sequence), sequence))
        head = next(found, None)
        if begin_at.parts and _is_next(entity, image.sequence, head, sequence):  # and the image's last event is gone
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
        """The stream's events, then those from the tail of its logs."""
        stream = self._queries.stream
        for found in self._queries.entity(entity, first, last).current(stream.begin()):
            yield found.event
            first = (found.event.sequence or 0) + 1
        if first <= last:
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
        """The state as it will be read back. ValueError if the result differs: the kind has a bug."""
        dumped = orjson.loads(orjson.dumps(self._kind.dump(state), option=PLAIN))
        if self._kind.load(dumped) != state:
            raise ValueError("`load` of what `dump` gave is not the same state")
        return dumped

    def _whose(self, entity: str) -> Whose:
        return Whose(self._kind.kind, entity, self._kind.version, self._queries.stream.id())


def _untimed(event: Event) -> Event:
    """The event without its append time. Mutated in place, as only this replay has the event: a copy takes 4 µs."""
    object.__setattr__(event, "appended_us", None)
    return event


def _is_next(entity: str, reached: int, head: Event | None, sequence: int) -> bool:
    """Whether the remaining events of the entity begin just after `reached`; EventsGone if later."""
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


ACTIVE_MAX = 10_000
SNAPSHOT_EVERY = 100
CONFLICTS_MAX = 10
_LOCKS = 64


@dataclass(frozen=True, slots=True)
class CommandOutcome(Generic[State]):
    """The outcome of a command: its stored events, their receipt, and the entity's state afterwards.

    `sequence` is the sequence of the last event in the state. Without events the receipt is the journal's end.
    """

    state: State
    sequence: int
    receipt: Receipt
    events: tuple[Event, ...] = ()


class EntityWriter(Protocol):
    """The writer's methods that entities need, on any backend."""

    def append_to(self, entity: str, events: Sequence[Event], expected_sequence: int | None = None) -> Receipt:
        """Store events of one entity if its last event has the expected sequence."""

    def receipt_of(self, entity: str, id_: str) -> Receipt | None:
        """The receipt of the entity's event with this id."""


class Entities(Generic[State, Command]):
    """The entities of one kind. For any number of threads, and beside other processes on the same journal.

    In a process an entity's commands wait for each other, so `decide` must not call `ask`. Memory: the states of
    `active_max` entities and, during a replay, the memory of one query. A replay is fast if the views are near the
    stream's end: let a process follow it (`QueryViews.keep_following`). Snapshots are optional, and taken every
    `snapshot_every` events.
    """

    def __init__(
        self,
        writer: EntityWriter,
        queries: Queries,
        kind: Entity[State, Command],
        *,
        snapshots: Snapshots | None = None,
        snapshot_every: int = SNAPSHOT_EVERY,
        active_max: int = ACTIVE_MAX,
        conflicts_max: int = CONFLICTS_MAX,
        clock: Clock | None = None,
    ) -> None:
        """Writer and queries must be of one journal. `conflicts_max`: how often a command is decided again."""
        self._writer, self._queries, self._kind = writer, queries, kind
        self._replay = Replay(queries, kind, snapshots, snapshot_every)
        self._images: Images[State] = Images(active_max)
        self._conflicts_max = conflicts_max
        self._clock = clock or SystemClock()
        self._locks = [threading.Lock() for _ in range(_LOCKS)]

    @property
    def active(self) -> int:
        """How many entities are in memory."""
        return len(self._images)

    def ask(self, entity: str, command: Command, *, command_id: str | None = None) -> CommandOutcome[State]:
        """Execute the command; on return its events are durable, all or none.

        Exceptions of `decide` are raised here, with nothing stored. SequenceConflict if other processes were first
        every time; JournalAway if it is unknown whether the events are stored: with a `command_id` the same command may
        be repeated, here or in another process, and is answered with its stored events if they exist, not stored twice.
        """
        with self._lock(entity):
            done = None if command_id is None else self._done(entity, command_id)
            return done or self._attempts(entity, command, command_id)

    def look(self, entity: str) -> CommandOutcome[State]:
        """The entity's present state, with the appends of all processes."""
        with self._lock(entity):
            return self._look(entity)

    def _lock(self, entity: str) -> threading.Lock:
        return self._locks[hash(entity) % _LOCKS]

    def _look(self, entity: str) -> CommandOutcome[State]:
        """Steps 1, 3 and 4, without a command."""
        return self._until_current(entity, lambda image: self._unchanged(entity, image))

    def _attempts(self, entity: str, command: Command, command_id: str | None) -> CommandOutcome[State]:
        return self._until_current(entity, lambda image: self._attempt(entity, image, command, command_id))

    def _until_current(
        self, entity: str, attempt: Callable[[Image[State]], CommandOutcome[State]]
    ) -> CommandOutcome[State]:
        """The result of the attempt that found the entity at its image's sequence. SequenceConflict if none did."""
        image = self._images.get(entity) or self._found(entity)
        for _ in range(self._conflicts_max):
            try:
                return attempt(image)
            except SequenceConflict as conflict:
                image = self._moved(entity, image, conflict)
        return attempt(image)

    def _found(self, entity: str) -> Image[State]:
        """Step 1 for an entity that is not in memory."""
        image = Image(self._kind.initial())
        try:
            self._unchanged(entity, image)
        except SequenceConflict as conflict:
            return self._moved(entity, None, conflict)
        return image

    def _unchanged(self, entity: str, image: Image[State]) -> CommandOutcome[State]:
        """The entity as in the image; SequenceConflict if outdated, as reported by an append of nothing."""
        return CommandOutcome(image.state, image.sequence, self._writer.append_to(entity, (), image.sequence))

    def _moved(self, entity: str, image: Image[State] | None, conflict: SequenceConflict) -> Image[State]:
        """Step 4: the entity at the sequence that the writer reported."""
        assert conflict.current is not None, "the writer says where the entity is"
        return self._keep(entity, self._replay.image(entity, image, conflict.current))

    def _attempt(
        self, entity: str, image: Image[State], command: Command, command_id: str | None
    ) -> CommandOutcome[State]:
        """Steps 2, 3 and 5. SequenceConflict if the image is outdated."""
        try:
            events = self._decided(entity, image, command, command_id)
            read = tuple(map(self._queries.upcast, events))
            moved = self._replay.folded(image, read)
        except Exception:
            self._unchanged(entity, image)  # SequenceConflict if the exception came from an outdated state
            raise
        receipt = self._append(entity, events, image, command_id)
        if receipt is None:
            assert command_id is not None, "only a command with an id can be carried out twice"
            done = self._done(entity, command_id)
            assert done is not None, "its first event is there"
            return done
        if events:
            moved = self._keep(entity, moved)
        return CommandOutcome(moved.state, moved.sequence, receipt, read)

    def _decided(self, entity: str, image: Image[State], command: Command, command_id: str | None) -> list[Event]:
        """The decided events as they will be read: passed through the journal's own encoding."""
        now_us, base = self._clock.now_us(), command_id or str(uuid4())
        decided = self._kind.decide(image.state, command)
        events = [_event(entity, _event_id(base, number), new, now_us) for number, new in enumerate(decided, 1)]
        stored = enumerate(decode(encode(events, now_us)), image.sequence + 1)
        return [replace(event, sequence=sequence, appended_us=None) for sequence, event in stored]

    def _append(
        self, entity: str, events: Sequence[Event], image: Image[State], command_id: str | None
    ) -> Receipt | None:
        """Step 3; None if the same command was executed elsewhere since the lookup."""
        try:
            receipt = self._writer.append_to(entity, events, image.sequence)
        except EventRefused:  # elsewhere the command may have made more events, or fewer
            if command_id is None or self._writer.receipt_of(entity, _event_id(command_id, 1)) is None:
                raise
            return None
        return None if receipt.repeated else receipt

    def _done(self, entity: str, command_id: str) -> CommandOutcome[State] | None:
        """The outcome of an earlier execution of a command; None if none of its events is stored."""
        receipts: list[Receipt] = []
        while (receipt := self._writer.receipt_of(entity, _event_id(command_id, len(receipts) + 1))) is not None:
            receipts.append(receipt)
        if not receipts:
            return None
        now = self._look(entity)
        first, last = receipts[0].first_sequence, receipts[-1].last_sequence
        events = tuple(self._replay.events(entity, first, last))
        return CommandOutcome(
            now.state, now.sequence, Receipt(receipts[-1].position, first, last, repeated=True), events
        )

    def _keep(self, entity: str, image: Image[State]) -> Image[State]:
        """Step 5."""
        image = self._replay.kept(entity, image)
        self._images.put(entity, image)
        return image


def _event(entity: str, id_: str, new: NewEvent, now_us: int) -> Event:
    time_us = now_us if new.time_us is None else new.time_us
    return Event(id_, entity, new.type, time_us, new.payload, new.tags, version=new.version, metadata=new.metadata)


def _event_id(command_id: str, number: int) -> str:
    """Derived from the command's id, so that a repeated command finds its events."""
    return f"{command_id}.{number}"
