"""The appender: many requests' events become one append, and each request gets its own receipts.

Whoever appends waits until its events are durable. Those that come while the disk is busy with the ones before them are
appended together, all with one sync: *group commit*. What waits is bounded; beyond that a request is refused at once,
with the advice to come again, and nothing of it is stored.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stateside.errors import TooManyRequests
from stateside.journal import Event, JournalWriter

WAITING_EVENTS_MAX = 20_000  # with payloads of some hundred bytes about 20 MB
TOGETHER_EVENTS_MAX = 10_000
STOP_S_MAX = 10.0


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A request's events, and where the answer goes: the offset of each."""

    events: Sequence[Event]
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
    """Appends to one journal, in a thread of its own, which begins with the first append."""

    def __init__(self, journal: Path) -> None:
        self._journal = journal
        self._changed = threading.Condition()
        self._waiting: list[_Waiting] = []
        self._thread: threading.Thread | None = None
        self._stopped = False

    async def append(self, events: Sequence[Event]) -> list[int]:
        """Store the events that are not there yet, each id once, and return the offset of each.

        The events must be such as the journal takes (`event.fault`). TooManyRequests if too many wait already.
        """
        loop = asyncio.get_running_loop()
        waiting = _Waiting(events, loop.create_future(), loop)
        with self._changed:
            if self._stopped or self._count() + len(events) > WAITING_EVENTS_MAX:
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

    def close(self) -> None:
        """Store what waits, and take no more."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(STOP_S_MAX)

    def _count(self) -> int:
        return sum(len(waiting.events) for waiting in self._waiting)

    def _run(self) -> None:
        writer: JournalWriter | None = None
        while together := self._next():
            try:
                writer = writer or JournalWriter(self._journal)
                offsets = writer.append_once([event for waiting in together for event in waiting.events])
            except Exception as error:  # each of them is told; the next ones are tried with a writer opened anew
                _close(writer)
                writer = None
                for waiting in together:
                    waiting.tell(error)
                continue
            for waiting in together:
                own, offsets = offsets[: len(waiting.events)], offsets[len(waiting.events) :]
                waiting.tell(own)
        _close(writer)

    def _next(self) -> list[_Waiting]:
        """What is appended together; waits for it. Empty when this is stopped and nothing waits."""
        with self._changed:
            while not self._waiting and not self._stopped:
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


def _close(writer: JournalWriter | None) -> None:
    if writer is not None:
        writer.close()
