"""The outlet: sends a stream to one client, at the pace at which the client takes it.

The next part is asked for only once the client has all but ROOM_BYTES of what was sent. So nothing piles up here for
who reads slowly; what makes the parts sees that it is not asked, and decides. A client that takes nothing at all for
STALLED_S while there is something for it is disconnected.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any

from granian.rsgi import ProtocolClosed  # type: ignore[attr-defined]

from stateside.serving.access.headers import security_headers
from stateside.serving.web.connections import Connection
from stateside.serving.web.response import Response, Stream

ROOM_BYTES = 256 * 1024
STALLED_S = 30.0
_WAIT_S_MIN, _WAIT_S_MAX = 0.001, 0.05
_OVER = "token-invalid: the token is not valid any more"

log = logging.getLogger(__name__)


async def send(
    protocol: Any,
    response: Response,
    stream: Stream,
    connection: AbstractContextManager[Connection | None],
    is_over: Callable[[], bool],
) -> None:
    """Send a response's stream, each part at once, until it ends, the client goes away, or may not have it any more.

    The stream is closed then.
    """
    with connection as found:
        sent = asyncio.ensure_future(_sent(protocol, response, stream, Pace(found), is_over))
        left = asyncio.ensure_future(_left(protocol))
        try:
            await asyncio.wait((sent, left), return_when=asyncio.FIRST_COMPLETED)
        finally:
            left.cancel()
            sent.cancel()  # it may wait for a part that does not come, and nobody else knows that the client went
            with suppress(asyncio.CancelledError):
                await sent


class Stalled(Exception):
    """The client takes nothing any more."""


class Pace:
    """How much of what one client was given it has not taken yet."""

    def __init__(self, connection: Connection | None) -> None:
        self._connection = connection
        self._first_bytes = (connection.taken_bytes() if connection else None) or 0  # before this stream began
        self._given_bytes = self._taken_bytes = 0

    def give(self, size_bytes: int) -> None:
        """Note that so much was given."""
        self._given_bytes += size_bytes

    async def room(self, waiting_bytes_max: int) -> None:
        """Wait until no more than this waits for the client; Stalled if it takes nothing for STALLED_S."""
        wait_s, moved_s, last_bytes = _WAIT_S_MIN, time.monotonic(), self._taken_bytes
        while self._waiting_bytes() > waiting_bytes_max and self._look() > waiting_bytes_max:
            if self._taken_bytes > last_bytes:
                moved_s, last_bytes = time.monotonic(), self._taken_bytes
            if self._connection is not None and time.monotonic() - moved_s > STALLED_S:
                self._connection.shut()
                raise Stalled
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _WAIT_S_MAX)

    def _waiting_bytes(self) -> int:
        return 0 if self._connection is None else self._given_bytes - self._taken_bytes

    def _look(self) -> int:
        """Ask the kernel how much still waits; nothing does for a client that is gone."""
        acknowledged = self._connection.taken_bytes() if self._connection is not None else None
        taken = self._given_bytes if acknowledged is None else acknowledged - self._first_bytes
        more = max(0, taken - self._given_bytes)  # headers, chunks' sizes, TLS: they are not to add up over the hours
        self._first_bytes += more
        self._taken_bytes = taken - more
        return self._waiting_bytes()


async def _sent(protocol: Any, response: Response, stream: Stream, pace: Pace, is_over: Callable[[], bool]) -> None:
    stamped = response.stamps[0].headers() if len(response.stamps) == 1 else ()
    headers = [("content-type", stream.kind), *stamped, *response.headers]
    headers += security_headers(stream.kind, response.headers)
    try:
        await _give(protocol.response_stream(response.status, headers), stream, pace, is_over)
        await pace.room(0)  # a client that does not take the rest would keep it in memory for as long as it likes
    except ProtocolClosed:
        pass  # the client went away
    except Stalled:
        log.info("A client that took nothing of a stream for %s s was disconnected", STALLED_S)
    except Exception:
        log.exception("A stream of %s broke off", stream.kind)
    finally:
        await _close(stream)


async def _give(transport: Any, stream: Stream, pace: Pace, is_over: Callable[[], bool]) -> None:
    """Send all parts. That the transport goes away with the return is what ends the response."""
    async for part in stream.parts:
        if is_over():
            await transport.send_bytes(stream.cut(_OVER))
            return
        await transport.send_bytes(part)
        pace.give(len(part))
        await pace.room(ROOM_BYTES)


async def _close(stream: Stream) -> None:
    close = getattr(stream.parts, "aclose", None)
    if close is not None:
        await close()


async def _left(protocol: Any) -> None:
    await protocol.client_disconnect()
