"""The journal as a Spark source, through the Python Data Source API: offsets are positions, rows come as Arrow.

    spark.dataSource.register(JournalSource)
    events = spark.readStream.format("stateside-journal").option("path", …).option("fields", "cents long").load()
    events = spark.read.format("stateside-journal").option("path", …).option("start", "0:100").load()

Columns: the event's own (`offset`, `id`, `entity`, `type`, `time`, `appended`, `tags`, `payload`), those that the
option `columns` names, then the payload's fields that the option `fields` names with their types. `stream_reader` has
the life of a stream, `batch_reader` the reading of a range, `pushed` which conditions of a query spare reading.
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from stateside.pipeline.batch_reader import JournalBatchReader
from stateside.pipeline.event_rows import chosen_columns, ddl
from stateside.pipeline.sources import JOURNAL_FORMAT
from stateside.pipeline.stream_reader import JournalStreamReader

FORMAT = JOURNAL_FORMAT


class JournalSource(DataSource):
    """What Spark knows the journal as.

    Options of both: `path` (a journal, or a folder of nodes with its merged stream), `start` (a position, or `begin`:
    at the first event that is there), `fields` (DDL), `columns` (`event_rows.CHOSEN`, separated by commas), `types` and
    `tags` (JSON lists: only events of these), `refused` (a folder: events that do not fit the fields go there, and not
    to the query) with `futureUsMax` (and events dated so far beyond their append time) and `times` (a JSON list: fields
    that may lie no further ahead, either). Of a batch: `end` (a position). Of a stream: `eventsPerBatchMax`, `stopAt`
    (a position), `pauseFile` (while it exists no new batch is planned); there `start` is a new query's.
    """

    @classmethod
    def name(cls) -> str:
        """The name for `format(…)`."""
        return FORMAT

    def schema(self) -> str:
        """All columns."""
        return ddl(chosen_columns(self.options.get("columns")), self.options.get("fields"))

    def streamReader(self, schema: StructType) -> JournalStreamReader:
        """Called by Spark once a query, on the driver, and shipped to the tasks."""
        return JournalStreamReader(schema, self.options)

    def reader(self, schema: StructType) -> JournalBatchReader:
        """Called by Spark for each execution, on the driver, and shipped to the tasks."""
        return JournalBatchReader(schema, self.options)
