"""The journal as a Spark source, through the Python Data Source API: offsets are positions, rows come as Arrow.

    spark.dataSource.register(JournalSource)
    events = spark.readStream.format("stateside-journal").option("path", …).option("fields", "amount_micros long").load()

Columns: the event's own (`offset`, `id`, `entity`, `type`, `time`, `appended`, `tags`, `payload`), then the payload's
fields that the option `fields` names with their types. The life of a source reads top down in `JournalStreamReader`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from stateside.errors import ViewInvalid
from stateside.journal import Journal
from stateside.journal.payload import payload_columns
from stateside.journal.segment import DurableEnd
from stateside.journal.writer import PARTITION

FORMAT = "stateside-journal"
ENVELOPE = (
    "offset long, id string, entity string, type string, time timestamp, appended timestamp, "
    "tags array<string>, payload string"
)
EVENTS_PER_BATCH_MAX = 1_000_000
EVENTS_PER_PARTITION_MIN = 20_000  # fewer are not worth a second task
PARTITIONS_MAX = 8
MARKS_MAX = 64


class JournalSource(DataSource):
    """What Spark knows the journal as. Options: `path`, `fields` (DDL), `eventsPerBatchMax`."""

    @classmethod
    def name(cls) -> str:
        """The name for `format(…)`."""
        return FORMAT

    def schema(self) -> StructType:
        """The envelope's columns and then the payload's fields."""
        return StructType(StructType.fromDDL(ENVELOPE).fields + self._fields().fields)

    def streamReader(self, schema: StructType) -> JournalStreamReader:
        """Called by Spark once a query, on the driver, and shipped to the tasks."""
        limit = int(self.options.get("eventsPerBatchMax", EVENTS_PER_BATCH_MAX))
        return JournalStreamReader(Path(self.options["path"]), self._fields(), limit)

    def _fields(self) -> StructType:
        fields = StructType.fromDDL(self.options.get("fields", ""))
        clashes = set(fields.names) & set(StructType.fromDDL(ENVELOPE).names)
        if clashes:
            raise ViewInvalid(
                f"The payload field {min(clashes)!r} has the name of a column that every event has",
                next_step="Leave it out of the fields, or give the payload's field another name",
            )
        return fields


@dataclass
class OffsetRange(InputPartition):
    """One task's share: the events with start <= offset < stop, and a mark at or before them."""

    start: int
    stop: int
    mark: DurableEnd | None


class JournalStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batches on the driver and reads them in the tasks."""

    def __init__(self, directory: Path, fields: StructType, events_per_batch_max: int) -> None:
        self._journal = Journal(directory)
        self._fields = to_arrow_schema(fields, timezone="UTC")
        self._limit = events_per_batch_max
        self._stop_at: int | None = None
        self._marks: deque[DurableEnd] = deque(maxlen=MARKS_MAX)

    def initialOffset(self) -> dict[str, int]:
        """A new query starts at the journal's start."""
        return {PARTITION: 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        """So many events a batch at most."""
        return ReadMaxRows(self._limit)

    def prepareForTriggerAvailableNow(self) -> None:
        """Everything durable now is to be read, nothing that comes later."""
        self._stop_at = self._journal.end()[PARTITION]

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """Where the next batch ends: the durable end, or as far as the limit allows."""
        end = self._journal.durable_end()
        self._marks.append(end)
        offset = end.offset if self._stop_at is None else min(self._stop_at, end.offset)
        if isinstance(limit, ReadMaxRows):
            offset = min(offset, start[PARTITION] + limit.max_rows)
        else:
            assert isinstance(limit, ReadAllAvailable), limit
        return {PARTITION: max(offset, start[PARTITION])}

    def reportLatestOffset(self) -> dict[str, int]:
        """The durable end, for Spark's progress reports."""
        return {PARTITION: self._journal.end()[PARTITION]}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """The batch's range in equal parts, as many as are worth a task each."""
        first, last = start[PARTITION], end[PARTITION]
        count = min(PARTITIONS_MAX, max(1, (last - first) // EVENTS_PER_PARTITION_MIN))
        edges = [first + (last - first) * part // count for part in range(count + 1)]
        return [OffsetRange(a, b, self._mark_before(a)) for a, b in zip(edges, edges[1:], strict=False) if a < b]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of one task's share, as Arrow record batches."""
        assert isinstance(partition, OffsetRange)
        for first, batch in self._journal.batches(partition.start, partition.stop, partition.mark):
            yield from _with_fields(first, batch, self._fields)

    def _mark_before(self, offset: int) -> DurableEnd | None:
        return max((mark for mark in self._marks if mark.offset <= offset), key=lambda mark: mark.offset, default=None)


def _with_fields(first: int, batch: pa.RecordBatch, fields: pa.Schema) -> list[pa.RecordBatch]:
    """The batch with the offsets in front and the payload's fields behind."""
    table = pa.Table.from_batches([batch])
    table = table.add_column(0, "offset", pa.array(np.arange(first, first + batch.num_rows)))
    for name, column in zip(fields.names, payload_columns(batch.column("payload"), fields).columns, strict=True):
        table = table.append_column(name, column)
    return table.combine_chunks().to_batches()
