"""Sealing: rows that the watermark has passed become invoices, exactly once, whatever crashes."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

import stateside
from stateside.billing.generator import PERIOD_SUM_MICROS, Generator
from stateside.billing.invoices import InvoiceSink, assemble, invoice_table
from stateside.billing.pipeline import bill
from stateside.errors import ArchiveInvalid, PipelineFailed
from stateside.layout import Layout
from stateside.pipeline.sinks.sink import BatchId, SinkFactory
from stateside.positions import Position
from stateside.testing import CrashingSink, append, rows, run_to

pytestmark = pytest.mark.spark

CUSTOMERS = 5
EVENTS = 8


def billing(sink: SinkFactory) -> stateside.App:
    app = stateside.App("billing", fields="amount_micros long")
    app.view(key=["customer", "period_end", "type"], sink=sink)(bill)
    return app


def append_two_months(layout: Layout) -> None:
    """One month that is sealed, one that stays open."""
    arrivals = Generator(seed=5, customers=CUSTOMERS, events_per_month=EVENTS).arrivals()
    append(layout, [next(arrivals).event for _ in range(2 * CUSTOMERS * EVENTS)])


def totals(table: pa.Table) -> list[tuple[str, int]]:
    return sorted(zip(table["customer"].to_pylist(), table["total_micros"].to_pylist(), strict=True))


EVEN = [(f"c{number}", PERIOD_SUM_MICROS) for number in range(CUSTOMERS)]


def test_a_closed_month_becomes_invoices_and_leaves_the_running_bill(spark: SparkSession, layout: Layout) -> None:
    append_two_months(layout)
    run_to(billing(InvoiceSink.of), layout, spark)
    invoices = invoice_table(layout).read()
    assert totals(invoices) == EVEN
    assert set(invoices["period"].to_pylist()) == {"2026-01"}
    assert {row["period_end"] for row in rows(layout, "bill")} == {"2026-02-28T23:00:00Z"}


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_crash_around_the_sink_s_commit_neither_loses_nor_doubles_an_invoice(
    spark: SparkSession, layout: Layout, when: Literal["before", "after"]
) -> None:
    """The guard is step 2 of `archive.table`: without it the crash `after` doubles, as the next test shows."""
    append_two_months(layout)
    app = billing(_crashing(InvoiceSink.of, when))
    with pytest.raises(PipelineFailed, match=f"crashes here, {when}"):
        run_to(app, layout, spark)
    run_to(billing(InvoiceSink.of), layout, spark)
    assert totals(invoice_table(layout).read()) == EVEN


def test_without_the_guard_the_same_crash_doubles_every_invoice(spark: SparkSession, layout: Layout) -> None:
    append_two_months(layout)
    table = layout.table("careless")
    with pytest.raises(PipelineFailed, match="crashes here, after"):
        run_to(billing(_crashing(lambda _: Careless(table), "after")), layout, spark)
    run_to(billing(lambda _: Careless(table)), layout, spark)
    counts = Counter(totals(DeltaTable(table).to_pyarrow_table()))
    assert counts == dict.fromkeys(EVEN, 2)


def test_a_table_that_is_gone_holds_the_batch_until_it_is_back(spark: SparkSession, layout: Layout) -> None:
    append_two_months(layout)
    app = billing(InvoiceSink.of)
    run_to(app, layout, spark, Position.of({"0": 1}))
    home, away = layout.table("invoices"), layout.root / "away"
    home.rename(away)
    with pytest.raises(PipelineFailed, match="cannot be opened"):
        run_to(app, layout, spark)
    assert not home.exists() or not any(home.iterdir()), "a second table was begun"
    if home.exists():
        home.rmdir()
    away.rename(home)
    run_to(app, layout, spark)
    assert totals(invoice_table(layout).read()) == EVEN


def test_a_checkpoint_that_is_gone_does_not_seal_every_invoice_a_second_time(
    spark: SparkSession, layout: Layout
) -> None:
    append_two_months(layout)
    run_to(billing(InvoiceSink.of), layout, spark)
    shutil.rmtree(layout.view("bill").checkpoint)
    with pytest.raises(ArchiveInvalid, match="the checkpoint of the query that sealed them is gone"):
        run_to(billing(InvoiceSink.of), layout, spark)
    assert totals(invoice_table(layout).read()) == EVEN


@dataclass(frozen=True)
class Careless:
    """A sink as one writes it before one has thought: it appends whatever it is given."""

    path: Path

    def write(self, rows: pa.Table, batch: BatchId) -> None:
        if rows.num_rows:
            write_deltalake(self.path, assemble(rows), mode="append")


def _crashing(sink: SinkFactory, when: Literal["before", "after"]) -> SinkFactory:
    return lambda context: CrashingSink(sink(context), when)
