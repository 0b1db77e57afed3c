"""Group commit: what threads append while the disk is busy is stored together, as one frame with one sync.

1. A thread puts its append in line. If nobody leads it does so at once; else it waits.
2. Whoever leads lets those come in line who were answered just now, takes all that stand there, its own among them,
   and stores them as one: all or none.
3. Each of them is told where its own events ended, and the first of those who came meanwhile leads next.

As one frame holds them, there is never more than one frame that a crash can tear; and an append is still whole in it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from stateside.errors import EventRefused, JournalAway
from stateside.journal.event import Event

EVENTS_TOGETHER_MAX = 10_000  # an append that has more itself is stored alone
PAUSE_S = 0.0001  # in which several threads come back in line; a sync takes longer

Receipt = TypeVar("Receipt")
Receipts = Callable[[int, int], Receipt]  # what those of the events are told that stand from the one up to the other
Store = Callable[[Sequence[Event]], Receipts[Receipt]]


class Group(Generic[Receipt]):
    """The appends of all threads to one journal. `store` stores events and says what each append of them is told."""

    def __init__(self, store: Store[Receipt]) -> None:
        self._store = store
        self._line: deque[_Append[Receipt]] = deque()
        self._led = False
        self._changing = threading.Lock()  # the two above

    def append(self, events: Sequence[Event]) -> Receipt:
        """Store the events, with those of other threads perhaps; the receipt for these.

        If they are refused, or the journal is away, that is raised here; a refusal of others' events is not.
        """
        own: _Append[Receipt] = _Append(events)
        with self._changing:
            self._line.append(own)
            own.leads, self._led = not self._led, True
        try:
            own.wait()
            if own.leads:
                self._gather()
                self._settle(self._taken())
        finally:
            if own.leads or not own.settled:
                self._leave(own)
        return own.answer()

    def _gather(self) -> None:
        """Let those who were answered just now come back in line, as long as more come: one frame stores them all."""
        before, pause_s = 0, 0.0
        while before < len(self._line) < EVENTS_TOGETHER_MAX:
            before = len(self._line)
            time.sleep(pause_s)
            pause_s = PAUSE_S

    def _taken(self) -> list[_Append[Receipt]]:
        """Those first in line, which are stored together: who leads is the first of all."""
        with self._changing:
            taken = [self._line.popleft()]
            count = len(taken[0].events)
            while self._line and count + len(self._line[0].events) <= EVENTS_TOGETHER_MAX:
                taken.append(self._line.popleft())
                count += len(taken[-1].events)
        return taken

    def _leave(self, own: _Append[Receipt]) -> None:
        """Let the next one lead. An interrupted thread may go while it still stands in line."""
        with self._changing:
            if not own.settled and own in self._line:
                self._line.remove(own)
            if own.leads:
                self._led = bool(self._line)
                if self._line:
                    self._line[0].lead()

    def _settle(self, appends: list[_Append[Receipt]]) -> None:
        try:
            receipts = self._store([event for append in appends for event in append.events])
        except EventRefused as error:
            if len(appends) == 1:
                appends[0].tell(error)
            for append in appends if len(appends) > 1 else ():
                self._settle([append])  # each by itself: only the bad ones are refused
        except BaseException as error:
            for append in appends:
                append.tell(error if isinstance(error, Exception) else _interrupted(error))
            if not isinstance(error, Exception):
                raise
        else:
            low = 0
            for append in appends:
                append.tell(receipts(low, low + len(append.events)))
                low += len(append.events)


class _Append(Generic[Receipt]):
    """One thread's events, and what became of them."""

    def __init__(self, events: Sequence[Event]) -> None:
        self.events = events
        self.leads = False
        self._answer: Receipt | Exception | None = None
        self._gate = threading.Lock()  # closed until there is something to do
        self._gate.acquire()

    @property
    def settled(self) -> bool:
        """Whether there is an answer."""
        return self._answer is not None

    def wait(self) -> None:
        """Until there is an answer, or this one leads."""
        if not self.leads:
            self._gate.acquire()

    def lead(self) -> None:
        """Called while it waits: it is the first in line now."""
        self.leads = True
        self._gate.release()

    def tell(self, answer: Receipt | Exception) -> None:
        """The receipt for its events, or why they are not stored."""
        self._answer = answer
        if not self.leads:
            self._gate.release()

    def answer(self) -> Receipt:
        """What it was told."""
        assert self._answer is not None
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


def _interrupted(error: BaseException) -> JournalAway:
    return JournalAway(
        f"The thread that was storing this append with its own was interrupted: {type(error).__name__}",
        next_step="The events are stored or not: append_unstored stores what of them is not",
    )
