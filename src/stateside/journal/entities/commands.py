"""Entities: commands carried out. How one goes; a crash between any two steps leaves all of its events, or none:

1. The entity's image is taken from memory. If it is not there, the writer says which sequence the entity has, and
   `replay` finds the state: snapshot, views, tail of the stream.
2. The kind decides, and folds the events that it decided on: what it cannot fold is not stored.
3. The events are appended, if the entity is still where the image has it. So is nothing at all, if the command made no
   event or was refused: whatever who asks is told was decided in the state that the entity had then.
4. If it is not, others appended meanwhile: the image is brought up to date, and it goes on with step 2.
5. The image moves on, and now and then there is a snapshot of it.

Images: the states of the entities that were asked last, in memory. A bound holds; the least recently used goes.

Replay: an entity's state out of what is at hand (an image, else a snapshot) and the events behind that.

The events come from the queries: from the views as far as these have come, then from the stream itself; and where the
stream is made of several writers' logs and behind them, from the tail of these. Up to which sequence, the writer says,
in whose turn that is exact; so who appended just now reads that too.

What a replay begins with must be borne out by the log: the event that it was made up to is read again, and has the same
id. If not (the log was cut, or is another one) it begins with the first event. Where retention has dropped that event,
what was made up to it counts if it reaches up to the first one that is left; else EventsGone.
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
from stateside.journal.stream import Tailed, begin


@dataclass(frozen=True, slots=True)
class Image(Generic[State]):
    """An entity's state as of one of its events: the fold of all events up to there.

    `last_id` is that event's id; by it a log that was cut and went on otherwise is told. `kept` is the sequence of the
    newest snapshot that is known of.
    """

    state: State
    sequence: int = 0
    last_id: str | None = None
    kept: int = 0


class Images(Generic[State]):
    """Images by entity, so many at most. For any number of threads."""

    def __init__(self, images_max: int) -> None:
        self._images_max = images_max
        self._images: OrderedDict[str, Image[State]] = OrderedDict()
        self._changing = threading.Lock()

    def __len__(self) -> int:
        return len(self._images)

    def get(self, entity: str) -> Image[State] | None:
        """The entity's image, if it is there. It was used now."""
        with self._changing:
            image = self._images.get(entity)
            if image is not None:
                self._images.move_to_end(entity)
            return image

    def put(self, entity: str, image: Image[State]) -> None:
        """Have this image of the entity. It was used now."""
        with self._changing:
            self._images[entity] = image
            self._images.move_to_end(entity)
            while len(self._images) > self._images_max:
                self._images.popitem(last=False)


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
            self._snapshots.save(self._whose(entity), EntitySnapshot(image.sequence, image.last_id, state))
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


ACTIVE_MAX = 10_000
SNAPSHOT_EVERY = 100
CONFLICTS_MAX = 10
_LOCKS = 64


@dataclass(frozen=True, slots=True)
class CommandOutcome(Generic[State]):
    """What became of a command: its events as they are stored, their receipt, and the entity's state afterwards.

    `sequence` is that of the last event that the state has. Without events the receipt is the journal's end.
    """

    state: State
    sequence: int
    receipt: Receipt
    events: tuple[Event, ...] = ()


class EntityWriter(Protocol):
    """What entities need of a journal's writer, whatever it is stored on."""

    def append_to(self, entity: str, events: Sequence[Event], expected_sequence: int | None = None) -> Receipt:
        """Store events of one entity if its last one has the expected sequence."""

    def receipt_of(self, entity: str, id_: str) -> Receipt | None:
        """The receipt of one of the entity's events by its id."""


class Entities(Generic[State, Command]):
    """The entities of one kind. For any number of threads, and beside other processes with the same journal.

    In a process an entity's commands wait for each other; so `decide` must not ask. Memory: the states of `active_max`
    entities, and of one replay what a query needs. A replay is as quick as the views are near the stream's end: let
    somebody follow it (`Views.keep_following`). Snapshots are optional, and come every `snapshot_every` events.
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
        """The writer and the queries are of one journal. `conflicts_max`: so often a command is decided anew."""
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
        """Have the entity carry the command out; its events are durable then, all or none.

        What `decide` raises comes out here, and nothing was stored. SequenceConflict if others were first every time;
        JournalAway if it is not known whether the events are stored: with a `command_id` the same command may be asked
        again, here or in another process, and if its events are there they are the answer, not stored twice.
        """
        with self._lock(entity):
            done = None if command_id is None else self._done(entity, command_id)
            return done or self._attempts(entity, command, command_id)

    def look(self, entity: str) -> CommandOutcome[State]:
        """The entity's state as it is now, with all that anybody has appended."""
        with self._lock(entity):
            return self._look(entity)

    def _lock(self, entity: str) -> threading.Lock:
        return self._locks[hash(entity) % _LOCKS]

    def _look(self, entity: str) -> CommandOutcome[State]:
        """Steps 1, 3 and 4, of no command."""
        return self._until_current(entity, lambda image: self._unchanged(entity, image))

    def _attempts(self, entity: str, command: Command, command_id: str | None) -> CommandOutcome[State]:
        """All steps."""
        return self._until_current(entity, lambda image: self._attempt(entity, image, command, command_id))

    def _until_current(
        self, entity: str, attempt: Callable[[Image[State]], CommandOutcome[State]]
    ) -> CommandOutcome[State]:
        """What an attempt gives that found the entity where its image has it. SequenceConflict if none did."""
        image = self._images.get(entity) or self._found(entity)
        for _ in range(self._conflicts_max):
            try:
                return attempt(image)
            except SequenceConflict as conflict:
                image = self._moved(entity, image, conflict)
        return attempt(image)

    def _found(self, entity: str) -> Image[State]:
        """Step 1 of an entity that is not in memory."""
        image = Image(self._kind.initial())
        try:
            self._unchanged(entity, image)
        except SequenceConflict as conflict:
            return self._moved(entity, None, conflict)
        return image

    def _unchanged(self, entity: str, image: Image[State]) -> CommandOutcome[State]:
        """The entity as the image has it; SequenceConflict if it is not there any more. An append of nothing tells."""
        return CommandOutcome(image.state, image.sequence, self._writer.append_to(entity, (), image.sequence))

    def _moved(self, entity: str, image: Image[State] | None, conflict: SequenceConflict) -> Image[State]:
        """Step 4: the entity as it is at the sequence that the writer found."""
        assert conflict.current is not None, "the writer says where the entity is"
        return self._keep(entity, self._replay.image(entity, image, conflict.current))

    def _attempt(
        self, entity: str, image: Image[State], command: Command, command_id: str | None
    ) -> CommandOutcome[State]:
        """Steps 2, 3 and 5. SequenceConflict if the entity is not where the image has it."""
        try:
            events = self._decided(entity, image, command, command_id)
            read = tuple(map(self._queries.upcast, events))
            moved = self._replay.folded(image, read)
        except Exception:
            self._unchanged(entity, image)  # if it was changed, this came of a state that is past
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
        """The events that the kind decides on, as they will be read: by way of the journal's own encoding."""
        now_us, base = self._clock.now_us(), command_id or str(uuid4())
        decided = self._kind.decide(image.state, command)
        events = [_event(entity, _event_id(base, number), new, now_us) for number, new in enumerate(decided, 1)]
        stored = enumerate(decode(encode(events, now_us)), image.sequence + 1)
        return [replace(event, sequence=sequence, appended_us=None) for sequence, event in stored]

    def _append(
        self, entity: str, events: Sequence[Event], image: Image[State], command_id: str | None
    ) -> Receipt | None:
        """Step 3; None if the same command was carried out elsewhere since it was looked for."""
        try:
            receipt = self._writer.append_to(entity, events, image.sequence)
        except EventRefused:  # it may have made more events there, or fewer
            if command_id is None or self._writer.receipt_of(entity, _event_id(command_id, 1)) is None:
                raise
            return None
        return None if receipt.repeated else receipt

    def _done(self, entity: str, command_id: str) -> CommandOutcome[State] | None:
        """What became of a command before; None if no event of it is stored."""
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
    """The ids of a command's events: so they are found when it is asked again."""
    return f"{command_id}.{number}"
