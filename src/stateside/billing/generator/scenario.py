"""The scenario: the plans that the generator publishes, their customers, and the periods.

| customers | plan | currency, time zone, cycle | special feature |
|---|---|---|---|
| c0 c1 c5 c6 … | `basic` | EUR, Berlin, month | allowances; version 2 takes effect in mid-period |
| c2 c7 … | `plus` | EUR, Berlin, month | a recurring fee, tiers |
| c3 c8 … | `prairie` | USD, New York, month | tiers, daylight saving time of another time zone |
| c4 c9 … | `payday` | EUR, Berlin, month from the 31st | an anchor day that February does not have |
| c1 c51 c101 … | `basic`, then `plus` | | assigned to another plan in mid-period |

All versions of one customer have the same currency and cycle, so a customer's period is one bill, with lines of both
versions where the version changes. The plans are the files in `plans/`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Final

import numpy as np
import numpy.typing as npt

from stateside.billing.calendar import Cycle, Period
from stateside.billing.model import DAY_US, GRACE_US
from stateside.billing.plans.file import PlanVersion, parse_plan

Ints = npt.NDArray[np.int64]

FIRST_US: Final = 1_767_268_800_000_000  # 2026-01-01 12:00 UTC: the first of January in both time zones
LATE_US_MIN: Final = (
    4 * DAY_US
)  # beyond the grace period: by then the daily ticks have moved the watermark past the period's end
LATE_US_MAX: Final = 12 * DAY_US
FEE: Final = "base"
PACKAGE: Final = "weekend"

_FILES: Final = ("basic-1", "basic-2", "plus-1", "prairie-1", "payday-1")
_CHANGE_US: Final = 12 * DAY_US  # after the period's start
_MOVE_US: Final = 15 * DAY_US
_NOTICE_US: Final = 5 * DAY_US  # a change is appended so long before it takes effect
_PLANS_IN_TURN: Final = 5
_MOVED_EVERY: Final = 50


@dataclass(frozen=True, slots=True)
class CustomerGroup:
    """Customers with the same plans at the same times."""

    customers: Ints  # their numbers: customer 7 is called c7
    timeline: tuple[tuple[int, PlanVersion], ...]  # start time and version
    periods: tuple[Period, ...]  # the closing periods, then the open one

    @property
    def first(self) -> PlanVersion:
        """The first version; all versions of the group share its currency, cycle and rounding."""
        return self.timeline[0][1]

    @property
    def versions(self) -> list[PlanVersion]:
        """The versions, in the order of their effective times."""
        return [version for _, version in self.timeline]

    def version_numbers(self, times_us: Ints) -> Ints:
        """The number of the version that rates each moment."""
        begins_us = np.array([begin_us for begin_us, _ in self.timeline[1:]], np.int64)
        return np.searchsorted(begins_us, times_us, side="right").astype(np.int64)

    def fee_us(self, period: Period) -> int | None:
        """When a period's recurring fee is due: at the period's start, or when a plan with the fee takes effect."""
        ends_us = [*(begin_us for begin_us, _ in self.timeline[1:]), period.end_us]
        for (begin_us, version), end_us in zip(self.timeline, ends_us, strict=True):
            due_us = max(begin_us, period.start_us)
            if FEE in version.fees and due_us < min(end_us, period.end_us):
                return due_us
        return None


@dataclass(frozen=True, slots=True)
class Scenario:
    """Plans, customers and times, all independent of the seed."""

    groups: tuple[CustomerGroup, ...]
    versions: tuple[PlanVersion, ...]
    customers: int
    change_us: int  # when basic@2 takes effect
    move_us: int  # when some customers' new plan takes effect
    begin_us: int  # the start of the first period
    end_us: int  # exclusive end of all arrivals

    @classmethod
    def of(cls, customers: int, periods: int, first_us: int) -> Scenario:
        """`customers` customers through `periods` closing periods, the first of which contains `first_us`."""
        plans = _plans()
        months = _periods(plans["basic-1"].cycle, first_us, periods + 1)
        begin_us = min(_periods(plan.cycle, first_us, 1)[0].start_us for plan in plans.values())
        change_us = months[(periods - 1) // 2].start_us + _CHANGE_US
        move_us = months[periods - 1].start_us + _MOVE_US
        effective = {name: change_us if name == "basic-2" else begin_us - DAY_US for name in plans}
        plans = {name: replace(plan, effective_us=effective[name]) for name, plan in plans.items()}
        groups = tuple(_groups(plans, customers, periods, first_us, change_us, move_us))
        ends_us = [_periods(plan.cycle, first_us, periods)[-1].end_us for plan in plans.values()]
        end_us = max(ends_us) + GRACE_US + LATE_US_MAX + DAY_US
        return cls(groups, tuple(plans.values()), customers, change_us, move_us, begin_us, end_us)

    @property
    def opening_us(self) -> int:
        """When the first versions are published and the customers assigned: before any usage."""
        return self.begin_us - 2 * DAY_US

    def published_us(self, version: PlanVersion) -> int:
        """When the publication of a version is appended."""
        return self.opening_us if version.effective_us < self.begin_us else version.effective_us - _NOTICE_US

    @property
    def moved(self) -> Ints:
        """The customers who change to another plan; the assignments are appended at `moved_us`."""
        return _moved(self.customers)

    @property
    def moved_us(self) -> int:
        return self.move_us - _NOTICE_US


def _plans() -> dict[str, PlanVersion]:
    return {name: _plan(name) for name in _FILES}


@cache
def _plan(name: str) -> PlanVersion:
    file = resources.files("stateside.billing.generator") / "plans" / f"{name}.toml"
    return parse_plan(file.read_bytes(), str(file))


def _groups(
    plans: dict[str, PlanVersion], customers: int, periods: int, first_us: int, change_us: int, move_us: int
) -> Iterator[CustomerGroup]:
    basic = ((0, plans["basic-1"]), (change_us, plans["basic-2"]))
    turn, moved = np.arange(customers) % _PLANS_IN_TURN, np.isin(np.arange(customers), _moved(customers))
    for chosen, timeline in (
        ((turn <= 1) & ~moved, basic),
        (moved, (*basic, (move_us, plans["plus-1"]))),
        (turn == 2, ((0, plans["plus-1"]),)),
        (turn == 3, ((0, plans["prairie-1"]),)),
        (turn == 4, ((0, plans["payday-1"]),)),
    ):
        if chosen.any():
            cycle = timeline[0][1].cycle
            yield CustomerGroup(np.flatnonzero(chosen), timeline, _periods(cycle, first_us, periods + 1))


def _moved(customers: int) -> Ints:
    return np.arange(1, customers, _MOVED_EVERY)


def _periods(cycle: Cycle, first_us: int, count: int) -> tuple[Period, ...]:
    """Consecutive periods, beginning with the one that contains `first_us`."""
    periods = [cycle.containing(first_us)]
    while len(periods) < count:
        periods.append(cycle.containing(periods[-1].end_us))
    return tuple(periods)
