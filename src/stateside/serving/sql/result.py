"""Results as JSON, CSV or an Arrow stream, batch by batch.

    json     {"stamps": [stamp, …], "columns": [{"name": …, "type": …}, …], "rows": [[value, …], …]}
    csv      RFC 4180, UTF-8, the first line has the columns' names; null is nothing, an empty text is ""
    arrow    an Arrow IPC stream

CSV and Arrow are sent while the statement runs. After the first rows no status can report a failure, and the server
cannot break the connection off: so the result is *cut*, in a way that no reader takes for its end. An Arrow stream then
ends inside a message. CSV ends with a line that begins with a quote, never closed, and gives the reason.

A row is a list in column order, since two columns in SQL may have the same name. JSON values are those of other answers
(`rows.values`): decimals, times, intervals, NaN and infinities as texts. Whole numbers of more than 64 bits are texts.
CSV has the same texts, and nested values as JSON.
"""

from __future__ import annotations

import base64
import io
import math
import struct
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, Literal, Protocol

import orjson
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.types as pt

from stateside.core.errors import SqlInvalid
from stateside.serving.rows.values import renderer
from stateside.serving.stamp import Stamp
from stateside.spark_state.types import Primitive

Format = Literal["json", "csv", "arrow"]
FORMATS: Final[tuple[Format, ...]] = ("json", "csv", "arrow")

_MESSAGE_HEAD: Final = struct.pack("<Ii", 0xFFFFFFFF, 1 << 20)  # Arrow's: a marker, and the size of the message
_WIDE: Final = ("HUGEINT", "UHUGEINT")  # decimals in Arrow
_LONG_MIN, _LONG_MAX = -(1 << 63), (1 << 64) - 1  # the range of orjson's numbers

Render = Callable[[Any], Any]


class Written(Protocol):
    """Writes a result: its beginning, batches, and its end."""

    kind: str  # content type

    def begin(self) -> bytes: ...

    def batch(self, rows: pa.RecordBatch) -> bytes: ...

    def end(self) -> bytes: ...


def written(format_: Format, schema: pa.Schema, types: Sequence[str], stamps: Sequence[Stamp]) -> Written:
    """The writer of a result in a format; `types` are DuckDB's names of the columns' types."""
    match format_:
        case "json":
            return JsonResult(schema, types, stamps)
        case "csv":
            return CsvResult(schema, types)
        case "arrow":
            return ArrowResult(schema)


def cut(format_: Format, why: str) -> bytes:
    """The end of an incomplete result; empty for JSON, which is only sent when complete."""
    match format_:
        case "json":
            return b""
        case "csv":
            return b'"CUT: ' + why.replace('"', "'").encode()
        case "arrow":
            return _MESSAGE_HEAD


class JsonResult:
    kind = "application/json"

    def __init__(self, schema: pa.Schema, types: Sequence[str], stamps: Sequence[Stamp]) -> None:
        self._head = {
            "stamps": [stamp.as_dict() for stamp in stamps],
            "columns": [{"name": name, "type": type_} for name, type_ in zip(schema.names, types, strict=True)],
        }
        self._render = _renderers(schema, types)
        self._first = True

    def begin(self) -> bytes:
        """The stamps and the columns."""
        return orjson.dumps(self._head).removesuffix(b"}") + b',"rows":['

    def batch(self, rows: pa.RecordBatch) -> bytes:
        if not rows.num_rows:
            return b""
        columns = [_rendered(column, render) for column, render in zip(rows.columns, self._render, strict=True)]
        comma, self._first = b"" if self._first else b",", False
        return comma + orjson.dumps(list(zip(*columns, strict=True)))[1:-1]

    def end(self) -> bytes:
        return b"]}"


class CsvResult:
    kind = "text/csv; charset=utf-8; header=present"

    def __init__(self, schema: pa.Schema, types: Sequence[str]) -> None:
        self._render = _renderers(schema, types)
        plain = zip(schema, self._render, strict=True)
        fields = [pa.field(f.name, f.type if render is None else pa.string()) for f, render in plain]
        self._schema = pa.schema(fields)

    def begin(self) -> bytes:
        """The header line."""
        sink = io.BytesIO()
        with pacsv.CSVWriter(sink, self._schema, write_options=pacsv.WriteOptions(include_header=True)):
            return sink.getvalue()

    def batch(self, rows: pa.RecordBatch) -> bytes:
        columns = [
            column if render is None else pa.array(map(_text, _rendered(column, render)), pa.string())
            for column, render in zip(rows.columns, self._render, strict=True)
        ]
        sink = io.BytesIO()
        with pacsv.CSVWriter(sink, self._schema, write_options=pacsv.WriteOptions(include_header=False)) as lines:
            lines.write_batch(pa.RecordBatch.from_arrays(columns, schema=self._schema))
        return sink.getvalue()

    def end(self) -> bytes:
        return b""


class ArrowResult:
    kind = "application/vnd.apache.arrow.stream"

    def __init__(self, schema: pa.Schema) -> None:
        self._sink = io.BytesIO()
        self._stream = pa.ipc.new_stream(self._sink, schema)

    def begin(self) -> bytes:
        """The schema."""
        return self._taken()

    def batch(self, rows: pa.RecordBatch) -> bytes:
        self._stream.write_batch(rows)
        return self._taken()

    def end(self) -> bytes:
        """The end-of-stream marker."""
        self._stream.close()
        return self._taken()

    def _taken(self) -> bytes:
        content = self._sink.getvalue()
        self._sink.seek(0)
        self._sink.truncate()
        return content


KINDS: Final = (JsonResult.kind, CsvResult.kind, ArrowResult.kind)


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else orjson.dumps(value).decode()


def _rendered(column: pa.Array, render: Render | None) -> list[Any]:
    try:
        values = column.to_pylist()
    except (ValueError, OverflowError):
        raise SqlInvalid(
            "A time in the result is beyond the years 1 to 9999", next_step="Cast it to text: CAST(… AS VARCHAR)"
        ) from None
    return values if render is None else [None if value is None else render(value) for value in values]


def _renderers(schema: pa.Schema, types: Sequence[str]) -> list[Render | None]:
    return [_whole if type_ in _WIDE else _renderer(field.type) for field, type_ in zip(schema, types, strict=True)]


def _whole(value: Any) -> int | str:
    number = int(value)
    return number if _LONG_MIN <= number <= _LONG_MAX else str(number)


def _renderer(type_: pa.DataType) -> Render | None:
    """The renderer of non-null values; None where values need no conversion."""
    if pt.is_struct(type_):
        fields = {field.name: _or_null(_renderer(field.type)) for field in type_}
        return lambda value: {name: fields[name](part) for name, part in value.items()}
    if pt.is_list(type_) or pt.is_large_list(type_) or pt.is_fixed_size_list(type_):
        each = _or_null(_renderer(type_.value_type))
        return lambda value: [each(part) for part in value]
    if pt.is_map(type_):
        return _map_renderer(type_)
    if pt.is_timestamp(type_):
        return _time
    if pt.is_integer(type_) or pt.is_boolean(type_) or pt.is_string(type_) or pt.is_large_string(type_):
        return None
    return _scalar


def _or_null(render: Render | None) -> Render:
    return lambda value: None if value is None else value if render is None else render(value)


def _map_renderer(type_: pa.DataType) -> Render:
    one, other = _or_null(_renderer(type_.key_type)), _or_null(_renderer(type_.item_type))
    if pt.is_string(type_.key_type):
        return lambda pairs: {name: other(value) for name, value in pairs}
    return lambda pairs: [{"key": one(key), "value": other(value)} for key, value in pairs]


def _time(value: datetime) -> str:
    return value.isoformat().replace("+00:00", "Z")


_INTERVAL = renderer(Primitive("interval"))


def _scalar(value: Any) -> Any:
    """Any other value, by its Python type."""
    match value:
        case float():
            return value if math.isfinite(value) else renderer(Primitive("double"))(value)
        case bytes():
            return base64.urlsafe_b64encode(value).decode()
        case timedelta():
            return _INTERVAL((0, 0, value // timedelta(microseconds=1)))
        case pa.MonthDayNano():
            return _INTERVAL((value.months, value.days, value.nanoseconds // 1_000))
        case bool() | int() | str():
            return value
    return value.isoformat() if hasattr(value, "isoformat") else f"{value}"
