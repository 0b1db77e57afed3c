"""The outlet: sends a stream to one client, at the pace at which the client takes it.

The next part is asked for only once the client has taken nearly all of what was sent (`connection`). So nothing piles
up here for who reads slowly; what makes the parts sees that it is not asked, and decides. A client that takes nothing
at all is disconnected (`connections`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from stateside.serving.access.headers import security_headers
from stateside.serving.web.call import Call
from stateside.serving.web.response import Response, Stream

_OVER = "token-invalid: this needs a token that is valid, and has none, or not any more"

log = logging.getLogger(__name__)


async def send(call: Call, response: Response, stream: Stream, is_over: Callable[[], bool]) -> None:
    """Send a response's stream, each part at once, until it ends, the client goes away, or may not have it any more.

    The stream is closed then. One that fails is left without its end: the connection is closed, and the client knows
    that it has not got all of it. Who asks by HEAD is sent the headers alone.
    """
    sent = asyncio.ensure_future(_sent(call, response, stream, is_over))
    left = asyncio.ensure_future(call.left())
    try:
        await asyncio.wait((sent, left), return_when=asyncio.FIRST_COMPLETED)
    finally:
        left.cancel()
        sent.cancel()  # it may wait for a part that does not come, and nobody else knows that the client went
        with suppress(asyncio.CancelledError):
            await sent


async def _sent(call: Call, response: Response, stream: Stream, is_over: Callable[[], bool]) -> None:
    stamped = response.stamps[0].headers() if len(response.stamps) == 1 else ()
    headers = [("content-type", stream.kind), *stamped, *response.headers]
    try:
        await call.begin(response.status, [*headers, *security_headers(stream.kind, response.headers)])
        if call.method != "HEAD":
            await _give_parts(call, stream, is_over)
        await call.give(b"", more=False)
    except Exception:
        log.exception("A stream of %s broke off", stream.kind)
    finally:
        await _close(stream)


async def _give_parts(call: Call, stream: Stream, is_over: Callable[[], bool]) -> None:
    async for part in stream.parts:
        if is_over():
            await call.give(stream.cut(_OVER))
            break
        await call.give(part)


async def _close(stream: Stream) -> None:
    close = getattr(stream.parts, "aclose", None)
    if close is not None:
        await close()
