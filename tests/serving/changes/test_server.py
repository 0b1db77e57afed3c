"""Watching over HTTP, on a real server: Spark's part is played, the tail, the workers and the clients are real."""

from __future__ import annotations

import json
import re
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from benchmarks.played_spark import PlayedSpark, compressed, key_rows
from stateside.core.layout import Layout
from stateside.core.processes import Child, free_port
from stateside.serving.clients import Client as Asking
from tests.serving.changes.watched import ROLLUPS, VIEW, Follower, Told
from tests.serving.conftest import wait_until_it_answers
from tests.waiting import WAIT_S_MAX

pytestmark = pytest.mark.e2e

ACCOUNTS = 2_000
KEY = ("account", "kind")


@dataclass
class Server:
    """A server that can be started again at the same address, and the job behind it."""

    layout: Layout
    spark: PlayedSpark
    port: int
    log: Path
    child: Child | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1/views/{VIEW}/changes"

    def start(self) -> None:
        arguments = ["serve", "--dir", str(self.layout.root), "--port", str(self.port)]
        self.child = Child([sys.executable, "-m", "stateside", *arguments], self.log)
        wait_until_it_answers(f"http://127.0.0.1:{self.port}/v1/views/{VIEW}/rows/1", self.child)

    def stop(self) -> float:
        """Stop it, and say how long that took."""
        assert self.child is not None
        begun_s = time.monotonic()
        self.child.stop()
        return time.monotonic() - begun_s

    def put(self, accounts: list[int], change: int) -> int:
        """A batch in which these accounts' rows become others; its number."""
        self.spark.commit(self.spark.changelogs(np.array(accounts, dtype=np.int64), change))
        return self.spark.batch

    def delete(self, accounts: list[int]) -> int:
        """A batch in which these accounts' rows go."""
        rows = [b"\0" + bytes(row) for row in key_rows(np.array(accounts, dtype=np.int64))]
        content = b"".join(struct.pack(">i", len(row)) + row + struct.pack(">i", -1) for row in rows)
        self.spark.commit([compressed(content + b"\xff" * 4)])
        return self.spark.batch


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    layout = Layout(tmp_path_factory.mktemp("watched"))
    spark = PlayedSpark(layout.view(VIEW), rollups=ROLLUPS)
    server = Server(layout, spark, free_port(), layout.root / "server.log")
    server.put(list(range(ACCOUNTS)), 0)
    server.start()
    yield server
    server.stop()


@dataclass
class Client:
    """Watches with httpx, in a thread."""

    url: str
    parameters: list[tuple[str, str | int | float | bool | None]] = field(default_factory=list)
    key: tuple[str, ...] = KEY

    def __post_init__(self) -> None:
        self.follower = Follower(self.key)

    def connect(self) -> None:
        self._drop = threading.Event()
        self._thread = threading.Thread(target=self._hear, daemon=True)
        self._thread.start()

    def _hear(self) -> None:
        headers = {"last-event-id": self.follower.id} if self.follower.id else {}
        with httpx.stream("GET", self.url, params=self.parameters, headers=headers, timeout=30) as answer:
            assert answer.status_code == 200, answer.read()
            assert answer.headers["content-type"] == "text/event-stream"
            for told in _events(answer):
                self.follower.hear(told)
                if self._drop.is_set():
                    return

    def told_up_to(self, batch: int) -> None:
        until(lambda: batch in self.follower.at, f"batch {batch} was not told: {self.follower.told[-1:]}")

    def ended(self) -> None:
        self._thread.join(WAIT_S_MAX)
        assert not self._thread.is_alive()

    def leave(self) -> None:
        self._drop.set()


def _events(answer: httpx.Response) -> Iterator[Told]:
    fields: dict[str, str] = {}
    for line in answer.iter_lines():
        if line.startswith(":"):
            continue
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif "event" in fields:
            yield Told(fields["event"], json.loads(fields["data"]), fields.get("id"))
            fields = {}
        else:
            fields = {}


def until(done: Callable[[], bool], what: str, wait_s: float = 60.0) -> None:
    deadline_s = time.monotonic() + wait_s
    while not done():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.01)


def sums(follower: Follower) -> dict[Any, Any]:
    return {key: row["sum"] for key, row in follower.rows.items()}


def test_watchers_of_a_view_a_key_and_rollups_are_told_each_batch(server: Server) -> None:
    view, one = Client(server.url), Client(server.url, [("key", "1")])
    total = Client(server.url, [("rollup", "")], ())
    kind = Client(server.url, [("rollup", "kind"), ("key", "call")], ("kind",))
    clients = [view, one, total, kind]
    for client in clients:
        client.connect()
        client.told_up_to(server.spark.batch)
    assert len(view.follower.rows) == ACCOUNTS
    assert len(view.follower.told) > 1, "in pages"
    last = server.put([1, 4, 5], 100)
    for client in clients:
        client.told_up_to(last)
    assert sums(one.follower) == {(1, "message"): 101}
    before = total.follower.rows[()]["sum"]
    last = server.delete([1, 4])
    for client in clients:
        client.told_up_to(last)
    assert sums(one.follower) == {}
    assert len(view.follower.rows) == ACCOUNTS - 2
    assert total.follower.rows[()]["sum"] == before - 101 - 104 == sum(sums(view.follower).values())
    assert kind.follower.rows[("call",)]["sum"] == sum(v for (_, k), v in sums(view.follower).items() if k == "call")
    rows = httpx.get(f"{server.url.removesuffix('/changes')}/rollup/kind/call").json()["rows"]
    assert rows == list(kind.follower.rows.values())
    for client in clients:
        client.leave()
    server.put([1], 0)


def test_what_the_docs_show_is_told_so(server: Server) -> None:
    shown = re.search(r"curl -N '(http.*?)'", (Path(__file__).parents[3] / "docs" / "changes.md").read_text())
    assert shown
    path = shown[1].partition(":8471")[2]
    with httpx.stream("GET", f"http://127.0.0.1:{server.port}{path}", timeout=30) as answer:
        told = next(_events(answer))
    assert (told.kind, told.data["last"], set(told.data)) == ("snapshot", True, {"stamp", "rows", "last"})
    assert re.fullmatch(rf"{server.spark.batch}-[0-9a-f]{{8}}", told.id or "")


def test_a_watcher_goes_on_without_gap_or_repeat_when_the_server_is_started_again(server: Server) -> None:
    client = Client(server.url, [("key", "7")])
    client.connect()
    client.told_up_to(server.spark.batch)
    first = server.put([7], 1)
    client.told_up_to(first)
    assert server.stop() < 5, "it does not wait for its streams to end by themselves"
    client.ended()
    assert client.follower.told[-1].kind == "end"
    for change in (2, 3):
        server.put([7], change)
    server.start()
    client.connect()
    client.told_up_to(first + 2)
    kinds = [(told.kind, [row["sum"] for row in told.data.get("changed", [])]) for told in client.follower.told]
    assert kinds[1:] == [("changes", [8]), ("end", []), ("changes", [9]), ("changes", [10])]
    client.leave()


def test_our_own_client_watches_over_a_restart(server: Server) -> None:
    with Asking(f"http://127.0.0.1:{server.port}") as client:
        watched = client.watch(VIEW, "11")
        assert [row["sum"] for row in next(watched).rows] == [11]
        server.put([11], 1)
        assert [row["sum"] for row in next(watched).rows] == [12]
        server.stop()
        server.put([11], 2)
        server.start()
        change = next(watched)
        assert (change.kind, [row["sum"] for row in change.rows]) == ("changes", [13])


def test_the_same_by_long_poll(server: Server) -> None:
    def ask(**parameters: str | int) -> httpx.Response:
        return httpx.get(
            server.url, params={"key": "9", **parameters}, headers={"accept": "application/json"}, timeout=30
        )

    first = ask()
    document = first.json()
    assert ([row["account"] for row in document["rows"]], document["cursor"]) == ([9], None)
    assert first.headers["stateside-batch"] == str(server.spark.batch)
    threading.Timer(0.3, server.put, ([9], 50)).start()
    changed = ask(after=document["id"], wait_ms=20_000).json()
    assert [row["sum"] for row in changed["changed"]] == [59]
    assert changed["after"] == document["stamp"]["batch"]
    nothing = ask(after=changed["id"], wait_ms=50).json()
    assert (nothing["changed"], nothing["removed"], nothing["id"]) == ([], [], changed["id"])
    gone = ask(after="0-00000000")
    assert (gone.status_code, gone.json()["type"]) == (410, "urn:stateside:problem:history-gone")


@pytest.mark.parametrize(
    ("parameters", "status", "code"),
    [
        ([("key", "one")], 400, "key-invalid"),
        ([("after", "seven")], 400, "request-invalid"),
        ([("rollup", "colour")], 400, "request-invalid"),
        ([("min_position", "0:99999"), ("wait_ms", "20")], 503, "not-fresh-enough"),
        ([("speed", "fast")], 400, "request-invalid"),
    ],
)
def test_what_cannot_be_watched_is_a_problem_and_no_stream(
    server: Server, parameters: list[tuple[str, str]], status: int, code: str
) -> None:
    answer = httpx.get(server.url, params=tuple(parameters))
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
    assert answer.json()["type"].endswith(code)


def test_a_history_that_is_gone_is_a_reset_in_a_stream(server: Server) -> None:
    client = Client(server.url, [("key", "3"), ("after", "0-00000000")])
    client.connect()
    client.told_up_to(server.spark.batch)
    assert [told.kind for told in client.follower.told] == ["reset", "snapshot"]
    client.leave()


def test_a_reader_that_stops_reading_is_cut_off_and_others_are_not_held_up(server: Server) -> None:
    """Of 60 batches with 180 kB each the slow one gets what was on its way, and why there is no more."""
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
    slow.connect(("127.0.0.1", server.port))
    slow.sendall(f"GET /v1/views/{VIEW}/changes HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
    quick = Client(server.url)
    quick.connect()
    quick.told_up_to(server.spark.batch)
    for change in range(60):
        last = server.put(list(range(ACCOUNTS)), 1_000 + change)
        if change % 4 == 0:
            quick.told_up_to(last)
    quick.told_up_to(last)
    assert all(told.kind in ("snapshot", "changes") for told in quick.follower.told)
    quick.leave()
    slow.settimeout(20)
    content = b""
    while part := slow.recv(1 << 20):
        content += part
        if b"0\r\n\r\n" in part[-16:]:
            break
    assert b"event: cut" in content[-1_000:]
    assert b'"reason":"slow"' in content[-1_000:]
    assert len(content) < 3_000_000, "what waited is dropped"
