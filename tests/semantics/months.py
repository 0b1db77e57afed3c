"""Calendar months of a billing time zone: as Spark computes them, and as Python's `zoneinfo` does."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as sf

ZONE = "Europe/Berlin"
WATERMARK_KEY = "spark.watermarkDelayMs"


def local_ms(year: int, month: int, day: int = 1) -> int:
    """Midnight of a day in the billing zone."""
    return int(datetime(year, month, day, tzinfo=ZoneInfo(ZONE)).timestamp() * 1000)


def month_end_ms(at_ms: int) -> int:
    """The end of the month of the billing zone that the moment lies in."""
    local = datetime.fromtimestamp(at_ms // 1000, ZoneInfo(ZONE))
    return local_ms(local.year + local.month // 12, local.month % 12 + 1)


def month_end(at: str) -> Column:
    """The same with Spark's built-in functions, for a timestamp column; the session's time zone plays no part."""
    seconds = (sf.unix_millis(sf.col(at)) / 1000).cast("decimal(18,3)")
    utc = sf.expr("TIMESTAMP_NTZ'1970-01-01 00:00:00'") + sf.make_dt_interval(secs=seconds)
    local_day = sf.convert_timezone(sf.lit("UTC"), sf.lit(ZONE), utc).cast("date")
    next_first = sf.add_months(sf.trunc(local_day, "month"), 1)
    zero = sf.lit(0)
    return sf.make_timestamp(sf.year(next_first), sf.month(next_first), sf.lit(1), zero, zero, zero, sf.lit(ZONE))


def monthly_totals(stream: DataFrame, delay: str = "0 seconds", metadata_value: Any = 0) -> DataFrame:
    """The bill in small: a total for each customer and month, in append mode emitted and evicted at the month's end."""
    return totals_by_month(stream.withWatermark("at", delay), metadata_value)


def totals_by_month(marked: DataFrame, metadata_value: Any = 0) -> DataFrame:
    """The same over a stream that has its watermark already."""
    period_end = month_end("at").alias("period_end", metadata={WATERMARK_KEY: metadata_value})
    rows = marked.select("customer", "amount", period_end)
    return rows.groupBy("customer", "period_end").agg(sf.sum("amount").alias("total"))


def totals(rows: Iterable[Row]) -> dict[tuple[str, int], int]:
    """What `monthly_totals` emitted, by customer and end of month in milliseconds."""
    return {(row.customer, epoch_ms(row.period_end)): row.total for row in rows}


def totals_in_state(state: DataFrame) -> dict[tuple[str, int], int]:
    """The same of what it still holds."""
    return {(row.key.customer, epoch_ms(row.key.period_end)): row.value["sum"] for row in state.collect()}


def epoch_ms(moment: datetime) -> int:
    """Of a timestamp as PySpark hands it over: naive, in the time zone of this process."""
    return round(moment.timestamp() * 1000)


def usage(customer: str, amount: int, at_ms: int) -> dict[str, Any]:
    return {"customer": customer, "kind": "usage", "amount": amount, "at_ms": at_ms}


def clock(at_ms: int) -> dict[str, Any]:
    """A row that carries nothing but time."""
    return {"customer": "clock", "kind": "clock", "amount": 0, "at_ms": at_ms}
