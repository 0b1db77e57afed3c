"""Settling: what becomes of appends that come together (`group`) in one turn: which are stored, and what each is told.

All that are stored are stored as one, all or none. Each is looked at as if those before it were stored already; if it
has an id of theirs, it has to come after them, in another turn.

An id is stored once. The same event again (`content`) is answered with the place of the stored one; another event under
a stored id is a conflict, for which its append alone is refused.

Content: what an event says, by which the same event again is told from another one under its id.

That is entity, type, time, payload, tags and the schema's version; not what the journal gives (sequence, time of the
append), nor metadata, which tell of a delivery: a producer that repeats an append may give it another trace id.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from stateside.core.errors import EventsGone, IdConflict, JournalCorrupt, StatesideError
from stateside.core.positions import Position
from stateside.journal.event import Event
from stateside.journal.receipt import Receipt, StoredEvent, check_entity, check_expected, check_kept, repeated

GAP_MAX = 1_000  # events that are read over rather than looked up by themselves
_SHOWN_MAX = 5


class EventPlace(NamedTuple):
    """Where an event stands: the partition or the node's log, and the offset there."""

    log: str
    offset: int


class Content(NamedTuple):
    """What an event says."""

    entity: str
    type: str
    time_us: int
    tags: tuple[str, ...]
    version: int
    payload: str
    data: bytes | None


Found = Content | StatesideError  # of a stored event; an error if it cannot be read
Read = Callable[[int, int], Iterator[tuple[Sequence[int], pa.RecordBatch]]]  # events of an offset range, with offsets


def content_of(batch: pa.RecordBatch, row: int) -> Content:
    """The content of one event of a batch in the journal's schema."""
    entity, type_, time, tags, version, payload, data = (batch.column(name)[row] for name in _NAMES)
    return Content(
        entity.as_py(), type_.as_py(), time.value, tuple(tags.as_py()), version.as_py(), payload.as_py(), data.as_py()
    )


def is_same(one: Content, other: Content, *, any_time: bool = False) -> bool:
    """Whether two events say the same. `any_time`: the producer gave none, so that each append has its own."""
    if any_time:
        other = other._replace(time_us=one.time_us)
    if one == other:
        return True
    return one._replace(payload="") == other._replace(payload="") and _plain(one.payload) == _plain(other.payload)


def read_contents(read: Read, log: str, offsets: Collection[int]) -> dict[EventPlace, Found]:
    """The contents of the events at these offsets of a log. One that was dropped is left out: its content is gone.

    Events that lie near each other are read at once.
    """
    found: dict[EventPlace, Found] = {}
    for near in _runs(sorted(offsets)):
        found |= _read_run(read, log, near)
    return found


def _read_run(read: Read, log: str, offsets: Sequence[int]) -> dict[EventPlace, Found]:
    wanted, found = frozenset(offsets), dict[EventPlace, Found]()
    try:
        for stand_at, batch in read(offsets[0], offsets[-1] + 1):
            for row, offset in enumerate(stand_at):
                if offset in wanted:
                    found[EventPlace(log, offset)] = content_of(batch, row)
    except (EventsGone, JournalCorrupt) as error:
        if len(offsets) > 1:  # each by itself: what others of them say can be told
            for offset in offsets:
                found |= _read_run(read, log, [offset])
        elif isinstance(error, JournalCorrupt):
            found[EventPlace(log, offsets[0])] = error
    return found


def conflict(events: Mapping[int, str], stored: bool = True) -> IdConflict:
    """The error for events of an append, by their numbers in it, whose ids belong to events that say something else."""
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
    """The offsets, in order, in groups of those that lie near each other."""
    run: list[int] = []
    for offset in offsets:
        if run and offset - run[-1] > GAP_MAX:
            yield run
            run = []
        run.append(offset)
    if run:
        yield run


def _plain(payload: str) -> Any:
    """The same for all ways to write one JSON object."""
    return json.dumps(json.loads(payload), sort_keys=True)


_NAMES = ("entity", "type", "time", "tags", "version", "payload", "data")


@dataclass(slots=True)  # not frozen, which would take several times as long to make: there is one for each append
class AppendRequest:
    """An append. With `entity` on a condition: of it alone, at the expected sequence if one is given.

    `compare_ids`: look whether they are stored already. `any_time`: ids of events whose times the producer did not
    give, and which are not compared therefore.
    """

    events: Sequence[Event]
    entity: str | None = None
    expected_sequence: int | None = None
    compare_ids: bool = True
    any_time: Collection[str] = ()


@dataclass(slots=True)
class Appended:
    """What an append is told: the position that covers its events, where each stands, which were there before."""

    position: Position
    place: Callable[[int], EventPlace]  # of an event, by its number in the append
    repeated: Collection[int] = ()  # numbers


Answer = Appended | Receipt | Exception  # of an append, of one on a condition, and of one that is not stored
Answers = Sequence[Answer | None]  # None: it comes after these
Rows = tuple[int, int]  # from the one up to the other


@dataclass(frozen=True, slots=True)
class AppendTurn:
    """A journal, as nobody else appends to it.

    `places`: where the first event with each id stands. `contents`: what the events at some places say; those whose
    content is gone are left out. `stored`: of each append on a condition those of its events that are there, by their
    ids; of those that cannot be read, that one cannot: it concerns this append and no other. `lasts`: the sequences of
    entities' last events. `append`: store a batch, and tell for each of its parts the position behind it, and where its
    events stand.
    """

    places: Callable[[Sequence[str]], Sequence[EventPlace | None]]
    contents: Callable[[Collection[EventPlace]], Mapping[EventPlace, Found]]
    stored: Callable[[Sequence[AppendRequest]], Sequence[Sequence[StoredEvent]]]
    lasts: Callable[[Sequence[str]], Sequence[int]]
    append: Callable[[pa.RecordBatch, Sequence[Rows]], Sequence[Appended]]


def settle(requests: Sequence[AppendRequest], batch: pa.RecordBatch, turn: AppendTurn) -> Answers:
    """The answer to each; the batch has the events of all, in order. What storing them raises is nobody's answer.

    The first one has an answer always.
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
    """Where those of the ids that are stored already stand; of appends that compare them, without a condition."""
    plain = [request for request in requests if request.entity is None and request.compare_ids]
    if not plain:
        return {}
    ids = [event.id for event in events_of(plain)]
    return {id_: place for id_, place in zip(ids, turn.places(ids), strict=True) if place is not None}


def _are_different(requests: Sequence[AppendRequest]) -> bool:
    """Whether no id is there twice; or nobody wants to know."""
    if not any(request.compare_ids for request in requests):
        return True
    ids = [event.id for event in events_of(requests)]
    return len(set(ids)) == len(ids)


def _known(requests: Sequence[AppendRequest], turn: AppendTurn) -> dict[int, tuple[Sequence[StoredEvent], int]]:
    """Of each append on a condition, by its number, which of its events are there, and its entity's last sequence."""
    numbers = [number for number, request in enumerate(requests) if request.entity is not None]
    if not numbers:
        return {}
    entities = [entity for request in requests if (entity := request.entity) is not None]
    stored, lasts = turn.stored([requests[number] for number in numbers]), turn.lasts(entities)
    return dict(zip(numbers, zip(stored, lasts, strict=True), strict=True))


@dataclass(slots=True)
class _Chosen:
    """An append that is stored: the rows of its new events, and where others of it stand: in the journal, or in it."""

    rows: Sequence[int]
    there: Mapping[int, EventPlace]  # by the event's number in the append
    inside: Mapping[int, int]  # by its number, that of the same event before it
    last: int | None = None  # its entity's last sequence, on a condition

    def answer(self, first: int, count: int, new: Appended | None) -> Answer:
        """What it is told; `new`: of its new events. Its first row, and how many it has, say which those are."""
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
    """Which of the appends are stored now. Of the others some have an answer, and the rest comes later."""

    batch: pa.RecordBatch
    turn: AppendTurn
    there: Mapping[str, EventPlace]
    known: dict[int, tuple[Sequence[StoredEvent], int]]
    answers: dict[int, Answer] = field(default_factory=dict)
    _chosen: dict[int, tuple[_Chosen, int, int]] = field(default_factory=dict)  # with its first row, and its count
    _ids: set[str] = field(default_factory=set)
    _counts: Counter[str] = field(default_factory=Counter)  # by entity

    def take(self, number: int, request: AppendRequest, first: int) -> None:
        """The next one; its events begin with this row of the batch."""
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
        except StatesideError as error:  # which is its own: nothing is stored here
            self.answers[number] = error

    def store(self) -> None:
        """Store the new events of all that were chosen, and answer those."""
        storing = {
            number: chosen
            for number, (chosen, _, _) in self._chosen.items()
            if len(chosen.rows) or chosen.last is not None  # of nothing, on a condition: it is told where that is
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
        """Which of the events are new. IdConflict if one has the id of another that says something else."""
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
        """IdConflict if events of an append, by their numbers, say something else than the stored ones do.

        Of a stored one whose content is gone nothing but the id is known: it counts as the same.
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
    """The events of all of them, in order."""
    if len(requests) == 1:
        return list(requests[0].events)
    return list(chain.from_iterable(request.events for request in requests))


def _parts(counts: Iterable[int]) -> list[Rows]:
    """Rows that follow each other, so many in each part."""
    return list(pairwise(accumulate(counts, initial=0)))
