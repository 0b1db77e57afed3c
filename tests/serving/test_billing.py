"""Billing's answers on a real server, on a folder that the real pipeline made of generated events. The job is down."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from typing import Any

import httpx
import pytest

from stateside.billing.money import format_micros
from stateside.core.errors import AccessDenied, DocumentUnknown, RequestInvalid, TokenInvalid
from stateside.core.layout import Layout
from stateside.journal import FileLog
from stateside.serving.access.tokens import Issuer
from stateside.serving.clients import Client

from .conftest import GENERATOR

pytestmark = pytest.mark.spark

CUSTOMERS = [f"c{number}" for number in range(GENERATOR.customers)]


def bill(url: str, customer: str) -> dict[str, Any]:
    with Client(url) as client:
        return client.get(f"/v1/customers/{customer}/bill")


def test_every_period_of_every_customer_is_what_the_generator_said(server: str) -> None:
    found: Counter[tuple[str, str]] = Counter()
    states: Counter[str] = Counter()
    for customer in CUSTOMERS:
        for period in bill(server, customer)["periods"]:
            found[period["period"], period["currency"]] += period["charged_micros"]
            states[period["state"]] += 1
    assert found == {(total.period, total.currency): total.charged_micros for total in GENERATOR.report().totals}
    assert min(states["draft"], states["sealed"], states["corrected"]) > 0, states


def test_every_balance_is_explained_by_its_very_events_page_by_page(server: str) -> None:
    late: set[str] = set()
    with Client(server) as client:
        for customer in CUSTOMERS:
            path = f"/v1/customers/{customer}/bill/explain"
            for period in bill(server, customer)["periods"]:
                asked: dict[str, Any] = {"period": period["period"], "currency": period["currency"], "limit": 5}
                page = client.get(path, **asked)
                events = page["events"]
                while page["cursor"] is not None:
                    page = client.get(path, **asked, after=page["cursor"])
                    events += page["events"]
                assert len(events) == len({event["offset"] for event in events}) == period["events"]
                assert sum(event["amount_micros"] for event in events) == period["amount_micros"]
                late |= {event["document"] for event in events if event["late"]}
    assert late, "some events came too late, and are shown with their documents"


def test_totals_of_a_period_are_all_its_bills_and_never_over_currencies(server: str) -> None:
    expected: Counter[tuple[str, str]] = Counter()
    for customer in CUSTOMERS:
        for period in bill(server, customer)["periods"]:
            expected[period["period"], period["currency"]] += period["amount_micros"]
    with Client(server) as client:
        for label in {label for label, _ in expected}:
            answer = client.get(f"/v1/periods/{label}/totals")
            found = {(label, total["currency"]): total["amount_micros"] for total in answer["currencies"]}
            assert found == {key: amount for key, amount in expected.items() if key[0] == label}
            for total in answer["currencies"]:
                of_types = [one for one in answer["totals"] if one["currency"] == total["currency"]]
                assert sum(one["amount_micros"] for one in of_types) == total["amount_micros"]
        with pytest.raises(RequestInvalid, match="is no period"):
            client.get("/v1/periods/January/totals")


def test_documents_are_listed_by_customer_found_by_number_and_printed(server: str) -> None:
    with Client(server) as client:
        listed = {c: client.get(f"/v1/customers/{c}/invoices")["documents"] for c in CUSTOMERS}
        every = [document for documents in listed.values() for document in documents]
        invoices = sorted(document["number"] for document in every if document["kind"] == "invoice")
        assert invoices == [f"I-{number:09}" for number in range(1, len(invoices) + 1)]
        for document in every:
            assert client.get(f"/v1/invoices/{document['number']}")["document"] == document
            if document["corrects"]:
                assert document["corrects"] in invoices
        response = httpx.get(f"{server}/v1/invoices/{invoices[0]}.pdf")
        assert response.headers["content-type"] == "application/pdf"
        assert response.content.startswith(b"%PDF")
        assert int(response.headers["stateside-batch"]) >= 0, "stamped too"
        assert client.content(f"/v1/invoices/{invoices[0]}.pdf") == response.content
        for number in ("I-999999999", "I-999999999.pdf", "nonsense"):
            with pytest.raises(DocumentUnknown):
                client.get(f"/v1/invoices/{number}")


def test_dead_letters_are_counted_listed_and_shown(server: str) -> None:
    with Client(server) as client:
        answer = client.get("/v1/dead-letters")
        assert answer["reasons"] == GENERATOR.report().dead_letters
        assert answer["count"] == len(answer["dead_letters"])
        first = client.get("/v1/dead-letters", limit=2)
        assert first["dead_letters"] == answer["dead_letters"][:2]
        assert first["cursor"] == first["dead_letters"][-1]["offset"]
        (letter,) = client.get("/v1/dead-letters", reason="future-dated")["dead_letters"]
        assert client.get(f"/v1/dead-letters/{letter['offset']}")["dead_letter"] == letter
        with pytest.raises(DocumentUnknown):
            client.get("/v1/dead-letters/0")


def test_every_answer_is_stamped_and_takes_a_floor(server: str, billing_folder: Layout) -> None:
    end = FileLog(billing_folder.journal).end()
    paths = ["/v1/customers/c1/bill", "/v1/customers/c1/bill/explain", "/v1/customers/c1/invoices"]
    paths += ["/v1/invoices/I-000000001", "/v1/periods/2026-01/totals", "/v1/dead-letters"]
    with Client(server) as client:
        for path in paths:
            assert client.get(path, min_position=end)["stamp"]["position"] == str(end)
            with pytest.raises(RequestInvalid, match="no parameter 'colour'"):
                client.get(path, colour="red")


def test_nobody_s_bill_is_empty_and_cannot_be_explained(server: str) -> None:
    assert bill(server, "nobody")["periods"] == []
    with Client(server) as client, pytest.raises(RequestInvalid, match="has no bill for any period"):
        client.get("/v1/customers/nobody/bill/explain")
    with Client(server) as client, pytest.raises(RequestInvalid, match="There are: "):
        client.get("/v1/customers/c1/bill/explain", period="1999-01")


def stateside(*arguments: str, **environ: str) -> str:
    command = [sys.executable, "-m", "stateside", *arguments]
    done = subprocess.run(
        command, env={**os.environ, **environ}, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.e2e
def test_the_command_shows_the_same(server: str) -> None:
    """The others are run by tests/docs/test_billing.py."""
    shown = stateside("billing", "bill", "c1", "--url", server)
    period = bill(server, "c1")["periods"][-1]
    assert f"{period['period']}  draft  {format_micros(period['charged_micros'], period['currency'])}" in shown
    whole = json.loads(stateside("billing", "bill", "c1", "--json", "--url", server))
    assert whole["periods"] == bill(server, "c1")["periods"]


@pytest.mark.e2e
def test_a_customer_s_token_reaches_that_customer_s_own_data_only(billing_folder: Layout, server: str) -> None:
    """On the same folder, whose first server lets everybody in until there are tokens: then it needs one too."""
    issuer = Issuer(billing_folder)
    ours, theirs = issuer.create_operator("ours"), issuer.create_customer("c1's", "c1")
    try:
        own = httpx.get(f"{server}/v1/customers/c1/invoices", headers={"Authorization": f"Bearer {ours}"}).json()
        number = own["documents"][0]["number"]
        with Client(server, token=theirs) as client:
            for path in ("bill", "bill/explain", "invoices"):
                assert client.get(f"/v1/customers/c1/{path}")["customer"] == "c1"
            assert client.get(f"/v1/invoices/{number}")["document"]["customer"] == "c1"
            assert client.content(f"/v1/invoices/{number}.pdf").startswith(b"%PDF")
            for path in ("/v1/views/bill/rows", "/v1/views/bill/rows/c1"):
                assert {row["customer"] for row in client.get(path)["rows"]} == {"c1"}
            assert [each["view"] for each in client.get("/v1/views")["views"]] == ["bill"]
            others = [f"/v1/invoices/I-{n:09}" for n in range(1, 13)]
            denied = ["/v1/customers/c2/bill", "/v1/customers/c2/invoices", "/v1/periods/2026-01/totals"]
            denied += ["/v1/dead-letters", "/v1/dead-letters/5", "/v1/views/bill/rows/c2", "/v1/invoices/I-999999999"]
            denied += ["/v1/customers/c2/bill/explain", "/v1/customers/C1/bill", "/v1/customers//bill"]
            denied += [path for path in others if path != f"/v1/invoices/{number}" and path not in _own(own)]
            for path in denied:
                with pytest.raises(AccessDenied):
                    client.get(path)
        with Client(server) as client, pytest.raises(TokenInvalid):
            client.get("/v1/customers/c1/bill")
        assert "c1" in stateside("billing", "bill", "c1", "--json", "--url", server, STATESIDE_TOKEN=theirs)
    finally:
        billing_folder.keys.unlink()
        billing_folder.issued.unlink()


def _own(answer: dict[str, Any]) -> set[str]:
    return {f"/v1/invoices/{document['number']}" for document in answer["documents"]}
