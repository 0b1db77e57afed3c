"""The oracle for stores and codecs: rows built from the files alone are those that Spark's own reader of the state has.

Each case runs a query of its own, unknown to Stateside, with a restart in between.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from stateside.checkpoint.changelog import Change
from stateside.checkpoint.delta import newest_snapshot
from stateside.checkpoint.log import Checkpoint
from stateside.checkpoint.provider import Provider, read_batch_changes
from stateside.checkpoint.schema import read_schema
from stateside.checkpoint.unsafe_row import RowDecoder
from stateside.errors import CheckpointInvalid
from stateside.storage import Storage

pytestmark = pytest.mark.spark

STATE = "spark.sql.streaming.stateStore"
PARTITIONS = 2
BATCHES = 7  # more than five times `minDeltasForSnapshot`: then Spark writes a snapshot with the commit
SCHEMA = "customer string, kind int, amount decimal(20,2), at timestamp"
Rows = dict[tuple[Any, ...], tuple[Any, ...]]


def counts(events: DataFrame) -> DataFrame:
    return events.groupBy("customer", "kind").agg(F.count("*"), F.sum("amount"), F.max("at"), F.collect_set("kind"))


def windows(events: DataFrame) -> DataFrame:
    return events.groupBy(F.window("at", "1 hour"), "customer").agg(F.avg("amount"), F.min("kind"))


def sessions(events: DataFrame) -> DataFrame:
    return events.groupBy("customer", F.session_window("at", "10 minutes"), "kind").agg(F.sum("amount"))


def duplicates(events: DataFrame) -> DataFrame:
    return events.dropDuplicates(["customer", "at"])


def duplicates_for_a_while(events: DataFrame) -> DataFrame:
    return events.dropDuplicatesWithinWatermark(["customer", "kind"])


CASES = [
    (counts, Provider.HDFS, "lz4"),
    (counts, Provider.HDFS, "zstd"),
    (counts, Provider.ROCKSDB, "snappy"),
    (windows, Provider.HDFS, "snappy"),
    (windows, Provider.ROCKSDB, "zstd"),
    (sessions, Provider.HDFS, "zstd"),
    (sessions, Provider.ROCKSDB, "snappy"),
    (duplicates, Provider.HDFS, "lz4"),
    (duplicates_for_a_while, Provider.HDFS, "snappy"),
]


@pytest.mark.parametrize(
    ("query", "provider", "codec"), CASES, ids=[f"{q.__name__}-{p.name.lower()}-{c}" for q, p, c in CASES]
)
def test_the_rows_from_the_files_are_those_that_spark_says_the_state_has_after_every_batch(
    spark: SparkSession, tmp_path: Path, query: Callable[[DataFrame], DataFrame], provider: Provider, codec: str
) -> None:
    with settings(spark, provider, codec):
        for begin in (0, BATCHES):
            for number in range(begin, begin + BATCHES):
                _feed(tmp_path / "feed", number)
            _run(spark, tmp_path, query)
        reader = _Reader(tmp_path / "checkpoint", prefixed=query is sessions)
        sizes = []
        for batch in reader.checkpoint.commits():
            assert reader.after(batch) == _oracle(spark, tmp_path / "checkpoint", batch)
            sizes.append(len(reader.rows))
    assert len(sizes) >= 2 * BATCHES
    if query is not counts:
        assert any(later < earlier for earlier, later in pairwise(sizes)), "no row ever left the state"
    if provider is Provider.HDFS:
        _check_snapshots(reader, sizes)


def test_a_state_in_a_codec_that_cannot_be_read_is_refused_by_its_name(spark: SparkSession, tmp_path: Path) -> None:
    _feed(tmp_path / "feed", 0)
    with settings(spark, Provider.HDFS, "lzf"):
        _run(spark, tmp_path, counts)
    with pytest.raises(CheckpointInvalid, match=r"is lzf; lz4, zstd, snappy can be read .*1\.delta, byte 0"):
        _Reader(tmp_path / "checkpoint").after(0)


@pytest.mark.parametrize("codec", ["zstd", "snappy"])
@pytest.mark.parametrize("provider", list(Provider))
def test_a_flipped_bit_in_a_real_file_without_checksums_inside_is_found_by_those_beside_it(
    spark: SparkSession, tmp_path: Path, provider: Provider, codec: str
) -> None:
    """On local disk with both stores; with format v2 also where Hadoop's own checksums are not."""
    _feed(tmp_path / "feed", 0)
    with settings(spark, provider, codec):
        _run(spark, tmp_path, counts)
    suffix = "delta" if provider is Provider.HDFS else "changelog"
    [file] = (tmp_path / "checkpoint" / "state" / "0" / "0").glob(f"*.{suffix}")
    if provider is Provider.ROCKSDB:
        file.with_name(f".{file.name}.crc").unlink()
    content = file.read_bytes()
    for at_byte in range(0, len(content), 7):
        file.write_bytes(content[:at_byte] + bytes([content[at_byte] ^ 4]) + content[at_byte + 1 :])
        with pytest.raises(CheckpointInvalid):
            _Reader(tmp_path / "checkpoint").after(0)


class _Reader:
    """The state of operator 0, batch after batch, from the checkpoint's files."""

    def __init__(self, folder: Path, *, prefixed: bool = False) -> None:
        self.checkpoint, self._prefixed = Checkpoint(Storage.at(folder)), prefixed
        schema = read_schema(self.checkpoint.storage, 0)
        self._key, self._value = RowDecoder(schema.key), RowDecoder(schema.value)
        self._first, self._rest = RowDecoder(schema.key[:-1]), RowDecoder(schema.key[-1:])
        self.rows: Rows = {}

    def after(self, batch: int) -> Rows:
        for partition in range(PARTITIONS):
            for change in self._changes(batch, partition):
                self.apply(self.rows, change)
        return self.rows

    def from_snapshots(self, batch: int) -> tuple[Rows, list[int]]:
        """The state after a batch from the newest snapshots and what came later, and the versions of those."""
        rows: Rows = {}
        versions = []
        for partition in range(PARTITIONS):
            snapshot = newest_snapshot(self.checkpoint.storage, 0, partition, batch)
            for change in snapshot.rows() if snapshot else ():
                self.apply(rows, change)
            versions.append(snapshot.version if snapshot else 0)
            for later in range(versions[-1], batch + 1):
                for change in self._changes(later, partition):
                    self.apply(rows, change)
        return rows, versions

    def apply(self, rows: Rows, change: Change) -> None:
        if change.key_rest is None:
            key = self._key.decode(change.key)
        else:
            key = self._first.decode(change.key) + self._rest.decode(change.key_rest)
        if change.value is None:
            del rows[key]
        else:
            rows[key] = self._value.decode(change.value)

    def _changes(self, batch: int, partition: int) -> list[Change]:
        plan, commit = self.checkpoint.plan(batch), self.checkpoint.commit(batch)
        return read_batch_changes(self.checkpoint, plan, commit, 0, partition, prefixed=self._prefixed).changes


def _check_snapshots(reader: _Reader, sizes: list[int]) -> None:
    last = reader.checkpoint.commits()[-1]
    rows, versions = reader.from_snapshots(last)
    assert rows == reader.rows
    assert all(version > 1 for version in versions), "Spark wrote no snapshot"
    for version in versions:
        rows, _ = reader.from_snapshots(version - 1)
        assert len(rows) == sizes[version - 1]


@contextmanager
def settings(spark: SparkSession, provider: Provider, codec: str) -> Iterator[None]:
    """Settings of the shared session, for a while."""
    conf = {
        f"{STATE}.providerClass": provider.value,
        f"{STATE}.checkpointFormatVersion": "1" if provider is Provider.HDFS else "2",
        f"{STATE}.compression.codec": codec,
        f"{STATE}.minDeltasForSnapshot": "1",
        "spark.sql.shuffle.partitions": str(PARTITIONS),
    }
    before = {name: spark.conf.get(name, None) for name in conf}
    for name, value in conf.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            spark.conf.unset(name) if old is None else spark.conf.set(name, old)


def _feed(folder: Path, number: int) -> None:
    """One more batch; time goes on by two hours a batch, so that the watermark takes rows away."""
    draw = random.Random(number)
    start = datetime(2026, 1, 1) + timedelta(hours=2 * number)
    events = [
        {
            "customer": draw.choice(["emma", "oliver", None, "mia" * 9]),
            "kind": draw.choice([1, 2, None]),
            "amount": draw.choice([None, "0.05", "-3.33", "99999999999999999.99"]),
            "at": (start + timedelta(minutes=draw.randrange(90))).isoformat(),
        }
        for _ in range(12)
    ]
    folder.mkdir(exist_ok=True)
    hidden = folder / f".{number}"
    hidden.write_text("".join(json.dumps(event) + "\n" for event in events))
    os.utime(hidden, (time.time() - 1_000 + number,) * 2)  # the order in which Spark takes the files
    hidden.rename(folder / f"{number}.json")


def _run(spark: SparkSession, folder: Path, query: Callable[[DataFrame], DataFrame]) -> None:
    reader = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
    events = reader.json(str(folder / "feed"))
    watermarked = events if query is counts else events.withWatermark("at", "30 minutes")
    writer = query(watermarked).writeStream.format("noop").outputMode("update" if query is counts else "append")
    started = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    started.awaitTermination()


def _oracle(spark: SparkSession, checkpoint: Path, batch: int) -> Rows:
    reader = spark.read.format("statestore").option("batchId", str(batch))
    found = reader.load(str(checkpoint)).select("key", "value").toArrow().to_pylist()
    return {_plain(row["key"]): _plain(row["value"]) for row in found}


def _plain(value: Any) -> Any:
    """A value as the row decoder gives it."""
    match value:
        case Mapping():
            return tuple(map(_plain, value.values()))
        case list():
            return tuple(map(_plain, value))
        case datetime():
            return (value.replace(tzinfo=None) - datetime(1970, 1, 1)) // timedelta(microseconds=1)
    return value
