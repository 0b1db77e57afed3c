"""The open connections of a worker process, with limits on their number and idle time; and the worker's event loop.

A connection without a complete request head after `HEAD_S_MAX`, however slowly the client sends, is closed; so is a
connection whose client reads nothing of the answer for `STALLED_S`. One look a second at all connections costs less
than a timer per request.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final, Protocol

import uvloop

CONNECTIONS_MAX: Final = 8_192  # of a worker, idle ones included; or its limit of open files
HEAD_S_MAX: Final = 10.0  # for a request's head, and for the next request on a kept-alive connection
STALLED_S = 30.0
LOOK_S: Final = 1.0


class OpenConnection(Protocol):
    """A connection, as `Connections` sees it."""

    def look(self, now_s: float) -> None:
        """Close a stalled connection."""


class Connections:
    """All connections of one worker."""

    def __init__(self, connections_max: int = CONNECTIONS_MAX) -> None:
        self._max = connections_max
        self._open: set[OpenConnection] = set()

    def open(self, connection: OpenConnection) -> bool:
        """Add a connection; False beyond the limit."""
        if len(self._open) >= self._max:
            return False
        self._open.add(connection)
        return True

    def closed(self, connection: OpenConnection) -> None:
        self._open.discard(connection)

    async def run(self) -> None:
        """Look at all connections every `LOOK_S`, forever."""
        while True:
            await asyncio.sleep(LOOK_S)
            now_s = time.monotonic()
            for connection in list(self._open):
                connection.look(now_s)


HANDSHAKE_S_MAX: Final = 10.0


class Loop(uvloop.Loop):
    """uvloop's loop with 10 s for a TLS handshake, not 60 s: before the handshake a connection is not counted."""

    async def create_server(self, *given: Any, **options: Any) -> Any:
        if options.get("ssl"):
            options["ssl_handshake_timeout"] = HANDSHAKE_S_MAX
        return await super().create_server(*given, **options)
