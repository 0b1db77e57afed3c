"""Reference data: the auditor's own rules for published plans, assignments of customers, and billing periods.

Rules and calendar are written apart from the pipeline's code on purpose: if one of the two is wrong, the two disagree.
An event that breaks a rule is refused: it changes nothing, and is a bad event.

An assignment is an event of type `assign` about the customer: {"plan": "basic", "effective_us": …}. A version of a plan
is an event of type `plan` about the plan:

    {"plan": "basic", "version": 3, "effective_us": …, "currency": "EUR", "rounding": "half-even",
     "cycle": {"kind": "month", "time_zone": "Europe/Berlin", "anchor_day": 1},
     "prices": {"call": [[0, 0, 1], [6000, 90000, 60]], "fee:base": [[0, 9990000, 1]], "credit": [[0, -1, 1]]},
     "fees": ["base"]}

A price is tiers [above, micros, per]: in the part of the quantity above `above`, up to the next tier, every `per` units
cost `micros`.
"""

from __future__ import annotations

import json
import re
from calendar import monthrange
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa

from stateside.billing.audit.ledger import Ledger
from stateside.billing.audit.money_macros import MINOR_MICROS, ROUNDINGS

QUANTITY_MAX = {
    "call": 31 * 24 * 3_600,  # seconds
    "message": 100_000,
    "data": 10**13,  # bytes
    "package": 1_000,
    "fee": 1,
    "credit": 10**12,  # micros
}
NAMED = ("package", "fee")  # `package:NAME`, `fee:NAME` on the bill
EVENT_MICROS_MAX = 10**15  # price limit of one event: 10**9 units of the currency
_LONG_MAX = 2**63 - 1
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_CREDIT = [[0, -1, 1]]  # in every plan a micro of credit subtracts a micro


def read_version(payload: str) -> dict[str, Any] | None:
    """A published version, its tiers with their ends; None if the payload is invalid."""
    try:
        found: dict[str, Any] = json.loads(payload)
        sound = _head_is_sound(found) and _cycle_is_sound(found["cycle"]) and _prices_are_sound(found["prices"])
        sound = sound and all(f"fee:{fee}" in found["prices"] for fee in found.get("fees", ()))
    except (ValueError, LookupError, TypeError, AttributeError, OSError):
        return None
    if not sound:
        return None
    cycle = {"anchor_day": 1, **found["cycle"]}
    return found | {"cycle": cycle, "prices": {type_: _with_ends(tiers) for type_, tiers in found["prices"].items()}}


def is_whole(value: Any, least: int) -> bool:
    """Whether the value is an integer from `least` on that a 64-bit column can hold."""
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
    ZoneInfo(cycle["time_zone"])  # raises for an unknown zone
    anchor_day, kind = cycle.get("anchor_day", 1), cycle["kind"]
    return (
        cycle.keys() <= {"kind", "time_zone", "anchor_day"}
        and kind in ("month", "week", "day")
        and is_whole(anchor_day, 1)
        and anchor_day <= (31 if kind == "month" else 1)
    )


def _prices_are_sound(prices: dict[str, list[list[int]]]) -> bool:
    return prices["credit"] == _CREDIT and all(_price_is_sound(type_, tiers) for type_, tiers in prices.items())


def _price_is_sound(type_: str, tiers: list[list[int]]) -> bool:
    usage_type, colon, name = type_.partition(":")
    aboves = [above for above, _, _ in tiers]
    return (
        usage_type in QUANTITY_MAX
        and bool(colon) == (usage_type in NAMED)
        and (not colon or _NAME.fullmatch(name) is not None)
        and all(
            is_whole(above, 0) and is_whole(micros, -_LONG_MAX) and is_whole(per, 1) for above, micros, per in tiers
        )
        and aboves[0] == 0
        and sorted(set(aboves)) == aboves
        and (usage_type == "credit" or all(micros >= 0 for _, micros, _ in tiers))
        and all(QUANTITY_MAX[usage_type] * micros // per <= EVENT_MICROS_MAX for _, micros, per in tiers)
    )


def _with_ends(tiers: list[list[int]]) -> list[dict[str, int | None]]:
    ends = [*(above for above, _, _ in tiers[1:]), None]
    return [
        {"above": above, "below": below, "micros": micros, "per": per}
        for (above, micros, per), below in zip(tiers, ends, strict=True)
    ]


def fold_references(ledger: Ledger, ahead_us: int) -> None:
    """Fold the reference data of the registered `chunk` into the ledger.

    All but a customer's first assignment take effect at least `ahead_us` after their append.
    """
    _fold_plans(ledger, ahead_us)
    _fold_assignments(ledger, ahead_us)


def _fold_plans(ledger: Ledger, ahead_us: int) -> None:
    for offset, id_, plan, appended_us, payload in _events(ledger, "plan"):
        (newest,) = ledger.rows("select max(version), max(effective_us) from plans where plan = ?", plan)
        found = read_version(payload)
        if found is None or found["plan"] != plan or not _follows(found, newest, appended_us + ahead_us):
            ledger.sql.execute("insert into bad values (?, ?, ?, 'plan', 'plan-refused')", [offset, id_, plan])
        else:
            _store_plan(ledger, offset, plan, found)


def _events(ledger: Ledger, type_: str) -> list[tuple[Any, ...]]:
    columns = '"offset", id, entity, appended_us, payload'
    return ledger.rows(f'select {columns} from chunk where type = ? order by "offset"', type_)


def _follows(found: dict[str, Any], newest: tuple[Any, ...], effective_us_min: int) -> bool:
    """Whether a version may follow the newest one: higher number, effective later, not too soon after its append."""
    version, effective_us = newest
    return (
        found["effective_us"] >= effective_us_min
        and (version is None or found["version"] > version)
        and (effective_us is None or found["effective_us"] > effective_us)
    )


def _store_plan(ledger: Ledger, offset: int, plan: str, found: dict[str, Any]) -> None:
    id_ = f"{plan}@{found['version']}"
    cycle, currency = found["cycle"], found["currency"]
    ledger.sql.execute(
        "insert into plans values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            *(plan, found["version"], id_, found["effective_us"], offset),
            *(currency, MINOR_MICROS[currency], found["rounding"]),
            *(cycle["kind"], cycle["time_zone"], cycle["anchor_day"]),
        ],
    )
    for type_, tiers in found["prices"].items():
        ledger.sql.execute("insert into prices values (?, ?, ?)", [id_, type_, tiers])


def _fold_assignments(ledger: Ledger, ahead_us: int) -> None:
    newest = _newest_assignments(ledger)
    accepted: list[tuple[str, int, int, int, str]] = []
    refused: list[tuple[int, str, str]] = []
    for offset, id_, customer, appended_us, payload in _events(ledger, "assign"):
        number, effective_us_before = newest.get(customer, (0, -1))
        plan, effective_us = _assignment(payload)
        effective_us_min = 0 if number == 0 else max(appended_us + ahead_us, effective_us_before + 1)
        if plan is None or effective_us < effective_us_min:
            refused.append((offset, id_, customer))
            continue
        newest[customer] = (number + 1, effective_us)
        accepted.append((customer, number + 1, effective_us, offset, plan))
    _insert(ledger, "assignments", accepted, "customer number effective_us offset plan")
    _insert(ledger, "bad", [(*one, "assign", "assign-refused") for one in refused], "offset id entity type reason")


def _newest_assignments(ledger: Ledger) -> dict[str, tuple[int, int]]:
    """For the customers in the chunk's assignments: the number and effective time of their last assignment."""
    rows = ledger.rows("""
        select customer, max(number), max(effective_us) from assignments
        where customer in (select entity from chunk where type = 'assign') group by customer
    """)
    return {customer: (number, effective_us) for customer, number, effective_us in rows}


def _assignment(payload: str) -> tuple[str | None, int]:
    """The plan and its effective time; None as the plan if either is invalid."""
    found = json.loads(payload)
    plan, effective_us = found.get("plan"), found.get("effective_us")
    sound = isinstance(plan, str) and plan and is_whole(effective_us, 0)
    return (plan, effective_us) if sound else (None, 0)


def _insert(ledger: Ledger, table: str, rows: list[tuple[Any, ...]], names: str) -> None:
    """Insert many rows through Arrow, because DuckDB is slow row by row."""
    if rows:
        columns = dict(zip(names.split(), map(list, zip(*rows, strict=True)), strict=True))
        ledger.sql.register("rows_to_insert", pa.table(columns))
        ledger.sql.execute(f"insert into {table} by name from rows_to_insert")
        ledger.sql.unregister("rows_to_insert")


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_LONGEST = timedelta(days=63)  # every day's period, and the one before, began less than this ago


@dataclass(frozen=True, slots=True, order=True)
class AuditCycle:
    """A plan's division of time into periods: `month` (from the anchor day), ISO `week` or `day` of a time zone."""

    kind: str
    time_zone: str
    anchor_day: int


@dataclass(frozen=True, slots=True)
class AuditPeriod:
    """A period of a cycle: `start_us` is inclusive, `end_us` exclusive."""

    label: str
    start_us: int
    end_us: int


def periods(cycle: AuditCycle, first_us: int, last_us: int) -> list[AuditPeriod]:
    """The periods that contain the times from `first_us` to `last_us`, both inclusive, in order."""
    zone = ZoneInfo(cycle.time_zone)
    first, last = (_local_date(time_us, zone) for time_us in (first_us, last_us))
    days = _first_days(cycle, first - _LONGEST, last + _LONGEST)
    found = [AuditPeriod(_label(cycle, day), _midnight_us(day, zone), _midnight_us(after, zone)) for day, after in days]
    return [period for period in found if period.end_us > first_us and period.start_us <= last_us]


def _first_days(cycle: AuditCycle, begin: date, end: date) -> Iterator[tuple[date, date]]:
    """The first days of the periods between two dates, each with the first day of the next period."""
    dates = (begin + timedelta(days=number) for number in range((end - begin).days + 1))
    return pairwise(day for day in dates if _begins_on(cycle, day))


def _begins_on(cycle: AuditCycle, day: date) -> bool:
    """Whether a period begins on this day. A month without the anchor day begins on its last day."""
    if cycle.kind == "month":
        return day.day == min(cycle.anchor_day, monthrange(day.year, day.month)[1])
    return cycle.kind == "day" or day.isoweekday() == 1


def _label(cycle: AuditCycle, day: date) -> str:
    """The period's name, from its first day: 2026-01, 2026-01@15, 2026-W03 or 2026-01-15."""
    if cycle.kind == "month":
        return f"{day:%Y-%m}" if cycle.anchor_day == 1 else f"{day:%Y-%m}@{cycle.anchor_day:02d}"
    if cycle.kind == "week":
        year, week, _ = day.isocalendar()
        return f"{year}-W{week:02d}"
    return day.isoformat()


def _local_date(time_us: int, zone: ZoneInfo) -> date:
    return (_EPOCH + time_us * _MICROSECOND).astimezone(zone).date()


def _midnight_us(day: date, zone: ZoneInfo) -> int:
    """The start of a day: midnight, or the moment when the clocks skip midnight."""
    return (datetime.combine(day, time(), zone).astimezone(UTC) - _EPOCH) // _MICROSECOND
