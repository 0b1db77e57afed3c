"""The TOML format of price plans, one file per version, parsed into a `PlanVersion` (`plan`).

    plan = "basic"
    version = 3
    effective = 2026-02-01                 # midnight in the plan's time zone; or a time, 2026-02-01T06:00:00+01:00
    currency = "EUR"
    time_zone = "Europe/Berlin"
    cycle = "month"                        # or "week", "day"
    anchor_day = 15                        # of a month; default 1
    rounding = "half-even"                 # of an invoice's line; this is the default

    [prices.call]                          # seconds
    included = 6000                        # free; default 0
    price = "0.09"
    per = 60                               # for each minute; default 1

    [prices.message]
    tiers = [{ up_to = 100, price = "0.10" }, { price = "0.05" }]

    [prices.package.weekend]
    price = "4.99"

    [fees.base]                            # recurring: every customer pays it once a period
    price = "9.99"

Prices are strings, in units of the currency, with at most six decimals. `up_to` counts a period's whole quantity,
including the free part. Usage without a price is refused. Credit needs no price.

The view's `plans.json` has the versions that rows and documents refer to, for readers without the journal:

    {"basic@3": the version's payload, as in its publication, …}

The file only ever grows. The sink extends it, and the view's table of functions with the prices, before Spark commits
the first batch that refers to a version.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Final
from zoneinfo import ZoneInfo

from stateside.billing.calendar import Cycle, micros
from stateside.billing.model import NAMED_TYPES, USAGE_TYPES
from stateside.billing.money import MICROS_DIGITS, MICROS_PER_UNIT
from stateside.billing.plans.plan import CREDIT, PlanVersion, plan_event
from stateside.billing.plans.tiers import Tier, Tiers
from stateside.core import JsonFile, ViewLayout
from stateside.core.errors import CheckpointInvalid, PlanInvalid
from stateside.views import extend_functions

__all__ = ["CREDIT", "PlanVersion", "parse_plan", "plan_event"]

_FIELDS: Final = ("plan", "version", "effective", "currency", "time_zone", "cycle", "anchor_day", "rounding")
_NEEDED: Final = ("plan", "version", "effective", "currency", "time_zone", "cycle")
_PRICE_FIELDS: Final = ("included", "price", "per", "tiers")
_TIER_FIELDS: Final = ("up_to", "price", "per")
_PRICE_CHARS_MAX: Final = 40


def parse_plan(content: bytes, where: str) -> PlanVersion:
    """Parse a plan file; PlanInvalid, with the reason, for an invalid version. `where` is for the message."""
    try:
        return _plan(tomllib.loads(content.decode()))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise PlanInvalid(f"The plan is no TOML: {error}", where=where) from error
    except PlanInvalid as error:
        raise PlanInvalid(error.what, where=where, next_step=error.next_step) from error
    except ValueError as error:  # from `Tiers`
        raise PlanInvalid(f"The plan has an impossible price: {error}", where=where) from error


def _plan(found: dict[str, Any]) -> PlanVersion:
    _check_fields(found, (*_FIELDS, "prices", "fees"), "a plan")
    for name in _NEEDED:
        if name not in found:
            raise PlanInvalid(f"The plan says nothing of its {name}")
    cycle = Cycle(found["cycle"], found["time_zone"], found.get("anchor_day", 1))
    fees = _table(found, "fees")
    prices = {**dict(_prices(_table(found, "prices"))), **{f"fee:{name}": _price(fees, name) for name in fees}}
    return PlanVersion(
        found["plan"],
        found["version"],
        _effective_us(found["effective"], cycle),
        found["currency"],
        cycle,
        found.get("rounding", "half-even"),
        {**prices, "credit": CREDIT},
        tuple(fees),
    )


def _prices(table: Mapping[str, Any]) -> Iterator[tuple[str, Tiers]]:
    """Each type on the bill with its price."""
    _check_fields(table, [type_ for type_ in USAGE_TYPES if type_ not in ("fee", "credit")], "prices")
    for type_ in table:
        if type_ in NAMED_TYPES:
            named = _table(table, type_)
            yield from ((f"{type_}:{name}", _price(named, name)) for name in named)
        else:
            yield type_, _price(table, type_)


def _price(table: Mapping[str, Any], name: str) -> Tiers:
    """The tiers of one price: the included quantity, then the tiers or the single price."""
    price = _table(table, name)
    _check_fields(price, _PRICE_FIELDS, f"the price of {name!r}")
    if ("tiers" in price) == ("price" in price) or ("tiers" in price and "per" in price):
        raise PlanInvalid(f"{name!r} needs either a price, with its `per`, or tiers, each with its own")
    included = _whole(price.get("included", 0), 0, f"`included` of {name!r}")
    free = [Tier(0, 0, 1)] if included else []
    return Tiers((*free, *_tiers(price.get("tiers", [price]), included, name)))


def _tiers(tiers: Any, above: int, name: str) -> Iterator[Tier]:
    if not isinstance(tiers, list) or not tiers or not all(isinstance(tier, dict) for tier in tiers):
        raise PlanInvalid(f"The tiers of {name!r} are no list of tables")
    for number, tier in enumerate(tiers, 1):
        if tier.keys() - {"included"} - set(_TIER_FIELDS) or "price" not in tier:
            raise PlanInvalid(f"Tier {number} of {name!r} needs a price, and may have `up_to` and `per`")
        yield Tier(above, _micros(tier["price"], name), _whole(tier.get("per", 1), 1, f"`per` of {name!r}"))
        if ("up_to" in tier) == (number == len(tiers)):
            raise PlanInvalid(f"All tiers of {name!r} but the last one need `up_to`, and the last one must not have it")
        if "up_to" in tier:
            above = _whole(tier["up_to"], above + 1, f"`up_to` of tier {number} of {name!r}")


def _micros(price: object, name: str) -> int:
    if not isinstance(price, str):
        raise PlanInvalid(f"The price {price!r} of {name!r} is no text", next_step='Write it in quotes, like "0.09"')
    try:
        value = Decimal(price) if len(price) <= _PRICE_CHARS_MAX and price.isascii() else Decimal("nan")
        sign, digits, exponent = value.as_tuple()
    except InvalidOperation:
        sign, digits, exponent = 0, (), "n"
    if not isinstance(exponent, int) or sign or not -_PRICE_CHARS_MAX <= exponent <= MICROS_DIGITS:
        raise PlanInvalid(f"The price {price!r} of {name!r} is no amount of money", next_step='Write it like "0.09"')
    whole, rest = divmod(int("".join(map(str, digits))) * MICROS_PER_UNIT, 10**-exponent if exponent < 0 else 1)
    if rest:
        raise PlanInvalid(
            f"The price {price!r} of {name!r} has more than {MICROS_DIGITS} decimals",
            next_step="Give the price for more at once: with per = 1000 it is a thousand times as large",
        )
    return whole * (10**exponent if exponent > 0 else 1)


def _effective_us(effective: object, cycle: Cycle) -> int:
    if isinstance(effective, date) and not isinstance(effective, datetime):
        effective = datetime(effective.year, effective.month, effective.day, tzinfo=ZoneInfo(cycle.time_zone))
    if not isinstance(effective, datetime) or effective.tzinfo is None:
        raise PlanInvalid(
            f"`effective` is {effective!r}, neither a day nor a time with its offset",
            next_step="Write it like 2026-02-01 or 2026-02-01T06:00:00+01:00, without quotes",
        )
    return micros(effective)


def _table(found: Mapping[str, Any], name: str) -> dict[str, Any]:
    table = found.get(name, {})
    if not isinstance(table, dict):
        raise PlanInvalid(f"{name!r} is {table!r}, not a table with fields")
    return table


def _check_fields(found: Mapping[str, Any], known: Any, of: str) -> None:
    for name in found:
        if name not in known:
            raise PlanInvalid(f"{name!r} is no field of {of}", next_step=f"There are: {', '.join(known)}")


def _whole(value: object, least: int, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise PlanInvalid(f"{what} is {value!r}, not a whole number from {least} on")
    return value


_PLANS: JsonFile[dict[str, PlanVersion]] = JsonFile(
    "The plans of the view",
    lambda document: {id_: PlanVersion.from_payload(payload) for id_, payload in document.items()},
    lambda plans: {id_: plan.as_payload() for id_, plan in sorted(plans.items())},
    damage=CheckpointInvalid,
    next_step="Restore this file from a copy, or delete it: the view's sink writes it again at its next batch",
)


def plan_file(places: ViewLayout) -> Path:
    return places.root / "plans.json"


def load_plans(places: ViewLayout) -> dict[str, PlanVersion]:
    """The versions by id; empty before the first batch. CheckpointInvalid if the file is damaged."""
    return _PLANS.read(plan_file(places)) or {}


def extend_plans(places: ViewLayout, plans: Mapping[str, PlanVersion]) -> None:
    """Add these versions to both files, written only if one is new. The view's sink is the only writer."""
    entries = [entry for plan in plans.values() for entry in plan.table_entries().items()]
    extend_functions(places.functions, dict(entries))
    known = load_plans(places)
    if plans.keys() - known.keys():
        _PLANS.write(plan_file(places), {**known, **plans})
