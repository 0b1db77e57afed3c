"""Questions as they are sent: paths, parameters and bodies."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from urllib.parse import quote
from uuid import uuid4

from stateside.core.errors import RequestInvalid
from stateside.core.positions import Position
from stateside.journal.event import NAME_CHARS_MAX, Event
from stateside.journal.json_lines import fields_of
from stateside.serving.clients.steps import WAIT_S, Ask

EVENTS_MAX = 1_000  # of one request, and
EVENTS_BYTES_MAX = (4 << 20) - 64  # of JSON in its body, beside what is around them: servers take no more

Part = str | int | float | bool | Decimal | date | datetime
Parameters = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class ClientFloor:
    """What is asked for at least, or as of which batch; see docs/serving.md."""

    min_position: Position | str | None = None
    max_age_ms: int | None = None
    wait_ms: int | None = None
    as_of: int | None = None

    def parameters(self) -> Parameters:
        """As they stand in an address."""
        given: dict[str, object] = {"min_position": self.min_position, "max_age_ms": self.max_age_ms}
        given |= {"wait_ms": self.wait_ms, "as_of": self.as_of}
        return tuple((name, str(value)) for name, value in given.items() if value is not None)

    def at(self, batch: int) -> ClientFloor:
        """The same as of a batch that is known to be good enough."""
        return replace(self, min_position=None, max_age_ms=None, as_of=batch)

    @property
    def wait_s(self) -> float:
        """For how long the server may wait."""
        return WAIT_S if self.wait_ms is None else self.wait_ms / 1_000


def texts(key: Sequence[Part]) -> list[str]:
    """A key's parts as they are sent."""
    return [text(part) for part in key]


def text(part: Part) -> str:
    """A part of a key as it is sent: times in UTC, true and false in small letters."""
    match part:
        case bool():
            return "true" if part else "false"
        case datetime() if part.tzinfo is not None:
            return part.astimezone(UTC).isoformat().replace("+00:00", "Z")
        case date():
            return part.isoformat()
        case Decimal():
            return f"{part:f}"
    return str(part)


def of_view(view: str, what: str, key: Sequence[str], floor: ClientFloor, more: Parameters = ()) -> Ask:
    """A question to a view. The key's parts stand behind the question mark, where every text can stand."""
    parameters = (*(("key", part) for part in key), *floor.parameters(), *more)
    return Ask("GET", f"/v1/views/{quote(view, safe='')}/{what}", parameters, wait_s=floor.wait_s)


def rollup_path(columns: Sequence[str]) -> str:
    """The address of a rollup, below its view's."""
    return f"rollup/{quote(','.join(columns), safe=',')}" if columns else "rollup"


def span(from_time: Part | None, to_time: Part | None, last: str | None) -> Parameters:
    """The range of a sum."""
    given = (("from", from_time), ("to", to_time), ("last", last))
    return tuple((name, text(value)) for name, value in given if value is not None)


def other_parameters(given: Mapping[str, Part]) -> Parameters:
    """Whatever else a route takes."""
    return tuple((name, text(value)) for name, value in given.items())


def posted(path: str, document: Mapping[str, Any], parameters: Parameters = (), *, wait_s: float = WAIT_S) -> Ask:
    """A question with a body."""
    return Ask("POST", path, parameters, json.dumps(document).encode(), wait_s=wait_s)


def appended(events: Sequence[Event | Mapping[str, Any]]) -> Iterator[tuple[int, Ask]]:
    """Requests that append these events, in order, each with how many it has.

    Each event has an id, so that it is stored once however often it is sent. RequestInvalid if there is no event.
    """
    if not events:
        raise RequestInvalid("There is no event to append", next_step="Give one at least")
    return ((len(group), _append(group)) for group in _groups(events))


def _groups(events: Iterable[Event | Mapping[str, Any]]) -> Iterator[list[str]]:
    """The events as JSON, as many together as a request may have. One that is too large for any is sent by itself."""
    group: list[str] = []
    size = 0
    for event in events:
        told = json.dumps(_event(event))  # in ASCII: so many characters, so many bytes
        if group and (len(group) == EVENTS_MAX or size + len(told) > EVENTS_BYTES_MAX):
            yield group
            group, size = [], 0
        group.append(told)
        size += len(told) + 1
    yield group


def _append(group: Sequence[str]) -> Ask:
    return Ask("POST", "/v1/events", body=f'{{"events": [{",".join(group)}]}}'.encode())


def _new_id(entity: object) -> str:
    """An id that nobody else has: in its entity's namespace, as a scoped token needs it, if that is not too long."""
    namespaced = f"@{entity}/{uuid4()}"
    return namespaced if len(namespaced) <= NAME_CHARS_MAX else str(uuid4())


def _event(event: Event | Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(event, Event):
        return {"id": _new_id(event.get("entity")), **event}
    return fields_of(replace(event, sequence=None, appended_us=None))  # the journal there gives its own
