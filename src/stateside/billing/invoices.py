"""Invoices: a document per customer and month, sealed once and never changed."""

from __future__ import annotations

from dataclasses import dataclass

import duckdb
import pyarrow as pa

from stateside.archive import ArchiveTable, TableSpec
from stateside.billing.bills import VIEW
from stateside.billing.calendar import Month
from stateside.errors import ArchiveInvalid
from stateside.layout import Layout
from stateside.pipeline.sinks.sink import BatchId, SinkContext

_TIME = pa.timestamp("us", tz="UTC")
_LINE = pa.struct([("type", pa.string()), ("amount_micros", pa.int64()), ("events", pa.int64())])
INVOICES = TableSpec(
    name="invoices",
    schema=pa.schema(
        [
            pa.field("period", pa.string(), nullable=False),
            pa.field("customer", pa.string(), nullable=False),
            pa.field("period_end", _TIME, nullable=False),
            pa.field("total_micros", pa.int64(), nullable=False),
            pa.field("events", pa.int64(), nullable=False),
            pa.field("lines", pa.list_(_LINE), nullable=False),
        ]
    ),
    partition_by=("period",),
)

_ASSEMBLE = """
    select months.period, customer, period_end,
           sum(amount_micros)::bigint as total_micros,
           sum(events)::bigint as events,
           list({'type': type, 'amount_micros': amount_micros, 'events': events} order by type) as lines
    from rows join months using (period_end)
    group by all
    order by months.period, customer
"""


@dataclass(frozen=True, slots=True)
class InvoiceSink:
    """Takes the rows of closed months and stores them as invoices, each batch once (see `archive.table`)."""

    table: ArchiveTable

    @classmethod
    def of(cls, context: SinkContext) -> InvoiceSink:
        """The sink of an application's folder; creates its table at the first run.

        ArchiveInvalid if there are invoices but the checkpoint that sealed them is gone: a new one would seal them
        all a second time.
        """
        layout = context.layout
        table = invoice_table(layout)
        if not (layout.view(VIEW).checkpoint / "metadata").exists() and table.count():
            raise ArchiveInvalid(
                "There are invoices, but the checkpoint of the query that sealed them is gone",
                where=str(layout.view(VIEW).checkpoint),
                next_step="Bring the checkpoint back, or run on a new folder with a copy of the journal",
            )
        table.create()
        return cls(table)

    def write(self, rows: pa.Table, batch: BatchId) -> None:
        """Seal the rows. All rows of a month close in the same batch, so every invoice is whole."""
        self.table.append(assemble(rows), batch.query, batch.batch)


def invoice_table(layout: Layout) -> ArchiveTable:
    """The invoices of an application's folder."""
    return ArchiveTable(layout.table(INVOICES.name), INVOICES, layout.view(VIEW).root / "invoices.json")


def assemble(rows: pa.Table) -> pa.Table:
    """Closed rows, one for each type of usage, as invoices with lines."""
    if not rows.num_rows:
        return INVOICES.schema.empty_table()
    ends = rows["period_end"].unique()
    labels = [str(Month.ending(end_us)) for end_us in ends.cast(pa.int64()).to_pylist()]
    months = pa.table({"period_end": ends, "period": labels})
    with duckdb.connect() as connection:
        connection.execute("set timezone = 'UTC'")
        connection.register("rows", rows)
        connection.register("months", months)
        invoices: pa.Table = connection.sql(_ASSEMBLE).to_arrow_table()
    return invoices.cast(INVOICES.schema)
