"""The execution of one statement in its own DuckDB, and the list of relations.

Each step blocks, and runs in a thread, one step at a time:

    check     opens the DuckDB, checks the text
    execute   takes a snapshot of each view named, then opens the archive's tables; registers the rows that the
              principal may see, those of the relation (`rows.relation`); starts the statement
    next      returns some rows of the result
    close     always: closes the DuckDB and the snapshots

Snapshots are closed as soon as all rows are in memory, or by `close` where rows are scanned (`cache`).

The DuckDB lives in memory, for one statement, cut off from everything else: no files, no network, no extensions, no
Python variables as tables, no changes of its configuration, no spilling to disk. Only registered relations exist, and
nothing of one principal's statement is left for the next one.
"""

from __future__ import annotations

import re
import secrets
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Final

import duckdb
import pyarrow as pa

from stateside.core.errors import AccessDenied, SqlInvalid, SqlTooLarge, StatesideError
from stateside.core.layout import ViewLayout
from stateside.replica.store import Snapshot
from stateside.serving.access.principal import Principal
from stateside.serving.rows.archive import ArchiveTables, table_scope, with_computed
from stateside.serving.rows.columns import ArrowStream
from stateside.serving.rows.floor import Floor
from stateside.serving.rows.relation import Relation, not_whole
from stateside.serving.rows.view_reader import ViewReader
from stateside.serving.rows.view_readers import ViewReaders
from stateside.serving.sql.cache import LiveRows, RelationCache, read, scanned
from stateside.serving.sql.relations import Relations, SqlRelation, WindowBorder, window_borders
from stateside.serving.sql.sql_query import Ending, Parameters
from stateside.serving.sql.statement import Statement, checked
from stateside.serving.stamp import Source, Stamp

MEMORY_BYTES_MAX = 512 << 20  # of one statement, without the rows it reads
THREADS = 2
_SETTINGS: Final[dict[str, str | int | float | list[str]]] = {
    "allow_community_extensions": False,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "memory_limit": f"{MEMORY_BYTES_MAX >> 20}MiB",
    "python_enable_replacements": False,
    "temp_directory": "",
    "threads": THREADS,
}
_NO_ACCESS: Final = ("Permission Error", "IO Error", "HTTP Error", "Missing Extension Error", "Dependency Error")
_INSIDE: Final = ("INTERNAL Error", "FATAL Error")
_PATH: Final = re.compile(r"(?<![\w/])/(?:[\w.+-]+/)+[\w.+-]*")


def open_engine() -> duckdb.DuckDBPyConnection:
    """A DuckDB for one statement; the caller closes it."""
    connection = duckdb.connect(":memory:", config=_SETTINGS)
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("SET enable_progress_bar = false")
    connection.execute("CREATE SCHEMA archive")
    for setting in ("allowed_paths = []", "allowed_directories = []", "enable_external_access = false"):
        connection.execute(f"SET {setting}")  # not at `connect`, which would allow a file called :memory:
    connection.execute("SET lock_configuration = true")
    return connection


def told(error: Exception, statement: str) -> StatesideError:
    """DuckDB's error as the client may see it: without paths and internals of this machine."""
    text = str(error).strip()
    if "Out of Memory Error" in text:
        return SqlTooLarge(
            f"The statement needs more than {MEMORY_BYTES_MAX >> 20} MiB of memory",
            next_step="Let it group, sort or join less at a time: add a WHERE, or fewer columns",
        )
    if text.startswith(_NO_ACCESS):
        return SqlInvalid("A statement reaches no files, no network and no extensions", next_step="Leave that out")
    if any(inside in text for inside in _INSIDE):
        return SqlInvalid("DuckDB failed inside of this statement", next_step="Write it in another way")
    return SqlInvalid(_PATH.sub(lambda found: _own(found[0], statement), text), next_step="Mend the statement")


def _own(path: str, statement: str) -> str:
    """A path of the statement itself, or else an ellipsis."""
    return path if path in statement else "…"


RESULT_BATCH_ROWS = 8_192


@dataclass(frozen=True, slots=True)
class SqlFolder:
    """A folder as statements read it: relations, archive tables and cache."""

    relations: Relations
    archive: ArchiveTables
    kept: RelationCache


@dataclass(frozen=True, slots=True)
class HeldView:
    """A view in one snapshot."""

    reader: ViewReader
    snapshot: Snapshot
    stamp: Stamp


class Execution:
    """One statement; see the module docstring for its steps. One thread at a time, except for `ending`."""

    def __init__(self, folder: SqlFolder, holder: Principal, text: str, parameters: Parameters = ()) -> None:
        self.ending = Ending()
        self.stamps: list[Stamp] = []
        self.types: list[str] = []
        self._folder, self._holder, self._text, self._parameters = folder, holder, text, parameters
        self._statement: Statement | None = None
        self._relations: list[SqlRelation] = []
        self._places: dict[str, ViewLayout] = {}
        self._snapshots, self._turn, self._scans = ExitStack(), threading.Lock(), False
        self._engine: duckdb.DuckDBPyConnection | None = None
        self._result: pa.RecordBatchReader | None = None

    def check(self) -> list[str]:
        """The views that `execute` needs readers of; SqlInvalid or AccessDenied if the statement may not run."""
        self._engine = open_engine()
        self.ending.interrupts(self._engine.interrupt)
        try:
            self._statement = checked(self._engine, self._text)
        except duckdb.Error as error:
            raise self._why(error) from None
        self._relations = self._folder.relations.named(self._statement, self._holder)
        return sorted({relation.view for relation in self._relations})

    def execute(self, readers: Mapping[str, ViewReader], floor: Floor) -> pa.Schema:
        """Start the statement and return the result's schema. Errors as for reading views, and SqlInvalid."""
        views = {name: self._hold(reader, floor) for name, reader in readers.items()}
        stamps = [replace(view.stamp, source=self._source(name)) for name, view in views.items()]
        self.stamps = list(map(floor.positions.stamp, stamps))  # as shown to the principal
        named = [relation for relation in self._relations if relation.source != "archive"]
        live = {relation: self._live(relation, views[relation.view]) for relation in named}
        if not self._scans:
            self._snapshots.close()
        for relation in self._relations:
            sources: list[Any] = [live[relation]] if relation in live else []
            if relation.table is not None:  # after the snapshots: the table has all their batches
                sources += self._sealed(relation, views[relation.view])
            self._registered(relation, sources)
        self._result = self._running()
        return self._result.schema

    def next(self) -> pa.RecordBatch | None:
        """Further rows of the result; None at its end."""
        assert self._result is not None
        self.ending.check()
        try:
            return self._result.read_next_batch()
        except StopIteration:
            self.ending.check()  # an interrupt at the very end may have truncated the result
            return None
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            raise self._why(error) from None

    def close(self) -> None:
        """Close the DuckDB and all snapshots. May be called twice."""
        self.ending.interrupts(None)
        self._result = None
        if self._engine is not None:
            self._engine.close()
        self._snapshots.close()

    def _hold(self, reader: ViewReader, floor: Floor) -> HeldView:
        snapshot, stamp = self._snapshots.enter_context(reader.held(floor, self.ending.check))
        self._places[stamp.view] = reader.layout
        return HeldView(reader, snapshot, stamp)

    def _source(self, view: str) -> Source:
        """Where the statement reads rows of a view from."""
        sources = {relation.source for relation in self._relations if relation.view == view}
        return sources.pop() if len(sources) == 1 else "both"

    def _live(self, relation: SqlRelation, view: HeldView) -> ArrowStream:
        at = Relation.of(view.reader, self._holder, relation.by).at(view.snapshot, view.stamp)
        if relation.by is not None and view.stamp.share is not None:
            raise not_whole(view.stamp)
        at.check_held(at.scope.narrowed([]), scattered=False)
        rows = LiveRows(relation.view if relation.is_all else relation.name, at)
        table = read(rows, self._folder.kept, self.ending)
        if table is not None:
            return ArrowStream(table.schema, lambda: table)
        self._scans = True
        return scanned(rows, self.ending, self._turn)

    def _sealed(self, relation: SqlRelation, view: HeldView) -> list[Any]:
        """The rows of a table that count, as DuckDB takes them; none while the table of a whole view does not exist."""
        archive, catalogue = self._folder.archive, view.reader.shape.catalogue
        assert relation.table is not None
        if view.stamp.share is not None:  # the table has the rows of all shards
            raise not_whole(view.stamp)
        if relation.is_all:
            if relation.table not in archive.tables():
                return []
            predicate = Relation.of(view.reader, self._holder).scope.predicate()
        else:
            schema = archive.schema(relation.table, view.reader.layout)
            predicate = table_scope(schema, self._holder.rows_of(relation.view, schema.names))
        rows = archive.rows(relation.table, view.reader.layout, catalogue.application, view.stamp, predicate)
        return [with_computed(rows, view.reader.shape) if relation.is_all and catalogue.computed else rows]

    def _registered(self, relation: SqlRelation, sources: Sequence[Any]) -> None:
        assert self._engine is not None
        schema = sources[0].schema
        borders = [_border(each) for each in window_borders(schema)]
        if len(sources) == 1 and relation.table is None and not borders:
            self._engine.register(relation.name, sources[0])
            return
        hidden = {f"table_{secrets.token_hex(16)}": source for source in sources}
        for name, source in hidden.items():
            self._engine.register(name, source)
        left_out = _hidden(self._folder, relation, self._holder)
        columns = ", ".join([_quoted(name) for name in schema.names if name not in left_out] + borders)
        parts = " UNION ALL ".join(f"SELECT {columns} FROM {_quoted(name)}" for name in hidden)
        self._engine.execute(f"CREATE VIEW {'.'.join(map(_quoted, relation.path))} AS {parts}")

    def _running(self) -> pa.RecordBatchReader:
        assert self._engine is not None
        assert self._statement is not None
        self.ending.check()
        try:
            # None for no parameters: DuckDB then reports a `?` without a value.
            relation = self._engine.sql(self._statement.parsed, params=self._parameters or None)
            self.types = [str(type_) for type_ in relation.types]
            return relation.to_arrow_reader(RESULT_BATCH_ROWS)
        except (duckdb.Error, pa.ArrowException, OSError, ValueError, TypeError) as error:
            raise self._why(error) from None

    def _why(self, error: Exception) -> Exception:
        """The real cause, where DuckDB only reports an interrupt or missing rows."""
        why = self.ending.why
        if why is not None:
            return why if isinstance(why, StatesideError) else RuntimeError(f"reading rows failed: {why!r}")
        try:
            for relation in self._relations:
                if relation.table is not None and relation.view in self._places:
                    self._folder.archive.check_there(relation.table, self._places[relation.view])
        except StatesideError as away:  # the statement is not at fault
            return away
        return told(error, self._text)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _border(border: WindowBorder) -> str:
    return f"struct_extract({_quoted(border.window)}, '{border.border}') AS {_quoted(border.name)}"


def listed(folder: SqlFolder, views: ViewReaders, holder: Principal) -> list[dict[str, Any]]:
    """The relations that a principal may read, by name; without columns while the view has no batch."""
    engine = open_engine()
    try:
        found = []
        for relation in sorted(folder.relations.all().values(), key=str):
            schema = _schema(folder, views, relation)
            if _reached(holder, relation, schema):
                shown = [] if schema is None else _columns(engine, schema, _hidden(folder, relation, holder))
                found.append({"name": str(relation), "view": relation.view, "kind": relation.kind, "columns": shown})
        return found
    finally:
        engine.close()


def _schema(folder: SqlFolder, views: ViewReaders, relation: SqlRelation) -> pa.Schema | None:
    try:
        if relation.source == "archive":
            assert relation.table is not None
            return folder.archive.schema(relation.table, views.get(relation.view).layout)
        shape = views.get(relation.view).shape
        return (shape if relation.by is None else shape.rollup(relation.by)).columns.schema
    except StatesideError:  # not ready, or not servable: GET /v1/views has the cause
        return None


def _reached(holder: Principal, relation: SqlRelation, schema: pa.Schema | None) -> bool:
    names = relation.by if relation.by is not None else holder.where if schema is None else schema.names
    try:
        holder.rows_of(relation.view, names)
    except AccessDenied:
        return False
    return True


def _hidden(folder: SqlFolder, relation: SqlRelation, holder: Principal) -> frozenset[str]:
    if relation.source != "archive":
        return frozenset()
    assert relation.table is not None
    return folder.archive.hidden(relation.table, relation.view, holder)


def _columns(engine: Any, schema: pa.Schema, hidden: frozenset[str]) -> list[dict[str, str]]:
    for border in window_borders(schema):
        schema = schema.append(pa.field(border.name, border.type))
    types = engine.from_arrow(schema.empty_table()).types
    named = zip(schema.names, types, strict=True)
    return [{"name": name, "type": str(type_)} for name, type_ in named if name not in hidden]
