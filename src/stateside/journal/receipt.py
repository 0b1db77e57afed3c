"""Receipts of conditional appends: position and sequences of the stored events, and the errors of refused appends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from stateside.core.errors import EventRefused, EventsGone, IdConflict, JournalCorrupt, SequenceConflict
from stateside.core.positions import Position
from stateside.journal.backends.files.segment import PARTITION
from stateside.journal.event import Event

_SHOWN_MAX = 5
_IDS_OF_THEIR_OWN = "Nothing of the append was stored; give new events ids of their own"


@dataclass(frozen=True, slots=True)
class Receipt:
    """The position just after the events, and their sequences.

    For an append of nothing: the journal's end, the entity's last sequence as `last_sequence`, and the next one as
    `first_sequence`. `repeated`: the events were stored before, and nothing was stored now.
    """

    position: Position
    first_sequence: int
    last_sequence: int
    repeated: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """The fields of a stored event needed to answer a repeated append. `log`: the partition, or the node's log.

    `entity` is None if the event belongs to an entity other than the append's and its name went with a trimmed log.
    `unread` is the reason why only id and place are known: the event was dropped, or cannot be read.
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
        """A stored event that cannot be read."""
        return cls(offset, id_, None, 0, log, why)


def check_entity(entity: str, events: Sequence[Event]) -> None:
    """EventRefused if an event belongs to another entity, or two events have the same id."""
    for event in events:
        if event.entity != entity:
            raise _refused(f"Event {event.id!r} is one of {event.entity!r}, not of {entity!r}")
    ids = [event.id for event in events]
    if len(set(ids)) < len(ids):
        twice = next(id_ for place, id_ in enumerate(ids) if id_ in ids[:place])
        raise _refused(f"The id {twice!r} is there twice in one append")


def check_expected(entity: str, expected: int | None, current: int) -> None:
    """SequenceConflict if the entity's current sequence is not the expected one."""
    if expected is None or expected == current:
        return
    raise SequenceConflict(
        f"{entity!r} is at sequence {current}, not at {expected}",
        next_step="Nothing was stored. Read the entity's events again, decide again, and append with its sequence now",
        current=current,
    )


def check_kept(stored: Sequence[StoredEvent]) -> None:
    """EventRefused if an event of the append was stored and has been dropped: its receipt is gone."""
    for found in stored:
        if isinstance(found.unread, EventsGone):
            raise _refused(f"Event {found.id!r} is stored already, and dropped since") from found.unread


def repeated(entity: str, events: Sequence[Event], stored: Sequence[StoredEvent]) -> Receipt:
    """The first receipt of a repeated append; `stored` are the events of the append found in the journal.

    EventRefused if some of its events are missing, IdConflict if one belongs to another entity: then the append is no
    repetition. EventsGone or JournalCorrupt if an event cannot be read.
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
