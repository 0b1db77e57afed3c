"""Billing periods as Spark's own expressions: what `billing.calendar` says in Python, for columns.

The session's time zone is UTC (`pipeline.session` fixes it): a local time is a timestamp that shows, in UTC, what the
clocks on the wall show. A midnight that the clocks skip is the moment at which they do; of one that comes twice, the
first is meant.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

# Makes the column an event-time column, by which the watermark closes. The value means nothing: grace is counted once,
# in the watermark's delay.
EVENT_TIME = {"spark.watermarkDelayMs": 0}


def with_period_end(events: DataFrame) -> DataFrame:
    """The events with `period_end`: of the period that `time` lies in, by `time_zone`, `cycle` and `anchor_day`.

    In steps, each a column of its own. Spark writes an expression out wherever it is used: as one, this looked up the
    time zone many times for each event, which took about a quarter of the JVM's time.
    """
    stepped = (
        events.withColumn("_day", F.from_utc_timestamp("time", F.col("time_zone")).cast("date"))
        .withColumn("_end_day", _end_day(F.col("_day")))
        .withColumn("_end", _midnight(F.col("_end_day")))
    )
    # Clocks that are put back over midnight show the old day once more, after the new period has begun.
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
    """In this month, if its anchor day is still to come, or else in the next one."""
    ends_in = F.when(F.day(day) < _anchor_day(day), day).otherwise(F.add_months(day, 1))
    return F.date_add(F.trunc(ends_in, "month"), _anchor_day(ends_in) - 1)


def _anchor_day(day: Column) -> Column:
    """The anchor's day in the month of this day: the last one, if the month is too short."""
    return F.least(F.col("anchor_day"), F.day(F.last_day(day)))
