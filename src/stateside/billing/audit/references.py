"""Reference data: the plans that were published and the customers that were assigned to them, one by one in order.

A version of a plan is an event of type `plan` about the plan (see `plan_payload`), an assignment one of type `assign`
about the customer: {"plan": "basic", "effective_us": …}.

What breaks a rule is refused: it changes nothing, and is a bad event.
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from stateside.billing.audit.ledger import Ledger
from stateside.billing.audit.money import MINOR_MICROS
from stateside.billing.audit.plan_payload import is_whole, read_version


def fold_references(ledger: Ledger, ahead_us: int) -> None:
    """Take the reference data of the registered `chunk` into the ledger.

    All but a customer's first assignment take effect at least so long after they were appended.
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
    """Whether a version may come after the newest one: a higher number, in effect later, and not too soon."""
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
    for type_, steps in found["prices"].items():
        ledger.sql.execute("insert into prices values (?, ?, ?)", [id_, type_, steps])


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
    """For the customers that the chunk assigns anew: the number of their last assignment, and when it takes effect."""
    rows = ledger.rows("""
        select customer, max(number), max(effective_us) from assignments
        where customer in (select entity from chunk where type = 'assign') group by customer
    """)
    return {customer: (number, effective_us) for customer, number, effective_us in rows}


def _assignment(payload: str) -> tuple[str | None, int]:
    """The plan, and when it takes effect; None if the payload does not say both."""
    found = json.loads(payload)
    plan, effective_us = found.get("plan"), found.get("effective_us")
    sound = isinstance(plan, str) and plan and is_whole(effective_us, 0)
    return (plan, effective_us) if sound else (None, 0)


def _insert(ledger: Ledger, table: str, rows: list[tuple[Any, ...]], names: str) -> None:
    """Many rows at once: through Arrow, as one by one takes DuckDB a while."""
    if rows:
        columns = dict(zip(names.split(), map(list, zip(*rows, strict=True)), strict=True))
        ledger.sql.register("rows_to_insert", pa.table(columns))
        ledger.sql.execute(f"insert into {table} by name from rows_to_insert")
        ledger.sql.unregister("rows_to_insert")
