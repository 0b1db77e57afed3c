"""The usage events of one group in one period: when they happen, when they come in, and which come twice.

An event that is delayed comes in before the watermark can have passed its period's end: the watermark trails the newest
event by the grace time, and no event happens after it comes in. One that is late comes in when a tick of the clock, of
which there is one a day, has moved the watermark past that end.

A duplicate is the same event once more, some hours after the first and while its period is open for sure. That is the
horizon of de-duplication: the ids of a period are forgotten when it closes. So an event that is late has no duplicate
here: if it comes into the same batch as the tick it is still counted in the open period, and a copy in the next batch
would be taken for a late event of its own.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stateside.billing.calendar import Period
from stateside.billing.generator.quantities import FEE_KIND, Drawn
from stateside.billing.generator.scenario import LATE_US_MAX, LATE_US_MIN, Group, Ints
from stateside.billing.generator.shares import Shares
from stateside.billing.model import GRACE_US, HOUR_US

Bools = npt.NDArray[np.bool_]

ON_TIME, LATE, DUPLICATE = range(3)

_DELAY_US_USUAL: Final = 2 * HOUR_US
_DELAY_US_MAX: Final = GRACE_US - HOUR_US
_REPEAT_US_MAX: Final = 6 * HOUR_US


def usage(
    random: np.random.Generator, group: Group, number: int, period: Period, drawn: Drawn, shares: Shares, closes: bool
) -> pa.Table:
    """The events with their arrivals, in no order; `number` is the period's, to know it by later.

    A period that does not close within the run has no late events.
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
    """Which events come too late. Where the share has room for it, one customer has nothing but late ones.

    Fees do not: they come from the clock.
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
    """So many of the eligible ones at random, or all of them if there are fewer."""
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


def _table(group: Group, number: int, drawn: Drawn, fates: Ints, arrivals_us: Ints) -> pa.Table:
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
