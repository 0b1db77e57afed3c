"""Period names: the moments at which a named period ends, by the cycles of all plans; and the published plans.

`2026-01` is a month in every time zone, and ends at another moment in each.

`PublishedPlans` has the versions of plans in rows and documents, from the view's `plans.json`. The file only grows, and
has a version before the first row with the version is visible. So a reader that meets an unknown version reads the file
again.
"""

from __future__ import annotations

import re
from calendar import monthrange
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Final

from stateside.billing.calendar import Cycle, micros
from stateside.billing.plans.file import PlanVersion
from stateside.core.errors import CheckpointInvalid, RequestInvalid
from stateside.serving import iso_time

_LABEL: Final = re.compile(
    r"(?P<year>\d{4})-(?:W(?P<week>\d\d)|(?P<month>\d\d)(?:@(?P<anchor>\d{1,2})|-(?P<day>\d\d))?)", re.ASCII
)
_HALF_DAY_US: Final = 12 * 3_600_000_000


@dataclass(frozen=True, slots=True)
class Ends:
    """A period's name, and its end for each plan that has a period of this name."""

    label: str
    by_plan: Mapping[str, int]

    @classmethod
    def of(cls, label: str, cycles: Mapping[str, Cycle]) -> Ends:
        """The ends under the plans' cycles. RequestInvalid for a text that names no period."""
        around_us = _inside_us(label)
        found = {cycle: _end_us(label, cycle, around_us) for cycle in set(cycles.values())}  # plans share cycles
        ends = {plan: found[cycle] for plan, cycle in cycles.items()}
        return cls(label, {plan: end_us for plan, end_us in ends.items() if end_us is not None})

    @property
    def ends_us(self) -> list[int]:
        """The distinct ends, in order."""
        return sorted(set(self.by_plan.values()))

    def has(self, plan: str, end_us: int) -> bool:
        return self.by_plan.get(plan) == end_us

    def shown(self) -> list[str]:
        """The ends as in an answer."""
        return [iso_time(end_us) for end_us in self.ends_us]

    def shown_by_plan(self) -> dict[str, str]:
        """The ends by plan: identifies this period's rows, and excludes other cycles' periods with the same end."""
        return {plan: iso_time(end_us) for plan, end_us in sorted(self.by_plan.items())}


def _end_us(label: str, cycle: Cycle, around_us: int) -> int | None:
    for shift in (0, -1, 1):  # the day may or may not have begun, depending on the zone
        period = cycle.containing(around_us + shift * _HALF_DAY_US)
        if period.label == label:
            return period.end_us
    return None


def _inside_us(label: str) -> int:
    """A moment within the period, or half a day beside the period."""
    found = _LABEL.fullmatch(label)
    try:
        if found is None:
            raise ValueError
        day = _day_inside(found)
        return micros(datetime(day.year, day.month, day.day, 12, tzinfo=UTC))
    except (ValueError, OverflowError):
        raise RequestInvalid(
            f"{label[:80]!r} is no period",
            next_step="Name it like 2026-01, 2026-01@15 (a month from the 15th on), 2026-W03 or 2026-01-15",
        ) from None


def _day_inside(found: re.Match[str]) -> date:
    year = int(found["year"])
    if not 1970 <= year <= 2199:
        raise ValueError
    if found["week"]:
        return date.fromisocalendar(year, int(found["week"]), 4)
    month = int(found["month"])
    if found["day"]:
        return date(year, month, int(found["day"]))
    first = min(int(found["anchor"] or 1), monthrange(year, month)[1])
    return date(year, month, first) + timedelta(days=7)


class PublishedPlans:
    """The published plan versions by id; the file is read again for an unknown id."""

    def __init__(self, load: Callable[[], Mapping[str, PlanVersion]], where: str) -> None:
        self._load, self._where = load, where
        self._plans: Mapping[str, PlanVersion] = {}

    def get(self, plan: str) -> PlanVersion:
        """The version with this id; CheckpointInvalid, with the id, if missing."""
        if plan not in self._plans:
            self._plans = self._load()
        if plan not in self._plans:
            raise CheckpointInvalid(
                f"There is no plan {plan!r}, which a row refers to",
                where=self._where,
                next_step="Restore this file from a copy, or delete it: the view's sink writes it at its next batch",
            )
        return self._plans[plan]

    def all(self) -> Mapping[str, PlanVersion]:
        """All versions now in the file."""
        self._plans = self._load()
        return self._plans
