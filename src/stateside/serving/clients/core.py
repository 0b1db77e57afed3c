"""The core of a client: which server to ask, when to retry, and how to read the replies. No I/O.

Every method returns steps (see `steps`), which a client runs. Each request has one deadline: after the deadline nothing
is sent, and the last error is raised. `Locations` has the known servers, their shards, and the servers to avoid for
now. `verdict` decides about retries, from values alone:

    result                               action
    an answer                            return the answer
    no reply                             ask elsewhere, then here again; if repeatable, or never sent
    421 misdirected                      look the servers up again
    429, 503, 502, 504                   ask elsewhere, then here again, not before Retry-After
    503 not-fresh-enough, 500            ask elsewhere, once each: this server's reply is final
    anything else                        raise

Repeatable are all reads, since they change nothing, and appends, since the journal stores an event id once.
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

LOOK_S: Final = 10.0  # how long the server list is valid, as long as the servers answer
AWAY_S: Final = 2.0  # how long a server without a reply is asked last


class Locations:
    """The given servers, and the servers discovered from them.

    Of several copies a client always prefers the same one, by its `seed`: so the batches of its answers do not go back
    and forth, and the clients spread over the copies.
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
        """Whether any server list is known."""
        return bool(self._servers)

    def due(self, now_s: float) -> bool:
        """Whether to look the servers up."""
        return now_s - self._looked_s >= LOOK_S

    def learn(self, asked: str, document: Mapping[str, Any], now_s: float) -> None:
        """Take in a server's list of all servers. The asked server keeps the URL at which it was asked.

        If all given servers use https, servers with http are ignored: the token would go over the network in clear
        text.
        """
        servers = []
        for told in document.get("servers", ()):
            try:
                server = Announcement.of(told)
            except (ValueError, TypeError, LookupError, AttributeError, StatesideError):
                continue  # of another version: the given servers are asked
            if document.get("name") == server.name:
                server = replace(server, url=asked)
            if self.may_ask(server.url):
                servers.append(server)
        self._servers, self._looked_s = servers, now_s

    def may_ask(self, url: str) -> bool:
        """Whether a discovered server may be asked."""
        return url.startswith("https:") or any(given.startswith("http:") for given in self.given)

    def named_by(self, error: Misdirected) -> list[str]:
        """The servers named by a misdirected reply."""
        servers = (error.location or {}).get("servers", ())
        return [each["url"] for each in servers if self.may_ask(each["url"])]

    def nothing_told(self, now_s: float) -> None:
        """These servers have no list: only the given servers are asked."""
        self._servers, self._looked_s = [], now_s

    def forget(self) -> None:
        """Look the servers up before the next request."""
        self._looked_s = float("-inf")

    def held(self, view: str) -> HeldShare | None:
        """Any server's shard of a view; None if no server is known to have the view."""
        return next((server.views[view] for server in self._servers if view in server.views), None)

    def anybody(self, now_s: float) -> list[str]:
        """All servers, in order of preference, for requests that any server can answer."""
        return self._in_order([*self.given, *(server.url for server in self._servers)], now_s, keep=True)

    def of_key(self, view: str, parts: Sequence[str], now_s: float) -> list[str]:
        """The servers of a key; all servers if unknown. Empty if the known servers have fallen silent."""
        held = self.held(view)
        if held is None:
            return self.anybody(now_s)
        leading = leading_or_none(held, parts)
        if leading is None:
            return self.whole(view, now_s) or self.anybody(now_s)
        return self._urls(holdings(self._servers, view, leading), now_s)

    def scattered(self, view: str, parts: Sequence[str]) -> bool:
        """Whether keys with this prefix may be in any shard. False for an invalid key, which any server refuses."""
        held = self.held(view)
        try:
            return held is not None and held.leading(parts) is None
        except KeyInvalid:
            return False

    def whole(self, view: str, now_s: float) -> list[str]:
        """The servers with all keys of a view."""
        return self._urls(holdings(self._servers, view), now_s)

    def shares(self, view: str, now_s: float) -> list[tuple[str | None, list[str]]] | None:
        """A cover of all keys of a view: each shard with its copies. None if a shard is missing."""
        if self.held(view) is None:
            return [(None, self.anybody(now_s))]
        found = cover(self._servers, view)
        return None if found is None else [(copies[0].share, self._urls(copies, now_s)) for copies in found]

    def with_all_keys(self, now_s: float) -> list[str]:
        """The servers with all keys of every view; the given ones if no server is known."""
        if not self._servers:
            return self.anybody(now_s)
        whole = [server.url for server in self._servers if all(held.share is None for held in server.views.values())]
        return self._in_order(whole, now_s)

    def unfound(self, view: str) -> OperatingError:
        """The error for keys without a server."""
        return OperatingError(
            f"Not all keys can be asked for: {missing(self._servers, view)}",
            where=", ".join(self.given),
            next_step="Start the servers that are missing: GET /v1/servers lists those that there are",
        )

    def note_silence(self, url: str, now_s: float) -> None:
        """Prefer other servers for AWAY_S after a missing reply."""
        self._away[url] = now_s + AWAY_S

    def note_reply(self, url: str) -> None:
        self._away.pop(url, None)

    def leave_alone(self, url: str, until_s: float) -> None:
        """Do not ask a server before this time."""
        self._not_before[url] = max(until_s, self._not_before.get(url, until_s))

    def not_before_s(self, url: str) -> float:
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
    """The action for a result."""

    DONE = auto()
    RAISE = auto()
    ELSEWHERE = auto()  # not here again, for this request
    AGAIN = auto()  # elsewhere first, then here
    LOOK = auto()  # the keys have moved


def verdict(ask: Ask, got: Reply | NoReply) -> RetryDecision:
    """The action, by the table above."""
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
    """The seconds of Retry-After; 0 without one. A date, also valid in HTTP, counts as 0."""
    text = "" if isinstance(got, NoReply) else got.headers.get("retry-after", "")
    return float(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0.0


def pause_s(rounds: int, chance: random.Random) -> float:
    """The pause after a number of rounds in which no server answered.

    Doubles with each round, times a random factor of 0.5 to 1, so that many clients do not return at once.
    """
    longest = min(PAUSE_S_MAX, PAUSE_S_MIN * 2.0 ** min(rounds - 1, 16))
    return longest * chance.uniform(0.5, 1.0)


DEADLINE_S: Final = 15.0
LOOK_S_MAX: Final = 2.0  # a server that takes longer to send the list is skipped
ATTEMPT_S: Final = 10.0  # on top of the server's own allowed wait
T = TypeVar("T")
_LOOK: Final = Ask("GET", "/v1/servers")


@dataclass(frozen=True, slots=True)
class Whom:
    """The servers to ask, as a function of the time, in order; and the error if there are none.

    `follow`: after a misdirected reply, ask the named server; otherwise raise Misdirected.
    """

    urls: Callable[[float], Sequence[str]]
    nobody: Callable[[], StatesideError] | None = None
    follow: bool = True


@dataclass
class Attempts:
    """The progress of one request's attempts. `sent_to`: servers named by a misdirected reply."""

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
    """The state of a client, and its procedure for a request.

    `direct`: ask the given servers in their order, once each, without discovery. `unreached_s`: how long no server at
    all may be reachable; by default until the deadline.
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
        self._unheard: StatesideError | None = None  # why the last lookup of the servers failed

    def deadline(self, ask: Ask) -> float:
        """The deadline of a request that begins now; a requested wait beyond WAIT_S is added."""
        return self.clock() + self.deadline_s + max(0.0, ask.wait_s - WAIT_S)

    def read(
        self,
        ask: Ask,
        make: Callable[[Mapping[str, Any]], T],
        whom: Whom | None = None,
        deadline_s: float | None = None,
    ) -> Steps[T]:
        """`make` applied to the JSON document of the reply; raises the server's problem.

        OperatingError if the document is not a Stateside answer.
        """
        url, reply = yield from self.reply(ask, whom, deadline_s)
        document = document_of(reply, url)
        try:
            return make(document)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise unanswered(f"the reply is not the answer: {error!r}", url) from error

    def reply(self, ask: Ask, whom: Whom | None = None, deadline_s: float | None = None) -> Steps[tuple[str, Reply]]:
        """The replying server and its reply; by default any server is asked."""
        deadline_s = self.deadline(ask) if deadline_s is None else deadline_s
        course = Attempts(self.clock(), deadline_s, whom or Whom(self.locations.anybody))
        return (yield from self._attempts(ask, course, lambda url, left_s: Send(url, ask, left_s)))

    def open(self, ask: Ask, whom: Whom, silence_s: float) -> Steps[str]:
        """Open a stream, to be read with NextLine; returns the server."""
        course = Attempts(self.clock(), self.deadline(ask), whom)
        url, _ = yield from self._attempts(ask, course, lambda url, left_s: OpenStream(url, ask, silence_s))
        return url

    def _attempts(self, ask: Ask, course: Attempts, attempt: Callable[[str, float], Step]) -> Steps[tuple[str, Reply]]:
        """Ask one server after the other until an answer, a final error, or the deadline."""
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
        """Wait a little before restarting a request, and look the servers up; raise the error if too late."""
        wait_s = pause_s(rounds, self._chance)
        if self.clock() + wait_s >= deadline_s:
            raise error
        yield Pause(wait_s)
        yield from self.look(deadline_s, again=True)

    def look(self, deadline_s: float, *, again: bool = False) -> Steps[None]:
        """Look the servers up, if due. If no server replies, the known list stays."""
        if self.direct or not (again or self.locations.due(self.clock())):
            return
        for url in self.locations.anybody(self.clock()):
            left_s = deadline_s - self.clock()
            if left_s <= 0:
                return
            got = yield Send(url, _LOOK, min(left_s / 2, LOOK_S_MAX))  # leave time for the request itself
            if isinstance(got, NoReply):
                self._unheard = error_of(got, url)
                self.locations.note_silence(url, self.clock())
                continue
            self.locations.note_reply(url)
            if got.status == 200:
                self.locations.learn(url, document_of(got, url), self.clock())
                return
            if got.status < 500:  # not allowed with this token, or no such route: so no other server is asked either
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
        """The next server to ask; when all have failed, pauses and looks the servers up."""
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
        """Update the state from a result; raise final errors."""
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
