"""The append route: events are durable when the route answers, and each event id is stored once.

Requests that arrive while the disk is busy are stored together, with one sync (`journal.group_commit`), and each
request gets its own receipts. The number of waiting events is bounded; beyond the bound a request is refused at once,
with the advice to retry, and nothing of the request is stored.

While the journal's disk is away each append is refused, and the next one tries again. An empty folder in the place of
the journal, such as an unmounted disk leaves, does not become a new journal: the journal's id is known from the first
append on, and before that from the views that have read the journal: from a view's note, or else from its checkpoint,
looked up when a writer is opened.

The trace of a request (`traceparent`, W3C Trace Context) goes into the metadata of its events.

Where nodes write the journal, the server is one of the owners of the node `shared`. An entity that another node has is
refused (EntityElsewhere, 409), and nothing of the request is stored.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from stateside.core.clock import Clock, SystemClock
from stateside.core.errors import (
    EntityElsewhere,
    EventRefused,
    JournalAway,
    RouteUnknown,
    StatesideError,
    TooManyRequests,
)
from stateside.core.layout import Layout, ViewLayout
from stateside.core.storage import Storage
from stateside.journal import Journal, Writer, open_journal
from stateside.journal.contract import Answer, Appended
from stateside.journal.event import NAME_CHARS_MAX, TAGS_MAX, VERSION_MAX, Event, fault
from stateside.journal.json_lines import event_of, has_time
from stateside.journal.location import is_merged
from stateside.journal.payload import DeclaredFields
from stateside.serving.access.principal import check_appends
from stateside.serving.health.logs import Trace
from stateside.serving.web.request import Request
from stateside.serving.web.response import Response
from stateside.serving.web.route import Body, Route
from stateside.spark_state.batch_log import Checkpoint

WAITING_EVENTS_MAX = 20_000  # about 20 MB with payloads of some hundred bytes
OF_THE_CALLER = (EventRefused, EntityElsewhere)  # errors of a request; the writer goes on
log = logging.getLogger(__name__)


class Appender:
    """Appends to a folder's journal, opened with the first append. For one event loop.

    Events of a client that has left stay stored; a client without an answer sends its events again.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._writer: Writer | None = None
        self._opening: asyncio.Task[Writer] | None = None
        self._id: str | None = None
        self._merged = False  # whether the journal had nodes when it was opened
        self._waiting = 0  # events
        self._trouble: str | None = None  # last error logged

    async def append(self, events: Sequence[Event], untimed: Collection[str] = ()) -> Appended:
        """Store the events that are new, each id once.

        The journal must accept the events (`event.fault`); `untimed` has the ids of events without a given time.
        IdConflict if an id belongs to another event, TooManyRequests if too many events wait, JournalAway if the
        journal cannot be written.
        """
        if self._waiting + len(events) > WAITING_EVENTS_MAX:
            raise TooManyRequests(
                "Too many events wait to be stored",
                next_step="Nothing of this request was stored: send it again in a moment",
            )
        self._waiting += len(events)
        try:
            appended = await self._append(events, untimed)
        except OF_THE_CALLER:
            raise
        except Exception as error:
            self._tell(error)
            raise
        finally:
            self._waiting -= len(events)
        self._tell(None)
        return appended

    async def _append(self, events: Sequence[Event], untimed: Collection[str]) -> Appended:
        """Again while another request's failure replaced the writer: ids are compared, so each event is stored once.

        Each attempt costs another request its answer, so the attempts end; and a writer that cannot be opened raises.
        """
        while True:
            writer = self._writer or await self._opened()
            found = await self._answer(writer, events, untimed)
            if isinstance(found, Appended):
                return found
            assert isinstance(found, Exception)
            if isinstance(found, OF_THE_CALLER):
                raise found
            if self._writer is writer:
                self._writer = None  # the next append opens a new one
                await asyncio.to_thread(writer.close)
                raise found

    async def _answer(self, writer: Writer, events: Sequence[Event], untimed: Collection[str]) -> Answer:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Answer] = loop.create_future()

        def told(found: Answer) -> None:
            with suppress(RuntimeError):  # the loop is closed: the server has stopped
                loop.call_soon_threadsafe(_set, answer, found)

        writer.submit(events, told, any_time=untimed)
        return await answer

    async def _opened(self) -> Writer:
        """The writer; all who wait for it share one attempt to open it."""
        if self._opening is None or self._opening.done():
            self._opening = asyncio.create_task(asyncio.to_thread(self._open))
        self._writer = await asyncio.shield(self._opening)
        return self._writer

    def _open(self) -> Writer:
        """A writer of this folder's journal; JournalAway if the journal is not there."""
        merged = is_merged(self._layout.journal)
        if self._merged and not merged:  # before the first merger no id tells an empty folder from the journal
            raise JournalAway(
                "The journal is away: the folders of its nodes are gone",
                where=str(self._layout.journal),
                next_step="Nothing was stored. Bring its disk back; then the same append goes on by itself",
            )
        journal = open_journal(self._layout.journal)
        writer = journal.writer(known=self._id or _read_by_views(self._layout, journal))
        self._id, self._merged = journal.id(), merged
        return writer

    def _tell(self, error: Exception | None) -> None:
        """Log each change between a writable and an unwritable journal, once."""
        trouble = None if error is None else str(error)
        if trouble != self._trouble:
            self._trouble = trouble
            unexpected = None if isinstance(error, StatesideError) else error
            log.warning("appending: %s", trouble or "the journal takes events again", exc_info=unexpected)


def _set(answer: asyncio.Future[Answer], found: Answer) -> None:
    if not answer.done():  # else the client has left
        answer.set_result(found)


def _read_by_views(layout: Layout, journal: Journal) -> str | None:
    """The id of the journal that the folder's views have read, of several the one present; None if none was read."""
    read = {id_ for view in layout.views() for id_ in _journals_of(view)}
    if not read:
        return None
    here = journal.id()
    return here if here in read else min(read)


def _journals_of(view: ViewLayout) -> set[str]:
    """The journal in the view's note; without a note, those that the newest batch of its checkpoint has read."""
    try:
        if (noted := view.journal_read()) is not None:
            return {noted}
        checkpoint = Checkpoint(Storage.at(view.checkpoint_location))
        return {id_ for batch in checkpoint.commits()[-1:] for id_ in checkpoint.journals(batch)}
    except (OSError, StatesideError) as error:  # appending does not depend on the checkpoint
        log.warning("appending: it cannot be read which journal the view %s has read: %s", view.name, error)
        return set()


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
    """The append route of a folder; refuses events where the folder serves a foreign checkpoint, without a journal."""
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
        events = traced(events, request.headers.get("traceparent"))
        appended = await appender.append(events, _untimed(request.document()))
        receipts = [appended.receipt(number) for number in range(len(events))]
        return Response({"receipt": appended.position, "receipts": receipts})

    return [Route("/v1/events", append, _TEXT, "append", method="POST", body=_BODY, answer=_ANSWER)]


def _events(document: dict[str, Any], now_us: int) -> list[Event]:
    """The body's events; EventRefused names the first bad one, and nothing is stored."""
    found = document.get("events")
    if set(document) != {"events"} or not isinstance(found, list) or not 1 <= len(found) <= EVENTS_MAX:
        raise EventRefused(
            f'The body is not {{"events": […]}} with 1 to {EVENTS_MAX:,} events',
            next_step="Send them so; more of them in several requests",
        )
    return [_event(number, fields, now_us) for number, fields in enumerate(found)]


def traced(events: Sequence[Event], traceparent: str | None) -> list[Event]:
    """The events with the request's trace in their metadata; unchanged without a valid header.

    An event that has a trace keeps it, and one whose metadata have no room goes without.
    """
    caller = Trace.caller(traceparent)
    if caller is None:
        return list(events)
    kept = dict([caller.header()])
    joined = [replace(event, metadata={**kept, **event.metadata}) for event in events]
    return [new if fault(new) is None else event for new, event in zip(joined, events, strict=True)]


def _untimed(document: dict[str, Any]) -> set[str]:
    """The ids of events without a given time: a repeated request is not compared by time."""
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
