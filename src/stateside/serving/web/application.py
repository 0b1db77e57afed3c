"""The application: routes requests to handlers, and turns their answers and errors into responses. Bare RSGI.

What there is, the routes say (`view_routes` and those that an application adds); the document of this interface is made
of them. Errors are RFC 9457 problem documents with the codes of `stateside.errors`. Where the folder has tokens
(`access`), every request needs one, but for the few routes that anyone may ask.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qsl

import orjson

from stateside.errors import (
    BodyTooLarge,
    MethodInvalid,
    RequestInvalid,
    RouteUnknown,
    StatesideError,
    TokenInvalid,
)
from stateside.serving.access.holder import OPERATOR, Holder
from stateside.serving.access.tokens import TokenFile
from stateside.serving.reading.views import Views
from stateside.serving.web.request import Request
from stateside.serving.web.response import Response, Stream
from stateside.serving.web.route import Route
from stateside.serving.web.view_routes import VIEW_ROUTES

PATH_CHARS_MAX = 4_096
_SECURITY_HEADERS = [("x-content-type-options", "nosniff"), ("cache-control", "no-store")]

log = logging.getLogger(__name__)


async def _health(request: Request) -> Response:
    return Response({"status": "ok"})


HEALTH = Route("/healthz", _health, "this process answers; the only one that needs no token", "anyone")


class Application:
    """The RSGI application: one for each worker process."""

    def __init__(self, views: Views, routes: Sequence[Route] = (), tokens: TokenFile | None = None) -> None:
        self._views, self._tokens = views, tokens
        self._routes = [HEALTH, *VIEW_ROUTES, *routes]

    async def __rsgi__(self, scope: Any, protocol: Any) -> None:
        """Called by Granian for each request."""
        response, problem = await self._respond(scope, protocol)
        headers = [*(response.stamps[0].headers() if len(response.stamps) == 1 else ()), *response.headers]
        headers += [("www-authenticate", "Bearer")] if response.status == TokenInvalid.status else []
        headers += _SECURITY_HEADERS
        if response.stream is not None:
            await _send(protocol, response.status, headers, response.stream)
            return
        if response.file is None:
            kind = "application/problem+json" if problem else "application/json"
            body = orjson.dumps(response.document)
        else:
            kind, body = response.file.kind, response.file.content
            headers += [("content-disposition", f'inline; filename="{response.file.name}"')]
        protocol.response_bytes(response.status, [("content-type", kind), *headers], body)

    async def _respond(self, scope: Any, protocol: Any) -> tuple[Response, bool]:
        try:
            return await self._handle(scope, protocol), False
        except StatesideError as error:
            wait = [] if error.retry_after_s is None else [("retry-after", str(error.retry_after_s))]
            return Response(error.problem(), status=error.status, headers=wait), True
        except Exception:
            log.exception("%s %s failed", scope.method, scope.path)
            return Response(
                StatesideError("This request failed; the server's log has the cause").problem(), status=500
            ), True

    def _holder(self, scope: Any) -> Holder:
        return OPERATOR if self._tokens is None else self._tokens.holder(scope.headers.get("authorization"))

    async def _handle(self, scope: Any, protocol: Any) -> Response:
        path, query = scope.path, scope.query_string
        if len(path) + len(query) > PATH_CHARS_MAX:
            raise RequestInvalid(f"The address has more than {PATH_CHARS_MAX} characters")
        route, taken, holder = self._found(scope)
        pairs = parse_qsl(query, keep_blank_values=True)
        keys = tuple(value for name, value in pairs if name == "key")
        route.check_parameters(dict(pairs))
        parameters = {name: value for name, value in pairs if name != "key"}
        body = await _body(protocol, route.body.bytes_max) if route.body is not None else b""
        request = Request(taken, keys, parameters, self._views, holder, scope.headers, body, protocol.client_disconnect)
        return await route.handler(request)

    def _found(self, scope: Any) -> tuple[Route, tuple[str, ...], Holder]:
        """The route that fits, what its names stand for, and who asks, if they may."""
        parts = scope.path.removeprefix("/").split("/")  # Granian has decoded it already
        fitting = [(route, taken) for route in self._routes if (taken := route.match(parts)) is not None]
        holder = OPERATOR if fitting and fitting[0][0].reach == "anyone" else self._holder(scope)
        if not fitting:
            holder.require("operator")
            shown = scope.path[:200]
            raise RouteUnknown(f"There is nothing at {shown!r}", next_step="GET /v1/views lists what is served")
        method = "GET" if scope.method == "HEAD" else scope.method
        for route, taken in fitting:
            route.check(holder, taken)
            if route.method == method:
                return route, taken, holder
        there = " or ".join(sorted({route.method for route, _ in fitting}))
        raise MethodInvalid(f"{scope.method} is not possible at {scope.path[:200]!r}", next_step=f"Use {there}")


async def _body(protocol: Any, bytes_max: int) -> bytes:
    """The request's body; BodyTooLarge as soon as it is longer than this."""
    parts: list[bytes] = []
    size = 0
    async for part in protocol:
        size += len(part)
        if size > bytes_max:
            raise BodyTooLarge(f"The body has more than {bytes_max:,} bytes", next_step="Send it in several requests")
        parts.append(bytes(part))
    return b"".join(parts)


async def _send(protocol: Any, status: int, headers: list[tuple[str, str]], stream: Stream) -> None:
    """Send a stream's parts, each at once, until it ends or the client goes away."""
    try:
        transport = protocol.response_stream(status, [("content-type", stream.kind), *headers])
        async for part in stream.parts:
            await transport.send_bytes(part)
    except Exception:  # not told to Granian: it would keep the connection open, and the client waiting
        log.exception("A stream broke off")
    finally:
        close = getattr(stream.parts, "aclose", None)
        if close is not None:
            await close()
