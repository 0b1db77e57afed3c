"""A fee that is added to bills in the middle of a month: as if it had been there from the first day on."""

from __future__ import annotations

import io
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from examples import connection_fee
from examples.connection_fee import FEE_MICROS
from stateside.billing import pipeline
from stateside.billing.answers.document_store import DocumentStore
from stateside.billing.audit import audit, live_rows
from stateside.billing.calendar import Cycle
from stateside.billing.model import DAY_US, clock_tick, usage
from stateside.billing.operations.delivery import body_of
from stateside.core.layout import Layout
from stateside.journal import Event
from stateside.pipeline.apply import apply
from stateside.pipeline.foreground import LinesForPeople
from stateside.pipeline.settings import RunSettings
from stateside.testing import rollup, rows, run_to
from tests.billing.staged import Stage, at_us, tiers, version

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

BERLIN = Cycle("month", "Europe/Berlin")
PRICES = {"call": tiers((0, 0, 1), (100, 10_000, 3)), "message": tiers((0, 95_100, 1))}
BASIC = version("basic", 1, at_us("2026-01-01T00:00:00+01:00"), BERLIN, PRICES)
END_US = at_us("2026-02-01T00:00:00+01:00")


def used(day: int, *events: tuple[str, str, str, int]) -> list[Event]:
    """Usage of a day in January: id, customer, type, quantity."""
    time_us = BASIC.effective_us + day * DAY_US
    return [usage(id_, customer, type_, time_us, quantity) for id_, customer, type_, quantity in events]


BEFORE = used(
    3, ("1", "emma", "call", 98), ("2", "emma", "message", 7), ("3", "noah", "call", 61), ("1", "emma", "call", 98)
)
AFTER = used(
    20, ("1", "emma", "call", 98), ("4", "emma", "call", 50), ("5", "olga", "call", 1), ("6", "noah", "message", 2)
)
REPEATED = used(3, ("1", "emma", "call", 98), ("3", "noah", "call", 61))  # known from before the migration
LATE = used(30, ("7", "emma", "call", 40))


def fees(layout: Layout) -> list[tuple[str, str, int]]:
    found: list[dict[str, Any]] = DeltaTable(layout.table("connection_fees")).to_pyarrow_table().to_pylist()
    return sorted((row["customer"], row["type"], row["fee_micros"]) for row in found)


def documents(layout: Layout) -> list[bytes]:
    return [body_of(document) for document in DocumentStore.of(layout).after(0, 0)]


def test_a_month_has_the_same_fees_and_invoices_as_with_the_fee_from_its_first_day_on(
    spark: SparkSession, layout: Layout
) -> None:
    stage, fresh, said = Stage(layout), Layout(layout.root.with_name("fresh")), io.StringIO()
    stage.publish([BASIC], {"emma": "basic", "noah": "basic", "olga": "basic"})
    stage.append(BEFORE[-1].time_us, BEFORE)
    run_to(pipeline.app, layout, spark)
    fresh.root.mkdir()
    fresh.journal.symlink_to(layout.journal)
    run_to(connection_fee.app, fresh, spark)

    apply(connection_fee.app, layout.root, RunSettings(), LinesForPeople(said), session=spark)
    assert "bill  can be migrated   its column 'fee_micros' is new" in said.getvalue()
    assert "bill: 3 rows carried over" in said.getvalue() and "events folded" not in said.getvalue()
    assert rows(layout, "bill") == rows(fresh, "bill")
    totals = {row["type"]: row["fee_micros"] for row in rollup(layout, "bill", pipeline.ROLLUP)}
    assert totals == {"call": 2 * FEE_MICROS, "message": 0}

    stage.append(AFTER[-1].time_us, [*REPEATED, *AFTER])
    for days, events in ((4, [clock_tick(END_US + 4 * DAY_US, "closes January")]), (5, LATE)):
        stage.append(END_US + days * DAY_US, events)
        for each in (layout, fresh):
            run_to(connection_fee.app, each, spark)
    assert (
        fees(layout)
        == fees(fresh)
        == [
            ("emma", "call", 2 * FEE_MICROS),
            ("emma", "message", 0),
            ("noah", "call", FEE_MICROS),
            ("noah", "message", 0),
            ("olga", "call", FEE_MICROS),
        ]
    )
    assert documents(layout) == documents(fresh) and len(documents(layout)) == 4
    assert stage.dead_letters() == []
    for each in (layout, fresh):
        rows(each, "bill")
        found = audit(each, live_rows(each), full=True)
        assert found.ok, found.lines()
