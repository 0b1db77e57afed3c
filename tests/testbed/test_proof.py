"""The proof: what the generator made must come out, and whatever does not is told."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace

import pytest

from stateside.billing.generator import EVEN_MICROS, ExpectedTotals, Generator, Shares
from stateside.testbed.proof import Outcome, differences

GENERATOR = Generator(1, 20, 5, 2, Shares(duplicate=0.05))


@pytest.fixture(scope="module")
def report() -> ExpectedTotals:
    return GENERATOR.report()


@pytest.fixture
def outcome(report: ExpectedTotals) -> Outcome:
    """Everything as it must be."""
    scenario = GENERATOR.scenario()
    amounts = {
        (f"c{number}", period.end_us): EVEN_MICROS
        for group in scenario.groups
        for number in group.customers.tolist()
        for period in group.periods
    }
    charged: dict[tuple[str, str], int] = defaultdict(int)
    for total in report.totals:
        charged[total.period, total.currency] += total.charged_micros * total.closes
    return Outcome(
        amounts=amounts,
        charged=charged,
        invoices=40,
        late_invoices=0,
        notes=len(report.late),
        corrected=report.late,
        dead_letters=report.dead_letters,
        sealed_periods=("2026-01",),
    )


@pytest.fixture
def counts(report: ExpectedTotals) -> dict[str, int]:
    events = report.events
    return {
        "events": report.journalled + 1,
        "duplicates": events["duplicate"],
        "reference": events["reference"],
        "clock": events["clock"] + 1,
    }


def found(report: ExpectedTotals, outcome: Outcome, counts: dict[str, int]) -> list[str]:
    return differences(GENERATOR, report, outcome, counts, nudges=1)


def test_where_all_is_as_it_must_be_nothing_is_told(
    report: ExpectedTotals, outcome: Outcome, counts: dict[str, int]
) -> None:
    assert found(report, outcome, counts) == []


def test_a_micro_too_little_and_a_missing_period_are_told(
    report: ExpectedTotals, outcome: Outcome, counts: dict[str, int]
) -> None:
    amounts = dict(outcome.amounts)
    first, second, *_ = sorted(amounts)
    amounts[first] -= 1
    del amounts[second]
    told = found(report, replace(outcome, amounts=amounts), counts)
    assert [sentence.partition(": ")[2] for sentence in told] == [
        "billed 99.999999, expected 100.00",
        "billed 0.00, expected 100.00",
    ]


def test_a_bill_of_nobody_is_told(report: ExpectedTotals, outcome: Outcome, counts: dict[str, int]) -> None:
    told = found(report, replace(outcome, amounts={**outcome.amounts, ("nobody", 5): 7}), counts)
    assert told == ["nobody, period to 5: billed 0.000007, expected 0.00"]


def test_a_wrongly_rounded_total_is_told(report: ExpectedTotals, outcome: Outcome, counts: dict[str, int]) -> None:
    charged = dict(outcome.charged)
    charged["2026-01", "USD"] += 10_000
    (told,) = found(report, replace(outcome, charged=charged), counts)
    assert told.startswith("In 2026-01 ") and told.endswith(" USD")


def test_a_note_that_is_missing_is_told(report: ExpectedTotals, outcome: Outcome, counts: dict[str, int]) -> None:
    one = min(report.late)
    (told,) = found(report, replace(outcome, corrected=report.late - {one}), counts)
    assert f"missing [{one!r}] (1)" in told


def test_a_dead_letter_for_another_reason_is_told(
    report: ExpectedTotals, outcome: Outcome, counts: dict[str, int]
) -> None:
    letters = Counter(report.dead_letters)
    letters["malformed"] -= 1
    letters["unknown-type"] += 1
    (told,) = found(report, replace(outcome, dead_letters=letters), counts)
    assert told.startswith("dead letters: missing")


@pytest.mark.parametrize("name", ["events", "duplicates", "reference", "clock"])
def test_other_counts_are_told(report: ExpectedTotals, outcome: Outcome, counts: dict[str, int], name: str) -> None:
    (told,) = found(report, outcome, {**counts, name: counts[name] + 1})
    assert told.startswith(f"{name}: the generator made ")
