"""A holder's scope in SQL: which rows of a relation there are for it. A statement's DuckDB has no others.

A scope says which values columns must have, as texts. Where these are the first columns of the key, only the rows that
begin with them are read; other columns are compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from stateside.checkpoint.catalogue import Catalogue
from stateside.checkpoint.types import Struct, parse_type
from stateside.checkpoint.unsafe_row import Value
from stateside.errors import AccessDenied, KeyInvalid
from stateside.replica.keys import KeyCodec
from stateside.serving.reading.values import parse

T = TypeVar("T", pa.Table, pa.RecordBatch)


@dataclass(frozen=True, slots=True)
class Scope:
    """The bytes that keys begin with, and the values that columns have."""

    prefix: bytes = b""
    equal: tuple[tuple[str, pa.Scalar], ...] = ()

    def of(self, rows: T) -> T:
        """Those of the rows that are in the scope."""
        for name, value in self.equal:
            rows = rows.filter(pc.equal(rows.column(name), value))
        return rows


def scope_of_view(catalogue: Catalogue, schema: pa.Schema, where: Mapping[str, str]) -> Scope:
    """The scope of a view's rows; AccessDenied if a column cannot have such a value."""
    first = _leading(catalogue, where)
    prefix = KeyCodec([column.asked_type for column in catalogue.key]).encode(first)
    by_key = {column.name for column in catalogue.key[: len(first)]}
    return Scope(prefix, scope_of(schema, {name: text for name, text in where.items() if name not in by_key}).equal)


def scope_of(schema: pa.Schema, where: Mapping[str, str]) -> Scope:
    """The scope of rows with these columns, whatever they come from; AccessDenied as above."""
    return Scope(equal=tuple((name, _scalar(name, text, schema.field(name).type)) for name, text in where.items()))


def condition(schema: pa.Schema, where: Mapping[str, str]) -> pc.Expression:
    """The same as a condition on them."""
    found = pc.scalar(True)
    for name, value in scope_of(schema, where).equal:
        found = found & (pc.field(name) == value)
    return found


def _leading(catalogue: Catalogue, where: Mapping[str, str]) -> Sequence[Value]:
    """The values of the key's first columns, as far as the scope has them."""
    values: list[Value] = []
    for column in catalogue.key:
        type_ = parse_type(column.type)
        if column.name not in where or column.whole is not None or isinstance(type_, Struct):
            break
        try:
            values.append(parse(column.name, type_, where[column.name]))
            KeyCodec([column.asked_type]).encode(values[-1:])  # it may be too large for its column
        except KeyInvalid:
            raise _no_such(column.name, where[column.name]) from None
    return values


def _scalar(name: str, text: str, type_: pa.DataType) -> pa.Scalar:
    try:
        return pa.scalar(text, pa.string()).cast(type_)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise _no_such(name, text) from None


def _no_such(name: str, text: str) -> AccessDenied:
    return AccessDenied(
        f"This token reaches rows whose column {name!r} is {text[:80]!r}, which no row here can have",
        next_step="Ask with another token",
    )
