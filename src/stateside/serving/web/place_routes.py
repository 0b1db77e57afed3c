"""The routes of places: who serves, and who holds a key."""

from __future__ import annotations

import asyncio

from stateside.clock import Clock, SystemClock
from stateside.errors import AccessDenied, KeyInvalid
from stateside.serving.place.location import location
from stateside.serving.place.servers import Servers
from stateside.serving.reading.values import described
from stateside.serving.web.request import Request
from stateside.serving.web.response import Response
from stateside.serving.web.route import KEY, Route


def place_routes(servers: Servers, name: str | None = None, clock: Clock | None = None) -> list[Route]:
    """The routes of a server that is called so, and looks for the others there."""
    place = _Place(servers, name, clock or SystemClock())
    return [
        Route("/v1/servers", place.servers, _SERVERS, "read"),
        Route("/v1/views/{view}/location", place.location, _LOCATION, "read", (KEY,)),
        Route("/v1/views/{view}/location/{key...}", place.location, _LOCATION, "read", (KEY,)),
    ]


class _Place:
    """The handlers."""

    def __init__(self, servers: Servers, name: str | None, clock: Clock) -> None:
        self._servers, self._name, self._clock = servers, name, clock

    async def servers(self, request: Request) -> Response:
        """Those that announce themselves where this one does, and which of them this one is."""
        now_us, found = self._clock.now_us(), await asyncio.to_thread(self._servers.now)
        told = [server.as_dict() | {"silent_ms": server.silent_ms(now_us)} for server in found]
        return Response({"name": self._name, "servers": told})

    async def location(self, request: Request) -> Response:
        """Who holds the keys that begin so."""
        view, *in_path = request.parts
        parts = [*in_path, *request.keys]
        shape = request.views.get(view).shape
        leading = shape.codec.leading_of(shape.codec.encode(shape.parse_key(parts)))
        _check_own(request, view, [name for name, _ in shape.key_parts], parts)
        if leading is None:
            raise KeyInvalid(
                "Where a key is, its first column tells, and it is not all there",
                next_step=f"The key's parts are: {described(shape.key_parts)}",
            )
        found = await asyncio.to_thread(self._servers.now)
        return Response(location(found, view, leading, self._clock.now_us()))


def _check_own(request: Request, view: str, columns: list[str], parts: list[str]) -> None:
    """AccessDenied for a key that the holder has no rows of."""
    given = dict(zip(columns, parts, strict=False))
    for name, value in request.holder.rows_of(view, columns).items():
        if given.get(name, value) != value:
            raise AccessDenied(
                f"This token reaches rows by their column {name!r}, and this key has another value there",
                next_step="Ask for your own key, or with another token",
            )


_SERVERS = "the servers that announce themselves where this one does: url, and of each view share, batch, age, replica"
_LOCATION = "the share that a key is in, and the servers that hold it, the newest batch first"
