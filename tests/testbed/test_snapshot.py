"""The snapshot of a demo: one file, that needs nothing else, with the numbers of the run."""

from __future__ import annotations

import re

from stateside.testbed.demo_report import snapshot

REPORT = {
    "ok": True,
    "customers": 2,
    "events": {"events": 1234},
    "documents": {"invoices": 4, "notes": 1},
    "dead_letters": {"unknown-type": 2},
    "requests": {"answered": 9, "failed": 0},
    "latency_ms": {"p50": 1.2, "p99": 8.1},
    "age_ms": {"p50": 140, "p99": 900},
}
AMOUNTS = {"open_micros": 1_250_000, "charged_micros": 6_250_000, "total_micros": 7_500_000}
TOTAL = {"currency": "EUR", "events": 5, "amount_micros": 7_501_234, **AMOUNTS}
PERIODS = [{"period": "2026-01", "currencies": [TOTAL]}]
BILL = {
    "customer": "<b>emma</b>",
    "periods": [
        {"period": "2026-01", "state": "sealed", "documents": [{"number": "I-000000001"}], "events": 5}
        | {"charged_micros": 7_500_000, "currency": "EUR"}
    ],
}
BATCHES = [{"batch": 1, "duration_ms": 250, "rows": 5}, {"batch": 2, "duration_ms": 500, "rows": 0}]


def test_it_has_the_run_s_numbers_and_needs_no_other_file() -> None:
    found = snapshot(REPORT, ["requests   9 answered & more"], PERIODS, BILL, BATCHES)
    for text in ("Everything adds up.", "1,234", "I-000000001", "7.50", "batch 2: 500 ms", "answered &amp; more"):
        assert text in found
    assert "&lt;b&gt;emma" in found
    cells = re.findall(r">([0-9,.]+) EUR<", found[found.index("All customers") : found.index("The bill of")])
    assert cells == ["1.25", "6.25", "7.50"], "what is open and what is charged are the total beside them"
    assert not re.search(r"<script|<link|https?://|url\(|@import", found)


def test_what_does_not_add_up_is_said_first() -> None:
    assert "It does NOT add up." in snapshot(REPORT | {"ok": False}, [], PERIODS, BILL, [])
