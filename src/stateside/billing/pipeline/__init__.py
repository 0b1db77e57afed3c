"""The billing view in PySpark: one aggregate, shown live as the running bill and sealed as the invoice.

    journal ─► rated by plan (`source`) ─► watermark ─► period's end (`periods`) ─► duplicates removed ─► summed

Events that do not count (dead letters, plans, assignments) are gone before the watermark sees them. Ticks of the clock
move it, and are gone after it.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from stateside.billing.invoicing.invoice_sink import BillingSink
from stateside.billing.model import APPLICATION, CLOCK, GRACE_US, VIEW
from stateside.billing.pipeline.period_columns import with_period_end
from stateside.billing.pipeline.source import RatedEvents
from stateside.pipeline.app import App, Function
from stateside.pipeline.sinks.sink import SinkFactory
from stateside.pipeline.sources import Source
from stateside.views.catalogue import Computed

KEY = ("customer", "period_end", "type", "plan")
ROLLUP = ("period_end", "plan", "type")
AMOUNT = Computed("amount_micros", of="quantity", by=("plan", "type"))

# The comparison never holds. It names the event time, and so keeps the filter above the watermark, where ticks of the
# clock have had their effect; without it Spark's optimiser moves the filter below.
_NO_CLOCK = f"type != '{CLOCK}' or time < timestamp'1900-01-01 00:00:00'"


def bill(rated: DataFrame) -> DataFrame:
    """Quantity and number of events for each customer, period, type and version of a plan, duplicates counted once.

    A period's rows leave the state as soon as the watermark, which trails the newest event by the grace time, has
    passed its end: those rows are the invoice. An id is remembered for as long as its period is open; what comes later
    is found when it is sealed (`sealing.repeats`). Of several events with one id the first in the journal counts. Only
    if they say different things, which a journal that compares ids does not store, and come in one batch, read by
    different tasks, or in two open periods, it may be another one of them, or both: then the auditor finds it.
    """
    return _summed(_with_periods(rated, "id").dropDuplicates(["id", "period_end"]))


def bill_of_all_events(rated: DataFrame) -> DataFrame:
    """The same for sources that never repeat an event: every one counts."""
    return _summed(_with_periods(rated))


def application(
    function: Function, sink: SinkFactory = BillingSink.of, *, with_ids: bool = True, source: Source | None = None
) -> App:
    """Billing with this function of the rated events as its view `bill`; by default it reads the journal on files."""
    made = App(APPLICATION, source=source or RatedEvents(with_ids=with_ids))
    made.view(key=KEY, name=VIEW, rollups=[ROLLUP], computed=[AMOUNT], sink=sink)(function)
    return made


def _with_periods(rated: DataFrame, *more: str) -> DataFrame:
    """The rated events that count, with the end of their period as the only event-time column."""
    counted = rated.withWatermark("time", f"{GRACE_US // 1_000} milliseconds").where(_NO_CLOCK)
    return with_period_end(counted).select(*more, "customer", "period_end", "type", "plan", "quantity")


def _summed(usage: DataFrame) -> DataFrame:
    return usage.groupBy(*KEY).agg(F.sum("quantity").alias("quantity"), F.count("*").alias("events"))


app = application(bill)
app_without_deduplication = application(bill_of_all_events, with_ids=False)
