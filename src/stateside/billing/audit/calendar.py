"""The auditor's own calendar: where the billing periods of a cycle begin and end, in the cycle's time zone.

Written apart from the pipeline's calendar on purpose: if one of the two is wrong, they disagree.
"""

from __future__ import annotations

from calendar import monthrange
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_LONGEST = timedelta(days=63)  # a period that a day lies in began less than so long ago, and one began before that


@dataclass(frozen=True, slots=True, order=True)
class Cycle:
    """How a plan cuts time into periods: by `month` (from its anchor day on), ISO `week` or `day` of a time zone."""

    kind: str
    time_zone: str
    anchor_day: int


@dataclass(frozen=True, slots=True)
class Period:
    """A period of a cycle. `start_us` belongs to it, `end_us` to the next one."""

    label: str
    start_us: int
    end_us: int


def periods(cycle: Cycle, first_us: int, last_us: int) -> list[Period]:
    """The periods that the times from `first_us` to `last_us`, both included, lie in, in order."""
    zone = ZoneInfo(cycle.time_zone)
    first, last = (_local_date(time_us, zone) for time_us in (first_us, last_us))
    days = _first_days(cycle, first - _LONGEST, last + _LONGEST)
    found = [Period(_label(cycle, day), _midnight_us(day, zone), _midnight_us(after, zone)) for day, after in days]
    return [period for period in found if period.end_us > first_us and period.start_us <= last_us]


def _first_days(cycle: Cycle, begin: date, end: date) -> Iterator[tuple[date, date]]:
    """The first days of the periods between two dates, each with the first day of the next period."""
    dates = (begin + timedelta(days=number) for number in range((end - begin).days + 1))
    return pairwise(day for day in dates if _begins_on(cycle, day))


def _begins_on(cycle: Cycle, day: date) -> bool:
    """Whether a period begins on this day. An anchor day that a month does not have is the month's last day."""
    if cycle.kind == "month":
        return day.day == min(cycle.anchor_day, monthrange(day.year, day.month)[1])
    return cycle.kind == "day" or day.isoweekday() == 1


def _label(cycle: Cycle, day: date) -> str:
    """The period's name, from its first day: 2026-01, 2026-01@15, 2026-W03 or 2026-01-15."""
    if cycle.kind == "month":
        return f"{day:%Y-%m}" if cycle.anchor_day == 1 else f"{day:%Y-%m}@{cycle.anchor_day:02d}"
    if cycle.kind == "week":
        year, week, _ = day.isocalendar()
        return f"{year}-W{week:02d}"
    return day.isoformat()


def _local_date(time_us: int, zone: ZoneInfo) -> date:
    return (_EPOCH + time_us * _MICROSECOND).astimezone(zone).date()


def _midnight_us(day: date, zone: ZoneInfo) -> int:
    """When the day begins there: at midnight, or when the clocks have jumped over it."""
    return (datetime.combine(day, time(), zone).astimezone(UTC) - _EPOCH) // _MICROSECOND
