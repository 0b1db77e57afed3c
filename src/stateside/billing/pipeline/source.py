"""The journal as a Spark source whose rows are rated events: the task that reads them rates them.

A function that Spark calls (`mapInArrow`) would do as well, but then every event goes to the JVM and back to Python
once more, with all of its columns: writing them for Python alone was an eighth of the JVM's time.

Rating inside of Spark's Python workers: rows out of the journal's batches, made where these are read.

A worker lives through many batches, and keeps the book of plans and assignments from one to the next. Which book it has
makes no difference: it covers all that stands before the events, and an event is rated by that alone. So a batch that
is run again gives the same rows, and the reports on it (`rating.reports`) say the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from stateside.billing.book.book import BookKeeper
from stateside.billing.model import VIEW
from stateside.billing.rating.rating import events_of, joined, rate
from stateside.billing.rating.reports import RatingReport, reports_of
from stateside.core.layout import Layout, ViewLayout
from stateside.journal import Journal
from stateside.journal.folder import open_journal
from stateside.journal.segment import DurableEnd
from stateside.pipeline.journal_source import JournalSource, JournalStreamReader, OffsetRange
from stateside.pipeline.sources import JournalEvents, Reading

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS_PER_TABLE = 100_000  # rated and sorted at a time: some 20 MB
_KEEPERS_MAX = 4  # of applications that share a session; one is the rule
_COLUMNS = (
    "customer string, type string, time timestamp, quantity long, plan string, time_zone string, cycle string, "
    "anchor_day int"
)


@dataclass(frozen=True, slots=True)
class Rater:
    """Rates the journal's events; gives those that count, and ticks of the clock, as rows with the columns `columns`.

    With ids the rows keep the journal's order, in which the first event of an id counts. Without, they come out sorted
    by customer, some hundred thousand at a time: groups of the state that lie together are then asked for together.
    """

    journal: Path
    view: Path  # the folder of the view: snapshots of the book are there, and reports go there
    with_ids: bool

    @property
    def columns(self) -> str:
        """The columns of the rows, as DDL."""
        return f"id string, {_COLUMNS}" if self.with_ids else _COLUMNS

    def rows(self, start: int, stop: int, mark: DurableEnd | None = None) -> Iterator[pa.RecordBatch]:
        """The rows of a range, which one task reads; `mark` as of `Journal.batches`."""
        journal = Journal(self.journal)
        batches = journal.batches(start, stop, mark)
        tables = (events_of(batch, np.arange(first, first + batch.num_rows)) for first, batch in batches)
        yield from self.rated(tables, journal.id())

    def rated(self, tables: Iterator[pa.Table], journal_id: str | None) -> Iterator[pa.RecordBatch]:
        """The rows of events that follow one another in the journal of this id, as `events_of` has them."""
        assert journal_id is not None, "a range has events of a journal"
        keeper, reports = _keeper(self.journal, journal_id, self.view / "book"), reports_of(ViewLayout(self.view))
        for events in _larger(tables):
            book = keeper.at(pc.max(events["offset"]).as_py() + 1)
            rated = rate(events, book)
            reports.write(RatingReport.of(rated, book), journal_id)
            yield from self._counted(rated).combine_chunks().to_batches()

    def _counted(self, rated: pa.Table) -> pa.Table:
        counted = rated.filter(pc.is_null(rated["reason"])) if rated["reason"].null_count < len(rated) else rated
        rows = counted.select([column.split()[0] for column in self.columns.split(", ")])
        return rows if self.with_ids else rows.sort_by("customer")


@lru_cache(_KEEPERS_MAX)
def _keeper(journal: Path, journal_id: str, book: Path) -> BookKeeper:
    """The one of this process. Another journal in the same place has another id, and a book of its own."""
    return BookKeeper(open_journal(journal), book)


def _larger(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """The same in tables of many rows: each call of a vectorised function has its price."""
    waiting: list[pa.Table] = []
    rows = 0
    for table in tables:
        waiting.append(table)
        rows += table.num_rows
        if rows >= ROWS_PER_TABLE:
            yield joined(waiting)
            waiting, rows = [], 0
    if rows:
        yield joined(waiting)


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
