"""Events, and the validation of every event before the journal stores it."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from typing import Any, Final

import orjson

NAME_CHARS_MAX: Final = 200
TAGS_MAX: Final = 16
PAYLOAD_BYTES_MAX: Final = 64 * 1024
VERSION_MAX: Final = 32_767
METADATA_BYTES_MAX: Final = 4 * 1024  # of its JSON
EXTRA_BYTES_MAX: Final = 64 * 1024  # of its JSON
TIME_US_MIN: Final = 0  # 1970-01-01
TIME_US_MAX: Final = 7_258_118_400_000_000  # 2200-01-01

_STRICT = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False)
_PARTING = secrets.token_hex(16)  # random: a payload cannot contain it on purpose
_PARTED = f',"{_PARTING}",'.encode()
_AS_JSON_HAS_IT = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME


_NONE: Any = object()  # not given


@dataclass(frozen=True, slots=True, init=False)
class Event:
    """A fact about an entity: happened at `time_us`, stored by the journal at `appended_us`.

    `payload` is a JSON object (a mapping) or bytes. `version` is the version of the type's schema (`upcasters`).
    `metadata` describe the origin of the event (trace id, writer), one text per name. `extra` holds fields of a newer
    Stateside, unknown here and kept unchanged.

    The journal assigns `sequence` (an entity's events are 1, 2, 3, …) and `appended_us`, and ignores values given by
    the producer. An event stored before sequences existed has none.
    """

    id: str
    entity: str
    type: str
    time_us: int
    payload: Any
    tags: tuple[str, ...] = ()
    appended_us: int | None = field(default=None, compare=False)
    _: KW_ONLY
    sequence: int | None = field(default=None, compare=False)
    version: int = 1
    metadata: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __init__(
        self,
        id: str,
        entity: str,
        type: str,
        time_us: int,
        payload: Any,
        tags: tuple[str, ...] = (),
        appended_us: int | None = None,
        *,
        sequence: int | None = None,
        version: int = 1,
        metadata: Mapping[str, str] = _NONE,
        extra: Mapping[str, Any] = _NONE,
    ) -> None:
        # The generated __init__ of a frozen dataclass takes twice as long, and events are half the cost of an append.
        _set_id(self, id)
        _set_entity(self, entity)
        _set_type(self, type)
        _set_time_us(self, time_us)
        _set_payload(self, payload)
        _set_tags(self, tags)
        _set_appended_us(self, appended_us)
        _set_sequence(self, sequence)
        _set_version(self, version)
        _set_metadata(self, {} if metadata is _NONE else metadata)
        _set_extra(self, {} if extra is _NONE else extra)


_set_id, _set_entity, _set_type, _set_time_us, _set_payload, _set_tags, _set_appended_us, *_others = (
    Event.__dict__[part.name].__set__ for part in fields(Event)
)
_set_sequence, _set_version, _set_metadata, _set_extra = _others


def fault(event: Event) -> str | None:
    """Why the journal would refuse the event; None if the event is valid."""
    return _envelope_fault(event) or _payload_fault(event.payload) or _attachment_fault(event)


def json_bytes(value: Mapping[str, Any]) -> bytes:
    """A JSON object as compact JSON; TypeError, ValueError or RecursionError for any other value.

    orjson writes null for NaN and infinities, so an output with a null is encoded again by the strict encoder.
    """
    try:
        text = orjson.dumps(value, None, _AS_JSON_HAS_IT)
        if b"null" not in text:
            return text
    except TypeError:
        if not all(isinstance(name, str) for name in value):
            raise
    return _STRICT.encode(value).encode()


def all_json_bytes(values: Sequence[Mapping[str, Any]]) -> list[bytes] | None:
    """As `json_bytes` for many values, far faster; None if one is no JSON object or only the strict encoder can decide.

    The values are encoded as one list with a random text between two of them, and the output is split there: orjson
    allocates and frees a kilobyte per call, which would cost more than all the rest.
    """
    if not values:
        return []
    parted: list[Any] = [_PARTING] * (2 * len(values) - 1)
    parted[::2] = values
    try:
        whole = orjson.dumps(parted, None, _AS_JSON_HAS_IT)
        texts = whole[1:-1].split(_PARTED)
        if b"null" in whole:
            texts = [json_bytes(value) if b"null" in text else text for value, text in zip(values, texts, strict=True)]
        return texts if len(texts) == len(values) else None
    except (TypeError, ValueError, RecursionError):
        return None


def _envelope_fault(event: Event) -> str | None:
    if not isinstance(event, Event):
        return f"it is a {type(event).__name__}, not an Event"
    if not isinstance(event.tags, tuple | list):
        return f"its tags are a {type(event.tags).__name__}, not a tuple of texts"
    names: list[tuple[str, object]] = [("id", event.id), ("entity", event.entity), ("type", event.type)]
    for label, value in names + [("tag", tag) for tag in event.tags]:
        reason = _name_fault(value)
        if reason:
            return f"its {label} {reason}"
    if len(event.tags) > TAGS_MAX:
        return f"it has {len(event.tags)} tags, {TAGS_MAX} are allowed"
    if not _is_whole(event.time_us):
        return "its time_us is not a whole number of microseconds"
    if not TIME_US_MIN <= event.time_us < TIME_US_MAX:
        return f"its time_us {event.time_us} does not lie in the years 1970 to 2199"
    return None


def _payload_fault(payload: object) -> str | None:
    if type(payload) is bytes:
        return _size_fault("payload", len(payload), PAYLOAD_BYTES_MAX)
    return _object_fault("payload", payload, PAYLOAD_BYTES_MAX)


def _attachment_fault(event: Event) -> str | None:
    """The fault of the version, the metadata or the unknown fields, if any."""
    if not _is_whole(event.version) or not 1 <= event.version <= VERSION_MAX:
        return f"its version is {event.version!r:.40}, not a whole number from 1 to {VERSION_MAX}"
    reason = _object_fault("metadata", event.metadata, METADATA_BYTES_MAX)
    if reason is None and not all(isinstance(value, str) for value in event.metadata.values()):
        return "its metadata has a value that is not a text"
    return reason or _object_fault("extra", event.extra, EXTRA_BYTES_MAX)


def _object_fault(label: str, value: object, bytes_max: int) -> str | None:
    if not isinstance(value, Mapping):
        return f"its {label} is a {type(value).__name__}, not a JSON object"
    if not all(isinstance(name, str) for name in value):
        return f"its {label} has a field whose name is not a text"
    try:
        size = len(json_bytes(value))
    except (TypeError, ValueError, RecursionError) as error:
        return f"its {label} is no JSON object: {error}"
    return _size_fault(label, size, bytes_max)


def _size_fault(label: str, size: int, bytes_max: int) -> str | None:
    return f"its {label} has {size} bytes, {bytes_max} are allowed" if size > bytes_max else None


def _name_fault(value: object) -> str | None:
    if not isinstance(value, str):
        return f"is a {type(value).__name__}, not a text"
    if not value or len(value) > NAME_CHARS_MAX:
        return f"has {len(value)} characters, 1 to {NAME_CHARS_MAX} are allowed"
    if not value.isprintable():
        return "has characters that cannot be printed"
    return None


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
