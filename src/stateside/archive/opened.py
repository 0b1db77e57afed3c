"""One version of a table, for a writer that must look at what is stored before it knows what to store.

Beside its rows a table has *counters*: whole numbers under names, which stand in its log and change only together with
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
from deltalake import CommitProperties, DeltaTable, Transaction, WriterProperties, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, DeltaProtocolError, SchemaMismatchError

from stateside.errors import SinkAway

if TYPE_CHECKING:
    from stateside.archive.table import TableSpec

COMMITS_BETWEEN = 50  # after so many commits small files are put together,
FILE_BYTES = 16 << 20  # up to about this size: larger ones are left as they are
# Whoever looks one customer up reads one group of rows: of a million invoices in one group it would be all of them.
IN_GROUPS = WriterProperties(max_row_group_size=8_192)


@dataclass(frozen=True, slots=True)
class OpenedTable:
    """A version of a table; `ArchiveTable.opened` makes one."""

    table: DeltaTable
    path: Path
    spec: TableSpec

    def counter(self, name: str) -> int | None:
        """The number under this name; None if there is none yet."""
        return self.table.transaction_version(name)

    def read(self, columns: Sequence[str], where: pc.Expression | None = None) -> pa.Table:
        """These columns of the rows that meet a condition. Files that cannot hold such rows are not read."""
        # Through deltalake's own file system, in Python, Arrow's threads may abort a process that ends soon after.
        folder = pafs.SubTreeFileSystem(str(self.path.resolve()), pafs.LocalFileSystem())
        return self.table.to_pyarrow_dataset(filesystem=folder).to_table(columns=list(columns), filter=where)

    def store(self, rows: pa.Table, batch: int, counters: Mapping[str, int]) -> None:
        """Add the rows, and set the counters, in one step.

        SinkAway, and nothing is stored, if another writer came in between or the disk does not take it.
        """
        named = [Transaction(app_id=name, version=number) for name, number in counters.items()]
        properties = CommitProperties(app_transactions=named)
        try:
            stored = self.spec.stored(rows, batch)
            write_deltalake(
                self.table, stored, mode="append", commit_properties=properties, writer_properties=IN_GROUPS
            )
        except CommitFailedError as error:
            raise self._away(
                f"Another writer stored rows in {self.spec.name!r} at the same time",
                "See that one driver runs only: the batch is held, and what it stores found out anew",
            ) from error
        except (SchemaMismatchError, DeltaProtocolError):
            raise  # would come again
        except (DeltaError, OSError) as error:
            raise self._away(
                f"The table {self.spec.name!r} cannot be written: {error}",
                "Mend the disk: the batch is held until then",
            ) from error

    def tidy(self) -> bool:
        """Every so many commits, put small files together, which changes no row and no counter; whether it did.

        To open and read a file costs about a millisecond, and every batch leaves some: without this, reads would get
        slower without end. The files that were put together stay on disk, for readers of older versions.
        """
        due = self.table.version() > 0 and self.table.version() % COMMITS_BETWEEN == 0
        if due:
            self.table.optimize.compact(target_size=FILE_BYTES, writer_properties=IN_GROUPS)
        return due

    def _away(self, what: str, next_step: str) -> SinkAway:
        return SinkAway(what, where=str(self.path), next_step=next_step)
