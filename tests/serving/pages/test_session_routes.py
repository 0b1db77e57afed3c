"""The session's routes: what a browser is told of itself, and which pages are for whom."""

from __future__ import annotations

import json

import pytest

from stateside.core.errors import AccessDenied
from stateside.core.layout import Layout
from stateside.serving.access.guard import Guard
from stateside.serving.access.principal import OPERATOR, Principal, Role
from stateside.serving.pages.page import PAGES, Page
from stateside.serving.pages.routes import session_routes
from stateside.serving.rows.view_readers import ViewReaders
from stateside.serving.web.application import Application
from tests.serving.web.running import Running


@pytest.mark.parametrize(("host", "status"), [("localhost", b"200"), ("evil.example", b"403")])
def test_an_open_server_does_not_tell_a_stranger_s_page_that_it_is_open(
    layout: Layout, host: str, status: bytes
) -> None:
    guard = Guard.of(layout)
    body = json.dumps({"token": "x"})
    application = Application(ViewReaders(layout), session_routes(guard, PAGES, secure=False), guard=guard)
    with Running(application) as running:
        asked = running.ask(f"GET /v1/session HTTP/1.1\r\nHost: {host}\r\n\r\n")
        length = f"Content-Length: {len(body)}\r\n"
        signed_in = running.ask(f"POST /v1/session HTTP/1.1\r\nHost: {host}\r\n{length}\r\n{body}")
        assert running.ask(f"GET /healthz HTTP/1.1\r\nHost: {host}\r\n\r\n").split()[1] == b"200"
    for answer in (asked, signed_in):
        assert (answer.split()[1], b'"open":true' in answer) == (status, status == b"200")


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"token": None},
        {"token": 1},
        {"token": ["x"]},
        {"token": "x", "keep": {}},
        {"token": "x", "keep": 1},
        {"token": "x", "keep": None},
        {"token": "x", "kept": True},
    ],
)
def test_what_the_schema_of_signing_in_does_not_allow_is_refused(layout: Layout, body: dict[str, object]) -> None:
    guard = Guard.of(layout)
    text = json.dumps(body)
    with Running(Application(ViewReaders(layout), session_routes(guard, PAGES, secure=False), guard=guard)) as running:
        length = f"Content-Length: {len(text)}\r\n"
        answer = running.ask(f"POST /v1/session HTTP/1.1\r\nHost: localhost\r\n{length}\r\n{text}")
    assert (answer.split()[1], b"request-invalid" in answer) == (b"400", True)


BILL = Page("bill", "My bill", application="billing", customers=True)
SEE: frozenset[Role] = frozenset({"read"})


@pytest.mark.parametrize(
    ("holder", "names"),
    [
        (OPERATOR, ["bill", "control", "views"]),
        (Principal("reader", SEE), ["bill", "views"]),
        (Principal("emma", SEE, where={"customer": "emma"}), ["bill"]),
        (Principal("austria", SEE, where={"country": "AT"}), ["views"]),
        (Principal("austria", SEE, frozenset({"bill"}), {"country": "AT"}), ["views"]),
        (Principal("a view", SEE, frozenset({"bill"})), ["views"]),
        (Principal("emma's rows", SEE, frozenset({"bill"}), {"customer": "emma"}), ["views"]),
        (Principal("emma in Austria", SEE, where={"customer": "emma", "country": "AT"}), ["views"]),
        (Principal("appender", frozenset({"append"})), []),
    ],
)
def test_the_pages_of_a_holder_are_those_that_have_anything_to_show_to_it(holder: Principal, names: list[str]) -> None:
    """The first one is where it begins: a bill that refuses every customer is no place for that."""
    assert [page.name for page in (BILL, *PAGES) if page.is_for(holder, "billing")] == names
    reaches = [customer for customer in ("emma", "ben") if reached(holder, customer)]
    assert ("bill" in names) == bool(reaches and "read" in holder.roles)


def reached(holder: Principal, customer: str) -> bool:
    try:
        holder.require_customer(customer)
    except AccessDenied:
        return False
    return True
