"""Routes that tests give to a real server: streams that note in files how far they were asked, and their end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path

from stateside.core.layout import Layout
from stateside.core.storage import write_atomically
from stateside.serving.web import connection
from stateside.serving.web.request import Request
from stateside.serving.web.response import Response, StreamResponse
from stateside.serving.web.route import Route

PART_BYTES = 64 * 1024
STALLED_S = 1.5


def routes(layout: Layout) -> list[Route]:
    """One that says a word and then nothing, and one without end. Who takes nothing is cut off soon."""
    connection.STALLED_S = STALLED_S

    async def idle(request: Request) -> Response:
        return Response({}, stream=StreamResponse("text/plain", _idle(layout.root / "idle")))

    async def flood(request: Request) -> Response:
        return Response({}, stream=StreamResponse("text/plain", _flood(layout.root / "flood")))

    async def broken(request: Request) -> Response:
        return Response({}, stream=StreamResponse("text/plain", _broken()))

    handlers = {"idle": idle, "flood": flood, "broken": broken}
    return [Route(f"/{name}", handler, "", "anyone") for name, handler in handlers.items()]


async def _idle(note: Path) -> AsyncIterator[bytes]:
    try:
        yield b"hello\n"
        await asyncio.Event().wait()
    finally:
        note.write_text("closed")


async def _flood(note: Path) -> AsyncIterator[bytes]:
    try:
        for number in count(1):
            write_atomically(note, b"%d" % number, durable=False)
            yield bytes(PART_BYTES)
    finally:
        write_atomically(note, note.read_bytes() + b" closed", durable=False)


async def _broken() -> AsyncIterator[bytes]:
    yield b"so far\n"
    raise ValueError("a mistake in what makes the parts")
