"""Months of a time zone as a grouping key that Spark treats as event time."""

from collections.abc import Callable

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from .checkpoint_files import StateSchema
from .harness import Feed, Lab
from .months import (
    WATERMARK_KEY,
    ZONE,
    clock,
    local_ms,
    month_end,
    month_end_ms,
    monthly_totals,
    totals,
    totals_by_month,
    usage,
)

pytestmark = pytest.mark.spark

MARCH_10_MS = local_ms(2026, 3, 10)
MARCH_END_MS = local_ms(2026, 4)
TIME_ZONE = "spark.sql.session.timeZone"


@pytest.mark.parametrize("session_zone", ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata"])
def test_built_in_functions_find_the_month_end_of_a_zone_in_a_session_of_any_zone(lab: Lab, session_zone: str) -> None:
    """Billing's grouping key is this expression. It must agree with the calendar to the millisecond over the
    changes of clocks, and must not move when someone starts the job with another session time zone.
    """
    with lab.conf({TIME_ZONE: session_zone}):
        assert _wrong_month_ends(lab, month_end) == []


def test_the_shorter_expression_for_a_month_end_is_right_in_a_utc_session_only(lab: Lab) -> None:
    """`date_trunc` truncates in the session's time zone. Billing with this expression would silently move usage
    between months in any other session, and the checkpoint does not record the session's zone.
    """

    def short_month_end(at: str) -> Column:
        local_start = sf.date_trunc("month", sf.from_utc_timestamp(at, ZONE))
        return sf.to_utc_timestamp(local_start + sf.expr("INTERVAL 1 MONTH"), ZONE)

    assert _wrong_month_ends(lab, short_month_end) == []
    with lab.conf({TIME_ZONE: ZONE}):
        assert _wrong_month_ends(lab, short_month_end) != []


def test_append_mode_refuses_a_computed_period_without_the_watermark_metadata(lab: Lab, feed: Feed) -> None:
    """The metadata on the alias is what makes a computed column event time; without it Spark cannot know when a
    month is over and refuses to start, so forgetting it cannot go unnoticed.
    """
    period = feed.stream().withWatermark("at", "0 seconds").select("customer", month_end("at").alias("period_end"))
    with pytest.raises(AnalysisException, match="not supported for streaming aggregations without watermark"):
        lab.run(period.groupBy("customer", "period_end").count())


def test_the_metadata_is_lost_on_an_alias_inside_group_by(lab: Lab, feed: Feed) -> None:
    """Views must compute the period in a `select` before `groupBy`: Spark strips aliases from grouping
    expressions, and with them the metadata.
    """
    period_end = month_end("at").alias("period_end", metadata={WATERMARK_KEY: 0})
    with pytest.raises(AnalysisException, match="not supported for streaming aggregations without watermark"):
        lab.run(feed.stream().withWatermark("at", "0 seconds").groupBy(period_end).count())


@pytest.mark.parametrize("value", [0, 1_000_000_000])
def test_the_value_of_the_metadata_has_no_effect_and_the_delay_of_the_watermark_has(
    lab: Lab, feed: Feed, value: int
) -> None:
    """The number in the metadata is only shown in plans. Grace for late events is set with `withWatermark`
    alone; a view that sets it in the metadata would seal without any grace.
    """
    feed.add(usage("emma", 1, MARCH_10_MS))
    feed.add(clock(MARCH_END_MS + 9_999))
    feed.add(clock(MARCH_END_MS + 10_000))

    emitted = lab.run(monthly_totals(feed.stream(), delay="10 seconds", metadata_value=value))

    assert {batch: totals(rows) for batch, rows in emitted.items() if rows} == {3: {("emma", MARCH_END_MS): 1}}


def test_a_metadata_value_that_is_no_integer_ends_the_query_without_an_error(lab: Lab, feed: Feed) -> None:
    """Spark's thread dies of a ClassCastException that nobody is told of: the query ends as if all were well,
    with no batch committed. The runner must check that a query that ended has done its work.
    """
    feed.add(usage("emma", 1, MARCH_10_MS))

    query = lab.run_into(lambda frame, _: frame.collect(), monthly_totals(feed.stream(), metadata_value="0"))

    assert query.exception() is None
    assert lab.checkpoint.committed() == []


def test_metadata_without_a_watermark_is_accepted_and_nothing_is_ever_emitted(lab: Lab, feed: Feed) -> None:
    """Spark only looks for the metadata, not for `withWatermark`. A view that forgets the latter would keep all
    months for ever and never send an invoice, so the catalogue has to refuse it.
    """
    feed.add(usage("emma", 1, MARCH_10_MS))
    feed.add(clock(MARCH_END_MS))
    feed.add(clock(MARCH_END_MS + 1))

    emitted = lab.run(totals_by_month(feed.stream()))

    assert emitted == {0: [], 1: [], 2: []}
    assert [lab.checkpoint.watermark_ms(batch) for batch in emitted] == [0, 0, 0]


def test_a_group_may_have_only_one_event_time_column(lab: Lab, feed: Feed) -> None:
    """A view that groups by the period and by the event's own time cannot run: Spark refuses in the first
    batch, not at the start.
    """
    feed.add(usage("emma", 1, MARCH_10_MS))
    period_end = month_end("at").alias("period_end", metadata={WATERMARK_KEY: 0})
    both = feed.stream().withWatermark("at", "0 seconds").select("at", period_end).groupBy("at", "period_end").count()
    with pytest.raises(StreamingQueryException, match="More than one event time columns are available"):
        lab.run(both)


def test_the_state_schema_tells_which_key_column_is_event_time(lab: Lab, feed: Feed) -> None:
    """`serve` finds the period of a foreign checkpoint by this metadata in the key schema; without it, it could
    not say what is sealed.
    """
    feed.add(usage("emma", 1, MARCH_10_MS))
    lab.run(monthly_totals(feed.stream(), metadata_value=7))

    schema = StateSchema.read(lab.checkpoint.state_folder() / "_metadata" / "schema")

    assert [(column["name"], column["metadata"]) for column in schema.key] == [
        ("customer", {}),
        ("period_end", {WATERMARK_KEY: 7}),
    ]


def _wrong_month_ends(lab: Lab, expression: Callable[[str], Column]) -> list[int]:
    """The moments within a millisecond of the month ends of eleven years for which the expression is wrong."""
    ends_ms = [local_ms(year, month) for year in range(2020, 2031) for month in range(1, 13)]
    moments = [(end_ms + offset_ms,) for end_ms in ends_ms for offset_ms in (-1, 0, 1)]
    frame: DataFrame = lab.spark.createDataFrame(moments, "at_ms long").withColumn("at", sf.timestamp_millis("at_ms"))
    rows = frame.select("at_ms", sf.unix_millis(expression("at")).alias("end_ms")).collect()
    return [row.at_ms for row in rows if row.end_ms != month_end_ms(row.at_ms)]
