"""Billing periods as Spark expressions: the counterpart of `billing.calendar` for columns.

The session's time zone is UTC (fixed by `pipeline.session`): a local time is a timestamp whose UTC fields are the local
wall-clock time. A midnight skipped by the clocks is the moment of the change; of a midnight that occurs twice, the
first counts.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

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
