"""One version of a table, for a writer that must look at what is stored before it knows what to store.

Beside its rows a table has *notes*: whole numbers under names, which stand in its log and change only together with
rows, in one atomic step. Every commit of such a writer sets the same names, and Delta refuses a commit whose names
another one has set since this version was opened. So what was decided from one version is stored on top of that very
version, or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError

from stateside.errors import SinkAway

if TYPE_CHECKING:
    from stateside.archive.table import TableSpec


@dataclass(frozen=True, slots=True)
class OpenedTable:
    """A version of a table; `ArchiveTable.opened` makes one."""

    table: DeltaTable
    path: Path
    spec: TableSpec

    def note(self, name: str) -> int | None:
        """The number under this name; None if there is none yet."""
        return self.table.transaction_version(name)

    def read(self, columns: Sequence[str], where: pc.Expression | None = None) -> pa.Table:
        """These columns of the rows that meet a condition. Files that cannot hold such rows are not read."""
        # Through deltalake's own file system, in Python, Arrow's threads may abort a process that ends soon after.
        folder = pafs.SubTreeFileSystem(str(self.path.resolve()), pafs.LocalFileSystem())
        return self.table.to_pyarrow_dataset(filesystem=folder).to_table(columns=list(columns), filter=where)

    def store(self, rows: pa.Table, batch: int, notes: Mapping[str, int]) -> None:
        """Add the rows, and set the notes, in one step; SinkAway, and nothing is stored, if others came in between."""
        named = [Transaction(app_id=name, version=number) for name, number in notes.items()]
        properties = CommitProperties(app_transactions=named)
        try:
            write_deltalake(self.table, self.spec.stored(rows, batch), mode="append", commit_properties=properties)
        except CommitFailedError as error:
            raise SinkAway(
                f"Another writer stored rows in {self.spec.name!r} at the same time",
                where=str(self.path),
                next_step="See that one driver runs only: the batch is held, and what it stores found out anew",
            ) from error
