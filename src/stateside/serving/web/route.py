"""Routes: path patterns with their parameters, bodies, access rules and handlers; and their OpenAPI 3.1 document.

A pattern has fixed parts and names: `{view}` stands for one part of the path, a last `{key...}` for one or more.
OpenAPI has no name for several parts of a path: the document has `{key}`, whose parts are separated by slashes.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, Final, Literal

from starlette.convertors import PathConvertor, StringConvertor, register_url_convertor
from starlette.routing import Match
from starlette.routing import Route as HttpRoute
from starlette.types import ASGIApp, Scope

from stateside.core.errors import InputError, OperatingError, RequestInvalid, SetupError, StatesideError
from stateside.serving.access.principal import ROLES, Principal, Role
from stateside.serving.web.request import Request
from stateside.serving.web.response import JSON, PROBLEM, Response

Handler = Callable[[Request], Awaitable[Response]]
Reach = Role | Literal["customer", "own", "anyone"]
REACHES: Final = (*ROLES, "customer", "own", "anyone")
Schema = Mapping[str, Any]  # JSON Schema, as in OpenAPI 3.1

BODY_BYTES_MAX = 1 << 20
OPENAPI_PATH: Final = "/v1/openapi.json"
_NAME: Final = re.compile(r"\{(\w+)(\.\.\.)?\}")
_PROBLEM = {
    "type": "object",
    "description": "RFC 9457. `type` ends with a stable code.",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string", "examples": ["urn:stateside:problem:key-invalid"]},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "next_step": {"type": "string", "description": "what to do about it"},
    },
}
_TIME = {"type": "string", "format": "date-time"}
_STAMP = {
    "type": "object",
    "description": "What an answer is an answer of.",
    "required": ["view", "batch", "position", "watermark", "committed", "age_ms", "age_basis", "replica", "source"],
    "properties": {
        "view": {"type": "string"},
        "batch": {"type": "integer", "minimum": 0},
        "position": {"type": "string", "examples": ["0:1234"]},
        "watermark": _TIME,
        "committed": _TIME,
        "age_ms": {"type": "integer", "minimum": 0},
        "age_basis": {"enum": ["heartbeat", "commit"]},
        "replica": {"type": "string"},
        "source": {"type": "string"},
    },
}


@dataclass(frozen=True, slots=True)
class Parameter:
    """A query parameter; a `repeated` one may be given several times."""

    name: str
    text: str
    repeated: bool = field(default=False, kw_only=True)
    schema: Schema = field(default_factory=lambda: {"type": "string"}, compare=False)


@dataclass(frozen=True, slots=True)
class Body:
    """A route's request body: its schema, for the OpenAPI document, and its size limit."""

    schema: Schema = field(compare=False)
    bytes_max: int = BODY_BYTES_MAX
    kind: str = JSON


def whole(name: str, text: str, least: int = 0) -> Parameter:
    """A parameter that is a whole number."""
    return Parameter(name, text, {"type": "integer", "minimum": least})


FLOOR = (
    Parameter("min_position", "only if the answer covers this position, an append's receipt: read your own event"),
    whole("max_age_ms", "only if it is no older than this"),
    whole("wait_ms", "for how long to wait until it is so"),
)
SOURCES: Schema = {"type": "string", "enum": ["live", "archive", "both"]}
KEY = Parameter(
    "key", 'a part of the key, for those that cannot stand in a path ("a/b", "..", ""); once for each', repeated=True
)


@dataclass(frozen=True, slots=True)
class Route:
    """One route. `text` is its summary in a line, `answer` and `kinds` describe the answer.

    `reach` is the access rule, and has no default: a role; `customer`: the customer in the first name of the path, and
    principals that may read all customers' data; `own`: role `read`, with the handler checking the owner of the data;
    `anyone`: also without a token. For a scoped token, a handler of `read` and `sql` returns only rows that the
    principal may see (`Principal.rows_of`), a handler of `append` takes only events that the principal may append
    (`check_appends`), and `operator` is never a role. Routes for browsers alone are not `documented`.
    """

    pattern: str
    handler: Handler = field(compare=False)
    text: str
    reach: Reach
    parameters: Sequence[Parameter] = ()
    method: str = "GET"
    body: Body | None = None
    answer: Schema = field(default_factory=lambda: {"type": "object"}, compare=False)
    kinds: Sequence[str] = (JSON,)
    documented: bool = True

    def __post_init__(self) -> None:
        assert self.reach in REACHES, f"{self.pattern}: there is no reach {self.reach!r}"
        names = _NAME.findall(self.pattern)
        assert self.reach != "customer" or names[0][0] == "customer", f"{self.pattern}: its first name is no customer"

    def check(self, holder: Principal, taken: Sequence[str]) -> None:
        """AccessDenied if the principal may not use this route."""
        match self.reach:
            case "customer":
                holder.require("read")
                holder.require_customer(taken[0])
            case "own":
                holder.require("read")
            case "anyone":
                pass
            case role:
                holder.require(role)

    def check_parameters(self, given: Mapping[str, str]) -> None:
        """RequestInvalid for a parameter unknown to this route."""
        known = {parameter.name for parameter in self.parameters}
        unknown = set(given) - known
        if unknown:
            has = f"There are: {', '.join(sorted(known))}" if known else "This address takes none"
            raise RequestInvalid(f"There is no parameter {min(unknown)[:80]!r}", next_step=has)


class _Part(StringConvertor):
    regex = "[^/]*"


class _Parts(PathConvertor):
    regex = "(?s:.*)"


register_url_convertor("part", _Part())
register_url_convertor("parts", _Parts())


class _Pattern(HttpRoute):
    """Starlette's route, without a match of a line feed after the path (`$`), and with a cheaper mismatch."""

    def __init__(self, pattern: str, endpoint: ASGIApp) -> None:
        path = _NAME.sub(lambda name: f"{{{name[1]}:part{'s' * bool(name[2])}}}", pattern)
        super().__init__(path, endpoint)
        self.path_regex = re.compile(self.path_regex.pattern.removesuffix("$") + r"\Z")
        self._start = path.partition("{")[0]

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        return super().matches(scope) if scope["path"].startswith(self._start) else (Match.NONE, {})


class Routes:
    """The registry of a server's routes: the server's own, the pages' and those of applications."""

    def __init__(self, routes: Iterable[Route] = ()) -> None:
        self._by_pattern: dict[str, dict[str, Route]] = {}
        self.add(routes)

    def add(self, routes: Iterable[Route]) -> None:
        """Register routes; SetupError for a second route of one method and pattern."""
        for route in routes:
            methods = self._by_pattern.setdefault(route.pattern, {})
            if route.method in methods:
                raise SetupError(
                    f"There are two routes {route.method} {route.pattern}", next_step="Give one of them another pattern"
                )
            methods[route.method] = route

    def __iter__(self) -> Iterator[Route]:
        return (route for methods in self._by_pattern.values() for route in methods.values())

    def resources(self, endpoint: Callable[[Mapping[str, Route]], ASGIApp]) -> list[HttpRoute]:
        """Starlette's routes, one per pattern; `endpoint` makes the application for a pattern's routes by method."""
        return [_Pattern(pattern, endpoint(methods)) for pattern, methods in self._by_pattern.items()]


def openapi_route(routes: Iterable[Route]) -> Route:
    """The route of the document, which includes the route itself."""

    async def show(request: Request) -> Response:
        return Response(document)

    route = Route(OPENAPI_PATH, show, "the document of this interface: OpenAPI 3.1", "anyone")
    document = openapi([*routes, route])
    return route


def openapi(routes: Iterable[Route]) -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    for route in (each for each in routes if each.documented):
        address = _NAME.sub(r"{\1}", route.pattern)
        paths.setdefault(address, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Stateside",
            "version": version("stateside"),
            "description": "The state of stream processors as a database. Every answer of a view has a stamp.",
        },
        "paths": paths,
        "components": {
            "schemas": {"Problem": _PROBLEM, "Stamp": _STAMP},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(route: Route) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": _operation_id(route),
        "summary": route.text,
        "parameters": [*_in_path(route), *map(_in_query, route.parameters)],
        "responses": {
            "200": {"description": "the answer", "content": {kind: _content(route, kind) for kind in route.kinds}},
            "default": {
                "description": _codes(),
                "content": {PROBLEM: {"schema": {"$ref": "#/components/schemas/Problem"}}},
            },
        },
        "security": [{}] if route.reach == "anyone" else [{"token": []}],
    }
    if route.body is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {route.body.kind: {"schema": dict(route.body.schema)}},
        }
    return operation


def _content(route: Route, kind: str) -> dict[str, Any]:
    return {"schema": dict(route.answer) if kind == JSON else {"type": "string"}}


def _operation_id(route: Route) -> str:
    words = re.findall(r"\w+", route.pattern.removeprefix("/v1"))
    return "_".join([route.method.lower(), *words])


def _in_path(route: Route) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        | ({"description": "one or more parts, with slashes between them"} if several else {})
        for name, several in _NAME.findall(route.pattern)
    ]


def _in_query(parameter: Parameter) -> dict[str, Any]:
    schema = dict(parameter.schema)
    shown = {"name": parameter.name, "in": "query", "required": False, "description": parameter.text}
    if parameter.repeated:
        return {**shown, "schema": {"type": "array", "items": schema}, "style": "form", "explode": True}
    return {**shown, "schema": schema}


def _codes() -> str:
    """The codes of problem documents."""
    codes = sorted({kind.code for kind in _kinds(StatesideError) if kind not in (InputError, OperatingError)})
    return f"a problem; its type is urn:stateside:problem: and one of {', '.join(codes)}"


def _kinds(kind: type[StatesideError]) -> list[type[StatesideError]]:
    return [kind, *(each for below in kind.__subclasses__() for each in _kinds(below))]
