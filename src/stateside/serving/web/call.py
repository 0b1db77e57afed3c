"""A call: one request, as an ASGI server tells it, and the way back to who asked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import Any

from stateside.errors import BodyTooLarge, BodyTooSlow, RequestInvalid

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
