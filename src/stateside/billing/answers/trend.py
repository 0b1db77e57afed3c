"""The course of a bill's period with a forecast, and the pace of all bills against the previous period.

**Course** (`PeriodTrend`). A day's amount is the sum of its events' amounts, as in `explain`; so all days together are
the bill's amount, to the micro. Days are in the plan's time zone, and an event counts on the day of its event time, not
of its arrival.

The *forecast* extrapolates calls, messages and data at the daily rate so far, and prices the quantities by the plan,
with its allowance and tiers. Packages, fees and credits stay as they are: more of them may or may not come. *So far* is
up to the job's clock, which is its newest event's time. In the first tenth of a period there is no forecast.

**Pace** (`pace`). The amount of all customers' bills up to an hour of the period, against the previous period at the
same hour. Two hours correspond if as many days and hours have passed since the first midnight, by the clocks of the
plan's time zone: the 18th of April at two in the afternoon, and the 18th of March. The last full hour before the job's
clock counts. If the period is over, or the previous one has no such day, the whole period counts.

The hours come from the journal (`hours`), the amounts of the periods from the totals at the same position. The
difference between hours and totals is reported: the journal may have dropped events, or may have late events twice.

**Cache of paces** (`Paces`). A fold reads two periods' events from the journal, some seconds per million, in a child
process, one fold at a time. A cached pace is valid as long as the totals are unchanged; or, while events keep arriving,
until its age is `KEPT_S` or `SHARE` times the duration of its fold, whichever is longer. Its stamp has its age. The
first caller waits for `WAIT_S`, and then gets None. After a failed fold there is no other for `SHARE` times its
duration: callers get the cached pace, or else the error.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final
from zoneinfo import ZoneInfo

import numpy as np

from stateside.billing.answers.bills import BillPeriod, rounding_of
from stateside.billing.answers.explain import Behind
from stateside.billing.answers.hours import HOURS_PER_DAY, Hour, Hours, hour_numbers
from stateside.billing.answers.period_names import Ends, PublishedPlans
from stateside.billing.calendar import Cycle, Period
from stateside.billing.model import GRACE_US, lateness_in_force
from stateside.billing.money import checked, round_micros
from stateside.billing.plans.file import PlanVersion
from stateside.core import Layout, processes
from stateside.core.errors import StateError
from stateside.journal import PARTITION
from stateside.serving import Stamp, iso_time

GOES_ON: Final = ("call", "message", "data")
FORECAST_FROM: Final = 0.1  # of the period
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class PeriodTrend:
    """The course of a period. `now_us` is within the period; `forecast_micros` is None without a forecast."""

    period: BillPeriod
    zone: str
    now_us: int
    days: Sequence[tuple[date, int, int]]  # each day so far: its amount and its number of events
    forecast_micros: int | None

    @classmethod
    def of(
        cls,
        period: BillPeriod,
        behind: Sequence[Behind],
        plans: PublishedPlans,
        watermark_us: int,
        allowed_us: int = GRACE_US,
    ) -> PeriodTrend:
        """The course of a bill's period with these events, as of this watermark and its allowed lateness."""
        zone = plans.get(period.lines[0].plan).cycle.time_zone
        now_us = _now_us(period, behind, watermark_us + allowed_us)
        added: dict[date, list[int]] = defaultdict(lambda: [0, 0])
        for event in behind:
            day = added[_day(event.time_us, zone)]
            day[0] += event.amount_micros
            day[1] += 1
        until = max([_day(now_us - 1, zone), *added])
        days = [(day, added[day][0], added[day][1]) for day in _days(period.period, zone) if day <= until]
        return cls(period, zone, now_us, days, _forecast_micros(period, plans, now_us))

    def as_dict(self) -> dict[str, Any]:
        period = self.period.period
        return {
            "period": period.label,
            "currency": self.period.currency,
            "state": self.period.state,
            "time_zone": self.zone,
            "period_start": iso_time(period.start_us),
            "period_end": iso_time(period.end_us),
            "now": iso_time(self.now_us),
            "days": [{"day": str(day), "amount_micros": micros, "events": n} for day, micros, n in self.days],
            "days_in_period": sum(1 for _ in _days(period, self.zone)),
            "amount_micros": self.period.amount_micros,
            "charged_micros": self.period.charged_micros,
            "forecast_micros": self.forecast_micros,
        }


def _now_us(period: BillPeriod, behind: Sequence[Behind], seen_us: int) -> int:
    """The time of the job's clock, within the period; `seen_us` is the time of the newest event by the watermark."""
    start_us, end_us = period.period.start_us, period.period.end_us
    if period.state != "draft":
        return end_us
    newest_us = max((event.time_us for event in behind), default=start_us)
    return min(end_us, max(start_us + 1, newest_us, seen_us))


def _forecast_micros(period: BillPeriod, plans: PublishedPlans, now_us: int) -> int | None:
    start_us, end_us = period.period.start_us, period.period.end_us
    passed_us = now_us - start_us
    if period.state != "draft" or passed_us < FORECAST_FROM * (end_us - start_us):
        return None
    total = 0
    for line in period.lines:
        goes_on = line.type in GOES_ON
        quantity = line.quantity * (end_us - start_us) // passed_us if goes_on else line.quantity
        total += plans.get(line.plan).amount_micros(line.type, quantity)
    return round_micros(checked(total), period.currency, rounding_of(period.lines, plans))


def _days(period: Period, zone: str) -> Iterator[date]:
    day, last = _day(period.start_us, zone), _day(period.end_us - 1, zone)
    while day <= last:
        yield day
        day += timedelta(days=1)


def _day(time_us: int, zone: str) -> date:
    return (_EPOCH + timedelta(microseconds=time_us)).astimezone(ZoneInfo(zone)).date()


_ALL: Final = 10**6  # more hours than in any period
Totals = Mapping[str, Any]  # of a period, as shown by `totals.period_totals`


def label_before(label: str, cycles: Mapping[str, Cycle]) -> str | None:
    """The name of the previous period; None for a name without a period in any plan."""
    for plan, end_us in Ends.of(label, cycles).by_plan.items():
        return cycles[plan].containing(cycles[plan].ending(end_us).start_us - 1).label
    return None


def pace(
    totals: Totals,
    before: Totals,
    found: Hours,
    plans: Mapping[str, PlanVersion],
    watermark_us: int,
    allowed_us: int = GRACE_US,
) -> dict[str, Any]:
    """The pace as the API shows it, by currency. `found` has the hours of both periods, from the totals' events."""
    cycles = {name: plan.cycle for name, plan in plans.items()}
    ends, ends_before = (Ends.of(one["period"], cycles) for one in (totals, before))
    now_us = max(found.newest_us, watermark_us + allowed_us)
    passed = {plan: _passed(cycles[plan], end_us, now_us) for plan, end_us in ends.by_plan.items()}
    currencies = sorted({one["currency"] for one in totals["currencies"]})
    shown = []
    for currency in currencies:
        names = [name for name, plan in plans.items() if plan.currency == currency and name in passed]
        sides = [_PeriodSide.of(one, names, found.hours) for one in (ends, ends_before)]
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
class _PeriodSide:
    """One of the two periods in one currency."""

    ends: Mapping[str, int]  # by plan
    hours: Sequence[Hour]

    @classmethod
    def of(cls, ends: Ends, plans: Sequence[str], hours: Sequence[Hour]) -> _PeriodSide:
        mine = {plan: end_us for plan, end_us in ends.by_plan.items() if plan in plans}
        return cls(mine, [hour for hour in hours if mine.get(hour.plan) == hour.end_us])

    def up_to(self, passed: Mapping[str, int]) -> int:
        """The amount before a given hour of each plan."""
        return sum(hour.amount_micros for hour in self.hours if hour.number < passed[hour.plan])

    def days(self, count: int) -> list[int]:
        """The amount of each day."""
        sums: dict[int, int] = defaultdict(int)
        for hour in self.hours:
            sums[hour.number // HOURS_PER_DAY] += hour.amount_micros
        return [sums[day] for day in range(count)]

    def unplaced(self, totals: Totals, currency: str) -> int:
        """The part of the totals that is in no hour."""
        amount: int = sum(one["amount_micros"] for one in totals["currencies"] if one["currency"] == currency)
        return amount - sum(hour.amount_micros for hour in self.hours)


def _shown(
    currency: str,
    sides: Sequence[_PeriodSide],
    both: Sequence[Totals],
    passed: Mapping[str, int],
    cycles: Mapping[str, Cycle],
) -> dict[str, Any]:
    plan = min(passed)  # the plan whose days are shown; plans of one currency mostly share a time zone
    (first, count), (first_before, count_before) = (_length(cycles[plan], side.ends[plan]) for side in sides)
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
    """The number of full hours of a period that have passed; `_ALL` if the period is over."""
    period = cycle.ending(end_us)
    if now_us >= end_us:
        return _ALL
    if now_us < period.start_us:
        return 0
    return int(hour_numbers(cycle, np.array([now_us]), np.array([end_us]))[0])


def _length(cycle: Cycle, end_us: int) -> tuple[date, int]:
    """A period's first day, and its number of days."""
    period, zone = cycle.ending(end_us), ZoneInfo(cycle.time_zone)
    first, last = (
        datetime.fromtimestamp(us // 1_000_000, zone).date() for us in (period.start_us, period.end_us - 1_000_000)
    )
    return first, (last - first) // timedelta(days=1) + 1


KEPT_S: Final = 60.0
SHARE: Final = 20  # folds may take one twentieth of the time
WAIT_S: Final = 10.0
FOLD_S_MAX: Final = 900
PERIODS_KEPT: Final = 24


@dataclass(frozen=True, slots=True)
class CachedPace:
    """A pace, with the totals of its fold."""

    stamp: Stamp
    totals: tuple[Totals, Totals]
    document: Mapping[str, Any]
    made_s: float
    took_s: float

    def serves(self, totals: tuple[Totals, Totals], now_s: float) -> bool:
        """Whether the pace is still valid."""
        return totals == self.totals or now_s - self.made_s < max(KEPT_S, SHARE * self.took_s)

    def stamp_at(self, now_s: float) -> Stamp:
        """The stamp, with the present age."""
        return replace(self.stamp, age_ms=self.stamp.age_ms + int((now_s - self.made_s + self.took_s) * 1_000))


@dataclass(frozen=True, slots=True)
class Failed:
    error: BaseException
    ended_s: float
    took_s: float

    def stands(self, now_s: float) -> bool:
        """Whether it is too early for another fold."""
        return now_s - self.ended_s < SHARE * self.took_s


class Paces:
    """The paces of a folder's periods: one instance for each worker process."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._kept: OrderedDict[str, CachedPace] = OrderedDict()
        self._failed: OrderedDict[str, Failed] = OrderedDict()
        self._made: dict[str, asyncio.Task[CachedPace]] = {}
        self._one = asyncio.Lock()

    async def of(
        self, stamp: Stamp, totals: Totals, before: Totals, plans: Mapping[str, PlanVersion]
    ) -> tuple[Stamp, Mapping[str, Any]] | None:
        """The pace of the period of these totals, at this stamp; None while not ready."""
        label, now_s = totals["period"], time.monotonic()
        kept, failed = self._kept.get(label), self._failed.get(label)
        if kept is None and failed is not None and failed.stands(now_s):
            raise failed.error.with_traceback(None)
        if kept is None or not (kept.serves((totals, before), now_s) or (failed is not None and failed.stands(now_s))):
            task = self._made.get(label) or self._make(stamp, totals, before, plans)
            if kept is None:
                done, _ = await asyncio.wait([task], timeout=WAIT_S)
                kept = task.result() if done else None
        return None if kept is None else (kept.stamp_at(time.monotonic()), kept.document)

    def _make(
        self, stamp: Stamp, totals: Totals, before: Totals, plans: Mapping[str, PlanVersion]
    ) -> asyncio.Task[CachedPace]:
        label, began_s = totals["period"], time.monotonic()
        task = asyncio.get_running_loop().create_task(self._fold(stamp, totals, before, plans))
        self._made[label] = task
        task.add_done_callback(lambda task: self._keep(label, task, began_s))
        return task

    async def _fold(self, stamp: Stamp, totals: Totals, before: Totals, plans: Mapping[str, PlanVersion]) -> CachedPace:
        began_s = time.monotonic()
        async with self._one:
            found = await self._hours(stamp, totals["period"], before["period"])
        document = pace(totals, before, found, plans, stamp.watermark_us, lateness_in_force(self._layout))
        now_s = time.monotonic()
        return CachedPace(stamp, (totals, before), document, now_s, now_s - began_s)

    def _keep(self, label: str, task: asyncio.Task[CachedPace], began_s: float) -> None:
        del self._made[label]
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            self._failed.pop(label, None)
            _put(self._kept, label, task.result())
        else:
            now_s = time.monotonic()
            _put(self._failed, label, Failed(error, now_s, now_s - began_s))

    async def _hours(self, stamp: Stamp, *labels: str) -> Hours:
        stop = str(stamp.position[PARTITION])
        command = [sys.executable, "-m", "stateside.billing.answers.hours", str(self._layout.root), stop, *labels]
        try:
            code, output, errors = await processes.run(command, FOLD_S_MAX)
        except TimeoutError:
            raise StateError(f"Adding up the hours of {labels[0]} took more than {FOLD_S_MAX} s") from None
        if code:
            last = (errors.strip().splitlines() or ["without a word"])[-1]
            raise StateError(f"The hours of {labels[0]} cannot be added up: {last}")
        return Hours.parse(output)


def _put(among: OrderedDict[str, Any], label: str, value: CachedPace | Failed) -> None:
    """Store a value, and evict the oldest beyond PERIODS_KEPT."""
    among[label] = value
    among.move_to_end(label)
    while len(among) > PERIODS_KEPT:
        among.popitem(last=False)
