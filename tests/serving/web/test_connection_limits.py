"""The limits of a connection, on a transport in memory whose client reads only when told to: no timing, few bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from uvicorn.config import Config
from uvicorn.server import ServerState

from stateside.core.layout import Layout
from stateside.serving.access.guard import Guard
from stateside.serving.rows.view_readers import ViewReaders
from stateside.serving.web.application import Application
from stateside.serving.web.connection import (
    HEAD_BYTES_MAX,
    UNSENT_BYTES_MAX,
    UVICORN,
    WAITING_BYTES_MAX,
    Connection,
)
from stateside.serving.web.request import Request
from stateside.serving.web.response import PART_BYTES, Response
from stateside.serving.web.route import Body, Route
from tests.sizes import not_in_fast

from .conversations import CHUNKED, Received, get, note

LARGE = "x" * 1_000_000
READ_BYTES = 256 * 1024  # the most that uvloop reads at once


class Wire(asyncio.Transport):
    """A transport in memory: `unsent` waits for the client, `taken` was read by the client."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 5), "sockname": ("127.0.0.1", 80)})
        self.unsent, self.taken = bytearray(), Received()
        self.is_open, self.reads, self.unsent_max, self.is_write_paused = True, True, 1 << 40, False
        self.connection: Connection

    def write(self, data: Any) -> None:
        self.unsent += data
        if len(self.unsent) > self.unsent_max and not self.is_write_paused:
            self.is_write_paused = True
            self.connection.pause_writing()

    def take(self) -> tuple[int, ...]:
        """The client reads all that is unsent: the statuses of all answers so far."""
        self.taken.data += bytes(self.unsent)
        self.unsent.clear()
        if self.is_write_paused:
            self.is_write_paused = False
            self.connection.resume_writing()
        return self.taken.answers()

    async def settle(self) -> tuple[int, ...]:
        """The client reads until nothing more comes."""
        before = -1
        while before != len(self.taken.data):
            before = len(self.taken.data)
            for _ in range(20):
                await asyncio.sleep(0)
            self.take()
        return self.taken.answers()

    def close(self) -> None:
        self.is_open = False

    abort = write_eof = close

    def is_closing(self) -> bool:
        return not self.is_open

    def can_write_eof(self) -> bool:
        return True

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.unsent_max = high or 0

    def get_write_buffer_size(self) -> int:
        return len(self.unsent)


class Rooms:
    """Routes: a short answer, a large one, one that waits for `go`, and one that reads a body and waits for `go`."""

    def __init__(self) -> None:
        self.go = asyncio.Event()

    def routes(self) -> list[Route]:
        return [
            Route("/v1/hello", self._hello, "", "anyone"),
            Route("/v1/large", self._large, "", "anyone"),
            Route("/v1/wait", self._wait, "", "anyone"),
            Route("/v1/note", self._wait, "", "anyone", method="POST", body=Body({})),
        ]

    async def _hello(self, request: Request) -> Response:
        return Response({"hello": True})

    async def _large(self, request: Request) -> Response:
        return Response({"large": LARGE})

    async def _wait(self, request: Request) -> Response:
        await self.go.wait()
        return Response({"waited": True})


class Client:
    """A client connected to an application in this event loop."""

    def __init__(self, folder: Path) -> None:
        layout, self.rooms, self.read_bytes = Layout(folder), Rooms(), 0
        self.app = Application(ViewReaders(layout), self.rooms.routes(), guard=Guard.of(layout))
        self.wire = Wire()
        config = Config(self.app, **{**UVICORN, "loop": "asyncio"})
        config.load()
        state = {"connections": self.app.connections}
        self.connection = Connection(config, ServerState(), state, asyncio.get_running_loop())

    def connect(self) -> Client:
        self.wire.connection = self.connection
        self.connection.connection_made(self.wire)
        return self

    def answer_fast(self, answer: bytes) -> None:
        """Answer each read on the fast path so."""
        self.connection._fast_answer = lambda data: answer

    def send(self, text: str) -> None:
        """Send text, in parts as large as a read; what the server does not read any more is lost."""
        data = text.encode()
        for at in range(0, len(data), READ_BYTES):
            if self.wire.reads:
                self.connection.data_received(part := data[at : at + READ_BYTES])
                self.read_bytes += len(part)


def run(folder: Path, scene: Callable[[Client], Awaitable[None]]) -> None:
    async def made() -> None:
        await scene(Client(folder).connect())

    asyncio.run(made())


def test_trailers_are_as_limited_as_a_head(tmp_path: Path) -> None:
    async def scene(client: Client) -> None:
        client.send(note(CHUNKED, "0\r\nX: "))
        for _ in range(HEAD_BYTES_MAX // 1024 + 1):
            await asyncio.sleep(0)
            client.send("x" * 1024)
        assert await client.wire.settle() == (431,)
        assert not client.wire.is_open

    run(tmp_path, scene)


@pytest.mark.parametrize("part", ["1000\r\n" + "x" * 4096 + "\r\n", "1;a=b\r\nx\r\n" * 1_000])
def test_a_long_body_in_chunks_is_not_taken_for_a_head(tmp_path: Path, part: str) -> None:
    async def scene(client: Client) -> None:
        client.rooms.go.set()
        client.send(note(CHUNKED))
        for _ in range(20):
            client.send(part)
            await client.wire.settle()
        client.send("0\r\nX: 1\r\n\r\n")
        assert await client.wire.settle() == (200,)

    run(tmp_path, scene)


def test_the_fast_path_waits_for_a_client_that_reads_nothing(tmp_path: Path) -> None:
    asked, body = 100, "x" * 20_000
    answer = f"HTTP/1.1 203 Fast\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode()

    async def scene(client: Client) -> None:
        client.answer_fast(answer)
        for _ in range(asked):
            client.send(get())
            await asyncio.sleep(0)
        assert len(client.wire.unsent) <= UNSENT_BYTES_MAX + len(answer)
        answers = await client.wire.settle()
        assert (len(answers), set(answers)) == (asked, {200, 203})
        client.send(get())
        assert client.wire.take()[asked:] == (203,), "it is fast again once the client reads"

    run(tmp_path, scene)


def test_a_body_that_nobody_reads_is_not_read_from_the_client_either(tmp_path: Path) -> None:
    async def scene(client: Client) -> None:
        client.send(get() + get("Content-Length: 9999999\r\n", "/v1/wait") + "x" * 200_000)
        assert await client.wire.settle() == (200,)
        client.send("x" * 5_000_000)
        assert client.read_bytes < READ_BYTES
        client.rooms.go.set()
        assert await client.wire.settle() == (200, 200)
        assert client.wire.reads, "to drop the rest of the body"

    run(tmp_path, scene)


@not_in_fast("thousands of requests")
def test_requests_after_a_body_are_not_read_while_too_many_wait(tmp_path: Path) -> None:
    body, later = "x" * 100_000, 3_000

    async def scene(client: Client) -> None:
        client.send(note(f"Content-Length: {len(body)}\r\n", body) + get() * later)
        await client.wire.settle()
        before = client.read_bytes
        for _ in range(20):
            client.send(get() * later)
            await client.wire.settle()
        assert client.read_bytes == before
        client.rooms.go.set()
        assert await client.wire.settle() == (200,) * (1 + later)
        assert client.wire.reads

    run(tmp_path, scene)


@not_in_fast("thousands of requests")
def test_the_bytes_that_wait_are_counted_once_not_at_each_answer(tmp_path: Path) -> None:
    async def scene(client: Client) -> None:
        client.send(get(path="/v1/wait") + get() * 2_000 + note(CHUNKED, "1\r\nx\r\n0\r\n\r\n"))
        await client.wire.settle()
        assert client.connection._waiting_bytes > WAITING_BYTES_MAX
        client.rooms.go.set()
        assert await client.wire.settle() == (200,) * 2_002
        assert (client.connection._waiting_bytes, client.wire.reads) == (0, True)

    run(tmp_path, scene)


def test_nothing_waits_after_a_refusal(tmp_path: Path) -> None:
    async def scene(client: Client) -> None:
        client.send(get(path="/v1/wait") + note(CHUNKED, f"11170\r\n{'x' * 70_000}oops\r\n"))
        await client.wire.settle()
        assert client.connection._waiting_bytes == 0
        client.rooms.go.set()
        assert await client.wire.settle() == (200, 400)
        assert (client.connection._waiting_bytes, client.wire.reads) == (0, True)

    run(tmp_path, scene)


def test_a_large_answer_is_sent_at_the_client_s_pace(tmp_path: Path) -> None:
    async def scene(client: Client) -> None:
        client.send(get(path="/v1/large"))
        for _ in range(100):
            await asyncio.sleep(0)
            assert len(client.wire.unsent) <= UNSENT_BYTES_MAX + PART_BYTES
        assert client.wire.unsent and client.connection._requests, "the answer is under way"
        assert await client.wire.settle() == (200,)
        assert client.wire.taken.data.endswith(LARGE.encode() + b'"}')

    run(tmp_path, scene)
