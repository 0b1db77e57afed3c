"""Customers who telephone: a stream of usage events that is the same for the same seed, and adds up to even sums.

Every customer's events of one month add up to exactly 100.00, whatever their number and single amounts. Events come in
late and out of order, yet within the grace time: whatever is lost, doubled or put into the wrong month shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from stateside.billing.calendar import Month
from stateside.billing.model import AMOUNT_TYPES, GRACE_DAYS, MICROS_PER_UNIT, usage_amount
from stateside.journal import Event

FIRST_MONTH = Month(2026, 1)
PERIOD_SUM_MICROS = 100 * MICROS_PER_UNIT
_HOUR_US = 3_600_000_000
_DELAY_US_USUAL = 2 * _HOUR_US
_DELAY_US_MAX = GRACE_DAYS * 24 * _HOUR_US - _HOUR_US
_LATE_SHARE = 0.15
_TYPE_SHARES = (0.5, 0.25, 0.2, 0.05)


@dataclass(frozen=True, slots=True)
class Arrival:
    """An event and the moment, on the generator's own time line, at which it reaches the journal."""

    arrival_us: int
    event: Event

    @property
    def late(self) -> bool:
        """Whether it comes in after its month's end."""
        return self.arrival_us >= Month.containing(self.event.time_us).end_us


@dataclass(frozen=True, slots=True)
class Generator:
    """So many customers with so many events a month each, from a first month on, without end."""

    seed: int
    customers: int
    events_per_month: int
    first: Month = FIRST_MONTH

    def arrivals(self) -> Iterator[Arrival]:
        """All events in the order in which they come in. Holds a month and the late ones of the month before."""
        waiting = pa.table({})
        month = self.first
        while True:
            known = self._month(month)
            known = pa.concat_tables([waiting, known]).sort_by("arrival_us") if waiting.num_rows else known
            arrived = pa.compute.less(known["arrival_us"], month.end_us)
            yield from _rows(known.filter(arrived))
            waiting = known.filter(pa.compute.invert(arrived))
            month = month.next()

    def _month(self, month: Month) -> pa.Table:
        """One month's events of all customers, in order of arrival."""
        random = np.random.default_rng([self.seed, month.year, month.month])
        count = self.customers * self.events_per_month
        times = random.integers(month.start_us, month.end_us, count)
        late = random.random(count) < _LATE_SHARE
        delays = random.integers(0, np.where(late, _DELAY_US_MAX, _DELAY_US_USUAL))
        table = pa.table(
            {
                "id": np.char.add(f"{month}-", np.arange(count).astype(str)),
                "customer": np.char.add("c", np.repeat(np.arange(self.customers), self.events_per_month).astype(str)),
                "type": np.array(AMOUNT_TYPES)[random.choice(len(AMOUNT_TYPES), count, p=_TYPE_SHARES)],
                "time_us": times,
                "arrival_us": times + delays,
                "amount_micros": _even_split(random, self.customers, self.events_per_month).ravel(),
            }
        )
        return table.sort_by("arrival_us")


def _even_split(random: np.random.Generator, rows: int, parts: int) -> np.ndarray:
    """Random amounts, `parts` to a row, each row adding up to the period's sum."""
    cuts = np.sort(random.integers(0, PERIOD_SUM_MICROS + 1, (rows, parts - 1)), axis=1)
    edges = np.hstack([np.zeros((rows, 1), int), cuts, np.full((rows, 1), PERIOD_SUM_MICROS)])
    return np.diff(edges, axis=1)


def _rows(table: pa.Table) -> Iterator[Arrival]:
    names = ("arrival_us", "id", "customer", "type", "time_us", "amount_micros")
    for arrival_us, *fields in zip(*(table[name].to_pylist() for name in names), strict=True):
        yield Arrival(arrival_us, usage_amount(*fields))
