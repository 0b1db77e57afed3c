"""Payload fields: JSON objects to Arrow columns, and the check of payloads against a folder's declared fields.

Arrow alone decides whether a value fits, at the append and in the pipeline alike:

| declared | fits |
|---|---|
| `string`, `binary` | a text |
| `tinyint` to `bigint` | a number without fraction or exponent, in the type's range |
| `float`, `double` | a number in the type's range; not NaN or Infinity, which JSON does not have |
| `decimal(p,s)` | a number, or a text with one, of at most `p - s` digits before and `s` after the point |
| `boolean` | true or false |
| `timestamp` | a text like 2026-01-31T12:00:00Z, to the microsecond; UTC without a zone |
| `date` | a text like 2026-01-31 |
| `array<T>` | a list whose items fit T |
| `struct<…>` | an object whose named fields fit |

An absent or null field is null, whatever its type; undeclared fields are ignored. A declared field that occurs twice
does not fit.

The declared fields of a folder's views are stored beside the journal's folder, for the check at the append:

    fields.json := {"views": {VIEW: {"fields": DDL, "schema": base64, "types": […], "tags": […]}}}

The runner writes the file at each start; `schema` is the Arrow schema of the DDL, which only Spark can parse. Before
the first run there is no file, and an append checks nothing. An event must fit the fields of every view that reads it:
all events if the view names neither types nor tags, else events of its types with any of its tags.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pajson
import pyarrow.types as pt

from stateside.core.errors import EventRefused, ViewInvalid
from stateside.core.json_file import JsonFile
from stateside.journal.event import Event, json_bytes

Check = Callable[[Any], bool]
_NO_NUMBERS = (bool, str, list, dict)
_SHOWN_MAX = 80  # characters of a value in a message
_SPARK_NAMES = {
    **{"int8": "tinyint", "int16": "smallint", "int32": "int", "int64": "bigint"},
    **{"bool": "boolean", "date32[day]": "date"},
}


def payload_columns(payloads: pa.Array, schema: pa.Schema) -> pa.Table:
    """The named fields of every payload, one row each; a misfit gives nulls throughout (see `fitted`)."""
    return fitted(payloads, schema)[0]


def fitted(payloads: pa.Array, schema: pa.Schema) -> tuple[pa.Table, list[int]]:
    """The named fields of every payload, one row each, and the numbers of the rows whose payloads do not fit.

    A payload that does not fit gives nulls throughout and does not affect other rows.
    """
    if not len(schema) or not len(payloads):
        return (schema.empty_table() if len(schema) else pa.table({})), []
    try:
        return _parse(payloads, schema), []
    except pa.ArrowInvalid:
        texts, hopeless = _without_hopeless(payloads, schema)
        table, others = _parse_in_halves(texts, schema, 0)
        return table.combine_chunks(), sorted([*hopeless, *others])


def mismatch(payload: str, schema: pa.Schema) -> str:
    """Why a payload rejected by `fitted` does not fit; names the field."""
    try:
        pairs: list[tuple[str, Any]] = json.loads(payload, object_pairs_hook=_Pairs)
    except (ValueError, RecursionError) as error:
        return f"the payload is no JSON: {error}"
    if not isinstance(pairs, _Pairs):
        return "the payload is not one JSON object"
    unreadable = _unreadable(payload, schema)
    if unreadable is not None:
        return f"the payload cannot be read: {unreadable}"
    for field in schema:
        if not _fits(payload, field):
            return _field_mismatch(field, [value for name, value in pairs if name == field.name])
    return "the payload is not one JSON object"


def _unreadable(payload: str, schema: pa.Schema) -> str | None:
    """Why Arrow can read no field of the payload, such as an exponent beyond all types in an undeclared field."""
    other = pa.field(max(schema.names, key=len) + "_", pa.string())  # longer than every declared name, so undeclared
    try:
        _parse(pa.array([payload], pa.string()), pa.schema([other]))
        return None
    except pa.ArrowInvalid as error:
        return str(error)


class _Pairs(list[tuple[str, Any]]):
    """A JSON object that keeps duplicate names."""


def _fits(payload: str, field: pa.Field) -> bool:
    try:
        _parse(pa.array([payload], pa.string()), pa.schema([field]))
        return True
    except pa.ArrowInvalid:
        return False


def _field_mismatch(field: pa.Field, values: list[Any]) -> str:
    if len(values) > 1:
        return f"the field {field.name!r} stands {len(values)} times in the payload"
    shown = json.dumps(_plain(values[0]), ensure_ascii=False) if values else "absent"
    shown = shown if len(shown) <= _SHOWN_MAX else f"{shown[:_SHOWN_MAX]}…"
    return f"the field {field.name!r} is {shown}, which is no {spark_name(field.type)}"


def _plain(value: Any) -> Any:
    if isinstance(value, _Pairs):
        return {name: _plain(each) for name, each in value}
    return [_plain(each) for each in value] if isinstance(value, list) else value


def spark_name(type_: pa.DataType) -> str:
    """The type's name in a declaration of fields."""
    if pt.is_list(type_):
        return f"array<{spark_name(type_.value_type)}>"
    if pt.is_struct(type_):
        return f"struct<{','.join(f'{part.name}:{spark_name(part.type)}' for part in type_)}>"
    if pt.is_decimal(type_):
        return f"decimal({type_.precision},{type_.scale})"
    return "timestamp" if pt.is_timestamp(type_) else _SPARK_NAMES.get(str(type_), str(type_))


def check_fields(schema: pa.Schema) -> None:
    """ViewInvalid at start for a field that cannot be read from JSON."""
    for field in schema:
        if _as_read(field.type) is None:
            raise ViewInvalid(
                f"The payload field {field.name!r} has the type {field.type}, which cannot be read from a payload",
                next_step="Declare it as a struct with named fields, or parse the column `payload` with from_json",
            )


def _as_read(type_: pa.DataType) -> pa.DataType | None:
    """The type that Arrow's JSON reader uses: the same type, but text for a date; None for an unsupported type."""
    if pt.is_date(type_):
        return pa.string()
    if pt.is_list(type_):
        item = _as_read(type_.value_type)
        return None if item is None else pa.list_(item)
    if pt.is_struct(type_):
        parts = [(part.name, _as_read(part.type)) for part in type_]
        return None if any(part is None for _, part in parts) else pa.struct(parts)
    return None if pt.is_map(type_) or pt.is_interval(type_) or pt.is_duration(type_) else type_


def _parse(payloads: pa.Array, schema: pa.Schema) -> pa.Table:
    if not _are_objects(payloads):
        raise pa.ArrowInvalid("a payload that is not one JSON object")
    lines = pc.binary_join_element_wise(payloads, "", "\n").cast(pa.large_binary())
    offsets = memoryview(lines.buffers()[1]).cast("q")
    document = lines.buffers()[2].slice(0, offsets[len(lines)])  # the column's bytes: all lines, concatenated
    read_as = pa.schema([(field.name, _as_read(field.type)) for field in schema])
    options = pajson.ParseOptions(explicit_schema=read_as, unexpected_field_behavior="ignore")
    read = pajson.ReadOptions(use_threads=False, block_size=document.size + 1)
    table = pajson.read_json(pa.BufferReader(document), read_options=read, parse_options=options)
    if table.num_rows != len(payloads):
        raise pa.ArrowInvalid("a payload with a line break")
    if not all(_within(chunk) for field in schema for chunk in table[field.name].chunks if _has_range(field.type)):
        raise pa.ArrowInvalid("a number beyond the range of its type")
    return table if read_as.equals(schema) else table.cast(schema)


def _are_objects(payloads: pa.Array) -> bool:
    """Whether each payload begins like an object. Arrow's reader ends the process at a `null` in place of an object."""
    if pc.all(pc.starts_with(payloads, "{")).as_py():
        return True
    return bool(pc.all(pc.starts_with(pc.ascii_ltrim_whitespace(payloads), "{")).as_py())


def _has_range(type_: pa.DataType) -> bool:
    """Whether the type has floats or decimals: Arrow turns values out of range into infinities or too many digits."""
    if pt.is_list(type_):
        return _has_range(type_.value_type)
    if pt.is_struct(type_):
        return any(_has_range(part.type) for part in type_)
    return bool(pt.is_floating(type_) or pt.is_decimal(type_))


def _within(values: pa.Array) -> bool:
    """Whether all floats and decimals are in their type's range."""
    if pt.is_list(values.type):
        return _within(values.flatten())
    if pt.is_struct(values.type):
        return all(_within(part) for part in values.flatten())
    if pt.is_floating(values.type):
        return pc.all(pc.is_finite(values)).as_py() is not False  # None: all are null
    if pt.is_decimal(values.type):
        largest = Decimal(10) ** (values.type.precision - values.type.scale)
        extremes = pc.min_max(values).as_py()
        return all(each is None or abs(each) < largest for each in extremes.values())
    return True


def _parse_in_halves(payloads: pa.Array, schema: pa.Schema, first: int) -> tuple[pa.Table, list[int]]:
    """As `_parse`, but a bad payload gives nulls: bisection finds the few bad ones among many in few steps.

    Also returns the numbers of the bad payloads, counted from `first`.
    """
    try:
        return _parse(payloads, schema), []
    except pa.ArrowInvalid:
        if len(payloads) == 1:
            return pa.Table.from_pylist([dict.fromkeys(schema.names)], schema=schema), [first]
    half = len(payloads) // 2
    one, bad = _parse_in_halves(payloads[:half], schema, first)
    other, more = _parse_in_halves(payloads[half:], schema, first + half)
    return pa.concat_tables([one, other]), bad + more


def _without_hopeless(payloads: pa.Array, schema: pa.Schema) -> tuple[pa.Array, list[int]]:
    """The payloads with `{}` in place of each one that Arrow would certainly refuse, and the numbers of those.

    A refusal costs Arrow more than this check of a hundred payloads; with one bad payload in a hundred, refusals would
    take most of the time. Uncertain payloads stay, so that Arrow alone decides what fits.
    """
    wrong = [(field.name, check) for field in schema if (check := _surely_wrong(field.type))]
    texts: list[str] = payloads.to_pylist()
    hopeless = [number for number, text in enumerate(texts) if _hopeless(text, wrong)]
    for number in hopeless:
        texts[number] = "{}"
    return pa.array(texts, pa.string()), hopeless


def _hopeless(payload: str, wrong: list[tuple[str, Check]]) -> bool:
    try:
        found = json.loads(payload)
    except (ValueError, RecursionError):
        return False
    return not isinstance(found, dict) or any(check(found.get(name)) for name, check in wrong)


def _surely_wrong(type_: pa.DataType) -> Check | None:
    """A check that a value is certainly not of this type; None if only Arrow can decide."""
    if pt.is_integer(type_):
        return lambda value: isinstance(value, _NO_NUMBERS) or (isinstance(value, float) and value % 1 != 0)
    if pt.is_floating(type_):
        return lambda value: isinstance(value, _NO_NUMBERS)
    if pt.is_boolean(type_):
        return lambda value: value is not None and not isinstance(value, bool)
    if pt.is_string(type_):
        return lambda value: value is not None and not isinstance(value, str)
    if pt.is_struct(type_):
        return _surely_no_struct(type_)
    return None


def _surely_no_struct(type_: pa.StructType) -> Check:
    wrong = [(part.name, check) for part in type_ if (check := _surely_wrong(part.type))]

    def is_wrong(value: Any) -> bool:
        if not isinstance(value, dict):
            return value is not None
        return any(check(value.get(name)) for name, check in wrong)

    return is_wrong


@dataclass(frozen=True, slots=True)
class ViewFields:
    """The payload fields that one view reads, and the events that it reads."""

    fields: str
    schema: pa.Schema
    types: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()

    def reads(self, event: Event) -> bool:
        """Whether the view reads this event, and the event's payload is JSON."""
        of_type = not self.types or event.type in self.types
        tagged = not self.tags or any(tag in self.tags for tag in event.tags)
        return of_type and tagged and not isinstance(event.payload, bytes)

    def as_dict(self) -> dict[str, object]:
        schema = b64encode(self.schema.serialize().to_pybytes()).decode()
        return {"fields": self.fields, "schema": schema, "types": list(self.types), "tags": list(self.tags)}

    @classmethod
    def of(cls, given: Mapping[str, str | list[str]]) -> ViewFields:
        try:
            schema = pa.ipc.read_schema(pa.py_buffer(b64decode(str(given["schema"]))))
        except (pa.ArrowException, OSError) as error:
            raise ValueError(f"the schema cannot be read: {error}") from error
        return cls(str(given["fields"]), schema, tuple(given["types"]), tuple(given["tags"]))


FIELDS: JsonFile[Mapping[str, ViewFields]] = JsonFile(
    "The declared fields",
    lambda document: {name: ViewFields.of(view) for name, view in document["views"].items()},
    lambda views: {"views": {name: view.as_dict() for name, view in views.items()}},
    next_step="Delete the file: the next run of the application writes it again",
    indent=1,
)


def keep_fields(path: Path, views: Mapping[str, ViewFields]) -> None:
    """Write `fields.json`, without views that declare no fields."""
    FIELDS.write(path, {name: view for name, view in views.items() if len(view.schema)})


class DeclaredFields:
    """Checks payloads against a folder's `fields.json`, which is read again after a change. For one thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read: tuple[int, int] | None = None
        self._rules: tuple[ViewFields, ...] = ()

    def faults(self, events: Sequence[Event]) -> dict[int, str]:
        """The reason for each event that does not fit, by its index; all must be valid events."""
        found: dict[int, str] = {}
        for rule in self._current():
            places = [place for place, event in enumerate(events) if place not in found and rule.reads(event)]
            texts = [json_bytes(events[place].payload).decode() for place in places]
            _, misfits = fitted(pa.array(texts, pa.string()), rule.schema)
            found.update((places[row], mismatch(texts[row], rule.schema)) for row in misfits)
        return found

    def check(self, events: Sequence[Event], what: str = "batch") -> None:
        """EventRefused, naming the first event that does not fit, and its field."""
        faults = self.faults(events)
        if faults:
            place = min(faults)
            raise EventRefused(
                f"Event {place} of the {what}, {events[place].id!r:.80}, was refused: {faults[place]}",
                next_step=f"Nothing of the {what} was stored; mend the event and send all of them again",
            )

    def _current(self) -> Iterable[ViewFields]:
        try:
            about = self._path.stat()
        except FileNotFoundError:
            return ()
        version = about.st_mtime_ns, about.st_ino
        if version != self._read:
            self._rules, self._read = _load(self._path), version
        return self._rules


def _load(path: Path) -> tuple[ViewFields, ...]:
    distinct: list[ViewFields] = []
    for rule in (FIELDS.read(path) or {}).values():
        if rule not in distinct:
            distinct.append(rule)
    return tuple(distinct)
