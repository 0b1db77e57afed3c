"""The helpers that users test their applications with."""

from __future__ import annotations

import pyarrow as pa
import pytest

from stateside.core.errors import EventRefused
from stateside.core.positions import Position
from stateside.journal import Event, FileJournal
from stateside.pipeline.sinks.sink import BatchId
from stateside.testing import Crash, CrashingSink, crash_marker, temporary_journal


def test_a_temporary_journal_has_its_events_and_is_gone_afterwards() -> None:
    events = [Event(f"{number}", "emma", "call", number, {"n": number}) for number in range(3)]
    with temporary_journal(events) as journal:
        assert list(journal.events()) == events
        assert journal.end() == Position.of({"0": 3})
        assert isinstance(journal, FileJournal)
        folder = journal.directory
        assert folder.exists()
    assert not folder.exists()


def test_a_temporary_journal_refuses_what_every_journal_refuses() -> None:
    with pytest.raises(EventRefused), temporary_journal([Event("", "emma", "call", 0, {})]):
        raise AssertionError("it was taken")


def test_crash_markers_are_events_that_any_journal_takes_and_no_two_are_alike() -> None:
    with temporary_journal([crash_marker(), crash_marker()]) as journal:
        assert len({event.id for event in journal.events()}) == 2


class Notebook:
    """A sink that keeps what it is given."""

    def __init__(self) -> None:
        self.batches: list[int] = []

    def write(self, rows: pa.Table, batch: BatchId) -> None:
        self.batches.append(batch.batch)


@pytest.mark.parametrize(("when", "stored"), [("before", [0, 1, 2]), ("after", [0, 1, 1, 2])])
def test_a_crashing_sink_fails_once_around_its_first_rows(when: str, stored: list[int]) -> None:
    notebook = Notebook()
    sink = CrashingSink(notebook, when)  # type: ignore[arg-type]
    empty, rows = pa.table({"a": pa.array([], pa.int64())}), pa.table({"a": [1]})
    sink.write(empty, BatchId("q", 0))
    with pytest.raises(Crash, match=f"{when} the sink"):
        sink.write(rows, BatchId("q", 1))
    sink.write(rows, BatchId("q", 1))
    sink.write(rows, BatchId("q", 2))
    assert notebook.batches == stored
