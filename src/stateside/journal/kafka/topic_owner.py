"""Appending to a journal on Kafka: the owner of partitions stores each append in one transaction."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import pyarrow as pa

from stateside.core.clock import Clock, SystemClock
from stateside.core.errors import JournalAway, StatesideError
from stateside.core.positions import Position
from stateside.journal import append_batch as append_batch_module
from stateside.journal.append_batch import Answers, Appended, AppendRequest, AppendTurn, Rows, events_of, settle
from stateside.journal.columns import conformed, encode
from stateside.journal.event import Event
from stateside.journal.group_commit import GroupCommit
from stateside.journal.index import numbered
from stateside.journal.kafka.admin import Admin, check_policy
from stateside.journal.kafka.messages import values_of
from stateside.journal.kafka.topic import Topic
from stateside.journal.kafka.topic_index import Moved, OwnedEvents, TopicEventPlace, position_of
from stateside.journal.kafka.topic_reader import KafkaJournal
from stateside.journal.kafka.transactions import (
    Delivered,
    Lane,
    Lanes,
    OnStep,
    Outgoing,
    ignore_step,
    in_doubt,
    own_all,
    own_some,
    wanted_partitions,
)
from stateside.journal.receipt import Receipt, StoredEvent, repeated

MESSAGE_BYTES_MAX = 1_000_000  # of a topic that does not say, or takes more
_BATCH_OVERHEAD_BYTES = 128  # what Kafka puts around messages
_ATTEMPTS = 3
_LOOK_S = 0.001

Result = TypeVar("Result")


class KafkaWriter:
    """The owner of a topic's partitions: of all of them, or of some. Threads may share it.

    The same appends as `JournalWriter` has, and the same promises. There is one owner of a partition at a time: who
    opens the journal takes its partitions over, at once, from whoever had them (`owner` has the argument).

    How a process becomes able to append:

    1. It opens its `index`, in the folder, and reads what the partitions have beyond that. EventsGone if retention
       deleted what it would have to read. Who is the owner meanwhile goes on: nobody is fenced for an attempt that
       fails here, nor while this takes long.
    2. It becomes the owner of its partitions (`owner`): from here on no other one can store anything in them.
    3. It reads what came meanwhile, up to the partitions' end: so it knows the last sequence of each entity, and where
       each event id stands.

    How an append is stored and acknowledged:

    1. The events are checked. An entity has its partition (`topic.partition_of`); EntityElsewhere if that is not one of
       this owner's.
    2. Ids that are there already: the first receipt. Else each event gets the next sequence of its entity.
    3. A transaction is begun, and the messages (`messages`) are sent. No reader sees them yet.
    4. All are acknowledged by all brokers that must have them (acks=all), each with its offset. If these are not the
       offsets just behind what this owner knows, somebody who is no owner has sent something to the topic, or it was
       made anew: the transaction is aborted, what is there is read, and it goes on with step 2.
    5. The transaction is committed: all of the append counts from now on, in one atomic step. Kafka refuses it if
       another owner is there: JournalFenced.
    6. The owner waits until the partitions' ends, as readers of committed events see them, lie behind the events.
    7. The index takes them in, in memory, and the receipt is returned: the position just behind the events, in their
       partitions.

    A crash before step 5 leaves an open transaction, which the next owner's step 1 has aborted. A crash after it leaves
    events that are stored without a receipt: the same append again, at any owner, gives the first one.

    Why sequences have no gap and no double: what an owner stored is settled before its successor reads (`owner`, step
    3), and the successor knows of all of it before it numbers anything. Nobody else stores anything in between.

    An append of several entities is one transaction, so all or none, if this is the owner of all partitions. An owner
    of some stores appends within one partition each, and refuses others (EventRefused).

    After an error that leaves it open whether an append is stored, this writer takes nothing more until it is opened
    again. What a loss of power does to acknowledged events the brokers decide: they have them in memory, on as many
    machines as the topic has copies in sync (`min.insync.replicas`), and write them to disk when they see fit.
    """

    def __init__(
        self,
        topic: Topic,
        folder: Path,
        *,
        partitions: Sequence[int] | None = None,
        clock: Clock | None = None,
        accept_gone: bool = False,
        pass_over: Iterable[str] = (),
        on_step: OnStep = ignore_step,
    ) -> None:
        """`folder`: for the index, which may be deleted. `partitions`: those to own; all of them if not given.

        `accept_gone`: where the index lacks what retention has deleted, go on without it. Entities of which no event is
        left then begin anew with sequence 1, and the ids of deleted events count as new. `pass_over`: messages that are
        no events, as `KafkaJournal` has it.
        """
        self.topic, self._clock, self._on_step = topic, clock or SystemClock(), on_step
        self._admin, self._journal = Admin(topic), KafkaJournal(topic, pass_over=pass_over)
        self._described = self._admin.described()
        settings = self._admin.settings()
        check_policy(topic, settings)
        self.partitions = wanted_partitions(topic, partitions, self._described.partitions)
        self._appending = threading.Lock()
        self._lanes = Lanes(topic, self._described.partitions, [])
        self._known = OwnedEvents(self._journal, self._described, self.partitions, folder, accept_gone)
        try:
            self._known.catch_up(self.partitions)
            self._known.write()
            self._own(partitions is None, int(settings.get("max.message.bytes", MESSAGE_BYTES_MAX)))
            self._known.catch_up(self.partitions)
        except BaseException:
            self.close()
            raise

    @property
    def journal_id(self) -> str:
        """Which journal this is: the topic's id."""
        return self._described.id

    @property
    def end(self) -> Position:
        """The position just behind the last event of each of this owner's partitions, as far as it knows."""
        return self._known.end(self.partitions)

    def append(self, events: Sequence[Event], *, compare_ids: bool = True) -> Position:
        """As of any journal's writer (`Appending.append`); threads that share it share its transactions, too.

        An owner of some partitions knows the ids that stand in those.
        """
        return self.append_each(events, compare_ids=compare_ids).position if events else self.end

    def append_each(
        self, events: Sequence[Event], *, compare_ids: bool = True, any_time: Collection[str] = ()
    ) -> Appended:
        """As of any journal's writer (`Appending.append_each`)."""
        request = AppendRequest(events, compare_ids=compare_ids, any_time=any_time)
        appended = self._groups[self._lanes.of(_entities(events))].append(request)
        assert isinstance(appended, Appended)
        return appended

    def append_batch(self, batch: pa.RecordBatch) -> Position:
        """Store events that already stand in a record batch; they get their sequences here, whatever the batch has.

        Ids are not compared.
        """
        batch = conformed(batch)
        return self._in_turn(
            self._lanes.of_batch(batch), lambda: _receipt(self._append(batch)) if batch.num_rows else self.end
        )

    def append_numbered(self, batch: pa.RecordBatch) -> Position:
        """Store events that have their sequences already, as they are: for who copies journals. Nothing is compared."""
        batch = conformed(batch)
        assert batch.column("sequence").null_count == 0, "each event must have its sequence"
        return self._in_turn(
            self._lanes.of_batch(batch), lambda: _receipt(self._store(batch)) if batch.num_rows else self.end
        )

    def append_to(self, entity: str, events: Sequence[Event], expected_sequence: int | None = None) -> Receipt:
        """Store events of one entity if its last one has the expected sequence (0: it has none yet).

        SequenceConflict, with the sequence that it has, if not. The same events again, known by their ids, are answered
        with the first receipt and not stored twice, whatever is expected. IdConflict if their content is another one,
        EventRefused if only some of the ids are there, or an event is another entity's.
        """
        receipt = self._groups[self._lanes.of([entity] if entity.isprintable() else [])].append(
            AppendRequest(events, entity, expected_sequence)
        )
        assert isinstance(receipt, Receipt)
        return receipt

    def receipt_of(self, entity: str, id_: str) -> Receipt | None:
        """The receipt of one of the entity's events by its id; None if no event has that id.

        EventRefused if it is another entity's.
        """

        def act() -> Receipt | None:
            stored = self._known.stored([id_])
            return repeated(entity, (), stored) if stored else None

        return self._in_turn(self._lanes.of([entity]), act)

    def append_unstored(self, events: Sequence[Event], since: Position) -> Position:
        """Repeat an append that got no receipt; `since` is the last receipt of its producer. The receipt covers all.

        As `append`, which knows by itself what is stored; the position is checked, and spares nothing any more.
        """
        for number in self.partitions:
            at = since[str(number)]
            for _ in self._journal.located(str(number), at, at):  # PositionInvalid beyond the end
                pass
        return self.append(events)

    def append_once(self, events: Sequence[Event]) -> list[int]:
        """As `append`; the offset of each event in its partition, of one that was there before the stored one's."""
        if not events:
            return []
        place = self.append_each(events).place
        return [place(number).offset for number in range(len(events))]

    def close(self) -> None:
        """Append no more. Everything acknowledged is stored already."""
        with self._appending:
            self._lanes.end(JournalAway("This writer is closed", where=self.topic.where, next_step="Open another one"))
            self._journal.close()
            self._known.close()

    def __enter__(self) -> KafkaWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _own(self, of_all: bool, message_bytes_max: int) -> None:
        size = min(MESSAGE_BYTES_MAX, max(1_000, message_bytes_max - _BATCH_OVERHEAD_BYTES))
        if of_all:
            lanes = [own_all(self.topic, self._described.partitions, size)]
        else:
            lanes = own_some(self.topic, self.partitions, size)
        self._lanes = Lanes(self.topic, self._described.partitions, lanes)
        self._groups = {lane: GroupCommit(partial(self._append_together, lane)) for lane in lanes}

    def _in_turn(self, lane: Lane, act: Callable[[], Result]) -> Result:
        """What is done in one turn; anew, if it turned out that the partitions have more than was known.

        A lane that takes nothing more answers nothing either: what is known of its partitions may not be true any more.
        """
        with self._appending:
            lane.check_open()
            for _ in range(_ATTEMPTS):
                try:
                    return act()
                except Moved as moved:
                    with self._ending():
                        self._await_visible(moved.delivered, "An append was taken back, but readers still wait for it")
                        self._known.catch_up(list(moved.delivered))
        raise JournalAway(
            "Others send to this topic all the time, who are not its owner",
            where=self.topic.where,
            next_step="Nothing was stored. Have them write to another topic, or through the owner",
        )

    def _append_together(self, lane: Lane, requests: Sequence[AppendRequest]) -> Answers:
        """What a group of threads appends."""
        batch = encode(events_of(requests), self._clock.now_us())
        turn = AppendTurn(self._places, self._known.contents, self._stored_of, self._known.lasts, self._append_parts)
        return self._in_turn(lane, lambda: settle(requests, batch, turn))

    def _stored_of(self, requests: Sequence[AppendRequest]) -> list[Sequence[StoredEvent]]:
        return [self._known.stored([event.id for event in request.events]) for request in requests]

    def _places(self, ids: Sequence[str]) -> list[append_batch_module.EventPlace | None]:
        return [None if place is None else _placed(place) for place in self._known.places(ids)]

    def _append_parts(self, batch: pa.RecordBatch, parts: Sequence[Rows]) -> list[Appended]:
        places = self._append(batch) if batch.num_rows else []
        return [self._appended(places[low:high]) for low, high in parts]

    def _appended(self, places: Sequence[TopicEventPlace]) -> Appended:
        return Appended(_receipt(places) if places else self.end, lambda number: _placed(places[number]))

    def _append(self, batch: pa.RecordBatch) -> list[TopicEventPlace]:
        """Number the events and store them, in a turn; where each stands."""
        batch, _ = numbered(batch, self._known.lasts)
        return self._store(batch)

    def _store(self, batch: pa.RecordBatch) -> list[TopicEventPlace]:
        """Steps 3 to 7, in a turn."""
        entities, lane = batch.column("entity").to_pylist(), self._lanes.of_batch(batch)
        partitions = [self._known.partition_of(entity) for entity in entities]
        self._known.make_room()
        delivered = lane.store(self._messages(batch, partitions), self._known.check, self._on_step)
        with self._ending():
            self._on_step(6)
            ends = self._await_visible(delivered, "The last append is stored, but readers do not see it yet")
            self._on_step(7)
            return self._known.note(batch, partitions, delivered, ends)

    def _messages(self, batch: pa.RecordBatch, partitions: Sequence[int]) -> list[Outgoing]:
        times_ms = (us // 1_000 for us in batch.column("appended").cast(pa.int64()).to_pylist())
        keys = (entity.encode() for entity in batch.column("entity").to_pylist())
        parts = zip(partitions, keys, values_of(batch), times_ms, strict=True)
        return [Outgoing(*part) for part in parts]

    def _await_visible(self, delivered: Delivered, what: str) -> Mapping[int, int]:
        """Step 6: Kafka moves the ends a moment after it has taken the commit, or the abort. Where they are then."""
        deadline = time.monotonic() + self.topic.answer_s_max
        while True:
            ends = self._admin.ends(delivered)
            if all(ends[number] > offsets[-1] for number, offsets in delivered.items()):
                return ends
            if time.monotonic() > deadline:
                raise JournalAway(
                    what,
                    where=self.topic.where,
                    next_step="See that all brokers run, and who else has a transaction open in this topic. "
                    "Open the journal again; the same append then gives the receipt",
                )
            time.sleep(_LOOK_S)

    @contextmanager
    def _ending(self) -> Iterator[None]:
        """After what goes wrong here this writer takes nothing more: it does not know what the topic has."""
        try:
            yield
        except StatesideError as error:
            self._lanes.end(error)
            raise
        except BaseException as error:
            self._lanes.end(in_doubt(type(error).__name__, self.topic))
            raise


def _entities(events: Sequence[Event]) -> list[str]:
    """The entities of what may be events; the others are refused for what they are, later."""
    found = {event.entity for event in events if isinstance(event, Event) and isinstance(event.entity, str)}
    return sorted(entity for entity in found if entity.isprintable())


def _placed(place: TopicEventPlace) -> append_batch_module.EventPlace:
    return append_batch_module.EventPlace(str(place.partition), place.offset)


def _receipt(places: Sequence[TopicEventPlace]) -> Position:
    """The position just behind these events, in their partitions."""
    behind: dict[int, int] = {}
    for place in places:
        behind[place.partition] = max(place.offset + 1, behind.get(place.partition, 0))
    return position_of(behind)
