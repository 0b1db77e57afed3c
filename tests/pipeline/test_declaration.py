"""A query's plan as text: the same for the same query, whatever was planned before it, wherever it runs. Real Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType

import stateside
from stateside.pipeline.declaration import plan_text
from stateside.pipeline.sources import Reading

pytestmark = pytest.mark.spark

FIELDS = "amount long, parts array<long>"
DOUBLED = F.udf(lambda x: 2 * x, LongType())
WITH = "with few as (select * from events where amount > 3) select entity, sum(amount) as total from few group by 1"

QUERIES: dict[str, Callable[[DataFrame], DataFrame]] = {
    "a Python function": lambda e: e.withColumn("amount", DOUBLED("amount")),
    "a lambda over an array": lambda e: e.withColumn("parts", F.filter("parts", lambda x: x > 3)),
    "two nested lambdas": lambda e: e.withColumn(
        "parts", F.transform("parts", lambda x: F.size(F.filter("parts", lambda y: y > x)))
    ),
    "a common table expression": lambda e: stateside.sql(WITH, events=e),
    "a random sample": lambda e: e.where(F.rand() < 0.5),
    "a table of constants": lambda e: e.join(
        e.sparkSession.createDataFrame([("a", 1)], "entity string, n int"), "entity"
    ),
}


def plan(spark: SparkSession, query: Callable[[DataFrame], DataFrame], folder: Path, events: int) -> str:
    source = stateside.sources.journal()
    return plan_text(query(source.load(spark, Reading(folder, FIELDS, events_per_batch_max=events))), source)


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES.keys())
def test_the_same_query_has_the_same_plan_again(
    spark: SparkSession, tmp_path: Path, query: Callable[[DataFrame], DataFrame]
) -> None:
    assert plan(spark, query, tmp_path / "a", 10) == plan(spark, query, tmp_path / "b", 20)


def test_another_query_has_another_plan(spark: SparkSession, tmp_path: Path) -> None:
    changed = [
        lambda e: e.withColumn("parts", F.filter("parts", lambda x: x > 4)),
        lambda e: stateside.sql(WITH.replace("> 3", "> 4"), events=e),
    ]
    plans = {plan(spark, query, tmp_path, 10) for query in [*QUERIES.values(), *changed]}
    assert len(plans) == len(QUERIES) + len(changed)


def test_a_source_of_the_user_s_own_class_is_the_same_source_again(spark: SparkSession, tmp_path: Path) -> None:
    class Own:
        needs_jars = ()

        def load(self, session: SparkSession, reading: Reading) -> DataFrame:
            return session.readStream.format("rate").load()

    first, second = Own(), Own()
    frame = first.load(spark, Reading(tmp_path))
    assert plan_text(frame, first) == plan_text(frame, second)
