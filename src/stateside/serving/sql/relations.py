"""The relations of a folder, and their names and columns in SQL.

    bill                                a view: its live rows
    hourly__all                         live and sealed rows of a view with an archive, each once
    bill__by_period_end__plan__type     its rollup by these columns, in the order of their declaration
    bill__total                         its rollup by nothing: one row, the total of all
    archive.documents                   a table of the archive, which belongs to the view whose sink fills it

Names are case-insensitive, as everywhere in SQL. Where a view has the name of another view's rollup, the view wins.

A column that is a window or session, a struct of `start` and `end`, stands also as two plain columns at the end of the
row: `window_start` and `window_end`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.types as pt

from stateside.core.errors import AccessDenied, SqlInvalid
from stateside.core.layout import Layout
from stateside.serving.access.principal import Principal
from stateside.serving.rows.archive import ArchiveTables
from stateside.serving.sql.statement import Path, Statement
from stateside.serving.stamp import Source
from stateside.views.catalogue import Catalogue

ARCHIVE = "archive"
_BORDERS = ["start", "end"]
_NAMES_TOLD_MAX = 50


@dataclass(frozen=True, slots=True)
class SqlRelation:
    """A source of rows: a view, its rollup `by` some columns, a `table` that it fills, or view and table (`is_all`)."""

    name: str
    view: str
    by: tuple[str, ...] | None = None
    table: str | None = None
    is_all: bool = False

    @property
    def source(self) -> Source:
        """Where the rows come from."""
        return "both" if self.is_all else "live" if self.table is None else "archive"

    @property
    def kind(self) -> str:
        """What the list of relations calls it."""
        return {"both": "all", "archive": "archive", "live": "view" if self.by is None else "rollup"}[self.source]

    @property
    def path(self) -> Path:
        """The name in a statement."""
        return (ARCHIVE, self.name) if self.source == "archive" else (self.name,)

    def __str__(self) -> str:
        return ".".join(self.path)


def rollup_name(view: str, by: Sequence[str]) -> str:
    """The name of a view's rollup by these columns."""
    return f"{view}__by_{'__'.join(by)}" if by else f"{view}__total"


@dataclass(frozen=True, slots=True)
class WindowBorder:
    """A plain column with the start or end of a window."""

    name: str
    window: str
    border: str
    type: pa.DataType


def window_borders(schema: pa.Schema) -> list[WindowBorder]:
    """The plain columns for the windows of a relation; none where a column has the name already."""
    windows = [each for each in schema if pt.is_struct(each.type) and [part.name for part in each.type] == _BORDERS]
    found = [
        WindowBorder(f"{each.name}_{part.name}", each.name, part.name, part.type)
        for each in windows
        for part in each.type
    ]
    return [each for each in found if each.name not in schema.names]


class Relations:
    """The current relations of a folder."""

    def __init__(self, layout: Layout, archive: ArchiveTables) -> None:
        self._layout, self._archive = layout, archive

    def all(self) -> dict[Path, SqlRelation]:
        """All relations, by lower-case path."""
        found = {_folded(relation.path): relation for relation in self._sealed()}
        found |= {_folded(relation.path): relation for relation in self._made_of_views()}
        return found | {(view.name.lower(),): SqlRelation(view.name, view.name) for view in self._layout.views()}

    def named(self, statement: Statement, holder: Principal) -> list[SqlRelation]:
        """The relations that a statement names, in order; SqlInvalid for an unknown one.

        AccessDenied if a view is out of the principal's scope.
        """
        known, found = self.all(), dict[Path, SqlRelation]()
        for path in sorted(map(_folded, statement.relations)):
            relation = known.get(path)
            if relation is None:
                raise _unknown(path, [each for each in known.values() if _reached(holder, each)])
            holder.rows_of(relation.view, holder.where)  # columns are checked once they are known
            found[path] = relation
        return list(found.values())

    def _made_of_views(self) -> Iterator[SqlRelation]:
        for view in self._layout.views():
            catalogue = Catalogue.load(view.catalogue)
            for by in catalogue.rollups:
                yield SqlRelation(rollup_name(view.name, by), view.name, by=by)
            if catalogue.archive is not None:
                yield SqlRelation(f"{view.name}__all", view.name, table=catalogue.archive, is_all=True)

    def _sealed(self) -> Iterator[SqlRelation]:
        for table, view in self._archive.tables().items():
            yield SqlRelation(table, view, table=table)


def _folded(path: Path) -> Path:
    return tuple(part.lower() for part in path)


def _reached(holder: Principal, relation: SqlRelation) -> bool:
    try:
        holder.rows_of(relation.view, holder.where)
    except AccessDenied:
        return False
    return True


def _unknown(path: Path, known: Sequence[SqlRelation]) -> SqlInvalid:
    names = sorted(map(str, known))[:_NAMES_TOLD_MAX]
    return SqlInvalid(
        f"There is no relation {'.'.join(path)[:80]!r} here",
        next_step=f"There are: {', '.join(names)}" if names else "There is none yet: ask again when a view has run",
    )
