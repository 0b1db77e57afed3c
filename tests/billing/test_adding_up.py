"""Answers add up to the cent: bills, totals, what commands print; and the auditor tells where an answer does not."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from copy import deepcopy
from decimal import Decimal
from typing import Any

import pytest

from stateside.billing.answers.bills import bill
from stateside.billing.answers.document_store import DocumentStore, Gate, followed
from stateside.billing.answers.period_names import PublishedPlans
from stateside.billing.answers.totals import ROLLUP, ArchiveSums, all_totals
from stateside.billing.audit.answer_sums import judge_sums, off_in_bill, off_in_periods
from stateside.billing.calendar import Cycle
from stateside.cli.billing import bill_text, documents_text, totals_text
from stateside.core.layout import Layout
from stateside.core.positions import Position
from stateside.serving.rows.view_readers import Floor, ViewReader

from .written_bills import BASIC, WrittenBills, plan, step

JANUARY = Cycle("month", "Europe/Berlin").containing(1_768_000_000_000_000).end_us
FEBRUARY = Cycle("month", "Europe/Berlin").containing(JANUARY).end_us
STAMP = {"batch": 1, "position": "0:1", "age_ms": 311_016}
ANSWER = {"stamp": STAMP, "archive": {"state": "current"}}

# Three types of 33.333333, 33.333333 and 33.333334: 100.00 together, of which each line is 33.33.
THIRDS = re.sub(r"prices\.call = .*", 'prices.call = { price = "33.333333" }', BASIC)
THIRDS = re.sub(r"prices\.message = .*", 'prices.message = { price = "33.333333" }', THIRDS)
THIRDS = THIRDS.replace('"4.99"', '"33.333334"')


class Asked:
    """What a server answers on a folder: emma's January sealed, her February and all of ben's open."""

    def __init__(self, layout: Layout) -> None:
        bills = WrittenBills.begin(layout, plan(THIRDS))
        types = ("call", "message", "package:weekend")
        cells = [("emma", JANUARY), ("ben", FEBRUARY), ("emma", FEBRUARY)]
        bills.commit({(*cell, type_, "basic@1"): (1, 1) for cell in cells for type_ in types})
        gone = bills.seal(JANUARY)
        bills.commit(gone, 9)
        step(layout)
        reader = ViewReader(layout.view("bill"))
        plans = PublishedPlans(lambda: bills.plans, "plans.json")
        live = asyncio.run(reader.rollup(ROLLUP, [], Floor(wait_ms=0)))
        gate = Gate.of(live.stamp)
        rows = {name: asyncio.run(reader.rows([name], Floor(wait_ms=0))).rows for name in ("emma", "ben")}
        reader.close()
        issued = DocumentStore.of(layout)
        self.documents = [document.as_dict() for document in issued.of_customer("emma", gate)]
        self.bills = {name: bill(name, rows[name], issued.of_customer(name, gate), plans) for name in rows}
        sealed = ArchiveSums(followed(layout)).of(None, gate)
        self.periods = {"periods": all_totals(live.rows, sealed, plans)}

    def get(self, path: str, floor: Position) -> dict[str, Any]:
        return self.periods if path == "/v1/periods" else self.bills[path.split("/")[3]]


@pytest.fixture
def asked(layout: Layout) -> Asked:
    return Asked(layout)


def test_bills_and_totals_add_up_with_rounding_as_a_line(asked: Asked) -> None:
    """A bug once: 99.99 on the bill and 100.00 in the totals; with many customers they were further apart."""
    for name, states in (("emma", ["sealed", "draft"]), ("ben", ["draft"])):
        periods = asked.bills[name]["periods"]
        assert [period["state"] for period in periods] == states
        assert {period["charged_micros"] for period in periods} == {100_000_000}
        assert {period["rounding_micros"] for period in periods} == {10_000}
    (january, february) = (period["currencies"][0] for period in asked.periods["periods"])
    names = ("open_micros", "charged_micros", "rounding_micros", "total_micros", "amount_micros")
    assert [january[name] for name in names] == [0, 100_000_000, 10_000, 100_000_000, 100_000_000]
    assert [february[name] for name in names] == [200_000_000, 0, 0, 200_000_000, 200_000_000]
    assert judge_sums(asked.get, ["emma", "ben"], Position.of({"0": 9})).sentences == ()


def test_what_commands_print_adds_up(asked: Asked) -> None:
    shown = bill_text({**asked.bills["emma"], **ANSWER})
    assert "2026-01  sealed  100.00 EUR  (I-000000001)" in shown
    assert "5 min old" in shown
    lines = re.findall(r"^  .* (-?[\d.]+) EUR$", shown, re.MULTILINE)
    assert [Decimal(line) for line in lines] == [Decimal(line) for line in ("33.33", "33.33", "33.33", "0.01")] * 2
    assert shown.splitlines()[-2] == "all periods: 200.00 EUR"
    document = documents_text(asked.documents, lines=True)
    assert re.search(r"  rounding +0\.01 EUR$", document, re.MULTILINE)
    for period in asked.periods["periods"]:
        rows = [line.split() for line in totals_text({**period, **ANSWER}).splitlines()[1:-1]]
        *parts, total = [[Decimal(cell) for cell in row[-3:]] if len(row) > 4 else _rounding(row) for row in rows]
        assert [sum(column) for column in zip(*parts, strict=True)] == total
        assert all(first + second == both for first, second, both in (*parts, total))


def test_what_a_command_lacks_of_the_documents_is_printed(asked: Asked) -> None:
    unknown = {"after": "2026-01-04T00:00:00Z", "up_to": "2026-02-04T00:00:00Z"}
    away = {"state": "away", "as_of": "2026-02-18T12:30:00Z", "age_ms": 78_000, "position": "0:9", "unknown": unknown}
    told = "The storage of the invoices is away: they are 78.0 s old, as of 2026-02-18T12:30:00Z; periods that ended"
    shown = bill_text({**asked.bills["emma"], "stamp": STAMP, "archive": away})
    assert f"{told} after 2026-01-04T00:00:00Z and up to 2026-02-04T00:00:00Z are missing." in shown
    nothing = {**away, "as_of": None, "age_ms": None, "unknown": {**unknown, "after": None}}
    shown = totals_text({**asked.periods["periods"][0], "stamp": STAMP, "archive": nothing})
    assert "none of them is known; periods that ended up to 2026-02-04T00:00:00Z are missing." in shown


def _rounding(row: list[str]) -> list[Decimal]:
    """The row of the rounding: nothing of it is open."""
    return [Decimal(0), *(Decimal(cell) for cell in row[-2:])]


Change = Callable[[dict[str, Any]], object]
WRONG_BILLS: list[tuple[Change, str]] = [
    (
        lambda bill: bill["periods"][0].update(rounding_micros=0),
        "2026-01: its lines and their rounding add up to 99.99",
    ),
    (lambda bill: bill["periods"][0]["lines"][0].update(amount_micros=1), "2026-01: its lines add up to 66.666668 EUR"),
    (lambda bill: bill["periods"][0]["documents"].clear(), ""),
    (
        lambda bill: bill["periods"][0]["documents"][0].update(charged_micros=99_990_000),
        "its documents add up to 99.99",
    ),
    (lambda bill: bill["periods"][1]["lines"][0].update(events=7), "2026-02: its lines add up to 9 events"),
    (
        lambda bill: bill["totals"][0].update(charged_micros=1),
        "in EUR: its periods add up to 200.00 EUR of charged_mic",
    ),
    (lambda bill: bill["totals"][0]["types"].pop(), "in EUR: its types add up to"),
]


@pytest.mark.parametrize(("change", "words"), WRONG_BILLS)
def test_a_bill_that_does_not_add_up_is_told(asked: Asked, change: Change, words: str) -> None:
    wrong = deepcopy(asked.bills["emma"])
    change(wrong)
    told = " ".join(off_in_bill(wrong))
    assert words in told
    assert bool(told) == bool(words)


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("rounding_micros", "the types and their rounding add up to 99.99"),
        ("total_micros", "are not the 0.00"),
        ("charged_micros", "of charged_micros are not the 100.00 EUR of total_micros"),
        ("open_micros", "the types add up to 0.00 EUR of open_micros"),
        ("events", "the types add up to 3 events"),
    ],
)
def test_totals_that_do_not_add_up_are_told(asked: Asked, field: str, words: str) -> None:
    wrong = deepcopy(asked.periods)
    total = wrong["periods"][0]["currencies"][0]
    total[field] = 1 if field in ("open_micros", "events") else 0
    assert words in " ".join(off_in_periods(wrong))
