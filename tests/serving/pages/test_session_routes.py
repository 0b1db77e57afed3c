"""The session's routes: what a browser is told of itself, and which pages are for whom."""

from __future__ import annotations

import json

import pytest

from stateside.layout import Layout
from stateside.serving.access.guard import Guard
from stateside.serving.pages.page import PAGES
from stateside.serving.pages.session_routes import session_routes
from stateside.serving.reading.views import Views
from stateside.serving.web.application import Application
from tests.serving.web.running import Running


@pytest.mark.parametrize(("host", "status"), [("localhost", b"200"), ("evil.example", b"403")])
def test_an_open_server_does_not_tell_a_stranger_s_page_that_it_is_open(
    layout: Layout, host: str, status: bytes
) -> None:
    guard = Guard.of(layout)
    body = json.dumps({"token": "x"})
    application = Application(Views(layout), session_routes(guard, PAGES, secure=False), guard=guard)
    with Running(application) as running:
        asked = running.ask(f"GET /v1/session HTTP/1.1\r\nHost: {host}\r\n\r\n")
        length = f"Content-Length: {len(body)}\r\n"
        signed_in = running.ask(f"POST /v1/session HTTP/1.1\r\nHost: {host}\r\n{length}\r\n{body}")
        assert running.ask(f"GET /healthz HTTP/1.1\r\nHost: {host}\r\n\r\n").split()[1] == b"200"
    for answer in (asked, signed_in):
        assert (answer.split()[1], b'"open":true' in answer) == (status, status == b"200")
