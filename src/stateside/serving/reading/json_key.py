"""Keys given as JSON: parts as texts, as in an address, or as JSON's own values; a struct's parts also as an object.

"emma"    ["emma", "2026-01-31"]    ["emma", 5, true, null]    [{"start": "2026-01-31T00:00:00Z", "end": …}]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any

from stateside.checkpoint.types import Decimal, Primitive, SparkType, Struct
from stateside.checkpoint.unsafe_row import Value
from stateside.errors import KeyInvalid
from stateside.serving.reading.values import NO_VALUE, Leaf, described, leaves, nested, not_of_type, parse, parser

WHOLE = ("byte", "short", "integer", "long")
_FRACTIONS = ("float", "double")
_END = object()


class JsonKeys:
    """Parses whole keys of one view, one or many; `of` names it in errors."""

    def __init__(self, of: str, columns: Sequence[Leaf]) -> None:
        self._of, self._columns = of, columns
        self._places = list(leaves(columns))
        self._types = [type_ for _, type_ in columns]
        self._plain = not any(isinstance(type_, Struct) for type_ in self._types)
        self._columnar = [_column_parser(type_) for _, type_ in self._places] if self._plain else []

    def parse_all(self, given: Sequence[Any]) -> Sequence[Sequence[Value]]:
        """The same for many keys as `parse` for each: a column at a time, as far as they look alike."""
        columns = self._columns_of(given)
        if columns is not None:
            with suppress(*NO_VALUE, _Unlike):
                parsed = [read(column) for read, column in zip(self._columnar, columns, strict=True)]
                return list(zip(*parsed, strict=True))
        return [self.parse(key) for key in given]

    def _columns_of(self, given: Sequence[Any]) -> list[Sequence[Any]] | None:
        """The keys' parts by column; None if the keys are not lists of so many parts, or of one part, texts."""
        types = set(map(type, given))
        if self._columnar and types == {list} and set(map(len, given)) == {len(self._columnar)}:
            return list(zip(*given, strict=True))
        return [given] if types == {str} and len(self._columnar) == 1 else None

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


class _Unlike(Exception):
    """The parts of a column are not all of one kind: the keys are parsed one by one."""


def _column_parser(type_: SparkType) -> Callable[[Sequence[Any]], Sequence[Value]]:
    """What parses the parts of a column that are all texts, or all whole numbers; _Unlike or NO_VALUE for others."""
    whole, text = isinstance(type_, Primitive) and type_.name in WHOLE, type_ == Primitive("string")
    read = parser(type_) if not isinstance(type_, Struct) else None

    def parse_column(parts: Sequence[Any]) -> Sequence[Value]:
        types = set(map(type, parts))
        if (text and types == {str}) or (whole and types == {int}):
            return parts
        if read is None or types != {str}:
            raise _Unlike
        return list(map(read, parts))

    return parse_column


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
    return isinstance(number, int) and isinstance(type_, Primitive) and type_.name in WHOLE
