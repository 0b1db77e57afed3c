"""One statement from its text to its rows, step by step: each step blocks, and runs in some thread, one at a time.

    check     its DuckDB is opened, the text is looked through
    execute   of each view that it names a snapshot is taken, then the archive's tables are opened; what its holder may
              have of them is registered; it begins to run
    next      some rows of the result
    close     always: the DuckDB and the snapshots go

Snapshots are let go as soon as all rows are in memory, or with `close` where rows are scanned (`live`).
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import duckdb
import pyarrow as pa

from stateside.checkpoint.catalogue import Catalogue
from stateside.checkpoint.computed import KnownSteps
from stateside.errors import NotFreshEnough, StatesideError
from stateside.layout import Layout
from stateside.replica.keys import KeyCodec
from stateside.replica.store import Snapshot
from stateside.serving.access.holder import Holder
from stateside.serving.reading.floor import Floor
from stateside.serving.reading.holding import check_held, not_whole
from stateside.serving.reading.reader import ViewReader
from stateside.serving.sql.columns import RollupColumns, ViewColumns
from stateside.serving.sql.ending import Ending
from stateside.serving.sql.engine import open_engine, told
from stateside.serving.sql.kept import Kept, State
from stateside.serving.sql.live import Rows, Scan, Whole, read
from stateside.serving.sql.question import Parameters
from stateside.serving.sql.relations import ARCHIVE, Relation, Relations
from stateside.serving.sql.scope import scope_of_rollup, scope_of_view
from stateside.serving.sql.sealed import Archive
from stateside.serving.sql.statement import Statement, checked
from stateside.serving.stamp import Source, Stamp
from stateside.storage import Storage

RESULT_BATCH_ROWS = 8_192


@dataclass(frozen=True, slots=True)
class Folder:
    """What statements read: the places of a folder, its relations and tables, and what is kept of them."""

    layout: Layout
    relations: Relations
    archive: Archive
    kept: Kept


@dataclass(frozen=True, slots=True)
class Held:
    """A view in one snapshot."""

    catalogue: Catalogue
    snapshot: Snapshot
    stamp: Stamp


class Execution:
    """See the module's text, which is the contract. Not for two threads at the same time, but for `ending`."""

    def __init__(self, folder: Folder, holder: Holder, text: str, parameters: Parameters = ()) -> None:
        self.ending = Ending()
        self.stamps: list[Stamp] = []
        self.types: list[str] = []
        self._folder, self._holder, self._text, self._parameters = folder, holder, text, parameters
        self._statement: Statement | None = None
        self._relations: list[Relation] = []
        self._snapshots, self._turn = ExitStack(), threading.Lock()
        self._engine: duckdb.DuckDBPyConnection | None = None
        self._result: pa.RecordBatchReader | None = None

    def check(self) -> list[str]:
        """The views whose readers `execute` needs; SqlInvalid or AccessDenied if the statement may not run."""
        self._engine = open_engine()
        self.ending.interrupts(self._engine.interrupt)
        try:
            self._statement = checked(self._engine, self._text)
        except duckdb.Error as error:
            raise self._why(error) from None
        self._relations = self._folder.relations.named(self._statement, self._holder)
        return sorted({relation.view for relation in self._relations})

    def execute(self, readers: Mapping[str, ViewReader], floor: Floor) -> pa.Schema:
        """Begin to run it; gives the columns of the result. Errors as for reading views, and SqlInvalid."""
        views = {name: self._hold(reader, floor) for name, reader in readers.items()}
        stamps = [replace(view.stamp, source=self._source(name)) for name, view in views.items()]
        self.stamps = list(map(floor.positions.stamp, stamps))  # as who asks is shown them
        live = [relation for relation in self._relations if relation.table is None]
        sources = [(relation, self._live(relation, views[relation.view])) for relation in live]
        if not any(isinstance(source, Scan) for _, source in sources):
            self._snapshots.close()
        for relation, source in sources:
            self._registered(relation, source)
        for relation in self._relations:
            if relation.table is not None:  # after the snapshots: so it has all of their batches
                self._registered(relation, self._sealed(relation.table, views[relation.view]))
        self._result = self._running()
        return self._result.schema

    def next(self) -> pa.RecordBatch | None:
        """Further rows of the result; None at its end."""
        assert self._result is not None
        self.ending.check()
        try:
            return self._result.read_next_batch()
        except StopIteration:
            self.ending.check()  # interrupted at the very end: it may have been cut short
            return None
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            raise self._why(error) from None

    def close(self) -> None:
        """Let everything go. May be called twice."""
        self.ending.interrupts(None)
        self._result = None
        if self._engine is not None:
            self._engine.close()
        self._snapshots.close()

    def _hold(self, reader: ViewReader, floor: Floor) -> Held:
        snapshot, stamp = self._snapshots.enter_context(reader.held(floor, self.ending.check))
        return Held(reader.shape.catalogue, snapshot, stamp)

    def _source(self, view: str) -> Source:
        """Where the statement looks for rows of a view."""
        sealed = {relation.table is not None for relation in self._relations if relation.view == view}
        return "both" if len(sealed) > 1 else "archive" if True in sealed else "live"

    def _live(self, relation: Relation, view: Held) -> Whole | Scan:
        rows = _rows(relation, view, self._folder.layout)
        where = self._holder.rows_of(relation.view, rows.columns.schema.names if relation.by is None else relation.by)
        scope = scope_of_view(view.catalogue, where) if relation.by is None else scope_of_rollup(view.catalogue, where)
        check_held(view.stamp, _codec(view.catalogue), scope.prefix, scattered=False)
        table = read(rows, scope, self._folder.kept, self.ending)
        return Scan(rows, scope, self.ending, self._turn) if table is None else Whole(table)

    def _sealed(self, table: str, view: Held) -> Any:
        if view.stamp.share is not None:  # the table has all keys' rows, the replica has not
            raise not_whole(view.stamp)
        columns = self._folder.archive.schema(table, view.stamp.view).names
        where = self._holder.rows_of(view.stamp.view, columns)
        return self._folder.archive.rows(table, view.stamp.view, view.catalogue.application, view.stamp, where)

    def _registered(self, relation: Relation, source: Any) -> None:
        assert self._engine is not None
        if relation.table is None:
            self._engine.register(relation.name, source)
            return
        hidden = f"table_{secrets.token_hex(16)}"
        self._engine.register(hidden, source)
        left_out = sorted(self._folder.archive.hidden(relation.table, relation.view, self._holder))
        columns = f"* EXCLUDE ({', '.join(map(_quoted, left_out))})" if left_out else "*"
        self._engine.execute(f'CREATE VIEW {ARCHIVE}.{_quoted(relation.name)} AS SELECT {columns} FROM "{hidden}"')

    def _running(self) -> pa.RecordBatchReader:
        assert self._engine is not None
        assert self._statement is not None
        self.ending.check()
        try:
            # A statement's parameters are its own: without any, None lets a `?` in it be told of.
            relation = self._engine.sql(self._statement.parsed, params=self._parameters or None)
            self.types = [str(type_) for type_ in relation.types]
            return relation.to_arrow_reader(RESULT_BATCH_ROWS)
        except (duckdb.Error, pa.ArrowException, OSError, ValueError, TypeError) as error:
            raise self._why(error) from None

    def _why(self, error: Exception) -> Exception:
        """What really went wrong, if DuckDB only tells that it was interrupted, or that it got no rows."""
        why = self.ending.why
        if why is not None:
            return why if isinstance(why, StatesideError) else RuntimeError(f"reading rows failed: {why!r}")
        try:
            for relation in self._relations:
                if relation.table is not None:
                    self._folder.archive.check_there(relation.table, relation.view)
        except StatesideError as away:  # it is not the statement's fault
            return away
        return told(error, self._text)


def _rows(relation: Relation, view: Held, layout: Layout) -> Rows:
    applied, catalogue = view.snapshot.batch(), view.catalogue
    assert applied is not None, "a snapshot with a stamp has a batch"
    state = State((view.stamp.replica, applied.query, catalogue), applied.batch, applied.fingerprint)
    if relation.by is None:
        return Rows(str(relation), state, view_columns(layout, catalogue), view.snapshot)
    number = _kept_rollup(relation.by, view)
    return Rows(str(relation), state, RollupColumns(catalogue, relation.by), view.snapshot, number)


def _codec(catalogue: Catalogue) -> KeyCodec:
    return KeyCodec([column.asked_type for column in catalogue.key])


def view_columns(layout: Layout, catalogue: Catalogue) -> ViewColumns:
    """What makes columns of the rows of a view of this folder."""
    places = layout.view(catalogue.view)
    steps = KnownSteps(places.name, places.steps)
    return ViewColumns(catalogue, Storage.at(places.checkpoint_location), steps)


def _kept_rollup(by: tuple[str, ...], view: Held) -> int:
    """The rollup's number in the replica; NotFreshEnough while it has others than were declared last."""
    kept = view.snapshot.rollups()
    if by not in kept or view.snapshot.computed() != view.catalogue.computed:
        raise NotFreshEnough(
            f"The rollups of {view.stamp.view!r} are not those that were declared last",
            next_step="Ask again in a moment: the replica makes them anew",
        )
    return kept.index(by)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
