"""Real state files that Spark wrote in other codecs than lz4: those that cannot be read, and damaged ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from stateside.core.errors import CheckpointInvalid
from stateside.core.storage import Storage
from stateside.spark_state.batch_log import Checkpoint
from stateside.spark_state.provider import Provider, read_batch_changes
from tests.spark_settings import stored

pytestmark = pytest.mark.spark


def test_a_state_in_a_codec_that_cannot_be_read_is_refused_by_its_name(spark: SparkSession, tmp_path: Path) -> None:
    with stored(spark, Provider.HDFS, "lzf"):
        run(spark, tmp_path)
    with pytest.raises(CheckpointInvalid, match=r"is lzf; lz4, zstd, snappy can be read .*1\.delta, byte 0"):
        read(tmp_path)


@pytest.mark.parametrize("codec", ["zstd", "snappy"])
@pytest.mark.parametrize("provider", list(Provider))
def test_a_flipped_bit_in_a_real_file_without_checksums_inside_is_found_by_those_beside_it(
    spark: SparkSession, tmp_path: Path, provider: Provider, codec: str
) -> None:
    """On local disk with both stores; with format v2 also where Hadoop's own checksums are not."""
    with stored(spark, provider, codec):
        run(spark, tmp_path)
    suffix = "delta" if provider is Provider.HDFS else "changelog"
    [file] = (tmp_path / "checkpoint" / "state" / "0" / "0").glob(f"*.{suffix}")
    if provider is Provider.ROCKSDB:
        file.with_name(f".{file.name}.crc").unlink()
    content = file.read_bytes()
    for at_byte in range(0, len(content), 7):
        file.write_bytes(content[:at_byte] + bytes([content[at_byte] ^ 4]) + content[at_byte + 1 :])
        with pytest.raises(CheckpointInvalid):
            read(tmp_path)


def run(spark: SparkSession, folder: Path) -> None:
    """One batch of a count by two columns."""
    (folder / "events").mkdir()
    (folder / "events" / "0.csv").write_text("".join(f"customer {number % 9},{number % 2}\n" for number in range(40)))
    events = spark.readStream.schema("customer string, kind int").csv(str(folder / "events"))
    writer = events.groupBy("customer", "kind").count().writeStream.format("noop").outputMode("update")
    started = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    started.awaitTermination()


def read(folder: Path) -> None:
    """Read what batch 0 changed in partition 0."""
    checkpoint = Checkpoint(Storage.at(folder / "checkpoint"))
    list(read_batch_changes(checkpoint, checkpoint.plan(0), checkpoint.commit(0), 0, 0).changes)
