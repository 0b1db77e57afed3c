"""The guard: who it is, whether there is room, and what is told to whom when it cannot know."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from starlette.types import Message

from stateside.core.errors import AccessDenied, BodyTooSlow, SetupError, TokenInvalid, TooManyRequests
from stateside.core.layout import Layout
from stateside.serving.access import guard as module
from stateside.serving.access.guard import NOBODY, Guard
from stateside.serving.access.limits import RateLimits
from stateside.serving.access.principal import OPERATOR
from stateside.serving.access.tokens import Issuer
from stateside.serving.web import request
from tests.waiting import wait_until


@dataclass
class Scope:
    """A request, as much of it as the guard looks at."""

    headers: Mapping[str, str] = field(default_factory=dict)
    peer: str = "10.0.0.7:5123"
    method: str = "GET"
    path: str = "/v1/views"

    @classmethod
    def of(cls, token: str) -> Scope:
        return cls({"authorization": f"Bearer {token}"})


def test_a_holder_is_counted_by_name_wherever_it_asks_from(layout: Layout) -> None:
    one, other = Issuer(layout).create_operator("one"), Issuer(layout).create_operator("other")
    guard = Guard.of(layout, RateLimits(running_max=1))
    with guard.visit(Scope.of(one)) as visit:
        assert visit.enter().name == "one"
        with guard.visit(Scope(Scope.of(one).headers, "10.0.0.8:1")) as again, pytest.raises(TooManyRequests):
            again.enter()
        with guard.visit(Scope.of(other)) as others:
            others.enter()
    with guard.visit(Scope.of(one)) as after:
        after.enter()


def test_without_tokens_an_address_is_counted(layout: Layout) -> None:
    guard = Guard.of(layout, RateLimits(running_max=1))
    with guard.visit(Scope()) as visit:
        assert visit.enter() is OPERATOR
        with guard.visit(Scope(peer="10.0.0.7:9")) as again, pytest.raises(TooManyRequests):
            again.enter()
        with guard.visit(Scope(peer="10.0.0.8:9")) as other:
            other.enter()


def test_a_stranger_s_name_is_refused_without_tokens_and_counted_by_its_address(layout: Layout) -> None:
    guard = Guard.of(layout, RateLimits(rate_per_s=0.001))
    with guard.visit(Scope({"host": "evil.example:8471"})) as first, pytest.raises(AccessDenied, match="evil"):
        first.enter()
    with guard.visit(Scope({"host": "evil.example:8471"})) as second, pytest.raises(TooManyRequests):
        second.enter()
    with Guard.of(layout).visit(Scope({"host": "evil.example"})) as anyone:
        assert anyone.enter(needs_token=False) is NOBODY, "what anyone may have tells nothing of anybody's data"


def test_over_tls_the_certificate_says_which_names_are_the_server_s(layout: Layout) -> None:
    with Guard.of(layout, names=None).visit(Scope({"host": "bills.example"})) as visit:
        assert visit.enter() is OPERATOR


def test_what_goes_on_without_a_token_is_over_after_the_first_key(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RECHECK_S", 0.0)
    guard = Guard.of(layout)
    with guard.visit(Scope()) as visit, guard.visit(Scope()) as health:
        visit.enter()
        health.enter(needs_token=False)
        assert not visit.is_over()
        Issuer(layout).create_operator("one")
        wait_until(visit.is_over, lambda: "a stream that was open before goes on")
        assert not health.is_over(), "what needs no token goes on"
    (line,) = map(json.loads, layout.refusals.read_text().splitlines())
    assert (line["who"], line["status"]) == (None, 401)


def test_wrong_tokens_are_counted_by_their_address_and_keep_nobody_else_out(layout: Layout) -> None:
    token = Issuer(layout).create_operator("one")
    guard = Guard.of(layout, RateLimits(rate_per_s=0.001))
    with guard.visit(Scope.of("wrong")) as first, pytest.raises(TokenInvalid):
        first.enter()
    with guard.visit(Scope.of("wrong")) as second, pytest.raises(TooManyRequests):
        second.enter()
    with guard.visit(Scope.of(token)) as holder:
        assert holder.enter().name == "one"
    assert guard.room._running == {}


def test_a_holder_whose_name_is_an_address_is_not_that_address(layout: Layout) -> None:
    token = Issuer(layout).create_operator("10.0.0.7")
    guard = Guard.of(layout, RateLimits(running_max=1))
    with guard.visit(Scope.of(token)) as holder, guard.visit(Scope()) as nobody:
        holder.enter()
        assert nobody.enter(needs_token=False) is NOBODY


def test_where_it_cannot_tell_who_asks_the_log_has_the_cause_and_the_asker_no_path(
    layout: Layout, caplog: pytest.LogCaptureFixture
) -> None:
    token = Issuer(layout).create_operator("one")
    guard = Guard.of(layout)
    layout.keys.chmod(0o644)
    for _ in range(3):
        with guard.visit(Scope.of(token)) as visit, pytest.raises(SetupError) as caught:
            visit.enter()
        assert str(layout.root) not in json.dumps(caught.value.problem())
    (record,) = caplog.records
    assert str(layout.keys) in record.getMessage()


def test_a_log_that_cannot_be_written_stops_nobody_and_lets_nobody_in(
    layout: Layout, caplog: pytest.LogCaptureFixture
) -> None:
    Issuer(layout).create_operator("one")
    layout.refusals.mkdir()
    guard = Guard.of(layout)
    for _ in range(3):
        with guard.visit(Scope()) as visit:
            with pytest.raises(TokenInvalid) as caught:
                visit.enter()
            visit.refused(caught.value)
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


def test_a_refusal_names_the_holder_only_if_the_token_was_verified(layout: Layout) -> None:
    issuer = Issuer(layout)
    token, _ = issuer.create("emma")
    guard = Guard.of(layout)
    with guard.visit(Scope.of(token)) as visit:
        visit.enter()
        visit.refused(AccessDenied("no"))
    issuer.revoke("emma")
    for text in (token, token[:-2] + "AA"):
        with guard.visit(Scope.of(text)) as visit:
            with pytest.raises(TokenInvalid) as caught:
                visit.enter()
            visit.refused(caught.value)
    lines = [json.loads(line) for line in layout.refusals.read_text().splitlines()]
    assert [(line["who"], line["status"]) for line in lines] == [("emma", 403), ("emma", 401), (None, 401)]


def test_a_body_that_does_not_come_in_time_is_given_up(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request, "BODY_S_MAX", 0.05)

    async def dripping() -> Message:
        await asyncio.sleep(0.02)
        return {"type": "http.request", "body": b"x", "more_body": True}

    scope = {"type": "http", "method": "POST", "path": "/", "headers": [], "client": ("127.0.0.1", 1)}
    with pytest.raises(BodyTooSlow):
        asyncio.run(request.Call(scope, dripping, Guard.of(layout)).read(1_000))
