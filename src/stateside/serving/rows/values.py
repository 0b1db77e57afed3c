"""Key parsing and value rendering: key parts from text or JSON to values, column values to JSON.

type                    in a key                       in an answer
string, boolean         as it is; true, false          text; true, false
whole numbers           digits                         a number
float, double           a number, NaN, Infinity        a number; "NaN", "Infinity", "-Infinity" as text
decimal                 digits with a point            text with all digits: a JSON number would lose some
date                    2026-01-31                     the same
timestamp               ISO 8601, UTC without a zone   ISO 8601 in UTC, with Z
timestamp_ntz           ISO 8601 without a zone        the same
binary                  base64 (of URLs)               the same
interval                not in keys                    ISO 8601, each part with its sign: P14M, PT-90.5S, P1M-3DT4S
struct                  its fields, a part each        an object
array                   not in keys                    a list
map                     not in keys                    an object if its keys are strings, else a list of
                                                       {"key": …, "value": …}

Keys in JSON have parts as texts, as in a URL, or as JSON values; a struct's parts may also be an object.

"emma"    ["emma", "2026-01-31"]    ["emma", 5, true, null]    [{"start": "2026-01-31T00:00:00Z", "end": …}]
"""

from __future__ import annotations

import base64
import decimal
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import date, timedelta
from itertools import chain, islice
from typing import Any

from stateside.core.errors import KeyInvalid
from stateside.serving.stamp import iso_time, parse_time
from stateside.spark_state.types import Array, Decimal, Map, Primitive, SparkType, Struct
from stateside.spark_state.unsafe_row import Value

Render = Callable[[Any], Any]
Leaf = tuple[str, SparkType]
_FIRST_DAY = date(1970, 1, 1)
_DAY_US = 86_400_000_000
_NUMBER_CHARS_MAX = 400
NO_VALUE = (ValueError, KeyError, OverflowError, decimal.InvalidOperation)  # raised by the parsers


def leaves(columns: Sequence[Leaf]) -> Iterator[Leaf]:
    """The parts of a key: its columns, with a struct's fields as `column.field`."""
    for name, type_ in columns:
        if isinstance(type_, Struct):
            yield from leaves([(f"{name}.{field}", part) for field, part in zip(type_.names, type_.types, strict=True)])
        else:
            yield name, type_


def described(columns: Sequence[Leaf]) -> str:
    """The parts of a key for messages: name and type of each."""
    return ", ".join(f"{name} ({type_name(type_)})" for name, type_ in leaves(columns))


class KeyTexts:
    """Parses text keys of one view or rollup, one text for each of `parts`; errors name the view or rollup as `of`."""

    def __init__(self, of: str, columns: Sequence[Leaf]) -> None:
        self._of, self._columns = of, columns
        self._types = [type_ for _, type_ in columns]
        self.parts = list(leaves(columns))
        self._plain = not any(isinstance(type_, Struct) for type_ in self._types)
        self._parsers = [parser(type_) for _, type_ in self.parts]

    def parse(self, texts: Sequence[str]) -> list[Value]:
        """The values of a whole key or a key prefix; KeyInvalid for too many parts, or a part of the wrong type."""
        if len(texts) > len(self.parts):
            raise KeyInvalid(
                f"The key has {len(texts)} parts, the key of {self._of} has {len(self.parts)}",
                next_step=f"Its parts are: {described(self._columns)}" if self.parts else "Leave the key out",
            )
        try:
            values = [read(text) for read, text in zip(self._parsers, texts, strict=False)]
        except NO_VALUE:
            values = [parse(name, type_, text) for (name, type_), text in zip(self.parts, texts, strict=False)]
        return values if self._plain else nested(self._types, iter(values))


def nested(types: Sequence[SparkType], values: Iterator[Value]) -> list[Value]:
    """Leaf values grouped into their structs, as far as the values reach."""
    if not any(isinstance(type_, Struct) for type_ in types):
        return list(islice(values, len(types)))
    found: list[Value] = []
    for type_ in types:
        if isinstance(type_, Struct):
            fields = nested(type_.types, values)
            part: list[Value] = [tuple(fields)] if fields else []
        else:
            part = [value for _, value in zip(range(1), values, strict=False)]
        if not part:
            break
        found += part
    return found


def is_whole(columns: Sequence[Leaf], key: Sequence[Value]) -> bool:
    """Whether `key` has a value for every part of the key."""
    return len(key) == len(columns) and _ends_whole(columns, key)


def following(columns: Sequence[Leaf], key: Sequence[Value]) -> Sequence[Leaf]:
    """The columns after a key prefix; none while the prefix ends inside a struct."""
    return columns[len(key) :] if _ends_whole(columns, key) else ()


def _ends_whole(columns: Sequence[Leaf], key: Sequence[Value]) -> bool:
    return not key or _has_all_fields(columns[len(key) - 1][1], key[-1])


def _has_all_fields(type_: SparkType, value: Value) -> bool:
    if not isinstance(type_, Struct) or not isinstance(value, tuple):
        return True
    return len(value) == len(type_.types) and _has_all_fields(type_.types[-1], value[-1])


def parse(name: str, type_: SparkType, text: str) -> Value:
    """The value of one key part; KeyInvalid if the text is not of the part's type."""
    try:
        return parser(type_)(text)
    except NO_VALUE:
        raise not_of_type(repr(text[:80]), name, type_) from None


def not_of_type(shown: str, name: str, type_: SparkType) -> KeyInvalid:
    """The error for a key part of the wrong type."""
    example = "12.50" if isinstance(type_, Decimal) else _EXAMPLES.get(type_name(type_), "2026")
    return KeyInvalid(
        f"{shown} is no {type_name(type_)}, which the key's part {name!r} is", next_step=f"Write it like {example}"
    )


def renderer(type_: SparkType) -> Render:
    """The function from a column's values to JSON values."""
    return renderer_if_any(type_) or (lambda value: value)


def renderer_if_any(type_: SparkType) -> Render | None:
    """Like `renderer`; None where values need no conversion."""
    some = _renderer(type_)
    return (lambda value: None if value is None else some(value)) if some else None


def type_name(type_: SparkType) -> str:
    """The type's name for messages."""
    match type_:
        case Primitive(name):
            return name
        case Decimal(precision, scale):
            return f"decimal({precision},{scale})"
    return type(type_).__name__.lower()


_EXAMPLES = {  # all other types: whole numbers
    "string": '"a text"',
    "boolean": "true or false",
    "float": "1.5",
    "double": "1.5",
    "date": "2026-01-31",
    "timestamp": "2026-01-31T23:00:00Z",
    "timestamp_ntz": "2026-01-31T23:00:00",
    "binary": "c3RhdGU=, which is base64 of URLs",
}
_PARSERS: dict[str, Callable[[str], Value]] = {
    "string": str,
    "boolean": lambda text: {"true": True, "false": False}[text],
    "float": lambda text: float(_plain(text)),
    "double": lambda text: float(_plain(text)),
    "date": lambda text: (date.fromisoformat(text) - _FIRST_DAY).days,
    "timestamp": parse_time,
    "timestamp_ntz": parse_time,
    "binary": lambda text: base64.b64decode(text, altchars=b"-_", validate=True),
}


def parser(type_: SparkType) -> Callable[[str], Value]:
    """The text parser of a type; the parser raises one of NO_VALUE for a text of another type."""
    if isinstance(type_, Decimal):
        return _decimal
    assert isinstance(type_, Primitive)
    return _PARSERS.get(type_.name, lambda text: int(_plain(text)))


def _plain(text: str) -> str:
    """The text of a number; ValueError for blanks and underscores, which Python takes and nobody else does."""
    if "_" in text or text != text.strip():
        raise ValueError
    return text


def _decimal(text: str) -> decimal.Decimal:
    value = decimal.Decimal(text[:_NUMBER_CHARS_MAX])
    if not value.is_finite() or len(text) > _NUMBER_CHARS_MAX:
        raise ValueError
    return value


_RENDERERS: dict[str, Render] = {
    "timestamp": iso_time,
    "timestamp_ntz": lambda time_us: iso_time(time_us).removesuffix("Z"),
    "date": lambda days: (_FIRST_DAY + timedelta(days=days)).isoformat(),
    "binary": lambda raw: base64.urlsafe_b64encode(raw).decode(),
    **dict.fromkeys(("float", "double"), lambda number: number if math.isfinite(number) else _no_number(number)),
}


def _renderer(type_: SparkType) -> Render | None:
    """The renderer of non-null values; None where values need no conversion."""
    match type_:
        case Primitive("interval"):
            return lambda parts: _interval(*parts)
        case Primitive(name) if name.startswith("interval "):
            in_months = name.removeprefix("interval ").split(" ")[0] in ("year", "month")
            return (lambda months: _interval(months, 0, 0)) if in_months else lambda time_us: _interval(0, 0, time_us)
        case Primitive(name):
            return _RENDERERS.get(name)
        case Decimal():
            return lambda value: f"{value:f}"
        case Array(element):
            each = renderer(element)
            return lambda values: [each(value) for value in values]
        case Map(key, value):
            return _map_renderer(key, value)
        case Struct(names, types):
            fields = [(name, renderer(part)) for name, part in zip(names, types, strict=True)]
            return lambda values: {name: one(v) for (name, one), v in zip(fields, values, strict=True)}
    raise AssertionError(f"a column of type {type_name(type_)} is refused when its view starts")


def _map_renderer(key: SparkType, value: SparkType) -> Render:
    one, other = renderer(key), renderer(value)
    if key == Primitive("string"):
        return lambda pairs: {name: other(v) for name, v in pairs}
    return lambda pairs: [{"key": one(k), "value": other(v)} for k, v in pairs]


def _no_number(number: float) -> str:
    if math.isnan(number):
        return "NaN"
    return "Infinity" if number > 0 else "-Infinity"


def _interval(months: int, days: int, time_us: int) -> str:
    """An interval as text, valid in every calendar: months, days and seconds stay separate."""
    whole_s, rest_us = divmod(abs(time_us), 1_000_000)
    seconds = f"{'-' * (time_us < 0)}{whole_s}" + f".{rest_us:06}".rstrip("0").rstrip(".")
    date_part = f"{months}M" * (months != 0) + f"{days}D" * (days != 0)
    return "P" + date_part + (f"T{seconds}S" if time_us or not date_part else "")


WHOLE = ("byte", "short", "integer", "long")
_FRACTIONS = ("float", "double")
_END = object()


class JsonKeys:
    """Parses whole keys of one view from JSON, one or many; errors name the view as `of`."""

    def __init__(self, of: str, columns: Sequence[Leaf]) -> None:
        self._of, self._columns = of, columns
        self._places = list(leaves(columns))
        self._types = [type_ for _, type_ in columns]
        self._plain = not any(isinstance(type_, Struct) for type_ in self._types)
        self._columnar = [_column_parser(type_) for _, type_ in self._places] if self._plain else []

    def parse_all(self, given: Sequence[Any]) -> Sequence[Sequence[Value]]:
        """Like `parse` for each key; column by column where all keys have the same form."""
        columns = self._columns_of(given)
        if columns is not None:
            with suppress(*NO_VALUE, _Unlike):
                parsed = [read(column) for read, column in zip(self._columnar, columns, strict=True)]
                return list(zip(*parsed, strict=True))
        return [self.parse(key) for key in given]

    def _columns_of(self, given: Sequence[Any]) -> list[Sequence[Any]] | None:
        """The key parts by column; None unless all keys are lists of full length, or plain texts for a one-part key."""
        types = set(map(type, given))
        if self._columnar and types == {list} and set(map(len, given)) == {len(self._columnar)}:
            return list(zip(*given, strict=True))
        return [given] if types == {str} and len(self._columnar) == 1 else None

    def parse(self, given: Any) -> list[Value]:
        """The values of a key; KeyInvalid if a part is missing or has the wrong type."""
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
    """The parts of a column have several JSON types: the keys are parsed one by one."""


def _column_parser(type_: SparkType) -> Callable[[Sequence[Any]], Sequence[Value]]:
    """A parser of columns of texts only, or whole numbers only; the parser raises _Unlike or NO_VALUE for others."""
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
    """The parts with objects expanded into fields; surplus parts come last."""
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
    """The value of one part; KeyInvalid for the wrong type. A text column takes no numbers."""
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
