"""Receipts of conditional appends: what was stored, as which of the entity's events, and what to say if it was not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from stateside.core.errors import EventRefused, EventsGone, IdConflict, JournalCorrupt, SequenceConflict
from stateside.core.positions import Position
from stateside.journal.event import Event
from stateside.journal.segment import PARTITION

_SHOWN_MAX = 5
_IDS_OF_THEIR_OWN = "Nothing of the append was stored; give new events ids of their own"


@dataclass(frozen=True, slots=True)
class Receipt:
    """The position just after the events, and the sequences that they got.

    Of an append of nothing: the journal's end; the last sequence is the entity's, the first one that after it.
    `repeated`: the events were stored before, and nothing now.
    """

    position: Position
    first_sequence: int
    last_sequence: int
    repeated: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """An event of a journal, as far as a repeated append must know it. `log`: the partition, or the node's log.

    `entity` is None if it is another one than that of the append, and its name went with a trimmed log. `unread` says
    why nothing but its id and its place is known: it was dropped since, or cannot be read.
    """

    offset: int
    id: str
    entity: str | None
    sequence: int
    log: str = PARTITION
    unread: EventsGone | JournalCorrupt | None = None

    @classmethod
    def without_content(
        cls, offset: int, id_: str, why: EventsGone | JournalCorrupt, log: str = PARTITION
    ) -> StoredEvent:
        """An event that is stored, and cannot be read."""
        return cls(offset, id_, None, 0, log, why)


def check_entity(entity: str, events: Sequence[Event]) -> None:
    """EventRefused if an event is not one of this entity, or two have the same id."""
    for event in events:
        if event.entity != entity:
            raise _refused(f"Event {event.id!r} is one of {event.entity!r}, not of {entity!r}")
    ids = [event.id for event in events]
    if len(set(ids)) < len(ids):
        twice = next(id_ for place, id_ in enumerate(ids) if id_ in ids[:place])
        raise _refused(f"The id {twice!r} is there twice in one append")


def check_expected(entity: str, expected: int | None, current: int) -> None:
    """SequenceConflict if the entity is not where the producer thinks it is."""
    if expected is None or expected == current:
        return
    raise SequenceConflict(
        f"{entity!r} is at sequence {current}, not at {expected}",
        next_step="Nothing was stored. Read the entity's events anew, decide again, and append with its sequence now",
        current=current,
    )


def check_kept(stored: Sequence[StoredEvent]) -> None:
    """EventRefused if one of an append's events was stored, and dropped since: it has no receipt any more."""
    for found in stored:
        if isinstance(found.unread, EventsGone):
            raise _refused(f"Event {found.id!r} is stored already, and dropped since") from found.unread


def repeated(entity: str, events: Sequence[Event], stored: Sequence[StoredEvent]) -> Receipt:
    """The receipt that an append got when it came first; `stored` are those of its events that the journal has.

    EventRefused if that is not all of them, IdConflict if one is another entity's: then it is no repetition.
    EventsGone or JournalCorrupt if one cannot be read.
    """
    for found in stored:
        if found.unread is not None:
            raise found.unread
        if found.entity != entity:
            whose = "another entity" if found.entity is None else repr(found.entity)
            raise IdConflict(
                f"The id {found.id!r} is that of an event of {whose}, which is stored already",
                next_step=_IDS_OF_THEIR_OWN,
                events=tuple(number for number, event in enumerate(events) if event.id == found.id),
                ids=(found.id,),
            )
    there = {found.id for found in stored}
    others = [event.id for event in events if event.id not in there]
    if others:
        raise _refused(f"Of its events {_shown(sorted(there))} are stored already, and {_shown(others)} are not")
    first, last = (choose(stored, key=lambda found: found.sequence) for choose in (min, max))
    return Receipt(Position.of({last.log: last.offset + 1}), first.sequence, last.sequence, repeated=True)


def _refused(what: str) -> EventRefused:
    return EventRefused(what, next_step=_IDS_OF_THEIR_OWN)


def _shown(ids: Sequence[str]) -> str:
    more = f" and {len(ids) - _SHOWN_MAX} more" if len(ids) > _SHOWN_MAX else ""
    return ", ".join(map(repr, ids[:_SHOWN_MAX])) + more
