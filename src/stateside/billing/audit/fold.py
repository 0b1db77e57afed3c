"""The fold: every event of the journal, in order, into the ledger, once and in exactly one class.

The fold reads a chunk of events, classifies the events by a few joins, and adds the chunk to the ledger in one
transaction:

1. Publications of plans and assignments of customers are folded one by one.
2. A usage event is joined with the newest assignment of its customer that precedes the event and is in effect at the
   event's time, and by the same rule with the newest version of the assigned plan.
3. The first broken rule makes the event a bad event, with the rule's name as the reason.
4. Of the others, the first event of an id counts; any later one is a duplicate.
5. The journal's first event may set the allowed lateness; any other event of this type is bad.
6. A counted event is added to its account: customer, period, type on the bill, plan.

Rules and calendar are written apart from the pipeline's code on purpose: if one of the two is wrong, the two disagree.
An event that breaks a rule is refused: it changes nothing, and is a bad event. An assignment is an event of type
`assign` about the customer: {"plan": "basic", "effective_us": …}. A version of a plan is an event of type `plan` about
the plan:

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

import numpy as np
import pyarrow as pa

from stateside.billing.audit.ledger import Ledger
from stateside.billing.audit.money_macros import MINOR_MICROS, ROUNDINGS
from stateside.core import Watch, nobody
from stateside.journal import Log
from stateside.journal.columns import SCHEMA

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


CHUNK_EVENTS = 250_000

LATENESS_US = 3 * 24 * 3_600_000_000  # the watermark's delay, unless the journal's first event sets another
LATENESS_US_MAX = 366 * 24 * 3_600_000_000
FUTURE_US_MAX = 3_600_000_000  # maximum of an event's time beyond its append time


_LIMITS = ", ".join(f"('{type_}', {largest})" for type_, largest in QUANTITY_MAX.items())

_ALLOWED_US = "try_cast(json_extract_string(payload, '$.quantity') as bigint)"
_SETS_LATENESS = f"""
    ("offset" = 0 and type = 'lateness' and json_type(payload, '$.quantity') in ('UBIGINT', 'BIGINT')
     and coalesce({_ALLOWED_US} between 0 and {LATENESS_US_MAX}, false))
"""
_LATENESS = f"""
    update fold set lateness_us = (select {_ALLOWED_US} from chunk where {_SETS_LATENESS})
    where exists (from chunk where {_SETS_LATENESS})
"""

# A payload field of a wrong type, or a quantity beyond 64 bits, makes the event malformed.
_READ = f"""
    create or replace temp table usage as
    with parsed as (
        select "offset", id, entity, type, time_us, appended_us,
               json_type(payload, ['$.quantity', '$.name', '$.currency']) as kinds,
               json_extract_string(payload, ['$.quantity', '$.name', '$.currency']) as texts
        from chunk where type not in ('plan', 'assign', 'clock') and not {_SETS_LATENESS}
    ), limits(type, quantity_max) as (values {_LIMITS})
    select "offset", id, entity, type, time_us, appended_us, quantity_max,
           case when kinds[1] in ('UBIGINT', 'BIGINT') then try_cast(texts[1] as bigint) end as quantity,
           case when kinds[2] = 'VARCHAR' then texts[2] end as name,
           case when kinds[3] = 'VARCHAR' then texts[3] end as currency,
           coalesce(kinds[2], 'NULL') in ('VARCHAR', 'NULL') and coalesce(kinds[3], 'NULL') in ('VARCHAR', 'NULL')
               as texts_are_texts,
           case when type in {NAMED} then type || ':' || name else type end as bill_type
    from parsed left join limits using (type)
"""

# Reference data are accepted in the journal's order and each takes effect after the one before. So the newest one that
# precedes an event and is in effect at its time has the highest number.
_ASSIGN = """
    create or replace temp table assigned as
    select usage."offset", any_value(usage.time_us) as time_us, arg_max(assignments.plan, assignments.number) as plan
    from usage join assignments
        on assignments.customer = usage.entity
        and assignments.effective_us <= usage.time_us and assignments."offset" < usage."offset"
    group by usage."offset"
"""
_VERSION = """
    create or replace temp table versions as
    select assigned."offset", arg_max(plans.id, plans.version) as plan
    from assigned join plans
        on plans.plan = assigned.plan and plans.effective_us <= assigned.time_us and plans."offset" < assigned."offset"
    group by assigned."offset"
"""

_CLASSIFY = f"""
    create or replace temp table classified as
    select usage."offset", usage.id, entity as customer, usage.type, bill_type, usage.time_us, quantity, versions.plan,
           kind, time_zone, anchor_day,
           case
               when quantity_max is null then 'unknown-type'
               when quantity is null or not texts_are_texts or coalesce(bill_type, '') in ('', 'package:', 'fee:')
                   then 'malformed'
               when usage.time_us > appended_us + {FUTURE_US_MAX} then 'future-dated'
               when quantity < 0 then 'negative-quantity'
               when quantity > quantity_max then 'absurd-quantity'
               when assigned.plan is null then 'unknown-customer'
               when versions.plan is null then 'unknown-plan'
               when prices.plan_id is null then 'not-in-plan'
               when usage.currency <> plans.currency then 'wrong-currency'
           end as reason
    from usage
    left join assigned on assigned."offset" = usage."offset"
    left join versions on versions."offset" = usage."offset"
    left join plans on plans.id = versions.plan
    left join prices on prices.plan_id = versions.plan and prices.type = usage.bill_type
"""

_PERIODS = """
    create or replace temp table valid as
    with counted as (
        select classified.*, hash(entity, chunk.type, chunk.time_us, payload) as content
        from classified join chunk on chunk."offset" = classified."offset" where reason is null
    )
    select counted."offset", id, customer, bill_type as type, plan, quantity, content, periods.end_us as period_end_us
    from counted asof join periods
        on periods.kind = counted.kind and periods.time_zone = counted.time_zone
        and periods.anchor_day = counted.anchor_day and counted.time_us >= periods.start_us
"""

_DUPLICATES = """
    create or replace temp table repeated as
    with firsts as (
        select id, min("offset") as "offset", arg_min(content, "offset") as content from valid group by id
    ),
    known as (select seen.id, seen."offset", seen.content from seen semi join firsts on firsts.id = seen.id)
    select valid."offset", coalesce(known."offset", firsts."offset") as first_offset,
           valid.content = coalesce(known.content, firsts.content) as says_the_same
    from valid join firsts on firsts.id = valid.id left join known on known.id = valid.id
    where known.id is not null or valid."offset" > firsts."offset"
"""

_STORE = f"""
    insert into duplicates
        select "offset", id, first_offset, says_the_same, customer, period_end_us, type, plan, quantity
        from valid join repeated using ("offset");
    insert into seen
        select id, "offset", customer, period_end_us, content from valid anti join repeated using ("offset");
    insert into sums
        select customer, period_end_us, type, plan, sum(quantity), count(*)
        from valid anti join repeated using ("offset") group by all;
    insert into bad
        select "offset", id, customer, type, reason from classified where reason is not null
        union all
        select "offset", id, entity, type, 'future-dated' from chunk
        where type = 'clock' and time_us > appended_us + {FUTURE_US_MAX};
"""

# Duplicates move the watermark too; bad events do not.
_CLOCK = f"""
    with ticks as (select time_us from chunk where type = 'clock' and time_us <= appended_us + {FUTURE_US_MAX}),
    times as (from ticks union all select time_us from classified where reason is null)
    update fold set
        clocks = clocks + (select count(*) from ticks),
        time_us_max = greatest(time_us_max, (select max(time_us) from times))
"""


def fold(ledger: Ledger, journal: Log, stop: int, watch: Watch = nobody) -> None:
    """Fold the journal from the ledger's position up to `stop`. A crash loses at most one chunk's work."""
    for start, upto, chunk in chunks(journal, ledger.position, stop):
        with ledger.transaction():
            fold_chunk(ledger, chunk)
            digest, moved = digest_of(ledger, chunk), [upto, chunk.num_rows, journal.id()]
            ledger.sql.execute("insert into chunks values (?, ?, ?)", [start, upto, digest])
            ledger.sql.execute("update fold set position = ?, events = events + ?, journal = ?", moved)
            ledger.add_up()
        watch(upto, stop)


def chunks(journal: Log, start: int, stop: int) -> Iterator[tuple[int, int, pa.Table]]:
    """The events of a range in chunks, with offsets, and with times in microseconds.

    A chunk comes with its first offset and its end; offsets in between may have no event.
    """
    while start < stop:
        upto = min(stop, start + CHUNK_EVENTS)
        found = list(journal.batches(start, upto))
        events = pa.Table.from_batches([batch for _, batch in found], SCHEMA)
        offsets = np.concatenate([np.arange(0), *(np.arange(at, at + batch.num_rows) for at, batch in found)])
        times = [events[name].cast(pa.int64()) for name in ("time", "appended")]
        columns = {name: events[name] for name in ("id", "entity", "type", "payload")}
        yield start, upto, pa.table({"offset": offsets, **columns, "time_us": times[0], "appended_us": times[1]})
        start = upto


def digest_of(ledger: Ledger, chunk: pa.Table) -> int:
    """A digest of all fields of these events; any change of the events changes it."""
    ledger.sql.register("chunk", chunk)
    fields = '"offset", id, entity, type, payload, time_us, appended_us'
    return int(ledger.one(f"select coalesce(sum(hash({fields})), 0) from chunk"))  # no event: only Kafka's own markers


def fold_chunk(ledger: Ledger, chunk: pa.Table) -> None:
    """Steps 1 to 6."""
    ledger.sql.register("chunk", chunk)
    fold_references(ledger, FUTURE_US_MAX)
    for step in (_READ, _ASSIGN, _VERSION, _CLASSIFY):
        ledger.sql.execute(step)
    _add_periods(ledger)
    for step in (_PERIODS, _DUPLICATES, _STORE, _CLOCK, _LATENESS):
        ledger.sql.execute(step)


def _add_periods(ledger: Ledger) -> None:
    """Add the periods of the chunk's events to the ledger. Every cycle's periods stay without gaps."""
    spans = ledger.rows("""
        with needed as (
            select kind, time_zone, anchor_day, min(time_us) as first_us, max(time_us) as last_us
            from classified where reason is null group by all
        ), known as (
            select kind, time_zone, anchor_day, min(start_us) as start_us, max(end_us) as end_us
            from periods group by all
        )
        select kind, time_zone, anchor_day, least(first_us, start_us), greatest(last_us, end_us - 1)
        from needed left join known using (kind, time_zone, anchor_day)
        where start_us is null or first_us < start_us or last_us >= end_us
    """)
    for kind, time_zone, anchor_day, first_us, last_us in spans:
        cycle = (kind, time_zone, anchor_day)
        ledger.sql.execute("delete from periods where (kind, time_zone, anchor_day) = (?, ?, ?)", cycle)
        for period in periods(AuditCycle(*cycle), first_us, last_us):
            row = [*cycle, period.label, period.start_us, period.end_us]
            ledger.sql.execute("insert into periods values (?, ?, ?, ?, ?, ?)", row)
