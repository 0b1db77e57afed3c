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
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, IntegerType, StructField, StructType, YearMonthIntervalType

from stateside.views.catalogue import Catalogue

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
        named = [key.type for key in catalogue.key] + [column.type for column in catalogue.columns]
        return sorted(json.dumps(list(map(_answered, row, self.types, named))) for row in self.rows)


def told(spark: SparkSession, checkpoint: Path, catalogue: Catalogue, batches: Sequence[int]) -> dict[int, Told]:
    """What Spark has of the view's state after each of these batches."""
    return _read(spark, checkpoint, catalogue, batches, _options(catalogue))


def side(spark: SparkSession, checkpoint: Path, catalogue: Catalogue, batch: int) -> Told:
    """A join's side as Spark has it by the numbers of rows that it keeps: without their places, and `matched`."""
    return _read(spark, checkpoint, catalogue, [batch], {"joinSide": catalogue.view.rsplit("-", 1)[-1]})[batch]


def _read(
    spark: SparkSession, checkpoint: Path, catalogue: Catalogue, batches: Sequence[int], options: dict[str, str]
) -> dict[int, Told]:
    given = options | {"operatorId": str(catalogue.operator)}
    frames = []
    for batch in batches:
        reader = spark.read.format("statestore").options(**given, batchId=str(batch))
        frames.append(reader.load(str(checkpoint)).withColumn("batch", F.lit(batch)))
    table = _without_months(_flat(reduce(DataFrame.unionAll, frames), catalogue)).toArrow()
    rows: dict[int, list[Row]] = {batch: [] for batch in batches}
    for *values, batch in zip(*(column.to_pylist() for column in table.columns), strict=True):
        rows[batch].append(tuple(values))
    types = [field.type for field in table.schema][:-1]
    if catalogue.kind == "state-variable" and any(column.name == "index" for column in catalogue.key):
        rows = {batch: _numbered(entries, len(catalogue.key) - 1) for batch, entries in rows.items()}
        types.insert(len(catalogue.key) - 1, pa.int32())
    return {batch: Told(found, types) for batch, found in rows.items()}


def _options(catalogue: Catalogue) -> dict[str, str]:
    if catalogue.kind == "join":
        return {"storeName": str(catalogue.store or catalogue.family)}
    if catalogue.kind != "state-variable":
        return {}
    return {"readRegisteredTimers": "true"} if catalogue.family == "timers" else {"stateVarName": str(catalogue.family)}


def _flat(frame: DataFrame, catalogue: Catalogue) -> DataFrame:
    """The view's columns out of the reader's, in order, each with a name of its own; then the batch."""
    types = {field.name: field.dataType for field in frame.schema if field.name != "partition_id"}
    numbered = frame.select(*(F.col(name).cast(_numbered_type(type_)).alias(name) for name, type_ in types.items()))
    parts = {name: _fields(name, type_) for name, type_ in types.items()}
    match catalogue.kind:
        case "session":  # the value row has all grouping columns; a view shows the window last of them
            grouping = types["value"].names[: len(parts.pop("key"))]  # type: ignore[attr-defined]
            parts["value"].insert(len(grouping) - 1, parts["value"].pop(grouping.index("session_window")))
        case "groups":
            parts["value"][-1] = f"nullif({parts['value'][-1]}, -1)"
    columns = [column for part in parts.values() for column in part]
    return numbered.selectExpr(*(f"{column} AS c{place}" for place, column in enumerate(columns)))


def _fields(name: str, type_: DataType) -> list[str]:
    """The fields of a row, after `_numbered_type`; also those of the row inside one that expires, or of a group."""
    if not isinstance(type_, StructType):
        return [name]
    if type_.names == ["__dummy__"]:
        return []
    first = f"{name}.f0"
    if type_.names in (["value", "ttlExpirationMs"], ["groupState", "timeoutTimestamp"]):
        return [*_fields(first, type_.fields[0].dataType), f"{name}.f1"]
    return [f"{name}.f{place}" for place in range(len(type_.fields))]


def _numbered_type(type_: DataType) -> DataType:
    """A row whose fields have numbers for names, as Spark lets several have one; the same for a row in it."""
    if not isinstance(type_, StructType):
        return type_
    inner = type_.names in (["value", "ttlExpirationMs"], ["groupState", "timeoutTimestamp"])
    types = [_numbered_type(field.dataType) if inner else field.dataType for field in type_.fields]
    return StructType([StructField(f"f{place}", each) for place, each in enumerate(types)])


def _without_months(frame: DataFrame) -> DataFrame:
    """Intervals of months, which Arrow does not have from Spark, as their number: in two steps, the only way."""
    month = YearMonthIntervalType(YearMonthIntervalType.MONTH, YearMonthIntervalType.MONTH)
    for to in (month, IntegerType()):
        casts = {f.name: F.col(f.name).cast(to) for f in frame.schema if isinstance(f.dataType, YearMonthIntervalType)}
        frame = frame.withColumns(casts) if casts else frame
    return frame


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
