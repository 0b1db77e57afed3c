"""Many at a time, with tokens, on a real server: nobody's statements stand in another's way. Without Spark."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from stateside.core.layout import Layout
from stateside.core.processes import Child, free_port
from stateside.serving.access.tokens import Issuer
from tests.serving.conftest import wait_until_it_answers
from tests.sizes import sized

from .asking import shop
from .test_server import _sql_processes

pytestmark = pytest.mark.e2e

ENDLESS = "SELECT count(*) FROM range(1_000_000_000_000) WHERE hash(range) = 1"
STUCK = "SELECT levenshtein(repeat('a', 1_000_000), repeat('b', 1_000_000))"  # one call, which DuckDB cannot interrupt
LONG, LONG_ROWS = "SELECT range AS n FROM range(3_000_000)", 3_000_000


@dataclass(frozen=True)
class Served:
    url: str
    tokens: dict[str, str]

    def ask(self, who: str, sql: str, **question: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.tokens[who]}"}
        return httpx.post(f"{self.url}/v1/sql", json={"sql": sql, **question}, headers=headers, timeout=60)

    @contextmanager
    def endless(self, who: str) -> Iterator[None]:
        """A statement that was sent, on a connection of its own, and that nobody waits for."""
        address, body = urlsplit(self.url), json.dumps({"sql": ENDLESS}).encode()
        head = f"Authorization: Bearer {self.tokens[who]}\r\nContent-Length: {len(body)}\r\n"
        with socket.create_connection((address.hostname, address.port)) as connection:
            connection.sendall(f"POST /v1/sql HTTP/1.1\r\nHost: localhost\r\n{head}\r\n".encode() + body)
            yield

    @contextmanager
    def reading(self, who: str) -> Iterator[Iterator[str]]:
        """The lines of a long result, of which the first one was read."""
        headers, body = {"Authorization": f"Bearer {self.tokens[who]}"}, {"sql": LONG, "format": "csv"}
        with httpx.stream("POST", f"{self.url}/v1/sql", json=body, headers=headers, timeout=60) as response:
            assert response.status_code == 200, response.read()
            lines = response.iter_lines()
            assert next(lines) == '"n"'
            yield lines


@pytest.fixture(scope="module", params=sized([1], [1, 2]), ids="workers-{}".format)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    layout, port = Layout(tmp_path_factory.mktemp("shop")), free_port()
    shop(layout)
    issuer = Issuer(layout)
    tokens = {name: issuer.create(name, ("operator",))[0] for name in ("root", "admin")}
    tokens |= {name: issuer.create(name, ("sql",), where={"customer": name})[0] for name in ("ben", "emma")}
    command = [sys.executable, "-m", "stateside", "serve", "--dir", str(layout.root), "--port", str(port)]
    child = Child([*command, "--workers", str(request.param)], tmp_path_factory.mktemp("logs") / "server.log")
    try:
        wait_until_it_answers(f"http://127.0.0.1:{port}/healthz", child)
        found = Served(f"http://127.0.0.1:{port}", tokens)
        while found.ask("root", "FROM spending").status_code != 200:  # the replica is being made
            pass
        yield found
    finally:
        child.stop()


def test_many_long_statements_of_a_customer_keep_nobody_else_from_an_answer(served: Served) -> None:
    with ExitStack() as stack:
        for _ in range(8):
            stack.enter_context(served.endless("ben"))
        for _ in range(9):
            everybody = served.ask("root", "SELECT sum(total) FROM spending")
            assert (everybody.status_code, everybody.json().get("rows")) == (200, [[171]])
            own = served.ask("emma", "SELECT customer, total FROM spending")
            assert (own.status_code, own.json().get("rows")) == (200, [["emma", 104]])
        listed = httpx.get(f"{served.url}/v1/sql", headers={"Authorization": f"Bearer {served.tokens['root']}"})
        assert listed.status_code == 200


@pytest.mark.parametrize(
    ("who", "other"), [("ben", "emma"), ("admin", "root"), *sized([], [("ben", "root"), ("root", "ben")])]
)
def test_a_statement_that_has_to_be_killed_ends_no_other_token_s(served: Served, who: str, other: str) -> None:
    with served.reading(other) as lines:
        for timeout_ms in (500, 5_000, 30_000):  # on a busy machine it may not have come to the long call yet
            killed = served.ask(who, STUCK, timeout_ms=timeout_ms)
            assert killed.status_code == 504
            if "had to be killed" in killed.text:
                break
        assert "had to be killed" in killed.text
        assert list(lines)[-1] == str(LONG_ROWS - 1)
    assert served.ask(who, "SELECT 1").json()["rows"] == [[1]], "a new process runs it"


def test_beyond_its_slots_a_token_is_told_when_to_come_again(served: Served) -> None:
    with ExitStack() as stack:
        for _ in range(40):  # connections are not shared out evenly among workers
            stack.enter_context(served.endless("ben"))
            refused = served.ask("ben", "SELECT 1")
            if refused.status_code == 429:
                break
        assert (refused.status_code, refused.headers.get("retry-after")) == (429, "1")


def test_a_sql_process_works_in_an_empty_folder_and_writes_no_files(served: Served) -> None:
    assert served.ask("ben", "SELECT 1").status_code == 200
    for process in _sql_processes():
        place = Path("/proc") / str(process)
        limits = {line[:25].strip(): line[25:].split()[:2] for line in (place / "limits").read_text().splitlines()}
        assert limits["Max file size"] == [str(1 << 20)] * 2
        assert limits["Max core file size"] == ["0", "0"]
        assert limits["Max data size"][0] in {str(4 << 30), str(2 << 30)}
        assert "NoNewPrivs:\t1" in (place / "status").read_text()
        assert list((place / "cwd").iterdir()) == []
        assert (place / "cwd").resolve().stat().st_mode & 0o777 == 0o500
