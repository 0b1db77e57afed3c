"""How many documents there are so far, for the display."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow.compute as pc

from stateside.archive import ArchiveTable


@dataclass(slots=True)
class DocumentCounts:
    """How many documents there are, of which periods; the table is read only when there are more than before."""

    table: ArchiveTable
    invoices: int = 0
    notes: int = 0
    periods: tuple[str, ...] = ()

    def look(self) -> DocumentCounts:
        """Bring the counts up to date."""
        if self.table.count() != self.invoices + self.notes:
            documents = self.table.read()
            self.invoices = pc.sum(pc.equal(documents["kind"], "invoice")).as_py() or 0
            self.notes = documents.num_rows - self.invoices
            self.periods = tuple(sorted(documents["period"].unique().to_pylist()))
        return self
