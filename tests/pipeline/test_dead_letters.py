"""Dead letters: events that do not fit the declared fields, or are dated too far ahead, never reach a view."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest
from pyspark.sql import DataFrame, GroupedData, SparkSession
from pyspark.sql import functions as F

import stateside
from stateside.core.errors import PipelineFailed, ViewInvalid
from stateside.core.layout import Layout
from stateside.core.positions import Position
from stateside.inspection.batch_reports import read_progress
from stateside.journal import Event
from stateside.pipeline import sources
from stateside.pipeline.dead_letters import stored_letters
from stateside.pipeline.runner import Runner
from stateside.pipeline.settings import RunSettings
from stateside.testing import append, crash_marker, rollup, rows, run_to
from tests.sizes import some

pytestmark = pytest.mark.spark

MINUTE_US = 60_000_000
START_US = 1_767_225_600_000_000  # 2026-01-01
YEAR_2099_US = 4_070_908_800_000_000


def readings(**declared: Any) -> stateside.App:
    app = stateside.App("plant", fields="site string, value double, n int", **declared)

    @app.view(key=["site", "window"], rollups=[["site"]], archive="hours")
    def hourly(events: DataFrame) -> DataFrame:
        timed = events.withWatermark("time", "10 minutes")
        return timed.groupBy("site", F.window("time", "1 hour")).agg(
            F.sum("value").alias("total"), F.count("*").alias("n")
        )

    return app


def reading(number: int, minute: int, payload: dict[str, Any]) -> Event:
    return Event(f"r{number}", "sensor", "reading", START_US + minute * MINUTE_US, payload)


def totals(layout: Layout) -> dict[str, tuple[float, int]]:
    return {
        f"{row['site']} {row['window']['start'][11:13]}": (row["total"], row["n"]) for row in rows(layout, "hourly")
    }


def letters(layout: Layout) -> list[tuple[int, str, str]]:
    return [(letter["offset"], letter["reason"], letter["detail"]) for letter in stored_letters(layout)]


def test_an_event_dated_2099_becomes_a_dead_letter_and_closes_no_window(spark: SparkSession, layout: Layout) -> None:
    north = {"site": "north", "value": 1.5}
    append(layout, [reading(0, 5, north)])
    run_to(readings(), layout, spark)
    append(layout, [Event("far", "sensor", "reading", YEAR_2099_US, north)])
    run_to(readings(), layout, spark)
    append(layout, [reading(1, 6, north), reading(2, 61, north)])
    run_to(readings(), layout, spark)
    assert totals(layout) == {"north 00": (3.0, 2), "north 01": (1.5, 1)}
    ((offset, reason, detail),) = letters(layout)
    assert (offset, reason) == (1, "future-dated")
    assert detail.startswith("the time 2099-01-01T00:00:00Z lies more than 3600 s beyond the append at 20")


PLACES = {
    "a field": lambda events: events.select("site", "at").withWatermark("at", "10 minutes").toDF("site", "then"),
    "made of a field": lambda events: events.withColumn("then", F.date_trunc("minute", "at")).withWatermark(
        "then", "10 minutes"
    ),
    "renamed": lambda events: events.select("site", F.col("at").alias("then")).withWatermark("then", "10 minutes"),
}


@pytest.mark.parametrize("timed", some(list(PLACES.values()), 3), ids=some(list(PLACES), 3))
def test_a_watermark_on_a_field_of_the_payload_is_guarded_like_the_events_time(
    spark: SparkSession, layout: Layout, timed: Any
) -> None:
    app = stateside.App("plant", fields="site string, at timestamp, until timestamp")

    @app.view(key=["site", "window"])
    def hourly(events: DataFrame) -> DataFrame:
        grouped: GroupedData = timed(events).groupBy("site", F.window("then", "1 hour"))
        return grouped.agg(F.sum(F.lit(0.0)).alias("total"), F.count("*").alias("n"))

    def at(number: int, minute: int, year: int = 2026) -> Event:
        payload = {"site": "north", "at": f"{year}-01-01T00:{minute:02}:00Z", "until": "2099-01-01T00:00:00Z"}
        return reading(number, 0, payload)

    for event in (at(0, 5), at(1, 0, year=2099), at(2, 6)):
        append(layout, [event])
        run_to(app, layout, spark)
    assert totals(layout) == {"north 00": (0.0, 2)}
    ((offset, reason, detail),) = letters(layout)
    assert (offset, reason) == (1, "future-dated")
    assert detail.startswith("the field 'at', 2099-01-01T00:00:00Z, lies more than 3600 s beyond the append at 20")


def test_a_watermark_that_cannot_be_guarded_is_refused_at_the_start(spark: SparkSession, layout: Layout) -> None:
    app = stateside.App("plant", fields="site string, at string")

    @app.view(key=["site", "window"])
    def hourly(events: DataFrame) -> DataFrame:
        timed = events.withColumn("then", F.to_timestamp("at")).withWatermark("then", "10 minutes")
        return timed.groupBy("site", F.window("then", "1 hour")).count()

    with pytest.raises(ViewInvalid, match=r"its watermark on 'then'.*declared timestamps.*dead_letters=False"):
        run_to(app, layout, spark)


def test_the_limit_can_be_set_and_lies_at_the_append_time(spark: SparkSession, layout: Layout) -> None:
    north = {"site": "north", "value": 1.0}
    append(layout, [Event("far", "sensor", "reading", YEAR_2099_US, north)])
    run_to(readings(), layout, spark)
    with Runner(readings(), layout, RunSettings(future_s_max=float("inf")), session=spark) as runner:
        append(layout, [Event("far-2", "sensor", "reading", YEAR_2099_US, north)])
        runner.run_to_end()
    assert [offset for offset, _, _ in letters(layout)] == [0]
    assert [row["n"] for row in rows(layout, "hourly")] == [1]


def test_a_payload_that_does_not_fit_is_a_counted_dead_letter_and_no_row(spark: SparkSession, layout: Layout) -> None:
    append(
        layout,
        [
            reading(0, 5, {"site": "north", "value": 1.5, "unknown": {"kept": True}}),
            reading(1, 5, {"site": "north", "value": "hot"}),
            reading(2, 5, {"site": 7, "value": 1.5}),
            reading(3, 5, {"site": "north", "n": 1.5}),
            reading(4, 5, {"site": "north", "n": 2**31}),
            reading(5, 5, {"site": "north"}),
            reading(6, 5, {"site": "north", "value": None, "n": 3}),
        ],
    )
    run_to(readings(), layout, spark)
    assert totals(layout) == {"north 00": (1.5, 3)}
    assert rollup(layout, "hourly", ["site"]) == [{"site": "north", "total": 1.5, "n": 3}]
    assert letters(layout) == [
        (1, "mismatch", "the field 'value' is \"hot\", which is no double"),
        (2, "mismatch", "the field 'site' is 7, which is no string"),
        (3, "mismatch", "the field 'n' is 1.5, which is no int"),
        (4, "mismatch", "the field 'n' is 2147483648, which is no int"),
    ]
    places = layout.view("hourly")
    assert sum(batch["deadLetters"] for batch in read_progress(places.progress)) == 4
    assert json.loads(places.dead_letters.read_text()) == {"count": 4}
    assert not list(places.refused.iterdir())


def test_a_dead_letter_has_the_whole_event_to_be_mended_and_appended_again(spark: SparkSession, layout: Layout) -> None:
    event = Event("r1", "sensor", "reading", START_US, {"value": "hot"}, ("t",), version=3, metadata={"from": "x"})
    append(layout, [event])
    run_to(readings(), layout, spark)
    (letter,) = stored_letters(layout)
    assert {name: letter[name] for name in ("view", "partition", "id", "entity", "type")} == {
        **{"view": "hourly", "partition": "0", "id": "r1", "entity": "sensor", "type": "reading"}
    }
    kept = json.loads(letter["event"])
    expected = {"id": "r1", "payload": {"value": "hot"}, "tags": ["t"], "version": 3, "metadata": {"from": "x"}}
    assert {name: kept[name] for name in expected} == expected


def test_a_batch_that_is_run_again_refuses_each_event_once(spark: SparkSession, layout: Layout) -> None:
    hot, fine = {"site": "north", "value": "hot"}, {"site": "north", "value": 1.0}
    append(layout, [reading(0, 5, hot), reading(1, 5, fine), crash_marker(START_US), reading(2, 5, hot)])
    with pytest.raises(PipelineFailed):
        run_to(readings(), layout, spark)
    assert letters(layout) == []
    run_to(readings(), layout, spark)
    append(layout, [reading(3, 5, hot)])
    run_to(readings(), layout, spark)
    assert [offset for offset, _, _ in letters(layout)] == [0, 3, 4]
    assert totals(layout) == {"north 00": (1.0, 1)}


def test_letters_wait_while_the_table_cannot_be_written_and_are_stored_once_after(
    spark: SparkSession, layout: Layout, caplog: pytest.LogCaptureFixture
) -> None:
    layout.root.mkdir(parents=True)
    layout.table("dead_letters").parent.mkdir()
    layout.table("dead_letters").write_text("no folder")
    append(layout, [reading(0, 5, {"site": "north", "value": "hot"})])
    run_to(readings(), layout, spark)
    assert "its dead letters cannot be stored for now" in caplog.text
    assert len(list(layout.view("hourly").refused.iterdir())) == 1
    layout.table("dead_letters").unlink()
    run_to(readings(), layout, spark)
    assert [offset for offset, _, _ in letters(layout)] == [0]


def test_each_view_has_its_own_letters_and_a_source_may_do_without(spark: SparkSession, layout: Layout) -> None:
    app = stateside.App("plant", fields="site string, value double")

    @app.view(key=["site"])
    def guarded(events: DataFrame) -> DataFrame:
        return events.groupBy("site").count()

    @app.view(key=["site"], source=sources.journal(types=["other"]))
    def of_others(events: DataFrame) -> DataFrame:
        return events.groupBy("site").count()

    @app.view(key=["site"], source=sources.journal(dead_letters=False))
    def own_rules(events: DataFrame) -> DataFrame:
        return events.groupBy("site").count()

    append(layout, [reading(0, 0, {"site": "north"}), reading(1, 0, {"site": "north", "value": "hot"})])
    run_to(app, layout, spark)
    assert rows(layout, "guarded") == [{"site": "north", "count": 1}]
    assert rows(layout, "of_others") == []
    assert {row["site"]: row["count"] for row in rows(layout, "own_rules")} == {"north": 1, None: 1}
    assert [(letter["view"], letter["offset"]) for letter in stored_letters(layout)] == [("guarded", 1)]


def test_a_view_that_a_far_future_event_wrecked_is_folded_again_without_it(spark: SparkSession, layout: Layout) -> None:
    """The procedure of docs/journal.md: the view's folder and the table of its archive are moved away, then run."""
    north = {"site": "north", "value": 1.0}
    unguarded = RunSettings(future_s_max=float("inf"), stop_at=Position.parse("0:4"))

    def run_unguarded() -> None:
        with Runner(readings(), layout, unguarded, session=spark) as runner:
            runner.run_to_end()

    append(layout, [reading(0, 5, north), reading(1, 65, north)])
    run_unguarded()
    append(layout, [Event("far", "sensor", "reading", YEAR_2099_US, north)])
    run_unguarded()
    append(layout, [reading(2, 66, north)])
    run_unguarded()
    assert "north 01" not in totals(layout)  # it was closed early, and its last event was dropped as late

    aside = layout.root / "aside"
    aside.mkdir()
    for place in (layout.view("hourly").root, layout.table("hours")):
        shutil.move(place, aside / place.name)
    append(layout, [reading(3, 180, north)])
    run_to(readings(), layout, spark)
    append(layout, [reading(4, 181, north)])
    run_to(readings(), layout, spark)
    assert totals(layout) == {"north 03": (2.0, 2)}
    assert sorted(_archived(layout)) == [("north", "00", 1.0, 1), ("north", "01", 2.0, 2)]
    assert [offset for offset, _, _ in letters(layout)] == [2]


def _archived(layout: Layout) -> list[tuple[str, str, float, int]]:
    from deltalake import DeltaTable

    found = DeltaTable(layout.table("hours")).to_pyarrow_table().to_pylist()
    return [(row["site"], f"{row['window']['start']:%H}", row["total"], row["n"]) for row in found]
