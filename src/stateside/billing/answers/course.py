"""The course of a period: what its days added to the bill, and where it leads if the rest is like the days so far.

A day's amount is that of its events, each with what `explain` says it added; so all days together are the bill's
amount, to the micro. Days are those of the plan's time zone, and an event counts on the day that it happened, not when
it came.

The *forecast* takes of calls, messages and data that the period's rest brings as much a day as its days so far, and
prices those quantities by the plan, with its allowance and tiers. Packages, fees and credits are as they are: nobody
knows whether more of them come. *So far* is as far as the job's clock has come, which is its newest event's time. Of
the first part of a period too little is known: there is no forecast.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final
from zoneinfo import ZoneInfo

from stateside.billing.answers.bills import BillPeriod, rounding_of
from stateside.billing.answers.explain import Behind
from stateside.billing.answers.published import PublishedPlans
from stateside.billing.calendar import Period
from stateside.billing.model import GRACE_US
from stateside.billing.money import checked, round_micros
from stateside.serving.stamp import iso_time

GOES_ON: Final = ("call", "message", "data")
FORECAST_FROM: Final = 0.1  # of the period
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Course:
    """See above. `now_us` lies in the period; `forecast_micros` is None where there is none."""

    period: BillPeriod
    zone: str
    now_us: int
    days: Sequence[tuple[date, int, int]]  # of each day that has begun: what it added, and by how many events
    forecast_micros: int | None

    @classmethod
    def of(cls, period: BillPeriod, behind: Sequence[Behind], plans: PublishedPlans, watermark_us: int) -> Course:
        """The course of a period of a bill with these events behind it, as of this watermark."""
        zone = plans.get(period.lines[0].plan).cycle.time_zone
        now_us = _now_us(period, behind, watermark_us)
        added: dict[date, list[int]] = defaultdict(lambda: [0, 0])
        for event in behind:
            day = added[_day(event.time_us, zone)]
            day[0] += event.amount_micros
            day[1] += 1
        until = max([_day(now_us - 1, zone), *added])
        days = [(day, added[day][0], added[day][1]) for day in _days(period.period, zone) if day <= until]
        return cls(period, zone, now_us, days, _forecast_micros(period, plans, now_us))

    def as_dict(self) -> dict[str, Any]:
        """As it stands in an answer."""
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


def _now_us(period: BillPeriod, behind: Sequence[Behind], watermark_us: int) -> int:
    """How far the period is, by the job's clock: the watermark runs behind its newest event by the grace."""
    start_us, end_us = period.period.start_us, period.period.end_us
    if period.state != "draft":
        return end_us
    newest_us = max((event.time_us for event in behind), default=start_us)
    return min(end_us, max(start_us + 1, newest_us, watermark_us + GRACE_US))


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
