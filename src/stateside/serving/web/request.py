"""What a handler is given."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from stateside.errors import PositionAhead, RequestInvalid
from stateside.positions import OFFSET_MAX, Position
from stateside.serving.access.holder import OPERATOR, Holder
from stateside.serving.access.position_codec import PLAIN, PositionCodec
from stateside.serving.reading.receipts import Sought
from stateside.serving.reading.views import WAIT_MS_DEFAULT, WAIT_MS_MAX, Floor, Views

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
    views: Views
    holder: Holder = OPERATOR
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
