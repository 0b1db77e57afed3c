"""Random events with columns of every SQL type that can stand in a state, as Parquet files: one file, one batch.

An event has key columns `k0`, `k1`, …, drawn together from a few keys, so that they come again; value columns `v0`,
`v1`, …; a number `n`, a `kind` of a few letters, and a time `at` that goes on by half an hour a batch.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

EVENTS_A_BATCH = 12
KEYS = 3
BATCH_MINUTES = 30
START = datetime(2026, 1, 1, tzinfo=UTC)
Draw = Callable[[random.Random], Any]
_EXACT = Context(prec=40)


@dataclass(frozen=True)
class Type:
    """A type: Spark's and Arrow's name for it, what draws a value, and what can be done with it.

    `made_by` makes the value, in SQL, of a column that Parquet does have. An `ordered` one has a largest value, a
    `summed` one a sum; `in_python`, `in_pandas_key` and `in_avro` say where Spark 4.2 takes it. With `draw_avro` it
    does not take all values there: it writes lists in Avro as if nothing in them could be null, and fails.
    """

    sql: str
    arrow: Any
    draw: Draw
    key: bool = True
    ordered: bool = True
    summed: bool = False
    in_python: bool = True
    in_avro: bool = True
    in_pandas_key: bool = True
    draw_avro: Draw | None = None
    made_by: str = "{}"


def _whole(bits: int) -> Draw:
    ends = [-(2 ** (bits - 1)), -1, 0, 1, 2 ** (bits - 1) - 1]
    return lambda draw: draw.choice([*ends, draw.randrange(ends[0], ends[-1])])


def _float(draw: random.Random) -> float:
    return draw.choice([0.0, -0.0, 1.5, -2.25, float("nan"), float("inf"), float("-inf"), draw.randrange(999) / 8])


def _decimal(digits: int, scale: int) -> Draw:
    largest = 10**digits - 1
    numbers = [0, 1, -1, largest]
    return lambda draw: Decimal(draw.choice([*numbers, draw.randrange(-largest, largest)])).scaleb(-scale, _EXACT)


def _text(draw: random.Random) -> str:
    return draw.choice(["", "emma", "Ωmega/ä", "a\x00b\x01", "a\x00", "mia" * 9, "".join(draw.choices("ab\x00ü", k=9))])


def _day(draw: random.Random) -> date:
    return date(1970, 1, 1) + timedelta(days=draw.randrange(-130_000, 2_000_000))


def _moment(draw: random.Random) -> datetime:
    return datetime(1970, 1, 1) + timedelta(
        microseconds=draw.randrange(-9 * 10**15, 9 * 10**15)
    )  # as far as pandas goes


def _maybe(draw_some: Draw) -> Draw:
    return lambda draw: None if draw.random() < 0.2 else draw_some(draw)


def _many(draw_one: Draw) -> Draw:
    return lambda draw: [draw_one(draw) for _ in range(draw.choice([0, 1, 2, 5]))]


def _entries(draw_value: Draw) -> Draw:
    return lambda draw: [(name, draw_value(draw)) for name in draw.sample(["a", "b", "", "ü" * 9], draw.randrange(4))]


_STRUCT = pa.struct([("a", pa.int32()), ("b", pa.string())])


def _struct(draw: random.Random) -> dict[str, Any]:
    return {"a": _maybe(_whole(32))(draw), "b": _maybe(_text)(draw)}


_NUMBERS = (
    Type("boolean", pa.bool_(), lambda draw: draw.random() < 0.5),
    Type("tinyint", pa.int8(), _whole(8), in_avro=False),
    Type("smallint", pa.int16(), _whole(16), in_avro=False),
    Type("int", pa.int32(), _whole(32)),
    Type("bigint", pa.int64(), _whole(64)),
    Type("float", pa.float32(), _float),
    Type("double", pa.float64(), _float, summed=True),
    Type("decimal(7,2)", pa.decimal128(7, 2), _decimal(7, 2), summed=True),
    Type("decimal(18,4)", pa.decimal128(18, 4), _decimal(18, 4), summed=True),
    Type("decimal(30,6)", pa.decimal128(30, 6), _decimal(30, 6), summed=True),
)
_TEXTS_AND_TIMES = (
    Type("string", pa.string(), _text),
    Type("binary", pa.binary(), lambda draw: draw.randbytes(draw.choice([0, 1, 8, 20]))),
    Type("date", pa.date32(), _day),
    Type("timestamp", pa.timestamp("us", "UTC"), lambda draw: _moment(draw).replace(tzinfo=UTC)),
    Type("timestamp_ntz", pa.timestamp("us"), _moment),
    Type(
        "interval year to month",
        pa.int32(),
        lambda draw: draw.randrange(-9_999, 9_999),
        key=False,
        in_python=False,
        made_by="make_ym_interval(0, {})",
    ),
    Type(
        "interval day to second",
        pa.int64(),
        lambda draw: draw.randrange(-(10**12), 10**12),
        key=False,
        in_python=False,
        made_by="make_dt_interval(0, 0, 0, {} / 1000000)",
    ),
)
_NESTED = (
    Type("struct<a:int,b:string>", _STRUCT, _struct, in_pandas_key=False),
    Type("array<string>", pa.list_(pa.string()), _many(_maybe(_text)), key=False, draw_avro=_many(_text)),
    Type("array<tinyint>", pa.list_(pa.int8()), _many(_whole(8)), key=False, in_avro=False),
    Type("map<string,bigint>", pa.map_(pa.string(), pa.int64()), _entries(_whole(64)), key=False, ordered=False),
    Type("array<struct<a:int,b:string>>", pa.list_(_STRUCT), _many(_struct), key=False),
    Type(
        "struct<c:array<date>,d:map<string,array<decimal(20,2)>>>",
        pa.struct([("c", pa.list_(pa.date32())), ("d", pa.map_(pa.string(), pa.list_(pa.decimal128(20, 2))))]),
        lambda draw: {"c": _many(_day)(draw), "d": _entries(_many(_decimal(20, 2)))(draw)},
        key=False,
        ordered=False,
    ),
    Type("int", pa.int32(), _whole(32)),
)


def in_avro(types: Iterable[Type]) -> tuple[Type, ...]:
    """Those of the types, with those of their values, that Spark 4.2 can write in Avro."""
    return tuple(replace(type_, draw=type_.draw_avro or type_.draw) for type_ in types if type_.in_avro)


TYPES = {"numbers": _NUMBERS, "texts and times": _TEXTS_AND_TIMES, "nested": _NESTED}


@dataclass(frozen=True)
class Events:
    """The events of a set of types, from a seed: always the same ones."""

    types: tuple[Type, ...]
    seed: int

    @property
    def keys(self) -> dict[str, Type]:
        """The key columns."""
        return {f"k{place}": type_ for place, type_ in enumerate(type_ for type_ in self.types if type_.key)}

    @property
    def values(self) -> dict[str, Type]:
        """The value columns."""
        return {f"v{place}": type_ for place, type_ in enumerate(self.types)}

    def write(self, folder: Path, number: int) -> None:
        """The events of one batch, for a query that reads the folder."""
        folder.mkdir(parents=True, exist_ok=True)
        hidden = folder / f".{number}"
        pq.write_table(self._table(number), hidden)
        os.utime(hidden, (time.time() - 1_000 + number,) * 2)  # the order in which Spark takes the files
        hidden.rename(folder / f"{number}.parquet")

    def read(self, spark: SparkSession, folder: Path) -> DataFrame:
        """The stream of them, a file a batch."""
        columns = self.keys | self.values
        stored = ", ".join(f"{name} {_SQL_OF_ARROW.get(t.arrow, t.sql)}" for name, t in columns.items())
        schema = f"{stored}, n bigint, kind string, at timestamp"
        stream = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder))
        made = [f"{type_.made_by.format(name)} AS {name}" for name, type_ in columns.items()]
        return stream.selectExpr(*made, "n", "kind", "at")

    def _table(self, number: int) -> pa.Table:
        draw = random.Random(f"{self.seed} {number}")
        keys = self._keys()
        rows = [self._event(draw, draw.choice(keys), number) for _ in range(EVENTS_A_BATCH)]
        fields = [(name, type_.arrow) for name, type_ in (self.keys | self.values).items()]
        schema = pa.schema([*fields, ("n", pa.int64()), ("kind", pa.string()), ("at", pa.timestamp("us", "UTC"))])
        return pa.Table.from_pylist(rows, schema)

    def _keys(self) -> list[dict[str, Any]]:
        """A few keys, some of them with nulls; two of them differ in the last column only."""
        draw = random.Random(self.seed)
        keys = [{name: type_.draw(draw) for name, type_ in self.keys.items()} for _ in range(KEYS)]
        last, type_ = list(self.keys.items())[-1]
        return [*keys, {**keys[0], last: type_.draw(draw)}, keys[0] | {last: None}, dict.fromkeys(self.keys)]

    def _event(self, draw: random.Random, key: dict[str, Any], number: int) -> dict[str, Any]:
        values = {name: _maybe(type_.draw)(draw) for name, type_ in self.values.items()}
        kind, at = draw.choices("abcd", [3, 2, 3, 2])[0], START + timedelta(minutes=BATCH_MINUTES * number)
        at += timedelta(seconds=draw.randrange(60 * BATCH_MINUTES))
        return {**key, **values, "n": draw.randrange(100), "kind": kind, "at": at}


_SQL_OF_ARROW = {pa.int32(): "int", pa.int64(): "bigint"}
