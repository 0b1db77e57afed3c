"""The ASGI application: dispatches requests to handlers, and turns answers and errors into HTTP responses.

The routes (`view_routes` and those that an application adds) are also the source of the OpenAPI document. Errors are
RFC 9457 problem documents with the codes of `core.errors`. The guard (`access`) identifies the principal and applies
the limits: where the folder has keys, every request needs a token, except on routes for anyone.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qsl

from starlette.types import Scope

from stateside.core.errors import MethodInvalid, Misdirected, RequestInvalid, RouteUnknown, StatesideError, TokenInvalid
from stateside.serving.access.guard import Guard, Visit
from stateside.serving.access.hosts import security_headers
from stateside.serving.access.position_codec import PositionCodec
from stateside.serving.access.principal import Principal
from stateside.serving.changes.feed import Feeds
from stateside.serving.fast_path.answer import FastPath
from stateside.serving.health import logs
from stateside.serving.health.logs import Trace
from stateside.serving.health.metrics import Metrics
from stateside.serving.registry.announcer import Announcer, Identity, Servers
from stateside.serving.registry.location import location
from stateside.serving.rows.view_readers import ViewReaders
from stateside.serving.web.changes_routes import changes_routes
from stateside.serving.web.connection import Connections, reported
from stateside.serving.web.openapi import openapi_route
from stateside.serving.web.operator_routes import health_routes, place_routes
from stateside.serving.web.request import PATH_CHARS_MAX, Call, Receive, Request, Send
from stateside.serving.web.response import NOT_MODIFIED, Response, as_json, send, validated
from stateside.serving.web.route import Route
from stateside.serving.web.view_routes import DESCRIPTION_ROUTES, VIEW_ROUTES

_REPEATED = ("key", "where")  # parameters that may be repeated

log = logging.getLogger(__name__)


class Application:
    """One instance per worker process; `connections` are the worker's."""

    def __init__(
        self,
        views: ViewReaders,
        routes: Sequence[Route] = (),
        *,
        guard: Guard,
        identity: Identity | None = None,
        connections: Connections | None = None,
    ) -> None:
        self._views, self._guard = views, guard
        self._metrics, self._feeds, self.connections = Metrics(), Feeds(views), connections or Connections()
        self.fast_path = FastPath(views, guard, self._metrics)
        self.connections.fast_path, self.connections.stop = self.fast_path.connect, self._feeds.stop
        self.routes = [*health_routes(self._metrics), *VIEW_ROUTES, *DESCRIPTION_ROUTES]
        self.routes += [*changes_routes(self._feeds), *routes]
        self._servers = None if identity is None else Servers(identity.folder)
        self._announcer = None if identity is None else Announcer(identity, views)
        if self._servers is not None and identity is not None:
            self.routes += place_routes(self._servers, identity.name)
        self.routes.append(openapi_route(self.routes))
        self._by_parts: dict[int, Sequence[Route]] = {}  # few entries: the length of a path is limited

    async def __call__(self, scope: Scope, receive: Receive, send_: Send) -> None:
        """Called by the server for each request, and once when the worker starts."""
        if scope["type"] == "lifespan":
            scope["state"]["connections"] = self.connections
            await self._live(receive, send_)
        else:
            await self._answer(Call(scope, receive, reported(scope, send_)))

    async def _live(self, receive: Receive, send_: Send) -> None:
        """Announce the server and watch connections, from the worker's start to its end."""
        running = [self.connections.run()] + ([] if self._announcer is None else [self._announcer.run()])
        tasks = [asyncio.ensure_future(each) for each in running]
        for expected in ("startup", "shutdown"):
            assert (await receive())["type"] == f"lifespan.{expected}"
            if expected == "shutdown":
                for task in tasks:
                    task.cancel()
            await send_({"type": f"lifespan.{expected}.complete"})

    async def _answer(self, call: Call) -> None:
        began_s = time.perf_counter()
        with self._guard.visit(call) as visit:
            trace = Trace.of(call.headers.get("traceparent"))
            logs.current.set(trace)  # each request has its own task
            response, problem = await self._respond(visit, call)
            response = replace(response, headers=(*response.headers, trace.header()))
            if response.stream is None:
                await _give(call, response, problem, visit.positions)
            else:
                await send(call, response, response.stream, visit.is_over)
        self._metrics.answered(visit.route, call.method, response.status, time.perf_counter() - began_s)

    async def _respond(self, visit: Visit, call: Call) -> tuple[Response, bool]:
        try:
            return await self._handle(visit, call), False
        except Misdirected as error:
            error.location = await self._location(error)
            return Response(error.problem(), status=error.status), True
        except StatesideError as error:
            visit.refused(error)
            return Response(error.problem(), status=error.status, headers=_headers(error)), True
        except Exception:
            log.exception("%s %s failed", call.method, call.path)
            return Response(
                StatesideError("This request failed; the server's log has the cause").problem(), status=500
            ), True

    async def _location(self, error: Misdirected) -> dict[str, Any] | None:
        """The servers that hold the keys asked for."""
        if self._servers is None:
            return None
        found = await asyncio.to_thread(self._servers.now)
        return location(found, error.view, error.leading, time.time_ns() // 1_000)

    async def _handle(self, visit: Visit, call: Call) -> Response:
        path, query = call.path, call.query_string
        if len(path) + len(query) > PATH_CHARS_MAX:
            raise RequestInvalid(
                f"The address has more than {PATH_CHARS_MAX:,} characters",
                next_step="Ask for many keys with POST …/lookup, whose body has room for them",
            )
        route, taken, holder = self._found(visit, call)
        visit.route = route.pattern
        pairs = parse_qsl(query, keep_blank_values=True)
        keys, wheres = (tuple(value for name, value in pairs if name == each) for each in _REPEATED)
        route.check_parameters(dict(pairs))
        parameters = {name: value for name, value in pairs if name not in _REPEATED}
        body = await call.body(route.body.bytes_max) if route.body is not None else b""
        visit.positions = self._guard.positions(holder)
        request = Request(
            taken, keys, parameters, self._views, holder, call.headers, body, call.left, wheres, visit.positions
        )
        response = (await route.handler(request)).shown(visit.positions)
        return validated(response, call, holder) if route.method == "GET" else response

    def _of(self, parts: int) -> Sequence[Route]:
        """The routes that a path with this number of parts may match."""
        if parts not in self._by_parts:
            self._by_parts[parts] = [route for route in self.routes if route.takes(parts)]
        return self._by_parts[parts]

    def _found(self, visit: Visit, call: Call) -> tuple[Route, tuple[str, ...], Principal]:
        """The matching route, the path parts for its names, and the principal, if admitted."""
        parts = call.path.removeprefix("/").split("/")
        fitting = [(route, taken) for route in self._of(len(parts)) if (taken := route.match(parts)) is not None]
        if not fitting:
            visit.enter().require("operator")
            shown = call.path[:200]
            raise RouteUnknown(f"There is nothing at {shown!r}", next_step="GET /v1/views lists what is served")
        method = "GET" if call.method == "HEAD" else call.method
        route, taken = next((each for each in fitting if each[0].method == method), fitting[0])
        holder = visit.enter(needs_token=route.reach != "anyone")
        route.check(holder, taken)
        if route.method == method:
            return route, taken, holder
        there = sorted({route.method for route, _ in fitting})
        error = MethodInvalid(
            f"{call.method} is not possible at {call.path[:200]!r}", next_step=f"Use {' or '.join(there)}"
        )
        error.allowed = sorted({*there, *(("HEAD",) if "GET" in there else ())})
        raise error


def _headers(error: StatesideError) -> list[tuple[str, str]]:
    """The headers of an error."""
    again = [] if error.retry_after_s is None else [("retry-after", str(error.retry_after_s))]
    if isinstance(error, MethodInvalid):
        return [*again, ("allow", ", ".join(error.allowed))]
    return [*again, ("www-authenticate", "Bearer")] if error.status == TokenInvalid.status else again


async def _give(call: Call, response: Response, problem: bool, positions: PositionCodec) -> None:
    """Send a complete response with the common headers."""
    headers = [*(response.stamps[0].headers() if len(response.stamps) == 1 else ()), *response.headers]
    if response.status == NOT_MODIFIED:
        await call.respond(response.status, [*headers, *security_headers("application/json", response.headers)], None)
        return
    if response.file is None:
        kind = "application/problem+json" if problem else "application/json"
        body = as_json(response.document, positions)
    else:
        kind, body = response.file.kind, response.file.content
        headers += [("content-disposition", f'inline; filename="{response.file.name}"')]
    headers += security_headers(kind, response.headers)
    await call.respond(response.status, [("content-type", kind), *headers], body)
