"""Hourly impressions: sliding sums against a recount, and every hour exactly once in state and archive together."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from datetime import datetime
from typing import Any

import pytest
from pyspark.sql import SparkSession

from examples.impressions import app
from stateside.archive import ArchiveTable, TableSpec
from stateside.core.layout import Layout
from stateside.journal import Event
from stateside.serving.rows.relation import Relation
from stateside.serving.rows.sums import BucketRange
from stateside.serving.rows.view_readers import Floor, ViewReader
from stateside.testing import answer, append, run_to

pytestmark = pytest.mark.spark

HOUR_US = 3_600_000_000
ITEMS = ("red-shoes", "blue-hat")


def looks(seed: int, hours: range) -> list[Event]:
    chance = random.Random(seed)
    events = []
    for number in range(12 * len(hours)):
        time_us = (hours.start + number // 12) * HOUR_US + chance.randrange(HOUR_US)
        events.append(Event(f"{seed}-{number}", chance.choice(ITEMS), "look", time_us, {"seconds": chance.random()}))
    return events


def test_the_last_24_hours_are_the_sum_of_24_buckets(spark: SparkSession, layout: Layout) -> None:
    events = looks(1, range(480_000, 480_060))
    append(layout, events)
    run_to(app, layout, spark, events_per_batch=200)
    answer(layout, "hourly")
    end = max(event.time_us // HOUR_US for event in events) + 1
    for item in ITEMS:
        seen = [e for e in events if e.entity == item and (end - 24) * HOUR_US <= e.time_us < end * HOUR_US]
        (row,) = summed(layout, item, last_us=24 * HOUR_US)
        assert row["looks"] == len(seen)
        assert row["seconds"] == pytest.approx(sum(e.payload["seconds"] for e in seen) / len(seen))
        assert row["longest"] == max(e.payload["seconds"] for e in seen)


def test_state_and_archive_together_have_every_hour_exactly_once_at_any_batch(
    spark: SparkSession, layout: Layout
) -> None:
    events = looks(2, range(480_000, 480_100))
    receipts = [append(layout, events[first : first + 150]) for first in range(0, len(events), 150)]
    for done, receipt in enumerate(receipts, start=1):
        run_to(app, layout, spark, receipt)
        expected: dict[tuple[str, int], int] = Counter()
        for event in events[: done * 150]:
            expected[event.entity, event.time_us // HOUR_US] += 1
        assert in_both(layout) == expected
    assert closed(layout), "some hours have left the state"


def summed(layout: Layout, item: str, last_us: int) -> list[dict[str, Any]]:
    reader = ViewReader(layout.view("hourly"))
    try:
        return asyncio.run(Relation(reader).sum([item], BucketRange(last_us=last_us), Floor())).rows
    finally:
        reader.close()


def in_both(layout: Layout) -> dict[tuple[str, int], int]:
    """Looks by item and hour; an hour in state and archive at once would count twice."""
    found: dict[tuple[str, int], int] = defaultdict(int)
    live = answer(layout, "hourly")
    for row in live.rows:
        found[row["item"], _hour(row["window"]["start"])] += row["looks"]
    for row in closed(layout, up_to_batch=live.stamp.batch):
        found[row["item"], int(row["window"]["start"].timestamp()) // 3600] += row["looks"]
    return found


def closed(layout: Layout, up_to_batch: int | None = None) -> list[dict[str, Any]]:
    name = "impressions_by_hour"
    table = ArchiveTable(layout.table(name), TableSpec(name, None), layout.view("hourly").mark(name))
    return list(table.read(up_to_batch).to_pylist())


def _hour(text: str) -> int:

    return int(datetime.fromisoformat(text).timestamp()) // 3600
