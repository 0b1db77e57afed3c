"""Billing in Spark, from events to running bills, invoices and notes; amounts worked out by hand."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from stateside.billing.calendar import Cycle
from stateside.billing.invoicing.invoice_sink import BillingSink
from stateside.billing.model import DAY_US, HOUR_US, clock_tick, usage
from stateside.billing.pipeline import app, app_without_deduplication, application, bill
from stateside.billing.rating import reports
from stateside.core.errors import PipelineFailed
from stateside.core.layout import Layout, ViewGeneration
from stateside.pipeline.settings import RunSettings
from stateside.pipeline.sinks.sink import BatchId, Sink
from stateside.pipeline.view_plan import Planner
from stateside.testing import Crash, rollup, run_to

from .killed_driver import STORED
from .staged import Stage, at_us, tiers, version

pytestmark = pytest.mark.spark

BERLIN, TOKYO = Cycle("month", "Europe/Berlin"), Cycle("month", "Asia/Tokyo")
ANCHORED = Cycle("month", "Europe/Berlin", 31)
JANUARY_END, FEBRUARY_END = "2026-01-31T23:00:00Z", "2026-02-28T23:00:00Z"
JANUARY_END_US = at_us("2026-02-01T00:00:00+01:00")
SEALED_US = JANUARY_END_US + 3 * DAY_US  # grace is over
MESSAGES = {"message": tiers((0, 100_000, 1))}
SIMPLE = version("simple", 1, at_us("2026-01-01T00:00:00+01:00"), BERLIN, MESSAGES)


@pytest.fixture
def stage(layout: Layout) -> Stage:
    return Stage(layout)


def test_a_change_of_plan_two_zones_and_two_currencies_make_the_bill_that_one_works_out_by_hand(
    spark: SparkSession, stage: Stage
) -> None:
    """Emma's plan has 100 free seconds, then 0.09 a minute; from 16 January on it is 0.12, with 100 free seconds again.

    Under the first version she calls 90 s and 70 s: 60 s of them cost 0.09. Under the second one 130 s: 30 s of them
    cost 0.06. Kenji is billed in Tokyo, in whole yen: his call of 31 January, 16:30 UTC, is one of February there.
    """
    old = version("basic", 1, at_us("2026-01-01T00:00:00+01:00"), BERLIN, {"call": tiers((0, 0, 1), (100, 90_000, 60))})
    new = version(
        "basic", 2, at_us("2026-01-16T00:00:00+01:00"), BERLIN, {"call": tiers((0, 0, 1), (100, 120_000, 60))}
    )
    yen = version(
        "sakura", 1, at_us("2026-01-01T00:00:00+09:00"), TOKYO, {"call": tiers((0, 1_500_000, 60))}, currency="JPY"
    )
    stage.publish([yen, old, new], {"emma": "basic", "kenji": "sakura"})
    stage.append(
        at_us("2026-02-01T12:00:00+00:00"),
        [
            usage("e1", "emma", "call", at_us("2026-01-10T12:00:00+01:00"), 90),
            usage("e2", "emma", "call", at_us("2026-01-15T23:59:59+01:00"), 70),
            usage("e3", "emma", "call", at_us("2026-01-16T00:00:00+01:00"), 130),
            usage("e4", "emma", "call", at_us("2026-02-01T00:00:00+01:00"), 20),
            usage("e5", "emma", "credit", at_us("2026-01-31T23:59:59+01:00"), 10_000, currency="EUR"),
            usage("k1", "kenji", "call", at_us("2026-01-31T14:59:59+00:00"), 61),
            usage("k2", "kenji", "call", at_us("2026-01-31T16:30:00+00:00"), 40),
        ],
    )
    run_to(app, stage.layout, spark)
    names = ("customer", "period_end", "type", "plan", "quantity", "events", "amount_micros")
    january_of_tokyo, february_of_tokyo = "2026-01-31T15:00:00Z", "2026-02-28T15:00:00Z"
    assert [tuple(row[name] for name in names) for row in stage.open_rows()] == [
        ("emma", JANUARY_END, "call", "basic@1", 160, 2, 90_000),
        ("emma", JANUARY_END, "call", "basic@2", 130, 1, 60_000),
        ("emma", JANUARY_END, "credit", "basic@2", 10_000, 1, -10_000),
        ("emma", FEBRUARY_END, "call", "basic@2", 20, 1, 0),
        ("kenji", january_of_tokyo, "call", "sakura@1", 61, 1, 1_525_000),
        ("kenji", february_of_tokyo, "call", "sakura@1", 40, 1, 1_000_000),
    ]
    totals = rollup(stage.layout, "bill", ["period_end", "plan", "type"], JANUARY_END)
    assert [(row["plan"], row["type"], row["amount_micros"]) for row in totals] == [
        ("basic@1", "call", 90_000),
        ("basic@2", "call", 60_000),
        ("basic@2", "credit", -10_000),
    ]

    stage.append(SEALED_US, [clock_tick(SEALED_US, "tick")])
    run_to(app, stage.layout, spark)
    invoices = [
        (each["number"], each["customer"], each["period"], each["currency"], each["amount_micros"])
        for each in stage.documents()
    ]
    assert invoices == [
        ("I-000000001", "kenji", "2026-01", "JPY", 1_525_000),
        ("I-000000002", "emma", "2026-01", "EUR", 140_000),
    ]
    kenji, emma = stage.documents()
    assert [(line["amount_micros"], line["charged_micros"]) for line in kenji["lines"]] == [(1_525_000, 2_000_000)]
    assert {line["plan"]: line["charged_micros"] for line in emma["lines"] if line["type"] == "call"} == {
        "basic@1": 90_000,
        "basic@2": 60_000,
    }
    assert {row["period_end"] for row in stage.open_rows()} == {FEBRUARY_END, february_of_tokyo}


def test_a_future_dated_event_closes_nothing_and_a_tick_of_the_clock_alone_closes_an_idle_month(
    spark: SparkSession, stage: Stage
) -> None:
    """One event of the year 2030 would otherwise close everybody's month. The anchor day 31 is 28 February."""
    monthly = version("late", 1, at_us("2026-01-01T00:00:00+01:00"), ANCHORED, MESSAGES)
    stage.publish([monthly], {"emma": "late"})
    time_us = at_us("2026-02-27T23:59:59+01:00")
    far_us = at_us("2030-01-01T00:00:00+00:00")
    stage.append(time_us, [usage("now", "emma", "message", time_us, 3), usage("far", "emma", "message", far_us, 5)])
    stage.append(time_us, [clock_tick(far_us, "wrong clock"), usage("who", "omar", "message", time_us, 1)])
    run_to(app, stage.layout, spark)
    assert max(stage.watermarks_us()) == time_us - 3 * DAY_US
    assert stage.dead_letters() == [
        ("far", "future-dated"),
        ("wrong clock", "future-dated"),
        ("who", "unknown-customer"),
    ]

    end_us = at_us("2026-02-28T00:00:00+01:00")
    stage.append(end_us + 4 * DAY_US, [clock_tick(end_us + 3 * DAY_US - 1_000, "almost")])
    run_to(app, stage.layout, spark)
    assert stage.documents() == []
    stage.append(end_us + 4 * DAY_US, [clock_tick(end_us + 3 * DAY_US, "tick")])
    run_to(app, stage.layout, spark)
    assert [(each["customer"], each["period"], each["amount_micros"]) for each in stage.documents()] == [
        ("emma", "2026-01@31", 300_000)
    ]
    assert stage.open_rows() == []


def test_a_generation_that_is_filled_keeps_its_reports_to_itself(
    spark: SparkSession, stage: Stage, tmp_path: Path
) -> None:
    """The first generation may be running, with reports of its own, which its sink deletes."""
    layout, ticks = stage.layout, range(reports.EVENTS_MIN)
    stage.append(SEALED_US, [clock_tick(SEALED_US, f"tick-{number}") for number in ticks])
    second = Layout(layout.root, (layout.at("bill", ViewGeneration(2, "bill/generations/2")),))
    frame = Planner(app, second, RunSettings(), second.pause).plan(app.views["bill"], spark).frame
    writer = frame.writeStream.format("noop").outputMode("update").option("checkpointLocation", str(tmp_path / "spark"))
    assert writer.trigger(availableNow=True).start().awaitTermination(60)
    written = [path.parent.relative_to(layout.root / "views") for path in (layout.root / "views").rglob("*-*")]
    assert written == [Path("bill/generations/2/reports")]


def test_late_events_become_notes_once_and_duplicates_count_once_whatever_crashes(
    spark: SparkSession, stage: Stage
) -> None:
    """Every batch fails once, between the sink's commit and Spark's. Without the frontier (`billing.frontier`) every
    document would be there twice, without the sweep (`billing.sweep`) the late messages would be on none. Of two events
    with one id the first in the journal counts, though it is of another customer.
    """
    stage.publish([SIMPLE], dict.fromkeys(("emma", "omar", "noor"), "simple"))
    time_us = JANUARY_END_US - HOUR_US
    twice = usage("twice", "emma", "message", time_us, 2)
    stage.append(time_us, [usage("once", "emma", "message", time_us, 1), twice, twice])
    stage.append(
        time_us, [usage("whose", "omar", "message", time_us, 5), usage("whose", "emma", "message", time_us, 7)]
    )
    stage.append(time_us, [twice])
    stage.append(SEALED_US, [clock_tick(SEALED_US, "tick")])
    _run_with_crashes(spark, stage.layout)
    late = usage("late", "emma", "message", time_us, 10)
    stage.append(SEALED_US, [late, late, usage("new", "omar", "message", time_us, 4)])
    stage.append(SEALED_US, [usage("only", "noor", "message", time_us, 6)])
    _run_with_crashes(spark, stage.layout)
    stage.append(SEALED_US, [late, usage("later", "emma", "message", time_us, 20)])
    _run_with_crashes(spark, stage.layout)
    assert [
        (each["number"], each["kind"], each["customer"], each["amount_micros"], each["corrects"], each["event_ids"])
        for each in stage.documents()
    ] == [
        ("I-000000001", "invoice", "emma", 300_000, None, []),
        ("I-000000002", "invoice", "omar", 500_000, None, []),
        ("I-000000003", "invoice", "noor", 600_000, None, ["only"]),
        ("N-000000001", "debit-note", "emma", 1_000_000, "I-000000001", ["late"]),
        ("N-000000002", "debit-note", "omar", 400_000, "I-000000002", ["new"]),
        ("N-000000003", "debit-note", "emma", 2_000_000, "I-000000001", ["later"]),
    ]
    assert stage.open_rows() == []


@pytest.mark.e2e
def test_late_events_become_notes_once_when_the_jvm_is_killed_between_the_sink_s_commit_and_spark_s(
    spark: SparkSession, stage: Stage
) -> None:
    """The kill comes from outside of Spark: what it had in memory is gone, and no stop was tidy."""
    stage.publish([SIMPLE], {"emma": "simple"})
    time_us = JANUARY_END_US - HOUR_US
    stage.append(time_us, [usage("in time", "emma", "message", time_us, 1)])
    stage.append(SEALED_US, [clock_tick(SEALED_US, "tick")])
    run_to(app, stage.layout, spark)
    stage.append(
        SEALED_US, [usage("late", "emma", "message", time_us, 10), usage("bad", "omar", "message", time_us, 1)]
    )
    command = [sys.executable, str(Path(__file__).with_name("killed_driver.py")), str(stage.layout.root)]
    killed = subprocess.run(command, check=False, capture_output=True, text=True, timeout=200)
    assert STORED in killed.stdout, killed.stderr
    assert killed.returncode != 0
    assert len(stage.documents()) == 2
    run_to(app, stage.layout, spark)
    found = [(each["kind"], each["amount_micros"], each["event_ids"]) for each in stage.documents()]
    assert found == [("invoice", 100_000, []), ("debit-note", 1_000_000, ["late"])]
    assert stage.dead_letters() == [("bad", "unknown-customer")]


def test_without_removal_of_duplicates_every_event_counts(spark: SparkSession, stage: Stage) -> None:
    stage.publish([SIMPLE], {"emma": "simple"})
    time_us = JANUARY_END_US - HOUR_US
    twice = usage("twice", "emma", "message", time_us, 2)
    stage.append(time_us, [twice, twice])
    run_to(app_without_deduplication, stage.layout, spark)
    assert [(row["quantity"], row["events"]) for row in stage.open_rows()] == [(4, 2)]


def _run_with_crashes(spark: SparkSession, layout: Layout) -> None:
    """Run to the end, with a crash after each batch that the sink has stored."""
    stored: set[int] = set()
    crashing = application(bill, lambda context: StoresAndCrashes(BillingSink.of(context), stored))
    while True:
        before = len(stored)
        try:
            return run_to(crashing, layout, spark)
        except PipelineFailed:
            assert len(stored) == before + 1, "another failure than the one that was meant"


@dataclass(frozen=True)
class StoresAndCrashes:
    """A sink whose driver crashes once a batch, when the batch is stored and Spark does not know yet."""

    sink: Sink
    stored: set[int]

    def write(self, rows: pa.Table, batch: BatchId) -> None:
        self.sink.write(rows, batch)
        if batch.batch not in self.stored:
            self.stored.add(batch.batch)
            raise Crash("A test crashes here, after the sink has stored the batch")
