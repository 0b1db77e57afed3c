"""The application whose folder version 0.1.0 wrote with nodes: a rollup, a windowed view with an archive."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import stateside

app = stateside.App("shop", fields="country string, amount_micros long")


@app.view(key=["customer", "country"], rollups=[["country"]])
def spending(events: DataFrame) -> DataFrame:
    orders = events.select(F.col("entity").alias("customer"), "country", "amount_micros")
    total = F.sum("amount_micros").alias("total_micros")
    return orders.groupBy("customer", "country").agg(total, F.count("*").alias("orders"))


@app.view(key=["country", "window"], archive="hours")
def hourly(events: DataFrame) -> DataFrame:
    orders = events.withWatermark("time", "10 minutes").groupBy("country", F.window("time", "1 hour"))
    return orders.agg(F.count("*").alias("orders"))
