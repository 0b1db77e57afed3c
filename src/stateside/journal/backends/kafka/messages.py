"""Messages: the format of an event in a topic, readable by any Kafka client:

    key        the entity, in UTF-8
    value      one JSON object with the fields of `json_lines`, as in `stateside journal export`:
               {"id": …, "entity": …, "type": …, "time_us": …, "tags": […], "sequence": …, "appended_us": …,
                "payload": {…}}          …or "data": base64 in place of the payload; version, metadata, extra if any
    headers    stateside-event: 1        the format of the value
    timestamp  when it was appended, by the broker's clock (message.timestamp.type=LogAppendTime)

Unknown fields come from a newer Stateside and go into the event's `extra`. A message without such a value is no event;
its reader gets an error with offset and reason.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import orjson
import pyarrow as pa

from stateside.core.errors import EventRefused
from stateside.journal.backends.files.frames import Offsets
from stateside.journal.columns import SCHEMA, encode
from stateside.journal.event import Event, fault
from stateside.journal.json_lines import FIELDS, GIVEN_BY_THE_JOURNAL, payload_of

LOG_APPEND_TIME = 2  # as confluent_kafka numbers it, which readers of files need not import
HEADERS: list[tuple[str, str | bytes | None]] = [("stateside-event", b"1")]

_KNOWN = frozenset((*FIELDS, *GIVEN_BY_THE_JOURNAL)) - {"time"}  # JSON lines may have `time` instead of `time_us`
_NEEDED = ("id", "entity", "type", "time_us", "sequence", "appended_us")
_LONG_NUMBER = re.compile(rb"\d{19}")  # orjson would turn one beyond 64 bits into a float
_APPENDED, _SEQUENCE = (SCHEMA.get_field_index(name) for name in ("appended", "sequence"))


class Message(Protocol):
    """The part of Kafka's message class used here."""

    def key(self) -> bytes | None: ...
    def value(self) -> bytes | None: ...
    def headers(self) -> Any: ...
    def offset(self) -> int | None: ...
    def timestamp(self) -> tuple[int, int]: ...


class NoEvent(Exception):
    """The message at this offset is no event, for this reason."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(reason)
        self.offset, self.reason = offset, reason


def values_of(batch: pa.RecordBatch) -> Iterator[bytes]:
    """The message values of these events, which are in the journal's schema and have their sequences."""
    times = (batch.column(name).cast(pa.int64()).to_pylist() for name in ("time", "appended"))
    names = ("id", "entity", "type", "tags", "sequence", "version", "payload", "data", "metadata", "extra")
    rows = zip(*times, *(batch.column(name).to_pylist() for name in names), strict=True)
    for time_us, appended_us, id_, entity, type_, tags, sequence, version, payload, data, metadata, extra in rows:
        fields: dict[str, Any] = {"id": id_, "entity": entity, "type": type_, "time_us": time_us, "tags": tags}
        fields |= {"sequence": sequence, "appended_us": appended_us}
        if version != 1:
            fields["version"] = version
        texts = {"payload": payload if data is None else None, "metadata": metadata, "extra": extra}
        yield _with_texts(fields, texts, data)


def _with_texts(fields: dict[str, Any], texts: dict[str, str | None], data: bytes | None) -> bytes:
    """The fields as JSON; `texts` are JSON already and inserted unchanged."""
    if data is not None:
        fields["data"] = b64encode(data).decode()
    parts = [orjson.dumps(fields)[:-1]]
    parts += [f',"{name}":{text}'.encode() for name, text in texts.items() if text is not None]
    return b"".join(parts) + b"}"


def batch_of(messages: Sequence[Message]) -> tuple[Offsets, pa.RecordBatch]:
    """The messages' events, with their offsets; NoEvent at the first message without an event."""
    events, given = [], []
    for message in messages:
        try:
            fields = _fields(message)
            events.append(_event(fields))
            given.append((_appended_us(message, fields["appended_us"]), fields["sequence"]))
        except (ValueError, TypeError, RecursionError) as error:
            raise NoEvent(offset_of(message), str(error)) from error
    try:
        batch = encode(events, 0)
    except EventRefused as refusal:
        raise _first_fault(messages, events) from refusal
    batch = _with_column(batch, _APPENDED, pa.array([appended for appended, _ in given], SCHEMA.field(_APPENDED).type))
    batch = _with_column(batch, _SEQUENCE, pa.array([sequence for _, sequence in given], pa.int64()))
    return np.array([offset_of(message) for message in messages], np.int64), batch


def _appended_us(message: Message, claimed_us: int) -> int:
    """The append time: never later than the broker's clock says, whatever the message claims."""
    kind, timestamp_ms = message.timestamp()
    return min(claimed_us, timestamp_ms * 1_000 + 999) if kind == LOG_APPEND_TIME else claimed_us


def _fields(message: Message) -> dict[str, Any]:
    """The fields of a message's value; ValueError if an event cannot have them."""
    value = message.value()
    if value is None:
        raise ValueError("it has no value")
    for name, text in message.headers() or ():
        if (name, text) != HEADERS[0] and name == HEADERS[0][0]:
            raise ValueError(f"its format is {text!r:.20}: a newer Stateside wrote it")
    try:
        fields = json.loads(value) if _LONG_NUMBER.search(value) else orjson.loads(value)
    except ValueError as error:
        raise ValueError(f"it is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise ValueError(f"it is a JSON {type(fields).__name__}, not an object")
    for name in _NEEDED:
        if name not in fields:
            raise ValueError(f"it has no {name}: it was not stored by a writer of a journal")
    for name, least in (("sequence", 1), ("appended_us", 0)):
        if type(fields[name]) is not int or not least <= fields[name] < 2**63:
            raise ValueError(f"its {name} is {fields[name]!r:.40}")
    key = message.key()
    if key is None or key != str(fields["entity"]).encode(errors="replace"):
        raise ValueError("its key is not its entity")
    return fields


def _event(fields: dict[str, Any]) -> Event:
    """The event, not fully checked yet; unknown fields go into its extra."""
    tags, extra = fields.get("tags", ()), fields.get("extra", {})
    if not fields.keys() <= _KNOWN:
        if not isinstance(extra, dict):
            raise ValueError("its extra is not an object")
        extra = extra | {name: value for name, value in fields.items() if name not in _KNOWN}
    return Event(
        fields["id"],
        fields["entity"],
        fields["type"],
        fields["time_us"],
        payload_of(fields) if "data" in fields else fields.get("payload", {}),
        tuple(tags) if isinstance(tags, list) else tags,
        version=fields.get("version", 1),
        metadata=fields.get("metadata", {}),
        extra=extra,
    )


def _first_fault(messages: Sequence[Message], events: Sequence[Event]) -> NoEvent:
    for message, event in zip(messages, events, strict=True):
        reason = fault(event)
        if reason is not None:
            return NoEvent(offset_of(message), reason)
    raise AssertionError("what was refused has a fault")


def _with_column(batch: pa.RecordBatch, at: int, column: pa.Array) -> pa.RecordBatch:
    return batch.set_column(at, SCHEMA.field(at), column)


def offset_of(message: Message) -> int:
    offset = message.offset()
    assert offset is not None, "only one that is sent has none"
    return offset
