"""Messages: an event there and back, and what is none. Without a broker."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME
from hypothesis import given
from hypothesis import strategies as st

from stateside.journal import Event
from stateside.journal.backends.kafka.messages import HEADERS, NoEvent, batch_of, values_of
from stateside.journal.columns import decode, encode
from stateside.journal.index import numbered
from tests.journal.kafka.topics import stored_value

YEAR_2099_US = 4_070_908_800_000_000


@dataclass
class Sent:
    """A message as the client gives it."""

    content: bytes | None
    its_key: bytes | None = b"emma"
    its_headers: Any = None
    at: int = 17
    clock: tuple[int, int] = (TIMESTAMP_LOG_APPEND_TIME, 2**53)  # by default far later than what it says itself

    def key(self) -> bytes | None:
        return self.its_key

    def value(self) -> bytes | None:
        return self.content

    def headers(self) -> Any:
        return self.its_headers

    def offset(self) -> int:
        return self.at

    def timestamp(self) -> tuple[int, int]:
        return self.clock


names = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=20)
texts = st.text(st.characters(codec="utf-8"), max_size=20)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**80), 2**80) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(texts, values, max_size=4)
events = st.builds(
    Event,
    names,
    names,
    names,
    st.integers(0, 7_258_118_399_999_999),
    objects | st.binary(max_size=20),
    st.lists(names, max_size=3).map(tuple),
    version=st.integers(1, 9),
    metadata=st.dictionaries(texts, texts, max_size=2),
    extra=objects,
)


@given(st.lists(events, min_size=1, max_size=6), st.integers(0, 2**60))
def test_an_event_comes_back_whole(given_events: list[Event], appended_us: int) -> None:
    batch, _ = numbered(encode(given_events, appended_us), lambda entities: [2**40] * len(entities))
    sent = [
        Sent(value, event.entity.encode(), HEADERS, at)
        for at, (value, event) in enumerate(zip(values_of(batch), given_events, strict=True), 5)
    ]
    offsets, found = batch_of(sent)
    assert offsets.tolist() == [*range(5, 5 + len(sent))]
    assert list(decode(found)) == given_events
    assert [(each.appended_us, each.sequence) for each in decode(found)] == [
        (each.appended_us, each.sequence) for each in decode(batch)
    ]
    assert found.schema == batch.schema


@given(st.lists(events, min_size=1, max_size=3))
def test_a_value_is_a_line_as_export_writes_it(given_events: list[Event]) -> None:
    from stateside.journal.json_lines import fields_of

    batch, _ = numbered(encode(given_events, 3), lambda entities: [0] * len(entities))
    for value, event in zip(values_of(batch), decode(batch), strict=True):
        assert json.loads(value) == fields_of(event)


def test_fields_of_a_newer_stateside_survive() -> None:
    _, batch = batch_of([Sent(stored_value("a", 1, region="eu", extra={"shard": 2}, importance={"level": [1]}))])
    (event,) = decode(batch)
    assert event.extra == {"shard": 2, "region": "eu", "importance": {"level": [1]}}
    (again,) = values_of(batch)
    assert json.loads(again)["extra"] == event.extra


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (Sent(None), "it has no value"),
        (Sent(b"\xff\xfe"), "it is not JSON"),
        (Sent(b'{"id": "a"} {}'), "it is not JSON"),
        (Sent(b"[1]"), "it is a JSON list, not an object"),
        (Sent(b'{"id": "a", "entity": "emma", "type": "t", "time_us": 0}'), "it has no sequence"),
        (Sent(stored_value("a", 0)), "its sequence is 0"),
        (Sent(stored_value("a", 1, appended_us="now")), "its appended_us is 'now'"),
        (Sent(stored_value("a", 1), b"ben"), "its key is not its entity"),
        (Sent(stored_value("a", 1), None), "its key is not its entity"),
        (Sent(stored_value("", 1)), "id has 0 characters"),
        (Sent(stored_value("a", 1, payload=[1])), "its payload is a list"),
        (Sent(stored_value("a", 1, time_us=-1)), "time"),
        (Sent(stored_value("a", 1, extra=[1], new=1)), "its extra is not an object"),
        (Sent(stored_value("a", 1), its_headers=[("stateside-event", b"2")]), "a newer Stateside wrote it"),
    ],
)
def test_what_is_no_event_is_told_with_its_offset_and_why(sent: Sent, reason: str) -> None:
    good = Sent(stored_value("good", 1), at=3)
    with pytest.raises(NoEvent) as found:
        batch_of([good, sent])
    assert found.value.offset == 17
    assert reason in found.value.reason


def test_others_headers_are_none_of_our_business() -> None:
    _, batch = batch_of([Sent(stored_value("a", 1), its_headers=[("trace", b"x"), ("stateside-event", b"1")])])
    assert isinstance(batch, pa.RecordBatch)


def test_the_append_time_is_never_later_than_the_brokers() -> None:
    sent = stored_value("a", 1, appended_us=YEAR_2099_US)
    for clock, expected_us in (
        ((TIMESTAMP_LOG_APPEND_TIME, 1_700_000_000_000), 1_700_000_000_000_999),
        ((TIMESTAMP_CREATE_TIME, 1_700_000_000_000), YEAR_2099_US),  # the producer's own clock says nothing
    ):
        _, batch = batch_of([Sent(sent, clock=clock)])
        assert [event.appended_us for event in decode(batch)] == [expected_us]
