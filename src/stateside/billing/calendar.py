"""Billing periods: months, weeks and days of a time zone, with daylight saving time and leap years.

A period begins at midnight of its first day in the cycle's time zone. Where the clocks skip midnight, the period begins
at the moment of the change; where midnight occurs twice, at the first one. A period ends where the next one begins:
periods join without a gap, and every moment lies in exactly one period.
"""

from __future__ import annotations

from bisect import bisect_right
from calendar import monthrange
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Final, Literal, get_args
from zoneinfo import ZoneInfo, available_timezones

import numpy as np
import numpy.typing as npt

from stateside.core.errors import PlanInvalid

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY_US: Final = 86_400_000_000
_ANCHOR_DAY_MAX: Final = 31
_YEARS_KEPT: Final = 512  # cached tables of starts per cycle: 2 KiB a year for months, 50 KiB for days

Kind = Literal["month", "week", "day"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)


def utc(time_us: int) -> datetime:
    """A time, exact to the microsecond."""
    return _EPOCH + timedelta(microseconds=time_us)


def local(time_us: int, time_zone: str) -> datetime:
    """A time by the clocks of a time zone."""
    return utc(time_us).astimezone(ZoneInfo(time_zone))


def micros(moment: datetime) -> int:
    """The inverse of `utc`."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Period:
    """One period of a cycle: `start_us` is inclusive, `end_us` exclusive."""

    label: str
    start_us: int
    end_us: int


@dataclass(frozen=True, slots=True)
class Cycle:
    """Divides time into periods.

    A month begins on the anchor day, or on the last day of a calendar month without that day. A week begins on Monday.
    Labels: `2026-01`, or with an anchor day other than 1 `2026-01@15` for the month that begins in January; `2026-W03`
    by ISO 8601; `2026-01-15`.
    """

    kind: Kind
    time_zone: str
    anchor_day: int = 1

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise PlanInvalid(f"{self.kind!r} is no billing cycle", next_step=f"There are: {', '.join(KINDS)}")
        days = range(1, _ANCHOR_DAY_MAX + 1 if self.kind == "month" else 2)
        if isinstance(self.anchor_day, bool) or self.anchor_day not in days:
            raise PlanInvalid(
                f"A {self.kind} cannot begin on day {self.anchor_day!r}",
                next_step="Only months have an anchor day, from 1 to 31",
            )
        _zone(self.time_zone)

    def containing(self, time_us: int) -> Period:
        year = utc(time_us).year
        days, starts_us = _around(self, year)
        after = bisect_right(starts_us, time_us)
        return Period(self._label(days[after - 1]), starts_us[after - 1], starts_us[after])

    def ending(self, end_us: int) -> Period:
        """The period that ends at `end_us`; AssertionError if no period ends there."""
        found = self.containing(end_us - 1)
        assert found.end_us == end_us, f"no {self.kind} in {self.time_zone} ends at {end_us}"
        return found

    def ends(self, times_us: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The end of the period that contains each time."""
        if not len(times_us):
            return np.empty(0, np.int64)
        first, last = (utc(int(edge)).year for edge in (times_us.min(), times_us.max()))
        starts_us = np.concatenate([_starts_us(self, year) for year in range(first - 1, last + 2)])
        return starts_us[np.searchsorted(starts_us, times_us, side="right")]

    def _label(self, first_day: date) -> str:
        match self.kind:
            case "day":
                return first_day.isoformat()
            case "week":
                iso = first_day.isocalendar()
                return f"{iso.year:04d}-W{iso.week:02d}"
            case "month":
                anchor = "" if self.anchor_day == 1 else f"@{self.anchor_day:02d}"
                return f"{first_day.year:04d}-{first_day.month:02d}{anchor}"


@lru_cache(_YEARS_KEPT)
def _starts(cycle: Cycle, year: int) -> list[tuple[date, int]]:
    """The first day and the start time of every period that begins in a year."""
    zone = _zone(cycle.time_zone)
    return [(day, _midnight_us(day, zone)) for day in _first_days(cycle, year)]


@lru_cache(_YEARS_KEPT)
def _around(cycle: Cycle, year: int) -> tuple[list[date], list[int]]:
    """Days and start times from `_starts` for a year and its two neighbours, in two lists."""
    starts = [start for number in (-1, 0, 1) for start in _starts(cycle, year + number)]
    return [day for day, _ in starts], [start_us for _, start_us in starts]


@lru_cache(_YEARS_KEPT)
def _starts_us(cycle: Cycle, year: int) -> npt.NDArray[np.int64]:
    return np.array([start_us for _, start_us in _starts(cycle, year)], np.int64)


def _first_days(cycle: Cycle, year: int) -> Iterator[date]:
    if cycle.kind == "month":
        yield from (date(year, m, min(cycle.anchor_day, monthrange(year, m)[1])) for m in range(1, 13))
        return
    step = timedelta(days=7 if cycle.kind == "week" else 1)
    day = date(year, 1, 1)
    if cycle.kind == "week":
        day += timedelta(days=-day.weekday() % 7)  # the year's first Monday
    while day.year == year:
        yield day
        day += step


def _midnight_us(day: date, zone: ZoneInfo) -> int:
    """Midnight of a day. A skipped midnight counts by the UTC offset before the change: the moment of the change."""
    return micros(datetime(day.year, day.month, day.day, tzinfo=zone))


def _zone(name: str) -> ZoneInfo:
    """A zone that Java knows by the same name: Java may not know short names, nor a machine's local aliases."""
    if name != "UTC" and not (isinstance(name, str) and "/" in name and name in _zone_names()):
        raise PlanInvalid(f"{name!r} is no time zone", next_step="Write its name like Europe/Berlin, or UTC")
    return ZoneInfo(name)


@lru_cache(1)
def _zone_names() -> set[str]:
    return available_timezones()
