"""The billing view in PySpark: one aggregate, served live as the running bill and sealed as the invoice.

    journal ─► rated by plan (`source`) ─► watermark ─► period end ─► deduplicated ─► summed

Events that do not count (dead letters, plans, assignments) are dropped before the watermark sees them. Clock ticks move
the watermark and are dropped after it.

Periods are Spark expressions, the counterpart of `billing.calendar` for columns. The session's time zone is UTC (fixed
by `pipeline.session`): a local time is a timestamp whose UTC fields are the local wall-clock time. A midnight skipped
by the clocks is the moment of the change; of a midnight that occurs twice, the first counts.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from stateside.billing.invoicing.invoice_sink import BillingSink
from stateside.billing.model import APPLICATION, CLOCK, VIEW, lateness_in_force
from stateside.billing.pipeline.source import RatedEvents
from stateside.core import Layout
from stateside.pipeline import App, Function, SinkFactory, Source
from stateside.views import Computed

# Makes the column an event-time column, by which the watermark closes rows. The value 0 has no effect: the grace period
# is already in the watermark's delay.
EVENT_TIME = {"spark.watermarkDelayMs": 0}


def with_period_end(events: DataFrame) -> DataFrame:
    """Adds `period_end`, the end of the period around `time`, by `time_zone`, `cycle` and `anchor_day`.

    The steps are separate columns, because Spark repeats an expression wherever it is used: a single expression looked
    up the time zone many times per event, about a quarter of the JVM's time.
    """
    stepped = (
        events.withColumn("_day", F.from_utc_timestamp("time", F.col("time_zone")).cast("date"))
        .withColumn("_end_day", _end_day(F.col("_day")))
        .withColumn("_end", _midnight(F.col("_end_day")))
    )
    # Clocks set back across midnight show the old day again after the new period has begun.
    again = _midnight(_end_day(F.col("_end_day")))
    end = F.when(F.col("time") < F.col("_end"), F.col("_end")).otherwise(again)
    return stepped.select(*events.columns, end.alias("period_end", metadata=EVENT_TIME))


def _midnight(day: Column) -> Column:
    return F.to_utc_timestamp(day.cast("timestamp"), F.col("time_zone"))


def _end_day(day: Column) -> Column:
    """The first day of the next period."""
    cycle = F.col("cycle")
    return (
        F.when(cycle == "month", _month_end_day(day))
        .when(cycle == "week", F.next_day(day, "MON"))
        .when(cycle == "day", F.date_add(day, 1))
        .otherwise(F.raise_error(F.concat(F.lit("There is no billing cycle "), cycle)).cast("date"))
    )


def _month_end_day(day: Column) -> Column:
    """The anchor day of this month if still to come, otherwise of the next month."""
    ends_in = F.when(F.day(day) < _anchor_day(day), day).otherwise(F.add_months(day, 1))
    return F.date_add(F.trunc(ends_in, "month"), _anchor_day(ends_in) - 1)


def _anchor_day(day: Column) -> Column:
    """The anchor day in this day's month: the last day if the month is too short."""
    return F.least(F.col("anchor_day"), F.day(F.last_day(day)))


KEY = ("customer", "period_end", "type", "plan")
ROLLUP = ("period_end", "plan", "type")
AMOUNT = Computed("amount_micros", of="quantity", by=("plan", "type"))

# The comparison is never true. Because it names the event time, Spark's optimiser cannot push the filter below the
# watermark, where clock ticks would be dropped before they move the watermark.
_NO_CLOCK = f"type != '{CLOCK}' or time < timestamp'1900-01-01 00:00:00'"


def bill(rated: DataFrame, layout: Layout, *components: Column) -> DataFrame:
    """Quantity and number of events per customer, period, type and plan version, duplicates counted once.

    `components` are further aggregates of the counted usage, with the columns of `KEY` and `quantity`; served and given
    to the sink beside the others (`examples/connection_fee.py`).

    The watermark trails the newest event by the allowed lateness. When the watermark has passed a period's end, the
    period's rows leave the state and become the invoice. An id is remembered while its period is open; later repeats
    are found when the batch is sealed (`invoicing.repeats`). Of several events with one id, the first in the journal
    counts. Exception: events with one id but different content, refused by any journal that compares ids. If different
    tasks of one batch read such events, or the events lie in two open periods, another one may count, or both; the
    auditor then reports the events.
    """
    return _summed(_with_periods(rated, layout, "id").dropDuplicates(["id", "period_end"]), *components)


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


def _summed(usage: DataFrame, *components: Column) -> DataFrame:
    return usage.groupBy(*KEY).agg(F.sum("quantity").alias("quantity"), F.count("*").alias("events"), *components)


app = application(bill)
app_without_deduplication = application(bill_of_all_events, with_ids=False)
