"""What a view reads: the journal by type and tag, SQL text over it, any streaming DataFrame of the user's."""

from __future__ import annotations

import shutil

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import stateside
from stateside import sources
from stateside.core.errors import PipelineFailed, ViewInvalid
from stateside.core.layout import Layout
from stateside.journal import Event, JournalWriter
from stateside.journal.admin import JournalFiles, drop
from stateside.pipeline.runner import Runner
from stateside.pipeline.sources import Source
from stateside.testing import answer, append, rows, run_to

EVENTS = [
    Event("1", "emma", "order", 0, {"amount": 1}, ("vip", "web")),
    Event("2", "emma", "order", 0, {"amount": 2}, ("web",)),
    Event("3", "emma", "refund", 0, {"amount": 4}, ("vip",)),
    Event("4", "emma", "order", 0, {"amount": 8}),
    Event("5", "emma", "gift", 0, {"amount": 16}, ("vip", "web")),
]


def count(events: DataFrame) -> DataFrame:
    return events.groupBy("entity").agg(F.sum("amount").alias("total"))


def counting(source: Source | None = None) -> stateside.App:
    app = stateside.App("shop", fields="amount long")
    app.view(key=["entity"], name="total", source=source)(count)
    return app


@pytest.mark.spark
@pytest.mark.parametrize(
    ("source", "total"),
    [
        (sources.journal(), 31),
        (sources.journal(types=["order"]), 11),
        (sources.journal(types=["refund", "gift"]), 20),
        (sources.journal(tags=["vip"]), 21),
        (sources.journal(tags=["vip", "web"]), 23),
        (sources.journal(types=["order"], tags=["vip"]), 1),
        (sources.journal(types=["nothing"]), None),
    ],
    ids=str,
)
def test_the_journal_is_read_by_types_and_by_any_of_some_tags(
    spark: SparkSession, layout: Layout, source: Source, total: int | None
) -> None:
    """The position covers all events, those that were not wanted too."""
    receipt = append(layout, EVENTS)
    run_to(counting(source), layout, spark)
    found = answer(layout, "total", "emma")
    assert [row["total"] for row in found.rows] == ([] if total is None else [total])
    assert found.stamp.position == receipt


@pytest.mark.spark
def test_an_application_s_source_is_that_of_views_without_one_of_their_own(spark: SparkSession, layout: Layout) -> None:
    app = stateside.App("shop", fields="amount long", source=sources.journal(types=["order"]))
    app.view(key=["entity"], name="orders")(count)
    app.view(key=["entity"], name="refunds", source=sources.journal(types=["refund"]))(count)
    append(layout, EVENTS)
    run_to(app, layout, spark)
    assert [rows(layout, name, "emma")[0]["total"] for name in ("orders", "refunds")] == [11, 4]


@pytest.mark.spark
def test_sql_text_is_a_view_like_any_other_and_leaves_no_name_behind(spark: SparkSession, layout: Layout) -> None:
    app = stateside.App("shop", fields="amount long")

    @app.view(key=["type"])
    def by_type(events: DataFrame) -> DataFrame:
        return stateside.sql("select type, max(amount) as largest from events group by type", events=events)

    append(layout, EVENTS)
    run_to(app, layout, spark)
    assert {row["type"]: row["largest"] for row in rows(layout, "by_type")} == {"order": 8, "refund": 4, "gift": 16}
    assert "events" not in {table.name for table in spark.catalog.listTables()}


@pytest.mark.spark
def test_any_streaming_dataframe_can_be_a_source(spark: SparkSession, layout: Layout) -> None:
    rate = sources.stream(
        lambda session: session.readStream.format("rate-micro-batch").option("rowsPerBatch", "10").load()
    )
    app = stateside.App("numbers", source=rate)

    @app.view(key=["odd"])
    def parity(numbers: DataFrame) -> DataFrame:
        return numbers.select((F.col("value") % 2).alias("odd")).groupBy("odd").agg(F.count("*").alias("times"))

    with Runner(app, layout, session=spark) as runner:
        checkpoint = layout.view("parity").checkpoint
        runner.wait(lambda: (checkpoint / "commits" / "2").exists())
    found = answer(layout, "parity")
    assert {row["odd"] for row in found.rows} == {0, 1}
    assert sum(row["times"] for row in found.rows) == 10 * (found.stamp.batch + 1)


@pytest.mark.spark
def test_a_view_may_ask_for_more_columns_and_goes_on_with_its_state(spark: SparkSession, layout: Layout) -> None:
    """Neither its plan nor its checkpoint knows of a column that it does not use."""
    append(layout, EVENTS)
    run_to(counting(), layout, spark)
    append(layout, [Event("6", "emma", "order", 0, {"amount": 32}, metadata={"trace": "4bf9"})])
    run_to(counting(sources.journal(columns=["sequence", "version", "metadata", "data"])), layout, spark)
    assert rows(layout, "total", "emma")[0]["total"] == 63


@pytest.mark.spark
def test_a_new_view_of_a_trimmed_journal_begins_at_what_is_left_only_if_told_so(
    spark: SparkSession, layout: Layout
) -> None:
    with JournalWriter(layout.journal, segment_bytes_max=1) as writer:
        for event in EVENTS:
            writer.append([event])
    drop(JournalFiles(layout.journal), 3, [])
    with pytest.raises(PipelineFailed, match=r"0:0 to 0:2 are gone.*start = 0:3, or 'begin'"):
        run_to(counting(), layout, spark)
    shutil.rmtree(layout.view("total").root)
    run_to(counting(sources.journal(start="begin")), layout, spark)
    assert rows(layout, "total", "emma")[0]["total"] == 24


def test_a_source_is_declared_as_it_always_was_so_that_no_plan_changes() -> None:
    assert repr(sources.journal(["a"])) == "JournalEvents(types=('a',), tags=())"
    assert repr(sources.journal(columns=["sequence"], start="begin")) == repr(sources.journal())


def test_files_of_a_format_that_cannot_be_read_are_refused() -> None:
    with pytest.raises(ViewInvalid, match="'xml' cannot be read"):
        sources.files("incoming", fields="a string", format="xml")
