"""HTTP: routes requests to handlers, and turns their answers and errors into responses. A bare RSGI application.

    GET /healthz                               this process answers; the only one that needs no token
    GET /v1/views                              the views that are served, each with its job's state: running, idle,
                                               holding (why), stopped, failed (why), down, or unknown; of a job that is
                                               not ours also those that are refused (why), and a note if it waits
    GET /v1/views/{view}/rows/{key…}           the rows of one key, or of all keys that begin with these parts
    GET /v1/views/{view}/rows?key=…&key=…      the same, for parts that cannot stand in a path ("a/b", "..", "")
    GET /v1/views/{view}/sum/{key…}            the buckets of one key, its parts before the window, combined into a row
        ?from=…&to=…                           over this range, of times on the buckets' borders
        ?last=24h                              over this long, up to `to` or to the newest bucket (see `sums`)
    GET /v1/views/{view}/rollup/{by}/{key…}    the rows added up by some of the key's columns, joined by commas: for one
                                               coarser key, or for all that begin with these parts, or for all; key=… as
                                               above; /rollup alone is the total of all rows. The view declares which
        ?min_position=0:1234                   only if the answer covers this position (read your own event)
        ?max_age_ms=1000                       only if it is no older than this
        ?wait_ms=5000                          for how long to wait until it is so

Errors are RFC 9457 problem documents with the codes of `stateside.errors`. Where the folder has tokens (see `tokens`),
every request needs one; a customer's token reaches the routes that say so, and there that customer's own data.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import parse_qsl

from stateside.errors import KeyInvalid, MethodInvalid, RequestInvalid, RouteUnknown, StatesideError, TokenInvalid
from stateside.positions import Position
from stateside.serving import sums
from stateside.serving.stamp import Stamp
from stateside.serving.tokens import OPERATOR, Holder, TokenFile
from stateside.serving.values import described
from stateside.serving.views import WAIT_MS_DEFAULT, WAIT_MS_MAX, Floor, Views

PATH_CHARS_MAX = 4_096
_AGE_MS_MAX = 10**12
_FLOOR_PARAMETERS = {"min_position", "max_age_ms", "wait_ms"}
_SECURITY_HEADERS = [("x-content-type-options", "nosniff"), ("cache-control", "no-store")]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Request:
    """What a handler is given: the path's parts that the route left open, the key's parts, and the parameters."""

    parts: tuple[str, ...]
    keys: tuple[str, ...]
    parameters: dict[str, str]
    views: Views
    holder: Holder = OPERATOR

    def floor(self, others: Set[str] = frozenset()) -> Floor:
        """The floor that the parameters ask for; RequestInvalid for one that neither it nor `others` has."""
        known = _FLOOR_PARAMETERS | others
        unknown = set(self.parameters) - known
        if unknown:
            raise RequestInvalid(
                f"There is no parameter {min(unknown)[:80]!r}", next_step=f"There are: {', '.join(sorted(known))}"
            )
        position = self.parameters.get("min_position")
        wait_ms = self.number("wait_ms", WAIT_MS_MAX)
        return Floor(
            min_position=None if position is None else Position.parse(position),
            max_age_ms=self.number("max_age_ms", _AGE_MS_MAX),
            wait_ms=WAIT_MS_DEFAULT if wait_ms is None else wait_ms,
        )

    def number(self, name: str, largest: int) -> int | None:
        """A parameter that is a whole number; None if it is not given, RequestInvalid if it is none."""
        text = self.parameters.get(name)
        if text is None:
            return None
        if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= largest):
            raise RequestInvalid(f"The parameter {name} is {text[:80]!r}, not a whole number from 0 to {largest}")
        return int(text)


@dataclass(frozen=True, slots=True)
class File:
    """What is not JSON: its type, its bytes, and the name to keep it by."""

    kind: str
    content: bytes
    name: str


@dataclass(frozen=True, slots=True)
class Response:
    """What a handler gives back: a JSON document, or a file in its place, and the stamps of what it was made from."""

    document: dict[str, Any]
    stamps: Sequence[Stamp] = ()
    status: int = 200
    file: File | None = None


Handler = Callable[[Request], Awaitable[Response]]
Reach = Literal["operator", "customer", "own", "anyone"]


@dataclass(frozen=True, slots=True)
class Route:
    """A `GET` route: fixed parts, `*` for any one part, and a last `**` for any number of parts.

    `reach` says whom it lets in: operators; `customer`: also the one that its first star names; `own`: anybody with
    a token, the handler looks whose data it is; `anyone`: also without a token.
    """

    pattern: str
    handler: Handler = field(compare=False)
    reach: Reach = "operator"

    def check(self, holder: Holder, taken: Sequence[str]) -> None:
        """AccessDenied if this holder may not ask for this."""
        if self.reach == "operator":
            holder.require_operator()
        elif self.reach == "customer":
            holder.require_customer(taken[0])

    def match(self, parts: Sequence[str]) -> tuple[str, ...] | None:
        """The parts that the stars stand for, if the route fits."""
        fixed = self.pattern.strip("/").split("/")
        taken: list[str] = []
        for index, name in enumerate(fixed):
            if name == "**":
                return (*taken, *parts[index:]) if len(parts) > index else None
            if index >= len(parts) or name not in ("*", parts[index]):
                return None
            if name == "*":
                taken.append(parts[index])
        return tuple(taken) if len(parts) == len(fixed) else None


async def _health(request: Request) -> Response:
    return Response({"status": "ok"})


async def _views(request: Request) -> Response:
    note = request.views.note()
    return Response({"views": request.views.states(), **({"note": note} if note else {})})


async def _rows(request: Request) -> Response:
    view, *in_path = request.parts
    floor = request.floor()
    reader = await request.views.ready(view, floor)
    key = reader.shape.parse_key([*in_path, *request.keys])
    if not key and reader.shape.key_parts:
        parts = described(reader.shape.key_parts)
        raise KeyInvalid(f"The rows of {view!r} are asked for by key", next_step=f"Its parts are: {parts}")
    answer = await reader.rows(key, floor)
    return Response({"stamp": answer.stamp.as_dict(), "rows": answer.rows, "cursor": None}, [answer.stamp])


async def _sum(request: Request) -> Response:
    view, *in_path = request.parts
    floor, span = request.floor(sums.PARAMETERS), sums.Span.parse(request.parameters)
    reader = await request.views.ready(view, floor)
    answer = await reader.sum(reader.shape.parse_key([*in_path, *request.keys]), span, floor)
    document = {"rows": answer.rows, "range": answer.range, "buckets": answer.buckets}
    return Response({"stamp": answer.stamp.as_dict(), **document}, [answer.stamp])


async def _rollup(request: Request) -> Response:
    view, *in_path = request.parts
    columns, *parts = in_path or [""]
    floor = request.floor()
    reader = await request.views.ready(view, floor)
    answer = await reader.rollup(columns.split(",") if columns else [], [*parts, *request.keys], floor)
    return Response({"stamp": answer.stamp.as_dict(), "rows": answer.rows, "cursor": None}, [answer.stamp])


ROUTES = [
    Route("/healthz", _health, "anyone"),
    Route("/v1/views", _views),
    Route("/v1/views/*/rows", _rows),
    Route("/v1/views/*/rows/**", _rows),
    Route("/v1/views/*/sum", _sum),
    Route("/v1/views/*/sum/**", _sum),
    Route("/v1/views/*/rollup", _rollup),
    Route("/v1/views/*/rollup/**", _rollup),
]


class Application:
    """The RSGI application: one for each worker process."""

    def __init__(self, views: Views, routes: Sequence[Route] = (), tokens: TokenFile | None = None) -> None:
        self._views, self._tokens = views, tokens
        self._routes = [*ROUTES, *routes]

    async def __rsgi__(self, scope: Any, protocol: Any) -> None:
        """Called by Granian for each request."""
        response, problem = await self._respond(scope)
        kind = "application/problem+json" if problem else "application/json"
        headers = response.stamps[0].headers() if len(response.stamps) == 1 else []
        headers += [("www-authenticate", "Bearer")] if response.status == TokenInvalid.status else []
        if response.file is None:
            body = json.dumps(response.document, separators=(",", ":")).encode()
        else:
            kind, body = response.file.kind, response.file.content
            headers += [("content-disposition", f'inline; filename="{response.file.name}"')]
        protocol.response_bytes(response.status, [("content-type", kind), *headers, *_SECURITY_HEADERS], body)

    async def _respond(self, scope: Any) -> tuple[Response, bool]:
        try:
            return await self._handle(scope), False
        except StatesideError as error:
            return Response(error.problem(), status=error.status), True
        except Exception:
            log.exception("%s %s failed", scope.method, scope.path)
            return Response(
                StatesideError("This request failed; the server's log has the cause").problem(), status=500
            ), True

    def _holder(self, scope: Any) -> Holder:
        return OPERATOR if self._tokens is None else self._tokens.holder(scope.headers.get("authorization"))

    async def _handle(self, scope: Any) -> Response:
        method, path, query = scope.method, scope.path, scope.query_string
        if len(path) + len(query) > PATH_CHARS_MAX:
            raise RequestInvalid(f"The address has more than {PATH_CHARS_MAX} characters")
        parts = path.removeprefix("/").split("/")  # Granian has decoded it already
        pairs = parse_qsl(query, keep_blank_values=True)
        keys = tuple(value for name, value in pairs if name == "key")
        parameters = {name: value for name, value in pairs if name != "key"}
        found = next(((route, taken) for route in self._routes if (taken := route.match(parts)) is not None), None)
        holder = OPERATOR if found and found[0].reach == "anyone" else self._holder(scope)
        if found is None:
            holder.require_operator()
            raise RouteUnknown(f"There is nothing at {path[:200]!r}", next_step="GET /v1/views lists what is served")
        route, taken = found
        route.check(holder, taken)
        if method not in ("GET", "HEAD"):
            raise MethodInvalid(f"{method} is not possible at {path[:200]!r}", next_step="Use GET")
        return await route.handler(Request(taken, keys, parameters, self._views, holder))
