"""Entities: commands carried out. How one goes; a crash between any two steps leaves all of its events, or none:

1. The entity's image is taken from memory. If it is not there, the writer says which sequence the entity has, and
   `replay` finds the state: snapshot, views, tail of the stream.
2. The kind decides, and folds the events that it decided on: what it cannot fold is not stored.
3. The events are appended, if the entity is still where the image has it. So is nothing at all, if the command made no
   event or was refused: whatever who asks is told was decided in the state that the entity had then.
4. If it is not, others appended meanwhile: the image is brought up to date, and it goes on with step 2.
5. The image moves on, and now and then there is a snapshot of it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Protocol
from uuid import uuid4

from stateside.clock import Clock, SystemClock
from stateside.errors import EventRefused, SequenceConflict
from stateside.journal.columns import decode, encode
from stateside.journal.entities.entity import Command, Entity, NewEvent, State
from stateside.journal.entities.images import Image, Images
from stateside.journal.entities.replay import Replay
from stateside.journal.entities.snapshots import Snapshots
from stateside.journal.event import Event
from stateside.journal.queries import Queries
from stateside.journal.receipt import Receipt

ACTIVE_MAX = 10_000
SNAPSHOT_EVERY = 100
CONFLICTS_MAX = 10
_LOCKS = 64


@dataclass(frozen=True, slots=True)
class Outcome(Generic[State]):
    """What became of a command: its events as they are stored, their receipt, and the entity's state afterwards.

    `sequence` is that of the last event that the state has. Without events the receipt is the journal's end.
    """

    state: State
    sequence: int
    receipt: Receipt
    events: tuple[Event, ...] = ()


class Writer(Protocol):
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
        writer: Writer,
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

    def ask(self, entity: str, command: Command, *, command_id: str | None = None) -> Outcome[State]:
        """Have the entity carry the command out; its events are durable then, all or none.

        What `decide` raises comes out here, and nothing was stored. SequenceConflict if others were first every time;
        JournalAway if it is not known whether the events are stored: with a `command_id` the same command may be asked
        again, here or in another process, and if its events are there they are the answer, not stored twice.
        """
        with self._lock(entity):
            done = None if command_id is None else self._done(entity, command_id)
            return done or self._attempts(entity, command, command_id)

    def look(self, entity: str) -> Outcome[State]:
        """The entity's state as it is now, with all that anybody has appended."""
        with self._lock(entity):
            return self._look(entity)

    def _lock(self, entity: str) -> threading.Lock:
        return self._locks[hash(entity) % _LOCKS]

    def _look(self, entity: str) -> Outcome[State]:
        """Steps 1, 3 and 4, of no command."""
        return self._until_current(entity, lambda image: self._unchanged(entity, image))

    def _attempts(self, entity: str, command: Command, command_id: str | None) -> Outcome[State]:
        """All steps."""
        return self._until_current(entity, lambda image: self._attempt(entity, image, command, command_id))

    def _until_current(self, entity: str, attempt: Callable[[Image[State]], Outcome[State]]) -> Outcome[State]:
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

    def _unchanged(self, entity: str, image: Image[State]) -> Outcome[State]:
        """The entity as the image has it; SequenceConflict if it is not there any more. An append of nothing tells."""
        return Outcome(image.state, image.sequence, self._writer.append_to(entity, (), image.sequence))

    def _moved(self, entity: str, image: Image[State] | None, conflict: SequenceConflict) -> Image[State]:
        """Step 4: the entity as it is at the sequence that the writer found."""
        assert conflict.current is not None, "the writer says where the entity is"
        return self._keep(entity, self._replay.image(entity, image, conflict.current))

    def _attempt(self, entity: str, image: Image[State], command: Command, command_id: str | None) -> Outcome[State]:
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
        return Outcome(moved.state, moved.sequence, receipt, read)

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

    def _done(self, entity: str, command_id: str) -> Outcome[State] | None:
        """What became of a command before; None if no event of it is stored."""
        receipts: list[Receipt] = []
        while (receipt := self._writer.receipt_of(entity, _event_id(command_id, len(receipts) + 1))) is not None:
            receipts.append(receipt)
        if not receipts:
            return None
        now = self._look(entity)
        first, last = receipts[0].first_sequence, receipts[-1].last_sequence
        events = tuple(self._replay.events(entity, first, last))
        return Outcome(now.state, now.sequence, Receipt(receipts[-1].position, first, last, repeated=True), events)

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
