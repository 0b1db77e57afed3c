"""Group commit: what threads append while the disk is busy is stored together, as one frame with one sync.

1. A thread puts its append in line. If nobody leads it does so at once; else it sleeps.
2. Whoever leads lets those come back in line who were answered just now, takes all that stand there, its own among
   them, and stores them as one: all or none. Each is told where its own events ended.
3. The first of those who came meanwhile leads next, and those who were told wake up. One wakes the next: as many
   threads awake at once would take Python's lock from each other, for longer than a sync takes.

As one frame holds them, there is never more than one frame that a crash can tear; and an append is still whole in it.

A thread may be interrupted anywhere in this, as by Ctrl-C, even between two steps of one statement. So what the others
need is written down before it is done, in such an order that `_withdraw` can do it, or do it once more.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise

from stateside.core.errors import EntityElsewhere, EventRefused, JournalAway
from stateside.journal.append_batch import Answer, Answers, Appended, AppendRequest
from stateside.journal.receipt import Receipt

EVENTS_TOGETHER_MAX = 10_000  # an append that has more itself is stored alone
PAUSE_S = 0.0005  # if nobody comes for so long, nobody else is waited for; a sync takes about as long

_LEADER = 0

Store = Callable[[Sequence[AppendRequest]], Answers]


class GroupCommit:
    """The appends of all threads to one journal. `store` stores them as one and says what each of them is told."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._line: deque[_Append] = deque()
        self._lead: dict[int, _Append] = {}  # who leads, if anybody: `setdefault` looks and enters it in one step
        self._taken: list[_Append] = []  # by who leads: they have their answers, or get them, and sleep still
        self._together = 0  # how many append at the moment: who were told just now, and who stand in line
        self._gathering: _Append | None = None  # who leads, as long as it waits for so many
        self._changing = threading.Lock()  # who stands in line, who leads next, and who wakes whom

    def append(self, request: AppendRequest) -> Appended | Receipt:
        """Store the events, with those of other threads perhaps; the receipt for these.

        If they are refused, or the journal is away, that is raised here; a refusal of others' events is not.
        """
        own = _Append(request)
        try:
            self._line.append(own)
            if self._lead.setdefault(_LEADER, own) is not own:
                self._note_arrival()
                own.sleep()
            if self._lead.get(_LEADER) is own:
                self._gather(own)
                while own.answer is None:
                    self._settle(self._take())
                self._hand_on(own)
            own.wake_next()
        except BaseException as error:  # an interrupt: what else storing raises is an answer
            self._withdraw(own, error)
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

    def _take(self) -> list[_Append]:
        """Those first in line, which are stored together. Nobody else takes any."""
        found: list[_Append] = []
        count = 0
        with self._changing:
            while self._line and count < EVENTS_TOGETHER_MAX:
                first = self._line[0]
                count += first.count
                if found and count > EVENTS_TOGETHER_MAX:
                    break
                self._taken.append(first)  # before it goes out of line: it is always in one of them
                found.append(first)
                self._line.popleft()
        return found

    def _settle(self, appends: list[_Append]) -> None:
        """Store the appends, and give each its answer."""
        try:
            answers = self._store([append.request for append in appends])
        except (EventRefused, EntityElsewhere) as error:  # before anything was stored
            if len(appends) == 1:
                appends[0].answer = error
            for append in appends if len(appends) > 1 else ():
                self._settle([append])  # each by itself: only the bad ones are refused
        except Exception as error:
            for append in appends:
                append.answer = error
        else:
            later = []
            for append, answer in zip(appends, answers, strict=True):
                if answer is None:
                    later.append(append)
                else:
                    append.answer = answer
            if later:
                self._settle(later)

    def _hand_on(self, own: _Append) -> None:
        """Let the first in line lead; if there is none nobody does, until one comes. Those who were told wake up then.

        Whoever led wakes the first of them: who is interrupted in the middle of this does it all once more.
        """
        with self._changing:
            told = [append for append in self._taken if append is not own and not append.gone]
            for append, following in pairwise([own, *told]):
                append.wakes = following
            self._together, self._taken = 1 + len(told) + len(self._line), []
            if self._line:
                self._lead[_LEADER] = first = self._line[0]
                first.wake()
            else:
                self._lead.clear()
        if self._line and self._lead.setdefault(_LEADER, own) is own:  # one came while nobody led any more, and sleeps
            self._hand_on(own)

    def _withdraw(self, own: _Append, error: BaseException) -> None:
        """An interrupted thread goes. If its events still stand in line, they are not stored.

        Others who wait for it to store theirs are told so. If nobody leads it lets the first in line do so; and whoever
        leads it wakes once more, as the interrupt may have come just before it did.
        """
        with self._changing:
            own.gone = True
            with suppress(ValueError):
                self._line.remove(own)
        leader = self._lead.setdefault(_LEADER, own)
        if leader is own:
            self._answer_taken(error)
            self._hand_on(own)
        else:
            leader.wake()
        own.wake_next()

    def _answer_taken(self, error: BaseException) -> None:
        """Whoever has been taken and has no answer gets one."""
        with self._changing:
            for append in self._taken:
                if append.answer is None:
                    append.answer = _interrupted(error)
                    with suppress(ValueError):
                        self._line.remove(append)


class _Append:
    """One thread's append, and what became of it."""

    __slots__ = ("_gate", "answer", "count", "gone", "request", "wakes")

    def __init__(self, request: AppendRequest) -> None:
        self.request = request
        self.count = len(request.events)  # here, where only its own thread is told if they cannot be counted
        self.gone = False
        self.answer: Answer | None = None
        self.wakes: _Append | None = None  # whom it wakes once it is awake itself
        self._gate = threading.Lock()
        self._gate.acquire()  # closed until there is something to do

    def sleep(self, s_max: float = -1) -> None:
        """Until there is an answer, or this one leads, or has gathered enough; at most so long."""
        self._gate.acquire(timeout=s_max)

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
        next_step="The events are stored or not: the same append again stores what of them is not",
    )
