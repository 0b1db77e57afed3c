"""Savepoints over HTTP: for operators, of our own jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from stateside.core.layout import Layout
from stateside.serving.access.guard import Guard
from stateside.serving.access.tokens import Issuer
from stateside.serving.rows.view_readers import ViewReaders
from stateside.serving.web.application import Application
from stateside.serving.web.operator_routes import savepoint_routes
from tests.billing.written_bills import WrittenBills, plan, step
from tests.serving.web.running import Running

ADDRESS = "/v1/views/bill/savepoints"


@pytest.fixture
def bills(layout: Layout) -> Layout:
    made = WrittenBills.begin(layout, plan())
    made.commit({("emma", 1_769_900_400_000_000, "call", "basic@1"): (60, 1)}, 1)
    step(layout)
    return layout


def asked(layout: Layout, method: str, address: str = ADDRESS, token: str | None = None) -> bytes:
    application = Application(ViewReaders(layout), savepoint_routes(layout), guard=Guard.of(layout))
    presented = f"authorization: Bearer {token}\r\n" if token else ""
    length = "content-length: 0\r\n" if method == "POST" else ""
    with Running(application) as running:
        return running.ask(f"{method} {address} HTTP/1.1\r\nHost: localhost\r\n{presented}{length}\r\n")


def test_one_is_taken_and_listed(bills: Layout) -> None:
    assert b'"savepoints":[]' in asked(bills, "GET")
    assert b'"batch":0' in asked(bills, "POST")
    assert asked(bills, "GET").count(b'"name":"batch-0-') == 1
    assert b"404" in asked(bills, "POST", "/v1/views/nothing/savepoints")[:20]


def test_only_operators_take_one(bills: Layout) -> None:
    issuer = Issuer(bills)
    reader, boss = issuer.create("reader", roles=["read", "sql"])[0], issuer.create_operator("boss")
    for method in ("GET", "POST"):
        assert b"401" in asked(bills, method)[:20]
        assert b"403" in asked(bills, method, token=reader)[:20]
    assert not bills.view("bill").savepoints.exists()
    assert b"200" in asked(bills, "POST", token=boss)[:20]


def test_of_another_job_none_is_taken(bills: Layout, tmp_path: Path) -> None:
    bills.pointer.write_text(f'{{"version": 1, "checkpoint": "{tmp_path / "theirs"}"}}')
    answer = asked(bills, "POST")
    assert b"400" in answer[:20]
    assert b"Savepoints are of our own jobs" in answer
