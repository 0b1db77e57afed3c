"""The billing view in PySpark: one aggregate, served live as the running bill and sealed as the invoice.

    journal ─► rated by plan (`source`) ─► watermark ─► period end (`period_columns`) ─► deduplicated ─► summed

Events that do not count (dead letters, plans, assignments) are dropped before the watermark sees them. Clock ticks move
the watermark and are dropped after it.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from stateside.billing.invoicing.invoice_sink import BillingSink
from stateside.billing.model import APPLICATION, CLOCK, VIEW, lateness_in_force
from stateside.billing.pipeline.period_columns import with_period_end
from stateside.billing.pipeline.source import RatedEvents
from stateside.core import Layout
from stateside.pipeline import App, Function, SinkFactory, Source
from stateside.views import Computed

KEY = ("customer", "period_end", "type", "plan")
ROLLUP = ("period_end", "plan", "type")
AMOUNT = Computed("amount_micros", of="quantity", by=("plan", "type"))

# The comparison is never true. Because it names the event time, Spark's optimiser cannot push the filter below the
# watermark, where clock ticks would be dropped before they move the watermark.
_NO_CLOCK = f"type != '{CLOCK}' or time < timestamp'1900-01-01 00:00:00'"


def bill(rated: DataFrame, layout: Layout) -> DataFrame:
    """Quantity and number of events per customer, period, type and plan version, duplicates counted once.

    The watermark trails the newest event by the allowed lateness. When the watermark has passed a period's end, the
    period's rows leave the state and become the invoice. An id is remembered while its period is open; later repeats
    are found when the batch is sealed (`invoicing.repeats`). Of several events with one id, the first in the journal
    counts. Exception: events with one id but different content, refused by any journal that compares ids. If different
    tasks of one batch read such events, or the events lie in two open periods, another one may count, or both; the
    auditor then reports the events.
    """
    return _summed(_with_periods(rated, layout, "id").dropDuplicates(["id", "period_end"]))


def bill_of_all_events(rated: DataFrame, layout: Layout) -> DataFrame:
    """`bill` without deduplication, for sources that never repeat an event."""
    return _summed(_with_periods(rated, layout))


def application(
    function: Function, sink: SinkFactory = BillingSink.of, *, with_ids: bool = True, source: Source | None = None
) -> App:
    """Billing with this function of the rated events as its view `bill`; by default it reads the file journal."""
    made = App(APPLICATION, source=source or RatedEvents(with_ids=with_ids))
    made.view(key=KEY, name=VIEW, rollups=[ROLLUP], computed=[AMOUNT], sink=sink)(function)
    return made


def _with_periods(rated: DataFrame, layout: Layout, *more: str) -> DataFrame:
    """The counted events, with the end of their period as the only event-time column."""
    delay = f"{lateness_in_force(layout) // 1_000} milliseconds"
    counted = rated.withWatermark("time", delay).where(_NO_CLOCK)
    return with_period_end(counted).select(*more, "customer", "period_end", "type", "plan", "quantity")


def _summed(usage: DataFrame) -> DataFrame:
    return usage.groupBy(*KEY).agg(F.sum("quantity").alias("quantity"), F.count("*").alias("events"))


app = application(bill)
app_without_deduplication = application(bill_of_all_events, with_ids=False)
