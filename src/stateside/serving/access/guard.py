"""The guard: authenticates each request, applies the limits, and logs the refusals.

    with guard.visit(call) as visit:
        holder = visit.enter()          the principal, counted as under way; TokenInvalid, TooManyRequests
        route.check(holder, …)          the route checks role and scope; AccessDenied
        …
        visit.refused(error)            any error: refusals are logged
                                        at the end, when the answer has been sent, the count goes down

Requests with a valid token count under the principal's name; all others, those with an invalid token included, count
under their address. A browser sends its token in a cookie (`browser_session`). Where no token is needed, the `Host`
header keeps other sites' pages out (`hosts`).

The log of refusals is `refusals.jsonl` in the served folder, one line per refusal:

    {"time": "2026-01-31T…Z", "status": 403, "code": "access-denied", "who": "emma's page", "address": "10.0.0.7",
     "method": "GET", "path": "/v1/customers/ben/bill", "why": "This is not data…", "trace": "4bf92f35…"}

`who` is the name in a verified token, or null; unverified claims are not logged. Neither are the token, the other
headers, and the query string. Only the owner can read the file. At `BYTES_MAX` the file becomes `refusals.1.jsonl`, and
the former one `refusals.2.jsonl`, up to `OLDER_KEPT`. A worker writes at most `LINES_PER_S` lines a second; the next
line has the number of omitted ones (`left_out`).
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol

import orjson

from stateside.core.clock import Clock, SystemClock
from stateside.core.errors import AccessDenied, SetupError, StatesideError, TokenInvalid
from stateside.core.layout import Layout
from stateside.core.storage import try_lock
from stateside.serving.access.browser_session import check_origin, presented
from stateside.serving.access.hosts import Hosts
from stateside.serving.access.limits import NO_RATE, Buckets, RateLimits, Room, network
from stateside.serving.access.position_codec import PLAIN, PositionCodec
from stateside.serving.access.principal import OPERATOR, Principal
from stateside.serving.access.verifier import TokenRefused, Verifier
from stateside.serving.health.logs import Trace
from stateside.serving.stamp import iso_time

BYTES_MAX: Final = 4 << 20
OLDER_KEPT: Final = 4
LINES_PER_S: Final = 200.0
PATH_CHARS_MAX: Final = 200
STATUSES: Final = frozenset({401, 403, 408, 413, 429})


@dataclass(frozen=True, slots=True)
class RefusedRequest:
    """The logged parts of a refused request."""

    method: str
    path: str
    address: str
    traceparent: str | None = None

    def trace(self) -> str | None:
        """The trace id, if the header conforms to W3C Trace Context."""
        trace = Trace.parse(self.traceparent)
        return None if trace is None else trace.trace


class RefusalLog:
    """Writes the log. Several processes may write to one file: a line is appended in one write."""

    def __init__(self, path: Path, clock: Clock | None = None, now_s: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = path, clock or SystemClock()
        self._buckets, self._left_out = Buckets(LINES_PER_S, now_s), 0

    def note(self, error: StatesideError, who: str | None, asked: RefusedRequest) -> None:
        """Append a line if the error is a refusal. OSError if the write fails."""
        if error.status not in STATUSES:
            return
        if self._buckets.take("lines") > 0:
            self._left_out += 1
            return
        self._append(self._line(error, who, asked))
        self._left_out = 0

    def _line(self, error: StatesideError, who: str | None, asked: RefusedRequest) -> bytes:
        line = {
            "time": iso_time(self._clock.now_us()),
            "status": error.status,
            "code": error.code,
            "who": who,
            "address": asked.address,
            "method": asked.method,
            "path": asked.path[:PATH_CHARS_MAX],
            "why": error.what,
            "trace": asked.trace(),
        }
        return orjson.dumps(line | ({"left_out": self._left_out} if self._left_out else {})) + b"\n"

    def _append(self, line: bytes) -> None:
        handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(handle, line)
            found = os.fstat(handle)
        finally:
            os.close(handle)
        if found.st_size + len(line) > BYTES_MAX:
            self._turn_over(found.st_ino)

    def _turn_over(self, inode: int) -> None:
        """Rotate the full file, unless another process is rotating or has rotated the file."""
        lock = try_lock(self._path.with_name(f".{self._path.name}.lock"), mode=0o600)
        if lock is None:
            return
        try:
            if self._path.stat().st_ino != inode:
                return
            for number in range(OLDER_KEPT - 1, 0, -1):
                if self._older(number).exists():
                    self._older(number).replace(self._older(number + 1))
            self._path.replace(self._older(1))
        finally:
            os.close(lock)

    def _older(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.stem}.{number}{self._path.suffix}")


RECHECK_S: Final = 1.0
LOOK_S: Final = 0.002  # a folder's first key takes effect within LOOK_S; from then on each request needs a token
NOBODY: Final = Principal("nobody", frozenset())
log = logging.getLogger(__name__)


class Arriving(Protocol):
    """A request: its client, as `address:port`, method, path and headers."""

    @property
    def peer(self) -> str: ...
    @property
    def method(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def headers(self) -> Mapping[str, str]: ...


class Guard:
    """Admits requests: one guard for each worker process."""

    def __init__(self, verifier: Verifier, room: Room, refusals: RefusalLog, hosts: Hosts | None) -> None:
        self._verifier, self.room, self._refusals, self._hosts = verifier, room, refusals, hosts
        self._told: dict[str, str] = {}

    @classmethod
    def of(
        cls,
        layout: Layout,
        limits: RateLimits = NO_RATE,
        *,
        guarded: bool = False,
        names: Collection[str] | None = (),
    ) -> Guard:
        """The guard of a folder. `guarded`: keys existed when the server started, so a token is always needed.

        `names` are the server's host names, besides its addresses; None under TLS, where the certificate names the
        server.
        """
        verifier = Verifier(layout, guarded=guarded, look_s=LOOK_S)
        return cls(verifier, Room(limits), RefusalLog(layout.refusals), None if names is None else Hosts(names))

    def visit(self, call: Arriving) -> Visit:
        return Visit(self, call)

    def holder(self, authorization: str | None, host: str | None) -> Principal:
        """The principal of these headers; TokenInvalid without a valid token, SetupError for unusable files.

        AccessDenied where no token is needed and the host may be a name of another site.
        """
        holder = self._verified(authorization)
        if holder is OPERATOR and self._hosts is not None:
            self._hosts.check(host)
        return holder

    def _verified(self, authorization: str | None) -> Principal:
        try:
            return self._verifier.holder(authorization)
        except SetupError as error:
            self._tell("Nobody is let in", error)
            raise SetupError(
                "This server cannot tell who asks: its log has the cause", next_step="Tell who runs it"
            ) from None  # the file paths in the error are not for clients

    def positions(self, holder: Principal) -> PositionCodec:
        """The position codec for this principal."""
        return PLAIN if holder is OPERATOR or holder is NOBODY else self._verifier.positions(holder)

    def pass_by(self, holder: Principal, address: str) -> None:
        """Count a request that is answered at once (fast path); TooManyRequests if over a limit."""
        who = address if holder is OPERATOR else f"holder {holder.name}"
        self.room.enter(who)
        self.room.leave(who)

    def note(self, error: StatesideError, who: str | None, asked: RefusedRequest) -> None:
        """Log a refusal. A full disk admits nobody who was refused, and stops nobody who was not."""
        try:
            self._refusals.note(error, who, asked)
        except OSError as failure:
            self._tell("Refusals are not written down", failure)

    def _tell(self, what: str, error: Exception) -> None:
        """Log an error once, not at each request."""
        if self._told.get(what) != str(error):
            self._told[what] = str(error)
            log.error("%s: %s", what, error)


class Visit:
    """One request, from its arrival until its answer has been sent."""

    __slots__ = ("_address", "_call", "_checked_s", "_counted", "_guard", "_holder", "positions", "route")

    def __init__(self, guard: Guard, call: Arriving) -> None:
        self._guard, self._call = guard, call
        self._address = network(call.peer)
        self._holder: Principal | None = None
        self._counted: str | None = None
        self.route = "none"  # the matching route's pattern, once known
        self.positions = PLAIN  # the principal's codec, once known
        self._checked_s = time.monotonic()

    def enter(self, *, needs_token: bool = True) -> Principal:
        """The principal, counted as under way; called once. Without `needs_token` NOBODY, who has no role."""
        try:
            holder = self._found() if needs_token else NOBODY
        except (TokenInvalid, AccessDenied):
            self._count(self._address)  # so that guessing tokens is rate limited too
            raise
        self._holder = None if holder is NOBODY else holder
        self._count(self._address if self._name() is None else f"holder {holder.name}")
        check_origin(self._call.method, self._call.headers)
        return holder

    def _found(self) -> Principal:
        headers = self._call.headers
        return self._guard.holder(presented(headers), headers.get("host"))

    def is_over(self) -> bool:
        """Whether the principal would be refused now: revoked, expired, or without a token since the first key.

        Long-running answers call `is_over`. Checks once in `RECHECK_S`, and logs the refusal.
        """
        now_s = time.monotonic()
        if self._holder is None or now_s - self._checked_s < RECHECK_S:
            return False
        self._checked_s = now_s
        try:
            return self._found() != self._holder
        except StatesideError as error:
            self.refused(error)
            return True

    def refused(self, error: StatesideError) -> None:
        """Log the error, if the error is a refusal."""
        who = error.name if isinstance(error, TokenRefused) else self._name()
        call = self._call
        asked = RefusedRequest(call.method, call.path, self._address, call.headers.get("traceparent"))
        self._guard.note(error, who, asked)

    def _name(self) -> str | None:
        """The principal's name, if a token was verified."""
        return None if self._holder is None or self._holder is OPERATOR else self._holder.name

    def _count(self, who: str) -> None:
        self._guard.room.enter(who)
        self._counted = who

    def __enter__(self) -> Visit:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._counted is not None:
            self._guard.room.leave(self._counted)
