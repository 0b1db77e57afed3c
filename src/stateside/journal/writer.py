"""Append, whatever the journal is stored on: check events, assign sequences, compare ids with stored events, store.

`GroupedWriter` has the appends of a `contract.Writer`, which threads share by a group commit. `LogWriter` settles a
group in one turn, over a backend's log (turn, store, read, end) and its index (last sequences, places of ids).
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Protocol, Self, TypeVar
from weakref import WeakSet

import pyarrow as pa
import pyarrow.compute as pc

from stateside.core.clock import Clock
from stateside.core.positions import Position
from stateside.journal.append_batch import (
    Answers,
    Appended,
    AppendRequest,
    AppendTurn,
    EventPlace,
    Found,
    Rows,
    contents_at,
    events_of,
    settle,
    stored_at,
)
from stateside.journal.columns import conformed, encode
from stateside.journal.event import Event
from stateside.journal.group_commit import GroupCommit, Told
from stateside.journal.index import numbered
from stateside.journal.receipt import Receipt, StoredEvent, repeated

Result = TypeVar("Result")
Names = Callable[[], Iterable[str]]  # the entities of an append, computed only by backends that need them


class StoredRows(Protocol):
    """The places of the rows of a stored batch."""

    def appended(self, low: int, high: int) -> Appended:
        """The answer to an append of the rows low <= row < high."""


class OneLog:
    """Rows stored one after the other in one log, from offset `first` on."""

    __slots__ = ("_first", "_log")

    def __init__(self, log: str, first: int) -> None:
        self._log, self._first = log, first

    def appended(self, low: int, high: int) -> Appended:
        log, first = self._log, self._first + low
        return Appended(Position(((log, self._first + high),)), lambda number: EventPlace(log, first + number))


class GroupedWriter(ABC):
    """The appends of a writer, as the contract has them. Threads that share a writer share its syncs.

    A forked child has one thread only: what its parent's threads hold and lead belongs to threads that do not exist.
    """

    def __init__(self) -> None:
        self._begin_threads()
        _WRITERS.add(self)

    def _begin_threads(self) -> None:
        """The state that threads share, without any thread in it."""
        self._appending = threading.Lock()
        self._group = GroupCommit(self._append_together)

    @property
    @abstractmethod
    def end(self) -> Position: ...

    def append(self, events: Sequence[Event], *, compare_ids: bool = True) -> Position:
        return self.append_each(events, compare_ids=compare_ids).position if events else self.end

    def append_each(
        self, events: Sequence[Event], *, compare_ids: bool = True, any_time: Collection[str] = ()
    ) -> Appended:
        group = self._group_of(lambda: _entities(events))
        appended = group.append(AppendRequest(events, compare_ids=compare_ids, any_time=any_time))
        assert isinstance(appended, Appended)
        return appended

    def submit(self, events: Sequence[Event], told: Told, *, any_time: Collection[str] = ()) -> None:
        group = self._group_of(lambda: _entities(events))
        group.submit(AppendRequest(events, any_time=any_time), told)

    def append_once(self, events: Sequence[Event]) -> list[Position]:
        if not events:
            return []
        appended = self.append_each(events)
        return [appended.receipt(number) for number in range(len(events))]

    def append_unstored(self, events: Sequence[Event], since: Position) -> Position:
        self._check_since(since)
        return self.append(events)

    def append_to(self, entity: str, events: Sequence[Event], expected_sequence: int | None = None) -> Receipt:
        group = self._group_of(lambda: _printable([entity]))
        receipt = group.append(AppendRequest(events, entity, expected_sequence))
        assert isinstance(receipt, Receipt)
        return receipt

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _group_of(self, names: Names) -> GroupCommit:
        """The group commit for an append of these entities."""
        return self._group

    @abstractmethod
    def _append_together(self, requests: Sequence[AppendRequest]) -> Answers:
        """Store the appends of a group, in one turn."""

    @abstractmethod
    def _check_since(self, since: Position) -> None:
        """PositionInvalid for a position beyond the end."""


_WRITERS: WeakSet[GroupedWriter] = WeakSet()


def _begin_in_child() -> None:
    for writer in _WRITERS:
        writer._begin_threads()


os.register_at_fork(after_in_child=_begin_in_child)


class LogWriter(GroupedWriter):
    """A writer over a log and an index. Each append uses one turn and stores all its events or none.

    Each event gets the sequence after the last one of its entity: an entity's events are 1, 2, 3, …, without gaps.
    """

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def append_batch(self, batch: pa.RecordBatch) -> Position:
        batch = conformed(batch)
        return self._in_turn(lambda: self._append(batch, _whole(batch)).position, lambda: _names(batch))

    def append_numbered(self, batch: pa.RecordBatch) -> Position:
        """Store events with the sequences they already have, to copy journals.

        Nothing is compared: the caller guarantees sequences without gaps for every entity.
        """
        batch = conformed(batch)
        assert batch.column("sequence").null_count == 0, "each event must have its sequence"

        def act() -> Position:
            if not batch.num_rows:
                return self.end
            self._lasts(())  # the index needs the state of all earlier events
            lasts = dict(zip(*(batch.column(name).to_pylist() for name in ("entity", "sequence")), strict=True))
            return self._store(batch, lasts).appended(0, batch.num_rows).position

        return self._in_turn(act, lambda: _names(batch))

    def receipt_of(self, entity: str, id_: str) -> Receipt | None:
        def act() -> Receipt | None:
            (place,) = self._places([id_])
            return None if place is None else repeated(entity, (), self._stored(entity, {id_: place}))

        return self._in_turn(act, lambda: [entity])

    def _append_together(self, requests: Sequence[AppendRequest]) -> Answers:
        batch = encode(events_of(requests), self._clock.now_us())
        turn = AppendTurn(self._places, self._contents, self._stored_of, self._lasts, self._append_parts)

        def names() -> Iterable[str]:
            return {request.entity for request in requests if request.entity is not None}.union(_names(batch))

        return self._in_turn(lambda: settle(requests, batch, turn), names)

    def _append_parts(self, batch: pa.RecordBatch, parts: Sequence[Rows]) -> list[Appended]:
        if not batch.num_rows:
            return [self._nothing() for _ in parts]
        batch, lasts = numbered(batch, self._lasts)
        stored = self._store(batch, lasts)
        return [stored.appended(low, high) if low < high else self._nothing() for low, high in parts]

    def _append(self, batch: pa.RecordBatch, part: Rows) -> Appended:
        (appended,) = self._append_parts(batch, [part])
        return appended

    def _nothing(self) -> Appended:
        """The answer to an append of nothing."""
        return Appended(self.end, _no_event)

    def _contents(self, places: Collection[EventPlace]) -> dict[EventPlace, Found]:
        return contents_at(self._read, places)

    def _stored_of(self, requests: Sequence[AppendRequest]) -> list[Sequence[StoredEvent]]:
        events = events_of(requests)
        places = iter(self._places([event.id for event in events]) if events else ())
        each = [{event.id: next(places) for event in request.events} for request in requests]
        return [
            self._stored(request.entity or "", {id_: place for id_, place in there.items() if place is not None})
            for request, there in zip(requests, each, strict=True)
        ]

    def _stored(self, entity: str, there: Mapping[str, EventPlace]) -> list[StoredEvent]:
        """The stored events at these places, by id, for an append to an entity."""
        return stored_at(self._read, there, self._counted)

    def _counted(self, entity: str, place: EventPlace) -> int:
        """The sequence of an event stored before sequences existed: its rank among its entity's events."""
        batches = self._read(place.log, 0, place.offset + 1)
        return sum(pc.sum(pc.equal(batch.column("entity"), entity)).as_py() or 0 for _, batch in batches)

    @abstractmethod
    def _in_turn(self, act: Callable[[], Result], names: Names) -> Result:
        """Act with all other writers of these entities excluded; `end` is then the log's end."""

    @abstractmethod
    def _store(self, batch: pa.RecordBatch, lasts: Mapping[str, int]) -> StoredRows:
        """Store the batch at the end, all or nothing; on return the batch is durable and visible to readers.

        The index takes the events in: `lasts` has the new last sequences. `_lasts` was called before, in this turn.
        """

    @abstractmethod
    def _read(self, log: str, start: int, stop: int) -> Iterator[tuple[Sequence[int], pa.RecordBatch]]:
        """The events of an offset range of a log, each with its offset."""

    @abstractmethod
    def _places(self, ids: Sequence[str]) -> Sequence[EventPlace | None]:
        """The place of the first event with each id; None for an id without event."""

    @abstractmethod
    def _lasts(self, entities: Sequence[str]) -> Sequence[int]:
        """The sequence of each entity's last event; 0 for an entity without events."""


def _whole(batch: pa.RecordBatch) -> Rows:
    return 0, batch.num_rows


def _names(batch: pa.RecordBatch) -> list[str]:
    names: list[str] = batch.column("entity").unique().to_pylist()
    return names


def _no_event(number: int) -> EventPlace:
    raise AssertionError("an append of nothing has no event")


def _entities(events: Sequence[Event]) -> set[str]:
    """The entities of valid events; a later check refuses the others, with its own reason."""
    return _printable(event.entity for event in events if isinstance(event, Event) and isinstance(event.entity, str))


def _printable(entities: Iterable[str]) -> set[str]:
    return {entity for entity in entities if entity.isprintable()}
