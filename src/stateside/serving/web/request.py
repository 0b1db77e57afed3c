"""Requests: the call as it arrived, the parsed request for a handler, and the view request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import orjson
from starlette.datastructures import QueryParams
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.types import Receive
from starlette.types import Scope as CallScope

from stateside.core.errors import (
    AccessDenied,
    BodyTooLarge,
    BodyTooSlow,
    PositionAhead,
    RequestInvalid,
    StatesideError,
    ViewUnknown,
)
from stateside.core.positions import OFFSET_MAX, Position
from stateside.serving.access.guard import Guard
from stateside.serving.access.position_codec import PLAIN, PositionCodec
from stateside.serving.access.principal import OPERATOR, Principal
from stateside.serving.changes.feed import Feeds
from stateside.serving.health.logs import Trace
from stateside.serving.rows.floor import AsOf, Floor, Sought
from stateside.serving.rows.relation import Relation
from stateside.serving.rows.row_query import LIMIT_MAX, Cursor, RowQuery
from stateside.serving.rows.view_readers import WAIT_MS_DEFAULT, WAIT_MS_MAX, ViewReaders

PATH_CHARS_MAX = 4_096
BODY_S_MAX = 30.0
_AGE_MS_MAX = 10**12
_NO_PARAMS: Final = QueryParams()


async def _stays() -> None:
    """A client that never leaves."""
    await asyncio.Event().wait()


@dataclass(frozen=True, slots=True)
class Request:
    """A parsed request, for a handler: open path parts, key parts, parameters, body and principal.

    `parameters` has only names that the route declares; repeated parameters are in `keys` and `wheres`. `left` returns
    when the client leaves before the answer: a slow handler awaits `left` beside its work.
    """

    parts: tuple[str, ...]
    keys: tuple[str, ...]
    parameters: Mapping[str, str]
    views: ViewReaders
    feeds: Feeds
    holder: Principal = OPERATOR
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    left: Callable[[], Awaitable[None]] = _stays
    wheres: tuple[str, ...] = ()
    positions: PositionCodec = PLAIN

    def floor(self) -> Floor:
        """The floor in the parameters; PositionAhead if the position is known to be out of reach."""
        wait_ms = self.number("wait_ms", WAIT_MS_MAX)
        position = self._position()
        return Floor(
            min_position=position,
            max_age_ms=self.number("max_age_ms", _AGE_MS_MAX),
            wait_ms=WAIT_MS_DEFAULT if wait_ms is None else wait_ms,
            sought=None if position is None else self._sought(position),
            positions=self.positions,
        )

    def offset(self, name: str) -> int | None:
        """An offset parameter, as shown by `positions.offset`; None if absent."""
        if not self.positions.opaque or name not in self.parameters:
            return self.number(name, OFFSET_MAX)
        return self.positions.parse_offset(self.parameters[name])

    def number(self, name: str, largest: int) -> int | None:
        """A whole-number parameter; None if absent, RequestInvalid if malformed."""
        text = self.parameters.get(name)
        if text is None:
            return None
        if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= largest):
            raise RequestInvalid(
                f"The parameter {name} is {text[:80]!r}, not a whole number from 0 to {largest}",
                next_step="Give such a number, or leave it out",
            )
        return int(text)

    def _position(self) -> Position | None:
        text = self.parameters.get("min_position")
        return None if text is None else self.positions.decode(Position.parse(text))

    def _sought(self, position: Position) -> Sought | None:
        try:
            return self.views.sought(position)
        except PositionAhead as error:  # the message has the journal's end
            if not self.positions.opaque:
                raise
            raise PositionAhead("The journal ends before this position", next_step=error.next_step) from None

    def generation(self) -> int | None:
        """The generation of the view that is asked for: by number, or by a cursor; None for the present one."""
        cursor = self.parameters.get("cursor")
        if cursor is None:
            return self.number("generation", _GENERATION_MAX)
        return Cursor.generation_of(self.positions.parse_cursor(cursor))

    def document(self) -> dict[str, Any]:
        """The body as a JSON object; RequestInvalid for anything else."""
        try:
            found = orjson.loads(self.body)
        except orjson.JSONDecodeError as error:
            raise RequestInvalid(f"The body is no JSON: {error}", next_step="Send a JSON object") from None
        if not isinstance(found, dict):
            raise RequestInvalid("The body is no JSON object", next_step='Send one, like {"name": "value"}')
        return found


class Call(HttpRequest):
    """A request as it arrived, its visit at the guard, and its trace."""

    def __init__(self, scope: CallScope, receive: Receive, guard: Guard) -> None:
        super().__init__(scope, receive)
        self.visit, self.trace = guard.visit(self), Trace.of(self.headers.get("traceparent"))

    @property
    def path(self) -> str:
        """The path, percent-decoded."""
        return str(self.scope["path"])

    @property
    def query_string(self) -> str:
        return str(self.scope["query_string"].decode("latin-1"))

    @cached_property
    def headers(self) -> dict[str, str]:  # type: ignore[override]
        """The headers by lower-case name: faster than Starlette's, which handlers get."""
        return {name.decode("latin-1"): value.decode("latin-1") for name, value in self.scope["headers"]}

    @property
    def query_params(self) -> QueryParams:
        return QueryParams(self.scope["query_string"]) if self.scope["query_string"] else _NO_PARAMS

    @cached_property
    def parts(self) -> tuple[str, ...]:
        """The path parts for the names in the route's pattern."""
        return tuple(part for value in self.path_params.values() for part in value.split("/"))

    @property
    def peer(self) -> str:
        """The client, as `address:port`."""
        return "{}:{}".format(*(self.client or ("", 0)))

    async def read(self, bytes_max: int) -> bytes:
        """The body; BodyTooLarge as soon as it exceeds the limit, BodyTooSlow after BODY_S_MAX."""
        body = bytearray()
        try:
            async with asyncio.timeout(BODY_S_MAX):
                async for part in self.stream():
                    body += part
                    if len(body) > bytes_max:
                        raise BodyTooLarge(
                            f"The body has more than {bytes_max:,} bytes", next_step="Send several requests"
                        )
        except TimeoutError:
            raise BodyTooSlow(f"The body was not there within {BODY_S_MAX:g} s", next_step="Send it faster") from None
        except ClientDisconnect:
            raise RequestInvalid("The body breaks off", next_step="Send all of it") from None
        return bytes(body)

    async def left(self) -> None:
        """Wait until the client leaves. Call only after the whole body was read."""
        while (await self.receive())["type"] != "http.disconnect":
            pass


_BATCH_MAX = 10**18
_GENERATION_MAX = 10**9


@dataclass(frozen=True, slots=True)
class ViewRequest:
    """A request for a view. Every row handler begins with it, so that none forgets the scope."""

    relation: Relation
    floor: Floor
    as_of: AsOf

    @classmethod
    async def of(cls, request: Request, by: Sequence[str] | None = None) -> ViewRequest:
        """The request for the view in the first open part of the path, or for its rollup; AccessDenied out of scope.

        Other errors as for `ViewReaders.get`, but a scoped principal does not learn which views exist.
        """
        view, holder, floor = request.parts[0], request.holder, request.floor()
        holder.rows_of(view, holder.where)  # first: nothing may be revealed of a view out of scope
        try:
            reader = await request.views.ready(view, floor)
        except ViewUnknown as error:
            which = error.next_step if reaches_all(holder) else "GET /v1/views lists those that your token reaches"
            raise ViewUnknown(error.what, next_step=which) from None
        generation = request.generation()
        if generation is not None:
            reader = request.views.of_generation(view, generation)
        return cls(Relation.of(reader, holder, by), floor, AsOf(request.number("as_of", _BATCH_MAX)))

    def question(self, request: Request) -> RowQuery:
        """The row query in the rest of the path and the parameters."""
        parts = [*request.parts[1:], *request.keys]
        limit = request.number("limit", LIMIT_MAX)
        return RowQuery.parse(self.relation, parts, request.wheres, request.parameters, limit)


def reaches_all(holder: Principal) -> bool:
    """Whether the principal may read all rows of all views."""
    return not holder.is_scoped


def reaches(holder: Principal, views: ViewReaders, view: str) -> bool:
    """Whether the view has rows for this principal; also if unknown, before the first batch."""
    try:
        holder.rows_of(view, holder.where)
        if holder.where:
            holder.rows_of(view, views.get(view).shape.columns.types)
    except AccessDenied:
        return False
    except StatesideError:
        return not holder.where
    return True
