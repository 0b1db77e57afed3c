"""The core of a client: what it asks, whom, when again, and what it makes of the replies. It does no I/O itself.

Every method gives a course of steps (see `steps`), to be gone by a client. One deadline holds for each of them: after
it nothing is sent any more, and the last error is raised.

What a client knows of the servers: where they are, what they hold, and whom to leave alone for now. No I/O.

Whether, where and when a question is asked again. Decided from values alone.

    what came back                       what is done
    an answer                            it is the answer
    no reply                             asked elsewhere, then here again; if it may be repeated, or was never sent
    421 misdirected                      the servers are looked up again
    429, 503, 502, 504                   asked elsewhere, then here again, not before Retry-After
    503 not-fresh-enough, 500            asked elsewhere, once each: this server has said what it can
    anything else                        raised

What may be repeated: every question, since they change nothing, and an append, since events are told by their ids.
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from hashlib import blake2b
from typing import Any, Final, TypeVar

from stateside.core.errors import (
    KeyInvalid,
    Misdirected,
    NotFreshEnough,
    OperatingError,
    RequestInvalid,
    StatesideError,
)
from stateside.serving.clients.steps import WAIT_S, Ask, NoReply, OpenStream, Pause, Reply, Send, Step, Steps
from stateside.serving.clients.transport import code_of, document_of, error_of, unanswered
from stateside.serving.registry.announcement import Announcement, HeldShare, leading_or_none
from stateside.serving.registry.location import Holding, cover, holdings, missing

LOOK_S: Final = 10.0  # for so long what is known of the servers is good enough, as long as they answer
AWAY_S: Final = 2.0  # for so long a server that did not reply is asked last


class Locations:
    """The servers that a client was given, and those that they told of.

    Of several copies a client always takes the same one first, by its `seed`: then its answers do not go back and forth
    between batches, and clients share the copies out among themselves.
    """

    def __init__(self, urls: Sequence[str], seed: bytes) -> None:
        self.given = tuple(dict.fromkeys(url.rstrip("/") for url in urls))
        if not self.given:
            raise RequestInvalid("There is no server to ask", next_step="Give the address of one")
        self._seed = seed
        self._servers: list[Announcement] = []
        self._looked_s = float("-inf")
        self._away: dict[str, float] = {}
        self._not_before: dict[str, float] = {}

    @property
    def known(self) -> bool:
        """Whether any server has told of itself and others."""
        return bool(self._servers)

    def due(self, now_s: float) -> bool:
        """Whether it is time to look the servers up."""
        return now_s - self._looked_s >= LOOK_S

    def learn(self, asked: str, document: Mapping[str, Any], now_s: float) -> None:
        """Take in what a server told of all servers. Itself it is reached where it was asked, whatever it is called.

        If the servers that were given are reached by https, others are not asked by http: a token would go with it.
        """
        servers = []
        for told in document.get("servers", ()):
            try:
                server = Announcement.of(told)
            except (ValueError, TypeError, LookupError, AttributeError, StatesideError):
                continue  # of another version: those that were given are asked
            if document.get("name") == server.name:
                server = replace(server, url=asked)
            if self.may_ask(server.url):
                servers.append(server)
        self._servers, self._looked_s = servers, now_s

    def may_ask(self, url: str) -> bool:
        """Whether a server that others told of is asked."""
        return url.startswith("https:") or any(given.startswith("http:") for given in self.given)

    def named_by(self, error: Misdirected) -> list[str]:
        """The servers that have what another one was asked for in vain, as that one says."""
        servers = (error.location or {}).get("servers", ())
        return [each["url"] for each in servers if self.may_ask(each["url"])]

    def nothing_told(self, now_s: float) -> None:
        """These servers tell nothing of others: those that were given are asked."""
        self._servers, self._looked_s = [], now_s

    def forget(self) -> None:
        """Look the servers up before the next question."""
        self._looked_s = float("-inf")

    def held(self, view: str) -> HeldShare | None:
        """What somebody holds of a view; None if nobody is known to."""
        return next((server.views[view] for server in self._servers if view in server.views), None)

    def anybody(self, now_s: float) -> list[str]:
        """All servers, in the order they are asked in what any of them can answer."""
        return self._in_order([*self.given, *(server.url for server in self._servers)], now_s, keep=True)

    def of_key(self, view: str, parts: Sequence[str], now_s: float) -> list[str]:
        """Those that have a key; if nobody can tell, all of them. None if they are known and have fallen silent."""
        held = self.held(view)
        if held is None:
            return self.anybody(now_s)
        leading = leading_or_none(held, parts)
        if leading is None:
            return self.whole(view, now_s) or self.anybody(now_s)
        return self._urls(holdings(self._servers, view, leading), now_s)

    def scattered(self, view: str, parts: Sequence[str]) -> bool:
        """Whether keys that begin so may be in any share. What is no key is not: whoever is asked refuses it."""
        held = self.held(view)
        try:
            return held is not None and held.leading(parts) is None
        except KeyInvalid:
            return False

    def whole(self, view: str, now_s: float) -> list[str]:
        """Those that have all keys of a view."""
        return self._urls(holdings(self._servers, view), now_s)

    def shares(self, view: str, now_s: float) -> list[tuple[str | None, list[str]]] | None:
        """Servers that together have all keys of a view: each share with its copies. None if a share is missing."""
        if self.held(view) is None:
            return [(None, self.anybody(now_s))]
        found = cover(self._servers, view)
        return None if found is None else [(copies[0].share, self._urls(copies, now_s)) for copies in found]

    def with_all_keys(self, now_s: float) -> list[str]:
        """Those that have all keys of every view; if nothing is known, those that were given."""
        if not self._servers:
            return self.anybody(now_s)
        whole = [server.url for server in self._servers if all(held.share is None for held in server.views.values())]
        return self._in_order(whole, now_s)

    def unfound(self, view: str) -> OperatingError:
        """For keys that nobody has."""
        return OperatingError(
            f"Not all keys can be asked for: {missing(self._servers, view)}",
            where=", ".join(self.given),
            next_step="Start the servers that are missing: GET /v1/servers lists those that there are",
        )

    def note_silence(self, url: str, now_s: float) -> None:
        """A server did not reply: for a while others are asked first."""
        self._away[url] = now_s + AWAY_S

    def note_reply(self, url: str) -> None:
        """A server replied."""
        self._away.pop(url, None)

    def leave_alone(self, url: str, until_s: float) -> None:
        """A server wants to be left alone until then."""
        self._not_before[url] = max(until_s, self._not_before.get(url, until_s))

    def not_before_s(self, url: str) -> float:
        """When a server may be asked."""
        return self._not_before.get(url, float("-inf"))

    def _urls(self, found: Iterable[Holding], now_s: float) -> list[str]:
        return self._in_order([each.url for each in found], now_s)

    def _in_order(self, urls: Iterable[str], now_s: float, *, keep: bool = False) -> list[str]:
        distinct = list(dict.fromkeys(urls))
        ordered = distinct if keep else sorted(distinct, key=self._preference)
        return sorted(ordered, key=lambda url: self._away.get(url, 0.0) > now_s)

    def _preference(self, url: str) -> tuple[bool, bytes]:
        return url not in self.given, blake2b(url.encode(), key=self._seed, digest_size=8).digest()


PAUSE_S_MIN: Final = 0.02
PAUSE_S_MAX: Final = 1.0
_BUSY: Final = (429, 502, 503, 504)


class RetryDecision(Enum):
    """What to do with what came back."""

    DONE = auto()
    RAISE = auto()
    ELSEWHERE = auto()  # not here again, for this question
    AGAIN = auto()  # elsewhere first, then here
    LOOK = auto()  # it has moved


def verdict(ask: Ask, got: Reply | NoReply) -> RetryDecision:
    """The table above."""
    if isinstance(got, NoReply):
        return RetryDecision.AGAIN if ask.repeatable or not got.sent else RetryDecision.RAISE
    if got.status < 400:
        return RetryDecision.DONE
    code = code_of(got)
    if code == Misdirected.code:
        return RetryDecision.LOOK
    if not ask.repeatable and got.status != 429:  # a busy server has done nothing
        return RetryDecision.RAISE
    if got.status == 500 or code == NotFreshEnough.code:
        return RetryDecision.ELSEWHERE
    return RetryDecision.AGAIN if got.status in _BUSY else RetryDecision.RAISE


def retry_after_s(got: Reply | NoReply) -> float:
    """For how long a server asks to be left alone; 0 if it does not say. A date, which HTTP allows too, counts as 0."""
    text = "" if isinstance(got, NoReply) else got.headers.get("retry-after", "")
    return float(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0.0


def pause_s(rounds: int, chance: random.Random) -> float:
    """How long to wait after so many rounds in which every server was asked in vain.

    It doubles from round to round, and by chance is up to half as long, so that many clients do not come back at once.
    """
    longest = min(PAUSE_S_MAX, PAUSE_S_MIN * 2.0 ** min(rounds - 1, 16))
    return longest * chance.uniform(0.5, 1.0)


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
class Attempts:
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
        course = Attempts(self.clock(), deadline_s, whom or Whom(self.locations.anybody))
        return (yield from self._attempts(ask, course, lambda url, left_s: Send(url, ask, left_s)))

    def open(self, ask: Ask, whom: Whom, silence_s: float) -> Steps[str]:
        """Open a stream, whose lines come next; gives back who streams."""
        course = Attempts(self.clock(), self.deadline(ask), whom)
        url, _ = yield from self._attempts(ask, course, lambda url, left_s: OpenStream(url, ask, silence_s))
        return url

    def _attempts(self, ask: Ask, course: Attempts, attempt: Callable[[str, float], Step]) -> Steps[tuple[str, Reply]]:
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
            if self._judge(ask, url, got, course) is RetryDecision.DONE:
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
            if isinstance(got, NoReply):
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

    def _directly(self, ask: Ask, course: Attempts, attempt: Callable[[str, float], Step]) -> Steps[tuple[str, Reply]]:
        for url in self.locations.given:
            got = yield attempt(url, max(0.001, course.deadline_s - self.clock()))
            if self._judge(ask, url, got, course) is RetryDecision.DONE:
                return url, got
        assert course.error is not None
        raise course.error

    def _next(self, course: Attempts) -> Steps[str]:
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

    def _judge(self, ask: Ask, url: str, got: Reply | NoReply, course: Attempts) -> RetryDecision:
        """Draw the lesson of what came back; raise what is final."""
        said, now_s = verdict(ask, got), self.clock()
        course.reached = course.reached or not isinstance(got, NoReply) or got.sent
        if said is RetryDecision.DONE:
            self.locations.note_reply(url)
            return said
        course.error = error_of(got, url)
        if said is RetryDecision.RAISE:
            raise course.error
        if isinstance(got, NoReply):
            self.locations.note_silence(url, now_s)
        if retry_after_s(got):
            self.locations.leave_alone(url, now_s + retry_after_s(got))
        if said is RetryDecision.ELSEWHERE:
            course.given_up.add(url)
        if isinstance(course.error, Misdirected):
            self.locations.forget()
            if not course.whom.follow:
                raise course.error
            course.sent_to = self.locations.named_by(course.error)
        return said

    def _too_late(self, course: Attempts) -> StatesideError:
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
