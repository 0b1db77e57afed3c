"""The proof of a run: the outcome audited, and compared with the generator's expectation.

The auditor proves that everything follows from the journal. The proof adds that the sums are the even ones of the
generator, and that late, duplicate and bad events were treated as such.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from stateside.billing.audit import Audit, audit, live_rows, recheck
from stateside.billing.generator import EVEN_MICROS, ExpectedTotals, Generator
from stateside.billing.invoicing.documents import dead_letters_table, documents_table
from stateside.billing.model import VIEW
from stateside.billing.money import format_micros
from stateside.core.positions import Position
from stateside.serving.clients import Client
from stateside.serving.stamp import parse_time
from stateside.testbed.feeder import NUDGE
from stateside.testbed.system import System
from stateside.testbed.witness import AnswerLog, running_bill, whole_bill

Account = tuple[str, int]  # customer, end of the period in microseconds


@dataclass(frozen=True, slots=True)
class Outcome:
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
    def of(cls, documents: pa.Table, dead_letters: pa.Table, open_rows: Iterable[Mapping[str, Any]]) -> Outcome:
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
    generator: Generator, report: ExpectedTotals, outcome: Outcome, counts: Mapping[str, int], nudges: int
) -> list[str]:
    """The differences from the generator's expectation, a sentence each. `counts` are the auditor's."""
    return [
        *_uneven(generator, outcome),
        *_charged(report, outcome),
        *_compared("customers' periods with late events", report.late, outcome.corrected),
        *_compared("dead letters", set(report.dead_letters.items()), set(outcome.dead_letters.items())),
        *_counted(report, counts, nudges),
    ]


def _uneven(generator: Generator, outcome: Outcome) -> Iterator[str]:
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


def _charged(report: ExpectedTotals, outcome: Outcome) -> Iterator[str]:
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


@dataclass(frozen=True, slots=True)
class ReplicaProof:
    """One replica's proof: the auditor's findings, the outcome, and its differences from the expectation."""

    audit: Audit
    outcome: Outcome
    differences: Sequence[str]

    @classmethod
    def of(
        cls,
        system: System,
        replica: int,
        generator: Generator,
        nudges: int,
        tick: Callable[[int], None] = lambda customer: None,
    ) -> ReplicaProof:
        """Ask for every bill as of the journal's end, one request each, then audit; with a `tick` before each step."""
        layout, rows = system.layout, list[Mapping[str, Any]]()
        several = len(system.urls) > 1  # then no other replica may answer
        with Client(system.urls[replica], direct=several) as client:

            def ask(customer: str, floor: Position) -> dict[str, Any]:
                return dict(client.rows(VIEW, customer, min_position=floor).document)

            end = system.journal.end()
            for number in range(generator.customers):
                tick(number)
                rows += ask(f"c{number}", end)["rows"]
            tick(generator.customers)
            with system.interrupts.at_once():
                get = lambda path, floor: client.get(path, min_position=str(floor))  # noqa: E731
                audited = audit(layout, live_rows(system.replicas[replica]), ask=ask, get=get)
                outcome = Outcome.of(documents_table(layout).read(), dead_letters_table(layout).read(), rows)
                off = differences(generator, generator.report(), outcome, audited.counts, nudges)
        return cls(audited, outcome, off)


@dataclass(frozen=True, slots=True)
class SystemProof:
    """The proof of a system by all its replicas, its journal, and the answers given meanwhile."""

    audit: Audit  # of the first replica
    outcome: Outcome
    differences: tuple[str, ...]
    answers: int  # given to clients meanwhile, and compared
    wrong_answers: tuple[str, ...]  # answers that differ from the journal at their own stamp
    never_journalled: int  # events of the producer missing from the journal
    journalled_twice: int  # events more often in the journal than the producer made them

    @classmethod
    def of(cls, system: System, generator: Generator, record: AnswerLog) -> SystemProof:
        """Judge a system that has come to rest and still serves."""
        ids = [event.id for event in system.journal.events()]
        found = [one for one in ids if not one.startswith(NUDGE)]
        lost, doubled = lost_and_doubled([arrival.event.id for arrival in generator.arrivals()], found)
        check = lambda _: system.interrupts.check()  # noqa: E731
        first, *others = (
            ReplicaProof.of(system, number, generator, len(ids) - len(found), check)
            for number in range(len(system.replicas))
        )
        known = {*first.audit.differences(), *first.differences}
        more = [
            f"Of replica {number}: {told}"
            for number, other in enumerate(others, 2)
            for told in (*other.audit.differences(), *other.differences)
            if told not in known
        ]
        with system.interrupts.at_once():
            rows, bills = record.answers(running_bill), record.answers(whole_bill)
            answers, verdict = recheck(system.layout, system.desk.folder / "recheck", rows, bills)
        off = (*first.differences, *more)
        return cls(first.audit, first.outcome, off, answers, verdict.sentences, lost, doubled)


def lost_and_doubled(made: Iterable[str], found: Iterable[str]) -> tuple[int, int]:
    """How many of the made ids were not found, and how many were found more often than made."""
    ours, theirs = Counter(made), Counter(found)
    return (ours - theirs).total(), (theirs - ours).total()
