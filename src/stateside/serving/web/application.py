"""The ASGI application: dispatches requests to handlers, and turns answers and errors into HTTP responses.

The routes (`view_routes` and those that an application adds) are also the source of the OpenAPI document. Errors are
RFC 9457 problem documents with the codes of `core.errors`. The guard (`access`) identifies the principal and applies
the limits: where the folder has keys, every request needs a token, except on routes for anyone.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import Response as HttpResponse
from starlette.routing import Router
from starlette.types import Receive, Scope, Send

from stateside.core.errors import MethodInvalid, Misdirected, RequestInvalid, RouteUnknown, StatesideError, TokenInvalid
from stateside.core.extras import package_missing
from stateside.serving.access.guard import Guard
from stateside.serving.access.principal import Principal
from stateside.serving.changes.feed import Feeds
from stateside.serving.changes.sse import EVENTS
from stateside.serving.fast_path import FastPath
from stateside.serving.health import logs
from stateside.serving.health.metrics import Measure, Metrics
from stateside.serving.health.tallies import Gauge
from stateside.serving.registry.announcer import Announcer, Identity, Servers
from stateside.serving.registry.location import location
from stateside.serving.rows.view_readers import ViewReaders
from stateside.serving.web.connection import Connections, reported
from stateside.serving.web.operator_routes import health_routes, place_routes
from stateside.serving.web.request import PATH_CHARS_MAX, Call, Request
from stateside.serving.web.response import JSON, Response, as_http, validated
from stateside.serving.web.route import Route, Routes, openapi_route
from stateside.serving.web.view_routes import VIEW_ROUTES

log = logging.getLogger(__name__)


class Application:
    """One instance per worker process; `connections` are the worker's."""

    def __init__(
        self,
        views: ViewReaders,
        routes: Iterable[Route] = (),
        *,
        guard: Guard,
        identity: Identity | None = None,
        connections: Connections | None = None,
        measures: Sequence[Measure] = (),
    ) -> None:
        self._views, self.guard = views, guard
        self._metrics, self._feeds, self.connections = Metrics(measures), Feeds(views), connections or Connections()
        self.fast_path = FastPath(views, guard, self._metrics)
        self.connections.fast_path, self.connections.stop = self.fast_path.connect, self._feeds.stop
        self._servers = None if identity is None else Servers(identity.folder)
        self._announcer = None if identity is None else Announcer(identity, views)
        self.routes = Routes([*health_routes(self._metrics, views.folder), *VIEW_ROUTES, *routes])
        if self._servers is not None and identity is not None:
            self.routes.add(place_routes(self._servers, identity.name))
        self.routes.add([openapi_route(self.routes)])
        resources = self.routes.resources(lambda routes: _Resource(self, routes))
        self._router = Router(resources, redirect_slashes=False, default=_Resource(self, {}), lifespan=self._live)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Called by the server for each request, and once when the worker starts."""
        await self._router(scope, receive, reported(scope, send))

    @asynccontextmanager
    async def _live(self, app: object) -> AsyncIterator[dict[str, Any]]:
        """Announce the server and watch connections, from the worker's start to its end."""
        running = [self.connections.run()] + ([] if self._announcer is None else [self._announcer.run()])
        tasks = [asyncio.ensure_future(each) for each in running]
        yield {"connections": self.connections}
        for task in tasks:
            task.cancel()

    async def answer(self, call: Call, routes: Mapping[str, Route], send: Send) -> None:
        """Answer a request at a path pattern with these routes by method."""
        began_s = time.perf_counter()
        with call.visit, self._under_way(call, routes.get(call.method)):
            logs.current.set(call.trace)  # each request has its own task
            response = await self._respond(call, routes)
            await response(call.scope, call.receive, send)
        self._metrics.answered(call.visit.route, call.method, response.status_code, time.perf_counter() - began_s)

    def _under_way(self, call: Call, route: Route | None) -> AbstractContextManager[None]:
        if route is not None and EVENTS in route.kinds and JSON not in call.headers.get("accept", ""):
            return self._metrics.under_way(Gauge.WATCHERS)
        if route is not None and route.reach == "sql" and route.method == "POST":
            return self._metrics.under_way(Gauge.SQL_STATEMENTS)
        return nullcontext()

    async def _respond(self, call: Call, routes: Mapping[str, Route]) -> HttpResponse:
        try:
            return as_http(await self._handle(call, routes), call)
        except Misdirected as error:
            error.location = await self._location(error)
            return _problem(error, call)
        except StatesideError as error:
            call.visit.refused(error)
            return _problem(error, call)
        except Exception as error:
            missing = package_missing(error) if isinstance(error, ModuleNotFoundError) else None
            if missing is not None:
                return _problem(missing, call)
            log.exception("%s %s failed", call.method, call.path)
            return _problem(StatesideError("This request failed; the server's log has the cause"), call)

    async def _location(self, error: Misdirected) -> dict[str, Any] | None:
        """The servers that hold the keys asked for."""
        if self._servers is None:
            return None
        found = await asyncio.to_thread(self._servers.now)
        return location(found, error.view, error.leading, time.time_ns() // 1_000)

    async def _handle(self, call: Call, routes: Mapping[str, Route]) -> Response:
        if len(call.path) + len(call.query_string) > PATH_CHARS_MAX:
            raise RequestInvalid(
                f"The address has more than {PATH_CHARS_MAX:,} characters",
                next_step="Ask for many keys with POST …/lookup, whose body has room for them",
            )
        route, holder = _admitted(call, routes)
        call.visit.positions = positions = self.guard.positions(holder)
        query = call.query_params
        route.check_parameters(query)
        parameters = {name: value for name, value in query.items() if name not in ("key", "where")}
        keys, wheres = tuple(query.getlist("key")), tuple(query.getlist("where"))
        body = b"" if route.body is None else await call.read(route.body.bytes_max)
        request = Request(
            call.parts,
            keys,
            parameters,
            self._views,
            self._feeds,
            holder,
            Headers(scope=call.scope),
            body,
            call.left,
            wheres,
            call.visit.positions,
        )
        response = (await route.handler(request)).shown(positions)
        return validated(response, call, holder) if route.method == "GET" else response


@dataclass(frozen=True, slots=True)
class _Resource:
    """A path pattern with its routes by method, as an ASGI application; without routes, any unknown path."""

    application: Application
    routes: Mapping[str, Route]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.application.answer(Call(scope, receive, self.application.guard), self.routes, send)


def _admitted(call: Call, routes: Mapping[str, Route]) -> tuple[Route, Principal]:
    """The route of the call's method, and the principal, if admitted."""
    if not routes:
        call.visit.enter().require("operator")
        shown = call.path[:200]
        raise RouteUnknown(f"There is nothing at {shown!r}", next_step="GET /v1/views lists what is served")
    method = "GET" if call.method == "HEAD" else call.method
    route = routes.get(method) or next(iter(routes.values()))
    call.visit.route = route.pattern  # of refusals too
    holder = call.visit.enter(needs_token=route.reach != "anyone")
    route.check(holder, call.parts)
    if route.method == method:
        return route, holder
    error = MethodInvalid(
        f"{call.method} is not possible at {call.path[:200]!r}", next_step=f"Use {' or '.join(sorted(routes))}"
    )
    error.allowed = sorted({*routes, *(("HEAD",) if "GET" in routes else ())})
    raise error


def _problem(error: StatesideError, call: Call) -> HttpResponse:
    return as_http(Response(error.problem(), status=error.status, headers=_headers(error)), call)


def _headers(error: StatesideError) -> list[tuple[str, str]]:
    """The headers of an error."""
    again = [] if error.retry_after_s is None else [("retry-after", str(error.retry_after_s))]
    if isinstance(error, MethodInvalid):
        return [*again, ("allow", ", ".join(error.allowed))]
    return [*again, ("www-authenticate", "Bearer")] if error.status == TokenInvalid.status else again
