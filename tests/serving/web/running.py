"""The application on its real connections, in a thread of the test's own process: with its clock, asked by bytes."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from types import TracebackType

from uvicorn.config import Config
from uvicorn.server import Server

from stateside.serving.fast_path import Peer
from stateside.serving.web.application import Application
from stateside.serving.web.connection import UVICORN
from tests.waiting import WAIT_S_MAX

FULL = "x-the-full-path: please\r\n"  # a header that is not plain


class Running:
    """A server of one application; `fast` counts the answers of the fast path."""

    def __init__(self, app: Application) -> None:
        self.fast = 0
        self._answer = app.fast_path.answer
        app.fast_path.answer = self._counted  # type: ignore[method-assign]
        self._server = Server(Config(app, **UVICORN))
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],))

    def _counted(self, asker: Peer, data: bytes) -> bytes | None:
        answer = self._answer(asker, data)
        self.fast += answer is not None
        return answer

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), 30)

    def ask(self, request: str) -> bytes:
        """What one request is answered with, which has a length."""
        with self.connect() as connection:
            connection.sendall(request.encode())
            return received(connection, bodiless=request.startswith("HEAD"))

    def __enter__(self) -> Running:
        self._thread.start()
        deadline_s = time.monotonic() + WAIT_S_MAX
        while not self._server.started:
            assert time.monotonic() < deadline_s
            time.sleep(0.005)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.should_exit = True
        self._thread.join(WAIT_S_MAX)
        assert not self._thread.is_alive()
        asyncio.set_event_loop(None)


def received(connection: socket.socket, *, bodiless: bool = False) -> bytes:
    """The next answer on a connection, all of it."""
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += _more(connection)
    head, _, body = answer.partition(b"\r\n\r\n")
    lines = [line.partition(b": ") for line in head.split(b"\r\n")[1:]]
    size = 0 if bodiless else next((int(value) for name, _, value in lines if name == b"content-length"), 0)
    while len(body) < size:
        body += _more(connection)
    return head + b"\r\n\r\n" + body


def _more(connection: socket.socket) -> bytes:
    part = connection.recv(1 << 16)
    if not part:
        raise ConnectionError("the connection was closed")
    return part
