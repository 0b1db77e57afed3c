"""A query whose state Spark repartitions, to more partitions and to fewer: replicas have the rows that Spark has.

`spark._streamingCheckpointManager.repartition` adds a batch that is all snapshots, in other partitions than before.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from stateside.core.storage import Storage
from stateside.pipeline.rescale import state_digests
from stateside.spark_state.batch_log import Checkpoint
from tests.sizes import sized
from tests.spark_settings import STATE, conf

from .matrix import CHANGES, FORMATS, PROVIDERS, Case
from .queries import OPERATORS, query
from .running import start
from .staged import Staged
from .test_matrix import States, compare_after_every_batch, compare_answers, compare_history, compare_sides, texts
from .typed_events import Events

HDFS, ROCKSDB = PROVIDERS
WITHOUT_KEY = "aggregation without a key"
STEPS = (2, 7, 3)  # to how many partitions the state is brought
FILES = sized(1, 2)  # of events, a batch each, that come at each step
ALL = [
    Case(operator, ROCKSDB, format_, changes, "lz4", "unsaferow", "numbers")
    for number, operator in enumerate(name for name in OPERATORS if name != WITHOUT_KEY)
    for format_, changes in zip(FORMATS, CHANGES if number % 2 else reversed(CHANGES), strict=True)
]
SHORT = [
    replace(ALL[0], operator="aggregation", format="1"),
    replace(ALL[0], operator="inner join, format 3", format="2"),
]


@pytest.mark.spark
@pytest.mark.parametrize("case", sized(SHORT, ALL), ids=str)
def test_replicas_of_a_state_that_spark_repartitioned_have_the_rows_that_spark_says_it_has(
    spark: SparkSession, tmp_path: Path, case: Case
) -> None:
    with conf(spark, case.conf()):
        repartitioned = run(spark, tmp_path, case)
        staged = Staged(tmp_path / "checkpoint", tmp_path / "staged")
        states = compare_after_every_batch(spark, tmp_path / "checkpoint", staged)
        compare_sides(spark, tmp_path / "checkpoint", staged)
    compare_history(tmp_path, states)
    compare_answers(staged, states)
    compare_late_replicas(tmp_path, states, repartitioned)


@pytest.mark.spark
@pytest.mark.parametrize("version", sized(FORMATS[:1], FORMATS))
def test_the_row_of_an_aggregation_without_a_key_is_found_in_whichever_partition_spark_put_it(
    spark: SparkSession, tmp_path: Path, version: str
) -> None:
    """Spark's own reader fails on it: it looks for files of later batches in all partitions, and there is one again.

    Spark puts the row into partition 42 mod the new number, and goes on from partition 0: with 5 it begins again.
    """
    (tmp_path / "numbers").mkdir()
    frame = spark.readStream.schema("n long").json(str(tmp_path / "numbers")).groupBy().agg(F.count("*"), F.sum("n"))
    with conf(spark, ALL[0].conf() | {f"{STATE}.checkpointFormatVersion": version}):
        for number, partitions in (1, 2), (10, 5), (100, 5):
            if number == 10:
                repartition(spark, tmp_path / "checkpoint", partitions)
            (tmp_path / "numbers" / f"{number}.json").write_text(json.dumps({"n": number}))
            start(frame, "update", tmp_path / "checkpoint")
    expected = [(1, 1), (1, 1), (1, 10), (2, 110)]
    staged = Staged(tmp_path / "checkpoint", tmp_path / "staged")
    for batch, row in enumerate(expected):
        staged.let_through(batch)
        assert staged.rows("checkpoint") == [row]
    assert [staged.rows("checkpoint", as_of=batch) for batch in range(4)] == [[row] for row in expected]
    for batch, row in enumerate(expected[1:], 1):
        late = Staged(tmp_path / "checkpoint", tmp_path / f"late-{batch}")
        late.let_through(batch)
        assert late.rows("checkpoint") == [row]


@pytest.mark.spark
def test_spark_repartitions_no_state_of_its_default_store(spark: SparkSession, tmp_path: Path) -> None:
    """What it would write there nobody knows, and nothing here reads it."""
    case = replace(ALL[0], provider=HDFS)
    with conf(spark, case.conf()), pytest.raises(Exception, match="UNSUPPORTED_PROVIDER"):
        run(spark, tmp_path, case)


def run(spark: SparkSession, folder: Path, case: Case) -> list[int]:
    """Run the case's query, and repartition its state between its runs; the batches that Spark did so in."""
    checkpoint = Checkpoint(Storage.at(folder / "checkpoint"))
    events, batches = Events(case.columns(), case.seed), []
    (folder / "events").mkdir()
    asked = query(case.operator, events.read(spark, folder / "events"), events)
    with conf(spark, asked.conf):
        for step, partitions in enumerate(STEPS):
            if step:
                repartition(spark, folder / "checkpoint", partitions)
                batches.append(checkpoint.commits()[-1])
            for number in range(FILES * step, FILES * (step + 1)):
                events.write(folder / "events", number)
            start(asked.frame, asked.mode, folder / "checkpoint")
    return batches


def repartition(spark: SparkSession, checkpoint: Path, partitions: int) -> None:
    """Repartition the state; Stateside's own reader finds all rows of all its stores unchanged."""
    found = Checkpoint(Storage.at(checkpoint))
    before = state_digests(found, found.commit(found.commits()[-1]), checkpoint.parent)
    spark._streamingCheckpointManager.repartition(str(checkpoint), partitions)
    assert state_digests(found, found.commit(found.commits()[-1]), checkpoint.parent) == before


def compare_late_replicas(folder: Path, states: States, repartitioned: list[int]) -> None:
    """Those that begin at a batch that repartitioned the state, at the one after it, or at the last one."""
    batches = Staged(folder / "checkpoint", folder / "batches").batches()
    for batch in sorted({*repartitioned, *(each + 1 for each in repartitioned), batches[-1]}):
        late = Staged(folder / "checkpoint", folder / f"late-{batch}")
        late.let_through(batch)
        for name, told in states.items():
            assert late.loaded(name)
            assert texts(late.rows(name)) == texts(told[batch].decoded()), (name, batch)
