"""The routes of places: who serves, and who holds a key."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from stateside.clock import Clock, SystemClock
from stateside.errors import KeyInvalid
from stateside.serving.place.announcement import Announcement
from stateside.serving.place.location import location
from stateside.serving.place.servers import Servers
from stateside.serving.reading.values import described
from stateside.serving.web.asked import Asked, reaches, reaches_all
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
        return Response({"name": self._name, "servers": [_told(request, server, now_us) for server in found]})

    async def location(self, request: Request) -> Response:
        """Who holds the keys that begin so."""
        asked = await Asked.of(request)
        view, *in_path = request.parts
        shape = asked.reader.shape
        key = asked.scope.narrowed(shape.parse_key([*in_path, *request.keys]))
        leading = shape.codec.leading_of(shape.codec.encode(key))
        if leading is None:
            raise KeyInvalid(
                "Where a key is, its first column tells, and it is not all there",
                next_step=f"The key's parts are: {described(shape.key_parts)}",
            )
        found = await asyncio.to_thread(self._servers.now)
        return Response(location(found, view, leading, self._clock.now_us()))


def _told(request: Request, server: Announcement, now_us: int) -> dict[str, Any]:
    """A server, with those of its views that the holder may ask."""
    views, holder = request.views, request.holder
    held = {name: each for name, each in server.views.items() if reaches_all(holder) or reaches(holder, views, name)}
    return replace(server, views=held).as_dict() | {"silent_ms": server.silent_ms(now_us)}


_SERVERS = "the servers that announce themselves where this one does: url, and of each view share, batch, age, replica"
_LOCATION = "the share that a key is in, and the servers that hold it, the newest batch first"
