"""One Delta table of the archive.

How a batch gets in exactly once; a crash between any two steps, followed by a rerun of the same batch, changes nothing:

1. The table is opened, and refused if it is missing or another one than before: a folder that came back empty must
   hold the batch, not start a second table.
2. The table's own log is asked for the last batch of this query. If it is this one or a later one: done.
3. The rows are written as Parquet files, which no reader sees yet. A crash here leaves files that nothing refers to.
4. One entry in the table's log makes the files visible and notes (query, batch), in one atomic step.
5. The caller lets Spark commit the batch. A crash before that repeats the batch, which then ends at step 2.

Every row carries the batch that sealed it (`sealed_batch`): a reader that stands at batch N counts only rows up to N.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import DeltaError, TableNotFoundError

from stateside.errors import ArchiveInvalid
from stateside.storage import write_atomically

BATCH_COLUMN = "sealed_batch"


@dataclass(frozen=True, slots=True)
class TableSpec:
    """What a table is to look like; the column `sealed_batch` comes on top."""

    name: str
    schema: pa.Schema
    partition_by: tuple[str, ...] = ()

    @property
    def stored_schema(self) -> pa.Schema:
        """The schema with the batch's column."""
        return self.schema.append(pa.field(BATCH_COLUMN, pa.int64(), nullable=False))


class ArchiveTable:
    """A table and the mark, kept elsewhere, of which table it is. The mark makes sure that it is created only once.

    The mark belongs to what fills the table, and lies in its folder: who begins that anew, without a mark, must not
    find the table that was filled before, for the same rows would come a second time. So such a table is refused.
    """

    def __init__(self, path: Path, spec: TableSpec, mark: Path) -> None:
        self._path = path
        self._spec = spec
        self._mark = mark

    def create(self) -> None:
        """Create the table, unless it was created before: then it must still be there, and is not created anew."""
        if not self._mark.exists():
            self._create()

    def append(self, rows: pa.Table, query: str, batch: int) -> bool:
        """Store the rows of this query's batch, once; whether this call did it."""
        table = self._open()
        last = table.transaction_version(query)
        if last is not None and last >= batch:
            return False
        if rows.num_rows:
            stored = rows.append_column(BATCH_COLUMN, pa.array([batch] * rows.num_rows, pa.int64()))
            properties = CommitProperties(app_transactions=[Transaction(app_id=query, version=batch)])
            write_deltalake(table, stored.cast(self._spec.stored_schema), mode="append", commit_properties=properties)
        return True

    def read(self, up_to_batch: int | None = None) -> pa.Table:
        """All rows, or those sealed up to a batch."""
        filters = None if up_to_batch is None else [(BATCH_COLUMN, "<=", up_to_batch)]
        return self._open().to_pyarrow_table(filters=filters)

    def count(self) -> int:
        """How many rows there are; 0 before the table was created."""
        return self._open().count() if self._mark.exists() else 0

    def _create(self) -> None:
        """Create the table and then its mark; a crash between the two leaves a new table, and is mended here."""
        self._path.mkdir(parents=True, exist_ok=True)
        if not DeltaTable.is_deltatable(str(self._path)):
            partitions = list(self._spec.partition_by)
            DeltaTable.create(self._path, self._spec.stored_schema, partition_by=partitions, name=self._spec.name)
        table = self._load()
        if table.version() > 0 or table.file_uris():
            raise self._unmarked()
        write_atomically(self._mark, json.dumps({"table": table.metadata().id}).encode())

    def _open(self) -> DeltaTable:
        try:
            expected = json.loads(self._mark.read_bytes())["table"]
        except FileNotFoundError:
            raise self._invalid("has not been created yet") from None
        table = self._load()
        if table.metadata().id != expected:
            raise self._invalid(f"is another one ({table.metadata().id}) than before ({expected})")
        return table

    def _load(self) -> DeltaTable:
        try:
            return DeltaTable(self._path)
        except (TableNotFoundError, DeltaError, OSError) as error:
            raise self._invalid(f"cannot be opened: {error}") from error

    def _unmarked(self) -> ArchiveInvalid:
        return ArchiveInvalid(
            f"The table {self._spec.name!r} was written to before, but its mark {self._mark} is gone: "
            "to go on would append the same rows a second time",
            where=str(self._path),
            next_step=f"Nothing was written. Bring the folder {self._mark.parent} back, "
            "or move the table away to begin a new one",
        )

    def _invalid(self, reason: str) -> ArchiveInvalid:
        return ArchiveInvalid(
            f"The table {self._spec.name!r} {reason}",
            where=str(self._path),
            next_step="Nothing was written. Bring the table back, then run again: the batch is repeated",
        )
