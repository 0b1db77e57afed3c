"""The appender: many requests' events become one append, and each request gets its own receipts.

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
from uuid import UUID

from stateside.checkpoint.log import Checkpoint
from stateside.errors import IdConflict, RequestInvalid, StatesideError, TooManyRequests
from stateside.journal import Event, Journal, JournalWriter
from stateside.journal.kafka.placed import placed
from stateside.journal.kafka.placed_writer import PlacedWriter
from stateside.journal.kafka.topic import Topic
from stateside.journal.segment import PARTITION
from stateside.journal.stored import is_merged
from stateside.layout import Layout
from stateside.positions import Position
from stateside.storage import Storage

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
