"""Events: what the journal takes, what it refuses, and that they come back as they went in."""

import json
import math
import pickle
from dataclasses import FrozenInstanceError, fields, replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateside.core.errors import EventRefused
from stateside.journal import Event
from stateside.journal.columns import SCHEMA, decode, encode
from stateside.journal.event import (
    NAME_CHARS_MAX,
    PAYLOAD_BYTES_MAX,
    TAGS_MAX,
    TIME_US_MAX,
    VERSION_MAX,
)
from tests.sizes import examples

GOOD = Event("e1", "emma", "call", 1_000_000, {"seconds": 61}, ("night",))

names = st.text(st.characters(exclude_categories=["C", "Z"]) | st.just(" "), min_size=1, max_size=6)
texts = st.text(max_size=6)
values = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts
nested = st.recursive(values, lambda inner: st.lists(inner) | st.dictionaries(texts, inner), max_leaves=4)
payloads = st.dictionaries(texts, nested, max_size=3)
events = st.builds(
    Event,
    id=names,
    entity=names,
    type=names,
    time_us=st.integers(0, TIME_US_MAX - 1),
    payload=payloads | st.binary(max_size=6),
    tags=st.lists(names, max_size=2).map(tuple),
    version=st.integers(1, VERSION_MAX),
    metadata=st.dictionaries(texts, texts, max_size=2),
    extra=st.dictionaries(texts, nested, max_size=2),
)


@settings(max_examples=examples(40, 200))
@given(st.lists(events, max_size=3), st.integers(0, TIME_US_MAX))
def test_events_come_back_as_they_went_in_with_the_time_of_the_append(batch: list[Event], appended_us: int) -> None:
    encoded = encode(batch, appended_us)
    assert encoded.schema.equals(SCHEMA)
    assert list(decode(encoded)) == batch
    assert {event.appended_us for event in decode(encoded)} <= {appended_us}


def test_the_append_time_is_the_journals_and_not_the_callers() -> None:
    assert [event.appended_us for event in decode(encode([replace(GOOD, appended_us=1)], 2))] == [2]


def test_names_and_tags_and_payloads_may_be_as_large_as_the_limits_say() -> None:
    text = "x" * (PAYLOAD_BYTES_MAX - len('{"a":""}'))
    largest = Event("€" * NAME_CHARS_MAX, "e", "t", TIME_US_MAX - 1, {"a": text}, ("tag",) * TAGS_MAX)
    assert list(decode(encode([largest], 0))) == [largest]


too_deep: list[Any] = []
for _ in range(100_000):
    too_deep = [too_deep]

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("an id that is no text", {"id": 7}, "its id is a int, not a text"),
    ("no id", {"id": None}, "its id is a NoneType, not a text"),
    ("an empty id", {"id": ""}, "its id has 0 characters, 1 to 200 are allowed"),
    ("a long id", {"id": "x" * 201}, "its id has 201 characters, 1 to 200 are allowed"),
    ("a line break in the id", {"id": "a\nb"}, "its id has characters that cannot be printed"),
    ("a NUL in the id", {"id": "a\x00b"}, "its id has characters that cannot be printed"),
    ("half a character in the id", {"id": "\ud800"}, "its id has characters that cannot be printed"),
    ("an empty entity", {"entity": ""}, "its entity has 0 characters"),
    ("an entity in bytes", {"entity": b"emma"}, "its entity is a bytes, not a text"),
    ("an empty type", {"type": ""}, "its type has 0 characters"),
    ("an empty tag", {"tags": ("",)}, "its tag has 0 characters"),
    ("a tag that is no text", {"tags": ("a", None)}, "its tag is a NoneType, not a text"),
    ("too many tags", {"tags": ("a",) * 17}, "it has 17 tags, 16 are allowed"),
    ("tags that are none", {"tags": None}, "its tags are a NoneType"),
    ("a text for tags", {"tags": "night"}, "its tags are a str"),
    ("a time that is a fraction", {"time_us": 1.5}, "its time_us is not a whole number of microseconds"),
    ("a time that is a truth", {"time_us": True}, "its time_us is not a whole number of microseconds"),
    ("no time", {"time_us": None}, "its time_us is not a whole number of microseconds"),
    ("a time before 1970", {"time_us": -1}, "does not lie in the years 1970 to 2199"),
    ("a time after 2199", {"time_us": TIME_US_MAX}, "does not lie in the years 1970 to 2199"),
    ("a payload that is a list", {"payload": [1]}, "its payload is a list, not a JSON object"),
    ("a payload that is a text", {"payload": "{}"}, "its payload is a str, not a JSON object"),
    ("no payload", {"payload": None}, "its payload is a NoneType, not a JSON object"),
    ("a payload with what JSON has not", {"payload": {"a": {1, 2}}}, "its payload is no JSON object"),
    ("a payload with no number", {"payload": {"a": math.nan}}, "its payload is no JSON object"),
    ("a payload with infinity", {"payload": {"a": math.inf}}, "its payload is no JSON object"),
    ("a payload with half a character", {"payload": {"a": "\ud800"}}, "its payload is no JSON object"),
    ("a payload without end", {"payload": {"a": too_deep}}, "its payload is no JSON object"),
    ("a large payload", {"payload": {"a": "x" * PAYLOAD_BYTES_MAX}}, f"{PAYLOAD_BYTES_MAX} are allowed"),
    ("a payload of too many bytes", {"payload": b"x" * (PAYLOAD_BYTES_MAX + 1)}, f"{PAYLOAD_BYTES_MAX} are allowed"),
    ("a payload that is a byte array", {"payload": bytearray(b"x")}, "its payload is a bytearray, not a JSON object"),
    ("a payload whose names are none", {"payload": {1: 2}}, "its payload has a field whose name is not a text"),
    ("a version before the first", {"version": 0}, "its version is 0, not a whole number from 1 to 32767"),
    ("a version too large", {"version": VERSION_MAX + 1}, "its version is 32768"),
    ("a version that is a truth", {"version": True}, "its version is True"),
    ("a version that is a text", {"version": "1"}, "its version is '1'"),
    ("metadata that is a list", {"metadata": []}, "its metadata is a list, not a JSON object"),
    ("metadata with a number", {"metadata": {"trace": 1}}, "its metadata has a value that is not a text"),
    ("a lot of metadata", {"metadata": {"trace": "x" * 5_000}}, "its metadata has 5012 bytes, 4096 are allowed"),
    ("metadata with half a character", {"metadata": {"a": "\ud800"}}, "its metadata is no JSON object"),
    ("unknown fields that are none", {"extra": None}, "its extra is a NoneType, not a JSON object"),
    ("unknown fields without a number", {"extra": {"a": math.nan}}, "its extra is no JSON object"),
    ("a payload large in bytes", {"payload": {"a": "€" * 22_000}}, f"{PAYLOAD_BYTES_MAX} are allowed"),
]


@pytest.mark.parametrize(("changes", "reason"), [(c, r) for _, c, r in REFUSED], ids=[name for name, _, _ in REFUSED])
def test_an_event_is_refused_with_the_reason_for(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(EventRefused) as refused:
        encode([GOOD, replace(GOOD, **changes)], 0)
    assert reason in str(refused.value)
    assert "Event 1 of the batch" in str(refused.value)
    assert "Nothing of the batch was stored" in str(refused.value)
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize("thing", [None, {"id": "e1"}, "e1", SimpleNamespace(id="e1")], ids=repr)
def test_what_is_no_event_at_all_is_refused(thing: Any) -> None:
    with pytest.raises(EventRefused, match=f"it is a {type(thing).__name__}, not an Event"):
        encode([thing], 0)


def test_the_journals_own_numbers_are_not_what_makes_two_events_differ() -> None:
    assert replace(GOOD, sequence=1, appended_us=1) == replace(GOOD, sequence=2, appended_us=2)
    assert replace(GOOD, version=2) != GOOD


@pytest.mark.parametrize(
    "payload", [{"a": 2**70}, {"a": {1: 2}}, {"a": (1, 2)}, {"a": [None] * 3}, {"a": 1e300}], ids=repr
)
def test_what_json_can_tell_is_stored_as_the_json_of_the_standard_library_has_it(payload: dict[str, Any]) -> None:
    (found,) = decode(encode([replace(GOOD, payload=payload)], 0))
    assert found.payload == json.loads(json.dumps(payload))


def test_who_reads_the_json_alone_finds_an_empty_object_where_the_payload_is_bytes() -> None:
    batch = encode([replace(GOOD, payload=b"\xff\x00"), GOOD], 0)
    assert batch.column("payload").to_pylist() == ["{}", '{"seconds":61}']
    assert batch.column("data").to_pylist() == [b"\xff\x00", None]


def test_a_payload_is_stored_as_compact_json_with_its_characters() -> None:
    stored = encode([replace(GOOD, payload={"Straße": "ß", "n": [1, None]})], 0).column("payload")[0].as_py()
    assert stored == '{"Straße":"ß","n":[1,null]}'
    assert json.loads(stored) == {"Straße": "ß", "n": [1, None]}


def test_an_event_is_a_value() -> None:
    event = Event(
        "e", "emma", "call", 0, {"a": 1}, ("t",), 5, sequence=2, version=3, metadata={"b": "c"}, extra={"d": 1}
    )
    assert pickle.loads(pickle.dumps(event)) == event
    assert replace(event, id="f") == Event(
        "f", *[getattr(event, part.name) for part in fields(event)][1:7], **more(event)
    )
    assert [getattr(event, part.name) for part in fields(event)] == [
        *("e", "emma", "call", 0, {"a": 1}, ("t",), 5),
        *(2, 3, {"b": "c"}, {"d": 1}),
    ]
    assert Event("e", "e", "t", 0, {}).metadata is not Event("e", "e", "t", 0, {}).metadata
    with pytest.raises(FrozenInstanceError):
        event.id = "g"  # type: ignore[misc]
    with pytest.raises(TypeError):
        Event("e", "emma", "call", 0)  # type: ignore[call-arg]


def more(event: Event) -> dict[str, Any]:
    return {name: getattr(event, name) for name in ("sequence", "version", "metadata", "extra")}
