"""The answers of several shares as one: rows in the order that a single server would give them in, rollups added up.

A rollup's rows of several shares are added up in *tallies*, the whole numbers that sums, counts and averages are made
of (see `checkpoint.tallies`), and finished here as a server finishes them: the result is a single server's, to the last
unit. So nothing that a rollup can have has to be refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import total_ordering
from operator import add
from typing import Any

from stateside.checkpoint.types import SparkType, Struct, parse_type
from stateside.checkpoint.unsafe_row import Value
from stateside.errors import RequestInvalid
from stateside.replica.keys import KeyCodec
from stateside.serving.clients.answers import Row
from stateside.serving.reading.values import parse, renderer

Columns = Sequence[tuple[str, str]]
Rank = Callable[[Row], Any]


def by_key(key: Columns) -> Rank:
    """What rows are compared by to stand in the order of their keys."""
    codec, types = KeyCodec([type_ for _, type_ in key]), [(name, parse_type(type_)) for name, type_ in key]
    return lambda row: codec.encode([value_of(name, type_, row[name]) for name, type_ in types])


def by_column(order: str, columns: Columns, key: Columns) -> Rank:
    """What rows are compared by to stand in this order: `total` or, from the greatest on, `-total`; then by key."""
    name, descending = order.removeprefix("-"), order.startswith("-")
    path, type_ = _found(name, dict(columns))
    within = by_key(key)

    def rank(row: Row) -> tuple[Any, bytes]:
        shown: Any = row
        for part in path:
            shown = None if shown is None else shown[part]
        ranked = _rank(value_of(name, type_, shown))
        return (_Descending(ranked) if descending else ranked), within(row)

    return rank


def value_of(name: str, type_: SparkType, shown: Any) -> Value:
    """The value that an answer shows so."""
    if shown is None:
        return None
    if isinstance(type_, Struct):
        return tuple(value_of(name, part, shown[field]) for field, part in zip(type_.names, type_.types, strict=True))
    if isinstance(shown, dict):  # a session's window, which is asked for by its start
        shown = shown["start"]
    return parse(name, type_, ("true" if shown else "false") if isinstance(shown, bool) else str(shown))


def added_up(documents: Iterable[Mapping[str, Any]], columns: Sequence[str], key: Columns) -> list[Row]:
    """The rows of a rollup by these columns, out of its shares' rows with their tallies.

    ValueOverflow if a sum is too large for its type, as a server would say.
    """
    sums: dict[str, list[int]] = {}
    made_of: Mapping[str, Any] = {}
    for made_of in documents:
        for row in made_of["rows"]:
            coarser = json.dumps([row[name] for name in columns])
            numbers = [int(number) for number in row["tallies"]]
            sums[coarser] = list(map(add, sums[coarser], numbers)) if coarser in sums else numbers
    finish = _finisher(made_of)
    rows = [dict(zip(columns, json.loads(coarser), strict=True)) | finish(sums[coarser]) for coarser in sums]
    types = dict(key)
    return sorted(rows, key=by_key([(name, types[name]) for name in columns])) if columns else rows


def _finisher(made_of: Mapping[str, Any]) -> Callable[[Sequence[int]], Row]:
    """What makes values of tallies, as the documents say that they are made."""
    from stateside.checkpoint.catalogue import Computed, Stored, ViewColumn
    from stateside.replica.rollups import RollupRows, pack

    columns = [
        ViewColumn(**{**c, "buffers": tuple(Stored(**each) for each in c["buffers"])}) for c in made_of["columns"]
    ]
    layout = RollupRows(columns, [Computed(c["name"], c["of"], tuple(c["by"])) for c in made_of["computed"]])
    render = [(name, renderer(parse_type(type_))) for name, type_ in layout.columns]

    def finish(numbers: Sequence[int]) -> Row:
        return {name: show(value) for (name, show), value in zip(render, layout.values(pack(numbers)), strict=True)}

    return finish


def _found(name: str, types: Mapping[str, str]) -> tuple[list[str], SparkType]:
    """The column of this name, or the field inside of one: where it stands in a row, and its type."""
    for column, type_ in types.items():
        if name == column or name.startswith(f"{column}."):
            path, found = [column], parse_type(type_)
            for field in name.removeprefix(column).split(".")[1:]:
                if not isinstance(found, Struct) or field not in found.names:
                    break
                path, found = [*path, field], found.types[found.names.index(field)]
            else:
                return path, found
    raise RequestInvalid(f"There is no column {name[:80]!r} to order by", next_step=f"There are: {', '.join(types)}")


def _rank(value: Value) -> tuple[Any, ...]:
    """As servers rank values: null before everything else, NaN behind it."""
    if value is None:
        return (0,)
    return (2,) if value != value else (1, value)


@total_ordering
class _Descending:
    """A value that stands before those that are less."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Descending) and bool(self._value == other._value)

    def __lt__(self, other: _Descending) -> bool:
        return bool(other._value < self._value)
