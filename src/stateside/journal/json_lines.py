"""Events as JSON lines, for files, pipes and people: one object per line.

    {"entity": "emma", "type": "call", "time": "2026-01-31T12:00:00Z", "payload": {"seconds": 61}}

field       meaning
entity      the entity; required
type        the event type; required
time        ISO 8601 with a time zone; default: the time of reading
time_us     microseconds since 1970, instead of `time`
payload     a JSON object; default {}
data        bytes in base64, instead of `payload`
tags        a list of texts; default none
id          the event's id; default a random UUID
version     of the type's schema; default 1
metadata    an object of texts: the origin of the event
extra       an object: fields of a newer Stateside, kept unchanged
sequence, appended_us   present in exported events; ignored, the journal assigns its own

Any other field is refused, so that a misspelt field is not lost. Blank lines are skipped.
"""

from __future__ import annotations

import json
import os
from base64 import b64decode, b64encode
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from uuid import uuid4

from stateside.core.clock import Clock, SystemClock
from stateside.core.errors import EventRefused, IdConflict
from stateside.core.positions import Position
from stateside.journal.event import Event, fault

if TYPE_CHECKING:
    from stateside.journal.append_batch import Appended
    from stateside.journal.payload import DeclaredFields

LINE_BYTES_MAX = 1024 * 1024  # a payload of 64 KiB, with every character escaped, is well below
CHUNK_BYTES = 1024 * 1024  # the lines of a chunk are one append

FIELDS = ("id", "entity", "type", "time", "time_us", "payload", "data", "tags", "version", "metadata", "extra")
GIVEN_BY_THE_JOURNAL = ("sequence", "appended_us")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Input(Protocol):
    """A file or pipe in binary mode."""

    def read1(self, size: int, /) -> bytes:
        """The available bytes, waiting only if there are none; empty at the end."""


class LineWriter(Protocol):
    """A writer of any journal backend."""

    @property
    def end(self) -> Position:
        """The position after the last durable event."""

    def append_each(self, events: Sequence[Event], *, any_time: Collection[str] = ()) -> Appended:
        """Store the events, all or none, each id once."""


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is no event, or has the id of another event (`conflict`), with the reason."""

    number: int
    text: str
    reason: str
    conflict: bool = False

    def as_json(self) -> bytes:
        """A dead letter: one line of JSON."""
        letter = {"line": self.number, "reason": self.reason, "text": self.text}
        return json.dumps(letter, ensure_ascii=False).encode(errors="replace") + b"\n"


class Intake:
    """Appends lines to a journal as they arrive, group by group, and counts stored, repeated and refused lines.

    A bad line ends the intake: lines before it are stored, lines after it are not. With a dead-letter file the intake
    goes on: bad lines are written to the file, durably, before the good lines around them are appended. A line with the
    id of another event is bad; a line whose event is stored already counts as repeated. With `fields`, a line whose
    payload does not fit the folder's declared fields is bad as well.
    """

    def __init__(
        self,
        writer: LineWriter,
        dead_letters: Path | None = None,
        clock: Clock | None = None,
        fields: DeclaredFields | None = None,
    ) -> None:
        self._writer = writer
        self._dead_letters = dead_letters
        self._fields = fields
        self._clock = clock or SystemClock()
        self.receipt = writer.end
        self.stored = 0
        self.repeated = 0
        self.refused = 0

    def take(self, lines: Input) -> None:
        """Append all lines; EventRefused at a bad line."""
        for group in _groups(lines):
            found = [_read(number, text, self._clock.now_us()) for number, text in group]
            events = [(line.id, timed) for line, timed in found if isinstance(line, Event)]
            untimed = {id_ for id_, timed in events if not timed} - {id_ for id_, timed in events if timed}
            self._take(group, self._fitting(group, [line for line, _ in found]), untimed)

    def _take(self, group: list[tuple[int, bytes]], parsed: list[Event | BadLine], untimed: set[str]) -> None:
        """Append one group. An IdConflict appears only at the append: repeat without the conflicting lines."""
        buried: set[int] = set()
        while True:
            bad = [line for line in parsed if isinstance(line, BadLine)]
            if self._dead_letters is None:
                parsed = parsed[: parsed.index(bad[0]) + 1] if bad else parsed
            else:
                self._bury([line for line in bad if line.number not in buried])
                buried.update(line.number for line in bad)
            places = [place for place, line in enumerate(parsed) if isinstance(line, Event)]
            try:
                self._append([line for line in parsed if isinstance(line, Event)], untimed)
                break
            except IdConflict as conflict:
                for number, id_ in zip(conflict.events, conflict.ids, strict=True):
                    parsed[places[number]] = _conflicting(*group[places[number]], id_)
        if bad and self._dead_letters is None:
            raise self._refusal(bad[0])

    def _fitting(self, group: list[tuple[int, bytes]], parsed: list[Event | BadLine]) -> list[Event | BadLine]:
        """Replace each event that does not fit the declared fields with a bad line."""
        if self._fields is None:
            return parsed
        places = [place for place, line in enumerate(parsed) if isinstance(line, Event)]
        faults = self._fields.faults([line for line in parsed if isinstance(line, Event)])
        for row, reason in faults.items():
            number, text = group[places[row]]
            parsed[places[row]] = BadLine(number, text.decode(errors="backslashreplace"), reason)
        return parsed

    def _append(self, events: list[Event], untimed: set[str]) -> None:
        if events:
            appended = self._writer.append_each(events, any_time=untimed)
            any_before = self.stored + self.repeated > 0
            self.receipt = self.receipt.joined(appended.position) if any_before else appended.position
            self.repeated += len(appended.repeated)
            self.stored += len(events) - len(appended.repeated)

    def _bury(self, bad: list[BadLine]) -> None:
        if not bad:
            return
        assert self._dead_letters is not None
        with self._dead_letters.open("ab") as letters:
            letters.writelines(line.as_json() for line in bad)
            letters.flush()
            os.fsync(letters.fileno())
        self.refused += len(bad)

    def _refusal(self, line: BadLine) -> EventRefused:
        stored = f"{self.stored:,} events before it are stored, receipt {self.receipt}" if self.stored else None
        kind = IdConflict if line.conflict else EventRefused
        return kind(
            f"Line {line.number} is {'a conflict' if line.conflict else 'no event'}: {line.reason}",
            next_step=f"{stored or 'Nothing is stored'}. Mend the line and append from it on, "
            "or collect such lines with --dead-letters",
        )


def parse(number: int, line: bytes, now_us: int) -> Event | BadLine:
    """The event in a line, or the bad line with its reason."""
    return _read(number, line, now_us)[0]


def _read(number: int, line: bytes, now_us: int) -> tuple[Event | BadLine, bool]:
    """As `parse`, and whether the line has a time."""
    try:
        if len(line) > LINE_BYTES_MAX:
            raise ValueError(f"it is longer than {LINE_BYTES_MAX} bytes")
        fields = _fields(line)
        event = event_of(fields, now_us)
        reason = fault(event)
    except (ValueError, RecursionError) as error:
        reason = str(error)
    if reason is None:
        return event, has_time(fields)
    return BadLine(number, line.decode(errors="backslashreplace"), reason), False


def _conflicting(number: int, line: bytes, id_: str) -> BadLine:
    reason = f"its id {id_!r} is that of another event, with other content"
    return BadLine(number, line.decode(errors="backslashreplace"), reason, conflict=True)


def _fields(line: bytes) -> Any:
    try:
        return json.loads(line.decode())
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8, at byte {error.start}") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON: {error.msg} at character {error.pos + 1}") from error


def event_of(fields: Any, now_us: int) -> Event:
    """The event of these fields; ValueError if they are invalid. `fault` does the remaining checks."""
    if not isinstance(fields, dict):
        raise ValueError(f"it is a JSON {type(fields).__name__}, not an object")
    unknown = [name for name in fields if name not in FIELDS + GIVEN_BY_THE_JOURNAL]
    if unknown:
        raise ValueError(f"it has a field {unknown[0]!r}; an event has {', '.join(FIELDS)}")
    for needed in ("entity", "type"):
        if needed not in fields:
            raise ValueError(f"it has no {needed}")
    return Event(
        id=fields["id"] if "id" in fields else str(uuid4()),
        entity=fields["entity"],
        type=fields["type"],
        time_us=_time_us(fields, now_us),
        payload=payload_of(fields),
        tags=tuple(tags) if isinstance(tags := fields.get("tags", ()), list) else tags,
        version=fields.get("version", 1),
        metadata=fields.get("metadata", {}),
        extra=fields.get("extra", {}),
    )


def has_time(fields: dict[str, Any]) -> bool:
    """Whether the producer gave a time; else the event has the time of reading, which differs in a repeated append."""
    return "time" in fields or "time_us" in fields


def fields_of(event: Event) -> dict[str, Any]:
    """The fields of an event; `event_of` is the inverse."""
    fields: dict[str, Any] = {"id": event.id, "entity": event.entity, "type": event.type, "time_us": event.time_us}
    if isinstance(event.payload, bytes):
        fields["data"] = b64encode(event.payload).decode()
    else:
        fields["payload"] = dict(event.payload)
    fields["tags"] = list(event.tags)
    if event.version != 1:
        fields["version"] = event.version
    others = {"metadata": dict(event.metadata) or None, "extra": dict(event.extra) or None}
    given = {name: getattr(event, name) for name in GIVEN_BY_THE_JOURNAL}
    return fields | {name: value for name, value in (others | given).items() if value is not None}


def payload_of(fields: dict[str, Any]) -> Any:
    """The payload of these fields; ValueError if there are two, or its base64 is invalid."""
    if "data" not in fields:
        return fields.get("payload", {})
    if "payload" in fields:
        raise ValueError("it has both a payload and data")
    try:
        return b64decode(fields["data"], validate=True)
    except (ValueError, TypeError) as error:
        raise ValueError("its data is not bytes in base64") from error


def _time_us(fields: dict[str, Any], now_us: int) -> Any:
    if "time" not in fields:
        return fields.get("time_us", now_us)
    if "time_us" in fields:
        raise ValueError("it has both a time and a time_us")
    try:
        time = datetime.fromisoformat(fields["time"])
        return (time - _EPOCH) // timedelta(microseconds=1)
    except (ValueError, TypeError, OverflowError) as error:
        shown = repr(fields["time"])[:40]
        raise ValueError(f"its time is {shown}, not one like 2026-01-31T12:00:00Z") from error


def _groups(lines: Input) -> Iterator[list[tuple[int, bytes]]]:
    """The lines of each chunk with their numbers; an oversized line is cut just beyond the limit."""
    number, rest = 1, b""
    while chunk := lines.read1(CHUNK_BYTES):
        *whole, rest = (rest + chunk).split(b"\n")
        yield _numbered(number, whole)
        number += len(whole)
        rest = rest[: LINE_BYTES_MAX + 1]
    yield _numbered(number, [rest])


def _numbered(first: int, lines: list[bytes]) -> list[tuple[int, bytes]]:
    return [(number, line) for number, line in enumerate(lines, first) if line.strip()]
