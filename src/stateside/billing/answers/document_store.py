"""Issued documents, read from the archive: which of them are available to an answer, and which of them count.

A document, an invoice or a note, is written once and never changed.

**Availability.** Open periods come from the live rows, and need no documents. While the table of documents cannot be
read, an answer has its drafts as usual, and of closed periods the documents that an earlier read left in this process's
memory. The answer says so:

    "archive": {"state": "current"}                        all documents that count are in the answer
    "archive": {"state": "away",                           their table cannot be read; the answer has the documents
                "as_of": "2026-04-18T12:30:00Z",             of all events up to the known position, as of then;
                "age_ms": 78000,                             null, both, if none are known
                "position": "0:4711",
                "unknown": {"after": "2026-03-04T00:00:00Z", "up_to": "2026-04-04T00:00:00Z"}}

The documents in memory are complete for the stamp (P, W) of the last successful read: all documents of periods that end
up to W, with the late events before P. An answer at (P', W') lacks notes of late events between P and P', as its
`as_of` shows, and every document of the periods that end after W and up to W'. The rows of these periods have left the
live rows: their amounts are not in the answer at all, which is reported as `unknown`. Without such a period `unknown`
is null.

An answer whose floor requires fresher documents is refused.

**The gate** decides which documents and dead letters count in an answer, by the answer's stamp and by no batch number.
With P the position and W the watermark of the stamp:

- An invoice counts if its period ends at W or earlier.
- A note, or an invoice made by late events, counts if also `sealed_position <= P`: its last event stands before P.
- A dead letter counts if its offset is below P.

Why every event then counts once. The live rows at (P, W) are the events before P whose periods end after W: Spark
evicts a row once W has reached its period's end, and drops none before. So documents must have the events before P
whose periods end up to W, and no others. For a query that was never restarted from scratch, batch N at (P_N, W_N) is
exactly right:

- Invoices of batch M are of periods that end after W_{M-1} and up to W_M, which is equivalent to `M <= N`: for M <= N
  the period ends at or before W_M <= W_N, for M > N after W_{M-1} >= W_N. A batch without data has the position of the
  one before and another watermark; so the watermark alone decides.
- Late events of batch M stand in [P_{M-1}, P_M), and their periods end up to W_{M-1}. For M <= N both conditions hold;
  for M > N the last event stands at or after P_{M-1} >= P_N, so the second condition fails.
- The sink stores documents before Spark commits the batch, and the replica has the batch after the commit: a reader of
  the documents after the live rows sees all of batch N. Documents of N+1, possibly present, do not count by the above.

A query that is restarted from scratch, or from an older checkpoint, finds documents of other batches. For the periods
that end at one moment, documents have the events of the journal without gaps: the invoice the events up to its
`sealed_position`, each late document some of the events after (see `invoicing.frontier`). So an answer at (P, W) is
right too, except in two windows, in which the query has closed a period and stands inside one document's events, and a
document cannot be split:

- The period's invoice was sealed at a position after P. The invoice counts as a whole: the answer is ahead by the
  events between P and that position. For this query these events come late, so they are few; without the invoice all
  would be missing.
- P lies between two late events of one note. The note does not count yet: the answer lacks the first of these events.

Each window ends where the query reaches the document's `sealed_position`, and no event ever counts twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from stateside.archive import DataFile, FollowedTable
from stateside.billing.calendar import Cycle
from stateside.billing.invoicing.documents import DEAD_LETTERS, DOCUMENTS, INVOICE, TIME, with_micros
from stateside.billing.model import APPLICATION, VIEW
from stateside.core import Clock, Layout, Position, SystemClock
from stateside.core.errors import ArchiveAway, NotFreshEnough
from stateside.serving import Floor, GatedTable, Stamp, iso_time

T = TypeVar("T")
LATER = "Ask again once the storage is back; open periods are answered meanwhile"


@dataclass(frozen=True, slots=True)
class KnownDocuments:
    """The position and watermark for which the documents in memory are complete, and their time."""

    position: Position
    watermark_us: int
    as_of_us: int


@dataclass(frozen=True, slots=True)
class Archived:
    """The availability of documents for an answer of this stamp; see the module's docstring."""

    stamp: Stamp
    known: KnownDocuments | None = None
    away: ArchiveAway | None = None
    age_ms: int | None = None
    unknown: tuple[int | None, int] | None = None

    def as_dict(self) -> dict[str, Any]:
        if self.away is None:
            return {"state": "current"}
        known, unknown = self.known, self.unknown
        return {
            "state": "away",
            "as_of": None if known is None else iso_time(known.as_of_us),
            "age_ms": self.age_ms,
            "position": None if known is None else known.position,
            "unknown": None
            if unknown is None
            else {"after": None if unknown[0] is None else iso_time(unknown[0]), "up_to": iso_time(unknown[1])},
        }

    def lacks(self, end_us: int) -> bool:
        """Whether documents of periods with this end are needed and unknown."""
        return self.unknown is not None and (self.unknown[0] or 0) < end_us <= self.unknown[1]

    def require(self, ends_us: Iterable[int], what: str) -> None:
        """Raise ArchiveAway if the documents of a period with one of these ends are unknown."""
        if self.away is not None and any(self.lacks(end_us) for end_us in ends_us):
            raise self.refusal(f"{what} cannot be answered: its documents are not known here, and cannot be read now")

    def refusal(self, what: str) -> ArchiveAway:
        """The error for a request that needs the missing documents."""
        return ArchiveAway(what, where=None if self.away is None else self.away.where, next_step=LATER)

    def labelled(self) -> Stamp:
        """The answer's stamp; its edition differs from the stamp of an answer with all documents."""
        if self.away is None:
            return self.stamp
        return replace(self.stamp, edition=f"{self.stamp.edition} {self.as_dict() | {'age_ms': None}}")


class DocumentArchive:
    """Reads documents for answers, and remembers the stamp of the last successful read.

    `cycles` returns the cycles of all plans, to find the periods that have ended since.
    """

    def __init__(self, cycles: Callable[[], Iterable[Cycle]], clock: Clock | None = None) -> None:
        self._cycles, self._clock = cycles, clock or SystemClock()
        self._known: KnownDocuments | None = None

    async def read(self, stamp: Stamp, floor: Floor, read: Callable[[bool], T]) -> tuple[T | None, Archived]:
        """The result of `read(False)`, in a thread, or else of `read(True)`, from memory; None if nothing is known.

        NotFreshEnough or ArchiveAway if the floor requires more than is known.
        """
        try:
            found = await asyncio.to_thread(read, False)
        except ArchiveAway as error:
            return await self._remembered(stamp, floor, read, error)
        if self._known is None or stamp.watermark_us >= self._known.watermark_us:
            as_of_us = self._clock.now_us() - stamp.age_ms * 1_000
            self._known = KnownDocuments(stamp.position, stamp.watermark_us, as_of_us)
        return found, Archived(stamp)

    async def _remembered(
        self, stamp: Stamp, floor: Floor, read: Callable[[bool], T], away: ArchiveAway
    ) -> tuple[T | None, Archived]:
        found, known = None, self._known
        if known is not None:
            try:
                found = await asyncio.to_thread(read, True)
            except ArchiveAway:  # not all of the documents are in memory
                known = None
        age_ms = None if known is None else max(0, (self._clock.now_us() - known.as_of_us) // 1_000)
        archived = Archived(stamp, known, away, age_ms, self._unknown(known, stamp.watermark_us))
        _check(archived, floor)
        return found, archived

    def _unknown(self, known: KnownDocuments | None, watermark_us: int) -> tuple[int | None, int] | None:
        """The range of period ends closed since the known watermark; None if no plan has such a period."""
        if known is None:
            return (None, watermark_us) if watermark_us > 0 else None
        ends = (cycle.containing(known.watermark_us).end_us for cycle in set(self._cycles()))
        return (known.watermark_us, watermark_us) if any(end_us <= watermark_us for end_us in ends) else None


def _check(archived: Archived, floor: Floor) -> None:
    """Refuse a floor that the known documents do not meet; before the first sealing nothing is missing."""
    known, stamp = archived.known, archived.stamp
    if stamp.watermark_us <= 0 or (floor.max_age_ms is None and floor.min_position is None):
        return
    if known is None or archived.age_ms is None:
        raise archived.refusal("The documents of closed periods are not known here, and cannot be read now")
    missing = floor.missing(replace(stamp, position=known.position, age_ms=archived.age_ms))
    if missing is not None:
        raise NotFreshEnough(
            f"The documents of closed periods are not fresh enough: {missing}. Their storage is away",
            where=None if archived.away is None else archived.away.where,
            next_step="Ask without max_age_ms and min_position for what is known, or again once the storage is back",
        )


ON_TIME = 0  # a document of events in time counts from this position on


@dataclass(frozen=True, slots=True)
class Gate:
    """The position of an answer: its journal offset and its watermark."""

    position: int
    watermark_us: int

    @classmethod
    def of(cls, stamp: Stamp) -> Gate:
        return cls(stamp.position.one(), stamp.watermark_us)

    def lets(self, period_end_us: int, counts_from: int) -> bool:
        """Whether a document counts; `counts_from` is the `sealed_position` of a late document, else `ON_TIME`."""
        return period_end_us <= self.watermark_us and counts_from <= self.position


def sql_tables() -> list[GatedTable]:
    """Billing's tables in SQL, behind the same gate."""
    return [
        GatedTable(APPLICATION, VIEW, DOCUMENTS.name, _documents_up_to, ("sealed_position",)),
        GatedTable(APPLICATION, VIEW, DEAD_LETTERS.name, _dead_letters_up_to, ("offset",)),
    ]


def _documents_up_to(stamp: Stamp) -> pc.Expression:
    gate = Gate.of(stamp)
    closed = pc.field("period_end") <= pa.scalar(gate.watermark_us, TIME)
    on_time = (pc.field("kind") == INVOICE) & ~pc.field("late")
    return closed & (on_time | (pc.field("sealed_position") <= gate.position))


def _dead_letters_up_to(stamp: Stamp) -> pc.Expression:
    return pc.field("offset") < Gate.of(stamp).position


Kind = Literal["invoice", "credit-note", "debit-note"]

_COLUMNS: Final = (
    "number",
    "kind",
    "sequence",
    "customer",
    "period",
    "period_start",
    "period_end",
    "currency",
    "lines",
    "amount_micros",
    "charged_micros",
    "events",
    "corrects",
    "event_ids",
    "late",
    "sealed_position",
    "rounding_micros",
)
_SLICE_ROWS: Final = 1_000


@dataclass(frozen=True, slots=True)
class Line:
    """One type of usage under one version of a plan. In a note: the difference made by the late events."""

    type: str
    plan: str
    quantity: int
    events: int
    amount_micros: int
    charged_micros: int


@dataclass(frozen=True, slots=True)
class Document:
    """An invoice, or a credit or debit note that corrects an invoice."""

    number: str
    kind: Kind
    sequence: int
    customer: str
    period: str
    period_start_us: int
    period_end_us: int
    currency: str
    lines: tuple[Line, ...]
    amount_micros: int
    charged_micros: int
    events: int
    corrects: str | None
    event_ids: tuple[str, ...]
    late: bool
    sealed_position: int
    rounding_micros: (
        int | None
    )  # None: a document of Stateside 0.1, or a note to one: its total is the sum of its lines

    @property
    def is_invoice(self) -> bool:
        """Whether the document is an invoice, not a note."""
        return self.kind == INVOICE

    @property
    def counts_from(self) -> int:
        """The position from which the document counts."""
        return ON_TIME if self.is_invoice and not self.late else self.sealed_position

    def as_dict(self) -> dict[str, Any]:
        """The document as in an answer, and as delivered."""
        return {
            "number": self.number,
            "kind": self.kind,
            "customer": self.customer,
            "period": self.period,
            "period_start": iso_time(self.period_start_us),
            "period_end": iso_time(self.period_end_us),
            "currency": self.currency,
            "lines": [asdict(line) for line in self.lines],
            "rounding_micros": self.rounding_micros or 0,
            "amount_micros": self.amount_micros,
            "charged_micros": self.charged_micros,
            "events": self.events,
            "corrects": self.corrects,
            "event_ids": list(self.event_ids),
            "late": self.late,
            "sealed_position": self.sealed_position,
        }


class RowCount:
    """The number of a table's rows, by the footers of its files, each of which is read once. Thread-safe."""

    def __init__(self, table: FollowedTable) -> None:
        self._table = table
        self._by_file: dict[Path, int] = {}

    def now(self) -> int:
        known, files = self._by_file, [file.path for file in self._table.files()]
        self._by_file = {path: known[path] if path in known else pq.read_metadata(path).num_rows for path in files}
        return sum(self._by_file.values())


class DocumentStore:
    """The documents of an application's folder."""

    def __init__(self, table: FollowedTable) -> None:
        self._table = table

    @classmethod
    def of(cls, layout: Layout) -> DocumentStore:
        """The documents of this folder; none before the first sealed period."""
        return cls(followed(layout))

    def of_customer(self, customer: str, gate: Gate | None = None, *, known: bool = False) -> list[Document]:
        """A customer's documents, or those that pass the gate: by period, an invoice before its notes.

        With `known` from the version read last (see `FollowedTable.read`).
        """
        table = self._table.read(_COLUMNS, equal={"customer": customer}, known=known)
        return sorted(_through(gate, _documents(table)), key=_order)

    def by_number(self, number: str, gate: Gate | None = None, *, known: bool = False) -> Document | None:
        """The document with this number; None if missing, or if not past the gate."""
        table = self._table.read(_COLUMNS, equal={"number": number}, known=known)
        found = list(_through(gate, _documents(table)))
        assert len(found) <= 1, f"the number {number} is given twice"
        return found[0] if found else None

    def after(self, invoices: int, notes: int) -> Iterator[Document]:
        """The present documents with higher sequences: invoices, then notes, each by number.

        So a note comes after the invoice that the note corrects.
        """
        pending = [file for file in self._table.files() if _may_be_after(file, invoices, notes)]
        if not pending:
            return
        table = pa.concat_tables([file.read(_COLUMNS) for file in pending], promote_options="default")
        is_note = pc.not_equal(table["kind"], INVOICE)
        new = pc.greater(table["sequence"], pc.if_else(is_note, notes, invoices))
        table = table.append_column("is_note", is_note).filter(new)
        table = table.sort_by([("is_note", "ascending"), ("sequence", "ascending")])
        for start in range(0, table.num_rows, _SLICE_ROWS):
            yield from _documents(table.slice(start, _SLICE_ROWS).select(_COLUMNS))


def followed(layout: Layout, table: str = DOCUMENTS.name) -> FollowedTable:
    """The table of documents, or of dead letters, for readers: all generations of the view fill the same one."""
    return FollowedTable(layout.table(table), lambda: layout.view(VIEW).mark(table))


def _may_be_after(file: DataFile, invoices: int, notes: int) -> bool:
    """Whether the file can have a document with a higher sequence, by its statistics, if all are of one series."""
    series = {str(file.least.get("number"))[:1], str(file.greatest.get("number"))[:1]}
    last = {"I": invoices, "N": notes}
    highest = file.greatest.get("sequence")
    return highest is None or highest > min(last.get(letter, 0) for letter in (series if len(series) == 1 else last))


def _order(document: Document) -> tuple[int, bool, int]:
    return document.period_end_us, not document.is_invoice, document.sequence


def _through(gate: Gate | None, documents: Iterable[Document]) -> Iterator[Document]:
    for document in documents:
        if gate is None or gate.lets(document.period_end_us, document.counts_from):
            yield document


def _documents(table: pa.Table | None) -> Iterator[Document]:
    for row in [] if table is None else with_micros(table, "period_start", "period_end").to_pylist():
        yield _document(row)


def _document(row: Mapping[str, Any]) -> Document:
    lines = tuple(Line(**line) for line in row["lines"])
    return Document(**{**row, "lines": lines, "event_ids": tuple(row["event_ids"])})
