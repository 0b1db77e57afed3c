"""The month in PySpark is the month in Python."""

from __future__ import annotations

import random

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from stateside.billing.calendar import Month
from stateside.billing.pipeline import period_end

pytestmark = pytest.mark.spark


def test_spark_and_python_agree_on_the_period_of_any_moment(spark: SparkSession) -> None:
    """Ten years of random moments, and every month's end to the microsecond, both changes of the clock included."""
    chooser = random.Random(11)
    moments = [chooser.randrange(Month(2020, 1).start_us, Month(2030, 1).start_us) for _ in range(2_000)]
    month = Month(2020, 1)
    while month < Month(2030, 1):
        moments += [month.start_us - 1, month.start_us, month.start_us + 1]
        month = month.next()
    rows = spark.createDataFrame([(moment,) for moment in moments], "time_us long")
    found = rows.select("time_us", F.unix_micros(period_end(F.timestamp_micros("time_us")))).collect()
    assert dict(found) == {m: Month.containing(m).end_us for m in moments}
