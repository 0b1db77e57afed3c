"""All events of a journal into Spark, against the same rows out of Parquet files; and what a condition spares."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from benchmarks.compare import Result, Side, compare
from stateside.journal import Event, JournalWriter
from stateside.pipeline.journal_source import FORMAT
from stateside.testing import session

EVENTS = 2_000_000
EVENTS_PER_APPEND = 10_000
TYPES = 10  # one after the other: each stands in a tenth of the journal


def run(folder: Path) -> Iterator[Result]:
    journal, parquet = folder / "journal", folder / "parquet"
    fill(journal)
    with session(folder / "spark") as spark:
        read(spark, journal).write.parquet(str(parquet))
        yield compare(
            f"reading all of {EVENTS:,} events into Spark",
            "rows/s",
            Side("journal", lambda: through(read(spark, journal)), others_do_it=True),
            Side("the same rows as Parquet", lambda: through(spark.read.parquet(str(parquet))), others_do_it=True),
        )
        one = f"type = 'type-{TYPES // 2}'"
        yield compare(
            f"reading one of {TYPES} types",
            "events/s",
            Side("with a condition", lambda: through(read(spark, journal).where(one)), others_do_it=True),
            Side("all of them", lambda: through(read(spark, journal)), others_do_it=True),
        )


def read(spark: SparkSession, journal: Path) -> DataFrame:
    return spark.read.format(FORMAT).option("path", str(journal)).load()


def through(frame: DataFrame) -> int:
    """All rows, with all columns, into the JVM; of the journal's events so many are dealt with."""
    frame.write.format("noop").mode("overwrite").save()
    return EVENTS


def fill(folder: Path) -> None:
    with JournalWriter(folder, segment_bytes_max=16 << 20) as writer:
        for first in range(0, EVENTS, EVENTS_PER_APPEND):
            type_ = f"type-{first * TYPES // EVENTS}"
            numbers = range(first, first + EVENTS_PER_APPEND)
            writer.append([Event(f"e{n}", f"k{n * 7919 % 50_000}", type_, n, {"amount_micros": n}) for n in numbers])
