"""Delta sink: a batch is one commit of the table's own log.

The numbered protocol is in `archive.table`: rows and (query, batch) enter in one log entry. Repeated rows are
recognised

- without a key, by their batch. Rows are appended, and the table belongs to the one checkpoint that fills it: with
  another checkpoint every row would come a second time, so a filled table is refused.
- with a key, by the key. Rows are inserted if absent, so a new checkpoint or another writer with the same rows adds
  nothing. Of rows with one key the row of the earliest batch stays; inside a batch the row whose JSON text
  (`json_rows`) sorts first. No part of a key may be null or a float.

A table that is missing or has been replaced holds the batch; the sink never creates a table twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.types as pt

from stateside.core.errors import ArchiveInvalid, SinkAway, SinkRefused, ViewInvalid
from stateside.pipeline.sinks.json_rows import check_json, json_texts
from stateside.pipeline.sinks.sink import BatchId, OnStep, SinkContext, SinkFactory, ignore_step, inside, keyed

if TYPE_CHECKING:
    from stateside.archive import ArchiveTable

_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}", re.ASCII)


def delta(
    table: str,
    *,
    key: Sequence[str] | None = None,
    partition_by: Sequence[str] = (),
    on_step: OnStep = ignore_step,
) -> SinkFactory:
    """A sink that stores rows in the application's Delta table of this name: appended, or with a `key` if absent.

    The table has the columns of the rows; created by the first run, partitioned by `partition_by`.
    """
    _check_name(table)
    if key is not None and not key:
        raise ViewInvalid(f"The table {table!r} has a key without columns", next_step="Name them, or leave key= out")
    opening = Opening(table, tuple(key or ()), tuple(partition_by), sealed=False, on_step=on_step)

    @inside
    def opened(context: SinkContext) -> DeltaSink:
        return opening.open(context)

    return keyed(opened) if key else opened


def archive_sink(table: str, *, partition_by: Sequence[str] = (), on_step: OnStep = ignore_step) -> SinkFactory:
    """The sink of a view's archive: closed rows are appended with the batch that closed them, `sealed_batch`."""
    _check_name(table)
    return Opening(table, (), tuple(partition_by), sealed=True, on_step=on_step).open


@dataclass(frozen=True, slots=True)
class DeltaSink:
    """Stores batches in a table: appended or, with a key, if absent."""

    table: ArchiveTable
    key: tuple[str, ...] = ()

    def write(self, rows: pa.Table, batch: BatchId) -> None:
        """Store the rows by the steps of `archive.table`."""
        with _told():
            if self.key:
                self.table.insert_absent(first_of_each(rows, self.key), self.key, batch.query, batch.batch)
            else:
                self.table.append(rows, batch.query, batch.batch)


@dataclass(frozen=True, slots=True)
class Opening:
    """The parameters with which each run opens a table's sink."""

    name: str
    key: tuple[str, ...]
    partition_by: tuple[str, ...]
    sealed: bool
    on_step: OnStep

    @inside
    def open(self, context: SinkContext) -> DeltaSink:
        """The sink; the first run creates its table.

        ViewInvalid if the table cannot hold the rows, ArchiveInvalid for a table of another checkpoint.
        """
        from stateside.archive import ArchiveTable, TableSpec

        self._check_columns(context.schema)
        places = context.layout.view(context.view)
        spec = TableSpec(self.name, _nullable(context.schema), self.partition_by, self.sealed)
        self._check_types(context.schema)
        place = places.table(self.name) if self.sealed else context.layout.table(self.name)
        table = ArchiveTable(place, spec, places.mark(self.name), self.on_step)
        known = (places.checkpoint / "metadata").exists() or context.again
        if not self.key and not known and table.count():
            raise ArchiveInvalid(
                f"The table {self.name!r} has rows, but the checkpoint of the query that stored them is gone",
                where=str(places.checkpoint),
                next_step="Bring the checkpoint back, or move table and view folder away to begin again",
            )
        table.create(take_over=bool(self.key) or context.again)
        table.check_schema()
        return DeltaSink(table, self.key)

    def _check_columns(self, schema: pa.Schema) -> None:
        for name in (*self.key, *self.partition_by):
            if name not in schema.names:
                raise self._invalid(f"has no column {name!r}", f"Choose among {', '.join(schema.names)}")
        floats = [name for name in self.key if pt.is_floating(schema.field(name).type)]
        if floats:
            raise self._invalid(f"has the float {floats[0]!r} in its key", "Cast it to a decimal or an integer")
        if self.sealed and "sealed_batch" in schema.names:
            raise self._invalid("has a column 'sealed_batch' of its own", "Rename it")
        if self.key:
            check_json(schema)

    def _check_types(self, schema: pa.Schema) -> None:
        from deltalake import Schema

        for field in schema:
            try:
                Schema.from_arrow(pa.schema([field]))
            except Exception as error:  # deltalake raises nothing narrower
                what = f"has the column {field.name!r} of the type {field.type}, which Delta tables cannot hold"
                raise self._invalid(what, "Cast it, or leave it out") from error

    def _invalid(self, what: str, next_step: str) -> ViewInvalid:
        return ViewInvalid(f"What goes to the table {self.name!r} {what}", next_step=next_step)


def first_of_each(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """One row per key: the row whose JSON text, columns in order, sorts first."""
    keys = json_texts(rows.select(list(key)))
    if len(set(keys)) == rows.num_rows:
        return rows
    texts = json_texts(rows)
    first: dict[str, int] = {}
    for number in sorted(range(rows.num_rows), key=texts.__getitem__):
        first.setdefault(keys[number], number)
    return rows.take(sorted(first.values()))


@contextmanager
def _told() -> Iterator[None]:
    """Translate errors of the table into SinkAway (held and retried) or SinkRefused (final)."""
    from deltalake.exceptions import DeltaError, DeltaProtocolError, SchemaMismatchError

    try:
        yield
    except ArchiveInvalid as error:
        raise SinkAway(
            error.what, where=error.where, next_step="Bring the table back: the batch is held until then"
        ) from error
    except (SchemaMismatchError, DeltaProtocolError, ValueError) as error:
        raise SinkRefused(f"The table refuses the rows: {error}", next_step="Mend the view, then run again") from error
    except (DeltaError, OSError) as error:
        raise SinkAway(
            f"The table cannot be written: {error}", next_step="Mend the disk: the batch is held until then"
        ) from error


def _nullable(schema: pa.Schema) -> pa.Schema:
    """Make all columns nullable: Spark's own nullability changes with the slightest edit of a query."""
    return pa.schema([field.with_nullable(True) for field in schema])


def _check_name(table: str) -> None:
    if not _NAME.fullmatch(table):
        raise ViewInvalid(f"{table!r} cannot be the name of a table", next_step="Use a to z, 0 to 9 and _")
