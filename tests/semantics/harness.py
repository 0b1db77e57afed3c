"""What the tests of Spark's semantics share: the session's settings, a feed of batches, and a runner of queries."""

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from .checkpoint_files import Checkpoint

_STREAMING = "spark.sql.streaming"
_EXECUTION = "org.apache.spark.sql.execution.streaming"

SPARK_CONF = {
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    f"{_STREAMING}.checkpointFileManagerClass": f"{_EXECUTION}.checkpointing.FileSystemBasedCheckpointFileManager",
    f"{_STREAMING}.stateStore.providerClass": f"{_EXECUTION}.state.RocksDBStateStoreProvider",
    f"{_STREAMING}.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    f"{_STREAMING}.stateStore.checkpointFormatVersion": "2",
    # The first query of a JVM starts the maintenance thread with its own interval; snapshots are written by it.
    f"{_STREAMING}.stateStore.maintenanceInterval": "500ms",
}


def start_session(name: str) -> SparkSession:
    """A session of this process with the settings above, silent."""
    builder = SparkSession.builder.master("local[2]").appName(name)
    for key, value in SPARK_CONF.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    return session


class Feed:
    """A folder of JSON files that a stream reads in the order in which they were added, one file a batch.

    Times are milliseconds since the epoch (`at_ms`), so that a test can place a row to the millisecond.
    """

    SCHEMA = "id string, customer string, kind string, amount long, at_ms long"

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self._spark = spark
        self._count = 0
        self._first_mtime_s = time.time() - 3600

    def add(self, *rows: dict[str, Any]) -> None:
        """Add the rows of one more batch."""
        hidden = self.folder / f".{self._count}"
        hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
        mtime_s = self._first_mtime_s + self._count
        os.utime(hidden, (mtime_s, mtime_s))  # the order in which Spark takes the files
        hidden.rename(self.folder / f"{self._count}.json")
        self._count += 1

    def stream(self) -> DataFrame:
        reader = self._spark.readStream.schema(self.SCHEMA).option("maxFilesPerTrigger", 1)
        return reader.json(str(self.folder)).selectExpr("*", "timestamp_millis(at_ms) AS at")


class Lab:
    """Runs streaming queries on one checkpoint folder: every `run` is a start or a restart."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.checkpoint = Checkpoint(folder / "checkpoint")

    def run(self, stream: DataFrame, mode: str = "append") -> dict[int, list[Row]]:
        """Run all batches that are due, then stop. Returns the rows that each batch emitted."""
        emitted: dict[int, list[Row]] = {}
        self.run_into(lambda frame, batch: emitted.update({batch: frame.collect()}), stream, mode)
        return emitted

    def run_into(
        self, sink: Callable[[DataFrame, int], Any], stream: DataFrame, mode: str = "append"
    ) -> StreamingQuery:
        """The same with the test's own `foreachBatch`. Raises what the query ended with."""
        writer = stream.writeStream.foreachBatch(sink).outputMode(mode).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(self.checkpoint.path)).start()
        query.awaitTermination()
        return query

    @contextmanager
    def conf(self, settings: dict[str, str]) -> Iterator[None]:
        """Change settings of the shared session for the queries started inside."""
        before = {key: self.spark.conf.get(key, None) for key in settings}
        for key, value in settings.items():
            self.spark.conf.set(key, value)
        try:
            yield
        finally:
            for key, old in before.items():
                self.spark.conf.unset(key) if old is None else self.spark.conf.set(key, old)

    def state(self) -> DataFrame:
        """The state of the last committed batch as Spark itself reads it: `key`, `value`, `partition_id`."""
        return self.spark.read.format("statestore").load(str(self.checkpoint.path))


def wait_until(condition: Callable[[], bool], timeout_s: float) -> float:
    """Wait, and say how long it took. Fails when the time is over."""
    start_s = time.monotonic()
    while not condition():
        assert time.monotonic() - start_s < timeout_s, f"not true within {timeout_s} s"
        time.sleep(0.02)
    return time.monotonic() - start_s
