"""Management's statement for the top customers of a period, over a billing folder made without Spark."""

from __future__ import annotations

import asyncio
import re
from importlib.resources import files
from typing import Any

import pytest

from stateside.billing.answers.document_store import Gate, followed, sql_tables
from stateside.billing.answers.period_names import PublishedPlans
from stateside.billing.answers.totals import ROLLUP, ArchiveSums, all_totals
from stateside.billing.calendar import Cycle
from stateside.core.layout import Layout
from stateside.serving.rows.view_readers import Floor, ViewReader
from stateside.serving.sql.process import SqlRunner
from tests.billing.written_bills import BASIC, WrittenBills, plan, step
from tests.serving.sql.asking import Asker

DAILY = BASIC.replace('"basic"', '"daily"').replace('"month"', '"day"')
JANUARY = Cycle("month", "Europe/Berlin").containing(1_768_000_000_000_000).end_us


def statement(period: dict[str, Any], currency: str) -> str:
    """What the page asks: the text is its own, and these are its values."""
    script = files("stateside.billing.pages").joinpath("static", "questions.js").read_text()
    found = re.search(r"function topCustomers.*?rowsOf\(\s*`(.*?)`", script, re.DOTALL)
    assert found is not None
    times = {name: f"TIMESTAMPTZ '{end}'" for name, end in period["plans"].items()}
    values = {
        "$ends": ", ".join(times.values()),
        "$pairs": ", ".join(f"('{name}', {end})" for name, end in times.items()),
        "$currency": f"'{currency}'",
        "${TOP}": "10",
    }
    text = found[1]
    for name, value in values.items():
        text = text.replace(name, value)
    assert "$" not in text
    return text


@pytest.mark.parametrize("sealed", [False, True])
def test_top_customers_of_a_month_add_up_to_its_total_beside_a_day_that_ends_with_it(
    layout: Layout, sealed: bool
) -> None:
    bills = WrittenBills.begin(layout, plan(), plan(DAILY))
    usage = {
        ("emma", JANUARY, "call", "basic@1"): (120, 2),
        ("emma", JANUARY, "call", "daily@1"): (600, 7),
        ("ben", JANUARY, "call", "daily@1"): (180, 1),
        ("urs", JANUARY, "message", "basic@1"): (3, 3),
    }
    bills.commit(usage, 1)
    if sealed:
        bills.position = 1
        bills.commit(bills.seal(JANUARY), 2)
    step(layout)
    reader = ViewReader(layout.view("bill"))
    live = asyncio.run(reader.rollup(ROLLUP, [], Floor(wait_ms=0)))
    reader.close()
    documents = ArchiveSums(followed(layout)).of(None, Gate.of(live.stamp))
    periods = {one["period"]: one for one in all_totals(live.rows, documents, PublishedPlans(lambda: bills.plans, ""))}
    asker = Asker(layout, SqlRunner(layout, sql_tables()))
    tops = {label: asker.rows(statement(period, "EUR")) for label, period in periods.items()}
    assert tops["2026-01"] == [["urs", 300_000, 3], ["emma", 90_000, 2]]
    assert [top[0] for top in tops["2026-01-31"]] == ["emma", "ben"]
    for label, (total,) in ((label, period["currencies"]) for label, period in periods.items()):
        assert sum(top[1] for top in tops[label]) == total["amount_micros"]
        assert sum(top[2] for top in tops[label]) == total["events"]
