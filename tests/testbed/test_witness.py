"""The witness of one server counts every request, whatever the server does to it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from stateside.core.positions import Position
from stateside.testbed.system import covering_stamp
from stateside.testbed.witness import Seen, Witness, whole_bill

WAIT_S_MAX = 90.0
STAMPED = b'{"stamp": {"batch": 1, "position": "0:1", "age_ms": 7}, "periods": []}'


@contextmanager
def a_server_that_says(body: bytes, status: int = 200) -> Iterator[str]:
    """The address of a server that gives the same answer to everything."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def asking(url: str) -> Iterator[Seen]:
    witness = Witness([url], 3, 1, [whole_bill])
    witness.start()
    try:
        yield witness.seen
    finally:
        witness.stop()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S_MAX
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def test_stamped_answers_are_counted_with_latency_and_age() -> None:
    with a_server_that_says(STAMPED) as url, asking(url) as seen:
        wait_for(lambda: seen.ages_ms.count >= 3)
    assert seen.failed == 0
    assert seen.ages_ms.quantiles() == {"p50": 7, "p99": 7, "max": 7}
    assert seen.latencies_ms.count == seen.ages_ms.count
    assert seen.stamp is not None and seen.stamp["batch"] == 1


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"<html>no JSON</html>", 200),
        (b"", 502),
        (b'"an error that is no object"', 500),
        (b'{"periods": []}', 200),
        (b'{"stamp": null}', 200),
        (b'{"stamp": {"batch": 1}}', 200),
        (b'{"stamp": {"batch": 1, "age_ms": "old"}}', 200),
        (b"[]", 200),
    ],
)
def test_whatever_is_no_stamped_answer_is_a_failed_request_and_the_next_one_is_asked(body: bytes, status: int) -> None:
    with a_server_that_says(body, status) as url, asking(url) as seen:
        wait_for(lambda: seen.failed >= 3)
    assert seen.latencies_ms.count == seen.ages_ms.count == 0
    assert seen.stamp is None
    assert seen.failures[0]


def test_a_server_that_is_gone_is_a_failed_request_too() -> None:
    with a_server_that_says(STAMPED) as url:
        pass
    with asking(url) as seen:
        wait_for(lambda: seen.failed >= 3)
    assert seen.latencies_ms.count == 0


@pytest.mark.parametrize("body", [b"no JSON", b"{}"])
def test_what_is_no_stamped_answer_does_not_make_it_ready(body: bytes) -> None:
    with a_server_that_says(body) as url:
        assert covering_stamp(url, Position.parse("0:1")) is None
