"""Billing on Kafka: `stateside run stateside.billing.pipeline.on_kafka:app`, in a folder whose journal is a topic.

Spark's own connector reads the topic, and messages become events as for any view (`sources.kafka_journal`). Python
workers then rate the events with the same rater as on files, and with the same book, read by each worker from the
topic.

The topic has one partition: plans and assignments rate the events after them, so there must be one order. Tasks still
split a batch's range of the partition.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from stateside.billing.pipeline import application, bill
from stateside.billing.pipeline.source import ROWS_PER_TABLE, Rater
from stateside.billing.rating.rating import events_of
from stateside.core.errors import JournalCorrupt
from stateside.journal import Log, open_journal
from stateside.journal.backends.kafka import topic_of
from stateside.pipeline import Reading, kafka_journal, spark_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_COLUMNS = ("offset", "id", "entity", "type", "time", "appended", "payload", "_malformed")


@dataclass(frozen=True, slots=True)
class RatedTopic:
    """All counted events of the folder's topic, and clock ticks, with the columns of a `Rater`."""

    with_ids: bool = True

    needs_jars: ClassVar[tuple[str, ...]] = ("kafka",)

    def load(self, session: SparkSession, reading: Reading) -> DataFrame:
        """The rows, without a watermark. JournalAway if the folder's journal is no topic."""
        topic = topic_of(reading.journal)
        _journal(reading.journal).end()  # refuses a topic with several partitions before the first batch
        options = {**spark_options(topic.options), "maxRecordsPerPartition": str(ROWS_PER_TABLE)}
        source = kafka_journal(topic.servers, topic.name, options=options, dead_letters=False)  # rating makes its own
        events = source.load(session, reading).select(*_COLUMNS)
        assert reading.places is not None, "a view reads"
        rating = Rating(Rater(reading.journal, reading.places.root, self.with_ids))
        return events.mapInArrow(rating.rows, rating.rater.columns)


@dataclass(frozen=True, slots=True)
class Rating:
    """The function by which Python workers rate the connector's rows of one range of the topic."""

    rater: Rater

    def rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rated rows. JournalCorrupt at a malformed message, as from every reader of the journal."""
        tables = (self._events(batch) for batch in batches if batch.num_rows)
        return self.rater.rated(tables, _journal(self.rater.journal).id())

    def _events(self, batch: pa.RecordBatch) -> pa.Table:
        offsets = batch.column("offset").to_numpy()
        bad = pc.indices_nonzero(batch.column("_malformed"))
        if len(bad):
            raise JournalCorrupt(
                f"The message at offset {offsets[bad[0].as_py()]} of partition 0 is no event",
                where=str(self.rater.journal),
                next_step="Find out who sent it: only the journal's owner may write to the topic",
            )
        return events_of(batch, offsets)


@lru_cache(1)
def _journal(folder: Path) -> Log:
    """The journal, one per process: it keeps its connections from batch to batch."""
    return open_journal(folder).log()


app = application(bill, source=RatedTopic())
