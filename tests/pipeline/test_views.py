"""Views declared in PySpark, run on real Spark, read from real checkpoints."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import stateside
from stateside.core.errors import PipelineFailed, PipelineRunning, ViewInvalid
from stateside.core.layout import Layout
from stateside.journal import Event
from stateside.leadership import hold_driver_lock
from stateside.pipeline.app import load
from stateside.pipeline.dead_letters import stored_letters
from stateside.pipeline.runner import Runner
from stateside.pipeline.settings import RunSettings
from stateside.testing import answer, append, crash_marker, rows, run_to

pytestmark = pytest.mark.spark


def shop() -> stateside.App:
    app = stateside.App("shop", fields="country string, amount long")

    @app.view(key=["customer", "country"])
    def spending(events: DataFrame) -> DataFrame:
        named = events.select(F.col("entity").alias("customer"), "country", "amount")
        totals = (F.sum("amount").alias("total"), F.count("*").alias("orders"), F.max("amount").alias("largest"))
        return named.groupBy("customer", "country").agg(*totals)

    return app


def orders(*amounts: int, customer: str = "emma") -> list[Event]:
    payloads = ({"country": "de", "amount": amount} for amount in amounts)
    return [Event(f"{customer}-{next(_numbers)}", customer, "order", 0, payload) for payload in payloads]


_numbers = itertools.count()


def test_a_view_folds_the_journal_and_answers_by_key(spark: SparkSession, layout: Layout) -> None:
    receipt = append(layout, orders(5, 7) + orders(1, customer="oliver"))
    run_to(shop(), layout, spark)
    found = answer(layout, "spending", "emma")
    assert found.rows == [{"customer": "emma", "country": "de", "total": 12, "orders": 2, "largest": 7}]
    assert found.stamp.position == receipt
    assert rows(layout, "spending", "nobody") == []


def test_a_run_stops_at_the_position_it_was_given_and_a_later_one_goes_on(spark: SparkSession, layout: Layout) -> None:
    first = append(layout, orders(1, 2))
    append(layout, orders(10, 20))
    run_to(shop(), layout, spark, first)
    assert rows(layout, "spending", "emma")[0]["total"] == 3
    run_to(shop(), layout, spark)
    assert rows(layout, "spending", "emma")[0]["total"] == 33


def test_a_batch_takes_in_no_more_events_than_it_may(spark: SparkSession, layout: Layout) -> None:
    append(layout, orders(*range(10)))
    run_to(shop(), layout, spark, events_per_batch=3)
    assert answer(layout, "spending").stamp.batch == 3  # 3 + 3 + 3 + 1 events


def test_a_crash_in_the_middle_of_a_batch_neither_loses_nor_doubles(spark: SparkSession, layout: Layout) -> None:
    append(layout, [*orders(1, 2), crash_marker(), *orders(3)])
    with pytest.raises(PipelineFailed, match="crashes here"):
        run_to(shop(), layout, spark)
    run_to(shop(), layout, spark)
    assert rows(layout, "spending", "emma")[0] | {"country": ""} == {
        "customer": "emma",
        "country": "",
        "total": 6,
        "orders": 3,
        "largest": 3,
    }


def test_an_event_whose_field_has_another_type_is_no_row_but_a_dead_letter(spark: SparkSession, layout: Layout) -> None:
    bad = Event("bad", "emma", "order", 0, {"country": "de", "amount": "much"})
    append(layout, [*orders(4), bad])
    run_to(shop(), layout, spark)
    assert [(row["country"], row["total"], row["orders"]) for row in rows(layout, "spending", "emma")] == [
        ("de", 4, 1),
    ]
    assert [(letter["id"], letter["reason"]) for letter in stored_letters(layout)] == [("bad", "mismatch")]


Refusal = tuple[str, str, list[str], Callable[[DataFrame], Any]]
by_entity = ["entity"]
REFUSALS: dict[str, Refusal] = {
    "not grouped": ("ends in Project", r"End in groupBy", by_entity, lambda e: e.select("entity", "amount")),
    "grouped by another key": (
        r"groups by \['entity'\]",
        "exactly the columns",
        ["customer"],
        lambda e: e.groupBy("entity").agg(F.sum("amount")),
    ),
    "grouped by more": ("groups by", "exactly", by_entity, lambda e: e.groupBy("entity", "amount").count()),
    "grouped by nothing": ("groups by", "exactly", by_entity, lambda e: e.groupBy().count()),
    "a constant among the groups": (
        "groups by",
        "exactly",
        ["entity", "one"],
        lambda e: e.groupBy("entity", F.lit(1).alias("one")).count(),
    ),
    "a key of arrays": (
        "keys cannot have",
        "Cast it to a string",
        ["list"],
        lambda e: e.selectExpr("array(amount) as list").groupBy("list").count(),
    ),
    "a map": (
        "has the type",
        "map_entries",
        by_entity,
        lambda e: e.groupBy("entity").agg(F.expr("first(map(entity, amount)) as one")),
    ),
    "an interval": (
        "has the type interval",
        "Cast",
        by_entity,
        lambda e: e.groupBy("entity").agg(F.expr("max(make_dt_interval(1)) as most")),
    ),
    "a column that is not there": (
        "fails: AnalysisException",
        "",
        by_entity,
        lambda e: e.groupBy("entity").agg(F.sum("amuont")),
    ),
    "a function that raises": ("fails: ZeroDivisionError", "", by_entity, lambda e: 1 / 0),
    "a function that returns nothing": ("returns NoneType, not a streaming DataFrame", "", by_entity, lambda e: None),
    "a deviation": (
        "aggregate that cannot be served",
        r"sum\(x \* x\)",
        by_entity,
        lambda e: e.groupBy("entity").agg(F.stddev("amount")),
    ),
    "a list": (
        "cannot be served",
        "transformWithState",
        by_entity,
        lambda e: e.groupBy("entity").agg(F.collect_list("amount")),
    ),
    "a percentile": (
        "cannot be served",
        "ranges",
        by_entity,
        lambda e: e.groupBy("entity").agg(F.percentile_approx("amount", 0.5)),
    ),
    "a rough count": (
        "cannot be served",
        "let the reader count",
        by_entity,
        lambda e: e.groupBy("entity").agg(F.approx_count_distinct("amount")),
    ),
    "a product": (
        "cannot be served",
        "Build it from",
        by_entity,
        lambda e: e.groupBy("entity").agg(F.product("amount")),
    ),
    "distinct values": (
        "DISTINCT",
        "Group by that column as well",
        by_entity,
        lambda e: e.groupBy("entity").agg(F.count_distinct("amount")),
    ),
    "computed on": (
        "computes on",
        "let the reader compute",
        by_entity,
        lambda e: e.groupBy("entity").agg(F.expr("sum(amount) + 1")),
    ),
    "computed on, later": (
        "computes on",
        "let the reader compute",
        by_entity,
        lambda e: e.groupBy("entity").count().selectExpr("entity", "count * 2 as double"),
    ),
    "computed from a key": (
        "computes on",
        "before the groupBy",
        by_entity,
        lambda e: e.groupBy("entity").count().selectExpr("entity", "upper(entity) as name", "count"),
    ),
    "filtered after": (
        "filters after",
        "Filter before",
        by_entity,
        lambda e: e.groupBy("entity").count().where("count > 1"),
    ),
    "sorted after": ("sorts after", "order of the key", by_entity, lambda e: e.groupBy("entity").count().sort("count")),
    "limited": ("ends in a limit", "ask by key", by_entity, lambda e: e.groupBy("entity").count().limit(3)),
    "two aggregations": (
        "another operator with state, Aggregate",
        "of its own",
        ["count"],
        lambda e: e.groupBy("entity").count().groupBy("count").agg(F.max("entity").alias("largest")),
    ),
    "two columns of one name": (
        "called 'n'",
        "name of its own",
        by_entity,
        lambda e: e.groupBy("entity").agg(F.sum("amount").alias("n"), F.count("*").alias("n")),
    ),
    "a sliding window": (
        "windows slide",
        "let the reader sum a range",
        ["entity", "window"],
        lambda e: e.groupBy("entity", F.window("time", "1 hour", "5 minutes")).count(),
    ),
    "a window's start, later": (
        "computes on",
        "before the groupBy",
        ["entity", "window"],
        lambda e: e.groupBy("entity", F.window("time", "1 hour")).count().select("entity", "window.start", "count"),
    ),
    "sessions without a watermark": (
        "no watermark",
        "withWatermark",
        ["entity", "session_window"],
        lambda e: e.groupBy("entity", F.session_window("time", "5 minutes")).count(),
    ),
}


@pytest.mark.parametrize(("reason", "way_round", "key", "function"), REFUSALS.values(), ids=REFUSALS.keys())
def test_what_cannot_be_served_rightly_is_refused_at_start(
    spark: SparkSession,
    layout: Layout,
    reason: str,
    way_round: str,
    key: list[str],
    function: Callable[[DataFrame], DataFrame],
) -> None:
    app = stateside.App("shop", fields="amount long")
    function.__name__ = "spending"
    app.view(key=key)(function)
    append(layout, orders(1))
    with pytest.raises(ViewInvalid, match=reason) as refused:
        run_to(app, layout, spark)
    assert re.search(way_round, str(refused.value.next_step))


def test_a_view_that_is_not_streaming_is_refused(spark: SparkSession, layout: Layout) -> None:
    app = stateside.App("shop")

    @app.view(key=["id"])
    def ids(events: DataFrame) -> DataFrame:
        return spark.range(3).groupBy("id").count()

    append(layout, orders(1))
    with pytest.raises(ViewInvalid, match="not streaming"):
        run_to(app, layout, spark)


def test_a_changed_view_on_an_old_checkpoint_is_refused(spark: SparkSession, layout: Layout) -> None:
    append(layout, orders(1))
    run_to(shop(), layout, spark)
    changed = stateside.App("shop", fields="amount long")

    @changed.view(key=["entity"])
    def spending(events: DataFrame) -> DataFrame:
        return events.groupBy("entity").agg(F.sum("amount").alias("total"))

    table = r"spending  needs a backfill  its key was \['customer', 'country'\] and is \['entity'\]; 1 events to fold"
    with pytest.raises(ViewInvalid, match=table) as refused:
        run_to(changed, layout, spark)
    assert "stateside apply shop --dir" in str(refused.value.next_step)


def test_a_count_does_not_go_on_where_a_sum_left_off(spark: SparkSession, layout: Layout) -> None:
    """Spark would let it: both are one buffer of type long (pinned in `tests/semantics`)."""
    append(layout, orders(5))
    for function in ("sum(amount)", "count(amount)"):
        app = stateside.App("shop", fields="amount long")

        def spending(events: DataFrame, function: str = function) -> DataFrame:
            return events.groupBy("entity").agg(F.expr(function).alias("total"))

        app.view(key=["entity"])(spending)
        if function == "sum(amount)":
            run_to(app, layout, spark)
        else:
            with pytest.raises(ViewInvalid, match=r"'total' was sum\(amount\) long and is count\(amount\) long"):
                run_to(app, layout, spark)


def test_a_view_that_was_mended_before_its_first_batch_is_no_changed_view(spark: SparkSession, layout: Layout) -> None:
    append(layout, orders(5))
    app = stateside.App("shop", fields="country string, amount long")

    @app.view(key=["entity"])
    def spending(events: DataFrame) -> DataFrame:
        return events.groupBy("entity").agg(F.sum("amount").alias("total"))

    broken = layout.view("spending").checkpoint
    broken.mkdir(parents=True)
    (broken / "metadata").write_text("this is no checkpoint")
    with pytest.raises(PipelineFailed, match="did not start"):
        run_to(app, layout, spark)
    shutil.rmtree(broken)
    run_to(shop(), layout, spark)
    assert rows(layout, "spending", "emma")[0]["total"] == 5


@pytest.mark.parametrize("amounts", [(9,), (9, 9, 9, 9, 9)], ids=["shorter", "longer"])
def test_another_journal_than_the_one_that_was_read_stops_the_view(
    spark: SparkSession, layout: Layout, amounts: tuple[int, ...]
) -> None:
    append(layout, orders(1, 2, 3))
    run_to(shop(), layout, spark)
    shutil.rmtree(layout.journal)
    append(layout, orders(*amounts))
    with pytest.raises(PipelineFailed, match=r"This query has read journal .* up to 0:3; here is"):
        run_to(shop(), layout, spark)


def test_an_application_without_views_is_refused(spark: SparkSession, layout: Layout) -> None:
    with pytest.raises(ViewInvalid, match="has no view"), Runner(stateside.App("shop"), layout, session=spark):
        raise AssertionError("it runs")


def test_a_module_that_fails_is_told_with_its_own_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    for name, text, reason in (
        ("typo_app", "def broken(:", "SyntaxError"),
        ("name_app", "app = Ap()", "NameError: name 'Ap' is not defined"),
        ("needs_app", "from os import no_such_thing", "ImportError"),
        ("early_app", "raise RuntimeError('[SESSION_OR_CONTEXT_NOT_EXISTS]')", r"Spark is not running .* LongType\(\)"),
    ):
        (tmp_path / f"{name}.py").write_text(text)
        with pytest.raises(ViewInvalid, match=reason):
            load(f"{name}:app")


def test_a_payload_field_may_not_hide_a_column_of_every_event(spark: SparkSession, layout: Layout) -> None:
    app = shop()
    app.fields = "country string, amount long, time long"
    append(layout, orders(1))
    with pytest.raises(ViewInvalid, match="'time'"):
        run_to(app, layout, spark)


def test_a_second_driver_on_the_same_folder_is_refused(spark: SparkSession, layout: Layout) -> None:
    hold = "import sys, time; from pathlib import Path; from stateside.leadership import hold_driver_lock\n"
    hold += "hold_driver_lock(Path(sys.argv[1]), shared=False); print('held', flush=True); time.sleep(60)"
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(layout.driver_lock)], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with (
            pytest.raises(PipelineRunning, match=str(holder.pid)),
            Runner(shop(), layout, RunSettings(lease_s_max=0.2), session=spark),
        ):
            raise AssertionError("two drivers run")
        holder.kill()
    os.close(hold_driver_lock(layout.driver_lock, shared=False))  # a dead holder holds nothing


def test_views_with_one_name_without_a_key_or_with_a_bad_name_are_refused() -> None:
    app = stateside.App("shop")
    with pytest.raises(ViewInvalid, match="name of a view"):
        app.view(key=["a"])(lambda events: events)

    def orders(events: DataFrame) -> DataFrame:
        return events

    with pytest.raises(ViewInvalid, match="no key"):
        app.view(key=[])(orders)
    app.view(key=["a"])(orders)
    with pytest.raises(ViewInvalid, match="two views"):
        app.view(key=["a"])(orders)


@pytest.mark.parametrize("target", ["no_such_module:app", "json:no_such", "json:dumps", ":", ""])
def test_a_target_that_is_no_application_is_refused_with_advice(target: str) -> None:
    with pytest.raises(ViewInvalid, match="like shop:app"):
        load(target)


def test_starting_spark_leaves_no_trace_in_the_environment(spark: SparkSession) -> None:
    """A JAVA_HOME left behind once made a brought-along Java look like the machine's own, and jars could not be had."""
    assert not {"PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_LOCAL_IP"} & set(os.environ)
