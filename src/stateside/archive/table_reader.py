"""Reader of an archive table: opened once, followed as it grows, with data skipping by the files' minima and maxima.

An archive table grows by files and never changes one. A result derived from a file is valid as long as the file belongs
to the table; so sums over the whole table are cached per file (see `billing.answers.totals`), and a new version costs
only its new files.

Opening a file costs more than a millisecond, and every batch leaves a small one until compaction. So small files, once
read, are cached in memory as one table, and searched together.

While the table's storage is away nothing is answered: rows sealed meanwhile would be missing. A caller able to report
the gap may ask for *known* rows: of the version read last, as far as cached. Delta treats a missing folder as one
without news; so the reader checks whether the newest version's own file still exists. Once the storage is back, the
next read notices.
"""

from __future__ import annotations

import logging
import operator
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from stateside.core.errors import ArchiveAway, ArchiveInvalid
from stateside.core.json_file import JsonFile

if TYPE_CHECKING:
    import pyarrow.dataset as pads  # takes a second to import: it brings pandas

SMALL_FILE_BYTES = 1 << 20  # on disk: smaller files are cached in memory,
KEPT_BYTES_MAX = 64 << 20  # up to this total
_TEXT_CHARS_SURE = 31  # a file's minimum and maximum of a longer text may be truncated, and prove nothing

MARK: JsonFile[str | None] = JsonFile(
    "The mark of a sink",
    lambda document: document.get("table"),  # other kinds of sinks have marks too
    lambda table: {"table": table},
    damage=ArchiveInvalid,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DataFile:
    """One file of a table: path, size, partition values, and the minimum and maximum of the other columns."""

    path: Path
    bytes: int
    partition: Mapping[str, str]
    least: Mapping[str, Any]
    greatest: Mapping[str, Any]

    def may_have(self, column: str, value: Any) -> bool:
        """Whether the file can contain a row with this value."""
        if column in self.partition:
            return self.partition[column] == str(value)
        return not (self._above(column, value) or self.is_below(column, value))

    def _above(self, column: str, value: Any) -> bool:
        least = self.least.get(column)
        return _sure(least) and bool(least > value)

    def is_below(self, column: str, value: Any) -> bool:
        """Whether all values are smaller, or null."""
        greatest = self.greatest.get(column)
        return _sure(greatest) and bool(greatest < value)

    def may_have_below(self, column: str, value: Any) -> bool:
        """Whether the file can contain a row with a smaller value."""
        least = self.least.get(column)
        return not (_sure(least) and bool(least >= value))

    def read(self, columns: Sequence[str], where: pc.Expression | None = None) -> pa.Table:
        """The given columns of the rows that satisfy a predicate over columns of the file (not of its partition).

        A column added to the table after this file is null. ArchiveAway if the file cannot be read.
        """
        stored = [name for name in columns if name not in self.partition]
        with _reading("A file of the archive", self.path):
            try:
                found = self._read(stored, where)
            except pa.ArrowInvalid:  # the file is older than a column
                found = self._read([name for name in pq.read_schema(self.path).names if name in stored], where)
        for name in columns:
            if name in self.partition:
                found = found.append_column(name, pa.array([self.partition[name]] * found.num_rows, pa.string()))
        return _selected(found, columns)

    def _read(self, columns: Sequence[str], where: pc.Expression | None) -> pa.Table:
        return pq.read_table(self.path, columns=list(columns), filters=where, partitioning=None, use_threads=False)

    def read_all(self) -> pa.Table:
        """All rows and columns, including the partition's; errors as for `read`."""
        with _reading("A file of the archive", self.path):
            names = pq.read_schema(self.path).names
        return self.read([*names, *self.partition])


class _Kept:
    """Cache of a version's small files, in memory as one table; all other files are read from disk."""

    def __init__(self) -> None:
        self.files: tuple[DataFile, ...] | None = None  # all files of the version, cached or not
        self._tables: dict[Path, pa.Table] = {}
        self.table: pa.Table | None = None

    def has(self, file: DataFile) -> bool:
        return file.path in self._tables

    def move_on(self, files: tuple[DataFile, ...]) -> None:
        """Cache the small files of a version, up to `KEPT_BYTES_MAX`."""
        if files is self.files:
            return
        tables: dict[Path, pa.Table] = {}
        left = KEPT_BYTES_MAX
        for file in files:
            if file.bytes < SMALL_FILE_BYTES and left > 0:
                known = self._tables.get(file.path)
                tables[file.path] = file.read_all() if known is None else known
                left -= tables[file.path].nbytes
        self.files, self._tables = files, tables
        self.table = _together(list(tables.values()))


class FollowedTable:
    """A read-only table of an application's folder, followed to its newest version. No files before it was created.

    Thread-safe: one thread at a time follows. ArchiveAway while the table cannot be read, ArchiveInvalid if another
    table is in its place.
    """

    def __init__(self, path: Path, mark: Path | Callable[[], Path]) -> None:
        """`mark`: its path, or for a table that outlives generations the function that finds it in the current one."""
        self._path, self._find_mark = path, mark
        self._lock = threading.Lock()
        self._table: DeltaTable | None = None
        self._id = ""
        self._version = -1
        self._files: tuple[DataFile, ...] = ()
        self._kept = _Kept()
        self._trouble: str | None = None  # the problem logged last

    def files(self) -> tuple[DataFile, ...]:
        """The files of the newest version; the same objects for as long as the version is the newest."""
        with self._lock:
            self._follow()
            return self._files

    def read(
        self,
        columns: Sequence[str],
        *,
        equal: Mapping[str, Any] | None = None,
        below: Mapping[str, Any] | None = None,
        among: Mapping[str, Sequence[Any]] | None = None,
        known: bool = False,
    ) -> pa.Table | None:
        """The rows of `parts` together; None if there is no such file."""
        return _together(list(self.parts(columns, equal=equal, below=below, among=among, known=known)))

    def parts(
        self,
        columns: Sequence[str],
        *,
        equal: Mapping[str, Any] | None = None,
        below: Mapping[str, Any] | None = None,
        least: Mapping[str, Any] | None = None,
        among: Mapping[str, Sequence[Any]] | None = None,
        known: bool = False,
    ) -> Iterator[pa.Table]:
        """The given columns of the rows with `equal` values, values `among` a set, `below` a limit, or `least` at it.

        A table for each file, read when it is asked for, and one for all cached files. All but `equal` name columns of
        the files, not of the partition. With `known` the rows are those of the version read last, without looking for a
        newer one; ArchiveAway if no version was read yet, or if a file is not cached and cannot be read.
        """
        wanted = _Wanted(dict(equal or {}), dict(below or {}), dict(least or {}), dict(among or {}))
        with self._lock:
            if not known:
                self._follow()
                self._kept.move_on(self._files)
            if self._kept.files is None:
                raise away(f"The table {self._path.name!r} has not been read yet, and cannot be now", str(self._path))
            files, kept = [file for file in self._kept.files if not self._kept.has(file)], self._kept.table
        for file in filter(wanted.may_be_in, files):
            yield file.read(columns, wanted.condition(file.partition))
        if kept is not None:
            condition = wanted.condition({})
            yield _selected(kept if condition is None else kept.filter(condition), columns)

    def dataset(self) -> pads.Dataset | None:
        """The newest version as an Arrow dataset, read lazily; None before the table was created."""
        with self._lock:
            self._follow()
            if self._table is None:
                return None
            return self._table.to_pyarrow_dataset(filesystem=files_of(self._path))

    def check_there(self) -> None:
        """ArchiveAway if a file of the newest version is missing: for callers with another library's error at hand."""
        for file in self.files():
            with _reading("A file of the archive", file.path):
                file.path.stat()

    def _follow(self) -> None:
        """Move to the newest version; logs the first failure, and the first success after a failure."""
        try:
            with _reading(f"The table {self._path.name!r}", self._path):
                self._move_on()
        except (ArchiveAway, ArchiveInvalid) as error:
            self._tell(str(error))
            raise
        self._tell(None)

    @property
    def _mark(self) -> Path:
        return self._find_mark if isinstance(self._find_mark, Path) else self._find_mark()

    def _move_on(self) -> None:
        expected = MARK.read(self._mark)
        if expected is None:
            self._check_unmarked()
            return
        if self._table is None or self._id != expected:
            self._open(expected)
        assert self._table is not None
        self._table.update_incremental()
        version = self._table.version()
        (self._path / "_delta_log" / f"{version:020}.json").stat()  # missing if the storage is away
        if version != self._version:
            actions: Any = self._table.get_add_actions(flatten=True)
            self._files = tuple(_data_file(self._path, row) for row in pa.table(actions).to_pylist())
            self._version = version

    def _check_unmarked(self) -> None:
        """ArchiveInvalid for a table with rows but without a mark: a table is marked before its first row is stored."""
        if (self._path / "_delta_log" / f"{1:020}.json").exists():
            raise ArchiveInvalid(
                f"The table {self._path.name!r} has rows, but the mark of its sink is gone",
                where=str(self._mark),
                next_step="Bring this file back from a copy of the folder: without it the table may be another one",
            )

    def _open(self, expected: str) -> None:
        table = DeltaTable(self._path)
        found = str(table.metadata().id)
        if found != expected:
            raise ArchiveInvalid(
                "The table is another one than its mark says",
                where=f"{self._path}: {found}, not {expected}",
                next_step="Bring the table back that belongs to this folder",
            )
        self._table, self._id, self._version = table, expected, -1

    def _tell(self, trouble: str | None) -> None:
        if trouble != self._trouble:
            self._trouble = trouble
            log.warning("archive: %s", trouble or f"the table {self._path.name!r} can be read again")


@contextmanager
def _reading(what: str, path: Path) -> Iterator[None]:
    """Translate errors of Delta, Arrow and the file system for unreachable storage into ArchiveAway."""
    try:
        yield
    except (DeltaError, OSError) as error:
        raise away(f"{what} cannot be read", f"{path}: {error}") from error


def away(what: str, where: str) -> ArchiveAway:
    return ArchiveAway(what, where=where, next_step="Ask again later: it goes on once the storage is back")


def files_of(table: Path) -> pafs.FileSystem:
    """The file system of a table's folder.

    With deltalake's own one, in Python, Arrow's threads may abort a process that ends soon after.
    """
    return pafs.SubTreeFileSystem(str(table.resolve()), pafs.LocalFileSystem())


def _data_file(folder: Path, action: Mapping[str, Any]) -> DataFile:
    return DataFile(
        path=folder / unquote(action["path"]),
        bytes=action["size_bytes"],
        partition=_named(action, "partition."),
        least=_named(action, "min."),
        greatest=_named(action, "max."),
    )


def _named(action: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): value for name, value in action.items() if name.startswith(prefix)}


def _selected(table: pa.Table, columns: Sequence[str]) -> pa.Table:
    """The given columns; a column missing in the table is null."""
    for name in columns:
        if name not in table.column_names:
            table = table.append_column(name, pa.nulls(table.num_rows))
    return table.select(list(columns))


def _together(tables: Sequence[pa.Table]) -> pa.Table | None:
    """All rows; a column missing in some of the tables is null in their rows."""
    return pa.concat_tables(tables, promote_options="default") if tables else None


def _sure(bound: Any) -> bool:
    return bound is not None and not (isinstance(bound, str) and len(bound) > _TEXT_CHARS_SURE)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A predicate: the arguments of `FollowedTable.parts`."""

    equal: Mapping[str, Any]
    below: Mapping[str, Any]
    least: Mapping[str, Any]
    among: Mapping[str, Sequence[Any]]

    def may_be_in(self, file: DataFile) -> bool:
        """Whether the file can contain such a row, by its minima and maxima."""
        return (
            all(file.may_have(*pair) for pair in self.equal.items())
            and all(file.may_have_below(*pair) for pair in self.below.items())
            and not any(file.is_below(*pair) for pair in self.least.items())
            and all(any(file.may_have(name, value) for value in values) for name, values in self.among.items())
        )

    def condition(self, partition: Mapping[str, str]) -> pc.Expression | None:
        """The predicate over a file's columns; None for all rows."""
        parts = [pc.field(name) == value for name, value in self.equal.items() if name not in partition]
        parts += [pc.field(name) < limit for name, limit in self.below.items()]
        parts += [pc.field(name) >= limit for name, limit in self.least.items()]
        parts += [pc.field(name).isin(list(values)) for name, values in self.among.items()]
        return reduce(operator.and_, parts) if parts else None
