"""Documents: invoices and notes in one Delta table, numbered without gaps, never changed.

An invoice has the closed rows of a customer, a period and a currency, a line each. A note corrects one (`notes`). Each
line has what its quantity costs, exactly (`amount_micros`), and that amount rounded once to the currency's minor unit
(`charged_micros`); a document's sums are those of its lines. A document belongs to the moment at which its period ends:
where a customer changed to a plan with another cycle, and two periods end at one moment, it bears the longer one's name.

Numbers: invoices I-000000001 and on, notes N-000000001 and on, in the order in which batches are sealed and, in a
batch, by period's end, customer and currency. The highest ones stand in the table's notes, and change with the rows in
one step: so no number is given twice, and none left out, whatever crashes.
"""

from __future__ import annotations

from typing import Final

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateside.archive import ArchiveTable, TableSpec
from stateside.billing.amounts import Amounts, Longs, groups, longs
from stateside.billing.calendar import Period
from stateside.billing.money import checked
from stateside.layout import Layout

VIEW: Final = "bill"
INVOICE: Final = "invoice"
CREDIT_NOTE: Final = "credit-note"
DEBIT_NOTE: Final = "debit-note"
ACCOUNT: Final = ("period_end", "customer", "currency")  # what an invoice is for; in this order they are numbered
NUMBER_DIGITS: Final = 9

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
        ]
    ),
    partition_by=("period",),
)
_NUMBERS: Final = ("number", "sequence")
DRAFT: Final = pa.schema([field for field in DOCUMENTS.schema if field.name not in _NUMBERS])  # before it is numbered
_LONG_SAFE: Final = 2.0**62  # a sum that is smaller than this as a float is exact as a long


def documents_table(layout: Layout) -> ArchiveTable:
    """The documents of an application's folder."""
    return ArchiveTable(layout.table(DOCUMENTS.name), DOCUMENTS, layout.view(VIEW).mark(DOCUMENTS.name))


def invoices(rows: pa.Table, amounts: Amounts) -> pa.Table:
    """Closed rows, one for each customer, period's end, type and plan, as drafts of invoices, in the order of numbers."""
    if not rows.num_rows:
        return DRAFT.empty_table()
    quantities = longs(rows["quantity"])
    micros = amounts.amounts(rows, quantities)
    lines = with_accounts(rows, amounts)
    lines = lines.append_column("amount_micros", pa.array(micros))
    lines = lines.append_column("charged_micros", pa.array(amounts.charged(rows, micros)))
    return assemble(lines, late=False)


def with_accounts(rows: pa.Table, amounts: Amounts) -> pa.Table:
    """Rows with a `plan` and a `period_end`, with `currency`, `period` and `period_start` as their plans say."""
    periods = _periods(rows, amounts)
    plans = rows["plan"].combine_chunks().dictionary_encode()
    currencies = pa.array([amounts.plans[plan].currency for plan in plans.dictionary.to_pylist()], pa.string())
    table = rows.append_column("currency", currencies.take(plans.indices))
    table = table.append_column("period", pa.array([period.label for period, _ in periods]).take(_codes(rows, periods)))
    return table


def numbered(drafts: pa.Table, prefix: str, highest: int) -> pa.Table:
    """Drafts with the numbers after the highest one so far."""
    sequence = pa.array(np.arange(highest + 1, highest + 1 + drafts.num_rows), pa.int64())
    digits = pc.utf8_lpad(sequence.cast(pa.string()), NUMBER_DIGITS, "0")
    number = pc.binary_join_element_wise(pa.scalar(f"{prefix}-"), digits, "")
    table = drafts.append_column("number", number).append_column("sequence", sequence)
    return table.select(DOCUMENTS.schema.names).cast(DOCUMENTS.schema)
