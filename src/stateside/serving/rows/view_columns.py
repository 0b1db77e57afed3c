"""The columns of a view in queries: rendering of all columns, and comparison of the comparable ones.

Comparable are columns of plain types, and the fields of structs as `window.start`; not arrays, maps and intervals.
Null sorts before all values, NaN after them; -0.0 and 0.0 are equal.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from stateside.core.errors import KeyInvalid, RequestInvalid
from stateside.replica.keys import keyable
from stateside.serving.rows.values import Render, parse, renderer_if_any
from stateside.spark_state.types import Primitive, SparkType, Struct
from stateside.spark_state.unsafe_row import Value

Values = Sequence[Value]

_FLOATS = (Primitive("float"), Primitive("double"))


@dataclass(frozen=True, slots=True)
class Comparable:
    """A column or struct field whose values can be compared; `places` is its path in a row's values."""

    name: str
    type: SparkType
    places: tuple[int, ...]

    def of(self, values: Values) -> Value:
        """The column's value in a row."""
        found: Any = values
        for place in self.places:
            if found is None:
                return None
            found = found[place]
        return found  # type: ignore[no-any-return]

    def parse(self, text: str) -> Value:
        """Parses a value, written as in a key; RequestInvalid if the text is not of the column's type."""
        try:
            return parse(self.name, self.type, text)
        except KeyInvalid as error:
            raise RequestInvalid(
                error.what.replace("the key's part", "the column"), next_step=error.next_step
            ) from None

    def rank(self, value: Value) -> tuple[Any, ...]:
        """The sort key of a value."""
        if value is None:
            return (0,)
        if self.type in _FLOATS:
            assert isinstance(value, float)
            return (2,) if math.isnan(value) else (1, value)
        return (1, value)


class Show:
    """Renders rows of an answer from rows' values: the chosen columns, each from its place."""

    def __init__(self, columns: Sequence[tuple[str, int, Render | None]]) -> None:
        self._columns = columns
        self._names = [name for name, _, _ in columns]

    def __call__(self, values: Values) -> dict[str, Any]:
        """Renders one row."""
        return {
            name: values[place] if render is None else render(values[place]) for name, place, render in self._columns
        }

    def all(self, rows: Sequence[Values]) -> list[dict[str, Any]]:
        """Renders many rows, column by column."""
        given = list(zip(*rows, strict=True))
        if not given or not self._columns:
            return [self(row) for row in rows]
        shown = [given[place] if render is None else map(render, given[place]) for _, place, render in self._columns]
        return [dict(zip(self._names, row, strict=True)) for row in zip(*shown, strict=True)]


class ColumnSet:
    """All columns of a view in row order: key, values, computed columns."""

    def __init__(self, columns: Sequence[tuple[str, SparkType]]) -> None:
        self.types = dict(columns)
        self._render = {name: (place, renderer_if_any(type_)) for place, (name, type_) in enumerate(columns)}
        self.shown = self.shower(list(self.types))
        found = [each for place, (name, type_) in enumerate(columns) for each in _comparable(name, type_, (place,))]
        found.sort(key=lambda each: -len(each.places))
        self._comparable = {each.name: each for each in found}  # the last wins: a column, not a field of this name

    def comparable(self, name: str) -> Comparable:
        """The column of this name; RequestInvalid if no comparable column has the name."""
        if name not in self._comparable:
            raise RequestInvalid(f"There is no column {name[:80]!r} that can be compared", next_step=self.advice())
        return self._comparable[name]

    def named_first(self, text: str) -> list[Comparable]:
        """The columns whose names the text begins with, longest name first."""
        fitting = [each for name, each in self._comparable.items() if text.startswith(name)]
        return sorted(fitting, key=lambda each: -len(each.name))

    def shower(self, names: Sequence[str]) -> Show:
        """The renderer for these columns; RequestInvalid for an unknown column."""
        for name in names:
            if name not in self.types:
                raise RequestInvalid(
                    f"There is no column {name[:80]!r}", next_step=f"There are: {', '.join(self.types)}"
                )
        return Show([(name, *self._render[name]) for name in names])

    def advice(self) -> str:
        """The comparable columns, as the next step of an error."""
        return f"These can be: {', '.join(sorted(self._comparable))}"


def _comparable(name: str, type_: SparkType, places: tuple[int, ...]) -> Iterator[Comparable]:
    if isinstance(type_, Struct):
        for place, (field, part) in enumerate(zip(type_.names, type_.types, strict=True)):
            yield from _comparable(f"{name}.{field}", part, (*places, place))
    elif keyable(type_):
        yield Comparable(name, type_, places)
