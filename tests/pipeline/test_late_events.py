"""Late events of any view: counted, dead letters, a sink, corrections; each once. Real Spark."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import stateside
from stateside.core.errors import SinkAway, ViewInvalid
from stateside.core.layout import Layout
from stateside.core.storage import Storage
from stateside.inspection.batch_reports import read_progress
from stateside.journal import Event, open_journal
from stateside.pipeline import App
from stateside.pipeline.dead_letters import stored_letters
from stateside.pipeline.runner import Runner
from stateside.pipeline.settings import RunSettings
from stateside.pipeline.sinks.sink import BatchId, SinkFactory
from stateside.spark_state.batch_log import Checkpoint
from stateside.testing import CrashingSource, append, crash_marker, run_to
from tests.sizes import sized

pytestmark = pytest.mark.spark

HOUR_US = 3_600_000_000
START_US = 1_767_225_600_000_000  # 2026-01-01


def seen(number: int, hour: float, item: str = "lamp", n: int = 1) -> Event:
    return Event(f"e{number}", item, "seen", START_US + round(hour * HOUR_US), {"n": n})


def hourly(late: Any, archive: str | None = None, sink: SinkFactory | None = None) -> App:
    app = stateside.App("shop", fields="n long")

    @app.view(key=["item", "window"], archive=archive, sink=sink, late=late)
    def hours(events: DataFrame) -> DataFrame:
        timed = events.withWatermark("time", "0 seconds").where("n >= 0").withColumnRenamed("entity", "item")
        return (
            timed.select("item", "n", "time")
            .groupBy("item", F.window("time", "1 hour"))
            .agg(F.sum("n").alias("total"), F.count("*").alias("events"))
        )

    return app


class Keeping:
    """A sink that keeps rows by batch, and stores a repeated batch once; it fails when told to."""

    def __init__(self) -> None:
        self.batches: dict[int, list[dict[str, Any]]] = {}
        self.away = 0

    def write(self, rows: pa.Table, batch: BatchId) -> None:
        if self.away:
            self.away -= 1
            raise SinkAway("It is away for a moment")
        self.batches[batch.batch] = rows.to_pylist()

    def totals(self) -> Counter[tuple[str, int]]:
        found: Counter[tuple[str, int]] = Counter()
        for row in (row for rows in self.batches.values() for row in rows):
            found[row["item"], _hour(row["window"]["start"])] += row["total"]
        return found


def _hour(at: datetime) -> int:
    return (round(at.replace(tzinfo=at.tzinfo or UTC).timestamp() * 1_000_000) - START_US) // HOUR_US


def run_in_steps(app: App, layout: Layout, session: SparkSession, steps: list[list[Event]]) -> None:
    """Each step is a batch of its own, in one run: a restart would change nothing."""
    session.dataSource.register(CrashingSource)
    with Runner(app, layout, RunSettings(restart_pause_s=0.05), session=session) as runner:
        for events in steps:
            append(layout, events)
            runner.run_to_end()


STEPS = [
    [seen(0, 0.1), seen(1, 0.2, "chair"), seen(2, 2.0)],  # the watermark comes to 2:00
    [seen(3, 2.1), seen(4, 0.5, n=7), seen(5, 1.9, n=11), seen(6, 0.9, "chair", 13), seen(7, 0.9, n=-1)],
    [seen(8, 2.2)],
]
LATE = {("lamp", 0): 7, ("lamp", 1): 11, ("chair", 0): 13}


def test_late_events_go_to_their_sink_as_rows_of_the_view_once(spark: SparkSession, layout: Layout) -> None:
    kept = Keeping()
    kept.away = 2
    run_in_steps(hourly(lambda _: kept), layout, spark, STEPS)
    assert kept.totals() == LATE
    assert len(kept.batches) == 1
    late = [each for report in read_progress(layout.view("hours").progress) for each in report["stateOperators"]]
    assert sum(each["numRowsDroppedByWatermark"] for each in late) == 3


def test_late_events_become_dead_letters_with_their_place_and_reason(spark: SparkSession, layout: Layout) -> None:
    run_in_steps(hourly("dead_letters"), layout, spark, STEPS)
    run_in_steps(hourly("dead_letters"), layout, spark, [[seen(9, 2.3)]])
    letters = list(stored_letters(layout))
    assert [(letter["offset"], letter["id"], letter["reason"]) for letter in letters] == [
        (4, "e4", "late"),
        (5, "e5", "late"),
        (6, "e6", "late"),
    ]
    assert letters[0]["detail"] == "its row was closed: the watermark stood at 2026-01-01T02:00:00.000000Z"
    assert '"n": 7' in letters[0]["event"]


def test_corrections_of_archived_rows_lie_beside_the_archive(spark: SparkSession, layout: Layout) -> None:
    from deltalake import DeltaTable

    run_in_steps(hourly("corrections", "sealed"), layout, spark, STEPS)
    found = DeltaTable(layout.table("sealed_corrections")).to_pyarrow_table().to_pylist()
    assert {(row["item"], _hour(row["window"]["start"])): row["total"] for row in found} == LATE
    assert len({row["sealed_batch"] for row in found}) == 1
    archived = DeltaTable(layout.table("sealed")).to_pyarrow_table().to_pylist()
    assert {(row["item"], _hour(row["window"]["start"])): row["total"] for row in archived} == {
        ("lamp", 0): 1,
        ("chair", 0): 1,
    }


@pytest.mark.parametrize("seed", range(sized(1, 2)))
def test_view_and_late_rows_together_have_every_event_once_whatever_crashes(
    spark: SparkSession, layout: Layout, seed: int
) -> None:
    draw = random.Random(seed)
    kept, number = Keeping(), iter(range(10_000))
    steps: list[list[Event]] = []
    for step in range(6):
        events = [
            seen(next(number), max(0.0, step * 1.5 - draw.random() * 4), draw.choice("ab"), draw.randrange(9))
            for _ in range(40)
        ]
        steps.append([*events[:20], crash_marker(), *events[20:]] if draw.random() < 0.5 else events)
    closed = Keeping()
    app = hourly(lambda _: kept, sink=lambda _: closed)
    run_in_steps(app, layout, spark, [*steps, [seen(9_999, 100)]])
    events = [event for step in steps for event in step if event.type == "seen"]
    expected: Counter[tuple[str, int]] = Counter()
    for event in events:
        expected[event.entity, (event.time_us - START_US) // HOUR_US] += int(event.payload["n"])
    together = closed.totals() + kept.totals()
    assert together == +expected
    assert sum(kept.totals().values()) > 0


@pytest.mark.parametrize(
    ("key", "change", "message"),
    [
        (["entity"], lambda events: events.groupBy("entity").agg(F.sum("n").alias("total")), "needs a watermark"),
        (
            ["entity", "window"],
            lambda events: (
                events.withWatermark("time", "1 hour")
                .dropDuplicates(["id", "time"])
                .groupBy("entity", F.window("time", "1 hour"))
                .agg(F.sum("n").alias("total"))
            ),
            "no other stateful operator; here is: Aggregate, Deduplicate",
        ),
    ],
)
def test_a_view_whose_late_events_cannot_be_found_is_refused(
    spark: SparkSession, layout: Layout, key: list[str], change: Callable[[DataFrame], DataFrame], message: str
) -> None:
    app = stateside.App("shop", fields="n long")
    app.view(key=key, name="total", late="dead_letters")(change)
    append(layout, [seen(0, 0)])
    with pytest.raises(ViewInvalid, match=message):
        run_to(app, layout, spark)


def test_a_source_that_cannot_be_read_again_is_refused(spark: SparkSession, layout: Layout, tmp_path: Any) -> None:
    app = stateside.App("shop", source=stateside.sources.files(tmp_path, fields="item string, at timestamp"))

    @app.view(key=["item", "window"], late=lambda _: Keeping())
    def hours(events: DataFrame) -> DataFrame:
        return (
            events.withWatermark("at", "0 seconds")
            .groupBy("item", F.window("at", "1 hour"))
            .agg(F.count("*").alias("n"))
        )

    with pytest.raises(ViewInvalid, match="needs a source that can be read again"), Runner(app, layout, session=spark):
        pass


def test_a_declaration_that_makes_no_sense_is_refused() -> None:
    app = stateside.App("shop")
    with pytest.raises(ViewInvalid, match="late='corrections', but no archive"):
        app.view(key=["a"], name="one", late="corrections")(lambda events: events)
    with pytest.raises(ViewInvalid, match=r"late='never'\. Choose one of count, dead_letters, corrections"):
        app.view(key=["a"], name="two", late="never")(lambda events: events)  # type: ignore[arg-type]


def test_the_range_of_a_batch_has_the_watermark_by_which_it_drops(spark: SparkSession, layout: Layout) -> None:
    run_in_steps(hourly("count"), layout, spark, STEPS)
    checkpoint = Checkpoint(Storage.at(layout.view("hours").checkpoint))
    first, *_, last = (checkpoint.range_of(batch) for batch in checkpoint.commits())
    assert (first.watermark_before_us, str(first.stop)) == (0, "0:3")
    assert last.watermark_before_us >= START_US + 2 * HOUR_US
    assert last.stop.one() == open_journal(layout.journal).end().one()
