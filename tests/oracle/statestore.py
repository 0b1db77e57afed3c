"""The oracle: what Spark's own reader, `statestore`, says that the state is, in the columns of an inferred view."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, IntegerType, MapType, StructField, StructType, YearMonthIntervalType

from stateside.checkpoint.catalogue import Catalogue

Row = tuple[Any, ...]
_US = timedelta(microseconds=1)


@dataclass(frozen=True)
class Told:
    """The rows of a view after one batch, and their Arrow types."""

    rows: list[Row]
    types: list[Any]

    def decoded(self) -> list[Row]:
        """The rows as our decoders have them."""
        return [tuple(map(_decoded, row, self.types)) for row in self.rows]

    def answered(self, catalogue: Catalogue) -> list[str]:
        """The rows as they stand in answers, each as JSON."""
        named = [column.type for column in (*catalogue.key, *catalogue.columns)]
        return sorted(json.dumps(list(map(_answered, row, self.types, named))) for row in self.rows)


def told(spark: SparkSession, checkpoint: Path, catalogue: Catalogue, batches: Sequence[int]) -> dict[int, Told]:
    """What Spark has of the view's state after each of these batches."""
    frames = [_loaded(spark, checkpoint, catalogue, batch) for batch in batches]
    table = reduce(DataFrame.unionAll, frames).toArrow()
    types = [field.type for field in table.schema][1:]
    rows: dict[int, list[Row]] = {batch: [] for batch in batches}
    for batch, *values in zip(*(column.to_pylist() for column in table.columns), strict=True):
        rows[batch].append(tuple(values))
    if catalogue.kind == "state-variable" and any(column.name == "index" for column in catalogue.key):
        rows = {batch: _numbered(entries, len(catalogue.key) - 1) for batch, entries in rows.items()}
        types.insert(len(catalogue.key) - 1, pa.int32())
    return {batch: Told(found, types) for batch, found in rows.items()}


def sides(spark: SparkSession, checkpoint: Path, catalogue: Catalogue, batch: int) -> list[Row]:
    """A join's side as Spark has it by the numbers of rows that it keeps: without their places, and `matched`."""
    side = catalogue.view.rsplit("-", 1)[-1]
    frame = _reader(spark, batch, {"operatorId": str(catalogue.operator), "joinSide": side}).load(str(checkpoint))
    table = _flat(frame, _columns(frame, catalogue), batch).toArrow()
    types = [field.type for field in table.schema][1:]
    rows = zip(*(column.to_pylist() for column in table.columns[1:]), strict=True)
    return Told(list(rows), types).decoded()


def _reader(spark: SparkSession, batch: int, options: dict[str, str]) -> Any:
    reader = spark.read.format("statestore").option("batchId", str(batch))
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader


def _loaded(spark: SparkSession, checkpoint: Path, catalogue: Catalogue, batch: int) -> DataFrame:
    options = {"operatorId": str(catalogue.operator)} | _options(catalogue)
    frame = _reader(spark, batch, options).load(str(checkpoint))
    return _flat(frame, _columns(frame, catalogue), batch)


def _options(catalogue: Catalogue) -> dict[str, str]:
    if catalogue.kind == "join":
        return {"storeName": str(catalogue.store or catalogue.family)}
    if catalogue.kind != "state-variable":
        return {}
    return {"readRegisteredTimers": "true"} if catalogue.family == "timers" else {"stateVarName": str(catalogue.family)}


def _columns(frame: DataFrame, catalogue: Catalogue) -> list[Column]:
    """The view's columns out of the reader's, in order."""
    parts = {field.name: _fields(F.col(field.name), field.dataType) for field in frame.schema}
    match catalogue.kind:
        case "session":  # the value row has all grouping columns; a view shows the window last of them
            names = frame.schema["value"].dataType.names[: len(parts["key"])]  # type: ignore[attr-defined]
            place, value = names.index("session_window"), parts["value"]
            return [*value[:place], *value[place + 1 : len(names)], value[place], *value[len(names) :]]
        case "groups":
            return [*parts["key"], *parts["value"][:-1], F.nullif(parts["value"][-1], F.lit(-1))]
    return [column for name, columns in parts.items() if name != "partition_id" for column in columns]


def _fields(column: Column, type_: DataType) -> list[Column]:
    """The fields of a row, whatever their names; also those of the row inside one that expires, or of a group."""
    if not isinstance(type_, StructType):
        return [column]
    if type_.names == ["__dummy__"]:
        return []
    numbered = StructType([StructField(f"f{place}", field.dataType) for place, field in enumerate(type_.fields)])
    fields = [column.cast(numbered).getField(name) for name in numbered.names]
    if type_.names in (["value", "ttlExpirationMs"], ["groupState", "timeoutTimestamp"]):
        return [*_fields(fields[0], type_.fields[0].dataType), fields[1]]
    return fields


def _flat(frame: DataFrame, columns: Sequence[Column], batch: int) -> DataFrame:
    """The batch, then these columns, each with a name of its own, and of types that Arrow has."""
    named = frame.select(*(column.alias(f"c{place}") for place, column in enumerate(columns)))
    months = named.select(*(_cast(named, name, "month") for name in named.columns))
    return months.select(F.lit(batch).alias("batch"), *(_cast(months, name, "int") for name in months.columns))


def _cast(frame: DataFrame, name: str, to: str) -> Column:
    """Intervals of months as their number: in two steps, as Spark has no other way."""
    before = frame.schema[name].dataType
    after = _without_months(before, to)
    return F.col(name) if after == before else F.col(name).cast(after).alias(name)


def _without_months(type_: DataType, to: str) -> DataType:
    match type_:
        case YearMonthIntervalType():
            month = YearMonthIntervalType.MONTH
            return YearMonthIntervalType(month, month) if to == "month" else IntegerType()
        case StructType(fields=fields):
            return StructType([StructField(f.name, _without_months(f.dataType, to), f.nullable) for f in fields])
        case ArrayType(elementType=element, containsNull=nulls):
            return ArrayType(_without_months(element, to), nulls)
        case MapType(keyType=key, valueType=value, valueContainsNull=nulls):
            return MapType(_without_months(key, to), _without_months(value, to), nulls)
    return type_


def _numbered(entries: Iterable[Row], key_columns: int) -> list[Row]:
    """A list's entries with their places in it, which Spark's reader does not tell, behind the key's columns."""
    seen: dict[str, int] = {}
    rows = []
    for entry in entries:
        key = repr(entry[:key_columns])
        seen[key] = seen.get(key, -1) + 1
        rows.append((*entry[:key_columns], seen[key], *entry[key_columns:]))
    return rows


def _decoded(value: Any, type_: Any) -> Any:
    """A value as our decoders give it."""
    if value is None:
        return None
    if pa.types.is_struct(type_):
        return tuple(_decoded(value[field.name], field.type) for field in type_)
    if pa.types.is_map(type_):
        return tuple((_decoded(key, type_.key_type), _decoded(item, type_.item_type)) for key, item in value)
    if pa.types.is_list(type_):
        return tuple(_decoded(each, type_.value_type) for each in value)
    match value:
        case datetime():
            return (value.replace(tzinfo=None) - datetime(1970, 1, 1)) // _US
        case date():
            return (value - date(1970, 1, 1)).days
        case timedelta():
            return value // _US
    return value


def _answered(value: Any, type_: Any, named: str = "") -> Any:
    """A value as it stands in an answer; `named` is Spark's name for its type."""
    if value is None:
        return None
    if pa.types.is_struct(type_):
        return {field.name: _answered(value[field.name], field.type) for field in type_}
    if pa.types.is_map(type_):
        return {key: _answered(item, type_.item_type) for key, item in value}
    if pa.types.is_list(type_):
        return [_answered(each, type_.value_type) for each in value]
    if named.startswith(("interval year", "interval month")):
        return f"P{value}M" if value else "PT0S"
    if pa.types.is_floating(type_) and not math.isfinite(value):
        return str(value).replace("inf", "Infinity").replace("nan", "NaN")
    return _text(value)


def _text(value: Any) -> Any:
    match value:
        case datetime() if value.tzinfo is None:
            return value.isoformat()
        case datetime():
            return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
        case date():
            return value.isoformat()
        case timedelta():
            seconds = f"{abs(value) // timedelta(seconds=1)}.{abs(value) % timedelta(seconds=1) // _US:06}"
            return f"PT{'-' * (value < timedelta())}{seconds.rstrip('0').rstrip('.')}S"
        case bytes():
            return base64.urlsafe_b64encode(value).decode()
        case _ if type(value).__name__ == "Decimal":
            return f"{value:f}"
    return value
