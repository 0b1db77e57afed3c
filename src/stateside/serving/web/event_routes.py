"""The append route: events are durable when the route answers, and each event id is stored once.

*Group commit*: requests that arrive while the disk is busy are appended together, with one sync, and each request gets
its own receipts. The queue is bounded; beyond the bound a request is refused at once, with the advice to retry, and
nothing of the request is stored.

While the journal's disk is away each append is refused, and the next one tries again. An empty folder in the place of
the journal, such as an unmounted disk leaves, does not become a new journal: the journal's id is known from the first
append on, and before that from the checkpoints of the views that have read the journal.

Where the folder's journal is a Kafka topic, the server takes turns as the topic's owner (`kafka.shared_writer`).
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from stateside.core.clock import Clock, SystemClock
from stateside.core.errors import (
    EventRefused,
    IdConflict,
    RequestInvalid,
    RouteUnknown,
    StatesideError,
    TooManyRequests,
)
from stateside.core.layout import Layout
from stateside.core.positions import Position
from stateside.core.storage import Storage
from stateside.journal import FileLog, JournalWriter
from stateside.journal.backends.files.segment import PARTITION
from stateside.journal.backends.kafka.shared_writer import PlacedWriter
from stateside.journal.backends.kafka.topic import Topic
from stateside.journal.backends.kafka.topic_folder import placed
from stateside.journal.backends.nodes.stored_stream import is_merged
from stateside.journal.event import NAME_CHARS_MAX, TAGS_MAX, VERSION_MAX, Event, fault
from stateside.journal.json_lines import event_of, has_time
from stateside.journal.payload import DeclaredFields
from stateside.serving.access.principal import check_appends
from stateside.serving.web.request import Request
from stateside.serving.web.response import Response
from stateside.serving.web.route import Body, Route
from stateside.spark_state.batch_log import Checkpoint

WAITING_EVENTS_MAX = 20_000  # about 20 MB with payloads of some hundred bytes
TOGETHER_EVENTS_MAX = 10_000
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A request's events, the ids of those without a given time, and the future of their offsets."""

    events: Sequence[Event]
    untimed: Collection[str]
    answer: asyncio.Future[list[int]]
    loop: asyncio.AbstractEventLoop

    def tell(self, offsets: list[int] | Exception) -> None:
        """Answer the request, from the appender's thread."""
        self.loop.call_soon_threadsafe(self._set, offsets)

    def _set(self, offsets: list[int] | Exception) -> None:
        if self.answer.done():  # the client has left; its events stay stored
            return
        if isinstance(offsets, Exception):
            self.answer.set_exception(offsets)
        else:
            self.answer.set_result(offsets)


class Appender:
    """Appends to a folder's journal in a thread, which starts with the first append.

    The thread ends with the process: a server that stops answers waiting clients first, and a client without an answer
    sends its events again.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._changed = threading.Condition()
        self._waiting: list[_Waiting] = []
        self._thread: threading.Thread | None = None
        self._journal_id: UUID | None = None
        self._topic: Topic | None = None  # set if the journal is on Kafka
        self._trouble: str | None = None  # last error logged

    async def append(self, events: Sequence[Event], untimed: Collection[str] = ()) -> list[int]:
        """Store the events that are new, each id once, and return the offset of each.

        The journal must accept the events (`event.fault`); `untimed` has the ids of events without a given time.
        IdConflict if an id belongs to another event, TooManyRequests if the queue is full, JournalAway if the journal
        cannot be written.
        """
        loop = asyncio.get_running_loop()
        waiting = _Waiting(events, untimed, loop.create_future(), loop)
        with self._changed:
            if self._count() + len(events) > WAITING_EVENTS_MAX:
                raise TooManyRequests(
                    "Too many events wait to be stored",
                    next_step="Nothing of this request was stored: send it again in a moment",
                )
            self._waiting.append(waiting)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="appender", daemon=True)
                self._thread.start()
            self._changed.notify()
        return await waiting.answer

    def receipt(self, offset: int) -> Position:
        """The receipt of an event stored at this offset, in the form of stamps' positions."""
        behind = Position.of({PARTITION: offset + 1})
        return behind if self._topic is None else self._topic.in_stamps(behind)

    def _count(self) -> int:
        return sum(len(waiting.events) for waiting in self._waiting)

    def _run(self) -> None:
        writer: JournalWriter | PlacedWriter | None = None
        while True:
            together = self._next()
            try:
                writer = writer or self._open()
                answers = _appended(writer, together)
            except Exception as error:  # fails these requests; the next append opens a new writer
                if writer is not None:
                    writer.close()
                writer = None
                self._tell(error)
                for waiting in together:
                    waiting.tell(error)
                continue
            self._tell(None)
            for waiting, answer in zip(together, answers, strict=True):
                waiting.tell(answer)

    def _next(self) -> list[_Waiting]:
        """Wait for requests, and return those to append together."""
        with self._changed:
            while not self._waiting:
                self._changed.wait()
            taken = 0
            for count, waiting in enumerate(self._waiting):
                if count and taken + len(waiting.events) > TOGETHER_EVENTS_MAX:
                    break
                taken += len(waiting.events)
            else:
                count = len(self._waiting)
            together, self._waiting = self._waiting[:count], self._waiting[count:]
            return together

    def _open(self) -> JournalWriter | PlacedWriter:
        """A writer of this folder's journal; JournalAway if the journal is not there."""
        if is_merged(self._layout.journal):
            raise RequestInvalid(
                "The events of this folder are written by its nodes",
                next_step="Append them with a NodeWriter, at the node that has their entity (docs/nodes.md)",
            )
        self._topic = placed(self._layout.journal) or self._topic
        if self._topic is not None:
            return PlacedWriter(self._layout.journal, self._topic)
        writer = JournalWriter(self._layout.journal, known=self._journal_id or _read_by_views(self._layout))
        self._journal_id = writer.journal_id
        return writer

    def _tell(self, error: Exception | None) -> None:
        """Log each change between a writable and an unwritable journal, once."""
        trouble = None if error is None else str(error)
        if trouble != self._trouble:
            self._trouble = trouble
            unexpected = None if isinstance(error, StatesideError) else error
            log.warning("appending: %s", trouble or "the journal takes events again", exc_info=unexpected)


def _appended(writer: JournalWriter | PlacedWriter, together: Sequence[_Waiting]) -> list[list[int] | Exception]:
    """Store the requests' events as one append; on a conflict one by one, to refuse only the conflicting request."""
    events = [event for waiting in together for event in waiting.events]
    timed = {event.id for waiting in together for event in waiting.events if event.id not in waiting.untimed}
    untimed = {id_ for waiting in together for id_ in waiting.untimed} - timed  # a given time is compared
    try:
        place = writer.append_each(events, any_time=untimed).place
    except IdConflict as conflict:
        if len(together) == 1:
            return [conflict]
        return [answer for waiting in together for answer in _appended(writer, [waiting])]
    offsets = iter([place(number).offset for number in range(len(events))])
    return [[next(offsets) for _ in waiting.events] for waiting in together]


def _read_by_views(layout: Layout) -> UUID | None:
    """The id of the journal that the folder's views have read, of several the one present; None if none was read."""
    read = {journal for view in layout.views() for journal in _journals(Storage.at(view.checkpoint_location))}
    if not read:
        return None
    here = FileLog(layout.journal).id()
    return UUID(here if here in read else min(read))


def _journals(storage: Storage) -> Iterator[str]:
    """The journals that the newest batch of a checkpoint has read."""
    checkpoint = Checkpoint(storage)
    try:
        for batch in checkpoint.commits()[-1:]:
            yield from checkpoint.journals(batch)
    except (OSError, StatesideError) as error:  # appending does not depend on the checkpoint
        log.warning("appending: a view's checkpoint cannot be read: %s", error)


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
        offsets = await appender.append(events, _untimed(request.document()))
        return Response({"receipt": appender.receipt(max(offsets)), "receipts": list(map(appender.receipt, offsets))})

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
