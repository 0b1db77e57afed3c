"""Keys given as JSON: parts as texts, as in an address, or as JSON's own values; a struct's parts also as an object.

"emma"    ["emma", "2026-01-31"]    ["emma", 5, true, null]    [{"start": "2026-01-31T00:00:00Z", "end": …}]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

from stateside.checkpoint.types import Decimal, Primitive, SparkType, Struct
from stateside.checkpoint.unsafe_row import Value
from stateside.errors import KeyInvalid
from stateside.serving.reading.values import Leaf, described, leaves, nested, not_of_type, parse

_WHOLE = ("byte", "short", "integer", "long")
_FRACTIONS = ("float", "double")
_END = object()


class JsonKeys:
    """Parses whole keys of one view; `of` names it in errors."""

    def __init__(self, of: str, columns: Sequence[Leaf]) -> None:
        self._of, self._columns = of, columns
        self._places = list(leaves(columns))
        self._types = [type_ for _, type_ in columns]
        self._plain = len(self._places) == len(columns)  # without structs

    def parse(self, given: Any) -> list[Value]:
        """The values of a key; KeyInvalid if a part is missing, or is not of its type."""
        parts = given if isinstance(given, list) else [given]
        if not self._plain:
            parts = list(_spread(self._columns, iter(parts)))
        if len(parts) != len(self._places):
            raise KeyInvalid(
                f"A key has {len(parts)} parts, a whole key of {self._of} has {len(self._places)}",
                next_step=f"Its parts are: {described(self._columns)}" if self._places else "Its one key is []",
            )
        values = [_value(name, type_, part) for (name, type_), part in zip(self._places, parts, strict=True)]
        return values if self._plain else nested(self._types, iter(values))


def _spread(columns: Sequence[Leaf], parts: Iterator[Any]) -> Iterator[Any]:
    """The parts with the objects among them taken apart; those that are too many come last."""
    for name, type_ in columns:
        part = next(parts, _END)
        if part is _END:
            return
        if not isinstance(type_, Struct):
            yield part
            continue
        fields = list(zip(type_.names, type_.types, strict=True))
        if not isinstance(part, dict):
            parts = chain([part], parts)
            yield from _spread(fields, (each for _, each in zip(leaves(fields), parts, strict=False)))
        elif set(part) == set(type_.names):
            yield from _spread(fields, iter([part[field] for field in type_.names]))
        else:
            raise KeyInvalid(
                f"The key's part {name!r} has not the fields {', '.join(type_.names)}, or others beside them",
                next_step="Give an object with exactly these fields, or their values one after the other",
            )
    yield from parts


def _value(name: str, type_: SparkType, part: Any) -> Value:
    """The value of one part; KeyInvalid if it is not of its type. A number is no text."""
    match part:
        case None:
            return None
        case str():
            return parse(name, type_, part)
        case bool() if type_ == Primitive("boolean"):
            return part
        case int() | float() if not isinstance(part, bool) and _takes(type_, part):
            return parse(name, type_, repr(part))
    raise not_of_type(str(part)[:80], name, type_)


def _takes(type_: SparkType, number: int | float) -> bool:
    if isinstance(type_, Decimal) or (isinstance(type_, Primitive) and type_.name in _FRACTIONS):
        return True
    return isinstance(number, int) and isinstance(type_, Primitive) and type_.name in _WHOLE
