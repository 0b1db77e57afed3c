"""The relations of a folder, and their names in SQL.

    bill                                a view
    bill__by_period_end__plan__type     its rollup by these columns, in the order of their declaration
    bill__total                         its rollup by nothing: one row, the total of all
    archive.documents                   a table of the archive, which belongs to the view whose sink fills it

Names are case-insensitive, as everywhere in SQL. Where a view has the name of another view's rollup, the view wins.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stateside.core.errors import AccessDenied, SqlInvalid
from stateside.core.layout import Layout
from stateside.serving.access.principal import Principal
from stateside.serving.sql.archive_tables import ArchiveTables
from stateside.serving.sql.statement import Path, Statement
from stateside.views.catalogue import Catalogue

ARCHIVE = "archive"
_NAMES_TOLD_MAX = 50


@dataclass(frozen=True, slots=True)
class Relation:
    """A source of rows: a view, its rollup `by` some columns, or a `table` that it fills."""

    name: str
    view: str
    by: tuple[str, ...] | None = None
    table: str | None = None

    @property
    def path(self) -> Path:
        """The name in a statement."""
        return (self.name,) if self.table is None else (ARCHIVE, self.name)

    def __str__(self) -> str:
        return ".".join(self.path)


def rollup_name(view: str, by: Sequence[str]) -> str:
    """The name of a view's rollup by these columns."""
    return f"{view}__by_{'__'.join(by)}" if by else f"{view}__total"


class Relations:
    """The current relations of a folder."""

    def __init__(self, layout: Layout, archive: ArchiveTables) -> None:
        self._layout, self._archive = layout, archive

    def all(self) -> dict[Path, Relation]:
        """All relations, by lower-case path."""
        found = {_folded(relation.path): relation for relation in self._sealed()}
        found |= {_folded(relation.path): relation for relation in self._rollups()}
        return found | {(view.name.lower(),): Relation(view.name, view.name) for view in self._layout.views()}

    def named(self, statement: Statement, holder: Principal) -> list[Relation]:
        """The relations that a statement names, in order; SqlInvalid for an unknown one.

        AccessDenied if a view is out of the principal's scope.
        """
        known, found = self.all(), dict[Path, Relation]()
        for path in sorted(map(_folded, statement.relations)):
            relation = known.get(path)
            if relation is None:
                raise _unknown(path, [each for each in known.values() if _reached(holder, each)])
            holder.rows_of(relation.view, holder.where)  # columns are checked once they are known
            found[path] = relation
        return list(found.values())

    def _rollups(self) -> Iterator[Relation]:
        for view in self._layout.views():
            for by in Catalogue.load(view.catalogue).rollups:
                yield Relation(rollup_name(view.name, by), view.name, by=by)

    def _sealed(self) -> Iterator[Relation]:
        for table, view in self._archive.tables().items():
            yield Relation(table, view, table=table)


def _folded(path: Path) -> Path:
    return tuple(part.lower() for part in path)


def _reached(holder: Principal, relation: Relation) -> bool:
    try:
        holder.rows_of(relation.view, holder.where)
    except AccessDenied:
        return False
    return True


def _unknown(path: Path, known: Sequence[Relation]) -> SqlInvalid:
    names = sorted(map(str, known))[:_NAMES_TOLD_MAX]
    return SqlInvalid(
        f"There is no relation {'.'.join(path)[:80]!r} here",
        next_step=f"There are: {', '.join(names)}" if names else "There is none yet: ask again when a view has run",
    )
