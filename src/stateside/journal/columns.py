"""Events as columns: the schema of every batch of a journal, and the conversion to and from events.

    id        string
    entity    string
    type      string
    time      timestamp[us, UTC]
    appended  timestamp[us, UTC]
    tags      list<string>
    payload   string    JSON; {} if the payload is bytes, so that readers of JSON need no special case
    sequence  int64     null in events stored before sequences existed
    version   int16
    metadata  string    JSON; null if empty
    data      binary    the payload if it is bytes
    extra     string    JSON: the columns of a newer Stateside, by name; null if empty

Each segment carries its schema. Columns are only ever added, at the end. `conformed` fills columns missing from an
older Stateside's batch with defaults, and moves the additional columns of a newer one into `extra`.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import chain
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa

from stateside.core.errors import EventRefused
from stateside.journal.event import (
    NAME_CHARS_MAX,
    PAYLOAD_BYTES_MAX,
    TAGS_MAX,
    TIME_US_MAX,
    TIME_US_MIN,
    VERSION_MAX,
    Event,
    all_json_bytes,
    fault,
    json_bytes,
)

_TIME: Final = pa.timestamp("us", tz="UTC")

GIVEN: Final = pa.schema(  # the columns that an appended batch must have; the others have defaults
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("entity", pa.string(), nullable=False),
        pa.field("type", pa.string(), nullable=False),
        pa.field("time", _TIME, nullable=False),
        pa.field("appended", _TIME, nullable=False),
        pa.field("tags", pa.list_(pa.string()), nullable=False),
        pa.field("payload", pa.string(), nullable=False),
    ]
)
_ADDED: Final = [
    pa.field("sequence", pa.int64()),
    pa.field("version", pa.int16(), nullable=False),
    pa.field("metadata", pa.string()),
    pa.field("data", pa.binary()),
    pa.field("extra", pa.string()),
]
SCHEMA: Final = pa.schema([*GIVEN, *_ADDED])

_DECODE = json.JSONDecoder().raw_decode
_ALIKE_ROWS: Final = 10_000  # of constant columns, sliced from a cached array: half the encoding time of a small append


def encode(events: Sequence[Event], appended_us: int) -> pa.RecordBatch:
    """The events as one record batch, without sequences; EventRefused, naming the first bad event."""
    if not events or set(map(type, events)) != {Event}:
        _refuse_the_first_bad(events)
    # Column by column, without a tuple per event: several times faster, and no work for the garbage collector.
    ids, entities = [each.id for each in events], [each.entity for each in events]
    types, versions = [each.type for each in events], [each.version for each in events]
    times = [each.time_us for each in events]
    payloads, tags = [each.payload for each in events], [each.tags for each in events]
    metadata, extra = [each.metadata for each in events], [each.extra for each in events]
    names = all(map(_are_names, (ids, entities, types)))
    numbers = _are_within(times, TIME_US_MIN, TIME_US_MAX - 1) and _are_within(versions, 1, VERSION_MAX)
    if not (names and numbers and _are_tags(tags) and _are_empty(metadata) and _are_empty(extra)):
        _refuse_the_first_bad(events)
    columns = [
        pa.array(ids, pa.string()),
        pa.array(entities, pa.string()),
        pa.array(types, pa.string()),
        pa.array(times, _TIME),
        pa.array(np.full(len(events), appended_us)).view(_TIME),
        _lists(tags),
        _payloads(events, payloads),
        pa.nulls(len(events), pa.int64()),
        _versions(versions),
        _objects(metadata),
        _data(payloads),
        _objects(extra),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def decode(batch: pa.RecordBatch) -> Iterator[Event]:
    batch = conformed(batch)
    times = [batch.column(name).cast(pa.int64()).to_pylist() for name in ("time", "appended")]
    names = [name for name in SCHEMA.names if name not in ("time", "appended")]
    for row in zip(*times, *(batch.column(name).to_pylist() for name in names), strict=True):
        time_us, appended_us, id_, entity, type_, tags, payload, sequence, version, metadata, data, extra = row
        yield Event(
            id_,
            entity,
            type_,
            time_us,
            _loaded(payload) if data is None else data,
            tuple(tags),
            appended_us,
            sequence=sequence,
            version=version,
            metadata={} if metadata is None else json.loads(metadata),
            extra={} if extra is None else json.loads(extra),
        )


def _loaded(text: str) -> Any:
    """The value of this JSON. `raw_decode` is faster, as our JSON has no surrounding blanks."""
    try:
        value, end = _DECODE(text)
    except json.JSONDecodeError:
        return json.loads(text)
    return value if end == len(text) else json.loads(text)


def conformed(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch in the journal's schema: missing columns get defaults, unknown columns move into `extra`."""
    if batch.schema.equals(SCHEMA):
        return batch
    names = batch.schema.names
    columns = {
        field.name: batch.column(field.name) if field.name in names else _default(field, batch.num_rows)
        for field in SCHEMA
    }
    newer = [name for name in names if name not in columns]
    if newer:
        columns["extra"] = _with_newer(columns["extra"], batch.select(newer))
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=SCHEMA)


def _default(field: pa.Field, rows: int) -> pa.Array:
    assert field not in GIVEN, f"a batch of events has no column {field.name!r}"
    return pa.array(np.ones(rows, np.int16)) if field.name == "version" else pa.nulls(rows, field.type)


def _with_newer(extra: pa.Array, newer: pa.RecordBatch) -> pa.Array:
    """The values of unknown columns, added to the existing `extra`."""
    found: list[dict[str, Any]] = [{} if text is None else json.loads(text) for text in extra.to_pylist()]
    for known, row in zip(found, newer.to_pylist(), strict=True):
        known.update((name, value) for name, value in row.items() if value is not None)
    return pa.array([orjson.dumps(fields, default=_plain) if fields else None for fields in found], pa.string())


def _plain(value: object) -> str:
    """The text for a value that JSON does not support."""
    return b64encode(value).decode() if isinstance(value, bytes) else str(value)


def _are_names(names: list[Any]) -> bool:
    """Whether all are certainly valid names. If not, `fault` checks each event; the same holds for the checks below."""
    try:
        printable = "".join(names).isprintable()
    except TypeError:
        return False
    return printable and all(names) and max(map(len, names), default=0) <= NAME_CHARS_MAX


def _are_within(numbers: list[Any], least: int, greatest: int) -> bool:
    return set(map(type, numbers)) == {int} and least <= min(numbers) and max(numbers) <= greatest


def _are_tags(tags: list[Any]) -> bool:
    if not set(map(type, tags)) <= {tuple, list} or max(map(len, tags), default=0) > TAGS_MAX:
        return False
    return not any(tags) or _are_names(list(chain.from_iterable(tags)))


def _are_empty(attachments: list[Any]) -> bool:
    return set(map(type, attachments)) == {dict} and not any(attachments)


def _payloads(events: Sequence[Event], payloads: list[Any]) -> pa.Array:
    """The payloads as JSON; an empty object for bytes. If the fast check fails, `fault` checks each event."""
    kinds, texts, raw = set(map(type, payloads)), None, []
    if bytes in kinds:
        raw = [payload for payload in payloads if type(payload) is bytes]
        payloads = [{} if type(payload) is bytes else payload for payload in payloads]
    if kinds <= {dict, bytes}:
        texts = all_json_bytes(payloads)
    if texts is None or max(map(len, chain(texts, raw)), default=0) > PAYLOAD_BYTES_MAX:
        _refuse_the_first_bad(events)
        texts = [json_bytes(payload) for payload in payloads]
    return pa.array(texts, pa.binary()).view(pa.string())  # encoded JSON is UTF-8: no need to validate


def _data(payloads: list[Any]) -> pa.Array:
    if bytes not in set(map(type, payloads)):
        return pa.nulls(len(payloads), pa.binary())
    return pa.array([payload if type(payload) is bytes else None for payload in payloads], pa.binary())


def _objects(attachments: list[Any]) -> pa.Array:
    if not any(attachments):
        return pa.nulls(len(attachments), pa.string())
    return pa.array([json_bytes(attachment) if attachment else None for attachment in attachments], pa.string())


def _lists(tags: list[Any]) -> pa.Array:
    if any(tags) or len(tags) > _ALIKE_ROWS:
        return pa.array(tags, SCHEMA.field("tags").type)
    return _no_tags()[: len(tags)]


def _versions(versions: list[int]) -> pa.Array:
    if len(versions) > _ALIKE_ROWS or versions.count(1) < len(versions):
        return pa.array(versions, pa.int16())
    return _first_versions()[: len(versions)]


@cache  # not at import: Arrow's first array imports pandas, which is slow
def _no_tags() -> pa.Array:
    return pa.ListArray.from_arrays(np.zeros(_ALIKE_ROWS + 1, np.int32), pa.array([], pa.string()))


@cache
def _first_versions() -> pa.Array:
    return pa.array(np.ones(_ALIKE_ROWS, np.int16))


def _refuse_the_first_bad(events: Sequence[Event]) -> None:
    for index, event in enumerate(events):
        reason = fault(event)
        if reason is not None:
            name = repr(getattr(event, "id", event))[:80]
            raise EventRefused(
                f"Event {index} of the batch, {name}, was refused: {reason}",
                next_step="Nothing of the batch was stored; mend the event and append the batch again",
            )
