"""The usage events of one group in one period, bad events, and the shares of irregular events.

A *delayed* event arrives before the watermark can have passed its period's end: the watermark trails the newest event
by the grace period, and no event happens after its arrival. A *late* event arrives after one of the daily clock ticks
has moved the watermark past the period's end.

A *duplicate* repeats an event some hours after the first, while its period is certainly open: the running query forgets
a period's ids when the period closes. A late event has no duplicate here, because the copy's fate would depend on the
batches: dropped in the same batch as the tick, where the period is still open, or a dead letter in a later batch
(`invoicing.repeats`).

A *bad* event must appear on no bill, and must become a dead letter with its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stateside.billing.calendar import Period
from stateside.billing.generator.quantities import FEE_KIND, Drawn
from stateside.billing.generator.scenario import LATE_US_MAX, LATE_US_MIN, CustomerGroup, Ints, Scenario
from stateside.billing.model import DAY_US, FUTURE_US_MAX, GRACE_US, HOUR_US, QUANTITY_MAX, assignment
from stateside.billing.plans.file import plan_event
from stateside.core.errors import RequestInvalid
from stateside.journal import Event

NOWHERE: Final = "nowhere"  # a plan that is never published
LOST: Final = "lost"  # the customer assigned to NOWHERE
_FUTURE_US: Final = 400 * DAY_US  # would close everybody's periods, if it counted


class BadEvents:
    """Draws bad events of every reason in turn."""

    def __init__(self, scenario: Scenario, random: np.random.Generator) -> None:
        self._scenario = scenario
        self._random = random
        self._makers: dict[str, Callable[[str, str, int], Event]] = {
            "malformed": lambda id, customer, us: Event(id, customer, "call", us, {"quantity": "a few"}),
            "unknown-type": lambda id, customer, us: Event(id, customer, "fax", us, {"quantity": 1}),
            "unknown-customer": lambda id, customer, us: Event(id, "nobody", "call", us, {"quantity": 60}),
            "unknown-plan": lambda id, customer, us: Event(id, LOST, "call", us, {"quantity": 60}),
            "not-in-plan": lambda id, customer, us: Event(id, customer, "package", us, {"quantity": 1, "name": "moon"}),
            "negative-quantity": lambda id, customer, us: Event(id, customer, "data", us, {"quantity": -1}),
            "absurd-quantity": self._absurd,
            "future-dated": self._future_dated,
            "wrong-currency": lambda id, customer, us: Event(
                id, customer, "message", us, {"quantity": 1, "currency": "JPY"}
            ),
            "plan-refused": lambda id, customer, us: plan_event(scenario.versions[0], id, us),
            "assign-refused": lambda id, customer, us: assignment(id, customer, "plus", us - DAY_US, us),
        }

    @property
    def reasons(self) -> list[str]:
        """All reasons, in the order of drawing."""
        return list(self._makers)

    def draw(self, count: int) -> Iterator[tuple[int, Event, str]]:
        """`count` bad events, at least one of each reason, with their arrivals and reasons."""
        count = max(count, len(self._makers))
        begin_us, end_us = self._scenario.begin_us + DAY_US, self._scenario.end_us
        arrivals_us = self._random.integers(begin_us, end_us, count).tolist()
        ages_us = self._random.integers(0, HOUR_US, count).tolist()
        customers = self._random.integers(0, self._scenario.customers, count).tolist()
        drawn = zip(arrivals_us, ages_us, customers, cycle(self._makers.items()), strict=False)
        for number, (arrival_us, age_us, customer, (reason, maker)) in enumerate(drawn):
            yield arrival_us, maker(f"bad/{number}", f"c{customer}", arrival_us - age_us), reason

    def lost(self) -> Event:
        """Assigns a customer to a plan that is never published."""
        return assignment("assign/lost", LOST, NOWHERE, self._scenario.opening_us, self._scenario.opening_us)

    @staticmethod
    def _absurd(id: str, customer: str, time_us: int) -> Event:
        return Event(id, customer, "message", time_us, {"quantity": QUANTITY_MAX["message"] + 1})

    def _future_dated(self, id: str, customer: str, time_us: int) -> Event:
        ahead_us = int(self._random.integers(HOUR_US + FUTURE_US_MAX, _FUTURE_US))
        return Event(id, customer, "call", time_us + ahead_us, {"quantity": 60})


@dataclass(frozen=True, slots=True)
class Shares:
    """Shares of the usage events, each from 0 to 1.

    `delayed`: arrives up to almost the grace period later, so out of order, sometimes after its period's end. `late`:
    arrives after its period has closed, in closing periods only. `duplicate`: arrives twice. `bad`: must become a dead
    letter; at least one of each reason, unless the share is 0.
    """

    delayed: float = 0.15
    late: float = 0.03
    duplicate: float = 0.01
    bad: float = 0.01

    def __post_init__(self) -> None:
        for name in ("delayed", "late", "duplicate", "bad"):
            if not 0 <= getattr(self, name) <= 1:
                raise RequestInvalid(
                    f"The share of {name} events is {getattr(self, name)!r}", next_step="Give a number from 0 to 1"
                )


Bools = npt.NDArray[np.bool_]
ON_TIME, LATE, DUPLICATE = range(3)
_DELAY_US_USUAL: Final = 2 * HOUR_US
_DELAY_US_MAX: Final = GRACE_US - HOUR_US
_REPEAT_US_MAX: Final = 6 * HOUR_US


def usage(
    random: np.random.Generator,
    group: CustomerGroup,
    number: int,
    period: Period,
    drawn: Drawn,
    shares: Shares,
    closes: bool,
) -> pa.Table:
    """The events with their arrivals, unordered; `number` identifies the period in the table.

    A period that stays open has no late events.
    """
    late = _late(random, drawn, shares.late) if closes else np.zeros(drawn.kinds.shape, bool)
    arrivals_us = _arrivals_us(random, drawn, late, period, shares.delayed)
    events = _table(group, number, drawn, np.where(late, LATE, ON_TIME), arrivals_us)
    usage = drawn.kinds != FEE_KIND
    repeated = _chosen(random, ~late & usage, _count(usage, shares.duplicate))
    delays_us = random.integers(1, _REPEAT_US_MAX, drawn.kinds.shape)
    again_us = np.minimum(arrivals_us + delays_us, period.end_us + GRACE_US - 1)
    copies = _table(group, number, drawn, np.full(drawn.kinds.shape, DUPLICATE), again_us).filter(
        pa.array(repeated.ravel())
    )
    return pa.concat_tables([events, copies])


def _late(random: np.random.Generator, drawn: Drawn, share: float) -> Bools:
    """Which events arrive too late. If the share is large enough, one customer has only late events.

    Fees are never late: the clock creates them.
    """
    usage: Bools = drawn.kinds != FEE_KIND
    wholly = np.zeros_like(usage)
    wholly[random.integers(len(usage))] = True
    count, more = _count(usage, share), int(wholly.sum())
    if more > count or not usage[wholly].all():
        return _chosen(random, usage, count)
    others = _chosen(random, usage & ~wholly, count - more)
    return np.logical_or(wholly, others)


def _chosen(random: np.random.Generator, eligible: Bools, count: int) -> Bools:
    """`count` random eligible entries, or all if there are fewer."""
    chosen = np.zeros(eligible.size, bool)
    found = np.flatnonzero(eligible)
    chosen[random.choice(found, min(count, len(found)), replace=False)] = True
    return chosen.reshape(eligible.shape)


def _count(events: Bools, share: float) -> int:
    return round(share * int(events.sum()))


def _arrivals_us(random: np.random.Generator, drawn: Drawn, late: Bools, period: Period, delayed_share: float) -> Ints:
    shape = drawn.kinds.shape
    delayed = random.random(shape) < delayed_share
    delays_us = random.integers(0, np.where(delayed, _DELAY_US_MAX, _DELAY_US_USUAL))
    too_late_us = period.end_us + GRACE_US + random.integers(LATE_US_MIN, LATE_US_MAX, shape)
    return np.where(late, too_late_us, drawn.times_us + delays_us)


def _table(group: CustomerGroup, number: int, drawn: Drawn, fates: Ints, arrivals_us: Ints) -> pa.Table:
    customers, events = drawn.kinds.shape
    columns = {
        "customer": np.repeat(group.customers, events),
        "serial": np.tile(np.arange(events), customers),
        "period": np.full(customers * events, number),
        "kind": drawn.kinds.ravel(),
        "fate": fates.ravel(),
        "time_us": drawn.times_us.ravel(),
        "arrival_us": arrivals_us.ravel(),
        "quantity": drawn.quantities.ravel(),
    }
    return pa.table(columns)
