"""Group commit: what threads append while the disk is busy is stored together, as one frame with one sync.

1. A thread puts its append in line. If nobody leads it does so at once; else it sleeps.
2. Whoever leads lets those come back in line who were answered just now, takes all that stand there, its own among
   them, and stores them as one: all or none. Each is told where its own events ended.
3. The first of those who came meanwhile leads next, and those who were told wake up. One wakes the next: as many
   threads awake at once would take Python's lock from each other, for longer than a sync takes.

As one frame holds them, there is never more than one frame that a crash can tear; and an append is still whole in it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise

from stateside.errors import EventRefused, JournalAway
from stateside.journal.receipt import Receipt
from stateside.journal.settling import Answer, Answers, Request
from stateside.positions import Position

EVENTS_TOGETHER_MAX = 10_000  # an append that has more itself is stored alone
PAUSE_S = 0.0005  # if nobody comes for so long, nobody else is waited for; a sync takes about as long

Store = Callable[[Sequence[Request]], Answers]


class Group:
    """The appends of all threads to one journal. `store` stores them as one and says what each of them is told."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._line: deque[_Append] = deque()
        self._lead = threading.Lock()  # closed as long as somebody leads: it is handed on as it is
        self._told: list[_Append] = []  # they have their answers, and sleep still
        self._together = 0  # how many append at the moment: who were told just now, and who stand in line
        self._gathering: _Append | None = None  # who leads, as long as it waits for so many
        self._changing = threading.Lock()  # who leads next, and who wakes whom: an interrupted thread is left out

    def append(self, request: Request) -> Position | Receipt:
        """Store the events, with those of other threads perhaps; the receipt for these.

        If they are refused, or the journal is away, that is raised here; a refusal of others' events is not.
        """
        own = _Append(request)
        try:
            self._line.append(own)
            if self._lead.acquire(blocking=False):
                own.leads = True
            else:
                self._note_arrival()
                own.sleep()
            if own.leads:
                self._gather(own)
                while own.answer is None:
                    self._settle(own, self._taken())
                self._hand_on(own)
            own.wake_next()
        except BaseException:  # an interrupt: what else storing raises is an answer
            self._withdraw(own)
            raise
        if isinstance(own.answer, Exception):
            raise own.answer
        assert own.answer is not None
        return own.answer

    def _gather(self, own: _Append) -> None:
        """Let those who were told just now come back in line, as long as more come: one frame stores them all."""
        before, self._gathering = 0, own
        while before < len(self._line) < self._together:
            before = len(self._line)
            own.sleep(PAUSE_S)
        self._gathering = None

    def _note_arrival(self) -> None:
        """If it is the last one that whoever leads waits for, say so."""
        leader = self._gathering
        if leader is not None and len(self._line) == self._together:
            leader.wake()

    def _taken(self) -> list[_Append]:
        """Those first in line, which are stored together. Nobody else takes any."""
        taken: list[_Append] = []
        count = 0
        with suppress(IndexError):  # the line is empty
            while count < EVENTS_TOGETHER_MAX:
                first = self._line.popleft()
                count += len(first.request.events)
                if taken and count > EVENTS_TOGETHER_MAX:
                    self._line.appendleft(first)
                    break
                taken.append(first)
        return taken

    def _settle(self, own: _Append, appends: list[_Append]) -> None:
        """Store the appends, and give each its answer."""
        try:
            answers = self._store([append.request for append in appends])
        except EventRefused as error:
            if len(appends) == 1:
                self._tell(own, appends[0], error)
            for append in appends if len(appends) > 1 else ():
                self._settle(own, [append])  # each by itself: only the bad ones are refused
        except BaseException as error:
            for append in appends:
                self._tell(own, append, error if isinstance(error, Exception) else _interrupted(error))
            if not isinstance(error, Exception):
                raise
        else:
            later = []
            for append, answer in zip(appends, answers, strict=True):
                later.append(append) if answer is None else self._tell(own, append, answer)
            if later:
                self._settle(own, later)

    def _tell(self, own: _Append, append: _Append, answer: Answer) -> None:
        append.answer = answer
        if append is not own:
            self._told.append(append)

    def _hand_on(self, own: _Append) -> None:
        """Let the first in line lead; if there is none nobody does, until one comes. Then wake those who were told."""
        own.leads = False
        with self._changing:
            told, self._told = [append for append in self._told if not append.gone], []
            self._together = 1 + len(told) + len(self._line)
            for append, following in pairwise(told):
                append.wakes = following
            if self._line:
                self._line[0].lead()
            else:
                self._lead.release()
        for first in told[:1]:
            first.wake()
        if self._line and self._lead.acquire(blocking=False):  # one came while nobody led any more, and sleeps
            self._hand_on(own)

    def _withdraw(self, own: _Append) -> None:
        """An interrupted thread goes. If its events still stand in line, they are not stored."""
        with self._changing:
            own.gone = True
            with suppress(ValueError):
                self._line.remove(own)
        if own.leads:
            self._hand_on(own)
        own.wake_next()


class _Append:
    """One thread's append, and what became of it."""

    __slots__ = ("_gate", "answer", "gone", "leads", "request", "wakes")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.leads = self.gone = False
        self.answer: Answer | None = None
        self.wakes: _Append | None = None  # whom it wakes once it is awake itself
        self._gate = threading.Lock()
        self._gate.acquire()  # closed until there is something to do

    def sleep(self, s_max: float = -1) -> None:
        """Until there is an answer, or this one leads, or has gathered enough; at most so long."""
        self._gate.acquire(timeout=s_max)

    def lead(self) -> None:
        """Called while it sleeps: it is the first in line now."""
        self.leads = True
        self.wake()

    def wake(self) -> None:
        """Let it go on."""
        try:  # noqa: SIM105 (every append comes here, and `suppress` takes longer than all the rest of it)
            self._gate.release()
        except RuntimeError:
            pass  # it is awake already: an interrupted thread may wake the next one twice

    def wake_next(self) -> None:
        """Called by itself, once it is awake."""
        if self.wakes is not None:
            self.wakes.wake()


def _interrupted(error: BaseException) -> JournalAway:
    return JournalAway(
        f"The thread that was storing this append with its own was interrupted: {type(error).__name__}",
        next_step="The events are stored or not: append_unstored stores what of them is not",
    )
