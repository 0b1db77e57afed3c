"""Filters: conditions that rows must meet, as a question's parameters `where` name them.

    where=total>=1000           a column, one of = != < <= > >=, and a value, written as in a key
    where=window.start<2026-01-31T00:00:00Z
    where=country is null       or: is not null

Several are and-ed. A null meets no condition but `is null`, not even !=. The longest name of a column and the longest
operator count; between them and the value stands nothing.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from stateside.checkpoint.unsafe_row import Value
from stateside.errors import KeyInvalid, RequestInvalid
from stateside.serving.reading.columns import Columns, Comparable, Values
from stateside.serving.reading.shape import Shape
from stateside.serving.reading.values import following

CONDITIONS_MAX = 16

_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {  # the longer ones first: `<=` begins with `<`
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "=": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
}
_NULL = {" is null": True, " is not null": False}


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition: how a column compares with a value; without an operator, whether it is null, as the value says."""

    column: Comparable
    operator: str | None
    value: Value

    @classmethod
    def parse(cls, columns: Columns, text: str) -> Condition:
        """The condition that a text states; RequestInvalid if it is none."""
        for column in columns.named_first(text):
            rest = text[len(column.name) :]
            if rest in _NULL:
                return cls(column, None, _NULL[rest])
            for sign in _OPERATORS:
                if rest.startswith(sign):
                    return cls(column, sign, column.parse(rest[len(sign) :]))
                if rest.lstrip().startswith(sign):
                    value = rest.lstrip().removeprefix(sign).strip()
                    raise RequestInvalid(
                        f"The filter {text[:80]!r} has blanks around its operator",
                        next_step=f"Write {f'{column.name}{sign}{value}'[:80]!r}",
                    )
        raise RequestInvalid(
            f"{text[:80]!r} is no filter: a column that can be compared, one of {' '.join(_OPERATORS)}, and a value",
            next_step=columns.advice(),
        )

    def meets(self, values: Values) -> bool:
        """Whether a row meets it."""
        found = self.column.of(values)
        if self.operator is None:
            return (found is None) == self.value
        rank = self.column.rank
        return found is not None and _OPERATORS[self.operator](rank(found), rank(self.value))


@dataclass(frozen=True, slots=True)
class Filter:
    """Conditions that must all be met."""

    conditions: tuple[Condition, ...] = ()

    @classmethod
    def parse(cls, columns: Columns, texts: Sequence[str]) -> Filter:
        """The filter that these texts state; RequestInvalid if one is no condition, or there are too many."""
        if len(texts) > CONDITIONS_MAX:
            raise RequestInvalid(
                f"There are {len(texts)} filters, more than {CONDITIONS_MAX}", next_step="Ask with fewer, or with SQL"
            )
        return cls(tuple(Condition.parse(columns, text) for text in texts))

    def meets(self, values: Values) -> bool:
        """Whether a row meets all of them."""
        return all(condition.meets(values) for condition in self.conditions)

    def narrowed(self, shape: Shape, key: Sequence[Value]) -> list[Value]:
        """A key's first parts with those behind them that this filter fixes: then no other rows need to be read."""
        found = list(key)
        equal = {each.column.name: each.value for each in self.conditions if each.operator == "="}
        for name, _ in following(shape.key_parts, found):
            if name not in equal or isinstance(equal[name], float):  # 0.0 equals -0.0, which has a key of its own
                break
            try:
                shape.codec.encode([*found, equal[name]])
            except KeyInvalid:  # no row can have it, and the condition says so of each
                break
            found.append(equal[name])
        return found
