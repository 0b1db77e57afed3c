"""The billing view in PySpark: one aggregate, shown live as the running bill and sealed as the invoice."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from stateside.billing.bills import APPLICATION
from stateside.billing.invoices import InvoiceSink
from stateside.billing.model import GRACE_DAYS, TIME_ZONE
from stateside.pipeline.app import App

app = App(APPLICATION, fields="amount_micros long")


@app.view(key=["customer", "period_end", "type"], sink=InvoiceSink.of)
def bill(events: DataFrame) -> DataFrame:
    """The amount and number of events for each customer, month and type of usage.

    A month's rows leave the state as soon as the watermark, which trails the newest event by the grace time, has passed
    its end: those rows are the invoice.
    """
    return (
        events.withWatermark("time", f"{GRACE_DAYS} days")
        .select(period_end(F.col("time")), F.col("entity").alias("customer"), "type", "amount_micros")
        .groupBy("period_end", "customer", "type")
        .agg(F.sum("amount_micros").alias("amount_micros"), F.count("*").alias("events"))
    )


def period_end(time: Column) -> Column:
    """The end of the calendar month that a time lies in, as a column that the watermark closes periods by.

    The metadata makes it an event-time column; grace is counted once, in the watermark's delay.
    """
    local = F.from_utc_timestamp(time, TIME_ZONE)
    end = F.to_utc_timestamp(F.add_months(F.trunc(local, "month"), 1), TIME_ZONE)
    return end.alias("period_end", metadata={"spark.watermarkDelayMs": 0})
