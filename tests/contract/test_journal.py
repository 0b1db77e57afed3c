"""What every journal promises, whatever it is stored on. A backend joins in three lines, at the end of this file.

The promises are those that rooms to the right rely on: receipts that the end covers, all or none, one order for all
readers, reading from any position, nothing that is not durable, and an id by which a journal is known again.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import pairwise
from pathlib import Path
from typing import Protocol

import pytest

from stateside.clock import Clock, ManualClock
from stateside.errors import EventRefused, PositionInvalid
from stateside.journal import Event, Journal, JournalWriter
from stateside.positions import Position


class Writer(Protocol):
    """How events get in."""

    @property
    def end(self) -> Position: ...
    def append(self, events: Sequence[Event]) -> Position: ...


class Reader(Protocol):
    """How events get out."""

    def id(self) -> str | None: ...
    def end(self) -> Position: ...
    def unstored(self, events: Sequence[Event], since: Position) -> list[Event]: ...
    def events(self, start: Position | None = None, stop: Position | None = None) -> Iterator[Event]: ...


class JournalContract(ABC):
    """The suite. A test sees one fresh journal of one partition, which it may open as often as it likes."""

    @abstractmethod
    def writer(self, folder: Path, clock: Clock) -> AbstractContextManager[Writer]:
        """Open the journal for appending; `folder` belongs to this test alone."""

    @abstractmethod
    def reader(self, folder: Path) -> Reader:
        """Open the same journal for reading."""

    @pytest.fixture
    def appended(self, tmp_path: Path) -> list[tuple[Position, list[Event]]]:
        """Appends of several sizes, each with its receipt."""
        with self.writer(tmp_path, ManualClock()) as writer:
            batches = [_events(size, first) for size, first in ((1, 0), (4, 1), (2, 5))]
            return [(writer.append(batch), batch) for batch in batches]

    def test_a_new_journal_is_empty(self, tmp_path: Path) -> None:
        with self.writer(tmp_path, ManualClock()) as writer:
            assert writer.end == Position.start()
        assert self.reader(tmp_path).end() == Position.start()
        assert list(self.reader(tmp_path).events()) == []

    def test_a_journal_has_an_id_of_its_own_for_life(self, tmp_path: Path) -> None:
        reader, other = self.reader(tmp_path / "one"), self.reader(tmp_path / "other")
        assert reader.id() is None
        ids = set()
        for number in range(3):
            with self.writer(tmp_path / "one", ManualClock()) as writer:
                writer.append(_events(1, number))
                ids.add(reader.id())
        with self.writer(tmp_path / "other", ManualClock()) as writer:
            writer.append(_events(3, 0))
        assert ids == {self.reader(tmp_path / "one").id()}
        assert None not in ids
        assert other.id() not in ids

    def test_a_producer_finds_out_which_of_its_events_came_in_since_its_last_receipt(
        self, tmp_path: Path, appended: list[tuple[Position, list[Event]]]
    ) -> None:
        (receipt, _), (_, second), (_, third) = appended
        new = _events(2, 100)
        assert self.reader(tmp_path).unstored([*second, *new, *third], since=receipt) == new

    def test_events_are_read_in_the_order_of_their_appends(
        self, tmp_path: Path, appended: list[tuple[Position, list[Event]]]
    ) -> None:
        assert list(self.reader(tmp_path).events()) == [event for _, batch in appended for event in batch]

    def test_events_come_back_whole(self, tmp_path: Path) -> None:
        payload = {"text": "Grüße, 世界 \n\x00", "numbers": [1, -2.5, 2**60], "none": None, "deep": {"a": [{}]}}
        event = Event("id 1", "Zoë", "call", 7_258_118_399_999_999, payload, ("night", "roaming"))
        with self.writer(tmp_path, ManualClock(42)) as writer:
            writer.append([event])
        (found,) = self.reader(tmp_path).events()
        assert found == event
        assert found.appended_us == 42

    def test_a_receipt_is_covered_by_the_end_as_soon_as_it_is_given(self, tmp_path: Path) -> None:
        reader = self.reader(tmp_path)
        with self.writer(tmp_path, ManualClock()) as writer:
            for number in range(3):
                receipt = writer.append(_events(2, 2 * number))
                assert writer.end == receipt
                assert reader.end().covers(receipt)

    def test_receipts_grow_with_the_events(self, appended: list[tuple[Position, list[Event]]]) -> None:
        receipts = [Position.start(), *(receipt for receipt, _ in appended)]
        for (before, after), (_, batch) in zip(pairwise(receipts), appended, strict=True):
            assert after.covers(before)
            assert after.events() - before.events() == len(batch)

    def test_reading_from_a_receipt_gives_what_came_after_it(
        self, tmp_path: Path, appended: list[tuple[Position, list[Event]]]
    ) -> None:
        for number, (receipt, _) in enumerate(appended):
            later = [event for _, batch in appended[number + 1 :] for event in batch]
            assert list(self.reader(tmp_path).events(receipt)) == later

    def test_reading_between_any_two_positions_gives_that_range(
        self, tmp_path: Path, appended: list[tuple[Position, list[Event]]]
    ) -> None:
        events = [event for _, batch in appended for event in batch]
        ((partition, count),) = appended[-1][0].parts
        for start in range(count + 1):
            for stop in range(start, count + 1):
                positions = (Position.of({partition: offset}) for offset in (start, stop))
                assert list(self.reader(tmp_path).events(*positions)) == events[start:stop]

    def test_a_position_beyond_the_end_is_refused(
        self, tmp_path: Path, appended: list[tuple[Position, list[Event]]]
    ) -> None:
        ((partition, count),) = appended[-1][0].parts
        with pytest.raises(PositionInvalid):
            list(self.reader(tmp_path).events(stop=Position.of({partition: count + 1})))

    def test_an_append_of_nothing_changes_nothing(self, tmp_path: Path) -> None:
        with self.writer(tmp_path, ManualClock()) as writer:
            receipt = writer.append(_events(1, 0))
            assert writer.append([]) == receipt
        assert self.reader(tmp_path).end() == receipt

    def test_an_append_with_a_bad_event_stores_none_of_its_events(self, tmp_path: Path) -> None:
        with self.writer(tmp_path, ManualClock()) as writer:
            receipt = writer.append(_events(1, 0))
            with pytest.raises(EventRefused):
                writer.append([*_events(2, 1), Event("e", "entity", "type", -1, {})])
            assert writer.end == receipt
            writer.append(_events(1, 1))
        assert list(self.reader(tmp_path).events()) == _events(2, 0)

    def test_the_same_event_appended_twice_is_there_twice(self, tmp_path: Path) -> None:
        with self.writer(tmp_path, ManualClock()) as writer:
            writer.append(_events(1, 0) * 2)
            writer.append(_events(1, 0))
        assert list(self.reader(tmp_path).events()) == _events(1, 0) * 3

    def test_a_writer_opened_again_goes_on_where_the_last_one_ended(self, tmp_path: Path) -> None:
        for number in range(3):
            with self.writer(tmp_path, ManualClock(number)) as writer:
                assert writer.end.events() == number
                writer.append(_events(1, number))
        events = list(self.reader(tmp_path).events())
        assert events == _events(3, 0)
        assert [event.appended_us for event in events] == [0, 1, 2]

    def test_a_reader_opened_before_an_append_sees_it(self, tmp_path: Path) -> None:
        reader = self.reader(tmp_path)
        with self.writer(tmp_path, ManualClock()) as writer:
            for count in range(1, 4):
                writer.append(_events(1, count - 1))
                assert list(reader.events()) == _events(count, 0)


def _events(count: int, first: int) -> list[Event]:
    return [Event(f"e{number}", "entity", "call", number, {}) for number in range(first, first + count)]


class TestJournalOnFiles(JournalContract):
    writer = staticmethod(lambda folder, clock: JournalWriter(folder / "journal", clock=clock))
    reader = staticmethod(lambda folder: Journal(folder / "journal"))


class TestJournalOnFilesWithASegmentForEveryAppend(JournalContract):
    writer = staticmethod(lambda folder, clock: JournalWriter(folder / "journal", clock=clock, segment_bytes_max=1))
    reader = staticmethod(lambda folder: Journal(folder / "journal"))
