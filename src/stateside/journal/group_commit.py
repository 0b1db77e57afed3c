"""Group commit: appends of several threads share one frame and one sync.

1. A thread queues its append. If there is no leader, the thread becomes leader at once; else it sleeps.
2. The leader waits briefly for the threads answered just now to queue again, takes all queued appends, its own among
   them, and stores them as one: all or none. Each append is answered with the end of its own events.
3. The first thread that queued meanwhile becomes the next leader, and the answered threads wake up. Each wakes the
   next: if all woke at once they would contend for Python's lock for longer than a sync takes.

One frame holds the whole group, so a crash can tear at most one frame, and every append is whole in its frame.

An append can also be submitted without a thread that waits, as by a server's event loop: its answer goes to a callback.
Where such an append comes to lead, a thread of the group commit, the helper, leads for it. The helper starts before
the append is queued, so that none waits for a thread that cannot be started, and ends after a while without work.

A thread may be interrupted anywhere (Ctrl-C), even between two steps of one statement. So state that other threads need
is recorded before it is acted on, in an order that lets `_withdraw` finish or repeat the work.
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

EVENTS_TOGETHER_MAX = 10_000  # a larger append is stored alone
PAUSE_S = 0.0005  # about as long as a sync; the leader stops waiting if nobody queues for so long

IDLE_S = 5.0  # the thread that leads for submitted appends waits so long for more of them

_LEADER = 0

Store = Callable[[Sequence[AppendRequest]], Answers]
Told = Callable[[Answer], None]


class GroupCommit:
    """The appends of all threads to one journal. `store` stores a group as one and returns an answer per append."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._line: deque[_Append] = deque()
        self._lead: dict[int, _Append] = {}  # the leader, if any: `setdefault` tests and sets in one step
        self._taken: list[_Append] = []  # taken by the leader, still asleep, with or without an answer
        self._together = 0  # threads appending at the moment: answered just now, or queued
        self._gathering: _Append | None = None  # the leader, while it waits for `_together` threads
        self._changing = threading.Lock()  # guards the queue, the next leader, and who wakes whom
        self._helping = threading.Condition()  # guards the next three
        self._asked: deque[_Submitted] = deque()  # to be led for
        self._submitted = 0  # appends without an answer so far
        self._helper: threading.Thread | None = None

    def append(self, request: AppendRequest) -> Appended | Receipt:
        """Store the events, possibly together with those of other threads; returns the answer for these events.

        Raises the refusal of these events, or JournalAway; never the refusal of another thread's events.
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
            wake_all(own.wakes)
        except BaseException as error:  # an interrupt: errors of storing are answers
            self._withdraw(own, error)
            raise
        if isinstance(own.answer, Exception):
            raise own.answer
        assert own.answer is not None
        return own.answer

    def submit(self, request: AppendRequest, told: Told) -> None:
        """As `append`, without waiting: `told` gets the answer, in another thread, and must neither block nor fail."""

        def answered(answer: Answer) -> None:
            with self._helping:
                self._submitted -= 1
            told(answer)

        own = _Submitted(request, answered, self._ask_helper)
        self._start_helper()
        self._line.append(own)
        if self._lead.setdefault(_LEADER, own) is own:
            own.wake()
        else:
            self._note_arrival()

    def _start_helper(self) -> None:
        """Have a helper that stays until one more append has its answer. A forked child has none of its parent's."""
        with self._helping:
            if self._helper is None or not self._helper.is_alive():
                helper = threading.Thread(target=self._help, name="group commit", daemon=True)
                helper.start()
                self._helper = helper
            self._submitted += 1

    def _ask_helper(self, own: _Submitted) -> None:
        """Have the helper lead for a submitted append."""
        with self._helping:
            self._asked.append(own)
            self._helping.notify_all()  # in a forked child the first one to notify may be the parent's

    def _help(self) -> None:
        while True:
            with self._helping:
                while not self._helping.wait_for(lambda: bool(self._asked), IDLE_S):
                    if not self._submitted:
                        self._helper = None
                        return
                own = self._asked.popleft()
            if self._lead.get(_LEADER) is own:  # else asked for twice, and done
                while own.answer is None:
                    self._settle(self._take())
                self._hand_on(own)
                wake_all(own)

    def _gather(self, own: _Append) -> None:
        """Wait for the threads answered just now to queue again, as long as more arrive: one frame stores them all."""
        before, self._gathering = 0, own
        while before < len(self._line) < self._together:
            before = len(self._line)
            own.sleep(PAUSE_S)
        self._gathering = None

    def _note_arrival(self) -> None:
        """Wake the leader if this thread is the last one that the leader waits for."""
        leader = self._gathering
        if leader is not None and len(self._line) == self._together:
            leader.wake()

    def _take(self) -> list[_Append]:
        """Take the first queued appends, to be stored together. Only the leader takes any."""
        found: list[_Append] = []
        count = 0
        with self._changing:
            while self._line and count < EVENTS_TOGETHER_MAX:
                first = self._line[0]
                count += first.count
                if found and count > EVENTS_TOGETHER_MAX:
                    break
                self._taken.append(first)  # before leaving the queue: always in at least one of the two
                found.append(first)
                self._line.popleft()
        return found

    def _settle(self, appends: list[_Append]) -> None:
        try:
            answers = self._store([append.request for append in appends])
        except (EventRefused, EntityElsewhere) as error:  # raised before anything was stored
            if len(appends) == 1:
                appends[0].answer = error
            for append in appends if len(appends) > 1 else ():
                self._settle([append])  # one by one: only the bad ones are refused
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
        """Make the first queued thread the leader, or leave the lead free; then the answered threads wake up.

        The old leader wakes the first of them. If interrupted in the middle, the old leader repeats the whole method.
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
        if self._line and self._lead.setdefault(_LEADER, own) is own:  # queued while nobody led, and sleeps
            self._hand_on(own)

    def _withdraw(self, own: _Append, error: BaseException) -> None:
        """Remove an interrupted thread. Its events are not stored if they are still queued.

        Threads that wait for this thread to store their appends get an error. If there is no leader, the first queued
        thread becomes leader; an existing leader is woken once more, as the interrupt may have come just before its
        wake-up.
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
        wake_all(own.wakes)

    def _answer_taken(self, error: BaseException) -> None:
        """Answer every taken append that has no answer yet."""
        with self._changing:
            for append in self._taken:
                if append.answer is None:
                    append.answer = _interrupted(error)
                    with suppress(ValueError):
                        self._line.remove(append)


class _Append:
    """One thread's append, and its answer."""

    __slots__ = ("_gate", "answer", "count", "gone", "request", "wakes")

    def __init__(self, request: AppendRequest) -> None:
        self.request = request
        self.count = len(request.events)  # an error of `len` hits its own thread only
        self.gone = False
        self.answer: Answer | None = None
        self.wakes: _Append | None = None  # the append to wake next, once awake
        self._gate = threading.Lock()
        self._gate.acquire()  # closed until `wake`

    def sleep(self, s_max: float = -1) -> None:
        """Sleep until there is an answer, or this thread leads or has gathered enough; at most `s_max`."""
        self._gate.acquire(timeout=s_max)

    def wake(self) -> _Append | None:
        """Wake the thread, which then wakes the next one."""
        try:  # noqa: SIM105 (every append comes here, and `suppress` takes longer than all the rest of it)
            self._gate.release()
        except RuntimeError:
            pass  # awake already: an interrupted thread may wake the next one twice
        return None


class _Submitted(_Append):
    """An append without a thread of its own."""

    __slots__ = ("_lead", "_told")

    def __init__(self, request: AppendRequest, told: Told, lead: Callable[[_Submitted], None]) -> None:
        self.request, self.count = request, len(request.events)
        self.gone, self.answer, self.wakes = False, None, None
        self._told: Told | None = told
        self._lead = lead

    def wake(self) -> _Append | None:
        """Pass the answer on and return the next append to wake; without an answer, lead."""
        if self.answer is None:
            self._lead(self)
            return None
        told, self._told = self._told, None
        if told is not None:
            told(self.answer)
        return self.wakes


def wake_all(append: _Append | None) -> None:
    """Wake an append, and those after it, up to the first thread: that one wakes the rest, once awake."""
    while append is not None:
        append = append.wake()


def _interrupted(error: BaseException) -> JournalAway:
    return JournalAway(
        f"The thread that was storing this append with its own was interrupted: {type(error).__name__}",
        next_step="The events are stored or not: the same append again stores what of them is not",
    )
