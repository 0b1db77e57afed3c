"""Rows as events: what a query's rows must have to go back into the journal, and the ids that they get there.

column      type                  becomes
entity      string                the event's entity
type        string                the event's type
time        timestamp             the event's time
tags        array<string>         its tags; none if there is no such column, or a null
payload     string                its payload, a JSON object as text. Without such a column all others are the payload,
                                  a field each, in the JSON forms that `json_rows` lists

An event's id is QUERY/BATCH/KEY, the key being a digest of entity, type and time. If a batch has several rows of one
key, these are put in order by tags and payload and numbered: KEY, KEY.1, KEY.2. So a repeated batch makes the same
ids whatever the order in which Spark hands its rows over, and even if a payload comes out a little different the second
time (sums of floats do).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from stateside.errors import SinkRefused, ViewInvalid
from stateside.journal.columns import SCHEMA as EVENT_SCHEMA
from stateside.journal.event import Event, fault
from stateside.pipeline.sinks.json_rows import check_json, json_texts
from stateside.pipeline.sinks.sink import BatchId

_NEEDED = ("entity", "type", "time")
_RESERVED = ("id", "appended")  # the journal's own to give
_ROW_CHARS_SHOWN_MAX = 300


def check_columns(view: str, schema: pa.Schema) -> None:
    """ViewInvalid, naming the column, unless rows of this schema can be events."""
    for name in _NEEDED:
        if name not in schema.names:
            raise _invalid(view, f"have no column {name!r}", f"Select one: events need {', '.join(_NEEDED)}")
    for field in schema:
        _check_type(view, field)
    others = [name for name in _payload_names(schema) if name != "payload"]
    if "payload" in schema.names and others:
        raise _invalid(
            view, f"have a payload and the column {others[0]!r} beside it", "Put it into the payload, or leave it out"
        )
    check_json(pa.schema([schema.field(name) for name in others]))


def events_of(rows: pa.Table, batch: BatchId) -> list[Event]:
    """The rows as events, in order of their time; SinkRefused, naming the row, if one cannot be an event."""
    events = sorted((_checked(event) for event in _events(rows)), key=_order)
    numbers: defaultdict[str, int] = defaultdict(int)
    return [replace(event, id=_id(batch, event, numbers)) for event in events]


def batch_of(id_: str) -> int:
    """The batch that an emitted event's id was made of."""
    return int(id_.rsplit("/", 2)[1])


def _events(rows: pa.Table) -> Iterator[Event]:
    """The rows as events that have no id yet."""
    times = rows["time"].cast(EVENT_SCHEMA.field("time").type).cast(pa.int64()).to_pylist()
    tags = rows["tags"].to_pylist() if "tags" in rows.schema.names else [None] * rows.num_rows
    columns = (rows["entity"].to_pylist(), rows["type"].to_pylist(), times, _payloads(rows), tags)
    for entity, type_, time_us, payload, given_tags in zip(*columns, strict=True):
        yield Event("-", entity, type_, time_us, payload, tuple(given_tags or ()))


def _payloads(rows: pa.Table) -> Sequence[Any]:
    if "payload" in rows.schema.names:
        return [_parsed(text) for text in rows["payload"].to_pylist()]
    names = _payload_names(rows.schema)
    return [json.loads(text) for text in json_texts(rows.select(names))] if names else [{}] * rows.num_rows


def _parsed(text: str | None) -> Any:
    """The JSON; the text itself if it is none: no event takes that as a payload."""
    try:
        return None if text is None else json.loads(text)
    except (ValueError, RecursionError):
        return text


def _checked(event: Event) -> Event:
    reason = fault(event)
    if reason is None:
        return event
    shown = {"entity": event.entity, "type": event.type, "time_us": event.time_us, "payload": event.payload}
    raise SinkRefused(
        f"A row cannot be an event: {reason}. The row: {str(shown)[:_ROW_CHARS_SHOWN_MAX]}",
        next_step="Nothing of its batch was stored. Mend the view: leave such rows out, or make them events",
    )


def _order(event: Event) -> tuple[int, str, str, tuple[str, ...], str]:
    return event.time_us, event.entity, event.type, event.tags, json.dumps(event.payload, sort_keys=True)


def _id(batch: BatchId, event: Event, numbers: defaultdict[str, int]) -> str:
    key = blake2b(json.dumps([event.entity, event.type, event.time_us]).encode(), digest_size=16).hexdigest()
    number = numbers[key]
    numbers[key] += 1
    return f"{batch.query}/{batch.batch}/{key}" + (f".{number}" if number else "")


def _payload_names(schema: pa.Schema) -> list[str]:
    return [name for name in schema.names if name not in (*_NEEDED, "tags")]


def _check_type(view: str, field: pa.Field) -> None:
    kind = field.type
    if field.name in _RESERVED:
        raise _invalid(
            view, f"have a column {field.name!r}, which the journal itself gives", "Leave it out, or rename it"
        )
    if field.name in ("entity", "type", "payload") and not (pt.is_string(kind) or pt.is_large_string(kind)):
        raise _invalid(view, f"have a column {field.name!r} of the type {kind}", "Cast it to a string")
    if field.name == "time" and not (pt.is_timestamp(kind) and kind.tz):
        raise _invalid(view, f"have a column 'time' of the type {kind}", "Cast it to a timestamp with a time zone")
    if field.name == "tags" and not (pt.is_list(kind) and pt.is_string(kind.value_type)):
        raise _invalid(view, f"have a column 'tags' of the type {kind}", "Make it an array of strings")


def _invalid(view: str, what: str, next_step: str) -> ViewInvalid:
    return ViewInvalid(f"The rows of the view {view!r} cannot go into the journal: they {what}", next_step=next_step)
