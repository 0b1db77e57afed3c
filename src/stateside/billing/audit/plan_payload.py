"""The auditor's own reading of a published plan: the payload of an event of type `plan`.

    {"plan": "basic", "version": 3, "effective_us": …, "currency": "EUR", "rounding": "half-even",
     "cycle": {"kind": "month", "time_zone": "Europe/Berlin", "anchor_day": 1},
     "prices": {"call": [[0, 0, 1], [6000, 90000, 60]], "fee:base": [[0, 9990000, 1]], "credit": [[0, -1, 1]]},
     "fees": ["base"]}

A price is steps [above, micros, per]: of what lies above `above`, up to the next step, every `per` cost `micros`.
"""

from __future__ import annotations

import json
import re
from typing import Any
from zoneinfo import ZoneInfo

from stateside.billing.audit.money import MINOR_MICROS, ROUNDINGS

QUANTITY_MAX = {
    "call": 31 * 24 * 3_600,  # seconds
    "message": 100_000,
    "data": 10**13,  # bytes
    "package": 1_000,
    "fee": 1,
    "credit": 10**12,  # micros
}
NAMED = ("package", "fee")  # on the bill these are `package:NAME`, `fee:NAME`
EVENT_MICROS_MAX = 10**15  # no event may cost more than a thousand million units of money

_LONG_MAX = 2**63 - 1
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_CREDIT = [[0, -1, 1]]  # a micro of credit takes a micro off, in every plan


def read_version(payload: str) -> dict[str, Any] | None:
    """What a published version says, its steps with their ends; None if nothing could be rated by it."""
    try:
        found: dict[str, Any] = json.loads(payload)
        sound = _head_is_sound(found) and _cycle_is_sound(found["cycle"]) and _prices_are_sound(found["prices"])
        sound = sound and all(f"fee:{fee}" in found["prices"] for fee in found.get("fees", ()))
    except (ValueError, LookupError, TypeError, AttributeError, OSError):
        return None
    if not sound:
        return None
    cycle = {"anchor_day": 1, **found["cycle"]}
    return found | {"cycle": cycle, "prices": {type_: _with_ends(steps) for type_, steps in found["prices"].items()}}


def is_whole(value: Any, least: int) -> bool:
    """Whether it is a whole number from `least` on that a column can hold."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= _LONG_MAX


def _head_is_sound(found: dict[str, Any]) -> bool:
    return (
        _NAME.fullmatch(found["plan"]) is not None
        and is_whole(found["version"], 1)
        and is_whole(found["effective_us"], 0)
        and found["currency"] in MINOR_MICROS
        and found["rounding"] in ROUNDINGS
    )


def _cycle_is_sound(cycle: dict[str, Any]) -> bool:
    ZoneInfo(cycle["time_zone"])  # an error if there is no such zone
    anchor_day, kind = cycle.get("anchor_day", 1), cycle["kind"]
    return (
        cycle.keys() <= {"kind", "time_zone", "anchor_day"}
        and kind in ("month", "week", "day")
        and is_whole(anchor_day, 1)
        and anchor_day <= (31 if kind == "month" else 1)
    )


def _prices_are_sound(prices: dict[str, list[list[int]]]) -> bool:
    return prices["credit"] == _CREDIT and all(_price_is_sound(type_, steps) for type_, steps in prices.items())


def _price_is_sound(type_: str, steps: list[list[int]]) -> bool:
    usage_type, colon, name = type_.partition(":")
    aboves = [above for above, _, _ in steps]
    return (
        usage_type in QUANTITY_MAX
        and bool(colon) == (usage_type in NAMED)
        and (not colon or _NAME.fullmatch(name) is not None)
        and all(
            is_whole(above, 0) and is_whole(micros, -_LONG_MAX) and is_whole(per, 1) for above, micros, per in steps
        )
        and aboves[0] == 0
        and sorted(set(aboves)) == aboves
        and (usage_type == "credit" or all(micros >= 0 for _, micros, _ in steps))
        and all(QUANTITY_MAX[usage_type] * micros // per <= EVENT_MICROS_MAX for _, micros, per in steps)
    )


def _with_ends(steps: list[list[int]]) -> list[dict[str, int | None]]:
    ends = [*(above for above, _, _ in steps[1:]), None]
    return [
        {"above": above, "below": below, "micros": micros, "per": per}
        for (above, micros, per), below in zip(steps, ends, strict=True)
    ]
