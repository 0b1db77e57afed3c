"""Rows that carry only time: what moves the watermark, and which filters take their effect away."""

from collections.abc import Callable

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from .harness import Feed, Lab
from .months import clock, local_ms, monthly_totals, totals, totals_by_month, usage

pytestmark = pytest.mark.spark

MARCH_10_MS = local_ms(2026, 3, 10)
MARCH_END_MS = local_ms(2026, 4)
EMMA_IN_MARCH = {("emma", MARCH_END_MS): 1}

NO_CLOCK = "kind != 'clock'"
LONG_AGO = "TIMESTAMP'1900-01-01 00:00:00'"


def test_a_clock_row_seals_a_month_in_a_stream_without_other_rows(lab: Lab, feed: Feed) -> None:
    """The heartbeat appends clock rows so that months end while nobody makes a call. If they did not move the
    watermark, the last invoices of a quiet month would wait for the next event.
    """
    feed.add(usage("emma", 1, MARCH_10_MS))
    assert not any(lab.run(monthly_totals(feed.stream())).values())
    feed.add(clock(MARCH_END_MS))
    assert [totals(rows) for rows in lab.run(monthly_totals(feed.stream())).values()] == [{}, EMMA_IN_MARCH]


@pytest.mark.parametrize(
    "condition",
    [
        pytest.param(NO_CLOCK, id="plain"),
        pytest.param(f"{NO_CLOCK} AND at > {LONG_AGO}", id="AND with the event time: split, and pushed in part"),
        pytest.param(f"{NO_CLOCK} AND rand() < 2", id="AND with a random number: split, and pushed in part"),
    ],
)
def test_a_filter_on_other_columns_is_pushed_below_the_watermark_and_undoes_clock_rows(
    lab: Lab, feed: Feed, condition: str
) -> None:
    """A pipeline that drops clock rows with such a filter stands still when it is idle, although the filter is
    written after `withWatermark`: the optimiser moves each AND-ed part that does not name the event time below
    it.
    """
    assert _sealed(lab, feed, _filtered(condition)) == {}


@pytest.mark.parametrize(
    "condition",
    [
        pytest.param(f"{NO_CLOCK} OR at < {LONG_AGO}", id="compared with a time long ago"),
        pytest.param(f"{NO_CLOCK} OR at IS NULL", id="is null"),
    ],
)
def test_a_filter_that_also_names_the_event_time_stays_above_the_watermark(
    lab: Lab, feed: Feed, condition: str
) -> None:
    """This is how the pipeline drops clock rows and keeps their effect: the event time is named in an OR with a
    condition that never holds.
    """
    assert _sealed(lab, feed, _filtered(condition)) == EMMA_IN_MARCH


def test_a_null_check_of_an_event_time_that_cannot_be_null_is_optimised_away(lab: Lab, feed: Feed) -> None:
    """The journal's time column is never null. There `OR at IS NULL` folds to the plain filter and is pushed
    down, so the pipeline must compare with a time instead.
    """

    def query(stream: DataFrame) -> DataFrame:
        never_null = stream.withColumn("at", sf.expr(f"coalesce(at, {LONG_AGO})"))
        marked = never_null.withWatermark("at", "0 seconds")
        return totals_by_month(marked.where(f"{NO_CLOCK} OR at IS NULL"))

    assert _sealed(lab, feed, query) == {}


def test_a_filter_on_a_group_key_after_the_aggregation_is_pushed_below_the_watermark_too(lab: Lab, feed: Feed) -> None:
    """A view that hides the clock's own group with a filter on its key stops the clock."""

    def query(stream: DataFrame) -> DataFrame:
        return monthly_totals(stream).where("customer != 'clock'")

    assert _sealed(lab, feed, query) == {}


@pytest.mark.parametrize(
    "condition",
    [
        pytest.param("total > 0", id="on an aggregate"),
        pytest.param("customer != 'clock' OR period_end IS NULL", id="that names the period"),
    ],
)
def test_a_filter_after_the_aggregation_on_more_than_its_keys_stays_above(lab: Lab, feed: Feed, condition: str) -> None:
    """A filter on a computed total is safe, and so is one that names the period, which comes from the event time."""
    assert _sealed(lab, feed, lambda stream: monthly_totals(stream).where(condition)) == EMMA_IN_MARCH


@pytest.mark.parametrize(("customer", "sealed"), [("clock", EMMA_IN_MARCH), (None, {})])
def test_an_inner_join_undoes_clock_rows_whose_join_key_is_null(
    lab: Lab, feed: Feed, customer: str | None, sealed: dict[tuple[str, int], int]
) -> None:
    """The optimiser adds `IS NOT NULL` of the join key below the watermark. Clock rows must therefore carry a
    key, which need not match anything.
    """
    customers = lab.spark.createDataFrame([("emma",)], "customer string")

    def query(stream: DataFrame) -> DataFrame:
        return totals_by_month(stream.withWatermark("at", "0 seconds").join(customers, "customer"))

    feed.add(usage("emma", 1, MARCH_10_MS))
    feed.add(clock(MARCH_END_MS) | {"customer": customer})
    assert _all_sealed(lab, query(feed.stream())) == sealed


def test_a_filter_before_the_watermark_keeps_the_times_of_bad_rows_out_of_it(lab: Lab, feed: Feed) -> None:
    """One event with a date in the far future would seal all open months. Bad rows are taken out before
    `withWatermark`, and then their time has no effect.
    """
    feed.add(usage("emma", 1, MARCH_10_MS))
    feed.add(usage("emma", -1, local_ms(2999, 1)))

    assert _all_sealed(lab, monthly_totals(feed.stream().where("amount >= 0"))) == {}
    assert lab.checkpoint.watermark_ms(1) == MARCH_10_MS


def _filtered(condition: str) -> Callable[[DataFrame], DataFrame]:
    return lambda stream: totals_by_month(stream.withWatermark("at", "0 seconds").where(condition))


def _sealed(lab: Lab, feed: Feed, query: Callable[[DataFrame], DataFrame]) -> dict[tuple[str, int], int]:
    """What a query seals that saw one event of March and then a clock row at the end of March."""
    feed.add(usage("emma", 1, MARCH_10_MS))
    feed.add(clock(MARCH_END_MS))
    return _all_sealed(lab, query(feed.stream()))


def _all_sealed(lab: Lab, query: DataFrame) -> dict[tuple[str, int], int]:
    return totals(row for rows in lab.run(query).values() for row in rows)
