"""What a view rests on goes away while it runs, and comes back: it waits, and goes on, and nothing is doubled."""

from __future__ import annotations

import shutil
import sys
import threading
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.errors.exceptions.captured import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import stateside
from stateside.core.errors import PipelineFailed, SinkAway
from stateside.core.layout import Layout
from stateside.journal import Event
from stateside.pipeline.apply import apply
from stateside.pipeline.failures import Failure, judge
from stateside.pipeline.foreground import LinesForPeople
from stateside.pipeline.runner import Runner
from stateside.pipeline.settings import RunSettings
from stateside.pipeline.sinks.sink import BatchId, OnStep, ignore_step
from stateside.testing import append, rows, run_to
from tests.disks import fill, frozen, mounted, remount
from tests.pipeline.test_supervision import beat, commits, for_s, totals, until

pytestmark = pytest.mark.spark

NO_RESTARTS = RunSettings(restart_pause_s=0.05, restarts_max=0)


class Counting:
    """A sink that keeps what the batches brought: the newest total, and under which numbers."""

    def __init__(self) -> None:
        self.totals: dict[int, list[int]] = {}

    def write(self, rows: pa.Table, batch: BatchId) -> None:
        self.totals.setdefault(batch.batch, []).extend(rows["total"].to_pylist())

    def newest(self) -> int:
        return max(total for found in self.totals.values() for total in found)


def orders(first: int, count: int) -> list[Event]:
    return [Event(f"o{n}", "emma", "order", 0, {"amount": 1}) for n in range(first, first + count)]


@pytest.mark.parametrize("what", ["checkpoint", "journal"])
def test_a_view_waits_for_what_is_away_and_goes_on_when_it_is_back(
    spark: SparkSession, layout: Layout, tmp_path: Path, what: str
) -> None:
    place = layout.journal if what == "journal" else layout.view("total").checkpoint
    append(layout, orders(0, 3))
    counting = Counting()
    with Runner(totals(lambda _: counting), layout, NO_RESTARTS, session=spark) as runner:
        until(lambda: commits(layout) != [] and beat(layout).state == "idle", runner)
        if what == "checkpoint":
            place.rename(tmp_path / "away")
            append(layout, orders(3, 4))
        else:
            append(layout, orders(3, 4))
            place.rename(tmp_path / "away")
        until(lambda: beat(layout).state == "holding", runner)
        for_s(1.0, runner)
        assert "away" in (beat(layout).why or "")
        assert (beat(layout).source_end is None) == (what == "journal"), "nothing is claimed of a journal that is away"
        assert not (place / "metadata").exists(), "it is not begun again"
        shutil.rmtree(place, ignore_errors=True)  # what Spark put in its place before it was stopped
        (tmp_path / "away").rename(place)
        until(lambda: beat(layout).state == "idle" and counting.newest() == 7, runner)
    assert all(len(found) <= 1 for found in counting.totals.values()), "no number is delivered a second time"
    assert rows(layout, "total")[0]["total"] == 7


def test_a_view_whose_sink_and_checkpoint_are_away_waits_for_both(
    spark: SparkSession, layout: Layout, tmp_path: Path
) -> None:
    """The storage of the checkpoint does not say that nothing is there: it cannot be read at all, as when it hangs."""
    away, counting = threading.Event(), Counting()

    class Away:
        def write(self, rows: pa.Table, batch: BatchId) -> None:
            if away.is_set():
                raise SinkAway("The shelf is away")
            counting.write(rows, batch)

    place = layout.view("total").checkpoint
    append(layout, orders(0, 3))
    with Runner(totals(lambda _: Away()), layout, NO_RESTARTS, session=spark) as runner:
        until(lambda: commits(layout) != [] and beat(layout).state == "idle", runner)
        away.set()
        append(layout, orders(3, 4))
        until(lambda: "The shelf is away" in (beat(layout).why or ""), runner)
        place.rename(tmp_path / "away")
        place.symlink_to(place)  # whoever looks gets an error (ELOOP), and nobody can write there
        until(lambda: "The checkpoint is away" in (beat(layout).why or ""), runner)
        place.unlink()
        (tmp_path / "away").rename(place)
        until(lambda: "The shelf is away" in (beat(layout).why or ""), runner)
        away.clear()
        until(lambda: beat(layout).state == "idle" and counting.newest() == 7, runner)
    assert all(len(found) <= 1 for found in counting.totals.values()), "no number is delivered a second time"
    assert rows(layout, "total")[0]["total"] == 7


def test_a_checkpoint_store_that_hangs_costs_freshness_only(
    spark: SparkSession, layout: Layout, tmp_path: Path
) -> None:
    with mounted(tmp_path / "disk", "64m", image=True) as disk:
        on_disk(layout, disk)
        append(layout, orders(0, 3))
        counting = Counting()
        with Runner(totals(lambda _: counting), layout, NO_RESTARTS, session=spark) as runner:
            until(lambda: commits(layout) != [] and beat(layout).state == "idle", runner)
            before = commits(layout)
            with frozen(disk):
                append(layout, orders(3, 4))
                for_s(1.5, runner)
                assert commits(layout) == before
            until(lambda: beat(layout).state == "idle" and counting.newest() == 7, runner)
        assert all(len(found) <= 1 for found in counting.totals.values()), "no number is delivered a second time"
        assert rows(layout, "total")[0]["total"] == 7


def on_disk(layout: Layout, disk: Path) -> None:
    """Have the views, but not the journal, on this disk."""
    (disk / "views").mkdir()
    layout.root.mkdir(parents=True)
    (layout.root / "views").symlink_to(disk / "views")


def test_a_full_disk_ends_a_backfill_which_then_goes_on(spark: SparkSession, layout: Layout, tmp_path: Path) -> None:
    changed = stateside.App("shop", fields="amount long")

    @changed.view(key=["entity"])
    def total(events: DataFrame) -> DataFrame:
        return events.groupBy("entity").agg(F.sum("amount").alias("total"), F.count("*").alias("orders"))

    def fill_up(step: int) -> None:
        if step == 3:  # a first round is done
            append(layout, orders(3, 4))
            fill(disk)

    def apply_here(on_step: OnStep = ignore_step) -> None:
        settings = RunSettings(restarts_max=0, hold_s_max=0)
        apply(changed, layout.root, settings, LinesForPeople(sys.stderr), on_step=on_step, session=spark)

    with mounted(tmp_path / "disk", "64m") as disk:
        on_disk(layout, disk)
        append(layout, orders(0, 3))
        run_to(totals(), layout, spark)
        assert rows(layout, "total") == [{"entity": "emma", "total": 3}]
        with pytest.raises(PipelineFailed, match=r"No space left on device(?s:.*)repeat this command"):
            apply_here(fill_up)
        (disk / "ballast").unlink()
        assert rows(layout, "total") == [{"entity": "emma", "total": 3}], "of the old generation"
        begun = (layout.filling()[0].checkpoint / "commits" / "0").stat().st_mtime_ns
        apply_here()
        assert rows(layout, "total") == [{"entity": "emma", "total": 7, "orders": 7}]
        first = layout.view("total").checkpoint / "commits" / "0"
        assert first.stat().st_mtime_ns == begun, "it was not begun again"


def test_a_full_disk_is_found_among_the_causes_of_spark_s_own_error(spark: SparkSession) -> None:
    """A bug once: a state that could not be committed counted as a failure, and its message did not name the disk."""
    java = cast(Any, spark._jvm).java
    full = java.io.IOException("[CANNOT_COMMIT] Error writing files", java.io.IOException("No space left on device"))
    failure = judge(StreamingQueryException("[CANNOT_COMMIT] Error writing files", "", full))
    assert failure == Failure("No space left on device: [CANNOT_COMMIT] Error writing files", True, away=True)


def test_a_view_waits_while_the_disk_of_its_checkpoint_is_full_or_may_not_be_written_to(
    spark: SparkSession, layout: Layout, tmp_path: Path
) -> None:
    with mounted(tmp_path / "disk", "64m") as disk:
        on_disk(layout, disk)
        append(layout, orders(0, 3))
        counting = Counting()
        with Runner(totals(lambda _: counting), layout, NO_RESTARTS, session=spark) as runner:
            until(lambda: commits(layout) != [] and beat(layout).state == "idle", runner)
            ballast = fill(disk)
            append(layout, orders(3, 4))
            (query,) = runner._queries
            until(lambda: query.state()[0] == "holding", runner)  # its heartbeat cannot be written either
            for_s(1.0, runner)
            assert "No space left on device" in (query.state()[1] or "")
            ballast.unlink()
            until(lambda: beat(layout).state == "idle" and counting.newest() == 7, runner)
            remount(disk, "ro")
            append(layout, orders(7, 1))
            until(lambda: query.state()[0] == "holding", runner)
            for_s(1.0, runner)
            assert "Read-only file system" in (query.state()[1] or "")
            remount(disk, "rw")
            until(lambda: beat(layout).state == "idle" and counting.newest() == 8, runner)
        assert rows(layout, "total")[0]["total"] == 8
