"""Expected totals: the result of a generated stream, independent of crashes, restarts and batch sizes.

Which events become notes depends on the batches: an event that arrives too late still counts in its period if its batch
began before any batch had seen the newer events. So for late events the report lists the customers and periods for a
pipeline that keeps up; invoice and notes together have the same amount in any case.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from stateside.billing.generator import rows
from stateside.billing.generator.quantities import EVEN_MICROS, Drawn, charged_micros
from stateside.billing.generator.scenario import CustomerGroup
from stateside.billing.generator.usage import LATE, ON_TIME

Account = tuple[str, str]  # customer, period
_NO_DEAD_LETTERS = (*rows.USAGE_FATES, rows.CLOCK, rows.REFERENCE)


@dataclass(frozen=True, slots=True)
class PeriodTotal:
    """One period in one currency: invoices and notes together, or the running bills if the period stays open."""

    period: str
    currency: str
    period_end_us: int
    closes: bool
    customers: int
    events: int
    amount_micros: int
    charged_micros: int


@dataclass(frozen=True, slots=True)
class ExpectedTotals:
    events: dict[str, int]  # by fate
    totals: list[PeriodTotal]
    late: frozenset[Account]  # with an event that arrives when the period is closed
    wholly_late: frozenset[Account]  # with late events only, which make a late invoice

    @property
    def journalled(self) -> int:
        return sum(self.events.values())

    @property
    def dead_letters(self) -> dict[str, int]:
        """The expected number of dead letters, by reason."""
        return {fate: count for fate, count in self.events.items() if fate not in _NO_DEAD_LETTERS}

    def as_dict(self) -> dict[str, Any]:
        """The report for JSON output."""
        return {
            "even_micros": EVEN_MICROS,
            "journalled": self.journalled,
            "events": {fate: self.events.get(fate, 0) for fate in _NO_DEAD_LETTERS},
            "dead_letters": self.dead_letters,
            "periods": [asdict(total) for total in self.totals],
            "late": {
                "events": self.events.get(rows.NOTE, 0),
                "customers_periods": len(self.late),
                "late_invoices": len(self.wholly_late),
            },
        }


class UsageTally:
    """Sums the usage of groups and periods."""

    def __init__(self) -> None:
        self._totals: dict[tuple[int, str, str], PeriodTotal] = {}
        self._events: Counter[str] = Counter()
        self._late: set[Account] = set()
        self._wholly_late: set[Account] = set()

    def add(self, group: CustomerGroup, index: int, drawn: Drawn, usage: pa.Table) -> None:
        """Add one group's usage of one period."""
        period, currency = group.periods[index], group.first.currency
        for fate, count in zip(*usage["fate"].value_counts().flatten(), strict=True):
            self._events[rows.USAGE_FATES[fate.as_py()]] += count.as_py()
        found = PeriodTotal(
            period=period.label,
            currency=currency,
            period_end_us=period.end_us,
            closes=index < len(group.periods) - 1,
            customers=len(group.customers),
            events=int(drawn.kinds.size),
            amount_micros=EVEN_MICROS * len(group.customers),
            charged_micros=charged_micros(group, drawn),
        )
        key = (period.end_us, period.label, currency)
        self._totals[key] = _sum(self._totals[key], found) if key in self._totals else found
        late, on_time = _customers(usage, LATE), _customers(usage, ON_TIME)
        self._late.update((f"c{number}", period.label) for number in late)
        self._wholly_late.update((f"c{number}", period.label) for number in late - on_time)

    def report(self, other_fates: pa.ChunkedArray) -> ExpectedTotals:
        """The totals so far, including the non-usage events."""
        for entry in other_fates.value_counts().to_pylist():
            self._events[entry["values"]] += entry["counts"]
        totals = [self._totals[key] for key in sorted(self._totals)]
        return ExpectedTotals(dict(self._events), totals, frozenset(self._late), frozenset(self._wholly_late))


def _customers(usage: pa.Table, fate: int) -> set[int]:
    return set(usage.filter(pc.equal(usage["fate"], fate))["customer"].unique().to_pylist())


def _sum(one: PeriodTotal, other: PeriodTotal) -> PeriodTotal:
    return PeriodTotal(
        one.period,
        one.currency,
        one.period_end_us,
        one.closes,
        one.customers + other.customers,
        one.events + other.events,
        one.amount_micros + other.amount_micros,
        one.charged_micros + other.charged_micros,
    )
