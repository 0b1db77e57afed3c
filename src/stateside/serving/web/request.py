"""What a handler is given.

A call: one request, as an ASGI server tells it, and the way back to who asked.

What a request asks of a view: by which reader, which rows there are for who asks, how fresh, as of which batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

import orjson

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
from stateside.serving.access.position_codec import PLAIN, PositionCodec
from stateside.serving.access.principal import OPERATOR, Principal
from stateside.serving.rows.floor import AsOf, Floor
from stateside.serving.rows.node_receipts import Sought
from stateside.serving.rows.row_query import LIMIT_MAX, RowQuery
from stateside.serving.rows.scope import Scope
from stateside.serving.rows.view_reader import ViewReader
from stateside.serving.rows.view_readers import WAIT_MS_DEFAULT, WAIT_MS_MAX, ViewReaders

PATH_CHARS_MAX = 4_096
_AGE_MS_MAX = 10**12


async def _stays() -> None:
    """Somebody who never leaves."""
    await asyncio.Event().wait()


@dataclass(frozen=True, slots=True)
class Request:
    """The path's parts that the route left open, the key's parts, the parameters, the body, and who asks.

    `parameters` has only names that the route declares; those that may come several times are `keys` and `wheres`.
    `left` ends when the client goes away before the answer: what takes long waits for it beside its work.
    """

    parts: tuple[str, ...]
    keys: tuple[str, ...]
    parameters: Mapping[str, str]
    views: ViewReaders
    holder: Principal = OPERATOR
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    left: Callable[[], Awaitable[None]] = _stays
    wheres: tuple[str, ...] = ()
    positions: PositionCodec = PLAIN

    def floor(self) -> Floor:
        """The floor that the parameters ask for; PositionAhead if it is known that it cannot be reached."""
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
        """A parameter that is an offset, as `positions.offset` shows it; None if it is not given."""
        if not self.positions.opaque or name not in self.parameters:
            return self.number(name, OFFSET_MAX)
        return self.positions.parse_offset(self.parameters[name])

    def number(self, name: str, largest: int) -> int | None:
        """A parameter that is a whole number; None if it is not given, RequestInvalid if it is none."""
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
        except PositionAhead as error:  # which says where the journal ends
            if not self.positions.opaque:
                raise
            raise PositionAhead("The journal ends before this position", next_step=error.next_step) from None

    def document(self) -> dict[str, Any]:
        """The body, which must be a JSON object; RequestInvalid if it is none."""
        try:
            found = orjson.loads(self.body)
        except orjson.JSONDecodeError as error:
            raise RequestInvalid(f"The body is no JSON: {error}", next_step="Send a JSON object") from None
        if not isinstance(found, dict):
            raise RequestInvalid("The body is no JSON object", next_step='Send one, like {"name": "value"}')
        return found


BODY_S_MAX = 30.0
Headers = Iterable[tuple[str, str]]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
_GONE = "http.disconnect"


class Call:
    """What is asked, by whom, and how to answer: with one `respond`, or with `begin` and then `give` for each part."""

    __slots__ = ("_receive", "_send", "client", "headers", "method", "path", "query_string")

    def __init__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        self._receive, self._send = receive, send
        self.method: str = scope["method"]
        self.path: str = scope["path"]  # decoded already
        self.query_string: str = scope["query_string"].decode("latin-1")
        self.headers: Mapping[str, str] = _by_name(scope["headers"])
        self.client = "{}:{}".format(*(scope["client"] or ("", 0)))

    async def body(self, bytes_max: int) -> bytes:
        """The request's body; BodyTooLarge as soon as it is longer than this, BodyTooSlow if it takes too long."""
        parts: list[bytes] = []
        size, more = 0, True
        try:
            async with asyncio.timeout(BODY_S_MAX):
                while more:
                    message = await self._receive()
                    if message["type"] == _GONE:
                        raise RequestInvalid("The body breaks off", next_step="Send all of it")
                    parts.append(message.get("body", b""))
                    size, more = size + len(parts[-1]), message.get("more_body", False)
                    if size > bytes_max:
                        raise BodyTooLarge(
                            f"The body has more than {bytes_max:,} bytes", next_step="Send several requests"
                        )
        except TimeoutError:
            raise BodyTooSlow(f"The body was not there within {BODY_S_MAX:g} s", next_step="Send it faster") from None
        return b"".join(parts)

    async def left(self) -> None:
        """Wait until the client goes away. Only once there is nothing more of the body to come."""
        while (await self._receive())["type"] != _GONE:
            pass

    async def respond(self, status: int, headers: Headers, body: bytes | None) -> None:
        """Answer, all at once; without a body if it is None, as some statuses must."""
        length = [] if body is None else [("content-length", str(len(body)))]
        await self.begin(status, [*headers, *length])
        await self._send({"type": "http.response.body", "body": body or b"", "more_body": False})

    async def begin(self, status: int, headers: Headers) -> None:
        """Answer part by part from now on."""
        encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        await self._send({"type": "http.response.start", "status": status, "headers": encoded})

    async def give(self, part: bytes, *, more: bool = True) -> None:
        """Send a part, and wait until the client has taken nearly all of it; at once for one who is gone."""
        await self._send({"type": "http.response.body", "body": part, "more_body": more})
        await asyncio.sleep(0)  # a stream that never waits itself is not to keep others from their turn


def _by_name(pairs: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Headers by their names in small letters; those that come several times are joined, as HTTP has it."""
    found: dict[str, str] = {}
    for name, value in pairs:
        text, key = value.decode("latin-1"), name.decode("latin-1")
        found[key] = f"{found[key]}, {text}" if key in found else text
    return found


_BATCH_MAX = 10**18


@dataclass(frozen=True, slots=True)
class ViewRequest:
    """See above; every handler of rows begins with it, so that none forgets the scope."""

    reader: ViewReader
    scope: Scope
    floor: Floor
    as_of: AsOf

    @classmethod
    async def of(cls, request: Request) -> ViewRequest:
        """What is asked of the view that the path's first open part names; AccessDenied if it is out of reach.

        Other errors as for `ViewReaders.get`, but who does not reach all views is not told which there are.
        """
        view, holder, floor = request.parts[0], request.holder, request.floor()
        holder.rows_of(view, holder.where)  # before anything is told of a view that is out of reach
        try:
            reader = await request.views.ready(view, floor)
        except ViewUnknown as error:
            which = error.next_step if reaches_all(holder) else "GET /v1/views lists those that your token reaches"
            raise ViewUnknown(error.what, next_step=which) from None
        scope = Scope.of(reader.shape, holder.rows_of(view, reader.shape.columns.types))
        return cls(reader, scope, floor, AsOf(request.number("as_of", _BATCH_MAX)))

    def question(self, request: Request) -> RowQuery:
        """Which rows are asked for, by the rest of the path and the parameters."""
        parts = [*request.parts[1:], *request.keys]
        limit = request.number("limit", LIMIT_MAX)
        return RowQuery.parse(self.reader, parts, request.wheres, request.parameters, limit)


def reaches_all(holder: Principal) -> bool:
    """Whether all rows of all views are there for this holder."""
    return not holder.is_scoped


def reaches(holder: Principal, views: ViewReaders, view: str) -> bool:
    """Whether this view has rows for this holder; also if it cannot be told yet, before its first batch."""
    try:
        holder.rows_of(view, holder.where)
        if holder.where:
            holder.rows_of(view, views.get(view).shape.columns.types)
    except AccessDenied:
        return False
    except StatesideError:
        return not holder.where
    return True
