"""Append, independent of the backend: check events, assign sequences, compare ids with stored events, store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager

import pyarrow as pa
import pyarrow.compute as pc

from stateside.core.clock import Clock
from stateside.core.errors import EventsGone, JournalCorrupt
from stateside.core.positions import Position
from stateside.journal.append_batch import (
    Answers,
    Appended,
    AppendRequest,
    AppendTurn,
    EventPlace,
    Found,
    Rows,
    events_of,
    read_contents,
    settle,
)
from stateside.journal.backends.files.segment import PARTITION
from stateside.journal.columns import conformed, encode
from stateside.journal.event import Event
from stateside.journal.group_commit import GroupCommit
from stateside.journal.index import numbered
from stateside.journal.receipt import Receipt, StoredEvent, repeated


class Appending(ABC):
    """A writer's appends. A backend supplies its turns, its storage and its knowledge of ids and sequences.

    Each append uses one turn and stores all its events or none. Each event gets the sequence after the last one of its
    entity: an entity's events are 1, 2, 3, …, without gaps.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._group = GroupCommit(self._append_together)

    @property
    def end(self) -> Position:
        """The position after the last durable event, as of this writer's last turn."""
        return Position.of({PARTITION: self._offset})

    def append(self, events: Sequence[Event], *, compare_ids: bool = True) -> Position:
        """Store the events, all or none, and return their receipt once they are durable.

        An id is stored once: an event already stored with the same content is not stored again, and the receipt covers
        the stored event. IdConflict if the journal, or this append, has the id with other content. A producer that
        guarantees unique ids can skip the lookup (`compare_ids=False`): a repeated id is then stored again.

        Threads that share a writer share its syncs (`group_commit`), so many threads store more per second than one.
        """
        return self.append_each(events, compare_ids=compare_ids).position if events else self.end

    def append_each(
        self, events: Sequence[Event], *, compare_ids: bool = True, any_time: Collection[str] = ()
    ) -> Appended:
        """As `append`; returns the place of each event, and which events were stored before.

        `any_time`: ids of events whose producer gave no time; their times are not compared.
        """
        appended = self._group.append(AppendRequest(events, compare_ids=compare_ids, any_time=any_time))
        assert isinstance(appended, Appended)
        return appended

    def append_batch(self, batch: pa.RecordBatch) -> Position:
        """Store the events of a record batch with at least the columns `columns.GIVEN`.

        The journal assigns the sequences, whatever the batch has. Ids are not compared: for producers that guarantee
        unique ids, and for copies of streams with repetitions.
        """
        batch = conformed(batch)
        with self._turn():
            return self._append(batch)

    def append_numbered(self, batch: pa.RecordBatch) -> Position:
        """Store events with the sequences they already have, to copy or merge journals.

        Nothing is compared: the caller guarantees sequences without gaps for every entity.
        """
        batch = conformed(batch)
        assert batch.column("sequence").null_count == 0, "each event must have its sequence"
        with self._turn():
            if batch.num_rows:
                self._lasts(())  # `_note` needs the state of all earlier events
                self._store(batch)
                self._note(dict(zip(*(batch.column(name).to_pylist() for name in ("entity", "sequence")), strict=True)))
            return self.end

    def append_to(self, entity: str, events: Sequence[Event], expected_sequence: int | None = None) -> Receipt:
        """Store events of one entity if its last event has the expected sequence (0: the entity has no event yet).

        Otherwise SequenceConflict, with the current sequence. The same events again, recognised by their ids, get the
        first receipt and are not stored twice, whatever sequence is expected. IdConflict if their content differs;
        EventRefused if only some of the ids are stored, or an event belongs to another entity.
        """
        receipt = self._group.append(AppendRequest(events, entity, expected_sequence))
        assert isinstance(receipt, Receipt)
        return receipt

    def receipt_of(self, entity: str, id_: str) -> Receipt | None:
        """The receipt of the entity's event with this id; None if no event has the id.

        IdConflict if the event belongs to another entity.
        """
        with self._turn():
            (offset,) = self._offsets([id_])
            return None if offset is None else repeated(entity, (), self._stored([offset]))

    def append_unstored(self, events: Sequence[Event], since: Position) -> Position:
        """Repeat an append without a receipt; `since` is its producer's last receipt. The receipt covers all events.

        Same as `append`, whose id lookup finds stored events; `since` is only checked.
        """
        self._check_since(since)
        return self.append(events)

    def append_once(self, events: Sequence[Event]) -> list[int]:
        """As `append`; returns the offset of each event, or of its stored original.

        The receipt of an event is the position just after its offset.
        """
        if not events:
            return []
        place = self.append_each(events).place
        return [place(number).offset for number in range(len(events))]

    def _append_together(self, requests: Sequence[AppendRequest]) -> Answers:
        batch = encode(events_of(requests), self._clock.now_us())
        with self._turn():
            turn = AppendTurn(self._places, self._contents, self._stored_of, self._lasts, self._append_parts)
            return settle(requests, batch, turn)

    def _check_since(self, since: Position) -> None:
        if since[PARTITION] > self._offset:
            with self._turn():
                for _ in self._read(since[PARTITION], self._offset):  # PositionInvalid
                    pass

    def _places(self, ids: Sequence[str]) -> list[EventPlace | None]:
        return [None if offset is None else EventPlace(PARTITION, offset) for offset in self._offsets(ids)]

    def _contents(self, places: Collection[EventPlace]) -> dict[EventPlace, Found]:
        def read(start: int, stop: int) -> Iterator[tuple[range, pa.RecordBatch]]:
            for first, batch in self._read(start, stop):
                yield range(first, first + batch.num_rows), conformed(batch)

        return read_contents(read, PARTITION, [place.offset for place in places])

    def _stored_of(self, requests: Sequence[AppendRequest]) -> list[list[StoredEvent]]:
        offsets = iter(self._offsets([event.id for event in events_of(requests)]))
        each = [{event.id: next(offsets) for event in request.events} for request in requests]
        return [self._known({id_: offset for id_, offset in some.items() if offset is not None}) for some in each]

    def _known(self, offsets: Mapping[str, int]) -> list[StoredEvent]:
        """The stored events with these ids; if reading fails, only the first of them, without content."""
        try:
            return self._stored(list(offsets.values()))
        except (EventsGone, JournalCorrupt) as error:
            first = min(offsets, key=lambda id_: offsets[id_])
            return [StoredEvent.without_content(offsets[first], first, error)]

    def _append_parts(self, batch: pa.RecordBatch, parts: Sequence[Rows]) -> list[Appended]:
        first = self._offset
        self._append(batch)
        return [_appended(first + low, first + high) for low, high in parts]

    def _append(self, batch: pa.RecordBatch) -> Position:
        """Assign sequences and store, within this writer's turn."""
        if batch.num_rows:
            batch, lasts = numbered(batch, self._lasts)
            self._store(batch)
            self._note(lasts)
        return self.end

    def _stored(self, offsets: Sequence[int]) -> list[StoredEvent]:
        found: list[StoredEvent] = []
        if not offsets:
            return found
        for first, batch in self._read(min(offsets), max(offsets) + 1):
            for offset in offsets:
                if first <= offset < first + batch.num_rows:
                    id_, entity, sequence = (batch.column(name)[offset - first].as_py() for name in _KNOWN_BY)
                    found.append(StoredEvent(offset, id_, entity, sequence or self._counted(entity, offset)))
        return found

    def _counted(self, entity: str, offset: int) -> int:
        """The sequence of an event stored before sequences existed: its rank among its entity's events."""
        batches = self._read(0, offset + 1)
        return sum(pc.sum(pc.equal(batch.column("entity"), entity)).as_py() or 0 for _, batch in batches)

    @property
    @abstractmethod
    def _offset(self) -> int:
        """The journal's end, as of this writer's last turn."""

    @abstractmethod
    def _turn(self) -> AbstractContextManager[None]:
        """Exclude all other writers; within the turn `_offset` is the journal's end."""

    @abstractmethod
    def _store(self, batch: pa.RecordBatch) -> None:
        """Store the batch at the end, all or nothing; on return the batch is durable and visible to readers."""

    @abstractmethod
    def _read(self, start: int, stop: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The events of an offset range, each batch with its first offset."""

    @abstractmethod
    def _offsets(self, ids: Sequence[str]) -> Sequence[int | None]:
        """The offset of the first event with each id; None for an id without event."""

    @abstractmethod
    def _lasts(self, entities: Sequence[str]) -> Sequence[int]:
        """The sequence of each entity's last event; 0 for an entity without events."""

    @abstractmethod
    def _note(self, lasts: Mapping[str, int]) -> None:
        """Record the last sequences after `_store`; `_lasts` was called before. Must not fail."""


def _appended(first: int, behind: int) -> Appended:
    position = Position(((PARTITION, behind),)) if behind else Position.start()
    return Appended(position, lambda number: EventPlace(PARTITION, first + number))


_KNOWN_BY = ("id", "entity", "sequence")
