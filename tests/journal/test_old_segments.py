"""Journals of format version 1, from before there were sequences: read as they are, and gone on with."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from stateside.core.errors import JournalCorrupt, SequenceConflict
from stateside.journal import Event, FileLog, JournalWriter, Receipt
from stateside.journal.backends.files.segment import schema, segment_offsets, segment_path
from stateside.journal.columns import SCHEMA

from .old_format import write_old

MakeEvents = Callable[..., list[Event]]


def test_an_old_journal_is_read_as_it_is(tmp_path: Path, make_events: MakeEvents) -> None:
    write_old(tmp_path, [make_events(2), make_events(3, 2)])
    found = list(FileLog(tmp_path).events())
    assert found == make_events(5)
    assert {(event.sequence, event.appended_us) for event in found} == {(None, 5)}


def test_a_writer_goes_on_in_a_new_segment_and_counts_the_old_events(tmp_path: Path, make_events: MakeEvents) -> None:
    write_old(tmp_path, [make_events(2), make_events(3, 2)])
    journal_id = FileLog(tmp_path).id()
    with JournalWriter(tmp_path) as writer:
        writer.append(make_events(4, 5))
    assert FileLog(tmp_path).id() == journal_id
    assert segment_offsets(tmp_path) == [0, 5]
    assert schema(segment_path(tmp_path, 5)).equals(SCHEMA)
    found = list(FileLog(tmp_path).events())
    assert found == make_events(9)
    assert [event.sequence for event in found] == [None] * 5 + [2, 3, 3, 3]  # of the entities 2, 0, 1, 2


def test_batches_of_both_are_of_one_schema(tmp_path: Path, make_events: MakeEvents) -> None:
    write_old(tmp_path, [make_events(2)])
    with JournalWriter(tmp_path) as writer:
        writer.append(make_events(2, 2))
    table = pa.Table.from_batches([batch for _, batch in FileLog(tmp_path).batches(0, 4)])
    assert table.schema.equals(SCHEMA)
    assert table["version"].to_pylist() == [1, 1, 1, 1]


def test_an_old_journal_without_events_goes_on_in_its_only_segment(tmp_path: Path, make_events: MakeEvents) -> None:
    write_old(tmp_path, [])
    with JournalWriter(tmp_path) as waiting:
        with JournalWriter(tmp_path) as writer:
            writer.append(make_events(2))
        waiting.append(make_events(1, 2))
    assert segment_offsets(tmp_path) == [0]
    assert [event.sequence for event in FileLog(tmp_path).events()] == [1, 1, 1]


def test_old_events_have_their_place_in_a_conditional_append(tmp_path: Path) -> None:
    old = [Event("a", "emma", "t", 0, {}), Event("x", "ben", "t", 0, {}), Event("b", "emma", "t", 0, {})]
    write_old(tmp_path, [old])
    with JournalWriter(tmp_path) as writer:
        with pytest.raises(SequenceConflict) as conflict:
            writer.append_to("emma", [Event("c", "emma", "t", 0, {})], expected_sequence=0)
        assert conflict.value.current == 2
        assert writer.append_to("emma", [old[0], old[2]]) == Receipt(writer.end, 1, 2)
        assert writer.append_to("emma", [Event("c", "emma", "t", 0, {})], expected_sequence=2).last_sequence == 3


def test_a_format_of_the_future_is_refused_and_named(tmp_path: Path, make_events: MakeEvents) -> None:
    write_old(tmp_path, [make_events(2)], version=3)
    with pytest.raises(JournalCorrupt, match="format version 3 is not known"):
        list(FileLog(tmp_path).events())
