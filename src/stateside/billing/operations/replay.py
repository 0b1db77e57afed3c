"""Replay: appends a dead letter's event again, repaired, exactly once.

The new event's id is `replay/OFFSET`, with the offset of the dead letter. The search for the id, from the dead letter
on, and the append are one critical section of the journal (`append_unstored`): across repeated and concurrent replays
and crashes, the journal has the event once. The replayed event is treated like any other: it may be in time, or come
too late and lead to a note, or become a dead letter again, which can be replayed in turn.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa

from stateside.billing.answers.letters import DeadLetter
from stateside.billing.invoicing.repeats import REPEATED
from stateside.billing.model import ASSIGN, PLAN
from stateside.billing.operations.publication import current_book
from stateside.billing.rating.rating import PAYLOAD, events_table, rate
from stateside.core import Clock, Layout, Position, SystemClock
from stateside.core.errors import EventRefused, RequestInvalid
from stateside.journal import PARTITION, Event, open_journal, payload_columns
from stateside.journal.columns import encode
from stateside.serving import parse_time

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
