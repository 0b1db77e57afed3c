"""The proof of a demo: its outcome compared with the generator's expectation.

The auditor proves that everything follows from the journal. The proof adds that the sums are the even ones of the
generator, and that late, duplicate and bad events were treated as such.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from stateside.billing.generator import EVEN_MICROS, ExpectedTotals, Generator
from stateside.billing.money import format_micros
from stateside.serving.stamp import parse_time

Account = tuple[str, int]  # customer, end of the period in microseconds


@dataclass(frozen=True, slots=True)
class DemoOutcome:
    """The outcome: documents and dead letters from their tables, and open rows from the server."""

    amounts: Mapping[Account, int]  # documents and open rows together
    charged: Mapping[tuple[str, str], int]  # by period and currency, of documents
    invoices: int
    late_invoices: int
    notes: int
    corrected: frozenset[tuple[str, str]]  # customers and periods with notes or late invoices
    dead_letters: Mapping[str, int]  # by reason
    sealed_periods: tuple[str, ...]

    @classmethod
    def of(cls, documents: pa.Table, dead_letters: pa.Table, open_rows: Iterable[Mapping[str, Any]]) -> DemoOutcome:
        """From the tables, and the view's rows of all customers."""
        amounts: Counter[Account] = Counter()
        charged: Counter[tuple[str, str]] = Counter()
        names = ["kind", "customer", "period", "currency", "amount_micros", "charged_micros", "late"]
        found = documents.select(names).to_pylist()
        ends_us = documents["period_end"].cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_pylist()
        for document, end_us in zip(found, ends_us, strict=True):
            amounts[document["customer"], end_us] += document["amount_micros"]
            charged[document["period"], document["currency"]] += document["charged_micros"]
        for row in open_rows:
            amounts[row["customer"], parse_time(row["period_end"])] += row["amount_micros"]
        invoices = [document for document in found if document["kind"] == "invoice"]
        touched = [document for document in found if document["kind"] != "invoice" or document["late"]]
        return cls(
            amounts=amounts,
            charged=charged,
            invoices=len(invoices),
            late_invoices=sum(document["late"] for document in invoices),
            notes=len(found) - len(invoices),
            corrected=frozenset((document["customer"], document["period"]) for document in touched),
            dead_letters=Counter(dead_letters["reason"].to_pylist()),
            sealed_periods=tuple(sorted({document["period"] for document in found})),
        )


def differences(
    generator: Generator, report: ExpectedTotals, outcome: DemoOutcome, counts: Mapping[str, int], nudges: int
) -> list[str]:
    """The differences from the generator's expectation, a sentence each. `counts` are the auditor's."""
    return [
        *_uneven(generator, outcome),
        *_charged(report, outcome),
        *_compared("customers' periods with late events", report.late, outcome.corrected),
        *_compared("dead letters", set(report.dead_letters.items()), set(outcome.dead_letters.items())),
        *_counted(report, counts, nudges),
    ]


def _uneven(generator: Generator, outcome: DemoOutcome) -> Iterator[str]:
    scenario = generator.scenario()
    expected = {
        (f"c{number}", period.end_us)
        for group in scenario.groups
        for number in group.customers.tolist()
        for period in group.periods
    }
    for customer, end_us in sorted(expected | outcome.amounts.keys()):
        amount, wanted = outcome.amounts.get((customer, end_us), 0), EVEN_MICROS * ((customer, end_us) in expected)
        if amount != wanted:
            yield f"{customer}, period to {end_us}: billed {format_micros(amount)}, expected {format_micros(wanted)}"


def _charged(report: ExpectedTotals, outcome: DemoOutcome) -> Iterator[str]:
    for total in report.totals:
        found = outcome.charged.get((total.period, total.currency), 0)
        wanted = total.charged_micros if total.closes else 0
        if found != wanted:
            yield (
                f"In {total.period} {format_micros(found, total.currency)} were charged, "
                f"expected {format_micros(wanted, total.currency)}"
            )


def _compared(what: str, expected: set[Any] | frozenset[Any], found: set[Any] | frozenset[Any]) -> Iterator[str]:
    if expected != found:
        missing, more = sorted(expected - found), sorted(found - expected)
        yield f"{what}: missing {missing[:3]} ({len(missing)}), unexpected {more[:3]} ({len(more)})"


def _counted(report: ExpectedTotals, counts: Mapping[str, int], nudges: int) -> Iterator[str]:
    expected = {
        "events": report.journalled + nudges,
        "duplicates": report.events.get("duplicate", 0),
        "reference": report.events["reference"],
        "clock": report.events["clock"] + nudges,
    }
    for name, wanted in expected.items():
        if name in counts and counts[name] != wanted:
            yield f"{name}: the generator made {wanted:,}, the audit found {counts[name]:,}"
