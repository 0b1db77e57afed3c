"""Answers of the clients: rows with their stamp, convertible to Arrow, pandas and polars with the view's types."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal as Number
from functools import cache
from itertools import count
from typing import TYPE_CHECKING, Any, Literal, Protocol

from stateside.core.errors import SetupError
from stateside.core.extras import explained
from stateside.core.positions import Position
from stateside.serving.stamp import Stamp, parse_time
from stateside.spark_state.types import Array, Decimal, Map, Primitive, SparkType, Struct, parse_type

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_VALUES: dict[str, Callable[[Any], Any]] = {
    "float": float,  # "NaN" and "Infinity" are texts in JSON
    "double": float,
    "date": date.fromisoformat,
    "timestamp": lambda text: _EPOCH + timedelta(microseconds=parse_time(text)),
    "timestamp_ntz": lambda text: (_EPOCH + timedelta(microseconds=parse_time(text))).replace(tzinfo=None),
    "binary": base64.urlsafe_b64decode,
}
_TYPES_OF_SQL = {
    "BOOLEAN": "boolean",
    "TINYINT": "byte",
    "SMALLINT": "short",
    "INTEGER": "integer",
    "BIGINT": "long",
    "HUGEINT": "decimal(38,0)",  # DuckDB's type for sums of whole numbers
    "FLOAT": "float",
    "DOUBLE": "double",
    "VARCHAR": "string",
    "DATE": "date",
    "TIMESTAMP": "timestamp_ntz",
    "TIMESTAMP WITH TIME ZONE": "timestamp",
    "BLOB": "binary",
}

Row = dict[str, Any]


class Stamped(Protocol):
    @property
    def stamp(self) -> Stamp: ...


@dataclass(frozen=True)
class Table:
    """Rows, as objects by column name, with the known column types (in Spark's notation)."""

    rows: list[Row]
    types: Mapping[str, str] = field(default_factory=dict, repr=False)

    def to_arrow(self) -> pa.Table:
        """The rows as an Arrow table, with the view's column types where known, else with JSON's."""
        with explained():
            import pyarrow as pa  # takes longer to import than to ask

        rows, types = self.rows, self.types
        typed = (name for name in types if not rows or name in rows[0])
        names = dict.fromkeys([*typed, *(name for row in rows for name in row)])
        return pa.table({name: _arrow_column([row.get(name) for row in rows], types.get(name)) for name in names})

    def to_pandas(self) -> pd.DataFrame:
        """The rows as a pandas frame, with the same types."""
        with explained():
            return self.to_arrow().to_pandas()

    def to_polars(self) -> pl.DataFrame:
        """The rows as a polars frame, with the same types; SetupError without polars."""
        try:
            import polars
        except ImportError:
            raise SetupError(
                "polars is not installed", next_step="Install it (pip install polars), or use to_arrow() or to_pandas()"
            ) from None
        frame = polars.from_arrow(self.to_arrow())
        assert isinstance(frame, polars.DataFrame)
        return frame


@dataclass(frozen=True)
class Answer(Table):
    """A stamped answer.

    An answer combined from several shards has the stamp of each in `stamps`; if all are of one batch (`one_batch`),
    `stamp` is their common stamp, else the oldest of them. `document` is the answer as in HTTP; `answer["range"]` reads
    a part of the document.
    """

    stamp: Stamp = field(kw_only=True)
    cursor: str | None = field(kw_only=True, default=None)
    stamps: tuple[Stamp, ...] = field(kw_only=True, default=())
    document: Mapping[str, Any] = field(kw_only=True, default_factory=dict, repr=False)

    @property
    def one_batch(self) -> bool:
        """Whether all rows are of one batch; only an answer of several shards may not be."""
        return len({(stamp.batch, stamp.position) for stamp in self.stamps}) <= 1

    @property
    def position(self) -> Position:
        """The covered position: as `min_position` of another request, the other answer is no older."""
        return self.stamp.position

    def __getitem__(self, name: str) -> Any:
        return self.document[name]

    @classmethod
    def of(cls, document: Mapping[str, Any], types: Mapping[str, str] | None = None) -> Answer:
        """The answer in a document; LookupError, TypeError or ValueError for any other document."""
        stamp = Stamp.of(document["stamp"])
        rows, cursor = document["rows"], document.get("cursor")
        return cls(rows, types or {}, stamp=stamp, cursor=cursor, stamps=(stamp,), document=document)

    @classmethod
    def together(cls, rows: list[Row], stamps: Sequence[Stamp], types: Mapping[str, str]) -> Answer:
        """The combined answer of several shards."""
        stamp = joined(stamps)
        document = {"stamp": stamp.as_dict(), "rows": rows, "cursor": None}
        if len(stamps) > 1:
            document["stamps"] = [each.as_dict() for each in stamps]
        return cls(rows, types, stamp=stamp, stamps=tuple(stamps), document=document)

    def first(self, count: int) -> Answer:
        """The answer with its first rows only."""
        rows = self.rows[:count]
        return replace(self, rows=rows, document={**self.document, "rows": rows})


@dataclass(frozen=True)
class Lookup(Answer):
    """The answer for many keys; `found` has for each key its row, or None."""

    found: list[Row | None] = field(kw_only=True, default_factory=list)

    @classmethod
    def of(cls, document: Mapping[str, Any], types: Mapping[str, str] | None = None) -> Lookup:
        return cls.together_found(document["rows"], [Stamp.of(document["stamp"])], types or {})

    @classmethod
    def together_found(cls, found: list[Row | None], stamps: Sequence[Stamp], types: Mapping[str, str]) -> Lookup:
        """The combined answer of several servers."""
        whole = Answer.together([row for row in found if row is not None], stamps, types)
        document = {**whole.document, "rows": found}
        return cls(whole.rows, types, stamp=whole.stamp, stamps=whole.stamps, document=document, found=found)


def joined(stamps: Sequence[Stamp]) -> Stamp:
    """The combined stamp of several shards: common if all are of one batch, else the oldest."""
    oldest = min(stamps, key=lambda stamp: (stamp.batch, -stamp.age_ms))
    if len(stamps) == 1 or len({(stamp.batch, stamp.position) for stamp in stamps}) > 1:
        return oldest
    return replace(oldest, share=None, replica=",".join(stamp.replica for stamp in stamps))


@dataclass(frozen=True)
class SqlAnswer(Table):
    """A statement's result, with a stamp for each of its views. `document` is the answer as in HTTP.

    A repeated column name gets a number: `sum`, `sum_2`.
    """

    stamps: tuple[Stamp, ...] = field(kw_only=True, default=())
    document: Mapping[str, Any] = field(kw_only=True, default_factory=dict, repr=False)

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> SqlAnswer:
        """The answer in a document; LookupError, TypeError or ValueError for any other document."""
        stamps = tuple(Stamp.of(stamp) for stamp in document["stamps"])
        names = _distinct([column["name"] for column in document["columns"]])
        rows = [dict(zip(names, row, strict=True)) for row in document["rows"]]
        known = ((name, spark_type(column["type"])) for name, column in zip(names, document["columns"], strict=True))
        types = {name: type_ for name, type_ in known if type_ is not None}
        return cls(rows, types, stamps=stamps, document=document)


def _distinct(names: Sequence[str]) -> list[str]:
    found: list[str] = []
    for name in names:
        numbered = (f"{name}_{number}" for number in count(2))
        found.append(name if name not in found else next(each for each in numbered if each not in [*found, *names]))
    return found


def spark_type(sql: str) -> str | None:
    """The type of a statement's column in the notation of views; None without an equivalent."""
    decimal = re.fullmatch(r"DECIMAL\((\d+),\s*(\d+)\)", sql)
    return f"decimal({decimal[1]},{decimal[2]})" if decimal else _TYPES_OF_SQL.get(sql)


@dataclass(frozen=True, slots=True)
class Change:
    """An item of a watch: a page of the initial snapshot, or the changes of a batch.

    kind        content
    snapshot    `rows` are present rows; the last page of a snapshot has `last`
    changes     `rows` are changed or added rows, `removed` the keys of removed rows
    reset       all earlier items are void, for this `reason`: a snapshot follows
    """

    kind: Literal["snapshot", "changes", "reset"]
    id: str | None
    stamp: Stamp | None
    rows: list[Row]
    removed: list[Row]
    last: bool = True
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Location:
    """The location of a key: its shard, and the servers with the shard, the newest batch first."""

    share: str | None
    servers: list[dict[str, Any]]


def _arrow_column(values: Sequence[Any], type_: str | None) -> pa.Array:
    """The values as an Arrow column; without a type, of the type that Arrow infers from JSON values."""
    import pyarrow as pa

    if type_ is None:
        return pa.array(values)
    spark = parse_type(type_)
    value_of = _value_of(spark)
    return pa.array([None if value is None else value_of(value) for value in values], _arrow_type(spark))


def _arrow_type(type_: SparkType) -> pa.DataType:
    import pyarrow as pa

    match type_:
        case Primitive(name):
            return _arrow_primitives().get(name, pa.string())  # intervals stay texts
        case Decimal(precision, scale):
            return pa.decimal128(precision, scale)
        case Array(element):
            return pa.list_(_arrow_type(element))
        case Map(key, value):
            return pa.map_(_arrow_type(key), _arrow_type(value))
        case Struct(names, types):
            return pa.struct([(name, _arrow_type(part)) for name, part in zip(names, types, strict=True)])
    raise AssertionError(f"no Arrow type for {type_}")


@cache
def _arrow_primitives() -> Mapping[str, pa.DataType]:
    import pyarrow as pa

    return {
        "string": pa.string(),
        "boolean": pa.bool_(),
        "byte": pa.int8(),
        "short": pa.int16(),
        "integer": pa.int32(),
        "long": pa.int64(),
        "float": pa.float32(),
        "double": pa.float64(),
        "date": pa.date32(),
        "timestamp": pa.timestamp("us", "UTC"),
        "timestamp_ntz": pa.timestamp("us"),
        "binary": pa.binary(),
    }


def _value_of(type_: SparkType) -> Callable[[Any], Any]:
    """The conversion from JSON to a Python value."""
    match type_:
        case Primitive(name):
            return _VALUES.get(name, lambda value: value)
        case Decimal():
            return Number
        case Array(element):
            one = _or_none(element)
            return lambda values: [one(value) for value in values]
        case Map(key, value):
            left, right = _or_none(key), _or_none(value)
            return lambda pairs: [(left(k), right(v)) for k, v in _pairs(pairs)]
        case Struct(names, types):
            fields = [(name, _or_none(part)) for name, part in zip(names, types, strict=True)]
            return lambda value: {name: one(value[name]) for name, one in fields}
    return lambda value: value


def _or_none(type_: SparkType) -> Callable[[Any], Any]:
    some = _value_of(type_)
    return lambda value: None if value is None else some(value)


def _pairs(shown: Any) -> list[tuple[Any, Any]]:
    return list(shown.items()) if isinstance(shown, dict) else [(pair["key"], pair["value"]) for pair in shown]
