"""Rating inside of Spark's Python workers: the function that `mapInArrow` is given.

A worker lives through many batches, and keeps the book of plans and assignments from one to the next. Which book it has
makes no difference: it covers all that stands before the events, and an event is rated by that alone. So a batch that
is run again gives the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from stateside.billing.book.book import BookKeeper
from stateside.billing.rating.rating import rate
from stateside.journal import Journal

ROWS_PER_TABLE = 100_000  # rated and sorted at a time: some 20 MB
_KEEPERS_MAX = 4  # of applications that share a session; one is the rule

IN = ("offset", "id", "entity", "type", "time", "appended", "quantity", "name", "currency")
OUT = (
    "id string, customer string, type string, time timestamp, quantity long, plan string, time_zone string, "
    "cycle string, anchor_day int"
)


@dataclass(frozen=True, slots=True)
class Rater:
    """Rates record batches of events with the columns `IN`; gives those that count, and ticks of the clock, as `OUT`.

    With `by_customer` rows come out sorted, some hundred thousand at a time: groups of the state that lie together are
    then asked for together. Without it they keep the journal's order, in which the first event of an id counts.
    """

    journal: Path
    book: Path
    by_customer: bool

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """What Spark calls for each partition of a batch."""
        keeper = _keeper(self.journal, Journal(self.journal).id(), self.book)
        for events in _tables(batches):
            rated = rate(events, keeper.at(pc.max(events["offset"]).as_py() + 1))
            counted = _counted(rated)
            yield from (counted.sort_by("customer") if self.by_customer else counted).combine_chunks().to_batches()


@lru_cache(_KEEPERS_MAX)
def _keeper(journal: Path, journal_id: str | None, book: Path) -> BookKeeper:
    """The one of this process. Another journal in the same place has another id, and a book of its own."""
    return BookKeeper(Journal(journal), book)


def _counted(rated: pa.Table) -> pa.Table:
    counted = rated.filter(pc.is_null(rated["reason"])) if rated["reason"].null_count < len(rated) else rated
    return counted.select(_OUT_NAMES)


def _tables(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The batches in tables of many rows: each call of a vectorised function has its price."""
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        waiting.append(batch)
        rows += batch.num_rows
        if rows >= ROWS_PER_TABLE:
            yield pa.Table.from_batches(waiting)
            waiting, rows = [], 0
    if rows:
        yield pa.Table.from_batches(waiting)


_OUT_NAMES = [column.split()[0] for column in OUT.split(", ")]
