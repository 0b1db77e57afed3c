"""Settling a group of appends in one turn: which appends are stored, and the answer to each (`group_commit`).

All chosen appends are stored together, all or none. Each append is examined as if the ones before it were stored
already; an append that has an id of an earlier one waits for another turn.

An id is stored once. The same event again is answered with the place of the stored event; another event under a stored
id is a conflict, and only its own append is refused.

Two events are the same if their content is equal: entity, type, time, payload, tags and schema version. Fields assigned
by the journal (sequence, append time) and metadata do not count: metadata describe a delivery, and a producer that
repeats an append may send another trace id.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from stateside.core.errors import EventsGone, IdConflict, JournalCorrupt, StatesideError
from stateside.core.positions import Position
from stateside.journal.event import Event
from stateside.journal.receipt import Receipt, StoredEvent, check_entity, check_expected, check_kept, repeated

GAP_MAX = 1_000  # events; a larger gap is cheaper to skip than to read
_SHOWN_MAX = 5


class EventPlace(NamedTuple):
    """The place of an event: the partition or the node's log, and the offset in it."""

    log: str
    offset: int


class Content(NamedTuple):
    """The compared part of an event."""

    entity: str
    type: str
    time_us: int
    tags: tuple[str, ...]
    version: int
    payload: str
    data: bytes | None


Found = Content | StatesideError  # the error, for a stored event that cannot be read
Read = Callable[[str, int, int], Iterator[tuple[Sequence[int], pa.RecordBatch]]]  # events of a log's offset range
Taken = TypeVar("Taken")


def content_of(batch: pa.RecordBatch, row: int) -> Content:
    entity, type_, time, tags, version, payload, data = (batch.column(name)[row] for name in _NAMES)
    return Content(
        entity.as_py(), type_.as_py(), time.value, tuple(tags.as_py()), version.as_py(), payload.as_py(), data.as_py()
    )


def is_same(one: Content, other: Content, *, any_time: bool = False) -> bool:
    """Whether two events have the same content. `any_time`: ignore the time, as the producer gave none."""
    if any_time:
        other = other._replace(time_us=one.time_us)
    if one == other:
        return True
    return one._replace(payload="") == other._replace(payload="") and _plain(one.payload) == _plain(other.payload)


def contents_at(read: Read, places: Collection[EventPlace]) -> dict[EventPlace, Found]:
    """The contents of the events at these places, without dropped events. `read`: of a log."""
    found = _read_at(read, places, content_of)
    return {place: each for place, each in found.items() if not isinstance(each, EventsGone)}


def stored_at(
    read: Read, there: Mapping[str, EventPlace], count: Callable[[str, EventPlace], int]
) -> list[StoredEvent]:
    """The stored events at these places, by id. `count`: the sequence of an event that was stored without one."""
    found, stored = _read_at(read, there.values(), _known_by), list[StoredEvent]()
    for id_, place in there.items():
        known = found.get(place)
        if isinstance(known, EventsGone | JournalCorrupt):
            stored.append(StoredEvent.without_content(place.offset, id_, known, place.log))
        elif known is not None:
            entity, sequence = known
            sequence = count(entity, place) if sequence is None else sequence
            stored.append(StoredEvent(place.offset, id_, entity, sequence, place.log))
    return stored


def _known_by(batch: pa.RecordBatch, row: int) -> tuple[str, int | None]:
    return batch.column("entity")[row].as_py(), batch.column("sequence")[row].as_py()


def _read_at(
    read: Read, places: Collection[EventPlace], take: Callable[[pa.RecordBatch, int], Taken]
) -> dict[EventPlace, Taken | EventsGone | JournalCorrupt]:
    """What `take` makes of each event, or the error of reading it. Events close to each other are read at once."""
    found: dict[EventPlace, Taken | EventsGone | JournalCorrupt] = {}
    for log in {place.log for place in places}:
        for near in _runs(sorted(place.offset for place in places if place.log == log)):
            found |= _read_run(read, log, near, take)
    return found


def _read_run(
    read: Read, log: str, offsets: Sequence[int], take: Callable[[pa.RecordBatch, int], Taken]
) -> dict[EventPlace, Taken | EventsGone | JournalCorrupt]:
    wanted, found = frozenset(offsets), dict[EventPlace, Taken | EventsGone | JournalCorrupt]()
    try:
        for stand_at, batch in read(log, offsets[0], offsets[-1] + 1):
            for row, offset in enumerate(stand_at):
                if offset in wanted:
                    found[EventPlace(log, offset)] = take(batch, row)
    except (EventsGone, JournalCorrupt) as error:
        if len(offsets) > 1:  # one by one, so that the readable events are found
            for offset in offsets:
                found |= _read_run(read, log, [offset], take)
        else:
            found[EventPlace(log, offsets[0])] = error
    return found


def conflict(events: Mapping[int, str], stored: bool = True) -> IdConflict:
    """The error for events of an append, by number, whose ids belong to events with other content."""
    ids = list(events.values())
    more = f" and {len(ids) - _SHOWN_MAX} more" if len(ids) > _SHOWN_MAX else ""
    shown = ", ".join(map(repr, ids[:_SHOWN_MAX])) + more
    whose = "is that of an event that is stored already" if stored else "is there twice in one append"
    return IdConflict(
        f"The id {shown} {whose}, with other content",
        next_step="Nothing of the append was stored. Give a new event an id of its own; "
        "repeat a stored one exactly as it was",
        events=tuple(events),
        ids=tuple(ids),
    )


def _runs(offsets: Sequence[int]) -> Iterator[list[int]]:
    """Groups of ascending offsets with gaps of at most GAP_MAX."""
    run: list[int] = []
    for offset in offsets:
        if run and offset - run[-1] > GAP_MAX:
            yield run
            run = []
        run.append(offset)
    if run:
        yield run


def _plain(payload: str) -> Any:
    """A canonical form of a JSON object."""
    return json.dumps(json.loads(payload), sort_keys=True)


_NAMES = ("entity", "type", "time", "tags", "version", "payload", "data")


@dataclass(slots=True)  # not frozen: a frozen one takes several times as long to construct, once per append
class AppendRequest:
    """One append. With `entity` the append is conditional: of this entity only, at the expected sequence if given.

    `compare_ids`: look the ids up among stored events. `any_time`: ids of events whose producer gave no time; their
    times are not compared.
    """

    events: Sequence[Event]
    entity: str | None = None
    expected_sequence: int | None = None
    compare_ids: bool = True
    any_time: Collection[str] = ()


@dataclass(slots=True)
class Appended:
    """The answer to an append: the position that covers its events, the place of each, the events stored before."""

    position: Position
    place: Callable[[int], EventPlace]  # by the event's number in the append
    repeated: Collection[int] = ()  # numbers

    def receipt(self, number: int) -> Position:
        """The receipt of one event."""
        log, offset = self.place(number)
        return Position.of({log: offset + 1})


Answer = Appended | Receipt | Exception  # of an append, of a conditional append, of a refused append
Answers = Sequence[Answer | None]  # None: the append waits for a later turn
Rows = tuple[int, int]  # first row, and the row after the last


@dataclass(frozen=True, slots=True)
class AppendTurn:
    """A journal during one writer's turn.

    `places`: the place of the first event with each id. `contents`: the contents of the events at some places, without
    dropped events. `stored`: for each conditional append those of its events that are stored; an event that cannot be
    read carries its own error, which affects this append only. `lasts`: the last sequences of entities. `append`: store
    a batch, and return for each of its parts the position after the part and the places of its events.
    """

    places: Callable[[Sequence[str]], Sequence[EventPlace | None]]
    contents: Callable[[Collection[EventPlace]], Mapping[EventPlace, Found]]
    stored: Callable[[Sequence[AppendRequest]], Sequence[Sequence[StoredEvent]]]
    lasts: Callable[[Sequence[str]], Sequence[int]]
    append: Callable[[pa.RecordBatch, Sequence[Rows]], Sequence[Appended]]


def settle(requests: Sequence[AppendRequest], batch: pa.RecordBatch, turn: AppendTurn) -> Answers:
    """The answer to each append; the batch has the events of all of them, in order.

    The first append always gets an answer. An error of storing is raised, not returned as an answer.
    """
    rows = _parts(len(request.events) for request in requests)
    there = _there(requests, turn)
    if all(request.entity is None for request in requests) and not there and _are_different(requests):
        return turn.append(batch, rows)
    decided = _Decided(batch, turn, there, _known(requests, turn))
    for number, (request, (first, _)) in enumerate(zip(requests, rows, strict=True)):
        decided.take(number, request, first)
    decided.store()
    return [decided.answers.get(number) for number in range(len(requests))]


def _there(requests: Sequence[AppendRequest], turn: AppendTurn) -> dict[str, EventPlace]:
    """The places of ids that are stored already, for the unconditional appends that compare ids."""
    plain = [request for request in requests if request.entity is None and request.compare_ids]
    if not plain:
        return {}
    ids = [event.id for event in events_of(plain)]
    return {id_: place for id_, place in zip(ids, turn.places(ids), strict=True) if place is not None}


def _are_different(requests: Sequence[AppendRequest]) -> bool:
    """Whether no id occurs twice, or no append compares ids."""
    if not any(request.compare_ids for request in requests):
        return True
    ids = [event.id for event in events_of(requests)]
    return len(set(ids)) == len(ids)


def _known(requests: Sequence[AppendRequest], turn: AppendTurn) -> dict[int, tuple[Sequence[StoredEvent], int]]:
    """For each conditional append, by number: its events that are stored, and its entity's last sequence."""
    numbers = [number for number, request in enumerate(requests) if request.entity is not None]
    if not numbers:
        return {}
    entities = [entity for request in requests if (entity := request.entity) is not None]
    stored, lasts = turn.stored([requests[number] for number in numbers]), turn.lasts(entities)
    return dict(zip(numbers, zip(stored, lasts, strict=True), strict=True))


@dataclass(slots=True)
class _Chosen:
    """An append to be stored: the rows of its new events, and the places of repeated ones, stored or in the append."""

    rows: Sequence[int]
    there: Mapping[int, EventPlace]  # by the event's number in the append
    inside: Mapping[int, int]  # a repeated event's number -> the number of its first occurrence
    last: int | None = None  # the entity's last sequence, of a conditional append

    def answer(self, first: int, count: int, new: Appended | None) -> Answer:
        """The answer to the append of `count` events from row `first` on; `new` is the answer for its new events."""
        if self.last is not None:
            assert new is not None
            return Receipt(new.position, self.last + 1, self.last + len(self.rows))
        if new is not None and len(self.rows) == count:
            return new
        numbers = {row - first: number for number, row in enumerate(self.rows)}
        position = Position.start() if new is None else new.position
        for place in self.there.values():
            position = position.joined(Position.of({place.log: place.offset + 1}))

        def place_of(number: int) -> EventPlace:
            number = self.inside.get(number, number)
            if number in self.there:
                return self.there[number]
            assert new is not None
            return new.place(numbers[number])

        return Appended(position, place_of, {*self.there, *self.inside})


@dataclass(slots=True)
class _Decided:
    """The appends to be stored in this turn, and the answers so far. Appends in neither wait for a later turn."""

    batch: pa.RecordBatch
    turn: AppendTurn
    there: Mapping[str, EventPlace]
    known: dict[int, tuple[Sequence[StoredEvent], int]]
    answers: dict[int, Answer] = field(default_factory=dict)
    _chosen: dict[int, tuple[_Chosen, int, int]] = field(default_factory=dict)  # with first row and count
    _ids: set[str] = field(default_factory=set)
    _counts: Counter[str] = field(default_factory=Counter)  # by entity

    def take(self, number: int, request: AppendRequest, first: int) -> None:
        """Examine the next append, whose events begin at row `first` of the batch."""
        waits = request.entity is not None or request.compare_ids
        if waits and not self._ids.isdisjoint(event.id for event in request.events):
            return
        try:
            if request.entity is not None:
                self._decide(number, request, first, request.entity)
            elif request.compare_ids:
                self._choose(number, request, first, self._compared(request, first))
            else:
                self._choose(number, request, first, _all_new(request, first))
        except StatesideError as error:  # refuses this append only: nothing is stored here
            self.answers[number] = error

    def store(self) -> None:
        """Store the new events of all chosen appends, and answer those appends."""
        storing = {
            number: chosen
            for number, (chosen, _, _) in self._chosen.items()
            if len(chosen.rows) or chosen.last is not None  # a conditional append of nothing gets a position
        }
        rows = np.concatenate([np.empty(0, np.int64), *(np.asarray(chosen.rows) for chosen in storing.values())])
        some = self.batch if len(rows) == self.batch.num_rows else self.batch.take(pa.array(rows.astype(np.int64)))
        stored = self.turn.append(some, _parts(len(chosen.rows) for chosen in storing.values())) if storing else ()
        new = dict(zip(storing, stored, strict=True))
        for number, (chosen, first, count) in self._chosen.items():
            self.answers[number] = chosen.answer(first, count, new.get(number))

    def _decide(self, number: int, request: AppendRequest, first: int, entity: str) -> None:
        check_entity(entity, request.events)
        stored, last = self.known[number]
        if stored:
            check_kept(stored)
            receipt = repeated(entity, request.events, stored)
            there = {found.id: EventPlace(found.log, found.offset) for found in stored}
            self._check_same({row: there[event.id] for row, event in enumerate(request.events)}, request, first)
            self.answers[number] = receipt
            return
        last += self._counts[entity]
        check_expected(entity, request.expected_sequence, last)
        chosen = _all_new(request, first)
        chosen.last = last
        self._choose(number, request, first, chosen)

    def _compared(self, request: AppendRequest, first: int) -> _Chosen:
        """The append's new events. IdConflict if an event has the id of another one with different content."""
        there: dict[int, EventPlace] = {}
        inside: dict[int, int] = {}
        firsts: dict[str, int] = {}
        for number, event in enumerate(request.events):
            if event.id in self.there:
                there[number] = self.there[event.id]
            elif firsts.setdefault(event.id, number) != number:
                inside[number] = firsts[event.id]
        self._check_same(there, request, first)
        others = {
            number: request.events[number].id
            for number, earlier in inside.items()
            if not is_same(
                content_of(self.batch, first + earlier),
                content_of(self.batch, first + number),
                any_time=request.events[number].id in request.any_time,
            )
        }
        if others:
            raise conflict(others, stored=False)
        rows = [first + number for number in firsts.values()]
        return _Chosen(rows, there, inside)

    def _check_same(self, there: Mapping[int, EventPlace], request: AppendRequest, first: int) -> None:
        """IdConflict if events of an append, by number, differ from the stored events under their ids.

        A stored event without content (dropped by retention) counts as the same: only its id is known.
        """
        found = self.turn.contents(set(there.values())) if there else {}
        others = {}
        for number, place in there.items():
            stored, id_ = found.get(place), request.events[number].id
            if isinstance(stored, StatesideError):
                raise stored
            given = content_of(self.batch, first + number)
            if stored is not None and not is_same(stored, given, any_time=id_ in request.any_time):
                others[number] = id_
        if others:
            raise conflict(others)

    def _choose(self, number: int, request: AppendRequest, first: int, chosen: _Chosen) -> None:
        self._chosen[number] = chosen, first, len(request.events)
        events = [request.events[row - first] for row in chosen.rows]
        self._ids.update(event.id for event in events)
        self._counts.update(event.entity for event in events)


def _all_new(request: AppendRequest, first: int) -> _Chosen:
    return _Chosen(range(first, first + len(request.events)), {}, {})


def events_of(requests: Sequence[AppendRequest]) -> list[Event]:
    if len(requests) == 1:
        return list(requests[0].events)
    return list(chain.from_iterable(request.events for request in requests))


def _parts(counts: Iterable[int]) -> list[Rows]:
    """Consecutive row ranges of these lengths."""
    return list(pairwise(accumulate(counts, initial=0)))
