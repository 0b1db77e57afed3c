"""Notes: the corrections that late events make to sealed invoices.

A batch's late events of one account (customer, period's end, currency) make one note. Its lines are differences: with q
the quantity of the invoice and its earlier notes, a late quantity l changes the exact amount by f(q + l) - f(q), and
the charge by the difference of these two amounts, each rounded once. The note's total is the account's new exact
amount, rounded once, less the charges of the earlier documents. So invoice and notes together always charge the same as
one invoice of all quantities. Exception: notes to an invoice without a rounding line (Stateside 0.1) have none either,
and charge the sum of their lines.

A note that charges less is a credit note, any other a debit note; a note is written even if it charges nothing, because
it documents the events. Without an invoice, the events make one.

Late events that repeat an earlier one are dead letters (`repeats`), and do not get here. If late events of one customer
and period still share an id, as in a batch that is stored twice, the first counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateside.billing.invoicing.amounts import Amounts, Longs, longs, round_totals, with_longs
from stateside.billing.invoicing.documents import CREDIT_NOTE, DEBIT_NOTE, DRAFT, INVOICE, TIME, assemble
from stateside.billing.money import checked

LATE: Final = pa.schema(  # late events, input of `corrections`
    [
        ("offset", pa.int64()),
        ("id", pa.string()),
        ("customer", pa.string()),
        ("period_end", TIME),
        ("type", pa.string()),
        ("plan", pa.string()),
        ("quantity", pa.int64()),
    ]
)
BEFORE: Final = (  # columns of documents, input of `corrections`
    "number", "kind", "customer", "period", "period_start", "period_end", "currency", "lines", "event_ids",
    "amount_micros", "charged_micros", "rounding_micros",
)  # fmt: skip

_COUNTED = """
    create temp table counted as
    select * from late
    where (customer, period_end, id) not in (select (customer, period_end, unnest(event_ids)) from before)
    qualify row_number() over (partition by customer, period_end, id order by "offset") = 1
"""
_LINES = """
    with old as (
        select customer, period_end, currency, line.type, line.plan, sum(line.quantity) as quantity_before
        from (select customer, period_end, currency, unnest(lines) as line from before) group by all
    ), new as (
        select customer, period_end, currency, type, plan, sum(quantity) as quantity, count(*) as events
        from counted group by all
    )
    select new.*, coalesce(quantity_before, 0) as quantity_before,
           quantity + coalesce(quantity_before, 0) as quantity_after
    from new left join old using (customer, period_end, currency, type, plan)
"""
_HEADS = """
    with new as (
        select period_end, customer, currency, list(id order by "offset") as event_ids, max("offset") as last_offset
        from counted group by all
    ), old as (
        select period_end, customer, currency,
               sum(amount_micros) as amount_before, sum(charged_micros) as charged_before
        from before group by all
    ), of_lines as (
        select period_end, customer, currency, min(rule) as rule_lowest, max(rule) as rule_highest
        from (
            select period_end, customer, currency, plan from counted
            union all
            select period_end, customer, currency, line.plan
            from (select period_end, customer, currency, unnest(lines) as line from before)
        ) join rules using (plan) group by all
    )
    select new.event_ids, last_offset, number as corrects, period, period_start, rule_lowest, rule_highest,
           coalesce(amount_before, 0) as amount_before, coalesce(charged_before, 0) as charged_before,
           number is not null and rounding_micros is null as by_lines
    from new join of_lines using (period_end, customer, currency)
    left join old using (period_end, customer, currency)
    left join (select * from before where kind = 'invoice') using (period_end, customer, currency)
    order by period_end, customer, currency
"""


@dataclass(frozen=True, slots=True)
class Corrections:
    """Drafts of notes and of late invoices, each in the order of their numbers; and the number of duplicates."""

    notes: pa.Table
    late_invoices: pa.Table
    duplicates: int


def corrections(late: pa.Table, before: pa.Table, amounts: Amounts) -> Corrections:
    """The corrections by late events (`LATE`), given all documents of their customers and periods so far (`BEFORE`)."""
    if not late.num_rows:
        return Corrections(DRAFT.empty_table(), DRAFT.empty_table(), 0)
    lines, heads, counted = _joined(amounts.with_currency(late), before, amounts)
    drafts = _headed(_charged(assemble(_differences(lines, amounts), amounts, 0), heads), heads)
    is_note = pc.is_valid(drafts["corrects"])
    return Corrections(drafts.filter(is_note), drafts.filter(pc.invert(is_note)), late.num_rows - counted)


def _joined(late: pa.Table, before: pa.Table, amounts: Amounts) -> tuple[pa.Table, pa.Table, int]:
    """Late quantities with the quantities before; the fields of each document's head; the number of counted events."""
    with duckdb.connect() as connection:
        connection.register("late", with_longs(late, period_end=longs(late["period_end"])))
        times = {name: longs(before[name]) for name in ("period_end", "period_start")}
        connection.register("before", with_longs(before.select(BEFORE), **times))
        plans = pa.chunked_array([list(amounts.plans)], pa.string())
        connection.register("rules", pa.table({"plan": plans, "rule": amounts.rules(plans)}))
        connection.execute(_COUNTED)
        (counted,) = connection.execute("select count(*) from counted").fetchall()[0]
        return connection.sql(_LINES).to_arrow_table(), connection.sql(_HEADS).to_arrow_table(), counted


def _differences(lines: pa.Table, amounts: Amounts) -> pa.Table:
    """The lines with their changes, exact and charged."""
    old, new = (amounts.amounts(lines, longs(lines[name])) for name in ("quantity_before", "quantity_after"))
    charged = amounts.charged(lines, new) - amounts.charged(lines, old)
    exact = {name: longs(lines[name]) for name in ("quantity", "events")}
    return with_longs(lines, **exact, amount_micros=new - old, charged_micros=charged)


def _charged(drafts: pa.Table, heads: pa.Table) -> pa.Table:
    """The drafts with their totals: the account's new total less the charges of its documents so far."""
    amounts, charged, roundings = (
        longs(drafts[name]) for name in ("amount_micros", "charged_micros", "rounding_micros")
    )
    lines = charged - roundings
    after = _plus(longs(heads["amount_before"]), amounts)
    lowest, highest = (longs(heads[name]) for name in ("rule_lowest", "rule_highest"))
    totals = round_totals(after, drafts["currency"], lowest, highest)
    by_lines = heads["by_lines"].to_numpy()
    charged = np.where(by_lines, lines, _plus(totals, -longs(heads["charged_before"])))
    rounding = pa.array(_plus(charged, -lines), pa.int64(), mask=by_lines)
    place = drafts.schema.get_field_index("rounding_micros")
    return with_longs(drafts, charged_micros=charged).set_column(place, DRAFT.field(place), rounding)


def _plus(some: Longs, others: Longs) -> Longs:
    """The sums, pair by pair; MoneyOverflow rather than a wrong sum."""
    return np.array([checked(a + b) for a, b in zip(some.tolist(), others.tolist(), strict=True)], np.int64)


def _headed(drafts: pa.Table, heads: pa.Table) -> pa.Table:
    """Drafts with their kind: a note that names the invoice it corrects, or a late invoice where there is none."""
    corrects = heads["corrects"]
    signs = np.sign(longs(drafts["charged_micros"])) * 2 + np.sign(longs(drafts["amount_micros"]))
    note = pc.if_else(pa.array(signs < 0), CREDIT_NOTE, DEBIT_NOTE)
    columns = {
        "kind": pc.if_else(pc.is_valid(corrects), note, INVOICE),
        "corrects": corrects,
        "period": pc.coalesce(heads["period"], drafts["period"]),
        "period_start": pc.coalesce(heads["period_start"].cast(TIME), drafts["period_start"]),
        "event_ids": heads["event_ids"],
        "late": pc.is_null(corrects),
        "sealed_position": pc.add(heads["last_offset"], 1),
    }
    return pa.table({name: columns.get(name, drafts[name]) for name in DRAFT.names}).cast(DRAFT)
