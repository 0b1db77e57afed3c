"""The end of a period in Spark is the end of the period in Python."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

from stateside.billing.calendar import Cycle
from stateside.billing.pipeline import EVENT_TIME, with_period_end
from tests.sizes import sized

pytestmark = pytest.mark.spark

# Zones whose rules have not changed for years: of the others Java's table may be newer than Python's, or older.
ZONES = (
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "America/Sao_Paulo",  # its clocks skipped midnight, and were put back over it
    "America/Havana",  # midnight comes twice
    "America/St_Johns",  # its clocks were put back at one minute past midnight: the old day began again
    "Asia/Beirut",  # its clocks skip midnight
    "Asia/Kathmandu",
    "Australia/Lord_Howe",  # summer time is half an hour
    "Pacific/Apia",  # had no 30 December 2011
    "Pacific/Chatham",
)
FIRST_US, LAST_US = 946_684_800_000_000, 4_102_444_800_000_000  # 2000 to 2100
FIRST, DAYS = datetime(2000, 1, 1, tzinfo=UTC), 30 * 365
Moment = tuple[int, str, str, int]  # time_us, time_zone, cycle, anchor_day


def test_spark_and_python_agree_on_the_end_of_any_period_in_any_zone(spark: SparkSession) -> None:
    """Random moments of a century, and moments within a microsecond of periods' ends: months of every anchor day, weeks
    and days, in zones whose clocks skip midnight or show it twice.
    """
    moments = list(_moments(random.Random(11), sized(8, 80)))
    times_us, zones, kinds, anchors = (list(column) for column in zip(*moments, strict=True))
    columns = {
        "time": pa.array(times_us).cast(pa.timestamp("us", tz="UTC")),
        "time_zone": zones,
        "cycle": kinds,
        "anchor_day": pa.array(anchors, pa.int32()),
    }
    found = with_period_end(spark.createDataFrame(pa.table(columns)))
    assert found.schema["period_end"].metadata == EVENT_TIME
    ends_us = pc.cast(found.toArrow()["period_end"], pa.int64()).to_pylist()
    wrong = [
        (moment, end_us) for moment, end_us in zip(moments, ends_us, strict=True) if end_us != _expected_end(moment)
    ]
    assert not wrong, f"{len(wrong)} of {len(moments)}, first {wrong[:5]}"


def _moments(chance: random.Random, of_each: int) -> Iterator[Moment]:
    for zone in ZONES:
        for kind, anchors in (("month", range(1, 32)), ("week", (1,)), ("day", (1,))):
            for anchor in anchors:
                for number in range(of_each * (1 if kind == "month" else 20)):
                    time_us = chance.randrange(FIRST_US, LAST_US)
                    yield time_us, zone, kind, anchor
                    end_us = _expected_end((time_us, zone, kind, anchor))
                    yield end_us + (-1, 0, 1)[number % 3], zone, kind, anchor
        for time_us in _clock_changes_us(zone):
            for moved_us in (-3_600_000_001, -1, 0, 1, 59_000_000, 60_000_000, 3_600_000_000):
                yield time_us + moved_us, zone, "day", 1


def _expected_end(moment: Moment) -> int:
    time_us, zone, kind, anchor = moment
    assert kind in ("month", "week", "day")
    return int(Cycle(kind, zone, anchor).ends(np.array([time_us], np.int64))[0])  # type: ignore[arg-type]


def _clock_changes_us(zone: str) -> list[int]:
    """When the zone's clocks were moved in thirty years, to the minute."""
    there = ZoneInfo(zone)

    def offset(minute: int) -> timedelta | None:
        return (FIRST + timedelta(minutes=minute)).astimezone(there).utcoffset()

    changes = []
    for day in range(DAYS):
        low, high = day * 1_440, (day + 1) * 1_440
        if offset(low) == offset(high):
            continue
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if offset(middle) == offset(low) else (low, middle)
        changes.append(FIRST_US + high * 60_000_000)
    return changes
