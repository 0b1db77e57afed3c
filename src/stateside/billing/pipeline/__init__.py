"""The billing view in PySpark: one aggregate, shown live as the running bill and sealed as the invoice.

    events ─► rated by plan (`rater`) ─► watermark ─► period's end (`periods`) ─► duplicates removed ─► summed

Events that do not count (dead letters, plans, assignments) are gone before the watermark sees them. Ticks of the clock
move it, and are gone after it.
"""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from stateside.billing.model import APPLICATION, CLOCK, FIELDS, GRACE_US, VIEW
from stateside.billing.pipeline.periods import period_end
from stateside.billing.pipeline.rater import IN, OUT, Rater
from stateside.billing.sealing.sink import BillingSink
from stateside.checkpoint.catalogue import Computed
from stateside.layout import Layout
from stateside.pipeline.app import App, Function
from stateside.pipeline.sinks.sink import SinkFactory

KEY = ("customer", "period_end", "type", "plan")
ROLLUP = ("period_end", "plan", "type")
AMOUNT = Computed("amount_micros", of="quantity", by=("plan", "type"))

# The comparison never holds. It names the event time, and so keeps the filter above the watermark, where ticks of the
# clock have had their effect; without it Spark's optimiser moves the filter below.
_NO_CLOCK = f"type != '{CLOCK}' or time < timestamp'1900-01-01 00:00:00'"


def bill(events: DataFrame, layout: Layout) -> DataFrame:
    """Quantity and number of events for each customer, period, type and version of a plan, duplicates counted once.

    A period's rows leave the state as soon as the watermark, which trails the newest event by the grace time, has
    passed its end: those rows are the invoice. An id is remembered for as long as its period is open; of several events
    with one id, whatever else they say, the first in the journal counts.
    """
    rater = Rater(layout.journal, _book(layout), by_customer=False)
    return _summed(_with_periods(events, rater).dropDuplicates(["id", "period_end"]))


def bill_of_all_events(events: DataFrame, layout: Layout) -> DataFrame:
    """The same for sources that never repeat an event: every one counts."""
    return _summed(_with_periods(events, Rater(layout.journal, _book(layout), by_customer=True)))


def application(function: Function, sink: SinkFactory = BillingSink.of) -> App:
    """Billing with this function as its view `bill`."""
    made = App(APPLICATION, fields=FIELDS)
    made.view(key=KEY, name=VIEW, rollups=[ROLLUP], computed=[AMOUNT], sink=sink)(function)
    return made


def _book(layout: Layout) -> Path:
    """Where the sink keeps snapshots of the book."""
    return layout.view(VIEW).root / "book"


def _with_periods(events: DataFrame, rater: Rater) -> DataFrame:
    """The rated events that count, with the end of their period as the only event-time column."""
    rated = events.select(*IN).mapInArrow(rater, OUT)
    counted = rated.withWatermark("time", f"{GRACE_US // 1_000} milliseconds").where(_NO_CLOCK)
    return counted.select("id", "customer", period_end(), "type", "plan", "quantity")


def _summed(usage: DataFrame) -> DataFrame:
    return usage.groupBy(*KEY).agg(F.sum("quantity").alias("quantity"), F.count("*").alias("events"))


app = application(bill)
app_without_deduplication = application(bill_of_all_events)
