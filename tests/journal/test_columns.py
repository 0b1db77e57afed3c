"""The journal's schema over time: what is older is completed, what is newer is kept."""

import datetime
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from stateside.journal import Event, FileLog, JournalWriter
from stateside.journal.columns import GIVEN, SCHEMA, conformed, decode, encode
from stateside.journal.json_lines import event_of, fields_of

EVENT = Event("e1", "emma", "call", 1_000_000, {"seconds": 61}, ("night",))


def with_newer(events: list[Event], **columns: list[Any]) -> pa.RecordBatch:
    """The events as a Stateside with these columns more would store them."""
    batch = encode(events, 0)
    arrays = [*batch.columns, *(pa.array(values) for values in columns.values())]
    return pa.RecordBatch.from_arrays(arrays, names=[*SCHEMA.names, *columns])


def test_events_of_an_older_schema_get_the_defaults_of_what_they_lack() -> None:
    (found,) = decode(encode([EVENT], 7).select(GIVEN.names))
    assert found == EVENT
    assert (found.sequence, found.appended_us) == (None, 7)


def test_a_batch_in_the_journals_schema_is_not_touched() -> None:
    batch = encode([EVENT], 0)
    assert conformed(batch) is batch


def test_a_batch_that_lacks_what_every_event_has_is_a_mistake_of_the_program() -> None:
    with pytest.raises(AssertionError, match="no column 'payload'"):
        conformed(encode([EVENT], 0).select(GIVEN.names[:-1]))


def test_fields_of_a_newer_schema_survive_reading_exporting_and_appending(tmp_path: Path) -> None:
    noon = datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.UTC)
    newer = with_newer([EVENT, EVENT], region=["north", None], raw=[b"\xff", None], seen=[noon, None])
    known, unknown = decode(newer)
    assert unknown == EVENT
    assert known.extra == {"region": "north", "raw": "/w==", "seen": "2026-01-31T12:00:00+00:00"}
    with JournalWriter(tmp_path) as writer:
        writer.append_batch(newer)
        writer.append([event_of(fields_of(known), 0)], compare_ids=False)
    assert [event.extra for event in FileLog(tmp_path).events()] == [known.extra, {}, known.extra]


def test_newer_fields_come_beside_those_that_were_unknown_before() -> None:
    (found,) = decode(with_newer([Event("e", "e", "t", 0, {}, extra={"a": 1, "b": 2})], b=[3]))
    assert found.extra == {"a": 1, "b": 3}


def test_who_imports_the_journal_does_not_wait_for_pandas() -> None:
    """Spark starts a Python for each task, and people a command at a time."""
    program = "import sys, stateside.journal, stateside.pipeline.journal_source; sys.exit('pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
