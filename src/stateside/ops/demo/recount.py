"""The auditor: recomputes every bill from the journal alone and compares. It shares no code with the pipeline.

The conservation law: every event of the journal is in exactly one invoice or in exactly one open bill, and for every
customer and month the sum of its events is the sum that was invoiced or is shown, to the micro.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import pyarrow as pa

from stateside.billing.calendar import Month
from stateside.journal import Journal

Account = tuple[str, str]  # customer, period


@dataclass(slots=True)
class Sums:
    """Amounts and numbers of events by customer and period."""

    micros: Counter[Account] = field(default_factory=Counter)
    events: Counter[Account] = field(default_factory=Counter)

    def add(self, account: Account, micros: int, events: int) -> None:
        """Count so much more for an account."""
        self.micros[account] += micros
        self.events[account] += events

    @property
    def events_total(self) -> int:
        """All events."""
        return self.events.total()


@dataclass(frozen=True, slots=True)
class Audit:
    """What the journal says, and what was found in invoices and open bills."""

    journal: Sums
    invoiced: Sums
    open: Sums
    doubled_invoices: list[Account]
    untrue_invoices: list[Account]  # whose lines do not add up to their total

    @property
    def accounts(self) -> set[Account]:
        """Every customer and period that anything is known of."""
        return self.journal.events.keys() | self.invoiced.events.keys() | self.open.events.keys()

    def differences(self) -> list[str]:
        """Where the law is broken, a sentence each; none if everything adds up."""
        doubled = [f"{customer} has more than one invoice for {period}" for customer, period in self.doubled_invoices]
        untrue = [f"{customer}'s invoice for {period} is not its lines" for customer, period in self.untrue_invoices]
        return (
            doubled
            + untrue
            + [sentence for account in sorted(self.accounts) if (sentence := self._difference(account))]
        )

    def _difference(self, account: Account) -> str | None:
        micros = self.invoiced.micros[account] + self.open.micros[account]
        events = self.invoiced.events[account] + self.open.events[account]
        if (micros, events) == (self.journal.micros[account], self.journal.events[account]):
            return None
        return (
            f"{account[0]} in {account[1]}: the journal has {self.journal.micros[account]} micros in "
            f"{self.journal.events[account]} events, found were {micros} in {events}"
        )


def audit(journal: Journal, invoices: pa.Table, open_bills: Iterable[dict[str, object]]) -> Audit:
    """Compare the journal with the invoices and the open bills (as the API gives them) of the same moment."""
    invoiced = Sums()
    seen: Counter[Account] = Counter()
    untrue: list[Account] = []
    for row in invoices.select(["customer", "period", "total_micros", "events", "lines"]).to_pylist():
        account = (row["customer"], row["period"])
        seen[account] += 1
        invoiced.add(account, row["total_micros"], row["events"])
        lines = [(line["amount_micros"], line["events"]) for line in row["lines"]]
        if [sum(column) for column in zip(*lines, strict=True)] != [row["total_micros"], row["events"]]:
            untrue.append(account)
    doubled = sorted(account for account, count in seen.items() if count > 1)
    return Audit(_journal_sums(journal), invoiced, _open_sums(open_bills), doubled, untrue)


def _open_sums(bills: Iterable[dict[str, object]]) -> Sums:
    sums = Sums()
    for bill in bills:
        periods = bill["periods"]
        assert isinstance(periods, list)
        for period in periods:
            sums.add((str(bill["customer"]), period["period"]), period["total_micros"], period["events"])
    return sums


def _journal_sums(journal: Journal) -> Sums:
    sums = Sums()
    months = _Months()
    for event in journal.events():
        sums.add((event.entity, months.label(event.time_us)), event.payload["amount_micros"], 1)
    return sums


class _Months:
    """Finds the month of a moment among those met so far, instead of by the calendar each time."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._months: list[Month] = []

    def label(self, time_us: int) -> str:
        at = bisect_right(self._starts, time_us) - 1
        if at < 0 or time_us >= self._months[at].end_us:
            month = Month.containing(time_us)
            at = bisect_right(self._starts, month.start_us)
            self._starts.insert(at, month.start_us)
            self._months.insert(at, month)
        return str(self._months[at])
