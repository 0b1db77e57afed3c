"""The journal as a Spark source whose rows are rated events: the task that reads them rates them.

A function that Spark calls (`mapInArrow`) would do as well, but then every event goes to the JVM and back to Python
once more, with all of its columns: writing them for Python alone was an eighth of the JVM's time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from stateside.billing.model import VIEW
from stateside.billing.pipeline.rater import Rater
from stateside.layout import Layout
from stateside.pipeline.event_reader import OffsetRange
from stateside.pipeline.source import JournalSource
from stateside.pipeline.sources import JournalEvents, Reading
from stateside.pipeline.stream_reader import JournalStreamReader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMAT = "stateside-rated-journal"
_VIEW, _WITH_IDS = "view", "withIds"


@dataclass(frozen=True, slots=True)
class RatedEvents(JournalEvents):
    """All events of the journal that count, and ticks of the clock, as the columns of a `Rater`."""

    with_ids: bool = True

    def load(self, session: SparkSession, reading: Reading) -> DataFrame:
        """The rows, with the watermark still to be set."""
        session.dataSource.register(RatedSource)
        view = Layout(reading.journal.parent).view(VIEW).root
        options = {**self.options(reading), _VIEW: str(view), _WITH_IDS: str(self.with_ids).lower()}
        return session.readStream.format(FORMAT).options(**options).load()


class RatedSource(JournalSource):
    """What Spark knows it as. Options: those of the journal's source, `view` (its folder) and `withIds`."""

    @classmethod
    def name(cls) -> str:
        """The name for `format(…)`."""
        return FORMAT

    def schema(self) -> str:
        """The rater's columns."""
        return _rater(self.options).columns

    def streamReader(self, schema: StructType) -> JournalStreamReader:  # noqa: N802
        """The journal's own reader, but for the rows."""
        return RatedReader(schema, self.options)


class RatedReader(JournalStreamReader):
    """Plans batches as the journal's reader does."""

    def __init__(self, schema: StructType, options: Mapping[str, str]) -> None:
        super().__init__(schema, options)
        self._rater = _rater(options)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of one task's share, rated."""
        assert isinstance(partition, OffsetRange)
        for rows in self._rater.rows(partition.start, partition.stop, partition.mark):
            yield pa.RecordBatch.from_arrays(rows.columns, schema=self._schema)


def _rater(options: Mapping[str, str]) -> Rater:
    return Rater(Path(options["path"]), Path(options[_VIEW]), options[_WITH_IDS] == "true")
