"""Archive tables in SQL, with a gate per table: the rows that count at a view's stamp.

A table belongs to the view whose sink fills it, and counts at the view's stamp: a sink commits before Spark does, so a
table may have rows of a batch after the view's snapshot. Tables are opened after the snapshot is taken.

- A table with `sealed_batch` is gated by that column: rows up to the stamp's batch count.
- An application may give gates for its own tables (`GatedTable`), as billing does.
- In any other table all rows count.

Arrow reads the files as far as a statement needs them, and never all at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from stateside.archive.table import BATCH_COLUMN
from stateside.archive.table_reader import MARK, FollowedTable
from stateside.core.errors import NotFreshEnough
from stateside.core.layout import Layout, ViewLayout
from stateside.serving.access.principal import Principal
from stateside.serving.sql.row_filter import condition
from stateside.serving.stamp import Stamp
from stateside.views.catalogue import Catalogue

if TYPE_CHECKING:
    import pyarrow.dataset as pads  # takes 1 s to import: it imports pandas

Gate = Callable[[Stamp], pc.Expression]


@dataclass(frozen=True, slots=True)
class GatedTable:
    """A table that an application fills from a view, and the gate of its rows by a stamp of the view.

    `positions` are the columns with journal positions, hidden from scoped tokens.
    """

    application: str
    view: str
    table: str
    gate: Gate
    positions: tuple[str, ...] = ()


class ArchiveTables:
    """The archive tables of a folder."""

    def __init__(self, layout: Layout, gated: Sequence[GatedTable] = ()) -> None:
        self._layout, self._gated = layout, {(each.application, each.view, each.table): each for each in gated}
        self._lock = threading.Lock()
        self._tables: dict[Path, FollowedTable] = {}

    def tables(self) -> Mapping[str, str]:
        """The existing tables, each with its view; includes tables whose storage is away."""
        marks = [(view, mark) for view in self._layout.views() for mark in (view.root / "marks").glob("*.json")]
        return {mark.stem: view.name for view, mark in marks if MARK.read(mark) is not None}

    def schema(self, table: str, view: ViewLayout) -> pa.Schema:
        """The table's columns; ArchiveAway or ArchiveInvalid as for `FollowedTable`."""
        return self._dataset(table, view).schema

    def rows(
        self, table: str, view: ViewLayout, application: str, stamp: Stamp, where: Mapping[str, str]
    ) -> pads.Dataset:
        """The rows that count at this stamp and have the `where` values; errors as for `schema`."""
        dataset = self._dataset(table, view)
        gate = self._gated.get((application, view.name, table))
        if gate is not None:
            dataset = dataset.filter(gate.gate(stamp))
        elif BATCH_COLUMN in dataset.schema.names:
            dataset = dataset.filter(pc.field(BATCH_COLUMN) <= stamp.batch)
        return dataset.filter(condition(dataset.schema, where)) if where else dataset

    def hidden(self, table: str, view: str, holder: Principal) -> frozenset[str]:
        """The columns hidden from this principal."""
        found = [each.positions for (_, *of), each in self._gated.items() if of == [view, table]]
        return frozenset(name for names in found for name in names) if holder.is_scoped else frozenset()

    def check_there(self, table: str, view: ViewLayout) -> None:
        """ArchiveAway or ArchiveInvalid if the table cannot be read now."""
        self._followed(table, view).check_there()

    def _followed(self, table: str, view: ViewLayout) -> FollowedTable:
        mark = view.mark(table)
        with self._lock:
            if mark not in self._tables:
                own = Catalogue.load(view.catalogue).archive == table  # other tables are common to all generations
                place = view.table(table) if own else self._layout.table(table)
                self._tables[mark] = FollowedTable(place, mark)
            return self._tables[mark]

    def _dataset(self, table: str, view: ViewLayout) -> pads.Dataset:
        dataset = self._followed(table, view).dataset()
        if dataset is None:
            raise NotFreshEnough(f"The table {table!r} was not made yet", next_step="Ask again in a moment")
        return dataset
