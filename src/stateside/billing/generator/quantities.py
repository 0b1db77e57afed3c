"""Usage quantities that add up: every customer's period amounts to exactly 100.00.

Every event gets a share of the amount and uses the quantity that this share buys at the plan's highest price, so free
allowances and cheaper tiers leave a remainder. The remainder goes to the customer's first event, which is data: a byte
costs less than a micro, so every number of micros has a matching number of bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from stateside.billing.calendar import Period
from stateside.billing.generator.scenario import FEE, PACKAGE, CustomerGroup, Ints
from stateside.billing.model import QUANTITY_MAX
from stateside.billing.money import MICROS_PER_UNIT, round_micros, total_rounding
from stateside.billing.plans.file import PlanVersion
from stateside.billing.plans.tiers import Tiers

EVEN_MICROS: Final = 100 * MICROS_PER_UNIT
KINDS: Final = ("call", "message", "data", "package", "credit", "fee")
CALL, MESSAGE, DATA, PACKAGE_KIND, CREDIT, FEE_KIND = range(len(KINDS))

_BILL_TYPES: Final = ("call", "message", "data", f"package:{PACKAGE}", "credit", f"fee:{FEE}")
_SHARES: Final = {CALL: 0.5, MESSAGE: 0.25, DATA: 0.25}
_PACKAGE_SHARE: Final = 0.3  # of the customers per period
_CREDIT_SHARE: Final = 0.1
_CREDIT_MICROS: Final = (1 * MICROS_PER_UNIT, 5 * MICROS_PER_UNIT)
_LEFT_MICROS: Final = 1 * MICROS_PER_UNIT  # minimum left for the first event
_WEIGHT_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class Drawn:
    """A group's usage of one period: a row per customer, a column per event."""

    kinds: Ints
    times_us: Ints
    quantities: Ints


def draw(random: np.random.Generator, group: CustomerGroup, period: Period, stop_us: int, events: int) -> Drawn:
    """`events` events of each customer before `stop_us`, and the recurring fee if one is due, for exactly 100.00."""
    shape = (len(group.customers), events)
    times_us = random.integers(period.start_us, stop_us, shape)
    kinds = random.choice(list(_SHARES), shape, p=list(_SHARES.values()))
    kinds[:, 0] = DATA
    if events >= 4:
        kinds[random.random(shape[0]) < _PACKAGE_SHARE, 1] = PACKAGE_KIND
        kinds[random.random(shape[0]) < _CREDIT_SHARE, 2] = CREDIT
    if (fee_us := group.fee_us(period)) is not None:
        times_us = np.hstack([times_us, np.full((shape[0], 1), fee_us)])
        kinds = np.hstack([kinds, np.full((shape[0], 1), FEE_KIND)])
    return _evened_out(random, group, kinds, times_us)


def lines(group: CustomerGroup, drawn: Drawn) -> list[tuple[PlanVersion, Ints]]:
    """The bill's lines: for each version and type that occurs, the amount of each customer's quantity."""
    numbers = group.version_numbers(drawn.times_us)
    found = []
    for number, version in enumerate(group.versions):
        for kind, type_ in enumerate(_BILL_TYPES):
            chosen = (numbers == number) & (drawn.kinds == kind)
            if chosen.any():
                quantities = np.where(chosen, drawn.quantities, 0).sum(axis=1)
                found.append((version, version.prices[type_].values(quantities)))
    return found


def charged_micros(group: CustomerGroup, drawn: Drawn) -> int:
    """The sum charged to all customers: each customer's exact amount, rounded once."""
    rule = total_rounding(version.rounding for version, _ in lines(group, drawn))
    amounts = _amounts_micros(group, drawn).tolist()
    return sum(round_micros(amount, group.first.currency, rule) for amount in amounts)


def _evened_out(random: np.random.Generator, group: CustomerGroup, kinds: Ints, times_us: Ints) -> Drawn:
    numbers = group.version_numbers(times_us)
    fixed = _fixed(random, kinds)
    spent_micros = _amounts_micros(group, Drawn(kinds, times_us, fixed))
    budgets = _split(random, EVEN_MICROS - _LEFT_MICROS - spent_micros, kinds.shape)
    quantities = _affordable(group, kinds, numbers, budgets)
    kinds = np.where((kinds <= MESSAGE) & (quantities == 0), DATA, kinds)  # the share buys less than one unit
    quantities = np.where(kinds > DATA, fixed, _affordable(group, kinds, numbers, budgets))
    quantities[:, 0] = 0
    quantities[:, 0] = _left_over(group, Drawn(kinds, times_us, quantities), numbers)
    return Drawn(kinds, times_us, quantities)


def _amounts_micros(group: CustomerGroup, drawn: Drawn) -> Ints:
    """The exact amount of each customer's period."""
    return sum((amounts for _, amounts in lines(group, drawn)), np.zeros(len(drawn.kinds), np.int64))


def _fixed(random: np.random.Generator, kinds: Ints) -> Ints:
    """The quantities that depend on no share: one package, one fee, a random credit."""
    credits_ = random.integers(*_CREDIT_MICROS, kinds.shape)
    return np.where(kinds > DATA, np.where(kinds == CREDIT, credits_, 1), 0)


def _split(random: np.random.Generator, micros: Ints, shape: tuple[int, ...]) -> Ints:
    """Each row's micros in random parts, with integer arithmetic only, so that every machine draws the same."""
    weights = random.integers(1, _WEIGHT_MAX, shape)
    parts: Ints = micros[:, None] * weights // weights.sum(axis=1, keepdims=True)
    return parts


def _affordable(group: CustomerGroup, kinds: Ints, numbers: Ints, budgets: Ints) -> Ints:
    """The quantity that each event's share buys, at the version's highest price."""
    bought = np.zeros_like(budgets)
    for number, version in enumerate(group.versions):
        for kind in (CALL, MESSAGE, DATA):
            chosen = (numbers == number) & (kinds == kind)
            dearest = max(version.prices[_BILL_TYPES[kind]].tiers, key=lambda tier: tier.micros / tier.per)
            bought[chosen] = budgets[chosen] * dearest.per // dearest.micros
    return bought


def _left_over(group: CustomerGroup, drawn: Drawn, numbers: Ints) -> Ints:
    """The bytes of the first events that bring every customer to the even amount."""
    missing = EVEN_MICROS - _amounts_micros(group, drawn)
    data = (drawn.kinds == DATA) & (numbers == numbers[:, :1])  # on the line of the first event
    before = np.where(data, drawn.quantities, 0).sum(axis=1)
    bytes_ = np.zeros(len(before), np.int64)
    for number, version in enumerate(group.versions):
        chosen = numbers[:, 0] == number
        tiers = version.prices["data"]
        wanted = tiers.values(before[chosen]) + missing[chosen]
        bytes_[chosen] = _least(tiers, wanted) - before[chosen]
    return bytes_


def _least(tiers: Tiers, micros: Ints) -> Ints:
    """The smallest quantities that cost exactly these micros."""
    low, high = np.zeros(len(micros), np.int64), np.full(len(micros), QUANTITY_MAX["data"], np.int64)
    while (low < high).any():
        middle = (low + high) // 2
        enough = tiers.values(middle) >= micros
        low, high = np.where(enough, low, middle + 1), np.where(enough, middle, high)
    assert (tiers.values(low) == micros).all(), "data must cost less than a micro a byte"
    return low
