"""The journal as Spark itself reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from stateside.journal import Event, JournalWriter
from stateside.journal.admin import JournalFiles, drop
from stateside.journal.backends.files.segment import segment_path
from stateside.journal.backends.nodes import Merger, NodeWriter

pytestmark = pytest.mark.spark

EVENTS = 60


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six segments of ten events, each of a type, a tag and a minute of its own."""
    folder = tmp_path_factory.mktemp("events") / "journal"
    with JournalWriter(folder, segment_bytes_max=1) as writer:
        for part in range(6):
            writer.append(
                [
                    Event(
                        f"e{10 * part + i}",
                        f"c{i}",
                        f"type-{part}",
                        60_000_000 * part + i,
                        {"cents": i},
                        (f"tag-{part}",),
                        metadata={"trace": f"t{part}"},
                    )
                    for i in range(10)
                ]
            )
    return folder


def read(spark: SparkSession, folder: Path, **options: str) -> DataFrame:
    return spark.read.format("stateside-journal").options(path=str(folder), **options).load()


def ids(frame: DataFrame) -> list[str]:
    return [row["id"] for row in frame.orderBy("offset").select("id").collect()]


CONDITIONS = {
    "type = 'type-1'": {1},
    "type in ('type-1', 'type-3') and cents > 4": {1, 3},
    "time < timestamp'1970-01-01 00:01:00'": {0},
    "time between timestamp'1970-01-01 00:02:00.000003' and timestamp'1970-01-01 00:02:00.000005'": {2},
    "time >= timestamp'1970-01-01 00:04:00' and type != 'type-5'": {4},
    "appended > timestamp'2100-01-01 00:00:00'": set(),
    "offset >= 35 and offset < 38": {3},
}


def test_a_batch_read_is_a_table_and_its_conditions_spare_segments(spark: SparkSession, journal: Path) -> None:
    """Compared with the same conditions on rows that Spark holds; then with every other segment made unreadable."""
    everything = read(spark, journal, fields="cents long").cache()
    assert everything.count() == EVENTS
    expected = {condition: ids(everything.where(condition)) for condition in CONDITIONS}
    assert {c: ids(read(spark, journal, fields="cents long").where(c)) for c in CONDITIONS} == expected
    for condition, needed in CONDITIONS.items():
        kept = {part: segment_path(journal, 10 * part).read_bytes() for part in set(range(5)) - needed}
        for part, content in kept.items():
            segment_path(journal, 10 * part).write_bytes(content[:-1] + b"\xff")
        assert ids(read(spark, journal, fields="cents long").where(condition)) == expected[condition], condition
        for part, content in kept.items():
            segment_path(journal, 10 * part).write_bytes(content)
    everything.unpersist()


def test_a_range_with_the_newer_columns_and_by_tag(spark: SparkSession, journal: Path) -> None:
    frame = read(spark, journal, start="0:5", end="0:25", columns="sequence, version, metadata, data", tags='["tag-1"]')
    assert frame.columns[-4:] == ["sequence", "version", "metadata", "data"]
    found = frame.select("offset", "sequence", "version", F.col("metadata")["trace"].alias("trace"), "data").collect()
    assert [tuple(row) for row in found] == [(n, 2, 1, "t1", None) for n in range(10, 20)]


def test_a_stream_of_a_merged_stream_reads_every_event_once_through_restarts(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder, seen = tmp_path / "nodes", list[Any]()
    with NodeWriter(folder, "a") as a, NodeWriter(folder, "b") as b, Merger(folder, partitions=2) as merger:
        for round_ in range(3):
            for node in (a, b):
                node.append([Event(f"{node.name}-{round_}-{i}", f"{node.name}{i}", "call", 0, {}) for i in range(6)])
            merger.merge()
            run(spark, folder, tmp_path / "checkpoint", seen)
    assert len(seen) == len(set(seen)) == 36
    assert {row["partition"] for row in read(spark, folder, columns="partition").select("partition").collect()} == {
        "0",
        "1",
    }


def run(spark: SparkSession, folder: Path, checkpoint: Path, seen: list[str]) -> None:
    """Everything that is there now, in batches of five."""
    reader = spark.readStream.format("stateside-journal").options(path=str(folder), eventsPerBatchMax="5")
    frame = reader.option("columns", "sequence").load()
    assert "sequence" in frame.columns

    def take(batch: DataFrame, _: int) -> None:
        taken = [row["id"] for row in batch.select("id").collect()]
        assert len(taken) <= 5
        seen.extend(taken)

    query = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(checkpoint))
    query.trigger(availableNow=True).start().awaitTermination()


def test_a_batch_read_of_what_is_gone_fails_with_the_range_and_goes_on_where_told(
    spark: SparkSession, tmp_path: Path
) -> None:
    with JournalWriter(tmp_path, segment_bytes_max=1) as writer:
        for part in range(3):
            writer.append([Event(f"{part}-{i}", "c", "call", 0, {}) for i in range(10)])
    drop(JournalFiles(tmp_path), 20, [])
    with pytest.raises(Exception, match="The events at 0:0 to 0:19 are gone"):
        read(spark, tmp_path).count()
    assert read(spark, tmp_path, start="begin").count() == 10
