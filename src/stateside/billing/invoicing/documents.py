"""Documents (invoices and notes, numbered without gaps, never changed) and dead letters, in one Delta table each.

An invoice has the closed rows of a customer, a period and a currency, one line each. A note corrects an invoice
(`notes`). A line has the exact price of its quantity (`amount_micros`), and the same amount rounded once to the
currency's minor unit (`charged_micros`). A document has the exact sum of its lines, and charges the sum rounded once;
the difference from the sum of its lines' charges is its `rounding_micros`. So lines + rounding = total. Documents of
Stateside 0.1 charge the sum of their lines: their rounding is null, as is the rounding of every later note to such an
invoice. A document belongs to the end of its period: where a customer changed to a plan with another cycle, and two
periods end at one moment, the document has the longer one's name.

Numbers: invoices from I-000000001, notes from N-000000001, in the order in which batches are sealed and, within a
batch, by period's end, customer and currency. The highest numbers are counters of the table, and change with the rows
in one step, so no crash repeats or skips a number.

All events of a document precede its `sealed_position` in the journal: for an invoice the end of the sealing batch, for
a note or late invoice the offset after its last event. Readers filter by `sealed_position`
(`answers.available_documents`).

Dead letters are events that break a rule of billing, kept with reason and offset. The table's counter `position` is the
end of the journal's range whose dead letters are stored. Whether an event is a dead letter depends only on the journal
before the event, so a batch, of whatever query, stores the dead letters from `position` on. Repeats (`repeats`) depend
also on when their periods closed, so the sink looks repeats up by offset.
"""

from __future__ import annotations

from typing import Final

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
