"""The route that takes events in: durable when it answers, and the same event id again is not stored twice.

The appender: many requests' events become one append, and each request gets its own receipts.

Whoever appends waits until its events are durable. Those that come while the disk is busy with the ones before them are
appended together, all with one sync: *group commit*. What waits is bounded; beyond that a request is refused at once,
with the advice to come again, and nothing of it is stored.

While the journal's disk is away each append is refused, and the next one tries again. An empty folder in the place of
the journal, such as an unmounted disk leaves, does not become a new journal: which one belongs here is known from the
first append on, and before that from the checkpoints of the views that have read it.

Where the folder's journal is a topic on Kafka, the server takes its turns as the topic's owner (`kafka.placed_writer`).
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
from stateside.journal import Journal, JournalWriter
from stateside.journal.event import NAME_CHARS_MAX, TAGS_MAX, VERSION_MAX, Event, fault
from stateside.journal.json_lines import event_of, has_time
from stateside.journal.kafka.shared_writer import PlacedWriter
from stateside.journal.kafka.topic import Topic
from stateside.journal.kafka.topic_folder import placed
from stateside.journal.partitions import is_merged
from stateside.journal.payload import DeclaredFields
from stateside.journal.segment import PARTITION
from stateside.serving.access.principal import check_appends
from stateside.serving.web.request import Request
from stateside.serving.web.response import Response
from stateside.serving.web.route import Body, Route
from stateside.spark_state.batch_log import Checkpoint

WAITING_EVENTS_MAX = 20_000  # with payloads of some hundred bytes about 20 MB
TOGETHER_EVENTS_MAX = 10_000
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A request's events, those of them whose times it did not give, and where the answer goes: the offset of each."""

    events: Sequence[Event]
    untimed: Collection[str]
    answer: asyncio.Future[list[int]]
    loop: asyncio.AbstractEventLoop

    def tell(self, offsets: list[int] | Exception) -> None:
        """Called in the appender's thread."""
        self.loop.call_soon_threadsafe(self._set, offsets)

    def _set(self, offsets: list[int] | Exception) -> None:
        if self.answer.done():  # whoever asked is gone; what is stored is stored
            return
        if isinstance(offsets, Exception):
            self.answer.set_exception(offsets)
        else:
            self.answer.set_result(offsets)


class Appender:
    """Appends to a folder's journal, in a thread of its own, which begins with the first append.

    It ends with the process: a server that stops answers those who wait first, and what was not answered is sent again.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._changed = threading.Condition()
        self._waiting: list[_Waiting] = []
        self._thread: threading.Thread | None = None
        self._journal_id: UUID | None = None
        self._topic: Topic | None = None  # that is the journal, if one is
        self._trouble: str | None = None  # what the log was last told of

    async def append(self, events: Sequence[Event], untimed: Collection[str] = ()) -> list[int]:
        """Store the events that are not there yet, each id once, and return the offset of each.

        The events must be such as the journal takes (`event.fault`); `untimed`: the ids of those whose times were not
        given. IdConflict if one has the id of another event, TooManyRequests if too many wait already, JournalAway if
        the journal cannot be written.
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
        """The receipt of an event that was stored at this offset, as stamps have it."""
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
            except Exception as error:  # each of them is told; the next ones are tried with a writer opened anew
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
        """What is appended together; waits for it."""
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
        """A writer of the journal that belongs here; JournalAway if that is not there."""
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
        """Tell the log, once, that the journal cannot be written, and that it can again."""
        trouble = None if error is None else str(error)
        if trouble != self._trouble:
            self._trouble = trouble
            unexpected = None if isinstance(error, StatesideError) else error
            log.warning("appending: %s", trouble or "the journal takes events again", exc_info=unexpected)


def _appended(writer: JournalWriter | PlacedWriter, together: Sequence[_Waiting]) -> list[list[int] | Exception]:
    """Store the events of requests as one; if there is a conflict, each by itself: only its own request is refused."""
    events = [event for waiting in together for event in waiting.events]
    timed = {event.id for waiting in together for event in waiting.events if event.id not in waiting.untimed}
    untimed = {id_ for waiting in together for id_ in waiting.untimed} - timed  # a time that is given is compared
    try:
        place = writer.append_each(events, any_time=untimed).place
    except IdConflict as conflict:
        if len(together) == 1:
            return [conflict]
        return [answer for waiting in together for answer in _appended(writer, [waiting])]
    offsets = iter([place(number).offset for number in range(len(events))])
    return [[next(offsets) for _ in waiting.events] for waiting in together]


def _read_by_views(layout: Layout) -> UUID | None:
    """The journal that the folder's views have read, of several the one that is here; None if they have read none."""
    read = {journal for view in layout.views() for journal in _journals(Storage.at(view.checkpoint_location))}
    if not read:
        return None
    here = Journal(layout.journal).id()
    return UUID(here if here in read else min(read))


def _journals(storage: Storage) -> Iterator[str]:
    """Those that the newest batch of a checkpoint has read from."""
    checkpoint = Checkpoint(storage)
    try:
        for batch in checkpoint.commits()[-1:]:
            yield from checkpoint.journals(batch)
    except (OSError, StatesideError) as error:  # it tells nothing, and appending does not depend on it
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
