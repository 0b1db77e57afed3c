"""Documents (invoices and notes, numbered without gaps, never changed) and dead letters, in one Delta table each.

An invoice has the closed rows of a customer, a period and a currency, one line each. A note corrects an invoice. A line
has the exact price of its quantity (`amount_micros`), and the same amount rounded once to the currency's minor unit
(`charged_micros`). A document has the exact sum of its lines, and charges the sum rounded once; the difference from the
sum of its lines' charges is its `rounding_micros`. So lines + rounding = total. Documents of Stateside 0.1 charge the
sum of their lines: their rounding is null, as is the rounding of every later note to such an invoice. A document
belongs to the end of its period: where a customer changed to a plan with another cycle, and two periods end at one
moment, the document has the longer one's name.

Numbers: invoices from I-000000001, notes from N-000000001, in the order in which batches are sealed and, within a
batch, by period's end, customer and currency. The highest numbers are counters of the table, and change with the rows
in one step, so no crash repeats or skips a number.

All events of a document precede its `sealed_position` in the journal: for an invoice the end of the sealing batch, for
a note or late invoice the offset after its last event. Readers filter by `sealed_position`
(`answers.document_store`).

A batch's late events of one account (customer, period's end, currency) make one note. Its lines are differences: with q
the quantity of the invoice and its earlier notes, a late quantity l changes the exact amount by f(q + l) - f(q), and
the charge by the difference of these two amounts, each rounded once. The note's total is the account's new exact
amount, rounded once, less the charges of the earlier documents. So invoice and notes together always charge the same as
one invoice of all quantities. Exception: notes to an invoice without a rounding line (Stateside 0.1) have none either,
and charge the sum of their lines. A note that charges less is a credit note, any other a debit note; a note is written
even if it charges nothing, because it documents the events. Without an invoice, the events make one. If late events of
one customer and period share an id, as in a batch that is stored twice, the first counts.

Dead letters are events that break a rule of billing, kept with reason and offset. The table's counter `position` is the
end of the journal's range whose dead letters are stored. Whether an event is a dead letter depends only on the journal
before the event, so a batch, of whatever query, stores the dead letters from `position` on. Repeats (`repeats`) depend
also on when their periods closed, so the sink looks repeats up by offset.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateside.archive import ArchiveTable, TableSpec
from stateside.billing.invoicing.amounts import Amounts, Longs, groups, longs, ranks, round_totals, with_longs
from stateside.billing.model import VIEW
from stateside.billing.money import checked
from stateside.billing.rating.rating import is_bad
from stateside.core import Layout

INVOICE: Final = "invoice"
CREDIT_NOTE: Final = "credit-note"
DEBIT_NOTE: Final = "debit-note"
ACCOUNT: Final = ("period_end", "customer", "currency")  # the key of an invoice, and the order of numbering
NUMBER_DIGITS: Final = 9
INVOICES: Final = "invoices"  # the table's counters of the highest numbers
NOTES: Final = "notes"
TIME: Final = pa.timestamp("us", tz="UTC")
LINE: Final = pa.struct(
    [
        ("type", pa.string()),
        ("plan", pa.string()),
        ("quantity", pa.int64()),
        ("events", pa.int64()),
        ("amount_micros", pa.int64()),
        ("charged_micros", pa.int64()),
    ]
)
DOCUMENTS: Final = TableSpec(
    name="documents",
    schema=pa.schema(
        [
            pa.field("number", pa.string(), nullable=False),
            pa.field("kind", pa.string(), nullable=False),
            pa.field("sequence", pa.int64(), nullable=False),
            pa.field("customer", pa.string(), nullable=False),
            pa.field("period", pa.string(), nullable=False),
            pa.field("period_start", TIME, nullable=False),
            pa.field("period_end", TIME, nullable=False),
            pa.field("currency", pa.string(), nullable=False),
            pa.field("lines", pa.list_(LINE), nullable=False),
            pa.field("amount_micros", pa.int64(), nullable=False),
            pa.field("charged_micros", pa.int64(), nullable=False),
            pa.field("events", pa.int64(), nullable=False),
            pa.field("corrects", pa.string()),
            pa.field("event_ids", pa.list_(pa.string()), nullable=False),
            pa.field("late", pa.bool_(), nullable=False),
            pa.field("sealed_position", pa.int64(), nullable=False),
            pa.field("rounding_micros", pa.int64()),
        ]
    ),
    partition_by=("period",),
    sealed=False,
)
ADDED: Final = ("rounding_micros",)  # columns that tables of Stateside 0.1 lack
_NUMBERS: Final = ("number", "sequence")
DRAFT: Final = pa.schema([field for field in DOCUMENTS.schema if field.name not in _NUMBERS])  # before it is numbered
_LONG_SAFE: Final = 2.0**62  # a sum that is smaller than this as a float is exact as a long


def documents_table(layout: Layout) -> ArchiveTable:
    """The documents of an application's folder."""
    return ArchiveTable(layout.table(DOCUMENTS.name), DOCUMENTS, layout.view(VIEW).mark(DOCUMENTS.name))


def invoices(rows: pa.Table, amounts: Amounts, position: int) -> pa.Table:
    """Closed rows, one per customer, period's end, type and plan, as drafts in the order of their numbers.

    `position` is the end of the batch that closed the rows.
    """
    micros = amounts.amounts(rows, longs(rows["quantity"]))
    lines = with_longs(rows, amount_micros=micros, charged_micros=amounts.charged(rows, micros))
    return assemble(amounts.with_currency(lines), amounts, position)


def assemble(lines: pa.Table, amounts: Amounts, position: int) -> pa.Table:
    """Lines, with customer, period's end and currency, as drafts of invoices in the order of their numbers."""
    if not lines.num_rows:
        return DRAFT.empty_table()
    lines = with_longs(lines, period_end=longs(lines["period_end"]))
    order, firsts = _in_order(lines)
    table = lines.select([*LINE.names, "period_end"]).take(order).combine_chunks()
    labels, starts = _periods(table, firsts, amounts)
    currencies = lines["currency"].take(order[firsts])
    sums = {name: _sums(longs(table[name]), firsts) for name in ("amount_micros", "charged_micros", "events")}
    rules = amounts.rules(table["plan"])
    charged = round_totals(
        sums["amount_micros"], currencies, np.minimum.reduceat(rules, firsts), np.maximum.reduceat(rules, firsts)
    )
    columns = {
        **{name: lines[name].take(order[firsts]) for name in ACCOUNT},
        "kind": pa.repeat(INVOICE, len(firsts)),
        "period": labels,
        "period_start": starts,
        "lines": _lists(table, firsts),
        "amount_micros": pa.array(sums["amount_micros"]),
        "charged_micros": pa.array(charged),
        "rounding_micros": pa.array(charged - sums["charged_micros"]),
        "events": pa.array(sums["events"]),
        "corrects": pa.nulls(len(firsts), pa.string()),
        "event_ids": pa.ListArray.from_arrays(np.zeros(len(firsts) + 1, np.int32), pa.array([], pa.string())),
        "late": pa.repeat(False, len(firsts)),
        "sealed_position": pa.repeat(position, len(firsts)),
    }
    return pa.table({name: columns[name] for name in DRAFT.names}).cast(DRAFT)


def numbered(drafts: pa.Table, series: str, highest: int) -> pa.Table:
    """Drafts with the next numbers of a series, after the highest one so far."""
    sequence = pa.array(np.arange(highest + 1, highest + 1 + drafts.num_rows), pa.int64())
    digits = pc.utf8_lpad(sequence.cast(pa.string()), NUMBER_DIGITS, "0")
    number = pc.binary_join_element_wise(f"{series}-", digits, "")
    table = drafts.append_column("number", number).append_column("sequence", sequence)
    return table.select(DOCUMENTS.schema.names).cast(DOCUMENTS.schema)


def _in_order(lines: pa.Table) -> tuple[Longs, Longs]:
    """The line numbers sorted by account, then type and plan; and the index of each account's first line."""
    accounts = ranks(lines, *ACCOUNT)
    order = np.lexsort((ranks(lines, "type", "plan"), accounts))
    return order, np.flatnonzero(np.diff(accounts[order], prepend=-1))  # ranks are never negative


def _periods(table: pa.Table, firsts: Longs, amounts: Amounts) -> tuple[pa.Array, pa.Array]:
    """The label and the start of every document's period; of several with the same end, the longest."""
    found = [
        (amounts.plans[plan].cycle.ending(end_us), rows) for (plan, end_us), rows in groups(table, "plan", "period_end")
    ]
    periods = sorted({period for period, _ in found}, key=lambda period: (period.start_us, period.label))
    ranks = np.zeros(table.num_rows, np.int64)
    for period, rows in found:
        ranks[rows] = periods.index(period)
    chosen = pa.array(np.minimum.reduceat(ranks, firsts))
    labels = pa.array([period.label for period in periods], pa.string())
    return labels.take(chosen), pa.array([period.start_us for period in periods], pa.int64()).take(chosen)


def _lists(table: pa.Table, firsts: Longs) -> pa.ListArray:
    """The lines, as one list per document."""
    lines = pa.StructArray.from_arrays([table[name].chunk(0) for name in LINE.names], fields=list(LINE))
    return pa.ListArray.from_arrays(pa.array([*firsts.tolist(), table.num_rows], pa.int32()), lines)


def _sums(values: Longs, firsts: Longs) -> Longs:
    """The sum of every document's lines; MoneyOverflow rather than a wrong sum."""
    if np.add.reduceat(np.abs(values.astype(np.float64)), firsts).max() < _LONG_SAFE:
        return np.add.reduceat(values, firsts)
    exact = [checked(sum(part.tolist())) for part in np.split(values, firsts[1:])]
    return np.array(exact, np.int64)


POSITION: Final = "position"
DEAD_LETTERS: Final = TableSpec(
    name="dead_letters",
    schema=pa.schema(
        [
            pa.field("offset", pa.int64(), nullable=False),
            pa.field("id", pa.string(), nullable=False),
            pa.field("entity", pa.string(), nullable=False),
            pa.field("type", pa.string(), nullable=False),
            pa.field("time", TIME, nullable=False),
            pa.field("appended", TIME, nullable=False),
            pa.field("payload", pa.string(), nullable=False),
            pa.field("reason", pa.string(), nullable=False),
            pa.field("detail", pa.string()),
        ]
    ),
    sealed=False,
)


def dead_letters_table(layout: Layout) -> ArchiveTable:
    """The dead letters of an application's folder."""
    return ArchiveTable(layout.table(DEAD_LETTERS.name), DEAD_LETTERS, layout.view(VIEW).mark(DEAD_LETTERS.name))


def dead_letters(events: pa.Table, rated: pa.Table) -> pa.Table:
    """The bad events with their reasons, as dead letters."""
    bad = is_bad(rated)
    table = events.filter(bad)
    for name in ("reason", "detail"):
        table = table.append_column(name, rated[name].filter(bad))
    return letters_of(table)


def letters_of(events: pa.Table) -> pa.Table:
    """Events with `reason` and `detail`, in the table's schema."""
    return events.select(DEAD_LETTERS.schema.names).cast(DEAD_LETTERS.schema)


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


def with_micros(table: pa.Table, *names: str) -> pa.Table:
    """The table with these times as whole microseconds; the columns' new names end in `_us`."""
    for name in names:
        times = table[name].cast(TIME).cast(pa.int64())
        table = table.set_column(table.schema.get_field_index(name), f"{name}_us", times)
    return table
