"""Archive tables: Delta tables that store each batch exactly once.

How a batch gets in exactly once; a crash between any two steps, followed by a rerun of the same batch, changes nothing:

1. The table is opened, and refused if missing or replaced by another: a folder that came back empty must hold the
   batch, not start a second table.
2. The table's own log is asked for the last batch of this query. If the log has this batch or a later one: done.
3. The rows are written as Parquet files, which no reader sees yet. A crash here leaves unreferenced files.
4. One entry in the table's log makes the files visible and records (query, batch), in one atomic step.
5. The caller lets Spark commit the batch. A crash before the commit repeats the batch, which then ends at step 2.

Rows with a key of their own can be *inserted if absent* instead of appended. Steps 3 and 4 are then one merge: rows
whose key is in the table are left out, the others are written, and the log refuses the entry if another writer
meanwhile committed rows that could have the same keys; the insert then starts again at step 1. So a key is in the table
once, even if a new query, with a checkpoint of its own, brings the same rows again.

Every row of an archive carries its sealing batch (`sealed_batch`): a reader at batch N counts only rows up to N.

Optimistic concurrency (`OpenedTable`): a writer that must read the table before deciding what to store works on one
version. Beside its rows a table has *counters*: integers under names, stored in its log and changed only together with
rows, in one atomic step. Every commit of such a writer sets the same names, and Delta refuses a commit if another one
has set any of these names since the version was opened. So a decision taken from one version is stored on top of that
very version, or not at all.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction, WriterProperties, write_deltalake
from deltalake.exceptions import (
    CommitFailedError,
    DeltaError,
    DeltaProtocolError,
    SchemaMismatchError,
    TableNotFoundError,
)

from stateside.archive.table_reader import MARK, files_of
from stateside.core.errors import ArchiveInvalid, SinkAway
from stateside.core.storage import try_lock

BATCH_COLUMN = "sealed_batch"
CONFLICTS_MAX = 20  # conflicts in a row with other writers before an insert gives up
OnStep = Callable[[int], None]  # called with each numbered step as it is reached, except 4, invisible from outside
# A lock in the table's folder: Delta lets two writers compact the same files, and the table then has their rows twice.
LOCK = ".compaction.lock"
COMMITS_BETWEEN = 50  # after so many commits small files are compacted,
FILE_BYTES = 16 << 20  # up to about this size: larger files are left as they are
# A lookup of one customer reads one row group: with a million invoices in one group it would read all of them.
IN_GROUPS = WriterProperties(max_row_group_size=8_192)


@dataclass(frozen=True, slots=True)
class OpenedTable:
    """One version of a table, from `ArchiveTable.opened`."""

    table: DeltaTable
    path: Path
    spec: TableSpec

    def counter(self, name: str) -> int | None:
        """The counter's value; None before it is first set."""
        return self.table.transaction_version(name)

    def read(self, columns: Sequence[str], where: pc.Expression | None = None) -> pa.Table:
        """The given columns of the rows that satisfy a predicate. Files without such rows are skipped."""
        return self.table.to_pyarrow_dataset(filesystem=files_of(self.path)).to_table(
            columns=list(columns), filter=where
        )

    def store(self, rows: pa.Table, batch: int, counters: Mapping[str, int]) -> None:
        """Add the rows and set the counters in one step.

        SinkAway, and nothing is stored, if another writer committed meanwhile or the disk refuses the write.
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
                "See that one driver runs only: the batch is held, and what it stores found out again",
            ) from error
        except (SchemaMismatchError, DeltaProtocolError):
            raise  # a retry would fail again
        except (DeltaError, OSError) as error:
            raise self._away(
                f"The table {self.spec.name!r} cannot be written: {error}",
                "Mend the disk: the batch is held until then",
            ) from error

    def tidy(self) -> bool:
        """Compact small files, every `COMMITS_BETWEEN` commits; whether a compaction ran. No row or counter changes.

        Opening and reading a file costs about a millisecond, and every batch leaves some files: without compaction,
        reads would get slower without end. The compacted files stay on disk, for readers of older versions.
        """
        lock = try_lock(self.path / LOCK) if _is_due(self.table) else None
        if lock is None:
            return False
        try:
            newest = DeltaTable(self.path)
            if due := _is_due(newest):  # not compacted by another writer meanwhile
                newest.optimize.compact(target_size=FILE_BYTES, writer_properties=IN_GROUPS)
            return due
        finally:
            os.close(lock)

    def _away(self, what: str, next_step: str) -> SinkAway:
        return SinkAway(what, where=str(self.path), next_step=next_step)


@dataclass(frozen=True, slots=True)
class TableSpec:
    """A table's columns and partitioning; with `sealed`, the column `sealed_batch` is added."""

    name: str
    schema: pa.Schema
    partition_by: tuple[str, ...] = ()
    sealed: bool = True

    @property
    def stored_schema(self) -> pa.Schema:
        """The schema, with the batch's column if there is one."""
        return self.schema.append(pa.field(BATCH_COLUMN, pa.int64(), nullable=False)) if self.sealed else self.schema

    def stored(self, rows: pa.Table, batch: int) -> pa.Table:
        """The rows as stored; ValueError if the rows do not fit the schema."""
        column = pa.array([batch] * rows.num_rows, pa.int64())
        return (rows.append_column(BATCH_COLUMN, column) if self.sealed else rows).cast(self.stored_schema)


class ArchiveTable:
    """A table and its mark: a file elsewhere with the table's id, so that the table is created only once.

    The mark lies in the folder of the view that fills the table. A view started again without its mark must not reuse
    the table filled before, because the same rows would be stored a second time: such a table is refused.
    """

    def __init__(self, path: Path, spec: TableSpec, mark: Path, on_step: OnStep = lambda step: None) -> None:
        self._path = path
        self._spec = spec
        self._mark = mark
        self._on_step = on_step

    def create(self, *, take_over: bool = False) -> None:
        """Create the table on first use; a table created before must still exist, and is not created again.

        With `take_over` a table filled by another view is accepted unchanged: safe for `insert_absent` only.
        """
        if not self._mark.exists():
            self._create(take_over)

    def check_schema(self) -> None:
        """ArchiveInvalid, with the difference, if the table's columns differ from the spec's."""
        stored = _columns(self._open().schema())
        wanted = _columns(Schema.from_arrow(self._spec.stored_schema))
        if stored != wanted:
            raise ArchiveInvalid(
                f"The table {self._spec.name!r} has other columns than its rows: {_difference(stored, wanted)}",
                where=str(self._path),
                next_step="Nothing was written. Take the change back, or name another table",
            )

    def add_columns(self, *names: str) -> None:
        """Add the missing ones of these columns to the table, as in the spec; existing rows have null there.

        One entry in the table's log; no row or counter changes. Idempotent.
        """
        table = self._open()
        there = {field.name for field in table.schema().fields}
        missing = [field for field in self._fields(names) if field.name not in there]
        if missing:
            table.alter.add_columns(missing)

    def _fields(self, names: Sequence[str]) -> list[Field]:
        return [field for field in Schema.from_arrow(self._spec.stored_schema).fields if field.name in names]

    def append(self, rows: pa.Table, query: str, batch: int) -> bool:
        """Store the rows of the query's batch, once; False if they were stored before."""
        table = self._open_before(query, batch)
        if table is None:
            return False
        if rows.num_rows:
            self._on_step(3)
            stored = self._spec.stored(rows, batch)
            noting = _noting(query, batch)
            write_deltalake(table, stored, mode="append", commit_properties=noting, writer_properties=IN_GROUPS)
            self._on_step(5)
        return True

    def insert_absent(self, rows: pa.Table, key: Sequence[str], query: str, batch: int) -> int:
        """Store the rows whose key is not in the table; returns their number.

        ValueError if a part of a key is null, or two of the rows have the same key: neither is ever stored.
        """
        _check_keys(rows, key)
        if not rows.num_rows:
            return 0
        for _ in range(CONFLICTS_MAX):
            table = self._open_before(query, batch)
            if table is None:
                return 0
            self._on_step(3)
            try:
                inserted = _merge(table, self._spec.stored(rows, batch), key, _noting(query, batch))
            except CommitFailedError:  # others wrote at the same time: read the table again
                continue
            self._on_step(5)
            return inserted
        raise SinkAway(
            f"Other writers came in between {CONFLICTS_MAX} times while rows were inserted into {self._spec.name!r}",
            where=str(self._path),
            next_step="Let fewer write to it at a time: the batch is held until it gets in",
        )

    def read(self, up_to_batch: int | None = None) -> pa.Table:
        """All rows, or only rows sealed up to a batch."""
        filters = None if up_to_batch is None else [(BATCH_COLUMN, "<=", up_to_batch)]
        return self._open().to_pyarrow_table(filters=filters, filesystem=files_of(self._path))

    def count(self) -> int:
        """The number of rows; 0 before the table was created."""
        return self._open().count() if self._mark.exists() else 0

    def opened(self) -> OpenedTable:
        """The current version, for a writer that reads before writing; ArchiveInvalid if the table does not exist."""
        return OpenedTable(self._open(), self._path, self._spec)

    def _open_before(self, query: str, batch: int) -> DeltaTable | None:
        """Steps 1 and 2: the table, unless it has the batch already."""
        self._on_step(1)
        table = self._open()
        self._on_step(2)
        last = table.transaction_version(query)
        return table if last is None or last < batch else None

    def _create(self, take_over: bool) -> None:
        """Create the table, then its mark. A crash between the two leaves a new table: the next call marks it."""
        self._path.mkdir(parents=True, exist_ok=True)
        if not DeltaTable.is_deltatable(str(self._path)):
            partitions = list(self._spec.partition_by)
            DeltaTable.create(self._path, self._spec.stored_schema, partition_by=partitions, name=self._spec.name)
        table = self._load()
        if not take_over and (table.version() > 0 or table.file_uris()):
            raise self._unmarked()
        MARK.write(self._mark, str(table.metadata().id))

    def _open(self) -> DeltaTable:
        expected = MARK.read(self._mark)
        if expected is None:
            raise self._invalid("has not been created yet")
        table = self._load()
        if str(table.metadata().id) != expected:
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


def _is_due(table: DeltaTable) -> bool:
    return table.version() > 0 and table.version() % COMMITS_BETWEEN == 0


def _noting(query: str, batch: int) -> CommitProperties:
    return CommitProperties(app_transactions=[Transaction(app_id=query, version=batch)])


def _merge(table: DeltaTable, rows: pa.Table, key: Sequence[str], properties: CommitProperties) -> int:
    """Insert the rows whose key is absent, in one commit.

    Without `streamed_exec` the rows' keys are examined first, and only files that may hold them are read: 13 ms instead
    of 125 ms with a million rows in the table. Nested keys cannot be examined so.
    """
    same = " and ".join(f"stored.{_quoted(name)} = new.{_quoted(name)}" for name in key)
    nested = any(pt.is_nested(rows.schema.field(name).type) for name in key)
    merger = table.merge(
        rows, same, source_alias="new", target_alias="stored", streamed_exec=nested, commit_properties=properties
    )
    return int(merger.when_not_matched_insert_all().execute()["num_target_rows_inserted"])


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _check_keys(rows: pa.Table, key: Sequence[str]) -> None:
    keys = rows.select(list(key))
    empty = [name for name in key if keys[name].null_count]
    if empty:
        raise ValueError(f"The key column {empty[0]!r} is null in {keys[empty[0]].null_count} rows")
    doubles = rows.num_rows - _distinct(keys)
    if doubles:
        raise ValueError(f"{doubles} rows have the key ({', '.join(key)}) of another")


def _distinct(keys: pa.Table) -> int:
    """The number of distinct rows; Arrow cannot group by nested columns."""
    if any(pt.is_nested(field.type) for field in keys.schema):
        return len({repr(row) for row in keys.to_pylist()})
    return int(keys.group_by(keys.column_names).aggregate([]).num_rows)


def _columns(schema: Schema) -> dict[str, str]:
    return {field.name: json.dumps(json.loads(field.type.to_json())) for field in schema.fields}


def _difference(stored: dict[str, str], wanted: dict[str, str]) -> str:
    """Column by column, in the table's words."""
    lines = [f"{name!r} is missing in the rows" for name in stored if name not in wanted]
    lines += [f"{name!r} is missing in the table" for name in wanted if name not in stored]
    lines += [
        f"{name!r} is {stored[name]} in the table, {wanted[name]} in the rows"
        for name in stored
        if name in wanted and stored[name] != wanted[name]
    ]
    return "; ".join(lines)
