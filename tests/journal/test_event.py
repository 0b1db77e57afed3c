"""Events: what the journal takes, what it refuses, and that they come back as they went in."""

import json
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateside.errors import EventRefused
from stateside.journal import Event
from stateside.journal.columns import SCHEMA, decode, encode
from stateside.journal.event import (
    NAME_CHARS_MAX,
    PAYLOAD_BYTES_MAX,
    TAGS_MAX,
    TIME_US_MAX,
)

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
    payload=payloads,
    tags=st.lists(names, max_size=2).map(tuple),
)


@settings(max_examples=40)
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


def test_a_payload_is_stored_as_compact_json_with_its_characters() -> None:
    stored = encode([replace(GOOD, payload={"Straße": "ß", "n": [1, None]})], 0).column("payload")[0].as_py()
    assert stored == '{"Straße":"ß","n":[1,null]}'
    assert json.loads(stored) == {"Straße": "ß", "n": [1, None]}
