"""Billing's sink: seals closed rows into invoices, late events into notes, bad events into dead letters.

The exactly-once protocol of a batch; a crash at any step, followed by a rerun of the same batch, changes nothing:

1. The sink reads the batch's plan (range of the journal, watermarks), reads the book up to the range's end, and adds
   the plans to `steps.json` and `plans.json`, so that every reader of the batch can price its rows.
2. The sink opens one version of the documents, and refuses documents that are missing, replaced, or of another journal.
   The version's frontier is the set of events already accounted for (`Frontier`).
3. The sink sweeps the range for late and bad events, with the reports of the tasks (`rating.reports`) as a shortcut
   without effect on the result. Rows of periods that are not closed yet become invoices; late events not covered by
   the frontier become notes, computed from their accounts in the opened version. A late event that repeats an earlier
   one becomes a dead letter.
4. The sink stores documents, numbers and the new frontier in one step, on top of the opened version. Without documents,
   the sink writes nothing.
5. The sink opens the dead letters, and stores those beyond the table's position, and repeats not stored yet, with the
   new position, in one step.
6. The sink deletes the reports, as at the start of a run. From time to time the sink compacts the tables' small files
   and saves the book. None of these actions changes the tables' content.
7. The caller lets Spark commit the batch. A crash before the commit repeats the batch: after step 4 the frontier covers
   the whole batch, so nothing is left to do; after step 5 so does the position.

The result of a batch depends on the journal up to its end, its watermarks and the documents before it, never on its own
first attempt: an attempt is stored whole or not at all, and then covered. Nothing depends on the batch's number. So the
protocol also holds for a query that starts over, or for a restored older checkpoint, with other batches over the same
journal: no event is in two documents, none is left out, no document is changed, and numbers continue.
`answers.document_store` describes which documents count at a reader's position. Each commit also names query and
batch, for people who inspect the table's log.

The *sweep* reads a batch's range of the journal again to find the events missing in its rows: late events, dropped by
Spark's aggregation, and bad events, dropped before it. A late event that repeats the id of an earlier one is bad, too
(`repeats`). The rule for late events is Spark's own (pinned in tests/semantics): batch N drops a row whose period ends
at or before the watermark in `offsets/N-1`, the batch before; batch 0 drops none. The sweep and the aggregation rate
events with the same pure function of the events up to the batch's end, so the two never disagree.

For the same reason a report (`rating.reports`) of any attempt replaces rating: in the report's range the sweep rates
only the events reported as bad, to get the reason, and the events that may be late, if any period of the range is
closed. The result equals that of rating the whole range. Ranges without a report are rated whole.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from stateside.archive import ArchiveTable, OpenedTable
from stateside.billing.book.book import Book, BookKeeper
from stateside.billing.invoicing.amounts import Amounts, longs, period_ends
from stateside.billing.invoicing.documents import (
    ACCOUNT,
    ADDED,
    BEFORE,
    DEAD_LETTERS,
    DOCUMENTS,
    INVOICE,
    INVOICES,
    LATE,
    NOTES,
    POSITION,
    Corrections,
    corrections,
    dead_letters,
    dead_letters_table,
    documents_table,
    invoices,
    letters_of,
    numbered,
)
from stateside.billing.invoicing.repeats import ID_CONFLICT, REPEATED, Repeats
from stateside.billing.model import LATENESS_NOTE, lateness_file, lateness_in_force
from stateside.billing.plans.file import extend_plans
from stateside.billing.rating.rating import events_of, events_table, is_usage, joined, rate
from stateside.billing.rating.reports import RatingReport, Reports, reports_of
from stateside.core import Storage, ViewLayout
from stateside.core.errors import ArchiveInvalid, JournalAway, ViewInvalid
from stateside.journal import Log, open_journal
from stateside.pipeline import BatchId, OnStep, SinkContext, ignore_step, inside, keyed, sweeps_late
from stateside.spark_state import Checkpoint

CORNERS = "frontier/corners"


@dataclass(frozen=True, slots=True)
class Corner:
    """Accounts for every usage event before this position whose period ends at this time or earlier."""

    position: int
    closed_us: int

    def within(self, other: Corner) -> bool:
        """Whether the other corner accounts for at least the same events."""
        return self.position <= other.position and self.closed_us <= other.closed_us


@dataclass(frozen=True, slots=True)
class Frontier:
    """The set of events that the documents account for; it makes sealing exactly-once.

    When a batch that ends at position P, with the watermark W, is sealed, the documents account for every usage event
    before P whose period ends at W or earlier: the closed rows became invoices, the late events notes. (P, W) is a
    *corner*. A query that starts over, with a new checkpoint or an older one, cuts the journal into other batches with
    other watermarks; so its corners need not lie beyond the old ones in both dimensions, and all maximal corners are
    kept, by falling position and so by rising watermark:

        period's end ▲
                   W2│▒▒▒▒▒▒▒┐                ▒ accounted for
                   W1│▒▒▒▒▒▒▒└─────────┐
                     │▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒│
                     └───────P2────────P1──► position

    A batch then seals the rest of its own rectangle, whichever query sealed the other part, with whichever batches:

    - Periods up to the highest watermark are closed. Rows of closed periods are skipped: their events are accounted
      for, or found by the next rule.
    - Events of closed periods in the batch's range not covered by any corner are late.
    - Rows of other periods become invoices: the documents have no event of such a period.

    So a rerun of a stored batch has nothing left to do, and a batch of a new query seals exactly the events not reached
    by the old query. If a query has read beyond the corner with the highest watermark, while its own watermark is
    lower, the query has folded events of closed periods into rows that will be skipped: the sweep then begins at the
    highest corner.

    The corners are counters in the documents' own table log, and change with the rows in one step. A batch that stores
    nothing moves no corner: the documents account for the same events as before.
    """

    corners: tuple[Corner, ...] = ()

    @property
    def closed_us(self) -> int:
        """Periods that end up to this time are closed."""
        return self.corners[-1].closed_us if self.corners else 0

    @property
    def position(self) -> int:
        """The highest position that any document depends on: the journal must reach that far."""
        return self.corners[0].position if self.corners else 0

    def sweep_from(self, start: int, watermark_before_us: int) -> int:
        """The start of the sweep for late events, for a batch that begins at `start`."""
        ahead = self.closed_us > watermark_before_us
        return min(start, self.corners[-1].position) if ahead else start

    def covers(self, offsets: npt.NDArray[np.int64], ends_us: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which events, given by offset and end of their period, are accounted for."""
        covered = np.zeros(len(offsets), np.bool_)
        for corner in self.corners:
            covered |= (offsets < corner.position) & (ends_us <= corner.closed_us)
        return covered

    def closed_before(self, offsets: npt.NDArray[np.int64], ends_us: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which events, given by offset and end of their period, arrived after documents had closed the period."""
        closed = np.zeros(len(offsets), np.bool_)
        for corner in self.corners:
            closed |= (offsets >= corner.position) & (ends_us <= corner.closed_us)
        return closed

    def moved(self, position: int, watermark_us: int) -> Frontier:
        """The frontier after sealing a batch with this end position and watermark."""
        new = Corner(position, max(watermark_us, self.closed_us))
        if any(new.within(corner) for corner in self.corners):
            return self
        return Frontier((*(corner for corner in self.corners if not corner.within(new)), new))

    def counters(self) -> dict[str, int]:
        """The frontier as a table's counters; `of` parses them."""
        counters = {CORNERS: len(self.corners)}
        for number, corner in enumerate(self.corners):
            counters |= dict(zip(_names(number), (corner.position, corner.closed_us), strict=True))
        return counters

    @classmethod
    def of(cls, counter: Callable[[str], int | None] | Mapping[str, int]) -> Frontier:
        """The frontier in a table's counters."""
        get = counter.get if isinstance(counter, Mapping) else counter
        names = (_names(number) for number in range(get(CORNERS) or 0))
        return cls(tuple(Corner(get(position) or 0, get(closed) or 0) for position, closed in names))


def _names(number: int) -> tuple[str, str]:
    return f"frontier/{number}/position", f"frontier/{number}/closed_us"


PIECE_EVENTS_MAX: Final = 200_000  # read and rated at a time: bounds memory to about 100 MiB


@dataclass(frozen=True, slots=True)
class Planned:
    """Spark's plan of a batch: its range of the journal, its watermark and the watermark of the batch before."""

    start: int
    stop: int
    watermark_before_us: int
    watermark_us: int

    @classmethod
    def of(cls, checkpoint: Checkpoint, batch: int) -> Planned:
        """The plan of a batch, written before the batch runs. CheckpointGap if the plan of the batch before is gone."""
        found = checkpoint.range_of(batch)
        start = found.start.one() if batch else 0
        return cls(start, found.stop.one(), found.watermark_before_us, found.watermark_us)


@dataclass(frozen=True, slots=True)
class Swept:
    """The late events (`notes.LATE`) and the dead letters, in the journal's order."""

    late: pa.Table
    bad: pa.Table


def sweep(
    journal: Log,
    book: Book,
    planned: Planned,
    frontier: Frontier,
    repeats: Repeats,
    reports: Sequence[RatingReport] = (),
) -> Swept:
    """The events missing in a batch's rows and in the documents. `reports` of this journal do not change the result."""
    closed_us = max(planned.watermark_before_us, frontier.closed_us)
    start = frontier.sweep_from(planned.start, planned.watermark_before_us)
    late, bad = [LATE.empty_table()], [DEAD_LETTERS.schema.empty_table()]
    for part in _parts(start, planned.stop, reports):
        events = _suspects(journal, part, closed_us) if isinstance(part, RatingReport) else events_table(journal, *part)
        if events.num_rows:
            rated = rate(events, book)
            old = _old(rated, book, closed_us)
            again = repeats.of(_came_after(events, old, frontier, planned), book, planned.stop)
            late.append(_late(old, frontier, again["offset"]))
            bad += [dead_letters(events, rated), letters_of(again)]
    return Swept(pa.concat_tables(late), pa.concat_tables(bad).sort_by("offset"))


def _parts(start: int, stop: int, reports: Sequence[RatingReport]) -> Iterator[RatingReport | tuple[int, int]]:
    """The range in order: contained reports that do not overlap, and the gaps between them in pieces."""
    for report in sorted(reports, key=lambda report: report.start):
        if start <= report.start and report.stop <= stop:
            yield from _pieces(start, report.start)
            yield report
            start = report.stop
    yield from _pieces(start, stop)


def _pieces(start: int, stop: int) -> Iterator[tuple[int, int]]:
    for first in range(start, stop, PIECE_EVENTS_MAX):
        yield first, min(first + PIECE_EVENTS_MAX, stop)


def _suspects(journal: Log, report: RatingReport, closed_us: int) -> pa.Table:
    """The events of a report's range that may be bad or late; the journal is not read if there can be none."""
    found: list[pa.Table] = []
    if report.bad or report.first_end_us <= closed_us:
        for first, batch in journal.batches(report.start, report.stop):
            times_us = batch.column("time").cast(pa.int64()).to_numpy()
            rows = report.suspects(first, times_us, closed_us)
            if len(rows):
                found.append(events_of(batch.take(pa.array(rows)), first + rows))
    return joined(found)


def _old(rated: pa.Table, book: Book, closed_us: int) -> pa.Table:
    """The usage of periods that end up to `closed_us`, with the end. A period ends after its events, so few qualify."""
    usage = is_usage(rated)
    events = rated.filter(pc.and_(usage, pa.array(longs(rated["time"]) < closed_us)))
    ends_us = period_ends(events, book)
    events = events.append_column("period_end", pa.array(ends_us).cast(LATE.field("period_end").type))
    return events.filter(pa.array(ends_us <= closed_us))


def _came_after(events: pa.Table, old: pa.Table, frontier: Frontier, planned: Planned) -> pa.Table:
    """The events that arrived after their periods had closed, including events already accounted for.

    A rerun of a batch gives the same result: documents that the batch itself sealed close nothing before its own end.
    """
    offsets, ends_us = longs(old["offset"]), longs(old["period_end"])
    after = (ends_us <= planned.watermark_before_us) | frontier.closed_before(offsets, ends_us)
    return events.filter(pc.is_in(events["offset"], pa.array(offsets[after])))


def _late(old: pa.Table, frontier: Frontier, repeated: pa.ChunkedArray) -> pa.Table:
    """The usage of closed periods that is neither accounted for nor a repeat."""
    new = ~frontier.covers(longs(old["offset"]), longs(old["period_end"]))
    new &= ~np.isin(longs(old["offset"]), longs(repeated))
    return old.filter(pa.array(new)).select(LATE.names).cast(LATE)


JOURNAL: Final = "journal"  # counter with the number of the journal that filled the table
ROW_COLUMNS: Final = ("customer", "period_end", "type", "plan", "quantity", "events")
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BillingSink:
    """The sink for closed rows of the view `bill`."""

    places: ViewLayout
    journal: Log
    book: BookKeeper
    checkpoint: Checkpoint
    reports: Reports
    documents: ArchiveTable
    dead_letters: ArchiveTable
    on_step: OnStep = ignore_step
    guarded: bool = True

    @classmethod
    @inside
    @keyed
    @sweeps_late
    def of(cls, context: SinkContext, on_step: OnStep = ignore_step, *, guarded: bool = True) -> BillingSink:
        """The sink of an application's folder; creates its tables at the first run.

        An unguarded sink ignores its stored documents, and stores a repeated batch twice: the negative control of crash
        tests, not for production.

        ArchiveInvalid if there are documents of events beyond the journal's end.
        """
        missing = [name for name in ROW_COLUMNS if name not in context.schema.names]
        if missing:
            raise ViewInvalid(f"The view {context.view!r} has no column {missing[0]!r}, which invoices need")
        places, journal = context.layout.view(context.view), open_journal(context.layout.journal).log()
        keeper = BookKeeper(journal, places.root / "book")
        checkpoint = Checkpoint(Storage.at(places.checkpoint))
        tables = documents_table(context.layout), dead_letters_table(context.layout)
        sink = cls(places, journal, keeper, checkpoint, reports_of(places), *tables, on_step, guarded)
        sink._begin()
        LATENESS_NOTE.write(lateness_file(context.layout), lateness_in_force(context.layout))
        return sink

    def write(self, rows: pa.Table, batch: BatchId) -> None:
        """Seal a batch by the steps of the module's protocol."""
        self.on_step(1)
        planned = Planned.of(self.checkpoint, batch.batch)
        book = self.book.at(planned.stop)
        extend_plans(self.places, book.plans)
        self.on_step(2)
        documents = self._opened(self.documents)
        frontier = Frontier.of(documents.counter) if self.guarded else Frontier()
        self.on_step(3)
        repeats = Repeats(self.places.root, self.journal)
        swept = sweep(self.journal, book, planned, frontier, repeats, self.reports.read(_journal_id(self.journal)))
        sealing = _sealing(rows, swept, documents, planned, frontier, Amounts(book.plans))
        if self.guarded:
            _check_absent(sealing.invoices, documents)
        self.on_step(4)
        self._store_documents(sealing, documents, frontier.moved(planned.stop, planned.watermark_us), batch)
        self.on_step(5)
        self._store_dead_letters(swept.bad, planned.stop, batch)
        self.on_step(6)
        self.reports.clear()
        for table in (self.documents, self.dead_letters):
            table.opened().tidy()
        self.book.save()
        self.on_step(7)

    def _begin(self) -> None:
        """Create the tables, or take over those of an earlier query, whose content is not stored again."""
        self.reports.clear()
        for table in (self.documents, self.dead_letters):
            table.create(take_over=True)
            table.add_columns(*ADDED)
            table.check_schema()
        needed = max(
            Frontier.of(self._opened(self.documents).counter).position,
            self._opened(self.dead_letters).counter(POSITION) or 0,
        )
        if self.journal.end().one() < needed:
            raise ArchiveInvalid(
                f"The documents are of {needed} events, and the journal has {self.journal.end().one()} only",
                where=self.journal.where,
                next_step="Bring the whole journal back: new events in place of the lost ones would not be billed",
            )

    def _opened(self, table: ArchiveTable) -> OpenedTable:
        """The current version of the table; ArchiveInvalid if the table has the events of another journal."""
        opened = table.opened()
        filled_from = opened.counter(JOURNAL)
        if filled_from not in (None, _journal_number(self.journal)):
            raise ArchiveInvalid(
                f"The table {opened.spec.name!r} was filled from another journal than the one that is here",
                where=str(opened.path),
                next_step="Bring that journal back, or move the tables and the view's folder away to begin again",
            )
        return opened

    def _store_documents(self, sealing: _Sealing, documents: OpenedTable, moved: Frontier, batch: BatchId) -> None:
        """Step 4."""
        if not sealing.invoices.num_rows + sealing.notes.num_rows:
            return
        highest = {name: documents.counter(name) or 0 for name in (INVOICES, NOTES)}
        rows = pa.concat_tables(
            [numbered(sealing.invoices, "I", highest[INVOICES]), numbered(sealing.notes, "N", highest[NOTES])]
        )
        counts = {
            INVOICES: highest[INVOICES] + sealing.invoices.num_rows,
            NOTES: highest[NOTES] + sealing.notes.num_rows,
        }
        documents.store(rows, batch.batch, {**counts, **moved.counters(), **self._whose(batch)})
        log.info("batch %d: %d invoices, %d notes", batch.batch, sealing.invoices.num_rows, sealing.notes.num_rows)

    def _store_dead_letters(self, bad: pa.Table, stop: int, batch: BatchId) -> None:
        """Step 5."""
        opened = self._opened(self.dead_letters)
        position = (opened.counter(POSITION) or 0) if self.guarded else 0
        new = bad.filter(pc.or_(pc.greater_equal(bad["offset"], position), _unstored_repeats(bad, opened)))
        if new.num_rows:
            opened.store(new, batch.batch, {POSITION: stop, **self._whose(batch)})
            few = "dead letter" if new.num_rows == 1 else "dead letters"
            log.warning("batch %d: %d %s: `stateside billing dead-letters` lists them", batch.batch, new.num_rows, few)

    def _whose(self, batch: BatchId) -> Mapping[str, int]:
        return {batch.query: batch.batch, JOURNAL: _journal_number(self.journal)}


@dataclass(frozen=True, slots=True)
class _Sealing:
    """The drafts of a batch, in the order of their numbers."""

    invoices: pa.Table
    notes: pa.Table


def _sealing(
    rows: pa.Table, swept: Swept, documents: OpenedTable, planned: Planned, frontier: Frontier, amounts: Amounts
) -> _Sealing:
    """Step 3: the drafts from a batch's rows and late events."""
    closed_us = max(planned.watermark_before_us, frontier.closed_us)
    drafts = invoices(rows.filter(pa.array(longs(rows["period_end"]) > closed_us)), amounts, planned.stop)
    found = _corrections(swept.late, documents, amounts)
    # Late invoices come first: their periods closed before the periods of the rows, and numbers follow this order.
    return _Sealing(pa.concat_tables([found.late_invoices, drafts]), found.notes)


def _corrections(late: pa.Table, documents: OpenedTable, amounts: Amounts) -> Corrections:
    accounts = [pc.field(name).isin(late[name].unique()) for name in ("period_end", "customer")]
    before = documents.read(BEFORE, accounts[0] & accounts[1]) if late.num_rows else DOCUMENTS.schema.empty_table()
    return corrections(late, before, amounts)


def _unstored_repeats(bad: pa.Table, letters: OpenedTable) -> pa.ChunkedArray:
    """Which of the dead letters are repeats that are not stored yet."""
    is_repeat = pc.is_in(bad["reason"], pa.array([REPEATED, ID_CONFLICT]))
    offsets = bad["offset"].filter(is_repeat)
    stored = letters.read(("offset",), pc.field("offset").isin(offsets))["offset"] if len(offsets) else offsets
    return pc.and_(is_repeat, pc.invert(pc.is_in(bad["offset"], stored.combine_chunks())))


def _check_absent(drafts: pa.Table, documents: OpenedTable) -> None:
    """An invoice is stored only if its account has none. The frontier ensures this; the check guards the frontier."""
    if not drafts.num_rows:
        return
    where = pc.field("period_end").isin(drafts["period_end"].unique()) & (pc.field("kind") == INVOICE)
    doubles = drafts.select(ACCOUNT).join(documents.read(ACCOUNT, where), list(ACCOUNT), join_type="left semi")
    if doubles.num_rows:
        first = doubles.sort_by([(name, "ascending") for name in ACCOUNT]).slice(0, 1).to_pylist()[0]
        raise ArchiveInvalid(
            f"{doubles.num_rows} invoices are there already, the first for {first['customer']}, {first['period_end']}",
            where=str(documents.path),
            next_step="Nothing was stored. The table's log has lost its counters: bring the table back from a copy",
        )


def _journal_number(journal: Log) -> int:
    """A journal's id as an integer that a counter can hold."""
    return UUID(_journal_id(journal)).int >> 65


def _journal_id(journal: Log) -> str:
    id_ = journal.id()
    if id_ is None:  # a batch has events of a journal
        raise JournalAway(
            "The journal is away", where=journal.where, next_step="Bring it back: the batch is held until then"
        )
    return id_
