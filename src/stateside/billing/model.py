"""Usage events and money."""

from __future__ import annotations

from typing import Final

from stateside.errors import EventRefused
from stateside.journal import Event

USAGE_TYPES: Final = ("call", "message", "data", "package")
MICROS_PER_UNIT: Final = 1_000_000
CURRENCY: Final = "EUR"
TIME_ZONE: Final = "Europe/Berlin"
GRACE_DAYS: Final = 3  # how long after its period's end an event may still come in
AMOUNT_MICROS_MAX: Final = 1_000_000 * MICROS_PER_UNIT


def usage(id: str, customer: str, type: str, time_us: int, amount_micros: int) -> Event:
    """A usage event of a customer; EventRefused if it is none."""
    if type not in USAGE_TYPES:
        raise EventRefused(f"{type!r} is no type of usage", next_step=f"There are: {', '.join(USAGE_TYPES)}")
    if "/" in customer:
        raise EventRefused(f"The customer {customer!r} has a / in its name, which no address could have")
    whole = isinstance(amount_micros, int) and not isinstance(amount_micros, bool)
    if not whole or not 0 <= amount_micros <= AMOUNT_MICROS_MAX:
        raise EventRefused(
            f"The amount {amount_micros!r} of event {id!r} is not a number of micros from 0 to {AMOUNT_MICROS_MAX}"
        )
    return Event(id, customer, type, time_us, {"amount_micros": amount_micros})


def format_micros(amount_micros: int) -> str:
    """An amount for people: two decimals, or as many as it takes to hide nothing."""
    sign = "-" if amount_micros < 0 else ""
    units, micros = divmod(abs(amount_micros), MICROS_PER_UNIT)
    return f"{sign}{units:,}.{f'{micros:06d}'.rstrip('0').ljust(2, '0')}"
