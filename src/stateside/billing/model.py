"""The events of billing: usage, assignments to plans, clock ticks. Publications of plans are in `plans`.

| type | entity | payload | meaning |
|---|---|---|---|
| `call` `message` `data` `package` `fee` `credit` | customer | quantity, name, currency | usage, in the type's unit |
| `assign` | customer | plan, effective_us, holder | the plan rates the customer from `effective_us` on |
| `plan` | plan | a version of the plan | the version rates usage from its effective time on |
| `clock` | `clock` | | the current time: moves the watermark and nothing else |
| `lateness` | `lateness` | quantity | allowed lateness in microseconds; counts as the journal's first event only |
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from stateside.billing.money import minor_digits
from stateside.core import JsonFile, Layout
from stateside.core.errors import EventRefused, SettingInvalid
from stateside.journal import Event

if TYPE_CHECKING:
    from stateside.journal import Log

APPLICATION: Final = "billing"
VIEW: Final = "bill"  # the one view, with all running bills

PLAN: Final = "plan"
ASSIGN: Final = "assign"
CLOCK: Final = "clock"
LATENESS: Final = "lateness"

USAGE_TYPES: Final[Mapping[str, str]] = {  # with their units
    "call": "seconds",
    "message": "messages",
    "data": "bytes",
    "package": "packages",
    "fee": "fees",
    "credit": "micros",
}
NAMED_TYPES: Final = ("package", "fee")  # usage with a name: its type on the bill is `package:NAME`

HOUR_US: Final = 3_600_000_000
DAY_US: Final = 24 * HOUR_US
GRACE_US: Final = 3 * DAY_US  # allowed lateness by default: an event may arrive so long after its period's end
LATENESS_US_MAX: Final = 366 * DAY_US
FUTURE_US_MAX: Final = HOUR_US  # how far an event's time may lie beyond its append time

QUANTITY_MAX: Final[Mapping[str, int]] = {  # of one event; an event with more becomes a dead letter
    "call": 31 * 86_400,
    "message": 100_000,
    "data": 10**13,
    "package": 1_000,
    "fee": 1,
    "credit": 10**12,
}


def usage(
    id: str,
    customer: str,
    type: str,
    time_us: int,
    quantity: int,
    *,
    name: str | None = None,
    currency: str | None = None,
) -> Event:
    """A usage event of a customer; EventRefused if rating would refuse the event under every plan.

    `name` is the package or the fee, and is allowed for these two types only. `currency` is for sources that know the
    currency: rating compares it with the plan's.
    """
    if type not in USAGE_TYPES:
        raise EventRefused(f"{type!r} is no type of usage", next_step=f"There are: {', '.join(USAGE_TYPES)}")
    _check_customer(customer)
    if not _whole(quantity) or not 0 <= quantity <= QUANTITY_MAX[type]:
        raise EventRefused(
            f"The quantity {quantity!r} of event {id!r} is not a number of {USAGE_TYPES[type]} "
            f"from 0 to {QUANTITY_MAX[type]}"
        )
    _check_name(id, type, name)
    if currency is not None:
        minor_digits(currency)
    optional = {"name": name, "currency": currency}
    payload = {"quantity": quantity, **{field: value for field, value in optional.items() if value is not None}}
    return Event(id, customer, type, time_us, payload)


def assignment(
    id: str, customer: str, plan: str, effective_us: int, time_us: int, *, holder: str | None = None
) -> Event:
    """Assigns a customer to a plan from a time on; `holder` is the name on the bill. EventRefused for an invalid field.

    Whether the assignment takes effect depends on the events before it in the journal (`book`).
    """
    _check_customer(customer)
    if not isinstance(plan, str) or not plan:
        raise EventRefused(f"The plan {plan!r} of the assignment {id!r} is no plan's name")
    if not _whole(effective_us):
        raise EventRefused(f"effective_us {effective_us!r} of the assignment {id!r} is no number of microseconds")
    payload: dict[str, Any] = {"plan": plan, "effective_us": effective_us}
    return Event(id, customer, ASSIGN, time_us, payload if holder is None else payload | {"holder": holder})


def clock_tick(time_us: int, id: str) -> Event:
    """The current time as an event: periods close even when no customer uses anything."""
    return Event(id, CLOCK, CLOCK, time_us, {})


def lateness(allowed_us: int, time_us: int) -> Event:
    """Sets the allowed lateness; EventRefused for an impossible one. In effect as the journal's first event only."""
    if not _whole(allowed_us) or not 0 <= allowed_us <= LATENESS_US_MAX:
        raise EventRefused(f"An allowed lateness of {allowed_us!r} us is not from 0 to {LATENESS_US_MAX}")
    return Event(LATENESS, LATENESS, LATENESS, time_us, {"quantity": allowed_us})


def lateness_set(journal: Log) -> int | None:
    """The allowed lateness by the journal's first event; None if the first event is another, or was dropped."""
    from stateside.journal.columns import decode

    for first, batch in journal.batches(0, 1) if journal.end().one() and not journal.begin().one() else ():
        event = next(decode(batch.slice(0, 1)))
        allowed_us = event.payload.get("quantity")
        if (first, event.type) == (0, LATENESS) and _whole(allowed_us) and 0 <= allowed_us <= LATENESS_US_MAX:
            return int(allowed_us)
    return None


LATENESS_NOTE: Final[JsonFile[int]] = JsonFile(  # of the view `bill`, since its first start
    "The allowed lateness",
    lambda document: int(document["allowed_us"]),
    lambda allowed_us: {"allowed_us": allowed_us},
)


def lateness_file(layout: Layout) -> Path:
    return layout.view(VIEW).root / "lateness.json"


def lateness_in_force(layout: Layout) -> int:
    """The allowed lateness of a folder's bills. SettingInvalid if the journal says other than the view started with."""
    from stateside.journal import open_journal  # needs the extra [server], which names alone do not

    noted, said = LATENESS_NOTE.read(lateness_file(layout)), lateness_set(open_journal(layout.journal).log())
    if noted is not None and said not in (None, noted):
        assert said is not None
        raise SettingInvalid(
            f"The journal sets an allowed lateness of {days(said)}, and the bills here were begun with {days(noted)}",
            where=str(lateness_file(layout)),
            next_step="It cannot be changed in a folder whose view has started: begin in a new one",
        )
    return next(each for each in (noted, said, GRACE_US) if each is not None)


def days(duration_us: int) -> str:
    return f"{duration_us / DAY_US:g} day{'' if duration_us == DAY_US else 's'}"


def bill_type(type: str, name: str | None) -> str:
    """The type on the bill: `package:NAME` or `fee:NAME` for named usage, otherwise the usage type itself."""
    return f"{type}:{name}" if type in NAMED_TYPES else type


def _check_customer(customer: str) -> None:
    if "/" in customer:
        raise EventRefused(f"The customer {customer!r} has a / in its name, which no address could have")


def _check_name(id: str, type: str, name: str | None) -> None:
    if type in NAMED_TYPES and not (isinstance(name, str) and name):
        raise EventRefused(f"The {type} of event {id!r} has no name", next_step=f"Say which {type}: name=…")
    if type not in NAMED_TYPES and name is not None:
        raise EventRefused(f"The {type} of event {id!r} has the name {name!r}", next_step="Leave it out")


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
