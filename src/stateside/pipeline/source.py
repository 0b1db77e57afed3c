"""The journal as a Spark source, through the Python Data Source API: offsets are positions, rows come as Arrow.

    spark.dataSource.register(JournalSource)
    events = spark.readStream.format("stateside-journal").option("path", …).option("fields", "cents long").load()

Columns: the event's own (`offset`, `id`, `entity`, `type`, `time`, `appended`, `tags`, `payload`), then the payload's
fields that the option `fields` names with their types. The life of a source reads top down in `JournalStreamReader`.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from stateside.errors import PositionInvalid
from stateside.journal import Journal
from stateside.journal.payload import check_fields, payload_columns
from stateside.journal.segment import DurableEnd
from stateside.journal.writer import PARTITION
from stateside.pipeline.sources import EVENTS_PER_BATCH_MAX, JOURNAL_FORMAT
from stateside.positions import Position

FORMAT = JOURNAL_FORMAT
JOURNAL = "journal"  # in an offset, beside the position: which journal it is a position of
ENVELOPE = (
    "offset long, id string, entity string, type string, time timestamp, appended timestamp, "
    "tags array<string>, payload string"
)
ENVELOPE_NAMES = tuple(column.split()[0] for column in ENVELOPE.split(", "))
EVENTS_PER_PARTITION_MIN = 20_000  # fewer are not worth a second task
PARTITIONS_MAX = 8
MARKS_MAX = 64


Offset = dict[str, int | str]


class JournalSource(DataSource):
    """What Spark knows the journal as.

    Options: `path`, `fields` (DDL), `types` and `tags` (JSON lists: only events of these), `eventsPerBatchMax`,
    `stopAt` (a position), `pauseFile` (while it exists no new batch is planned).
    """

    @classmethod
    def name(cls) -> str:
        """The name for `format(…)`."""
        return FORMAT

    def schema(self) -> str:
        """The envelope's columns and then the payload's fields, as DDL: there is no JVM here to parse it."""
        return ", ".join(filter(None, (ENVELOPE, self.options.get("fields"))))

    def streamReader(self, schema: StructType) -> JournalStreamReader:
        """Called by Spark once a query, on the driver, and shipped to the tasks."""
        return JournalStreamReader(schema, self.options)


@dataclass
class OffsetRange(InputPartition):
    """One task's share: the events with start <= offset < stop, and a mark at or before them."""

    start: int
    stop: int
    mark: DurableEnd | None


class JournalStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batches on the driver and reads them in the tasks."""

    def __init__(self, schema: StructType, options: Mapping[str, str]) -> None:
        self._journal = Journal(Path(options["path"]))
        self._schema = to_arrow_schema(schema, timezone="UTC")
        check_fields(self._schema)
        self._limit = int(options.get("eventsPerBatchMax", EVENTS_PER_BATCH_MAX))
        self._stop_at = Position.parse(options["stopAt"])[PARTITION] if "stopAt" in options else None
        self._pause_file = Path(options["pauseFile"]) if "pauseFile" in options else None
        self._types = json.loads(options["types"]) if "types" in options else None
        self._tags = json.loads(options["tags"]) if "tags" in options else None
        self._marks: deque[DurableEnd] = deque(maxlen=MARKS_MAX)

    def initialOffset(self) -> Offset:
        """A new query starts at the journal's start."""
        return {PARTITION: 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        """So many events a batch at most."""
        return ReadMaxRows(self._limit)

    def prepareForTriggerAvailableNow(self) -> None:
        """Everything durable now is to be read, nothing that comes later."""
        end = self._journal.end()[PARTITION]
        self._stop_at = end if self._stop_at is None else min(end, self._stop_at)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Where the next batch ends: the durable end, or as far as the limit allows."""
        self._check_journal(start)
        if self._pause_file is not None and self._pause_file.exists():
            return start
        end = self._journal.durable_end()
        self._marks.append(end)
        first = int(start[PARTITION])
        last = end.offset if self._stop_at is None else min(self._stop_at, end.offset)
        if isinstance(limit, ReadMaxRows):
            last = min(last, first + limit.max_rows)
        else:
            assert isinstance(limit, ReadAllAvailable), limit
        return self._offset(last) if last > first else start

    def reportLatestOffset(self) -> Offset:
        """The durable end, for Spark's progress reports."""
        return self._offset(self._journal.end()[PARTITION])

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """The batch's range in equal parts, as many as are worth a task each."""
        self._check_journal(end)  # a batch that is run again after a restart comes here first
        first, last = int(start[PARTITION]), int(end[PARTITION])
        count = min(PARTITIONS_MAX, max(1, (last - first) // EVENTS_PER_PARTITION_MIN))
        edges = [first + (last - first) * part // count for part in range(count + 1)]
        return [OffsetRange(a, b, self._mark_before(a)) for a, b in pairwise(edges) if a < b]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of one task's share, as Arrow record batches."""
        assert isinstance(partition, OffsetRange)
        for first, batch in self._journal.batches(partition.start, partition.stop, partition.mark):
            yield from _rows(first, batch, self._schema, self._wanted(batch))

    def _wanted(self, batch: pa.RecordBatch) -> pa.Array | None:
        """Which events are read; None for all."""
        wanted = None
        if self._types is not None:
            wanted = pc.is_in(batch.column("type"), pa.array(self._types, pa.string()))
        if self._tags is not None:
            tagged = _has_any(batch.column("tags"), self._tags)
            wanted = tagged if wanted is None else pc.and_(wanted, tagged)
        return wanted

    def _offset(self, offset: int) -> Offset:
        return {PARTITION: offset, JOURNAL: self._journal.id() or ""}

    def _check_journal(self, offset: Offset) -> None:
        """Refuse to go on in another journal than the one that the query has read so far, or in a shorter one."""
        found, expected, end = self._journal.id(), offset.get(JOURNAL), self._journal.end()[PARTITION]
        if expected is not None and (found != expected or end < int(offset[PARTITION])):
            raise PositionInvalid(
                f"This query has read journal {expected} up to {offset[PARTITION]}; here is {found}, up to {end}",
                where=str(self._journal.directory),
                next_step="Bring the right journal back, or run the view on a new folder",
            )

    def _mark_before(self, offset: int) -> DurableEnd | None:
        return max((mark for mark in self._marks if mark.offset <= offset), key=lambda mark: mark.offset, default=None)


def _has_any(lists: pa.ListArray, wanted: Sequence[str]) -> pa.Array:
    """For each list, whether it has any of the wanted texts."""
    parents = pc.list_parent_indices(lists).filter(pc.is_in(pc.list_flatten(lists), pa.array(wanted, pa.string())))
    return pc.is_in(pa.array(np.arange(len(lists))), parents)


def _rows(first: int, batch: pa.RecordBatch, schema: pa.Schema, wanted: pa.Array | None) -> list[pa.RecordBatch]:
    """The batch as Spark wants it: the offsets in front, the payload's fields behind, types to the letter."""
    fields = pa.schema([schema.field(index) for index in range(len(ENVELOPE_NAMES), len(schema))])
    offsets = pa.array(np.arange(first, first + batch.num_rows))
    if wanted is not None:
        offsets, batch = offsets.filter(wanted), batch.filter(wanted)
    envelope = (batch.column(name) for name in ENVELOPE_NAMES[1:])
    columns = [offsets, *envelope, *payload_columns(batch.column("payload"), fields).columns]
    return list(pa.Table.from_arrays(columns, names=schema.names).cast(schema).combine_chunks().to_batches())
