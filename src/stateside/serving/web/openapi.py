"""The OpenAPI 3.1 document, made of the routes' declarations.

OpenAPI has no name for several parts of a path: for a route's `{key...}` the document has `{key}`, whose parts are
separated by slashes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.metadata import version
from typing import Any

from stateside.core.errors import InputError, OperatingError, StatesideError
from stateside.serving.web.request import Request
from stateside.serving.web.response import JSON, PROBLEM, Response
from stateside.serving.web.route import Parameter, Route

ADDRESS = "/v1/openapi.json"

_NAME = re.compile(r"\{(\w+)(\.\.\.)?\}")
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


def openapi_route(routes: Iterable[Route]) -> Route:
    """The route of the document, which includes the route itself."""

    async def show(request: Request) -> Response:
        return Response(document)

    route = Route(ADDRESS, show, "the document of this interface: OpenAPI 3.1", "anyone")
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
