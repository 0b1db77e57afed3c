"""A version of a price plan, as a value and as the payload of the event that publishes the version:

    {"plan": "basic", "version": 3, "effective_us": 1769900400000000, "currency": "EUR", "rounding": "half-even",
     "cycle": {"kind": "month", "time_zone": "Europe/Berlin", "anchor_day": 1},
     "prices": {"call": [[0, 0, 1], [6000, 90000, 60]], "fee:base": [[0, 9990000, 1]], "credit": [[0, -1, 1]]},
     "fees": ["base"]}

A version is immutable, so usage once rated by a version is rated the same for ever. `prices` has `Tiers` by the type on
the bill; `fees` names the recurring ones, charged to every customer of the plan once a period.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from stateside.billing.calendar import Cycle
from stateside.billing.model import NAMED_TYPES, PLAN, QUANTITY_MAX, USAGE_TYPES
from stateside.billing.money import MICROS_PER_UNIT, ROUNDINGS, Rounding, minor_digits
from stateside.billing.plans.tiers import Tier, Tiers
from stateside.core.errors import CurrencyUnknown, PlanInvalid
from stateside.journal import Event

CREDIT: Final = Tiers((Tier(0, -1, 1),))
EVENT_MICROS_MAX: Final = 10**9 * MICROS_PER_UNIT  # price limit of one event: no sum of a period comes near 2**63
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_LONG_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class PlanVersion:
    """One version of a plan. PlanInvalid, with the reason, if a field is invalid."""

    plan: str
    version: int
    effective_us: int
    currency: str
    cycle: Cycle
    rounding: Rounding
    prices: Mapping[str, Tiers]
    fees: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_name(self.plan, "a plan")
        if not _whole(self.version, 1):
            raise PlanInvalid(f"The version {self.version!r} is not a whole number from 1 on")
        if not _whole(self.effective_us, 0):
            raise PlanInvalid(f"effective_us {self.effective_us!r} is not a number of microseconds since 1970")
        try:
            minor_digits(self.currency)
        except CurrencyUnknown as error:
            raise PlanInvalid(error.what, next_step=error.next_step) from error
        if self.rounding not in ROUNDINGS:
            raise PlanInvalid(f"{self.rounding!r} is no rounding rule", next_step=f"There are: {', '.join(ROUNDINGS)}")
        self._check_prices()

    @property
    def id(self) -> str:
        """The reference in rows and documents: `basic@3`."""
        return f"{self.plan}@{self.version}"

    def amount_micros(self, type: str, quantity: int) -> int:
        """The exact price of a period's quantity of one type on the bill."""
        return self.prices[type].value(quantity)

    def table_entries(self) -> dict[tuple[str, ...], Tiers]:
        """The version's entries in the view's table of functions, by (id, type on the bill)."""
        return {(self.id, type_): tiers for type_, tiers in self.prices.items()}

    def as_payload(self) -> dict[str, Any]:
        return {
            "plan": self.plan,
            "version": self.version,
            "effective_us": self.effective_us,
            "currency": self.currency,
            "rounding": self.rounding,
            "cycle": {
                "kind": self.cycle.kind,
                "time_zone": self.cycle.time_zone,
                "anchor_day": self.cycle.anchor_day,
            },
            "prices": {type_: tiers.as_json() for type_, tiers in self.prices.items()},
            "fees": list(self.fees),
        }

    @classmethod
    def from_payload(cls, payload: Mapping[str, Any]) -> PlanVersion:
        """Parse an event's payload; PlanInvalid if the payload is no valid version."""
        try:
            prices = {type_: Tiers.parse(tiers) for type_, tiers in payload["prices"].items()}
            return cls(
                payload["plan"],
                payload["version"],
                payload["effective_us"],
                payload["currency"],
                Cycle(**payload["cycle"]),
                payload["rounding"],
                prices,
                tuple(payload.get("fees", ())),
            )
        except KeyError as error:
            raise PlanInvalid(f"The plan says nothing of its {error.args[0]}") from error
        except (ValueError, TypeError, AttributeError) as error:
            raise PlanInvalid(f"This is no version of a plan: {error}") from error

    def _check_prices(self) -> None:
        if self.prices.get("credit") != CREDIT:
            raise PlanInvalid("A credit of a micro must be worth a micro, in every plan")
        for type_, tiers in self.prices.items():
            _check_price(type_, tiers)
        for fee in self.fees:
            if f"fee:{fee}" not in self.prices:
                raise PlanInvalid(f"The fee {fee!r} has no price")


def plan_event(version: PlanVersion, id: str, time_us: int) -> Event:
    """The publication of a version. Whether it takes effect depends on the events before it in the journal (`book`)."""
    return Event(id, version.plan, PLAN, time_us, version.as_payload())


def check_name(name: object, of: str) -> None:
    """PlanInvalid for a name that is not allowed in a URL or in a row's key."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise PlanInvalid(
            f"{name!r} is no name for {of}", next_step="Take up to 100 letters, digits, hyphens, dots and underscores"
        )


def _check_price(type_: str, tiers: Tiers) -> None:
    usage_type, colon, name = str(type_).partition(":")
    if usage_type not in USAGE_TYPES or bool(colon) != (usage_type in NAMED_TYPES):
        raise PlanInvalid(f"There is no usage of type {type_!r} that could have a price")
    if colon:
        check_name(name, f"a {usage_type}")
    if usage_type != "credit" and any(tier.micros < 0 for tier in tiers.tiers):
        raise PlanInvalid(f"The price of {type_!r} is negative", next_step="Give customers credit by credit events")
    if _most_micros(tiers, QUANTITY_MAX[usage_type]) > EVENT_MICROS_MAX:
        raise PlanInvalid(
            f"One event of type {type_!r} could cost more than {EVENT_MICROS_MAX // MICROS_PER_UNIT} units of money",
            next_step="Look for a slip in the price or in what it is `per`",
        )


def _most_micros(tiers: Tiers, quantity: int) -> int:
    """The quantity's price at the most expensive tier: an upper bound for any single event."""
    return max(quantity * tier.micros // tier.per for tier in tiers.tiers)


def _whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= _LONG_MAX
