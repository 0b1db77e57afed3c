"""Declarations of foreign views: a TOML file in which a query's owner adds what the checkpoint does not say.

    serve = ["orders", "orders-2"]      only these views; by default all that can be served

    [views.orders]                      an inferred view, by its name
    name = "spending"                   its new name
    key = ["customer", "country"]       all of its key's columns, in query order
    rename = { country = "land" }       new names of columns
    rollups = [["country"], []]         sums by these of the key's columns; [] is the total

    [views.orders.columns]              the meaning of buffers: an aggregate, and its buffers in order
    revenue = { sum = ["sum"] }
    mean = { average = ["sum_2", "count"] }

All names in the file are those of the inferred view without a declaration, and `rename` comes last. A buffer used by a
declared column is no longer shown by itself. Nobody can check whether a declared sum is one: only its type is checked.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from stateside.core.errors import CheckpointInvalid, SettingInvalid, StatesideError
from stateside.spark_state.types import Decimal, parse_type
from stateside.views.aggregates import AGGREGATES, Aggregate, check_rollups, declared_rollups
from stateside.views.catalogue import Catalogue, KeyColumn, StateColumn, ViewColumn
from stateside.views.inference import Inferred, Refusal, safe_name

DECLARABLE = {name: each for name, each in AGGREGATES.items() if each.function is not None}
_TYPE = "type"


@dataclass(frozen=True, slots=True)
class Made:
    """A column made of buffers, under their names in the inferred view; `type` where the buffers leave it open."""

    aggregate: type[Aggregate]
    buffers: tuple[str, ...]
    type: str | None = None


@dataclass(frozen=True, slots=True)
class Declaration:
    name: str | None = None
    key: tuple[str, ...] | None = None
    rename: Mapping[str, str] = field(default_factory=dict)
    rollups: tuple[tuple[str, ...], ...] = ()
    columns: Mapping[str, Made] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Declarations:
    """The declarations for a checkpoint's views; nothing by default."""

    where: str = ""
    serve: tuple[str, ...] | None = None
    views: Mapping[str, Declaration] = field(default_factory=dict)

    @classmethod
    def parse(cls, content: bytes, where: str) -> Declarations:
        """The declarations in a file's content; SettingInvalid if it is malformed."""
        try:
            document = tomllib.loads(content.decode())
        except ValueError as error:
            raise SettingInvalid(f"The declarations are no TOML: {error}", where=where) from error
        serve, views = _taken(document, {"serve": None, "views": {}}, "The declarations", where)
        if serve is not None:
            serve = _names(serve, "serve", where)
        if not isinstance(views, dict) or not all(isinstance(view, dict) for view in views.values()):
            raise _wrong("views has no tables", where, "Write [views.NAME], and below it what is declared of that view")
        return cls(where, serve, {name: _declaration(view, f"views.{name}", where) for name, view in views.items()})

    def check(self, inferred: Inferred) -> None:
        """SettingInvalid, or ViewInvalid, for the first declaration that does not fit the query's views."""
        for error in self._unknown(inferred).values():
            raise error
        names: dict[str, str] = {}
        for view in self._served(inferred):
            name = self._declared(view).view
            if name in names:
                raise _wrong(
                    f"Both {names[name]!r} and {view.view!r} would be called {name!r}", self.where, "Rename one of them"
                )
            names[name] = view.view

    def apply(self, inferred: Inferred) -> Inferred:
        """The views with their declarations applied. A view unfit for its declaration is refused, alone."""
        views: dict[str, Catalogue] = {}
        refused = [each for each in inferred.refused if self._serves(each.view)]
        for view in self._served(inferred):
            try:
                made = self._declared(view)
                if made.view in views:
                    raise _wrong(f"Two views would be called {made.view!r}", self.where, "Rename one of them")
                views[made.view] = made
            except StatesideError as error:
                refused.append(Refusal(view.view, str(error)))
        refused += [Refusal(name, str(error)) for name, error in self._unknown(inferred).items()]
        return replace(inferred, views=tuple(views.values()), refused=tuple(refused))

    def _unknown(self, inferred: Inferred) -> dict[str, SettingInvalid]:
        """The declared views that the query does not have, each with its error."""
        there = [*(view.view for view in inferred.views), *(refusal.view for refusal in inferred.refused)]
        return {
            name: _wrong(f"There is no view {name!r}", self.where, f"There are: {', '.join(there)}")
            for name in (*(self.serve or ()), *self.views)
            if name not in there
        }

    def _served(self, inferred: Inferred) -> list[Catalogue]:
        return [view for view in inferred.views if self._serves(view.view)]

    def _serves(self, name: str) -> bool:
        return self.serve is None or name in self.serve

    def _declared(self, view: Catalogue) -> Catalogue:
        declaration = self.views.get(view.view)
        return view if declaration is None else _Applied(view, declaration, self.where).catalogue()


class _Applied:
    """One declaration applied to one inferred view."""

    def __init__(self, view: Catalogue, declaration: Declaration, where: str) -> None:
        self._view, self._declaration, self._where = view, declaration, where
        self._is_variable = view.kind == "state-variable"

    def catalogue(self) -> Catalogue:
        self._check_rename()
        rename = self._declaration.rename
        name = self._declaration.name or self._view.view
        rollups = declared_rollups(name, [column.name for column in self._view.key], self._declaration.rollups)
        made = replace(
            self._view,
            view=name,
            key=tuple(replace(column, name=rename.get(column.name, column.name)) for column in self._key()),
            columns=tuple(self._columns()),
            rollups=tuple(tuple(rename.get(column, column) for column in columns) for columns in rollups),
        )
        self._check_names(made)
        check_rollups(made)
        return made

    def _key(self) -> list[KeyColumn]:
        there = {column.name: column for column in self._view.key}
        order = self._declaration.key
        if order is None:
            return list(there.values())
        if sorted(order) != sorted(there):
            raise self._wrong(f"its key is {list(order)}", f"Give it exactly these, in any order: {list(there)}")
        return [there[name] for name in order]

    def _columns(self) -> list[ViewColumn]:
        """The columns in the order of their first buffers: declared ones, and the unused buffers."""
        buffers = {column.name: column.buffers[0] for column in self._view.columns}
        made = [self._made(name, made, buffers) for name, made in self._declaration.columns.items()]
        used = {buffer for column in made for buffer in column.buffers}
        left = [
            replace(column, name=self._declaration.rename.get(column.name, column.name))
            for column in self._view.columns
            if column.buffers[0] not in used
        ]
        return sorted([*left, *made], key=lambda column: column.buffers[0].index)

    def _made(self, name: str, made: Made, buffers: Mapping[str, StateColumn]) -> ViewColumn:
        for buffer in made.buffers:
            if buffer not in buffers:
                raise self._wrong(
                    f"its column {name!r} is made of {buffer!r}, which it has not",
                    f"Its buffers are: {', '.join(buffers) or 'none'}",
                )
        stored = tuple(buffers[buffer] for buffer in made.buffers)
        aggregate = made.aggregate
        if not aggregate.fits([parse_type(buffer.type) for buffer in stored]):
            given = ", ".join(f"{buffer.name} {buffer.type}" for buffer in stored) or "none"
            raise self._wrong(
                f"its column {name!r} cannot be made by {aggregate.name} of the buffers {given}",
                f"For {aggregate.name} it takes: {', '.join(buffer.described for buffer in aggregate.buffers)}",
            )
        expression = f"{aggregate.name}({', '.join(made.buffers)})"
        return ViewColumn(name, self._type(name, made, stored), aggregate.name, stored, expression)

    def _type(self, name: str, made: Made, stored: Sequence[StateColumn]) -> str:
        if made.aggregate.has_buffer_type:
            if made.type is not None:
                raise self._wrong(f"its column {name!r} has a type", "Leave it out: it is that of the buffers")
            return stored[0].type
        try:
            if made.type is not None and isinstance(parse_type(made.type), Decimal):
                return made.type
        except CheckpointInvalid:
            pass
        raise self._wrong(
            f"the type of its column {name!r} cannot be told from the buffers", 'Add type = "decimal(14,6)", as it is'
        )

    def _check_rename(self) -> None:
        names = _column_names(self._view)
        for name in self._declaration.rename:
            if self._is_variable:
                raise self._wrong(
                    f"it renames {name!r}, and columns of a state variable keep their names", "Leave rename out"
                )
            if name not in names:
                raise self._wrong(f"it has no column {name!r} to rename", f"Its columns are: {', '.join(names)}")

    def _check_names(self, made: Catalogue) -> None:
        if made.view != safe_name(made.view):
            raise self._wrong(f"it cannot be called {made.view!r}", "Use letters, digits, _ and -")
        names = _column_names(made)
        for name in names:
            if names.count(name) > 1:
                raise self._wrong(f"two of its columns would be called {name!r}", "Rename one of them")

    def _wrong(self, reason: str, next_step: str) -> SettingInvalid:
        return _wrong(f"The view {self._view.view!r} cannot be declared so: {reason}", self._where, next_step)


def _column_names(view: Catalogue) -> list[str]:
    return [column.name for column in view.key] + [column.name for column in view.columns]


def _declaration(document: dict[str, Any], table: str, where: str) -> Declaration:
    defaults: dict[str, Any] = {"name": None, "key": None, "rename": {}, "rollups": [], "columns": {}}
    name, key, rename, rollups, columns = _taken(document, defaults, f"[{table}]", where)
    if name is not None and not isinstance(name, str):
        raise _wrong(f"{table}.name is no text", where, 'Write it like name = "spending"')
    if not isinstance(rename, dict) or not all(isinstance(to, str) and to for to in rename.values()):
        raise _wrong(f"{table}.rename has no names", where, 'Write it like rename = { sum = "total" }')
    if not isinstance(rollups, list):
        raise _wrong(f"{table}.rollups is no list", where, 'Write it like rollups = [["country"], []]')
    if not isinstance(columns, dict):
        raise _wrong(f"{table}.columns is no table", where, 'Write it like columns.total = { sum = ["sum"] }')
    return Declaration(
        name=name,
        key=None if key is None else _names(key, f"{table}.key", where),
        rename=rename,
        rollups=tuple(_names(columns, f"{table}.rollups", where) for columns in rollups),
        columns={column: _made(made, f"{table}.columns.{column}", where) for column, made in columns.items()},
    )


def _made(document: Any, column: str, where: str) -> Made:
    example = f'Write it like {{ sum = ["sum"] }}; there are: {", ".join(DECLARABLE)}'
    names = [name for name in document if name != _TYPE] if isinstance(document, dict) else []
    if len(names) != 1 or names[0] not in DECLARABLE:
        raise _wrong(f"{column} has not one aggregate that there is", where, example)
    type_ = document.get(_TYPE)
    if type_ is not None and not isinstance(type_, str):
        raise _wrong(f"{column}.type is no text", where, 'Write it like type = "decimal(14,6)"')
    buffers = document[names[0]]
    return Made(DECLARABLE[names[0]], _names([buffers] if isinstance(buffers, str) else buffers, column, where), type_)


def _taken(document: dict[str, Any], defaults: Mapping[str, Any], what: str, where: str) -> list[Any]:
    """The values of these names, which are all that are allowed."""
    for name in document:
        if name not in defaults:
            raise _wrong(f"{what} has {name!r}, which does not exist", where, f"There are: {', '.join(defaults)}")
    return [document.get(name, default) for name, default in defaults.items()]


def _names(value: Any, what: str, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise _wrong(f"{what} is no list of names", where, 'Write it like ["customer", "country"]')
    return tuple(value)


def _wrong(what: str, where: str, next_step: str) -> SettingInvalid:
    return SettingInvalid(what, where=where, next_step=next_step)
