"""Small frames are joined as Arrow would join them, or left to Arrow."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateside.journal import Event
from stateside.journal.backends.files.frames import Unusual, joined
from stateside.journal.columns import GIVEN, SCHEMA, decode, encode

texts = st.text("aé漢", min_size=1, max_size=6)
events = st.builds(
    Event,
    texts,
    texts,
    texts,
    st.integers(0, 10**15),
    st.one_of(st.binary(max_size=20), st.dictionaries(texts, st.integers() | texts, max_size=3)),
    st.lists(texts, max_size=3).map(tuple),
    version=st.integers(1, 9),
    metadata=st.dictionaries(texts, texts, max_size=2),
)
appends = st.lists(st.lists(events, min_size=1, max_size=3), min_size=1, max_size=12)
plain = st.builds(
    Event, texts, texts, texts, st.integers(0, 10**15), st.just({"n": 1}), st.lists(texts, max_size=3).map(tuple)
)


def by_arrow(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def messages(batches: list[pa.RecordBatch]) -> list[memoryview]:
    return [memoryview(batch.serialize()) for batch in batches]


def test_bytes_beside_json_that_takes_the_slow_way_are_encoded() -> None:
    """Found by the next test: whatever has a null, or a number of more than 64 bits, goes the slow way."""
    batch = encode([Event("e", "c", "t", 0, b"x"), Event("f", "c", "t", 0, {"n": None, "large": 2**80})], 5)
    assert [event.payload for event in decode(batch)] == [b"x", {"n": None, "large": 2**80}]


@settings(deadline=None)
@given(appends=appends)
def test_what_is_joined_is_what_arrow_says(appends: list[list[Event]]) -> None:
    batches = [encode(append, 5) for append in appends]
    try:
        found = joined(messages(batches), SCHEMA)
    except Unusual:
        assert any(0 < column.null_count < len(column) for batch in batches for column in batch.columns)
        return
    found.validate(full=True)
    assert found.equals(by_arrow(batches))


@settings(deadline=None)
@given(appends=st.lists(st.lists(plain, min_size=1, max_size=9), min_size=1, max_size=12), old=st.booleans())
def test_plain_events_are_always_joined(appends: list[list[Event]], old: bool) -> None:
    schema = GIVEN if old else SCHEMA
    batches = [encode(append, 5).select(schema.names).cast(schema) for append in appends]
    found = joined(messages(batches), schema)
    found.validate(full=True)
    assert found.equals(by_arrow(batches))


@given(appends=st.lists(st.lists(plain, min_size=2, max_size=9), min_size=2, max_size=5), data=st.data())
def test_parts_of_batches_are_joined_too(appends: list[list[Event]], data: st.DataObject) -> None:
    batches = [encode(append, 5) for append in appends]
    cut = [batch.slice(data.draw(st.integers(0, batch.num_rows - 1))) for batch in batches]
    assert joined(messages(cut), SCHEMA).equals(by_arrow(cut))


@pytest.mark.parametrize(
    "odd",
    [
        pa.record_batch({"other": [1, 2]}),
        pa.record_batch({"a": pa.array([True])}),
        pa.record_batch({"a": pa.array(["x"]).dictionary_encode()}),
    ],
    ids=["another column", "booleans", "a dictionary"],
)
def test_what_is_not_plain_is_left_to_arrow(odd: pa.RecordBatch) -> None:
    usual = encode([Event("e", "c", "call", 0, {})], 5)
    with pytest.raises(Unusual):
        joined(messages([odd, odd]), odd.schema if odd.schema.names != ["other"] else SCHEMA)
    with pytest.raises(Unusual):
        joined(messages([usual, odd]), SCHEMA)


def test_compressed_batches_are_left_to_arrow() -> None:
    batch = encode([Event("e", "c" * 200, "call", 0, {"text": "x" * 9_000})] * 9, 5)
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA, options=options) as writer:
        writer.write_batch(batch)
    reader = pa.ipc.MessageReader.open_stream(sink.getvalue())
    reader.read_next_message()
    message = memoryview(reader.read_next_message().serialize())
    with pytest.raises(Unusual):
        joined([message, message], SCHEMA)
