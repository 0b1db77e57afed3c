"""The guard, whom the application asks at every request: who is it, is there room for them, and who was turned away.

    with guard.visit(call) as visit:
        holder = visit.enter()          who asks, if there is room; TokenInvalid, TooManyRequests
        route.check(holder, …)          may they: the route says whom it lets in; AccessDenied
        …
        visit.refused(error)            whatever came of it: refusals are written down
                                        at the end, when the answer has been sent, there is room again

Whoever has a token is counted by the holder's name; everybody else, those with a wrong token too, by their address. A
browser has its token in a cookie (`session`). Where nobody needs one, a stranger's page is kept out by the host that it
asks at (`hosts`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from types import TracebackType
from typing import Final, Protocol

from stateside.errors import AccessDenied, SetupError, StatesideError, TokenInvalid
from stateside.layout import Layout
from stateside.serving.access.holder import OPERATOR, Holder
from stateside.serving.access.hosts import Hosts
from stateside.serving.access.limits import NO_RATE, Limits, Room, network
from stateside.serving.access.position_codec import PLAIN, PositionCodec
from stateside.serving.access.refusals import Asked, RefusalLog
from stateside.serving.access.session import check_origin, presented
from stateside.serving.access.verifier import TokenRefused, Verifier

RECHECK_S: Final = 1.0
LOOK_S: Final = 0.002  # after it at the latest a folder's first key counts, and nobody is let in without a token
NOBODY: Final = Holder("nobody", frozenset())

log = logging.getLogger(__name__)


class Arriving(Protocol):
    """A request: from where it comes, as `address:port`, and what it asks."""

    client: str
    method: str
    path: str
    headers: Mapping[str, str]


class Guard:
    """Lets requests in: one for each worker process."""

    def __init__(self, verifier: Verifier, room: Room, refusals: RefusalLog, hosts: Hosts | None) -> None:
        self._verifier, self.room, self._refusals, self._hosts = verifier, room, refusals, hosts
        self._told: dict[str, str] = {}

    @classmethod
    def of(
        cls,
        layout: Layout,
        limits: Limits = NO_RATE,
        *,
        guarded: bool = False,
        names: Collection[str] | None = (),
    ) -> Guard:
        """The guard of a folder. `guarded`: it had keys when the server started, and is never open again.

        `names` are those that the server has beside its addresses; None where TLS says which are its own.
        """
        verifier = Verifier(layout, guarded=guarded, look_s=LOOK_S)
        return cls(verifier, Room(limits), RefusalLog(layout.refusals), None if names is None else Hosts(names))

    def visit(self, call: Arriving) -> Visit:
        """A request arrives."""
        return Visit(self, call)

    def holder(self, authorization: str | None, host: str | None) -> Holder:
        """Who sends these headers; TokenInvalid if nobody who is let in, SetupError if that cannot be told.

        AccessDenied where no token is needed, and the host is one that a stranger's page may ask at.
        """
        holder = self._verified(authorization)
        if holder is OPERATOR and self._hosts is not None:
            self._hosts.check(host)
        return holder

    def _verified(self, authorization: str | None) -> Holder:
        try:
            return self._verifier.holder(authorization)
        except SetupError as error:
            self._tell("Nobody is let in", error)
            raise SetupError(
                "This server cannot tell who asks: its log has the cause", next_step="Tell who runs it"
            ) from None  # whose paths are none of the asker's business

    def positions(self, holder: Holder) -> PositionCodec:
        """How this holder is shown positions."""
        return PLAIN if holder is OPERATOR or holder is NOBODY else self._verifier.positions(holder)

    def pass_by(self, holder: Holder, address: str) -> None:
        """A request of this holder is let in, and will be answered at once; TooManyRequests."""
        who = address if holder is OPERATOR else f"holder {holder.name}"
        self.room.enter(who)
        self.room.leave(who)

    def note(self, error: StatesideError, who: str | None, asked: Asked) -> None:
        """Write a refusal down. A disk that is full lets nobody in who was refused, and stops nobody who was not."""
        try:
            self._refusals.note(error, who, asked)
        except OSError as failure:
            self._tell("Refusals are not written down", failure)

    def _tell(self, what: str, error: Exception) -> None:
        """Say it in the log, once and not at each request."""
        if self._told.get(what) != str(error):
            self._told[what] = str(error)
            log.error("%s: %s", what, error)


class Visit:
    """One request, from its arrival until its answer has been sent."""

    __slots__ = ("_address", "_call", "_checked_s", "_counted", "_guard", "_holder", "positions", "route")

    def __init__(self, guard: Guard, call: Arriving) -> None:
        self._guard, self._call = guard, call
        self._address = network(call.client)
        self._holder: Holder | None = None
        self._counted: str | None = None
        self.route = "none"  # the pattern of the one that fits, once it is known
        self.positions = PLAIN  # how the holder is shown them, once it is known
        self._checked_s = time.monotonic()

    def enter(self, *, needs_token: bool = True) -> Holder:
        """Who asks, from now on counted as under way; once. Without a token everybody is nobody, who has no role."""
        try:
            holder = self._found() if needs_token else NOBODY
        except (TokenInvalid, AccessDenied):
            self._count(self._address)  # so that guessing has a rate as well
            raise
        self._holder = None if holder is NOBODY else holder
        self._count(self._address if self._name() is None else f"holder {holder.name}")
        check_origin(self._call.method, self._call.headers)
        return holder

    def _found(self) -> Holder:
        headers = self._call.headers
        return self._guard.holder(presented(headers), headers.get("host"))

    def is_over(self) -> bool:
        """Whether who was let in would be no longer: revoked since, or expired, or without a token since the first key.

        Asked by what goes on for long.
        It looks once in `RECHECK_S`, and writes the refusal down.
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
        """Write it down, if this error is a refusal."""
        who = error.name if isinstance(error, TokenRefused) else self._name()
        call = self._call
        asked = Asked(call.method, call.path, self._address, call.headers.get("traceparent"))
        self._guard.note(error, who, asked)

    def _name(self) -> str | None:
        """Of who was let in, if a token said it."""
        return None if self._holder is None or self._holder is OPERATOR else self._holder.name

    def _count(self, who: str) -> None:
        self._guard.room.enter(who)
        self._counted = who

    def __enter__(self) -> Visit:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._counted is not None:
            self._guard.room.leave(self._counted)
