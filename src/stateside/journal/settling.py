"""Settling: what becomes of appends that come together (`group`) in one turn: which are stored, and what each is told.

All that are stored are stored as one, all or none. An append on a condition is looked at as if those before it were
stored already; if it has an id of theirs, it has to come after them, in another turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, pairwise

import numpy as np
import pyarrow as pa

from stateside.errors import StatesideError
from stateside.journal.event import Event
from stateside.journal.receipt import Receipt, Stored, check_entity, check_expected, check_kept, repeated
from stateside.positions import Position


@dataclass(slots=True)  # not frozen, which would take several times as long to make: there is one for each append
class Request:
    """An append. With `entity` on a condition: of it alone, at the expected sequence if one is given, each id once."""

    events: Sequence[Event]
    entity: str | None = None
    expected_sequence: int | None = None


Answer = Position | Receipt | Exception  # of an append, of one on a condition, and of one that is not stored
Answers = Sequence[Answer | None]  # None: it comes after these
Rows = tuple[int, int]  # from the one up to the other


@dataclass(frozen=True, slots=True)
class Turn:
    """A journal, as nobody else appends to it.

    `stored`: of each append those of its events that are there, by their ids; of those that cannot be read, that one
    cannot: it concerns this append and no other. `lasts`: the sequences of entities' last events. `append`: store a
    batch, and tell for each of its parts the position behind it.
    """

    stored: Callable[[Sequence[Request]], Sequence[Sequence[Stored]]]
    lasts: Callable[[Sequence[str]], Sequence[int]]
    append: Callable[[pa.RecordBatch, Sequence[Rows]], Sequence[Position]]


def settle(requests: Sequence[Request], batch: pa.RecordBatch, turn: Turn) -> Answers:
    """The answer to each; the batch has the events of all, in order. What storing them raises is nobody's answer.

    The first one has an answer always.
    """
    rows = _parts(len(request.events) for request in requests)
    if all(request.entity is None for request in requests):
        return turn.append(batch, rows)
    decided = _Decided(_known(requests, turn))
    for number, request in enumerate(requests):
        decided.take(number, request)
    chosen = np.concatenate([np.arange(*rows[number]) for number in decided.lasts] or [np.empty(0, np.int64)])
    some = batch if len(chosen) == batch.num_rows else batch.take(pa.array(chosen))
    positions = turn.append(some, _parts(len(requests[number].events) for number in decided.lasts))
    for (number, last), position in zip(decided.lasts.items(), positions, strict=True):
        count = len(requests[number].events)
        decided.answers[number] = position if last is None else Receipt(position, last + 1, last + count)
    return [decided.answers.get(number) for number in range(len(requests))]


def _known(requests: Sequence[Request], turn: Turn) -> dict[int, tuple[Sequence[Stored], int]]:
    """Of each append on a condition, by its number, which of its events are there, and its entity's last sequence."""
    numbers = [number for number, request in enumerate(requests) if request.entity is not None]
    entities = [entity for request in requests if (entity := request.entity) is not None]
    stored, lasts = turn.stored([requests[number] for number in numbers]), turn.lasts(entities)
    return dict(zip(numbers, zip(stored, lasts, strict=True), strict=True))


@dataclass(slots=True)
class _Decided:
    """Which of the appends are stored now. Of the others some have an answer, and the rest comes later."""

    known: dict[int, tuple[Sequence[Stored], int]]
    lasts: dict[int, int | None] = field(default_factory=dict)  # of those that are: their entity's, on a condition
    answers: dict[int, Answer] = field(default_factory=dict)
    _ids: set[str] = field(default_factory=set)
    _counts: Counter[str] = field(default_factory=Counter)  # by entity

    def take(self, number: int, request: Request) -> None:
        """The next one."""
        if request.entity is None:
            self._choose(number, request, None)
        elif self._ids.isdisjoint(event.id for event in request.events):
            try:
                self._decide(number, request, request.entity)
            except StatesideError as error:  # which is its own: nothing is read or stored here
                self.answers[number] = error

    def _decide(self, number: int, request: Request, entity: str) -> None:
        check_entity(entity, request.events)
        stored, last = self.known[number]
        if stored:
            check_kept(stored)
            self.answers[number] = repeated(entity, request.events, stored)
            return
        last += self._counts[entity]
        check_expected(entity, request.expected_sequence, last)
        self._choose(number, request, last)

    def _choose(self, number: int, request: Request, last: int | None) -> None:
        self.lasts[number] = last
        self._ids.update(event.id for event in request.events)
        self._counts.update(event.entity for event in request.events)


def events_of(requests: Sequence[Request]) -> list[Event]:
    """The events of all of them, in order."""
    return list(chain.from_iterable(request.events for request in requests))


def _parts(counts: Iterable[int]) -> list[Rows]:
    """Rows that follow each other, so many in each part."""
    return list(pairwise(accumulate(counts, initial=0)))
