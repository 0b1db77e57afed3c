"""Statements over what the real pipeline left: live rows and documents together are the customers' bills."""

from __future__ import annotations

import httpx
import pytest

from tests.serving.conftest import GENERATOR

pytestmark = pytest.mark.spark

AMOUNTS = """
    SELECT customer, sum(amount_micros)::BIGINT, sum(events)::BIGINT
    FROM (
        SELECT customer, amount_micros, events FROM bill
        UNION ALL SELECT customer, amount_micros, events FROM archive.documents
    )
    GROUP BY customer
"""


def test_live_rows_and_documents_add_up_to_every_customer_s_bill(server: str) -> None:
    found = httpx.post(f"{server}/v1/sql", json={"sql": AMOUNTS}, timeout=60).json()
    assert [stamp["source"] for stamp in found["stamps"]] == ["both"]
    sums = {customer: (amount, events) for customer, amount, events in found["rows"]}
    for number in range(GENERATOR.customers):
        periods = httpx.get(f"{server}/v1/customers/c{number}/bill").json()["periods"]
        expected = sum(period["amount_micros"] for period in periods), sum(period["events"] for period in periods)
        assert sums[f"c{number}"] == expected
    letters = httpx.post(f"{server}/v1/sql", json={"sql": "SELECT count(*) FROM archive.dead_letters"}, timeout=60)
    assert letters.json()["rows"] == [[httpx.get(f"{server}/v1/dead-letters").json()["count"]]]
