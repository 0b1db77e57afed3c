"""The auditor: passes what is right, and finds every kind of tampering, to the micro."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from stateside.billing.calendar import Month
from stateside.billing.generator import Generator
from stateside.billing.invoices import INVOICES
from stateside.billing.model import usage_amount
from stateside.journal import Event, Journal, JournalWriter
from stateside.ops.demo.recount import Audit, audit

CLOSED = {"2026-01", "2026-02"}


INVOICE_LINES = INVOICES.schema.field("lines").type


@dataclass
class Books:
    """A journal, and what was made of it: invoices of the closed months, bills of the open ones."""

    journal: Journal
    invoices: list[dict[str, Any]]
    bills: list[dict[str, Any]]

    def audit(self) -> Audit:
        columns = ("customer", "period", "total_micros", "events")
        table = pa.table({name: [invoice[name] for invoice in self.invoices] for name in columns})
        lines = pa.array([invoice.get("lines", _one_line(invoice)) for invoice in self.invoices], INVOICE_LINES)
        return audit(self.journal, table.append_column("lines", lines), self.bills)


def _one_line(invoice: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"type": "call", "amount_micros": invoice["total_micros"], "events": invoice["events"]}]


def write_books(events: list[Event], folder: Path) -> Books:
    """The right books, each sum by a plain loop."""
    with JournalWriter(folder) as writer:
        writer.append(events)
    accounts: dict[tuple[str, str], dict[str, Any]] = {}
    for event in events:
        account = (event.entity, str(Month.containing(event.time_us)))
        empty = {"customer": account[0], "period": account[1], "total_micros": 0, "events": 0}
        row = accounts.setdefault(account, empty)
        row["total_micros"] += event.payload["amount_micros"]
        row["events"] += 1
    rows = [accounts[account] for account in sorted(accounts)]
    open_rows = [row for row in rows if row["period"] not in CLOSED]
    bills = [
        {"customer": customer, "periods": list(periods)}
        for customer, periods in groupby(open_rows, key=lambda row: row["customer"])
    ]
    return Books(Journal(folder), [row for row in rows if row["period"] in CLOSED], bills)


@pytest.fixture
def books(tmp_path: Path) -> Books:
    arrivals = islice(Generator(seed=4, customers=3, events_per_month=20).arrivals(), 150)
    return write_books([arrival.event for arrival in arrivals], tmp_path)


def test_right_books_have_no_differences(books: Books) -> None:
    found = books.audit()
    assert found.differences() == []
    assert found.journal.events_total == 150 == found.invoiced.events_total + found.open.events_total
    assert found.accounts == {(f"c{c}", f"2026-0{m}") for c in range(3) for m in (1, 2, 3)}
    assert {found.invoiced.micros[f"c{c}", period] for c in range(3) for period in CLOSED} == {100_000_000}
    assert found.open.events_total > 0


def test_an_invoice_that_is_not_the_sum_of_its_lines_is_found(books: Books) -> None:
    first = books.invoices[0]
    first["lines"] = [line | {"amount_micros": line["amount_micros"] - 1} for line in _one_line(first)]
    books.invoices[1]["lines"] = []
    found = books.audit().differences()
    assert found == [f"{row['customer']}'s invoice for {row['period']} is not its lines" for row in books.invoices[:2]]


def test_an_empty_journal_and_empty_books_agree(tmp_path: Path) -> None:
    assert write_books([], tmp_path).audit().differences() == []


def _a_micro_more_on_an_invoice(books: Books) -> set[str]:
    books.invoices[0]["total_micros"] += 1
    return {"c0 in 2026-01"}


def _a_micro_less_on_an_invoice(books: Books) -> set[str]:
    books.invoices[-1]["total_micros"] -= 1
    return {"c2 in 2026-02"}


def _a_micro_more_on_an_open_bill(books: Books) -> set[str]:
    books.bills[1]["periods"][0]["total_micros"] += 1
    return {"c1 in 2026-03"}


def _an_event_counted_twice(books: Books) -> set[str]:
    books.invoices[1]["events"] += 1
    return {"c0 in 2026-02"}


def _a_missing_invoice(books: Books) -> set[str]:
    books.invoices.pop(2)
    return {"c1 in 2026-01"}


def _a_missing_bill(books: Books) -> set[str]:
    books.bills.pop()
    return {"c2 in 2026-03"}


def _a_doubled_invoice(books: Books) -> set[str]:
    books.invoices.append(dict(books.invoices[3]))
    return {"c1 has more than one invoice for 2026-02", "c1 in 2026-02"}


def _an_invoice_in_two_parts(books: Books) -> set[str]:
    whole = books.invoices[3]
    books.invoices.append(whole | {"total_micros": 1, "events": 1})
    whole["total_micros"] -= 1
    whole["events"] -= 1
    return {"c1 has more than one invoice for 2026-02"}


def _an_invoice_whose_bill_is_still_open(books: Books) -> set[str]:
    books.bills[0]["periods"].append(dict(books.invoices[0]))
    return {"c0 in 2026-01"}


def _an_invoice_for_nobody(books: Books) -> set[str]:
    books.invoices.append({"customer": "nobody", "period": "2026-01", "total_micros": 5, "events": 1})
    return {"nobody in 2026-01"}


def _moved(one: dict[str, Any], other: dict[str, Any]) -> None:
    one["total_micros"] -= 5
    other["total_micros"] += 5
    one["events"] -= 1
    other["events"] += 1


def _an_event_moved_to_another_month(books: Books) -> set[str]:
    _moved(books.invoices[0], books.invoices[1])
    return {"c0 in 2026-01", "c0 in 2026-02"}


def _an_event_moved_from_an_invoice_to_an_open_bill(books: Books) -> set[str]:
    _moved(books.invoices[1], books.bills[0]["periods"][0])
    return {"c0 in 2026-02", "c0 in 2026-03"}


def _an_event_moved_to_another_customer(books: Books) -> set[str]:
    _moved(books.invoices[0], books.invoices[2])
    return {"c0 in 2026-01", "c1 in 2026-01"}


def _an_event_that_only_the_journal_has(books: Books) -> set[str]:
    with JournalWriter(books.journal.directory) as writer:
        writer.append([usage_amount("forgotten", "c1", "call", Month(2026, 2).start_us, 0)])
    return {"c1 in 2026-02"}


TAMPERINGS = [value for name, value in list(globals().items()) if name.startswith(("_a_", "_an_"))]


@pytest.mark.parametrize("tamper", TAMPERINGS, ids=lambda tamper: tamper.__name__.strip("_"))
def test_the_audit_finds(books: Books, tamper: Callable[[Books], set[str]]) -> None:
    expected = tamper(books)
    differences = books.audit().differences()
    assert {sentence.partition(":")[0] for sentence in differences} == expected
    assert len(differences) == len(expected)


def test_a_difference_says_what_was_expected_and_what_was_found(books: Books) -> None:
    books.invoices[0]["total_micros"] += 1
    assert books.audit().differences() == [
        "c0 in 2026-01: the journal has 100000000 micros in 20 events, found were 100000001 in 20"
    ]


def test_events_at_the_edge_of_a_month_belong_where_berlin_says(tmp_path: Path) -> None:
    """Around every turn of a month of a year with both changes of the clock, in an order that jumps."""
    turns = [Month(2026, month).end_us for month in range(1, 13)]
    times = [turn + shift for turn in [*turns[::2], *reversed(turns[1::2])] for shift in (-1, 0)]
    books = write_books([usage_amount(f"u{time}", "emma", "call", time, 1) for time in times], tmp_path)
    found = books.audit()
    assert found.differences() == []
    assert found.journal.events["emma", "2026-01"] == 1
    assert {found.journal.events["emma", f"2026-{month:02d}"] for month in range(2, 13)} == {2}
    assert found.journal.events["emma", "2027-01"] == 1


def test_open_bills_may_come_one_by_one(books: Books) -> None:
    def bills() -> Iterator[dict[str, Any]]:
        yield from books.bills

    invoices = pa.Table.from_pylist([invoice | {"lines": _one_line(invoice)} for invoice in books.invoices])
    assert audit(books.journal, invoices, bills()).differences() == []
