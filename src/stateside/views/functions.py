"""Computed columns: a long, computed from one of a row's columns when the row is read or added to a rollup.

    value = function of (the texts of `by`), applied to the column `of`;  null where `of` or one of `by` is null

`steps.json`, beside a view's checkpoint, is the view's table of functions, by the texts of the rows' keys. An entry has
the function's name and definition:

    {"version": 1, "entries": [{"key": ["basic@3", "call"], "steps": [[0, 0, 1], [6000, 90000, 60]]}, …]}

A package provides functions as entry points of the group `stateside.functions`, a `ColumnFunction` under each name:
every process that reads views finds them there, without the application's code.

The file only ever grows. Its writer, mostly the view's sink, adds an entry before the commit of the first batch that
needs the entry, and never changes one: so a value is the same whenever and wherever it is computed. A reader that meets
an unknown entry reads the file again; an entry still missing is an error, never a guess.

A view has one table of functions. All its computed columns are therefore `by` the same columns of its key.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stateside.core.errors import CheckpointInvalid, ValueOverflow, ViewInvalid
from stateside.core.json_file import JsonFile
from stateside.spark_state.arrow_rows import array_of, filled_numbers, valid_rows
from stateside.spark_state.types import Primitive, parse_type
from stateside.spark_state.unsafe_row import Value
from stateside.views.aggregates import Aggregate, Partial, TrySum, aggregate_of
from stateside.views.catalogue import Catalogue, Computed, StateColumn, ViewColumn, refused

VERSION = 1
GROUP = "stateside.functions"
TYPE = "long"  # of all computed columns, and of the columns that they are computed of
_EXAMPLE = 'Write it like computed=[Computed("amount_micros", of="quantity", by=("plan", "type"))]'
_UNLOADABLE = (ValueError, LookupError, TypeError, AttributeError)
Key = tuple[str, ...]
Longs = npt.NDArray[np.int64]


class ColumnFunction(Protocol):
    """A function from a long to a long, with a definition that JSON can hold; ValueOverflow beyond 64 bits."""

    name: ClassVar[str]

    def value(self, number: int, /) -> int: ...

    def values(self, numbers: Longs, /) -> Longs:
        """The same as `value` of each number."""

    def as_json(self) -> Any: ...

    @classmethod
    def parse(cls, definition: Any, /) -> Self:
        """The function of a definition from `as_json`; ValueError, with the reason, for any other content."""


@dataclass(frozen=True, slots=True)
class FunctionTable:
    """The functions of a view's rows, by the texts of their `by` columns."""

    entries: Mapping[Key, ColumnFunction]

    @classmethod
    def load(cls, path: Path) -> FunctionTable:
        """The table in a file; empty if the file does not exist yet. CheckpointInvalid if it is damaged."""
        return _FILE.read(path) or cls({})

    def extended(self, entries: Iterable[tuple[Key, ColumnFunction]]) -> FunctionTable:
        """The table with more entries; CheckpointInvalid if a key exists already with another function."""
        merged = dict(self.entries)
        for key, function in entries:
            if _stored(merged.setdefault(key, function)) != _stored(function):
                raise CheckpointInvalid(
                    f"The function for {'/'.join(key)} is {_stored(function)}, but rows were shown with "
                    f"{_stored(merged[key])}",
                    next_step="Functions never change: give the new one another name or version in the key",
                )
        return FunctionTable(merged)

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> FunctionTable:
        return cls({tuple(entry.pop("key")): _parse(entry) for entry in document["entries"]})

    def as_dict(self) -> dict[str, Any]:
        found = sorted(self.entries.items(), key=lambda entry: entry[0])
        return {"entries": [{"key": list(key), **_document(function)} for key, function in found]}


_FILE = JsonFile(
    "The functions of the view",
    FunctionTable.parse,
    FunctionTable.as_dict,
    damage=CheckpointInvalid,
    next_step="Restore this file from a copy, or install the package that provides the function, and no second one",
    versions=(VERSION,),
)


def extend_functions(path: Path, entries: Mapping[Key, ColumnFunction]) -> FunctionTable:
    """Add the entries to the file, written only if one is new. There is one writer: the view's sink.

    ViewInvalid if a reader could not load a function.
    """
    table = FunctionTable.load(path)
    for key, function in entries.items():
        if key not in table.entries:
            _check_loadable(key, function)
    extended = table.extended(entries.items())
    if len(extended.entries) > len(table.entries):
        _FILE.write(path, extended)
    return extended


@cache
def provided_function(name: str) -> type[ColumnFunction]:
    """The function of this name in the installed packages; ValueError if there is none, or more than one."""
    points = entry_points(group=GROUP)
    found = points.select(name=name)
    if not found:
        raise ValueError(f"no installed package provides the function {name!r}, only {', '.join(sorted(points.names))}")
    if len(found) > 1:
        packages = sorted(each.dist.name if each.dist else each.value for each in found)
        raise ValueError(f"more than one installed package provides the function {name!r}: {', '.join(packages)}")
    try:
        function: type[ColumnFunction] = found[name].load()
    except ImportError as error:
        raise ValueError(f"the package that provides the function {name!r} is broken: {error}") from error
    return function


def _check_loadable(key: Key, function: ColumnFunction) -> None:
    try:
        loaded, given = type(_parse(json.loads(_stored(function)))), type(function)
        if loaded is not given:
            raise ValueError(
                f"installed packages provide {loaded.__module__}.{loaded.__qualname__} under that name, and not its"
                f" class {given.__module__}.{given.__qualname__}"
            )
    except _UNLOADABLE as error:
        raise ViewInvalid(
            f"The function {function.name!r} for {'/'.join(key)} could not be read from a table again: {error}",
            next_step=f"Let one installed package provide the class as an entry point of the group {GROUP}, under the "
            "function's own name, with an `as_json` that `parse` reads",
        ) from error


def _parse(entry: Mapping[str, Any]) -> ColumnFunction:
    ((name, definition),) = entry.items()
    return provided_function(name).parse(definition)


def _document(function: ColumnFunction) -> dict[str, Any]:
    return {function.name: function.as_json()}


def _stored(function: ColumnFunction) -> str:
    """The function in JSON: equal for equal functions, whose classes need no `__eq__`."""
    return json.dumps(_document(function), sort_keys=True)


def declared_computed(view: str, key: Sequence[str], computed: Sequence[Computed]) -> tuple[Computed, ...]:
    """The computed columns of a view's declaration; ViewInvalid if one is impossible with this key."""
    if isinstance(computed, Computed) or not all(isinstance(each, Computed) for each in computed):
        raise refused(view, f"its computed is {computed!r}, not a list of Computed(…)", _EXAMPLE)
    for each in computed:
        if isinstance(each.by, str) or not each.by:
            raise refused(view, f"its computed column {each.name!r} is by {each.by!r}, no list of columns", _EXAMPLE)
        for name in each.by:
            if name not in key:
                raise refused(
                    view,
                    f"its computed column {each.name!r} is by {name!r}, not in its key",
                    f"Its key has {list(key)}",
                )
    declared = tuple(Computed(each.name, each.of, tuple(each.by)) for each in computed)
    if len({each.by for each in declared}) > 1:
        raise refused(
            view,
            f"its computed columns are by different columns, {[list(each.by) for each in declared]}",
            "A view has one table of functions: let them be by the same columns, in the same order",
        )
    return declared


def check_computed(catalogue: Catalogue) -> None:
    """ViewInvalid if the view lacks a column that a computed one needs, or has it with another type."""
    if not catalogue.computed:
        return
    if catalogue.kind == "state-variable":
        raise refused(
            catalogue.view,
            "it has computed columns of a state variable, whose columns are not known before it runs",
            "Leave them out, or compute the value in the processor that keeps the variable",
        )
    taken = [column.name for column in catalogue.key] + [column.name for column in catalogue.columns]
    for each in catalogue.computed:
        if each.name in taken:
            raise refused(
                catalogue.view, f"two of its columns are called {each.name!r}", "Give the computed one another name"
            )
        taken.append(each.name)
        _check_of(catalogue, each)
        _check_by(catalogue, each)


def _check_of(catalogue: Catalogue, computed: Computed) -> None:
    columns = {column.name: column for column in catalogue.columns}
    column = columns.get(computed.of)
    if column is None:
        raise refused(
            catalogue.view,
            f"its computed column {computed.name!r} is of {computed.of!r}, which it does not have",
            f"Its columns are: {', '.join(columns) or 'none'}",
        )
    made = aggregate_of(column)
    if not (made.is_stored and made.tally_size) or made.type != Primitive(TYPE):
        raise refused(
            catalogue.view,
            f"its computed column {computed.name!r} is of {computed.of!r}, {column.expression} {column.type}",
            "Let it be of a sum of whole numbers (cast them to long) or of a count",
        )


def _check_by(catalogue: Catalogue, computed: Computed) -> None:
    for column in catalogue.key:
        if column.name in computed.by and parse_type(column.type) != Primitive("string"):
            raise refused(
                catalogue.view,
                f"its computed column {computed.name!r} is by {column.name!r} of the type {column.type}",
                "Let it be by columns of the type string: cast it before the groupBy",
            )


class KnownFunctions:
    """A process's cache of a view's table of functions: read on demand, and again when an entry is missing."""

    def __init__(self, view: str, path: Path) -> None:
        self._view, self._path = view, path
        self._table = FunctionTable({})

    def of(self, texts: tuple[str, ...]) -> ColumnFunction:
        """The function under these texts; CheckpointInvalid, with the texts, if the file has none now.

        CheckpointInvalid too if the file has changed the function of any texts: values were computed with the earlier
        one.
        """
        found = self._table.entries.get(texts)
        if found is None:
            self._table = self._table.extended(FunctionTable.load(self._path).entries.items())
            found = self._table.entries.get(texts)
        if found is None:
            raise CheckpointInvalid(
                f"The view {self._view!r} has no function for {list(texts)} in its table, and cannot compute a column",
                where=str(self._path),
                next_step="Add this entry to the table: what writes it, mostly the view's sink, does so before a batch"
                " that needs it is committed. Readers and the replica then go on",
            )
        return found


class ComputedColumns:
    """Computes the computed columns of one view's rows; does nothing for a view without any."""

    def __init__(self, catalogue: Catalogue, functions: KnownFunctions | None) -> None:
        key, columns = ([each.name for each in some] for some in (catalogue.key, catalogue.columns))
        self.columns = catalogue.computed
        self._functions = functions
        self._of = [columns.index(each.of) for each in self.columns]
        self._by = [key.index(name) for name in self.columns[0].by] if self.columns else []

    def values(self, key: Sequence[Value], values: Sequence[Value]) -> list[int | None]:
        """The computed columns of a row, from its key and its values of the catalogue's other columns."""
        if not self.columns:
            return []
        function = self._function([key[place] for place in self._by])
        numbers: list[Any] = [values[place] for place in self._of]
        return [None if number is None or function is None else function.value(number) for number in numbers]

    def arrays(self, key: Sequence[pa.Array], columns: Sequence[pa.Array]) -> list[pa.Array]:
        """The computed columns of many rows. Rows with the same function are computed together."""
        if not self.columns:
            return []
        by = [key[place].dictionary_encode() for place in self._by]
        kinds, some = _kinds([filled_numbers(each.indices, -1) for each in by])
        numbers = [columns[place] for place in self._of]
        longs, there = [filled_numbers(each) for each in numbers], [valid_rows(each) for each in numbers]
        found = [np.zeros(len(each), np.int64) for each in longs]
        for kind, row in some:
            function = self._function([each[row].as_py() for each in by])
            which = kinds == kind
            for values, arguments, has in zip(found, longs, there, strict=True):
                has &= ~which if function is None else True
                if function is not None:
                    values[which & has] = function.values(arguments[which & has])
        return [array_of(pa.int64(), has, values) for has, values in zip(there, found, strict=True)]

    def _function(self, texts: Sequence[Any]) -> ColumnFunction | None:
        """The function of a row with these texts in its key; None if one of them is null."""
        assert self._functions is not None, "a view with computed columns has a table of functions"
        return None if None in texts else self._functions.of(tuple(texts))


def _kinds(codes: Sequence[Longs]) -> tuple[Longs, list[tuple[int, int]]]:
    """A number per row, equal for rows with equal codes; and each number with one of its rows."""
    kinds = np.zeros(len(codes[0]), np.int64)
    for each in codes:
        kinds = kinds * (int(each.max(initial=0)) + 2) + each + 1
    found, rows = np.unique(kinds, return_index=True)
    return kinds, list(zip(found.tolist(), rows.tolist(), strict=True))


class _ComputedSum(TrySum):
    if_too_large = "Ask for the rows, or let the function give larger units"


def computed_sum(computed: Computed) -> Aggregate:
    """The sum of a computed column over rows, each with the buffers of `computed_buffers`."""
    buffers = (StateColumn(0, "sum", TYPE), StateColumn(1, "isEmpty", "boolean"))
    return _ComputedSum(ViewColumn(computed.name, TYPE, TrySum.name, buffers, computed.of))


def computed_buffers(function: ColumnFunction | None, number: Value) -> Partial:
    """A row's contribution to the sum, from its column `of`: a value too large must not hold up all other rows."""
    if function is None or number is None:
        return 0, True
    try:
        return function.value(number), False  # type: ignore[arg-type]  # checked: a long
    except ValueOverflow:
        return None, False
