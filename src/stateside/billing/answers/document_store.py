"""Issued documents: invoices and notes in the archive, read by customer, by number, or in sequence.

A document is written once and never changed. An answer has the documents that pass its gate (see
`available_documents`): the sink stores documents before Spark commits the batch, and only the commit removes the live
rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.compute as pc

from stateside.archive import DataFile, FollowedTable
from stateside.billing.answers.available_documents import ON_TIME, Gate
from stateside.billing.invoicing.documents import DOCUMENTS, INVOICE
from stateside.billing.model import VIEW
from stateside.core import Layout
from stateside.serving import iso_time

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
        """The position from which the document counts, see `available_documents`."""
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


def followed(layout: Layout) -> FollowedTable:
    """The table of documents, for readers."""
    return FollowedTable(layout.table(DOCUMENTS.name), layout.view(VIEW).mark(DOCUMENTS.name))


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
    for row in [] if table is None else _with_times(table).to_pylist():
        yield _document(row)


def _with_times(table: pa.Table) -> pa.Table:
    for name in ("period_start", "period_end"):
        place = table.schema.get_field_index(name)
        times = table[name].cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
        table = table.set_column(place, f"{name}_us", times)
    return table


def _document(row: Mapping[str, Any]) -> Document:
    lines = tuple(Line(**line) for line in row["lines"])
    return Document(**{**row, "lines": lines, "event_ids": tuple(row["event_ids"])})
