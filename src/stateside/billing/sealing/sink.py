"""Billing's sink: seals closed rows into invoices, late events into notes, bad events into dead letters.

How a batch gets in exactly once; a crash at any step, followed by a rerun of the same batch, changes nothing:

1. The plan of the batch says which range of the journal it has, and the watermarks. The book is read up to the range's
   end, and what it has of plans is added to `steps.json` and `plans.json`: whoever sees the batch can price its rows.
2. The documents are opened, in one version, and refused if they are missing, other ones than before, or those of
   another journal. Their frontier says which events they account for already (`frontier`).
3. The range is swept for late and bad events, with the help of the reports that its tasks left (`rating.reports`):
   whichever there are, the same is found. Rows of periods that are not closed yet become invoices; late events that
   the frontier does not cover become notes, from what that version of the documents has of their accounts. A late
   event that repeats an earlier one becomes a dead letter.
4. The documents, their numbers and the new frontier are stored in one step, on top of that very version. If there are
   none, nothing is written.
5. The dead letters are opened; those behind their position are stored, with the new position, in one step.
6. The reports are deleted, as they are when a run begins. Now and then the tables' small files are put together and
   the book is saved. All of that changes nothing of what the tables say.
7. The caller lets Spark commit the batch. A crash before that repeats the batch: if step 4 was reached, the frontier
   covers all that the batch has, so that nothing is left to do; if step 5 was, so does the position.

What a batch stores depends on the journal up to its end, its watermarks and the documents before it, never on its own
first attempt: that is stored whole or not at all, and then covered. Nothing depends on the batch's number. So it holds
as well for a query that begins anew, or an older checkpoint that is brought back, with other batches over the same
journal: no event is in two documents, none is left out, no document is changed, and numbers go on where they were.
How readers tell which documents count at their position is said in `answers.gate`.

Query and batch stand in each commit too, for people who look into the table's log.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from stateside.archive import ArchiveTable, OpenedTable
from stateside.billing.book.book import BookKeeper
from stateside.billing.rating.reports import Reports, reports_of
from stateside.billing.sealing.amounts import Amounts
from stateside.billing.sealing.columns import longs
from stateside.billing.sealing.dead_letters import POSITION, dead_letters_table
from stateside.billing.sealing.documents import (
    ACCOUNT,
    ADDED,
    DOCUMENTS,
    INVOICE,
    INVOICES,
    NOTES,
    documents_table,
    invoices,
    numbered,
)
from stateside.billing.sealing.frontier import Frontier
from stateside.billing.sealing.notes import BEFORE, Corrections, corrections
from stateside.billing.sealing.plan_file import extend_plans
from stateside.billing.sealing.repeats import ID_CONFLICT, REPEATED, Repeats
from stateside.billing.sealing.sweep import Planned, Swept, sweep
from stateside.checkpoint.log import Checkpoint
from stateside.errors import ArchiveInvalid, JournalAway, ViewInvalid
from stateside.journal import Journal
from stateside.journal.opened import open_journal
from stateside.layout import ViewLayout
from stateside.pipeline.sinks.sink import BatchId, OnStep, SinkContext, ignore_step
from stateside.storage import Storage

JOURNAL: Final = "journal"  # the counter that says which journal's events a table has
ROW_COLUMNS: Final = ("customer", "period_end", "type", "plan", "quantity", "events")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BillingSink:
    """Takes the closed rows of the view `bill`."""

    places: ViewLayout
    journal: Journal
    book: BookKeeper
    checkpoint: Checkpoint
    reports: Reports
    documents: ArchiveTable
    dead_letters: ArchiveTable
    on_step: OnStep = ignore_step
    guarded: bool = True

    @classmethod
    def of(cls, context: SinkContext, on_step: OnStep = ignore_step, *, guarded: bool = True) -> BillingSink:
        """The sink of an application's folder; creates its tables at the first run.

        One that is not `guarded` does not look at what it has stored, and stores a repeated batch twice: it is the
        negative control of crash tests, and for nothing else.

        ArchiveInvalid if there are documents of events that the journal does not have.
        """
        missing = [name for name in ROW_COLUMNS if name not in context.schema.names]
        if missing:
            raise ViewInvalid(f"The view {context.view!r} has no column {missing[0]!r}, which invoices need")
        places, journal = context.layout.view(context.view), open_journal(context.layout.journal)
        keeper = BookKeeper(journal, places.root / "book")
        checkpoint = Checkpoint(Storage.at(places.checkpoint))
        tables = documents_table(context.layout), dead_letters_table(context.layout)
        sink = cls(places, journal, keeper, checkpoint, reports_of(places), *tables, on_step, guarded)
        sink._begin()
        return sink

    def write(self, rows: pa.Table, batch: BatchId) -> None:
        """Seal a batch by the steps above."""
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
        """Create the tables, or take those over that an earlier query filled: what they have is not stored again."""
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
                where=str(self.journal.directory),
                next_step="Bring the whole journal back: new events in place of the lost ones would not be billed",
            )

    def _opened(self, table: ArchiveTable) -> OpenedTable:
        """The table as it is now; ArchiveInvalid if it has the events of another journal."""
        opened = table.opened()
        filled_from = opened.counter(JOURNAL)
        if filled_from not in (None, _journal_number(self.journal)):
            raise ArchiveInvalid(
                f"The table {opened.spec.name!r} was filled from another journal than the one that is here",
                where=str(opened.path),
                next_step="Bring that journal back, or move the tables and the view's folder away to begin anew",
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
    """Step 3: what a batch makes of its rows and of its late events."""
    closed_us = max(planned.watermark_before_us, frontier.closed_us)
    drafts = invoices(rows.filter(pa.array(longs(rows["period_end"]) > closed_us)), amounts, planned.stop)
    found = _corrections(swept.late, documents, amounts)
    # Late invoices are of periods that were closed before those of the rows: this is the order of their numbers.
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
    """An invoice is stored only if its account has none. The frontier sees to that: this guards the frontier."""
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


def _journal_number(journal: Journal) -> int:
    """A journal's id as a whole number that a counter can hold."""
    return UUID(_journal_id(journal)).int >> 65


def _journal_id(journal: Journal) -> str:
    id_ = journal.id()
    if id_ is None:  # a batch has events of a journal
        raise JournalAway(
            "The journal is away", where=str(journal.directory), next_step="Bring it back: the batch is held until then"
        )
    return id_
