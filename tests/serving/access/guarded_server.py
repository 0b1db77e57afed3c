"""A real server with tokens, TLS and small limits, and routes that take their time: python guarded_server.py …"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from stateside.core.layout import Layout
from stateside.serving.access.hosts import Certificate
from stateside.serving.access.limits import RateLimits
from stateside.serving.extension import Extension
from stateside.serving.server import serve
from stateside.serving.web.request import Request
from stateside.serving.web.response import File, Response, StreamResponse
from stateside.serving.web.route import Body, Route

RATE_PER_S, RUNNING_MAX, BODY_BYTES_MAX = 50, 4, 1_000


async def slow(request: Request) -> Response:
    await asyncio.sleep(float(request.parameters.get("s", "1")))
    return Response({"who": request.holder.name})


async def echo(request: Request) -> Response:
    return Response({"bytes": len(request.body)})


async def stream(request: Request) -> Response:
    async def parts() -> AsyncIterator[bytes]:
        for _ in range(600):
            yield b": still here\n\n"
            await asyncio.sleep(0.1)

    return Response({}, stream=StreamResponse("text/event-stream", parts()))


async def paper(request: Request) -> Response:
    return Response({}, file=File("application/pdf", b"%PDF", "a.pdf"))


async def broken(request: Request) -> Response:
    raise ZeroDivisionError


def routes(layout: Layout) -> Sequence[Route]:
    from stateside.serving.web.route import Parameter

    return [
        Route("/v1/slow", slow, "", "read", parameters=(Parameter("s", "seconds"),)),
        Route("/v1/echo", echo, "", "append", method="POST", body=Body({}, BODY_BYTES_MAX)),
        Route("/v1/echo", slow, "", "sql"),
        Route("/v1/echo", echo, "", "anyone", method="PUT"),
        Route("/v1/stream", stream, "", "read"),
        Route("/v1/paper", paper, "", "read"),
        Route("/v1/broken", broken, "", "read"),
        Route("/v1/customers/{customer}/thing", slow, "", "customer", parameters=(Parameter("s", "seconds"),)),
    ]


if __name__ == "__main__":
    folder, port, *pair = sys.argv[1:]
    serve(
        Path(folder),
        port=int(port),
        address="0.0.0.0" if pair else "127.0.0.1",
        certificate=Certificate(*map(Path, pair)) if pair else None,
        limits=RateLimits(RATE_PER_S, RUNNING_MAX),
        extension=Extension(("guarded_server:routes",)),
    )
