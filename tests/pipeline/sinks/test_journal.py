"""The journal as a sink: rows become events, exactly once, whatever is killed, whoever else appends."""

from __future__ import annotations

import json
import random
import shutil
import sys
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateside.core.errors import ArchiveInvalid, SinkAway, SinkRefused, ViewInvalid
from stateside.core.layout import Layout
from stateside.core.storage import write_atomically
from stateside.journal import Event, FileLog, JournalWriter
from stateside.journal.payload import payload_columns
from stateside.leadership import ApplicationLease, Gates
from stateside.pipeline.sinks.journal import JournalSink, check_columns, events_of, journal
from stateside.pipeline.sinks.sink import BatchId, OnStep, SinkContext, SinkFactory, ignore_step

from .harness import VIEW, Row, SinkCase, SinkSuite, Values, World, some_rows

TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema([("entity", pa.string()), ("type", pa.string()), ("time", TIME), ("n", pa.int64())])
BATCH = BatchId("query", 7)
MODULE = sys.modules["stateside.pipeline.sinks.journal"]  # the package has the function of this name


def event_rows(batch: int) -> list[Row]:
    """The harness's rows as events; in every third batch each of them twice."""
    rows = [{"entity": f"b{batch}", "type": "emitted", "time": row["at"], "n": row["n"]} for row in some_rows(batch)]
    return rows * 2 if batch % 3 == 0 else rows


def emitted(layout: Layout) -> list[Event]:
    return [event for event in FileLog(layout.journal).events() if event.type == "emitted"]


def read_back(world: World) -> list[Values]:
    """What was emitted; an id that is there twice would be a double too."""
    events = emitted(world.layout)
    return [(e.entity, e.type, datetime.fromtimestamp(e.time_us / 1e6, UTC), e.payload["n"]) for e in events]


def factory(world: World, on_step: OnStep) -> SinkFactory:
    """The sink, beside a producer that appends to the same journal at every step."""

    def step(number: int) -> None:
        on_step(number)
        with JournalWriter(world.layout.journal) as producer:
            producer.append([Event(f"p{random.random()}", "producer", "other", 0, {})])

    return journal(on_step=step)


class TestJournal(SinkSuite):
    case = SinkCase("journal", factory, read_back, steps=range(1, 6), schema=SCHEMA, rows=event_rows, moment_ms_max=200)


# Steps


def open_sink(layout: Layout, on_step: OnStep = ignore_step, schema: pa.Schema = SCHEMA) -> JournalSink:
    metadata = layout.view(VIEW).checkpoint / "metadata"
    sink = journal(on_step=on_step)(SinkContext(layout, VIEW, schema))
    if not metadata.exists():
        write_atomically(metadata, json.dumps({"id": "query"}).encode())
    assert isinstance(sink, JournalSink)
    return sink


def table(*numbers: int, schema: pa.Schema = SCHEMA) -> pa.Table:
    return pa.Table.from_pylist(
        [{"entity": f"e{number}", "type": "emitted", "time": number, "n": number} for number in numbers], schema
    )


class Crash(Exception):
    """Ends a write where a test wants it."""


def test_a_batch_larger_than_a_frame_goes_in_by_groups_and_a_crash_between_two_is_made_good(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MODULE, "EVENTS_PER_APPEND_MAX", 3)
    groups = 0

    def crash_at_the_third_group(step: int) -> None:
        nonlocal groups
        groups += step == 4
        if groups == 3:
            raise Crash

    rows = table(*range(10))
    with pytest.raises(Crash):
        open_sink(layout, crash_at_the_third_group).write(rows, BATCH)
    assert len(emitted(layout)) == 6
    open_sink(layout).write(rows.take(list(reversed(range(10)))), BATCH)
    assert sorted(event.payload["n"] for event in emitted(layout)) == list(range(10))


def test_a_frame_that_a_killed_driver_left_unmarked_is_not_emitted_again(layout: Layout) -> None:
    """It is in the file, but no reader sees it yet: only opening the journal settles what became of it."""
    sink = open_sink(layout)
    sink.write(table(0), BatchId("query", 0))
    mark = (layout.journal / "end").read_bytes()
    sink.write(table(1), BatchId("query", 1))
    (layout.journal / "end").write_bytes(mark)
    (layout.journal / "lock").write_bytes(b"")
    assert len(emitted(layout)) == 1
    open_sink(layout).write(table(1), BatchId("query", 1))
    assert [event.payload["n"] for event in emitted(layout)] == [0, 1]


def test_a_batch_that_failed_here_is_looked_up_when_it_is_tried_again(layout: Layout) -> None:
    failures = iter([False, True])

    def crash_once(step: int) -> None:
        if step == 5 and next(failures, False):
            raise Crash

    sink = open_sink(layout, crash_once)
    sink.write(table(1), BatchId("query", 0))
    with pytest.raises(Crash):
        sink.write(table(2), BatchId("query", 1))
    sink.write(table(2), BatchId("query", 1))
    assert [event.payload["n"] for event in emitted(layout)] == [1, 2]


def test_only_a_batch_that_may_be_a_rerun_is_looked_up(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    unstored = JournalWriter.append_unstored

    def noted(*given: Any, **named: Any) -> Any:
        looked.append(1)
        return unstored(*given, **named)

    monkeypatch.setattr(JournalWriter, "append_unstored", noted)
    sink = open_sink(layout)
    for batch in range(5):
        sink.write(table(*([] if batch == 2 else [batch])), BatchId("query", batch))
    assert len(looked) == 1
    for _ in range(2):
        open_sink(layout).write(table(5), BatchId("query", 5))
    assert len(looked) == 3, "the first batch of each run, and no other"
    assert len(emitted(layout)) == 5


def test_what_a_paused_leader_stores_while_its_successor_begins_is_not_stored_again(layout: Layout) -> None:
    """The old one woke up in its append, after the new one had found that the journal has no such batch."""
    old = open_sink(layout)
    for batch in (0, 1):
        old.write(table(batch), BatchId("query", batch))

    def wake(step: int) -> None:
        if step == 4:
            old.write(table(2), BatchId("query", 2))

    open_sink(layout, wake).write(table(2), BatchId("query", 2))
    assert [event.payload["n"] for event in emitted(layout)] == [0, 1, 2]


def test_a_paused_leader_stores_nothing_once_its_gate_is_shut(layout: Layout) -> None:
    ApplicationLease(layout.root).make()
    gates = Gates(layout.root)
    written: list[int] = []

    def take_over(step: int) -> None:
        if step == 4 and written == [0]:
            gates.shut_before(2)
            open_sink(Layout(gates.open(2))).write(table(1), BatchId("query", 1))
            written.append(1)

    old = open_sink(Layout(gates.open(1)), take_over)
    old.write(table(0), BatchId("query", 0))
    written.append(0)
    with pytest.raises(SinkAway):
        old.write(table(1), BatchId("query", 1))
    assert [event.payload["n"] for event in emitted(layout)] == [0, 1]


def test_where_to_look_from_moves_on_with_new_batches_and_reruns_are_still_found(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MODULE, "LOOK_EVENTS_MAX", 3)
    sink = open_sink(layout)
    sinces = []
    for batch in range(8):
        sink.write(table(batch), BatchId("query", batch))
        sinces.append(json.loads(layout.view(VIEW).mark("journal").read_bytes())["since"])
    assert sinces == [0, 0, 0, 3, 3, 3, 6, 6]
    for _ in range(2):
        open_sink(layout).write(table(7), BatchId("query", 7))
    again = open_sink(layout)
    for batch in range(8):
        again.write(table(batch), BatchId("query", batch))
    assert [event.payload["n"] for event in emitted(layout)] == list(range(8))


def test_a_new_query_on_an_old_journal_begins_to_look_at_its_end(layout: Layout) -> None:
    with JournalWriter(layout.journal) as producer:
        producer.append([Event(f"p{n}", "producer", "other", 0, {}) for n in range(5)])
    open_sink(layout)
    assert json.loads(layout.view(VIEW).mark("journal").read_bytes())["since"] == 5


def test_without_a_mark_the_whole_journal_is_looked_up(layout: Layout) -> None:
    open_sink(layout).write(table(1), BATCH)
    layout.view(VIEW).mark("journal").unlink()
    open_sink(layout).write(table(1), BATCH)
    assert len(emitted(layout)) == 1


def test_a_query_whose_checkpoint_is_gone_does_not_emit_everything_a_second_time(layout: Layout) -> None:
    open_sink(layout).write(table(1), BATCH)
    shutil.rmtree(layout.view(VIEW).checkpoint)
    with pytest.raises(ArchiveInvalid, match="emit the same events a second time"):
        open_sink(layout)
    layout.view(VIEW).mark("journal").unlink()
    open_sink(layout).write(table(1), BatchId("another", 0))
    assert len(emitted(layout)) == 2


def test_a_journal_that_cannot_be_written_holds_the_batch_and_is_opened_anew(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = open_sink(layout)
    sink.write(table(0), BatchId("query", 0))
    with monkeypatch.context() as broken:
        broken.setattr("os.fdatasync", _fail)
        with pytest.raises(SinkAway, match="failed to sync"):
            sink.write(table(1), BatchId("query", 1))
    for _ in range(2):
        sink.write(table(1), BatchId("query", 1))
    assert [event.payload["n"] for event in emitted(layout)] == [0, 1]


def _fail(handle: int) -> None:
    raise OSError(5, "Input/output error")


# Rows as events


ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "entity": st.sampled_from(["a", "b"]),
            "type": st.sampled_from(["x", "y"]),
            "time": st.integers(0, 3),
            "n": st.integers(0, 2),
        }
    ),
    max_size=20,
)


@given(rows=ROWS, chance=st.randoms())
def test_ids_are_distinct_and_do_not_depend_on_the_order_of_rows(rows: list[Row], chance: random.Random) -> None:
    shuffled = chance.sample(rows, len(rows))
    events, again = (events_of(pa.Table.from_pylist(given_, SCHEMA), BATCH) for given_ in (rows, shuffled))
    assert events == again
    assert len({event.id for event in events}) == len(rows)
    assert {event.id for event in events}.isdisjoint(
        event.id for event in events_of(pa.Table.from_pylist(rows, SCHEMA), BatchId("query", 8))
    )


def test_all_other_columns_are_the_payload_and_can_be_read_as_fields_of_their_types() -> None:
    schema = pa.schema(
        [
            *SCHEMA,
            ("price", pa.decimal128(12, 2)),
            ("at", TIME),
            ("share", pa.float64()),
            ("note", pa.string()),
            ("lines", pa.list_(pa.struct([("sku", pa.string())]))),
        ]
    )
    at = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)
    more = {"price": Decimal("12.30"), "at": at, "share": 0.5, "note": None}
    row = {"entity": "e", "type": "t", "time": at, "n": 3, **more, "lines": [{"sku": "s"}]}
    check_columns(VIEW, schema)
    (event,) = events_of(pa.Table.from_pylist([row], schema), BATCH)
    assert (event.entity, event.type, event.time_us) == ("e", "t", int(at.timestamp() * 1e6))
    assert event.payload == {
        "n": 3,
        "price": "12.30",
        "at": "2026-01-02T03:04:05.678901Z",
        "share": 0.5,
        "note": None,
        "lines": [{"sku": "s"}],
    }
    fields = pa.schema([field for field in schema if field.name in event.payload])
    (found,) = payload_columns(pa.array([json.dumps(event.payload)]), fields).to_pylist()
    assert found == {name: row[name] for name in event.payload}


def test_a_payload_column_is_the_payload_and_tags_are_tags() -> None:
    schema = pa.schema([*list(SCHEMA)[:3], ("tags", pa.list_(pa.string())), ("payload", pa.string())])
    rows = [
        {"entity": "e", "type": "t", "time": 1, "tags": ["night"], "payload": '{"a": [1, {"b": null}]}'},
        {"entity": "e", "type": "t", "time": 2, "tags": None, "payload": "{}"},
    ]
    check_columns(VIEW, schema)
    first, second = events_of(pa.Table.from_pylist(rows, schema), BATCH)
    assert (first.tags, first.payload) == (("night",), {"a": [1, {"b": None}]})
    assert (second.tags, second.payload) == ((), {})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"entity": None}, "its entity is a NoneType"),
        ({"type": ""}, "its type has 0 characters"),
        ({"entity": "x" * 201}, "201 characters, 1 to 200"),
        ({"time": None}, "its time_us"),
        ({"time": -1}, "1970"),
        ({"payload": None}, "its payload is a NoneType"),
        ({"payload": "[1]"}, "its payload is a list"),
        ({"payload": "{"}, "its payload is a str"),
        ({"payload": '{"a": NaN}'}, "no JSON object"),
        ({"payload": json.dumps({"a": "x" * 70_000})}, "65536 are allowed"),
        ({"tags": [None]}, "its tag is a NoneType"),
    ],
)
def test_a_row_that_cannot_be_an_event_refuses_the_batch_and_names_row_and_reason(
    layout: Layout, change: dict[str, Any], reason: str
) -> None:
    schema = pa.schema([*list(SCHEMA)[:3], ("tags", pa.list_(pa.string())), ("payload", pa.string())])
    good = {"entity": "emma", "type": "emitted", "time": 5, "tags": [], "payload": "{}"}
    sink = open_sink(layout, schema=schema)
    with pytest.raises(SinkRefused) as refused:
        sink.write(pa.Table.from_pylist([good, {**good, **change}], schema), BATCH)
    assert reason in str(refused.value)
    assert "The row: {'entity': " in str(refused.value)
    assert emitted(layout) == []


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"type": None}, "no column 'type'"),
        ({"time": None}, "no column 'time'"),
        ({"entity": pa.int64()}, "'entity' of the type int64"),
        ({"time": pa.timestamp("us")}, "'time' of the type timestamp[us]"),
        ({"time": pa.string()}, "'time' of the type string"),
        ({"tags": pa.string()}, "'tags' of the type string"),
        ({"payload": pa.int64()}, "'payload' of the type int64"),
        ({"payload": pa.string(), "n": pa.int64()}, "the column 'n' beside it"),
        ({"id": pa.string()}, "a column 'id', which the journal itself gives"),
        ({"n": pa.month_day_nano_interval()}, "'n'"),
    ],
)
def test_a_view_whose_rows_cannot_be_events_is_refused_when_its_sink_is_opened(
    layout: Layout, fields: dict[str, pa.DataType | None], named: str
) -> None:
    kinds: dict[str, Any] = {"entity": pa.string(), "type": pa.string(), "time": TIME} | fields
    schema = pa.schema([(name, kind) for name, kind in kinds.items() if kind is not None])
    with pytest.raises(ViewInvalid) as invalid:
        journal()(SinkContext(layout, VIEW, schema))
    assert named in str(invalid.value)
    assert not Path(layout.journal).exists()


def test_events_without_other_columns_have_an_empty_payload() -> None:
    rows = pa.Table.from_pylist([{"entity": "e", "type": "t", "time": 1}], pa.schema(list(SCHEMA)[:3]))
    (event,) = events_of(rows, BATCH)
    assert event.payload == {}
    assert len(event.id) <= 200
    assert events_of(rows.slice(0, 0), BATCH) == []


def test_of_a_rerun_that_makes_other_events_the_stored_ones_count_and_the_log_is_told(
    layout: Layout, caplog: pytest.LogCaptureFixture
) -> None:
    """As a query whose rows have something random in them."""
    rows = table(1, 2)
    with pytest.raises(Crash):
        open_sink(layout, lambda step: _crash(step == 5)).write(rows.slice(0, 1), BatchId("query", 0))
    other = rows.set_column(rows.schema.get_field_index("n"), rows.schema.field("n"), [[7, 2]])
    open_sink(layout).write(other, BatchId("query", 0))
    assert [event.payload["n"] for event in emitted(layout)] == [1, 2]
    assert "a rerun makes other events" in caplog.text


def _crash(now: bool) -> None:
    if now:
        raise Crash
