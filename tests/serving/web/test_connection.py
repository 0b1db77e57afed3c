"""A connection: each request is answered once, in its order, and no byte of one is taken for another."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from stateside.core.layout import Layout
from stateside.serving.access.guard import Guard
from stateside.serving.access.tokens import Issuer
from stateside.serving.rows.view_readers import ViewReaders
from stateside.serving.web.application import Application
from stateside.serving.web.request import Request
from stateside.serving.web.response import Response, StreamResponse
from stateside.serving.web.route import Body, Route
from tests.sizes import sized

from .conversations import CONVERSATIONS, Conversation, Result, converse, get
from .running import Running

CUTS = sized(2, 60)  # of each conversation, into two packets
NOTE_BYTES_MAX = 1_000


class Rooms:
    """The routes that conversations are about; it knows which canaries were executed."""

    def __init__(self) -> None:
        self.canaries: set[str] = set()
        self.claimed: set[str] = set()
        self.left = threading.Event()

    def routes(self) -> list[Route]:
        body = Body({}, NOTE_BYTES_MAX)
        return [
            Route("/v1/hello", self._hello, "", "anyone"),
            Route("/v1/next", self._next, "", "anyone"),
            Route("/v1/slow", self.slow, "", "anyone"),
            Route("/v1/note", self._hello, "", "anyone", method="POST", body=body),
            Route("/v1/locked", self._hello, "", "append", method="POST", body=body),
            Route("/v1/stream", self._stream, "", "anyone"),
            Route("/v1/cookies", self._cookies, "", "anyone"),
            Route("/v1/canary/{name}", self._canary, "", "anyone"),
        ]

    async def _hello(self, request: Request) -> Response:
        self.claimed |= {value for name, value in request.headers.items() if name == "x-who"}
        return Response({"hello": True})

    async def _next(self, request: Request) -> Response:
        return Response({"next": True})

    async def slow(self, request: Request) -> Response:
        """An answer that takes long enough for what a client sends next."""
        await asyncio.sleep(0.05)
        return Response({"slow": True})

    async def _cookies(self, request: Request) -> Response:
        return Response({"cookies": request.headers["cookie"], "others": request.headers["x-other"]})

    async def _canary(self, request: Request) -> Response:
        self.canaries.add(request.parts[0])
        return Response({"canary": True})

    async def _stream(self, request: Request) -> Response:
        async def parts() -> AsyncIterator[bytes]:
            try:
                yield b"so far\n"
                await asyncio.Event().wait()
            finally:
                self.left.set()

        return Response({}, stream=StreamResponse("text/plain", parts()))


class Held:
    """All conversations, held at once: what came of each, by its name and where it was cut."""

    def __init__(self, port: int) -> None:
        self._cuts = {each.name: [None, *_cuts(len(each.sent))] for each in CONVERSATIONS}
        asked = [(each, cut) for each in CONVERSATIONS for cut in self._cuts[each.name]]
        with ThreadPoolExecutor(32) as threads:
            results = threads.map(lambda pair: converse(port, *_named(*pair)), asked)
            self._results = dict(zip(((each.name, cut) for each, cut in asked), results, strict=True))

    def results(self, conversation: Conversation) -> dict[str, Result]:
        """By the canary's name, of which each has one of its own."""
        return {
            _named(conversation, cut)[1]: self._results[conversation.name, cut] for cut in self._cuts[conversation.name]
        }


def _cuts(length: int) -> list[int]:
    return sorted({1 + place * (length - 2) // CUTS for place in range(CUTS)})


def _named(conversation: Conversation, cut: int | None) -> tuple[Conversation, str, int | None]:
    number = CONVERSATIONS.index(conversation)
    return conversation, f"{number:03}{cut or 0:05}"[:8], cut


@pytest.fixture(scope="module")
def rooms() -> Rooms:
    return Rooms()


@pytest.fixture(scope="module")
def running(rooms: Rooms, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    layout = Layout(tmp_path_factory.mktemp("connection"))
    Issuer(layout).create("somebody")
    with Running(Application(ViewReaders(layout), rooms.routes(), guard=Guard.of(layout))) as running:
        yield running


@pytest.fixture(scope="module")
def held(running: Running) -> Held:
    return Held(running.port)


@pytest.mark.parametrize("conversation", CONVERSATIONS, ids=str)
def test_however_it_is_cut_each_request_is_answered_once_and_nothing_else_is(
    held: Held, rooms: Rooms, conversation: Conversation
) -> None:
    for canary, result in held.results(conversation).items():
        assert (canary, result) == (canary, Result(conversation.answers, conversation.closes))
        assert (canary in rooms.canaries) == conversation.canary


def test_what_stands_after_a_body_is_no_header(held: Held, rooms: Rooms) -> None:
    assert rooms.claimed == set()


def test_a_stream_ends_when_its_client_leaves_although_the_client_has_asked_again(
    running: Running, rooms: Rooms
) -> None:
    with running.connect() as connection:
        connection.sendall(get(path="/v1/stream").encode() + get().encode())
        assert connection.recv(1_000)
    assert rooms.left.wait(30)


def test_cookies_on_several_lines_are_one_list_of_cookies(running: Running) -> None:
    lines = "Cookie: a=1\r\nX-Other: 1\r\ncookie: b=2; c=3\r\nX-Other: 2\r\n"
    assert running.ask(get(lines, "/v1/cookies")).endswith(b'{"cookies":"a=1; b=2; c=3","others":"1, 2"}')
