"""Events: what a journal stores, and the check that nothing else gets in."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from stateside.errors import EventRefused

NAME_CHARS_MAX = 200
TAGS_MAX = 16
PAYLOAD_BYTES_MAX = 64 * 1024
TIME_US_MIN = 0  # 1970-01-01
TIME_US_MAX = 7_258_118_400_000_000  # 2200-01-01

SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("entity", pa.string(), nullable=False),
        pa.field("type", pa.string(), nullable=False),
        pa.field("time", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("appended", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("tags", pa.list_(pa.string()), nullable=False),
        pa.field("payload", pa.string(), nullable=False),
    ]
)


@dataclass(frozen=True, slots=True)
class Event:
    """A fact about an entity: it happened at `time_us`, and the journal took it in at `appended_us`.

    `payload` is a JSON object. `appended_us` is given by the journal and ignored on the way in.
    """

    id: str
    entity: str
    type: str
    time_us: int
    payload: Mapping[str, Any]
    tags: tuple[str, ...] = ()
    appended_us: int | None = field(default=None, compare=False)


def encode(events: Sequence[Event], appended_us: int) -> pa.RecordBatch:
    """The events as one record batch; EventRefused, naming the first bad one, if any is no event."""
    payloads = [_checked_payload(index, event) for index, event in enumerate(events)]
    columns = [
        pa.array([event.id for event in events], pa.string()),
        pa.array([event.entity for event in events], pa.string()),
        pa.array([event.type for event in events], pa.string()),
        pa.array([event.time_us for event in events], pa.int64()).cast(SCHEMA.field("time").type),
        pa.array([appended_us] * len(events), pa.int64()).cast(SCHEMA.field("appended").type),
        pa.array([list(event.tags) for event in events], SCHEMA.field("tags").type),
        pa.array(payloads, pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def decode(batch: pa.RecordBatch) -> Iterator[Event]:
    """The events of one record batch, in order."""
    times = batch.column("time").cast(pa.int64()).to_pylist()
    appended = batch.column("appended").cast(pa.int64()).to_pylist()
    names = (batch.column(name).to_pylist() for name in ("id", "entity", "type", "tags", "payload"))
    for id_, entity, type_, tags, payload, time_us, appended_us in zip(*names, times, appended, strict=True):
        yield Event(id_, entity, type_, time_us, json.loads(payload), tuple(tags), appended_us)


def fault(event: Event) -> str | None:
    """Why the journal would refuse this; None if it is an event."""
    reason = _envelope_fault(event)
    return reason or _payload(event)[1]


def _checked_payload(index: int, event: Event) -> str:
    """The event's payload as JSON text, after every field was checked."""
    reason = _envelope_fault(event)
    if reason is None:
        payload, reason = _payload(event)
    if reason is None:
        return payload
    name = repr(getattr(event, "id", event))[:80]
    raise EventRefused(
        f"Event {index} of the batch, {name}, was refused: {reason}",
        next_step="Nothing of the batch was stored; mend the event and append the batch again",
    )


def _payload(event: Event) -> tuple[str, str | None]:
    """The payload as JSON text, and what is wrong with it, if anything."""
    try:
        payload = json.dumps(event.payload, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        size = len(payload.encode())
    except (TypeError, ValueError, RecursionError) as error:
        return "", f"its payload is no JSON object: {error}"
    if size > PAYLOAD_BYTES_MAX:
        return "", f"its payload has {size} bytes, {PAYLOAD_BYTES_MAX} are allowed"
    return payload, None


def _envelope_fault(event: Event) -> str | None:
    """What is wrong with the event's envelope, if anything."""
    if not isinstance(event, Event):
        return f"it is a {type(event).__name__}, not an Event"
    if not isinstance(event.tags, tuple | list):
        return f"its tags are a {type(event.tags).__name__}, not a tuple of texts"
    names: list[tuple[str, object]] = [("id", event.id), ("entity", event.entity), ("type", event.type)]
    for label, value in names + [("tag", tag) for tag in event.tags]:
        fault = _name_fault(value)
        if fault:
            return f"its {label} {fault}"
    if len(event.tags) > TAGS_MAX:
        return f"it has {len(event.tags)} tags, {TAGS_MAX} are allowed"
    if not isinstance(event.time_us, int) or isinstance(event.time_us, bool):
        return "its time_us is not a whole number of microseconds"
    if not TIME_US_MIN <= event.time_us < TIME_US_MAX:
        return f"its time_us {event.time_us} does not lie in the years 1970 to 2199"
    if not isinstance(event.payload, Mapping):
        return f"its payload is a {type(event.payload).__name__}, not a JSON object"
    if not all(isinstance(name, str) for name in event.payload):
        return "its payload has a field whose name is not a text"
    return None


def _name_fault(value: object) -> str | None:
    if not isinstance(value, str):
        return f"is a {type(value).__name__}, not a text"
    if not value or len(value) > NAME_CHARS_MAX:
        return f"has {len(value)} characters, 1 to {NAME_CHARS_MAX} are allowed"
    if not value.isprintable():
        return "has characters that cannot be printed"
    return None
