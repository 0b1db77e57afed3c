"""The route that takes events in: durable when it answers, and the same event id again is not stored twice."""

from __future__ import annotations

from typing import Any

from stateside.clock import Clock, SystemClock
from stateside.errors import EventRefused, RouteUnknown
from stateside.journal.event import NAME_CHARS_MAX, TAGS_MAX, VERSION_MAX, Event, fault
from stateside.journal.fields import DeclaredFields
from stateside.journal.lines import event_of, has_time
from stateside.layout import Layout
from stateside.serving.access.appends import check_appends
from stateside.serving.appender import Appender
from stateside.serving.web.request import Request
from stateside.serving.web.response import Response
from stateside.serving.web.route import Body, Route

EVENTS_MAX = 1_000
BODY_BYTES_MAX = 4 << 20

_NAME = {"type": "string", "minLength": 1, "maxLength": NAME_CHARS_MAX}
_EVENT = {
    "type": "object",
    "required": ["id", "entity", "type"],
    "additionalProperties": False,
    "properties": {
        "id": {**_NAME, "description": "what the event is known by: the same one again is not stored twice"},
        "entity": {**_NAME, "description": "who it is about"},
        "type": {**_NAME, "description": "what happened"},
        "time": {"type": "string", "format": "date-time", "description": "when; the present if it is not given"},
        "time_us": {"type": "integer", "description": "the same in microseconds since 1970, instead of `time`"},
        "payload": {"type": "object"},
        "data": {"type": "string", "format": "byte", "description": "bytes in base64, instead of `payload`"},
        "tags": {"type": "array", "items": _NAME, "maxItems": TAGS_MAX},
        "version": {"type": "integer", "minimum": 1, "maximum": VERSION_MAX, "description": "of the type's schema"},
        "metadata": {"type": "object", "additionalProperties": {"type": "string"}, "description": "where it is from"},
        "extra": {"type": "object", "description": "what a newer Stateside knows of the event; kept as it is"},
        "sequence": {"type": "integer", "description": "of an exported event; the journal gives its own"},
        "appended_us": {"type": "integer", "description": "of an exported event; the journal gives its own"},
    },
}
_BODY = Body(
    {
        "type": "object",
        "required": ["events"],
        "additionalProperties": False,
        "properties": {"events": {"type": "array", "items": _EVENT, "minItems": 1, "maxItems": EVENTS_MAX}},
    },
    BODY_BYTES_MAX,
)
_RECEIPT = {"type": "string", "description": "a position: an answer that covers it has the event", "examples": ["0:42"]}
_ANSWER = {
    "type": "object",
    "required": ["receipt", "receipts"],
    "properties": {
        "receipt": {**_RECEIPT, "description": "covers all of them"},
        "receipts": {"type": "array", "items": _RECEIPT, "description": "one for each event, in order"},
    },
}
_TEXT = (
    "append events to the journal: durable when this answers. Each id is stored once: an event that is there already "
    "is answered with the first one's receipt, so that a request may be repeated; another event under its id is a "
    "conflict (409), and nothing of the request is stored. An event whose payload does not fit the fields that the "
    "application declares is refused, with the field named"
)


def event_routes(layout: Layout, clock: Clock | None = None) -> list[Route]:
    """The route for a folder; where the folder serves a checkpoint that is not ours there is no journal."""
    appender, clock, fields = Appender(layout), clock or SystemClock(), DeclaredFields(layout.fields)

    async def append(request: Request) -> Response:
        if layout.pointed() is not None:
            raise RouteUnknown(
                "The views that are served here are another job's, which has no journal of ours",
                next_step="Give that job its events where it reads them",
            )
        events = _events(request.document(), clock.now_us())
        check_appends(request.holder, events)
        fields.check(events, "request")
        offsets = await appender.append(events, _untimed(request.document()))
        return Response({"receipt": appender.receipt(max(offsets)), "receipts": list(map(appender.receipt, offsets))})

    return [Route("/v1/events", append, _TEXT, "append", method="POST", body=_BODY, answer=_ANSWER)]


def _events(document: dict[str, Any], now_us: int) -> list[Event]:
    """The body's events; EventRefused, naming the first bad one, and nothing is stored."""
    found = document.get("events")
    if set(document) != {"events"} or not isinstance(found, list) or not 1 <= len(found) <= EVENTS_MAX:
        raise EventRefused(
            f'The body is not {{"events": […]}} with 1 to {EVENTS_MAX:,} events',
            next_step="Send them so; more of them in several requests",
        )
    return [_event(number, fields, now_us) for number, fields in enumerate(found)]


def _untimed(document: dict[str, Any]) -> set[str]:
    """The ids of the events whose times are not given: they are not compared when a request is repeated."""
    found: list[dict[str, Any]] = document["events"]
    return {fields["id"] for fields in found if not has_time(fields)} - {
        fields["id"] for fields in found if has_time(fields)
    }


def _event(number: int, fields: Any, now_us: int) -> Event:
    try:
        event = event_of(fields, now_us)
        reason = fault(event) if "id" in fields else "it has no id, by which it would be known if it came again"
    except (ValueError, RecursionError) as error:
        reason = str(error)
    if reason is None:
        return event
    raise EventRefused(
        f"Event {number} of the request was refused: {reason}",
        next_step="Nothing of the request was stored; mend the event and send all of them again",
    )
