"""How often each item of a shop window was looked at: by the hour, and over the last 24 hours, at any moment.

    stateside run examples.impressions:app --dir impressions-data
    stateside serve --dir impressions-data
    stateside get hourly/red-shoes                     every hour that is still open
    stateside sum hourly/red-shoes --last 24h          one number, over hours that slide with the clock

An event is counted once, in its hour. A sliding window of 24 hours that moves by the hour would count it 24 times; here
the reader adds up 24 buckets instead. Hours leave the state for the archive table two days after their end.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import stateside

app = stateside.App("impressions", fields="country string, seconds double")


@app.view(key=["item", "window"], archive="impressions_by_hour")
def hourly(events: DataFrame) -> DataFrame:
    """Looks at each item in each hour, and for how long people looked."""
    looks = events.withWatermark("time", "2 days").select(F.col("entity").alias("item"), "time", "seconds")
    return looks.groupBy("item", F.window("time", "1 hour")).agg(
        F.count("*").alias("looks"), F.avg("seconds").alias("seconds"), F.max("seconds").alias("longest")
    )
