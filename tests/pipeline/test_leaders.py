"""Leaders one after the other on one checkpoint, and Spark's own guard, the second line behind their gates."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

import stateside
from stateside.core.errors import LeadershipLost, PipelineFailed
from stateside.core.layout import Layout
from stateside.leadership import Candidate, Gates, Leadership
from stateside.pipeline.runner import Runner
from stateside.pipeline.settings import RunSettings
from stateside.testing import append, rows
from tests.pipeline.test_state_views import NO_DATA_BATCHES, recomputed, shop
from tests.pipeline.test_state_views import orders as some_orders
from tests.pipeline.test_supervision import beat, commits, orders, totals, until
from tests.spark_settings import conf

pytestmark = pytest.mark.spark

QUICK = RunSettings(restart_pause_s=0.05, restarts_max=3)


def lead(layout: Layout, name: str) -> Leadership:
    leadership = Candidate(layout.root, name, lease_s=1.0).wait(lambda: False)
    assert leadership is not None
    return leadership


def run(app: stateside.App, layout: Layout, spark: SparkSession, leadership: Leadership) -> None:
    with Runner(app, layout, QUICK, session=spark, leadership=leadership) as runner:
        runner.run_to_end()


def test_a_new_leader_goes_on_where_the_last_one_stopped_also_with_state_variables(
    spark: SparkSession, layout: Layout
) -> None:
    events = []
    with conf(spark, {NO_DATA_BATCHES: "false"}):
        for seed, name in enumerate("abc"):
            events += some_orders(seed, 12)
            append(layout, events[-12:])
            run(shop(), layout, spark, lead(layout, name))
    assert rows(layout, "spending") == recomputed(events)["total"]


def test_a_leader_whose_gate_is_shut_in_the_middle_of_its_work_ends_and_has_committed_nothing_since(
    spark: SparkSession, layout: Layout
) -> None:
    append(layout, orders(3))
    old = lead(layout, "a")
    with (
        pytest.raises(LeadershipLost, match=r"b .process .* leads from epoch 2 on"),
        Runner(totals(), layout, QUICK, session=spark, leadership=old) as runner,
    ):
        until(lambda: commits(layout) == [0] and beat(layout).state == "idle", runner)
        old.end()  # as if it were paused: it gives no sign of life
        Gates(layout.root).shut_before(2)  # what the new leader does before it begins, here without its claim
        append(layout, orders(1))
        (query,) = runner._queries
        until(lambda: query.state()[0] == "holding", runner)
        assert commits(layout) == [0]
        new = lead(layout, "b")
        runner.wait(lambda: False)
    with Runner(totals(), layout, QUICK, session=spark, leadership=new) as runner:
        runner.run_to_end()
    assert rows(layout, "total")[0]["total"] == 4


def test_a_leader_whose_gate_is_shut_before_it_has_begun_says_who_leads(spark: SparkSession, layout: Layout) -> None:
    append(layout, orders(3))
    old = lead(layout, "a")
    old.end()  # as if it were paused while Spark starts
    new = lead(layout, "b")
    with (
        pytest.raises(LeadershipLost, match=r"b .process .* leads from epoch 2 on"),
        Runner(totals(), layout, QUICK, session=spark, leadership=old),
    ):
        pass
    new.release()


@pytest.mark.parametrize("log", ["offsets", "commits"])
def test_a_driver_whose_next_batch_another_one_has_planned_or_committed_ends_and_is_not_started_again(
    spark: SparkSession, layout: Layout, log: str
) -> None:
    append(layout, orders(3))
    entries = layout.view("total").checkpoint / log
    with (
        pytest.raises(PipelineFailed, match="CONCURRENT_STREAM_LOG_UPDATE"),
        Runner(totals(), layout, QUICK, session=spark) as runner,
    ):
        until(lambda: commits(layout) == [0] and beat(layout).state == "idle", runner)
        (entries / "1").write_bytes((entries / "0").read_bytes())
        append(layout, orders(1))
        until(lambda: False, runner)
