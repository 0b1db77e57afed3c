"""Bills with one more price component, added while a month is under way: a fee for each call.

    stateside run stateside.billing.pipeline:app --dir data          bills without the fee, until today
    stateside check examples.connection_fee:app --dir data           bill  can be migrated
    stateside apply examples.connection_fee:app --dir data           from now on with the fee, for the whole month

The fees of open periods are a column of the view `bill`, and of its rollups. When a period closes, each of its lines
has a row in the table `connection_fees`, beside the invoice, which stays as it was. Calls that come after their period
was closed are billed by notes, without a fee.

The migration derives the fees so far from the number of calls so far: nothing is folded again, and the month ends with
the fees that it would have with this application from its first day on.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from stateside import sinks
from stateside.billing.invoicing.invoice_sink import BillingSink
from stateside.billing.model import VIEW
from stateside.billing.pipeline import KEY, application, bill
from stateside.core import Layout
from stateside.pipeline import BatchId, Sink, SinkContext, inside, keyed

FEE_MICROS = 50_000
COLUMNS = (*KEY, "fee_micros")


@dataclass(frozen=True, slots=True)
class InvoicesAndFees:
    """Stores the fees, then the documents: a crash between the two repeats the batch, and both know what they have."""

    invoices: Sink
    fees: Sink

    def write(self, rows: pa.Table, batch: BatchId) -> None:
        self.fees.write(rows.select(COLUMNS), batch)
        self.invoices.write(rows, batch)


@inside
@keyed
def invoices_and_fees(context: SinkContext) -> InvoicesAndFees:
    """A row of fees has the key of its line, so no other query stores it again."""
    columns = pa.schema([context.schema.field(name) for name in COLUMNS])
    fees = sinks.delta("connection_fees", key=KEY)(SinkContext(context.layout, context.view, columns))
    return InvoicesAndFees(BillingSink.of(context), fees)


def bill_with_fees(rated: DataFrame, layout: Layout) -> DataFrame:
    """The bill, and the fees of its calls."""
    fee = F.when(F.col("type") == "call", FEE_MICROS).otherwise(0)
    return bill(rated, layout, F.sum(fee).alias("fee_micros"))


app = application(bill_with_fees, invoices_and_fees)


@app.migration(VIEW)
def with_fees(row: Mapping[str, Any]) -> dict[str, Any]:
    """The fees of a line so far."""
    return {"fee_micros": row["events"] * FEE_MICROS if row["type"] == "call" else 0}
