"""Dead letters: counted, listed, and shown one by one, up to a position of the journal; and replayed.

*Replay* appends a dead letter's event again, repaired, exactly once. The new event's id is `replay/OFFSET`, with the
offset of the dead letter. The search for the id, from the dead letter on, and the append are one critical section of
the journal (`append_unstored`): across repeated and concurrent replays and crashes, the journal has the event once. The
replayed event is treated like any other: it may be in time, or come too late and lead to a note, or become a dead
letter again, which can be replayed in turn.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from stateside.archive import FollowedTable
from stateside.billing.answers.document_store import followed
from stateside.billing.book.book import current_book
from stateside.billing.invoicing.documents import DEAD_LETTERS, with_micros
from stateside.billing.invoicing.repeats import REPEATED
from stateside.billing.model import ASSIGN, PLAN
from stateside.billing.rating.rating import PAYLOAD, events_table, rate
from stateside.core import Clock, Layout, Position, SystemClock
from stateside.core.errors import DocumentUnknown, EventRefused, RequestInvalid
from stateside.journal import PARTITION, Event, open_journal, payload_columns
from stateside.journal.columns import encode
from stateside.serving import iso_time, parse_time

REPLAYED_MAX: Final = 100_000  # at once: one append, all or none
_COLUMNS: Final = ("offset", "id", "entity", "type", "time", "appended", "payload", "reason", "detail")


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An event that breaks a rule of billing, as stored in the journal, and the reason."""

    offset: int
    id: str
    entity: str
    type: str
    time_us: int
    appended_us: int
    payload: str
    reason: str
    detail: str | None

    def as_dict(self) -> dict[str, Any]:
        """The dead letter as in an answer; the payload as JSON where valid."""
        return {
            "offset": self.offset,
            "reason": self.reason,
            "detail": self.detail,
            "id": self.id,
            "entity": self.entity,
            "type": self.type,
            "time": iso_time(self.time_us),
            "appended": iso_time(self.appended_us),
            "payload": _json_or_text(self.payload),
        }


class DeadLetterReader:
    """The dead letters of an application's folder; none before the first batch."""

    def __init__(self, table: FollowedTable) -> None:
        self._table = table

    @classmethod
    def of(cls, layout: Layout) -> DeadLetterReader:
        return cls(followed(layout, DEAD_LETTERS.name))

    def counts(self, before: int | None = None) -> dict[str, int]:
        """The number of dead letters by reason."""
        found = self._table.read(["reason"], below=_below(before))
        return {} if found is None else dict(sorted(Counter(found["reason"].to_pylist()).items()))

    def page(
        self, *, after: int = -1, limit: int, reason: str | None = None, before: int | None = None
    ) -> list[DeadLetter]:
        """Up to `limit` dead letters with offsets above `after`, in the journal's order."""
        equal = {} if reason is None else {"reason": reason}
        found = self._table.read(_COLUMNS, below=_below(before), equal=equal)
        if found is None:
            return []
        rest = found.filter(pc.greater(found["offset"], after)).sort_by("offset").slice(0, limit)
        return _letters(rest)

    def get(self, offset: int, before: int | None = None) -> DeadLetter | None:
        """The dead letter at this offset of the journal, or None."""
        found = self._table.read(_COLUMNS, below=_below(before), equal={"offset": offset})
        return next(iter([] if found is None else _letters(found)), None)


def letters_to_replay(layout: Layout, offset: int | None, reason: str | None) -> list[DeadLetter]:
    """The dead letter at an offset, or all with a reason; DocumentUnknown if there is none."""
    letters = DeadLetterReader.of(layout)
    if offset is None:
        found = letters.page(limit=REPLAYED_MAX + 1, reason=reason)
    else:
        found = [letter for letter in [letters.get(offset)] if letter is not None]
    if not found:
        what = f"at offset {offset}" if offset is not None else f"with the reason {reason!r}"
        raise DocumentUnknown(f"There is no dead letter {what}", next_step="`stateside billing dead-letters list`")
    if len(found) > REPLAYED_MAX:
        raise RequestInvalid(f"More than {REPLAYED_MAX:,} dead letters have this reason: they are replayed one by one")
    return found


def _below(before: int | None) -> Mapping[str, int]:
    return {} if before is None else {"offset": before}


def _letters(table: pa.Table) -> list[DeadLetter]:
    return [DeadLetter(**row) for row in with_micros(table, "time", "appended").to_pylist()]


def _json_or_text(payload: str) -> Any:
    try:
        return json.loads(payload)
    except ValueError:
        return payload


SETTABLE: Final = ("quantity", "name", "currency", "customer", "type", "time")


@dataclass(frozen=True, slots=True)
class Replayed:
    """The number of appended events, of events already stored, and the receipt, which covers them all."""

    appended: int
    already: int
    receipt: Position


def replay(
    layout: Layout, letters: Sequence[DeadLetter], changes: Mapping[str, str], clock: Clock | None = None
) -> Replayed:
    """Append these letters' events, each with these changes; all or none. EventRefused if one would fail again."""
    assert letters
    events = [repaired(letter, changes) for letter in letters]
    journal = open_journal(layout.journal).log()
    since = journal.in_stamps(Position.of({PARTITION: min(letter.offset for letter in letters)}))
    unstored = journal.unstored(events, since)
    _check(layout, unstored, (clock or SystemClock()).now_us())
    with open_journal(layout.journal).writer(clock=clock) as writer:
        receipt = writer.append_unstored(events, since)
    return Replayed(len(unstored), len(events) - len(unstored), receipt)


def repaired(letter: DeadLetter, changes: Mapping[str, str]) -> Event:
    """The event of a dead letter with these changes, under its new id."""
    if letter.type in (PLAN, ASSIGN):
        raise RequestInvalid(
            f"The dead letter at offset {letter.offset} is no usage but a refused {letter.type}: {letter.detail}",
            next_step=f"Do it again: `stateside billing {'plan publish' if letter.type == PLAN else 'assign'}`",
        )
    if letter.reason == REPEATED:
        raise RequestInvalid(
            f"The dead letter at offset {letter.offset} repeats an event that counts: {letter.detail}",
            next_step="There is nothing to repair: appended under another id, it would be billed twice",
        )
    event = Event(f"replay/{letter.offset}", letter.entity, letter.type, letter.time_us, _payload(letter))
    for name, value in changes.items():
        event = _changed(event, name, value)
    return event


def parse_changes(texts: Sequence[str]) -> dict[str, str]:
    """Changes like `quantity=5` as names and values; RequestInvalid for any other text."""
    pairs = [text.partition("=") for text in texts]
    for name, equals, _ in pairs:
        if not equals or name not in SETTABLE:
            raise RequestInvalid(
                f"{name[:80]!r} is nothing that a replay can set", next_step=f"There are: {', '.join(SETTABLE)}"
            )
    return {name: value for name, _, value in pairs}


def _payload(letter: DeadLetter) -> dict[str, Any]:
    try:
        found = json.loads(letter.payload)
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {}


def _changed(event: Event, name: str, value: str) -> Event:
    try:
        match name:
            case "customer":
                return replace(event, entity=value)
            case "type":
                return replace(event, type=value)
            case "time":
                return replace(event, time_us=parse_time(value))
            case "quantity":
                return replace(event, payload={**event.payload, name: int(value)})
            case _:
                return replace(event, payload={**event.payload, name: value})
    except ValueError:
        wanted = "a whole number" if name == "quantity" else "a time like 2026-01-31T12:00:00Z"
        raise RequestInvalid(f"The {name} {value[:80]!r} is not {wanted}") from None


def _check(layout: Layout, events: Sequence[Event], now_us: int) -> None:
    """Raise EventRefused, with the reason, for the first event that would be a dead letter again."""
    if not events:
        return
    book = current_book(layout)
    none = events_table(open_journal(layout.journal).log(), 0, 0)
    table = _as_read(events, now_us, book.covers)
    rated = rate(table, book.folded(none, book.covers + len(events)))
    for event, reason, detail in zip(events, rated["reason"].to_pylist(), rated["detail"].to_pylist(), strict=True):
        if reason is not None:
            raise EventRefused(
                f"{event.id} would be a dead letter again: {reason}" + (f" ({detail})" if detail else ""),
                next_step="Nothing was appended. Repair it with --set, or mend what it needs first",
            )


def _as_read(events: Sequence[Event], now_us: int, offset: int) -> pa.Table:
    """The events as read from the journal, if appended now."""
    table = pa.Table.from_batches([encode(events, now_us)])
    fields = payload_columns(table["payload"].combine_chunks(), PAYLOAD)
    for name in fields.column_names:
        table = table.append_column(name, fields[name])
    return table.append_column("offset", pa.array(range(offset, offset + len(events)), pa.int64()))
