"""The pace of a period: what all customers' bills are up to an hour of it, against the period before at the same hour.

An hour is the same in both if as many days and hours have passed since the first midnight, by the clocks of the plan's
time zone: the 18th of April at two in the afternoon, and the 18th of March. The last full hour counts that the job's
clock has passed, which is the newest event's time. Where the period is over, or the one before has no such day, it is
all of it.

The hours come from the journal (`hours`), the amounts of the periods from the totals at the same position. What hours
and totals differ by is told: the journal may have dropped events, or have some twice that came too late.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any, Final
from zoneinfo import ZoneInfo

import numpy as np

from stateside.billing.answers.hours import HOURS_PER_DAY, Hour, Hours, hour_numbers
from stateside.billing.answers.periods import Ends
from stateside.billing.calendar import Cycle
from stateside.billing.model import GRACE_US
from stateside.billing.plans.file import PlanVersion
from stateside.serving.stamp import iso_time

_ALL: Final = 10**6  # more hours than any period has

Totals = Mapping[str, Any]  # of a period, as `totals.period_totals` shows them


def label_before(label: str, cycles: Mapping[str, Cycle]) -> str | None:
    """The name of the period before this one; None for a name that no plan has a period of."""
    for plan, end_us in Ends.of(label, cycles).by_plan.items():
        return cycles[plan].containing(cycles[plan].ending(end_us).start_us - 1).label
    return None


def pace(
    totals: Totals, before: Totals, found: Hours, plans: Mapping[str, PlanVersion], watermark_us: int
) -> dict[str, Any]:
    """As the API shows it, by currency. `found` has the hours of both periods, by the events that the totals have."""
    cycles = {name: plan.cycle for name, plan in plans.items()}
    ends, ends_before = (Ends.of(one["period"], cycles) for one in (totals, before))
    now_us = max(found.newest_us, watermark_us + GRACE_US)
    passed = {plan: _passed(cycles[plan], end_us, now_us) for plan, end_us in ends.by_plan.items()}
    currencies = sorted({one["currency"] for one in totals["currencies"]})
    shown = []
    for currency in currencies:
        names = [name for name, plan in plans.items() if plan.currency == currency and name in passed]
        sides = [_Side.of(one, names, found.hours) for one in (ends, ends_before)]
        shown.append(_shown(currency, sides, (totals, before), {name: passed[name] for name in names}, cycles))
    over = all(hours == _ALL for hours in passed.values())
    return {
        "period": totals["period"],
        "before": before["period"],
        "now": iso_time(min(now_us, max(ends.ends_us, default=now_us))),
        "over": over,
        "currencies": shown,
    }


@dataclass(frozen=True, slots=True)
class _Side:
    """One of both periods in one currency."""

    ends: Mapping[str, int]  # of each plan that has it
    hours: Sequence[Hour]

    @classmethod
    def of(cls, ends: Ends, plans: Sequence[str], hours: Sequence[Hour]) -> _Side:
        mine = {plan: end_us for plan, end_us in ends.by_plan.items() if plan in plans}
        return cls(mine, [hour for hour in hours if mine.get(hour.plan) == hour.end_us])

    def up_to(self, passed: Mapping[str, int]) -> int:
        """The amount up to an hour of each plan."""
        return sum(hour.amount_micros for hour in self.hours if hour.number < passed[hour.plan])

    def days(self, count: int) -> list[int]:
        """What each day added."""
        sums: dict[int, int] = defaultdict(int)
        for hour in self.hours:
            sums[hour.number // HOURS_PER_DAY] += hour.amount_micros
        return [sums[day] for day in range(count)]

    def unplaced(self, totals: Totals, currency: str) -> int:
        """What the totals have, and no hour."""
        amount: int = sum(one["amount_micros"] for one in totals["currencies"] if one["currency"] == currency)
        return amount - sum(hour.amount_micros for hour in self.hours)


def _shown(
    currency: str,
    sides: Sequence[_Side],
    both: Sequence[Totals],
    passed: Mapping[str, int],
    cycles: Mapping[str, Cycle],
) -> dict[str, Any]:
    plan = min(passed)  # whose days are shown; plans of one currency mostly have one time zone
    (first, count), (first_before, count_before) = (_days(cycles[plan], side.ends[plan]) for side in sides)
    hours = min(passed[plan], count * HOURS_PER_DAY)
    now, before = sides
    return {
        "currency": currency,
        "hours": hours,
        "first_day": str(first),
        "first_day_before": str(first_before),
        "amount_micros": now.up_to(passed),
        "amount_before_micros": before.up_to(passed),
        "days": now.days(min(count, -(-(hours + 1) // HOURS_PER_DAY))),
        "days_before": before.days(count_before),
        "days_in_period": count,
        "unplaced_micros": now.unplaced(both[0], currency),
        "unplaced_before_micros": before.unplaced(both[1], currency),
    }


def _passed(cycle: Cycle, end_us: int, now_us: int) -> int:
    """How many full hours of a period have passed; `_ALL` if it is over."""
    period = cycle.ending(end_us)
    if now_us >= end_us:
        return _ALL
    if now_us < period.start_us:
        return 0
    return int(hour_numbers(cycle, np.array([now_us]), np.array([end_us]))[0])


def _days(cycle: Cycle, end_us: int) -> tuple[date, int]:
    """A period's first day, and how many it has."""
    period, zone = cycle.ending(end_us), ZoneInfo(cycle.time_zone)
    first, last = (
        datetime.fromtimestamp(us // 1_000_000, zone).date() for us in (period.start_us, period.end_us - 1_000_000)
    )
    return first, (last - first) // timedelta(days=1) + 1
