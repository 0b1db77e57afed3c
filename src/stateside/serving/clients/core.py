"""The core of a client: what it asks, whom, when again, and what it makes of the replies. It does no I/O itself.

Every method gives a course of steps (see `steps`), to be gone by a client. One deadline holds for each of them: after
it nothing is sent any more, and the last error is raised.
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from stateside.errors import Misdirected, OperatingError, RequestInvalid, StatesideError
from stateside.serving.clients.locations import Locations
from stateside.serving.clients.problems import document_of, error_of, unanswered
from stateside.serving.clients.retrying import Verdict, pause_s, retry_after_s, verdict
from stateside.serving.clients.steps import WAIT_S, Ask, Open, Pause, Reply, Send, Silence, Step, Steps

DEADLINE_S: Final = 15.0
LOOK_S_MAX: Final = 2.0  # a server that takes longer to say who else there is, is passed over
ATTEMPT_S: Final = 10.0  # on top of what the server was told that it may wait
T = TypeVar("T")

_LOOK: Final = Ask("GET", "/v1/servers")


@dataclass(frozen=True, slots=True)
class Whom:
    """Whom to ask: at a time, in order, as far as is known then; and what to say if there is nobody.

    `follow`: where a server says that somebody else has it, that one is asked; otherwise Misdirected is raised.
    """

    urls: Callable[[float], Sequence[str]]
    nobody: Callable[[], StatesideError] | None = None
    follow: bool = True


@dataclass
class Course:
    """How far the attempts to have one question answered have come. `sent_to`: where a server said that it is."""

    began_s: float
    deadline_s: float
    whom: Whom
    reached: bool = False
    sent_to: list[str] = field(default_factory=list)
    tried: set[str] = field(default_factory=set)
    given_up: set[str] = field(default_factory=set)
    rounds: int = 0
    error: StatesideError | None = None


class Core:
    """What a client knows, and how it goes about a question.

    `direct`: the servers that were given are asked, in their order, once each; nothing is looked up. `unreached_s`: for
    so long at most nobody at all may be reached; by default until the deadline.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        deadline_s: float = DEADLINE_S,
        direct: bool = False,
        unreached_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        chance: random.Random | None = None,
    ) -> None:
        if deadline_s <= 0:
            raise RequestInvalid(f"A deadline of {deadline_s} s leaves no time", next_step="Give some seconds")
        self.deadline_s, self.direct, self.clock = deadline_s, direct, clock
        self._unreached_s = deadline_s if unreached_s is None else unreached_s
        self._chance = chance or random.Random()
        seed = self._chance.randbytes(16) if chance else secrets.token_bytes(16)
        self.locations = Locations(urls, seed)
        self._unheard: StatesideError | None = None  # why nobody said who serves, when it was last asked

    def deadline(self, ask: Ask) -> float:
        """Until when a question that is begun now must be answered: waiting that is asked for comes on top."""
        return self.clock() + self.deadline_s + max(0.0, ask.wait_s - WAIT_S)

    def read(
        self,
        ask: Ask,
        make: Callable[[Mapping[str, Any]], T],
        whom: Whom | None = None,
        deadline_s: float | None = None,
    ) -> Steps[T]:
        """What `make` makes of the JSON document that answers a question; what the server says instead is raised.

        OperatingError if the document is not what is expected of a Stateside server.
        """
        url, reply = yield from self.reply(ask, whom, deadline_s)
        document = document_of(reply, url)
        try:
            return make(document)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise unanswered(f"the reply is not the answer: {error!r}", url) from error

    def reply(self, ask: Ask, whom: Whom | None = None, deadline_s: float | None = None) -> Steps[tuple[str, Reply]]:
        """Who replied, and what; by default anybody is asked."""
        deadline_s = self.deadline(ask) if deadline_s is None else deadline_s
        course = Course(self.clock(), deadline_s, whom or Whom(self.locations.anybody))
        return (yield from self._attempts(ask, course, lambda url, left_s: Send(url, ask, left_s)))

    def open(self, ask: Ask, whom: Whom, silence_s: float) -> Steps[str]:
        """Open a stream, whose lines come next; gives back who streams."""
        course = Course(self.clock(), self.deadline(ask), whom)
        url, _ = yield from self._attempts(ask, course, lambda url, left_s: Open(url, ask, silence_s))
        return url

    def _attempts(self, ask: Ask, course: Course, attempt: Callable[[str, float], Step]) -> Steps[tuple[str, Reply]]:
        """Ask one server after the other until one answers, an answer is final, or the deadline has come."""
        if self.direct:
            return (yield from self._directly(ask, course, attempt))
        yield from self.look(course.deadline_s)
        while True:
            url = yield from self._next(course)
            left_s = course.deadline_s - self.clock()
            if left_s <= 0:
                raise self._too_late(course)
            got = yield attempt(url, min(left_s, ask.wait_s + ATTEMPT_S))
            if self._judge(ask, url, got, course) is Verdict.DONE:
                return url, got

    def pause(self, rounds: int, deadline_s: float, error: StatesideError) -> Steps[None]:
        """Wait a little before a question is begun anew, and look who there is; raise the error if it is too late."""
        wait_s = pause_s(rounds, self._chance)
        if self.clock() + wait_s >= deadline_s:
            raise error
        yield Pause(wait_s)
        yield from self.look(deadline_s, again=True)

    def look(self, deadline_s: float, *, again: bool = False) -> Steps[None]:
        """Look up who serves, if it is time. If nobody tells, what was known before holds on."""
        if self.direct or not (again or self.locations.due(self.clock())):
            return
        for url in self.locations.anybody(self.clock()):
            left_s = deadline_s - self.clock()
            if left_s <= 0:
                return
            got = yield Send(url, _LOOK, min(left_s / 2, LOOK_S_MAX))  # the question itself has to be sent as well
            if isinstance(got, Silence):
                self._unheard = error_of(got, url)
                self.locations.note_silence(url, self.clock())
                continue
            self.locations.note_reply(url)
            if got.status == 200:
                self.locations.learn(url, document_of(got, url), self.clock())
                return
            if got.status < 500:  # this token may not ask it, or there is no such route: then nobody is asked
                self.locations.nothing_told(self.clock())
                return

    def _directly(self, ask: Ask, course: Course, attempt: Callable[[str, float], Step]) -> Steps[tuple[str, Reply]]:
        for url in self.locations.given:
            got = yield attempt(url, max(0.001, course.deadline_s - self.clock()))
            if self._judge(ask, url, got, course) is Verdict.DONE:
                return url, got
        assert course.error is not None
        raise course.error

    def _next(self, course: Course) -> Steps[str]:
        """Whom to ask next; pauses where all were asked in vain, and looks again who there is."""
        while True:
            now_s = self.clock()
            known = [url for url in (*course.sent_to, *course.whom.urls(now_s)) if url not in course.given_up]
            for url in known:
                if url not in course.tried and self.locations.not_before_s(url) <= now_s:
                    course.tried.add(url)
                    return url
            if not known and course.given_up:
                raise self._too_late(course)
            course.rounds += 1
            free_s = min((self.locations.not_before_s(url) for url in known), default=now_s)
            wait_s = max(pause_s(course.rounds, self._chance), free_s - now_s)
            unreached = not course.reached and now_s - course.began_s >= self._unreached_s
            if unreached or now_s + wait_s >= course.deadline_s:
                raise self._too_late(course)
            yield Pause(wait_s)
            yield from self.look(course.deadline_s, again=True)
            course.tried.clear()

    def _judge(self, ask: Ask, url: str, got: Reply | Silence, course: Course) -> Verdict:
        """Draw the lesson of what came back; raise what is final."""
        said, now_s = verdict(ask, got), self.clock()
        course.reached = course.reached or not isinstance(got, Silence) or got.sent
        if said is Verdict.DONE:
            self.locations.note_reply(url)
            return said
        course.error = error_of(got, url)
        if said is Verdict.RAISE:
            raise course.error
        if isinstance(got, Silence):
            self.locations.note_silence(url, now_s)
        if retry_after_s(got):
            self.locations.leave_alone(url, now_s + retry_after_s(got))
        if said is Verdict.ELSEWHERE:
            course.given_up.add(url)
        if isinstance(course.error, Misdirected):
            self.locations.forget()
            if not course.whom.follow:
                raise course.error
            course.sent_to = self.locations.named_by(course.error)
        return said

    def _too_late(self, course: Course) -> StatesideError:
        if course.error is None and self.locations.known and course.whom.nobody is not None:
            return course.whom.nobody()
        return (
            course.error
            or self._unheard
            or OperatingError(
                f"There was no answer within {self.deadline_s:g} s",
                where=", ".join(self.locations.given),
                next_step="Ask again, or give a later deadline",
            )
        )
