"""The short way to a row: it says what the long way says, to the byte, or leaves it to it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from stateside.clock import ManualClock
from stateside.serving.access.guard import Guard
from stateside.serving.access.issuer import Issuer
from stateside.serving.access.limits import Limits
from stateside.serving.reading.views import Views
from stateside.serving.web.application import Application
from tests.serving.reading.shop import Shop

EMMA = "/v1/views/spending/rows/emma/de"
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@dataclass
class Scope:
    """A request, as Granian tells it."""

    path: str
    method: str = "GET"
    query_string: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    client: str = "127.0.0.1:40000"


class Protocol:
    """What Granian is given to send."""

    def response_bytes(self, status: int, headers: Any, body: bytes) -> None:
        self.answer = status, dict(headers), body

    def response_empty(self, status: int, headers: Any) -> None:
        self.answer = status, dict(headers), b""

    async def client_disconnect(self) -> None:
        await asyncio.Event().wait()


class Server:
    """The application of a shop, asked without a connection, the short way or not."""

    def __init__(self, shop: Shop) -> None:
        self.clock = ManualClock(1_800_000_000_000_000)
        self.views = Views(shop.layout, self.clock)
        self.app = Application(self.views, guard=Guard.of(shop.layout))
        self._answer = self.app._short_way.answer
        self.short = 0
        self.app._short_way.answer = self._counted  # type: ignore[method-assign]

    def _counted(self, *asked: Any) -> bool:
        answered = self._possible and self._answer(*asked)
        self.short += answered
        return answered

    def ask(self, scope: Scope, *, possible: bool = True) -> tuple[int, dict[str, str], bytes]:
        self._possible, protocol = possible, Protocol()
        asyncio.run(self.app.__rsgi__(scope, protocol))
        return protocol.answer

    def close(self) -> None:
        for replica in self.views._replicas.values():
            replica.close()


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    made = Shop(tmp_path)
    made.batch({("emma", "de"): (2, 104), ("emma", ""): (3, 9), ("ben%s", 'f"r'): (1, 7), ("x" * 600, "de"): (5, 5)})
    return made


def both(server: Server, scope: Scope) -> tuple[int, dict[str, str], bytes]:
    """The answer, which is the same both ways; a trace that nobody brought is another one each time."""
    short, long = (server.ask(scope, possible=possible) for possible in (True, False))
    if scope.headers.get("traceparent") == TRACE:
        assert short[1]["traceparent"].split("-")[1] == long[1]["traceparent"].split("-")[1]
    assert len(short[1].pop("traceparent")) == len(long[1].pop("traceparent")) == 55
    assert short == long
    assert list(short[1]) == list(long[1]), "in the same order"
    return short


@pytest.mark.parametrize(
    ("scope", "short"),
    [
        (Scope(EMMA), True),
        (Scope("/v1/views/spending/rows/emma/"), True),
        (Scope('/v1/views/spending/rows/ben%s/f"r'), True),
        (Scope(f"/v1/views/spending/rows/{'x' * 600}/de"), True),
        (Scope("/v1/views/spending/rows/nobody/de"), True),
        (Scope(EMMA, headers={"traceparent": TRACE}), True),
        (Scope(EMMA, headers={"traceparent": "none"}), True),
        (Scope("/v1/views/spending/rows/emma"), False),
        (Scope("/v1/views/spending/rows/emma/de/x"), False),
        (Scope("/v1/views/nothing/rows/emma/de"), False),
        (Scope("/v1/views/spending/rowss/emma/de"), False),
        (Scope("/v2/views/spending/rows/emma/de"), False),
        (Scope(EMMA, "HEAD"), False),
        (Scope(EMMA, "DELETE"), False),
        (Scope(EMMA, query_string="columns=total"), False),
        (Scope(EMMA, query_string="nonsense=1"), False),
        (Scope(EMMA, headers={"if-none-match": "*"}), False),
    ],
)
def test_both_ways_give_the_same_answer(shop: Shop, scope: Scope, short: bool) -> None:
    server = Server(shop)
    both(server, scope)
    both(server, scope)
    assert server.short == 2 * short
    server.close()


def test_the_next_batch_is_seen_at_once_and_the_age_grows(shop: Shop) -> None:
    server = Server(shop)
    _, first, body = both(server, Scope(EMMA))
    server.clock.advance(5_000_000)
    later = both(server, Scope(EMMA))[1]
    assert int(later["stateside-age-ms"]) == int(first["stateside-age-ms"]) + 5_000
    assert later["etag"] == first["etag"]
    assert server.ask(Scope(EMMA, headers={"if-none-match": later["etag"]}))[0] == 304
    server.close()
    shop.batch({("emma", "de"): (3, 204)})
    server = Server(shop)
    _, headers, changed = both(server, Scope(EMMA))
    assert headers["stateside-batch"] == "1"
    assert headers["etag"] != first["etag"]
    assert b'"total":204' in changed
    assert b'"total":104' in body
    server.close()


def test_a_token_goes_the_short_way_if_it_reaches_all_rows_and_only_then(shop: Shop) -> None:
    issuer = Issuer(shop.layout)
    tokens = {
        "all": issuer.create("all", roles=["read"])[0],
        "own": issuer.create("own", roles=["read"], where={"customer": "emma"})[0],
        "spending": issuer.create("spending", roles=["read"], views=["spending"])[0],
        "appending": issuer.create("appending", roles=["append"])[0],
    }
    server = Server(shop)
    found = {}
    for name, token in tokens.items():
        before = server.short
        status, _, _ = both(server, Scope(EMMA, headers={"authorization": f"Bearer {token}"}))
        found[name] = status, server.short - before
    assert found == {"all": (200, 1), "own": (200, 0), "spending": (200, 0), "appending": (403, 0)}
    assert both(server, Scope(EMMA))[0] == 401
    other = Scope("/v1/views/spending/rows/ben%s/fr", headers={"authorization": f"Bearer {tokens['own']}"})
    assert both(server, other)[0] == 403
    server.close()


def test_a_request_that_takes_the_long_way_after_all_is_counted_once(shop: Shop) -> None:
    server = Server(shop)
    server.app._guard = Guard.of(shop.layout, Limits(rate_per_s=1))
    statuses = [server.ask(Scope("/v1/views/spending/rows/emma"))[0] for _ in range(3)]
    assert statuses == [200, 200, 429], "a bucket holds two"
    server.close()


def test_nobody_is_under_way_any_more_when_all_are_answered_refused_ones_too(shop: Shop) -> None:
    Issuer(shop.layout).create("all")
    server = Server(shop)
    server.app._guard = Guard.of(shop.layout, Limits(running_max=2))
    wrong = {"authorization": "Bearer x.y.z"}
    assert [server.ask(Scope(EMMA, headers=wrong))[0] for _ in range(5)] == [401] * 5
    server.close()


def test_an_error_that_nobody_foresaw_is_told_by_the_long_way(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(shop)
    monkeypatch.setattr("stateside.serving.reading.reader.ViewReader._stamp", lambda *given: 1 // 0)
    status, headers, body = both(server, Scope(EMMA))
    assert (status, headers["content-type"]) == (500, "application/problem+json")
    assert b"the server's log has the cause" in body
    server.close()


def test_an_address_that_is_too_long_is_refused_both_ways(shop: Shop) -> None:
    server = Server(shop)
    assert both(server, Scope(f"/v1/views/spending/rows/{'x' * 5_000}/de"))[0] == 400
    server.close()
