"""Requests of the clients: paths, parameters and bodies."""

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

EVENTS_MAX = 1_000  # in one request
EVENTS_BYTES_MAX = (4 << 20) - 64  # of JSON in one request's body, besides the envelope: the server's limit

Part = str | int | float | bool | Decimal | date | datetime
Parameters = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class ClientFloor:
    """The required freshness of an answer, or the batch for `as_of`; see docs/serving.md."""

    min_position: Position | str | None = None
    max_age_ms: int | None = None
    wait_ms: int | None = None
    as_of: int | None = None

    def parameters(self) -> Parameters:
        """The floor as URL parameters."""
        given: dict[str, object] = {"min_position": self.min_position, "max_age_ms": self.max_age_ms}
        given |= {"wait_ms": self.wait_ms, "as_of": self.as_of}
        return tuple((name, str(value)) for name, value in given.items() if value is not None)

    def at(self, batch: int) -> ClientFloor:
        """The floor for reading as of a batch that already satisfies this floor."""
        return replace(self, min_position=None, max_age_ms=None, as_of=batch)

    @property
    def wait_s(self) -> float:
        """How long the server may wait."""
        return WAIT_S if self.wait_ms is None else self.wait_ms / 1_000


def texts(key: Sequence[Part]) -> list[str]:
    return [text(part) for part in key]


def text(part: Part) -> str:
    """A key's part as sent: times in UTC, booleans in lower case."""
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
    """A request to a view. The key's parts are query parameters, which can hold any text."""
    parameters = (*(("key", part) for part in key), *floor.parameters(), *more)
    return Ask("GET", f"/v1/views/{quote(view, safe='')}/{what}", parameters, wait_s=floor.wait_s)


def rollup_path(columns: Sequence[str]) -> str:
    """The path of a rollup, below its view's."""
    return f"rollup/{quote(','.join(columns), safe=',')}" if columns else "rollup"


def other_parameters(given: Mapping[str, Part]) -> Parameters:
    return tuple((name, text(value)) for name, value in given.items())


def of_path(path: str, parameters: Mapping[str, Part], floor: ClientFloor) -> Ask:
    """A request for the document at a path."""
    return Ask("GET", path, (*floor.parameters(), *other_parameters(parameters)), wait_s=floor.wait_s)


def posted(path: str, document: Mapping[str, Any], parameters: Parameters = (), *, wait_s: float = WAIT_S) -> Ask:
    """A POST request with a JSON body."""
    return Ask("POST", path, parameters, json.dumps(document).encode(), wait_s=wait_s)


def appended(events: Sequence[Event | Mapping[str, Any]]) -> Iterator[tuple[int, Ask]]:
    """Requests that append these events in order, each with its number of events.

    Each event gets an id, so that repeated sending stores the event once. RequestInvalid without events.
    """
    if not events:
        raise RequestInvalid("There is no event to append", next_step="Give one at least")
    return ((len(group), _append(group)) for group in _groups(events))


def _groups(events: Iterable[Event | Mapping[str, Any]]) -> Iterator[list[str]]:
    """The events as JSON, in groups that fit a request. An event too large for any request is sent alone."""
    group: list[str] = []
    size = 0
    for event in events:
        told = json.dumps(_event(event))  # in ASCII: as many bytes as characters
        if group and (len(group) == EVENTS_MAX or size + len(told) > EVENTS_BYTES_MAX):
            yield group
            group, size = [], 0
        group.append(told)
        size += len(told) + 1
    yield group


def _append(group: Sequence[str]) -> Ask:
    return Ask("POST", "/v1/events", body=f'{{"events": [{",".join(group)}]}}'.encode())


def _new_id(entity: object) -> str:
    """A unique id: in the entity's namespace, which a scoped token requires, unless too long."""
    namespaced = f"@{entity}/{uuid4()}"
    return namespaced if len(namespaced) <= NAME_CHARS_MAX else str(uuid4())


def _event(event: Event | Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(event, Event):
        return {"id": _new_id(event.get("entity")), **event}
    return fields_of(replace(event, sequence=None, appended_us=None))  # the server's journal assigns its own
