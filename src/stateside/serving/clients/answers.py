"""Answers of the clients: rows with their stamp, convertible to Arrow, pandas and polars with the view's types."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, Any, Literal, Protocol

from stateside.core.errors import SetupError
from stateside.core.extras import explained
from stateside.core.positions import Position
from stateside.serving.stamp import Stamp

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

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
            from stateside.serving.clients.arrow_table import arrow_table  # pyarrow takes longer to import than to ask

        return arrow_table(self.rows, self.types)

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
