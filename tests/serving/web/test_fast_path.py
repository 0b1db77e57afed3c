"""The fast path answers, to the byte, as the full path does, or leaves the request to it."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stateside.core.clock import ManualClock
from stateside.replica.checksums import Checksums
from stateside.serving.access.guard import Guard
from stateside.serving.access.limits import RateLimits
from stateside.serving.access.tokens import Issuer
from stateside.serving.fast_path import LINES_BYTES_MAX, Peer
from stateside.serving.rows.view_readers import ViewReaders
from stateside.serving.web.application import Application
from stateside.serving.web.connection import Connections, Loop
from tests.serving.rows.shop import Shop
from tests.serving.web.running import FULL, Running, received
from tests.sizes import some

EMMA = "/v1/views/spending/rows/emma/de"
LOOKUP = "/v1/views/spending/lookup"
TRACE = "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\n"
NOW_US = 1_800_000_000_000_000

Rows = dict[tuple[str, str], tuple[int, int]]
FIRST: Rows = {("emma", "de"): (2, 104), ("emma", ""): (3, 9), ("ben%s", 'f"r'): (1, 7), ("x" * 600, "de"): (5, 5)}


class Asked:
    """The server of a shop, asked both ways."""

    def __init__(self, shop: Shop, limits: RateLimits | None = None, *, fast_path: bool = True) -> None:
        self.clock = ManualClock(NOW_US)
        self._views = ViewReaders(shop.layout, self.clock)
        guard = Guard.of(shop.layout) if limits is None else Guard.of(shop.layout, limits)
        application = Application(self._views, guard=guard)
        if not fast_path:
            application.connections.fast_path = Connections().fast_path
        self.running = Running(application)

    def __enter__(self) -> Asked:
        self.running.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.running.__exit__(None, None, None)
        for replica in self._views._replicas.values():
            replica.close()

    @property
    def fast(self) -> int:
        return self.running.fast

    def get(self, path: str = EMMA, headers: str = "", method: str = "GET") -> bytes:
        return self.running.ask(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n")

    def post(self, keys: object, headers: str = "") -> bytes:
        body = json.dumps({"keys": keys})
        length = len(body.encode())
        return self.running.ask(
            f"POST {LOOKUP} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n{headers}\r\n{body}"
        )


def same(fast: bytes, full: bytes) -> bytes:
    """The answer, which is the same both ways but for the time of day and this server's part of the trace."""
    brought = TRACE[13:45].encode()
    assert (brought in fast) == (brought in full)
    for varying in (rb"date: [^\r]{29}\r\n", rb"traceparent: [^\r]{55}\r\n"):
        assert (len(re.findall(varying, fast)), len(re.findall(varying, full))) == (1, 1)
        fast, full = (re.sub(varying, b"", way) for way in (fast, full))
    assert fast == full
    return fast


def both(asked: Asked, path: str = EMMA, headers: str = "", method: str = "GET") -> bytes:
    return same(asked.get(path, headers, method), asked.get(path, headers + FULL, method))


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def header(answer: bytes, name: str) -> str:
    found = re.search(rf"\r\n{name}: ([^\r]*)\r\n".encode(), answer)
    assert found is not None, answer
    return found[1].decode()


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    made = Shop(tmp_path)
    made.batch({**FIRST})
    return made


@pytest.fixture
def asked(shop: Shop) -> Iterator[Asked]:
    with Asked(shop) as running:
        yield running


@pytest.mark.parametrize(
    ("path", "headers", "method", "fast"),
    some(
        [
            (EMMA, "", "GET", True),
            ("/v1/views/spending/rows/emma/", "", "GET", True),
            ("/v1/views/spending/rows/ben%25s/f%22r", "", "GET", True),
            ("/v1/views/spending/rows/b%65n%25s/f%22r", "", "GET", True),
            (f"/v1/views/spending/rows/{'x' * 600}/de", "", "GET", True),
            ("/v1/views/spending/rows/nobody/de", "", "GET", True),
            (EMMA, TRACE, "GET", True),
            (EMMA, "traceparent: none\r\n", "GET", True),
            (EMMA, "USER-AGENT:  h2load/1.5 \r\nAccept: */*\r\nconnection: Keep-Alive\r\n", "GET", True),
            ("/v1/views/spending/rows/emma", "", "GET", False),
            ("/v1/views/spending/rows/emma/de/x", "", "GET", False),
            ("/v1/views/spending/rows/emma%2Fde", "", "GET", True),
            ("/v1/views/nothing/rows/emma/de", "", "GET", False),
            ("/v1/views/spending/rowss/emma/de", "", "GET", False),
            ("/v2/views/spending/rows/emma/de", "", "GET", False),
            (EMMA, "", "HEAD", False),
            (EMMA, "", "DELETE", False),
            (f"{EMMA}?columns=total", "", "GET", False),
            (f"{EMMA}?nonsense=1", "", "GET", False),
            (EMMA, "if-none-match: *\r\n", "GET", False),
            (EMMA, "content-length: 1\r\n", "HEAD", False),
            (EMMA, "connection: close\r\n", "GET", False),
            (EMMA, "origin: http://elsewhere.example\r\n", "GET", False),
            (EMMA, "cookie: stateside=x.y.z\r\n", "GET", False),
            (EMMA, "sec-fetch-site: cross-site\r\n", "GET", False),
            (f"/v1/views/spending/rows/{'x' * 5_000}/de", "", "GET", False),
        ],
        3,
    ),
)
def test_both_ways_give_the_same_answer(asked: Asked, path: str, headers: str, method: str, fast: bool) -> None:
    both(asked, path, headers, method)
    both(asked, path, headers, method)
    assert asked.fast == 2 * fast


@pytest.mark.parametrize(
    ("keys", "fast"),
    some(
        [
            ([["emma", "de"]], True),
            ([["emma", "de"], ["nobody", "de"], ["emma", "de"], ["emma", ""]], True),
            ([["x" * 600, "de"]], True),
            ([["é\u0000", "de"], ["ben%s", 'f"r']], True),
            ([["emma/de", ""]], False),
            ([["emma"]], False),
            ([["emma", "de", "x"]], False),
            ([["emma", None]], False),
            ([["emma", 1]], False),
            (["emma"], False),
            ([], False),
            ([["emma", "de"]] * 1_000, True),
            ([["emma", "de"]] * 1_001, False),
            ([[f"c{number}", "de"] for number in range(101)], False),
            ("emma", False),
        ],
        3,
    ),
)
def test_both_ways_give_the_same_rows_of_many_keys(asked: Asked, keys: object, fast: bool) -> None:
    for _ in range(2):
        same(asked.post(keys), asked.post(keys, FULL))
    assert asked.fast == 2 * fast


def test_a_key_with_a_slash_is_not_taken_for_two_parts(asked: Asked) -> None:
    assert b'"total":104' in asked.get()
    assert b'"rows":[null]' in asked.post([["emma/de", ""]])
    assert b'"rows":[null]' in asked.post([["", "emma/de"]])


def test_a_request_that_comes_in_pieces_or_with_another_behind_it_takes_the_full_path(asked: Asked) -> None:
    request = f"GET {EMMA} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    with asked.running.connect() as connection:
        for cut in (3, 20, len(request) - 1):
            connection.sendall(request[:cut])
            time.sleep(0.05)
            connection.sendall(request[cut:])
            assert b'"total":104' in received(connection)
        assert asked.fast == 0
        connection.sendall(request + request)
        both_answers = received(connection)
        while both_answers.count(b'"total":104') < 2:
            both_answers += connection.recv(1 << 16)
        assert asked.fast == 0
        connection.sendall(request)
        assert b'"total":104' in received(connection)
        assert asked.fast == 1


def test_a_long_head_takes_the_full_path_and_is_not_kept(asked: Asked) -> None:
    peer = Peer("127.0.0.1")
    assert peer.head(b"host: localhost\r\nuser-agent: x\r\n\r\n") is not None
    assert peer.head(b"host: localhost\r\nuser-agent: %b\r\n\r\n" % (b"x" * LINES_BYTES_MAX)) is None
    assert len(peer._lines) < 100
    assert status(asked.get(headers=f"user-agent: {'x' * 30_000}\r\n")) == 200
    assert status(asked.get(headers=f"user-agent: {'x' * 70_000}\r\n")) == 431
    assert asked.fast == 0


def test_the_age_grows_and_the_tag_stays(asked: Asked) -> None:
    first = both(asked)
    asked.clock.advance(5_000_000)
    later = both(asked)
    assert int(header(later, "stateside-age-ms")) == int(header(first, "stateside-age-ms")) + 5_000
    assert header(later, "etag") == header(first, "etag")
    assert status(asked.get(headers=f"if-none-match: {header(later, 'etag')}\r\n")) == 304


def test_a_token_takes_the_fast_path_if_it_reaches_all_rows_and_only_then(shop: Shop) -> None:
    issuer = Issuer(shop.layout)
    tokens = {
        "all": issuer.create("all", roles=["read"])[0],
        "own": issuer.create("own", roles=["read"], where={"customer": "emma"})[0],
        "spending": issuer.create("spending", roles=["read"], views=["spending"])[0],
        "appending": issuer.create("appending", roles=["append"])[0],
    }
    with Asked(shop) as asked:
        found = {}
        for name, token in tokens.items():
            before = asked.fast
            found[name] = status(both(asked, headers=f"authorization: Bearer {token}\r\n")), asked.fast - before
        assert found == {"all": (200, 1), "own": (200, 0), "spending": (200, 0), "appending": (403, 0)}
        assert status(both(asked)) == 401
        own = f"authorization: Bearer {tokens['own']}\r\n"
        assert status(both(asked, "/v1/views/spending/rows/ben%25s/fr", own)) == 403
        assert status(same(asked.post([["emma", "de"]], own), asked.post([["emma", "de"]], own + FULL))) == 200
        assert status(asked.post([["ben", "de"]], own)) == 403


@pytest.mark.parametrize(
    "from_", ["origin: http://elsewhere.example\r\n", "origin: null\r\n", "sec-fetch-site: cross-site\r\n"]
)
def test_a_page_of_another_site_is_refused_a_lookup_whichever_way_it_would_go(asked: Asked, from_: str) -> None:
    keys = [["emma", "de"]]
    answer = same(asked.post(keys, from_), asked.post(keys, from_ + FULL))
    assert (status(answer), asked.fast) == (403, 0)
    assert b"This request comes from a page of another site" in answer


REBOUND = "evil.example"  # a stranger's name, which leads to this server by now


def asked_at(asked: Asked, host: str, way: str = "") -> bytes:
    answer = asked.running.ask(f"GET {EMMA} HTTP/1.1\r\nHost: {host}\r\n{way}\r\n")
    body = json.dumps({"keys": [["emma", "de"]]})
    length = f"Content-Length: {len(body)}\r\n"
    posted = asked.running.ask(f"POST {LOOKUP} HTTP/1.1\r\nHost: {host}\r\n{length}{way}\r\n{body}")
    assert status(answer) == status(posted)
    return answer


def test_without_tokens_a_stranger_s_name_is_refused_whichever_way_it_would_go(asked: Asked) -> None:
    """A website whose name leads here asks as our own page would: nothing but the host tells it apart."""
    for host in (f"{REBOUND}:{asked.running.port}", REBOUND, f"localhost.{REBOUND}"):
        for way in ("", FULL, f"origin: http://{host}\r\n"):
            answer = asked_at(asked, host, way)
            assert (status(answer), asked.fast) == (403, 0)
            assert b"stateside token create" in answer
    before = asked.fast
    for host in ("localhost", f"127.0.0.1:{asked.running.port}", "[::1]:1", "bills.localhost"):
        assert (status(asked_at(asked, host)), status(asked_at(asked, host, FULL))) == (200, 200)
    assert asked.fast == before + 8


HOST = "Host: localhost\r\n"


@pytest.mark.parametrize(
    "hosts",
    ["", HOST + HOST, f"{HOST}Host: {REBOUND}\r\n", "Host:\r\n", "Host: a b\r\n", "Host: a@b\r\n", "Host: :80\r\n"],
)
def test_a_request_for_no_host_or_several_is_none_whichever_way_it_would_go(asked: Asked, hosts: str) -> None:
    for first in (f"GET {EMMA}", f"GET http://{REBOUND}{EMMA}", f"POST {LOOKUP}"):
        ways = [asked.running.ask(f"{first} HTTP/1.1\r\n{hosts}{way}\r\n") for way in ("", FULL)]
        assert (ways[0], status(ways[0]), asked.fast) == (ways[1], 400, 0)


def test_a_client_without_a_host_is_answered_in_http_1_0(asked: Asked) -> None:
    assert status(asked.running.ask(f"GET {EMMA} HTTP/1.0\r\n\r\n")) == 200


def test_with_a_token_any_host_will_do(shop: Shop) -> None:
    token = Issuer(shop.layout).create("all", roles=["read"])[0]
    with Asked(shop) as asked:
        for way in ("", FULL):
            assert status(asked_at(asked, REBOUND, f"authorization: Bearer {token}\r\n{way}")) == 200
            assert status(asked_at(asked, REBOUND, way)) == 401


def test_a_lookup_of_our_own_page_is_answered(asked: Asked) -> None:
    own = "origin: http://localhost\r\n"
    assert b'"total":104' in same(asked.post([["emma", "de"]], own), asked.post([["emma", "de"]], own + FULL))


def test_a_turn_of_the_event_loop_checks_once_that_its_snapshot_is_the_newest(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All requests of a turn were there before its first answer; a request of the next turn may know a newer batch."""
    checks, newest = [], Checksums.newest

    def counted(self: Checksums) -> Any:
        checks.append(1)
        return newest(self)

    monkeypatch.setattr(Checksums, "newest", counted)
    views = ViewReaders(shop.layout, ManualClock(NOW_US))
    fast_path = Application(views, guard=Guard.of(shop.layout)).fast_path
    request = f"GET {EMMA} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()

    async def turns() -> None:
        for number in range(4):
            assert None not in [fast_path.answer(Peer("127.0.0.1"), request) for _ in range(5)]
            assert len(checks) == number, "the first answer takes the snapshot"
            await asyncio.sleep(0)

    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(turns())
    fast_path._kept["spending"].release()
    views._replica(shop.layout.view("spending")).close()


def test_without_the_fast_path_every_answer_is_the_same(shop: Shop) -> None:
    ways = []
    for fast_path in (True, False):
        with Asked(shop, fast_path=fast_path) as asked:
            ways.append([asked.get(), asked.get(headers=TRACE), asked.post([["emma", "de"]])])
            assert asked.fast == 3 * fast_path
    for fast, full in zip(*ways, strict=True):
        same(fast, full)


def test_a_request_is_counted_once_whichever_way_it_goes(shop: Shop) -> None:
    for path in ("/v1/views/spending/rows/emma", EMMA):
        with Asked(shop, RateLimits(rate_per_s=1)) as asked:
            assert [status(asked.get(path)) for _ in range(3)] == [200, 200, 429], "a bucket holds two"


def test_nobody_is_under_way_any_more_when_all_are_answered_refused_ones_too(shop: Shop) -> None:
    Issuer(shop.layout).create("all")
    with Asked(shop, RateLimits(running_max=2)) as asked:
        assert [status(asked.get(headers="authorization: Bearer x.y.z\r\n")) for _ in range(5)] == [401] * 5


def test_an_error_that_nobody_foresaw_is_told_by_the_full_path(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stateside.serving.rows.view_reader.ViewReader._stamp", lambda *given: 1 // 0)
    with Asked(shop) as asked:
        answer = both(asked)
        assert (status(answer), header(answer, "content-type")) == (500, "application/problem+json")
        assert b"the server's log has the cause" in answer
        assert asked.fast == 0
