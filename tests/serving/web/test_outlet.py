"""Streams on a real server: at the client's pace, and closed when the client goes away."""

from __future__ import annotations

import json
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from stateside.core.layout import Layout
from stateside.core.processes import Child, free_port
from stateside.serving.web.connection import UNSENT_BYTES_MAX
from tests.serving.conftest import serving, wait_until_it_answers
from tests.serving.web.application import make_application
from tests.serving.web.streams import PART_BYTES, STALLED_S

pytestmark = pytest.mark.e2e

LEAVING = 12  # of each kind of answer, fast enough that a statement is left in each of its steps

SERVE = (
    f"import sys; sys.path.insert(0, {str(Path(__file__).parents[3])!r})  # for `tests`, here and in the workers\n"
    "from pathlib import Path\n"
    "from stateside.serving.extension import Extension\n"
    "from stateside.serving.server import serve\n"
    "if __name__ == '__main__':\n"
    "    extension = Extension(('tests.serving.web.streams:routes',))\n"
    "    serve(Path(sys.argv[1]), port=int(sys.argv[2]), extension=extension)\n"
)


@dataclass(frozen=True)
class Server:
    folder: Path
    port: int
    child: Child

    def ask(self, path: str, receive_bytes: int = 0) -> socket.socket:
        """A connection that has asked, and reads as little as it likes."""
        asked = socket.socket()
        if receive_bytes:
            asked.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        asked.connect(("127.0.0.1", self.port))
        asked.sendall(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        return asked

    def note(self, name: str) -> str:
        path = self.folder / name
        return path.read_text() if path.exists() else ""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder, port = tmp_path_factory.mktemp("streams"), free_port()
    script = folder / "serve.py"
    script.write_text(SERVE)
    child = Child([sys.executable, str(script), str(folder), str(port)], folder / "server.log")
    try:
        wait_until_it_answers(f"http://127.0.0.1:{port}/healthz", child)
        yield Server(folder, port, child)
    finally:
        child.stop()


def until(done: Callable[[], bool], what: str, wait_s: float = 60.0) -> None:
    deadline_s = time.monotonic() + wait_s
    while not done():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.02)


def test_a_stream_is_closed_when_its_client_goes_away_while_nothing_is_sent(server: Server) -> None:
    asked = server.ask("/idle")
    head = b""
    while b"hello" not in head:
        head += asked.recv(4_096)
    assert server.note("idle") == ""
    asked.close()
    until(lambda: server.note("idle") == "closed", "the stream was not closed")


def test_no_more_is_asked_for_than_the_client_takes_and_who_takes_nothing_is_disconnected(server: Server) -> None:
    asked = server.ask("/flood", receive_bytes=64 * 1024)
    time.sleep(1.0)
    parts = int(server.note("flood"))
    assert parts <= (2 * UNSENT_BYTES_MAX + 1_000_000) / PART_BYTES, "what waits here, and what is under way"
    taken = 0
    while taken < 5_000_000:
        taken += len(asked.recv(1 << 20))
    until(lambda: int(server.note("flood").split()[0]) >= taken / PART_BYTES, "who reads on gets on")
    until(lambda: "closed" in server.note("flood"), "who takes nothing is not kept", STALLED_S + 10)
    asked.settimeout(10)
    with pytest.raises(OSError):
        while asked.recv(1 << 20):
            pass
        raise ConnectionResetError
    assert httpx.get(f"http://127.0.0.1:{server.port}/healthz").status_code == 200


def test_who_asks_by_head_gets_the_headers_of_a_stream_and_may_go_on(server: Server) -> None:
    with httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=30) as client:
        for path in ("/idle", "/flood"):
            answer = client.head(path)
            assert (answer.status_code, answer.headers["content-type"], answer.content) == (200, "text/plain", b"")
        assert client.get("/healthz").status_code == 200


def test_who_leaves_before_the_end_of_an_answer_is_no_error(tmp_path: Path) -> None:
    layout, log = Layout(tmp_path / "application"), tmp_path / "server.log"
    make_application(layout)
    for url in serving(layout, log, "/v1/views/orders/rows/emma"):
        for kind in ("changes", "json", "csv", "arrow"):
            for number in range(LEAVING):
                leave(url, kind, reset=number % 2 == 0, after_bytes=1_000 * (number % 3))
            until(lambda url=url: is_answered(url), "a statement is still under way")  # type: ignore[misc]
    text = log.read_text()
    assert "Traceback" not in text and "ERROR" not in text and "WARNING" not in text, text


def leave(url: str, kind: str, *, reset: bool, after_bytes: int) -> None:
    """Ask for more than is read, and go: in order, or not."""
    sql = "SELECT range, repeat('x', 200) AS text FROM range(300000)"
    body = json.dumps({"sql": sql, "format": kind})
    asked = "GET /v1/views/orders/changes?pulse=1" if kind == "changes" else "POST /v1/sql"
    length = "" if kind == "changes" else f"Content-Length: {len(body)}\r\n"
    address = urlsplit(url)
    with socket.create_connection((address.hostname, address.port), 60) as connection:
        connection.sendall(f"{asked} HTTP/1.1\r\nHost: localhost\r\n{length}\r\n{body if length else ''}".encode())
        if after_bytes and kind != "json":  # whose rows come together, after all
            connection.recv(after_bytes)
        if reset:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def is_answered(url: str) -> bool:
    return httpx.post(f"{url}/v1/sql", json={"sql": "SELECT 1"}, timeout=60).status_code == 200


def test_a_stream_that_fails_breaks_off_and_the_log_says_why(server: Server) -> None:
    with httpx.stream("GET", f"http://127.0.0.1:{server.port}/broken") as answer:
        parts = answer.iter_bytes()
        assert next(parts) == b"so far\n"
        with pytest.raises(httpx.RemoteProtocolError):  # and nobody takes it for whole
            next(parts)
    until(lambda: "a mistake in what makes the parts" in server.child.tail(60), server.child.tail(60))
