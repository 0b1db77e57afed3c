"""The open connections of a worker process: how many there are, and which of them are open to no purpose.

A connection that does not send a request's head in `HEAD_S_MAX`, however slowly it sends, is closed; so is one that
takes nothing of its answer for `STALLED_S`. One look a second at all of them costs less than a timer for each request.

The event loop of a worker process.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final, Protocol

import uvloop

CONNECTIONS_MAX: Final = 8_192  # of a worker, idle ones included; or as many as it may open files
HEAD_S_MAX: Final = 10.0  # for a request's head, and for the next request on a connection that is kept open
STALLED_S = 30.0
LOOK_S: Final = 1.0


class OpenConnection(Protocol):
    """A connection, as it is looked after here."""

    def look(self, now_s: float) -> None:
        """Close it if it is open to no purpose."""


class Connections:
    """All of them, of one worker."""

    def __init__(self, connections_max: int = CONNECTIONS_MAX) -> None:
        self._max = connections_max
        self._open: set[OpenConnection] = set()

    def open(self, connection: OpenConnection) -> bool:
        """A connection is made; whether there is room for it."""
        if len(self._open) >= self._max:
            return False
        self._open.add(connection)
        return True

    def closed(self, connection: OpenConnection) -> None:
        """A connection is no more."""
        self._open.discard(connection)

    async def run(self) -> None:
        """Look after them for good."""
        while True:
            await asyncio.sleep(LOOK_S)
            now_s = time.monotonic()
            for connection in list(self._open):
                connection.look(now_s)


HANDSHAKE_S_MAX: Final = 10.0


class Loop(uvloop.Loop):
    """uvloop's, which gives a TLS handshake less than its minute: until it is done, nobody knows of the connection."""

    async def create_server(self, *given: Any, **options: Any) -> Any:
        """As asked, with the limit."""
        if options.get("ssl"):
            options["ssl_handshake_timeout"] = HANDSHAKE_S_MAX
        return await super().create_server(*given, **options)
