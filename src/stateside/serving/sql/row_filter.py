"""A principal's scope in SQL: the rows of a relation that a statement's DuckDB gets, and no others.

A scope maps columns to the values, as texts, that rows must have. Where these are the first columns of the key, only
the range of keys with this prefix is read; other columns are compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from stateside.core.errors import AccessDenied, KeyInvalid
from stateside.replica.keys import KeyCodec
from stateside.serving.rows.values import parse
from stateside.spark_state.arrow_rows import arrow_type, plain
from stateside.spark_state.types import Decimal, Primitive, SparkType, Struct, parse_type
from stateside.spark_state.unsafe_row import Value
from stateside.views.catalogue import Catalogue
from stateside.views.functions import TYPE

T = TypeVar("T", pa.Table, pa.RecordBatch)


@dataclass(frozen=True, slots=True)
class RowFilter:
    """A key prefix, and the values that columns must have."""

    prefix: bytes = b""
    equal: tuple[tuple[str, pa.Scalar], ...] = ()

    def of(self, rows: T) -> T:
        """The rows in scope."""
        for name, value in self.equal:
            rows = rows.filter(pc.equal(rows.column(name), value))
        return rows


def scope_of_view(catalogue: Catalogue, where: Mapping[str, str]) -> RowFilter:
    """The scope of a view's rows; AccessDenied if a column cannot have such a value."""
    first = _leading(catalogue, where)
    prefix = KeyCodec([column.asked_type for column in catalogue.key]).encode(first)
    by_key = {column.name for column in catalogue.key[: len(first)]}
    return RowFilter(prefix, _equal(catalogue, {name: text for name, text in where.items() if name not in by_key}))


def scope_of_rollup(catalogue: Catalogue, where: Mapping[str, str]) -> RowFilter:
    """The scope of rows of a view's rollup by all columns in `where`; AccessDenied as for `scope_of_view`."""
    return RowFilter(equal=_equal(catalogue, where))


def condition(schema: pa.Schema, where: Mapping[str, str]) -> pc.Expression:
    """The scope of a table's rows, as a predicate; AccessDenied as for `scope_of_view`."""
    found = pc.scalar(True)
    for name, text in where.items():
        type_ = schema.field(name).type
        try:
            if pt.is_binary(type_):  # not comparable with text
                raise _no_such(name, text)
            found = found & (pc.field(name) == pa.scalar(text, pa.string()).cast(type_))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            raise _no_such(name, text) from None
    return found


def _equal(catalogue: Catalogue, where: Mapping[str, str]) -> tuple[tuple[str, pa.Scalar], ...]:
    types = {column.name: column.type for column in catalogue.key}
    types |= {column.name: column.type for column in catalogue.columns}
    types |= {column.name: TYPE for column in catalogue.computed}
    found = []
    for name, text in where.items():
        type_ = parse_type(types[name])
        if not isinstance(type_, Primitive | Decimal):
            raise _no_such(name, text)
        value = plain(type_, _parsed(name, type_, text))
        try:
            found.append((name, pa.scalar(value, arrow_type(type_))))
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
            raise _no_such(name, text) from None
    return tuple(found)


def _leading(catalogue: Catalogue, where: Mapping[str, str]) -> Sequence[Value]:
    """The values of the key's first columns, as far as the scope fixes them."""
    values: list[Value] = []
    for column in catalogue.key:
        type_ = parse_type(column.type)
        if column.name not in where or column.whole is not None or isinstance(type_, Struct):
            break
        values.append(_parsed(column.name, type_, where[column.name]))
        try:
            KeyCodec([column.asked_type]).encode(values[-1:])
        except KeyInvalid:  # too large for its column
            raise _no_such(column.name, where[column.name]) from None
    return values


def _parsed(name: str, type_: SparkType, text: str) -> Value:
    try:
        return parse(name, type_, text)
    except KeyInvalid:
        raise _no_such(name, text) from None


def _no_such(name: str, text: str) -> AccessDenied:
    return AccessDenied(
        f"This token reaches rows whose column {name!r} is {text[:80]!r}, which no row here can have",
        next_step="Ask with another token",
    )
