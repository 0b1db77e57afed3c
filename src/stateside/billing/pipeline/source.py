"""The journal as a Spark source of rated events: the task that reads a range also rates it.

Rating with `mapInArrow` would give the same rows, but send every event with all of its columns to the JVM and back to
Python once more: writing the columns for Python alone took an eighth of the JVM's time.

A Python worker lives through many batches, and caches the book of plans and assignments. Any book that covers the
events gives the same rows, because only the reference data before an event rate it. So a batch that is run again gives
the same rows and the same reports (`rating.reports`).
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
from stateside.billing.rating.rating import events_of, joined, rate
from stateside.billing.rating.reports import RatingReport, reports_of
from stateside.core import ViewLayout
from stateside.journal import DurableEnd, open_journal
from stateside.pipeline import JournalEvents, JournalSource, JournalStreamReader, OffsetRange, Reading

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS_PER_TABLE = 100_000  # rated and sorted at a time: some 20 MB
_KEEPERS_MAX = 4  # applications that share a session; usually one
_COLUMNS = (
    "customer string, type string, time timestamp, quantity long, plan string, time_zone string, cycle string, "
    "anchor_day int"
)


@dataclass(frozen=True, slots=True)
class Rater:
    """Rates the journal's events; returns counted events and clock ticks as rows with the columns `columns`.

    With ids, rows keep the journal's order, because the first event of an id counts. Without ids, rows are sorted by
    customer, about 100,000 at a time, so that accesses to neighbouring groups of the state are adjacent.
    """

    journal: Path
    view: Path  # the view's folder, with snapshots of the book and reports
    with_ids: bool

    @property
    def columns(self) -> str:
        """The columns of the rows, as DDL."""
        return f"id string, {_COLUMNS}" if self.with_ids else _COLUMNS

    def rows(self, start: int, stop: int, mark: DurableEnd | None = None) -> Iterator[pa.RecordBatch]:
        """The rows of one task's range; `mark` as in `Journal.batches`."""
        journal = open_journal(self.journal).log()
        batches = journal.batches(start, stop, mark)
        tables = (events_of(batch, np.arange(first, first + batch.num_rows)) for first, batch in batches)
        yield from self.rated(tables, journal.id())

    def rated(self, tables: Iterator[pa.Table], journal_id: str | None) -> Iterator[pa.RecordBatch]:
        """The rows of consecutive events from the journal with this id; tables as from `events_of`."""
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
    """One keeper per process. Another journal in the same folder has another id, and so another keeper."""
    return BookKeeper(open_journal(journal).log(), book)


def _larger(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """The same rows in larger tables: each call of a vectorised function has a fixed cost."""
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
    """All counted events of the journal, and clock ticks, with the columns of a `Rater`."""

    with_ids: bool = True

    def load(self, session: SparkSession, reading: Reading) -> DataFrame:
        """The rows, without a watermark."""
        session.dataSource.register(RatedSource)
        assert reading.places is not None, "a view reads"
        options = {**self.options(reading), _VIEW: str(reading.places.root), _WITH_IDS: str(self.with_ids).lower()}
        return session.readStream.format(FORMAT).options(**options).load()


class RatedSource(JournalSource):
    """The data source registered with Spark. Options: the journal source's, `view` (a folder) and `withIds`."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return _rater(self.options).columns

    def streamReader(self, schema: StructType) -> JournalStreamReader:  # noqa: N802
        return RatedReader(schema, self.options)


class RatedReader(JournalStreamReader):
    """Plans batches like the journal's reader; reads rated rows."""

    def __init__(self, schema: StructType, options: Mapping[str, str]) -> None:
        super().__init__(schema, options)
        self._rater = _rater(options)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rated rows of one task's range."""
        assert isinstance(partition, OffsetRange)
        for rows in self._rater.rows(partition.start, partition.stop, partition.mark):
            yield pa.RecordBatch.from_arrays(rows.columns, schema=self._schema)


def _rater(options: Mapping[str, str]) -> Rater:
    return Rater(Path(options["path"]), Path(options[_VIEW]), options[_WITH_IDS] == "true")
