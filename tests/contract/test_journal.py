"""What every journal promises, whatever it is stored on. A backend joins in three lines, at the end of this file.

The promises are those that rooms to the right rely on: receipts that the end covers, all or none, one order for all
readers, reading from any position, nothing that is not durable, an id by which a journal is known again, and sequences
of each entity, without gaps, by which an append may be made conditional.
"""

import random
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import pytest

from stateside.core.clock import Clock, ManualClock
from stateside.core.errors import (
    EventRefused,
    IdConflict,
    JournalAway,
    JournalFenced,
    JournalLocked,
    PositionInvalid,
    SequenceConflict,
)
from stateside.core.positions import Position
from stateside.journal import Event, FileLog, Journal, JournalWriter, Log, MemoryJournal, Receipt, Writer, open_journal
from stateside.journal.backends.nodes import MergedJournal, Merger, NodeWriter


class JournalContract(ABC):
    """The suite. A test sees one fresh journal of one partition, which it may open as often as it likes."""

    @abstractmethod
    def writer(self, folder: Path, clock: Clock) -> AbstractContextManager[Writer]:
        """Open the journal for appending; `folder` belongs to this test alone."""

    @abstractmethod
    def reader(self, folder: Path) -> Journal | Log:
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
        payload: dict[str, Any] = {
            "text": "Grüße, 世界 \n\x00",
            "numbers": [1, -2.5, 2**60],
            "none": None,
            "deep": {"a": [{}]},
        }
        more: dict[str, Any] = {"version": 3, "metadata": {"trace": "ä"}, "extra": {"region": ["x", None]}}
        event = Event("id 1", "Zoë", "call", 7_258_118_399_999_999, payload, ("night", "roaming"), **more)
        binary = Event("id 2", "Zoë", "call", 0, b"\xff\x00{}")
        with self.writer(tmp_path, ManualClock(42)) as writer:
            writer.append([event, binary])
        found = list(self.reader(tmp_path).events())
        assert found == [event, binary]
        assert [each.appended_us for each in found] == [42, 42]

    def test_a_receipt_is_covered_by_the_end_as_soon_as_it_is_given(self, tmp_path: Path) -> None:
        reader = self.reader(tmp_path)
        with self.writer(tmp_path, ManualClock()) as writer:
            for number in range(3):
                receipt = writer.append(_events(2, 2 * number))
                assert writer.end == receipt
                assert reader.end().covers(receipt)

    def test_receipts_grow_with_the_events(self, tmp_path: Path, appended: list[tuple[Position, list[Event]]]) -> None:
        receipts = [Position.start(), *(receipt for receipt, _ in appended)]
        for (before, after), (_, batch) in zip(pairwise(receipts), appended, strict=True):
            assert after.covers(before)
            assert list(self.reader(tmp_path).events(before, after)) == batch

    def test_reading_from_a_receipt_gives_what_came_after_it(
        self, tmp_path: Path, appended: list[tuple[Position, list[Event]]]
    ) -> None:
        for number, (receipt, _) in enumerate(appended):
            later = [event for _, batch in appended[number + 1 :] for event in batch]
            assert list(self.reader(tmp_path).events(receipt)) == later

    def test_reading_between_any_two_positions_gives_that_range(
        self, tmp_path: Path, appended: list[tuple[Position, list[Event]]]
    ) -> None:
        reader = self.reader(tmp_path)
        ((partition, count),) = appended[-1][0].parts
        places = [Position.of({partition: offset}) for offset in range(count + 1)]
        each = [list(reader.events(*pair)) for pair in pairwise(places)]  # an offset may have no event
        assert [event for found in each for event in found] == [event for _, batch in appended for event in batch]
        for start in range(count + 1):
            for stop in range(start, count + 1):
                expected = [event for found in each[start:stop] for event in found]
                assert list(reader.events(places[start], places[stop])) == expected

    def test_a_position_beyond_the_end_is_refused(
        self, tmp_path: Path, appended: list[tuple[Position, list[Event]]]
    ) -> None:
        reader = self.reader(tmp_path)
        ((partition, count),) = reader.end().parts
        with pytest.raises(PositionInvalid):
            list(reader.events(stop=Position.of({partition: count + 1})))

    def test_an_append_of_nothing_changes_nothing(self, tmp_path: Path) -> None:
        with self.writer(tmp_path, ManualClock()) as writer:
            receipt = writer.append(_events(1, 0))
            assert writer.append([]) == receipt == writer.end
        assert list(self.reader(tmp_path).events()) == _events(1, 0)

    def test_an_append_with_a_bad_event_stores_none_of_its_events(self, tmp_path: Path) -> None:
        with self.writer(tmp_path, ManualClock()) as writer:
            receipt = writer.append(_events(1, 0))
            with pytest.raises(EventRefused):
                writer.append([*_events(2, 1), Event("e", "entity", "type", -1, {})])
            assert writer.end == receipt
            writer.append(_events(1, 1))
        assert list(self.reader(tmp_path).events()) == _events(2, 0)

    def test_a_conditional_append_to_what_is_no_name_is_refused(self, tmp_path: Path) -> None:
        with self.writer(tmp_path, ManualClock()) as writer:
            for name in ("\ud800", "a\nb"):
                with pytest.raises(EventRefused):
                    writer.append_to(name, [_event("a", name)])
            assert writer.append_to("emma", [_event("a", "emma")], expected_sequence=0).last_sequence == 1

    def test_an_event_that_is_stored_already_is_stored_once_and_answered_with_its_receipt(self, tmp_path: Path) -> None:
        with self.writer(tmp_path, ManualClock()) as writer:
            first = writer.append(_events(2, 0))
            assert writer.append([*_events(2, 2), *_events(1, 2)]).covers(first)  # one of them is there twice
        with self.writer(tmp_path, ManualClock()) as writer:
            end = writer.end
            assert writer.append(_events(2, 0)) == first
            assert writer.append(_events(4, 0)) == end
            assert writer.append_unstored(_events(1, 3), since=first) == end
            assert len(set(writer.append_once([*_events(4, 0), *_events(4, 0)]))) == 4
            assert writer.append_to("entity", _events(2, 0)).repeated
            assert writer.end == end
            later = writer.append(_events(6, 0))
            assert later == writer.end != end
        assert list(self.reader(tmp_path).events()) == _events(6, 0)

    def test_which_of_the_events_were_there_before_is_told(self, tmp_path: Path) -> None:
        with self.writer(tmp_path, ManualClock()) as writer:
            assert not writer.append_each(_events(2, 0)).repeated
            again = writer.append_each([*_events(3, 0), *_events(1, 2)])
            assert sorted(again.repeated) == [0, 1, 3]
            assert again.place(2) == again.place(3)
            assert writer.append_once(_events(1, 2)) == writer.append_once(_events(3, 0))[2:]

    @pytest.mark.parametrize(
        "other",
        [
            Event("a", "ben", "call", 5, {"seconds": 1}, ("night",)),
            Event("a", "emma", "text", 5, {"seconds": 1}, ("night",)),
            Event("a", "emma", "call", 6, {"seconds": 1}, ("night",)),
            Event("a", "emma", "call", 5, {"seconds": 2}, ("night",)),
            Event("a", "emma", "call", 5, b"1", ("night",)),
            Event("a", "emma", "call", 5, {"seconds": 1}),
            Event("a", "emma", "call", 5, {"seconds": 1}, ("night",), version=2),
        ],
        ids=["entity", "type", "time", "payload", "bytes", "tags", "version"],
    )
    def test_a_stored_id_with_other_content_is_a_conflict_and_nothing_of_the_append_is_stored(
        self, tmp_path: Path, other: Event
    ) -> None:
        event = Event("a", "emma", "call", 5, {"seconds": 1}, ("night",), metadata={"trace": "1"})
        with self.writer(tmp_path, ManualClock()) as writer:
            with pytest.raises(IdConflict):
                writer.append([event, other])
            end = writer.append([event])
            new = _event("new", other.entity)
            for append in (
                lambda: writer.append([new, other]),
                lambda: writer.append_once([new, other]),
                lambda: writer.append_unstored([new, other], since=end),
            ):
                with pytest.raises(IdConflict, match="'a'") as conflict:
                    append()
                assert (conflict.value.events, conflict.value.ids) == ((1,), ("a",))
            with pytest.raises(IdConflict, match="'a'"):
                writer.append_to(other.entity, [other])
            assert writer.end == end
            same = Event("a", "emma", "call", 5, {"seconds": 1}, ("night",), metadata={"trace": "2"})
            assert writer.append([same]) == end
        assert [each.id for each in self.reader(tmp_path).events()] == ["a"]

    def test_a_time_that_the_producer_did_not_give_is_not_compared(self, tmp_path: Path) -> None:
        with self.writer(tmp_path, ManualClock()) as writer:
            end = writer.append([Event("a", "emma", "call", 5, {})])
            assert writer.append_each([Event("a", "emma", "call", 6, {})], any_time={"a"}).position == end

    def test_a_payload_is_compared_as_what_it_says_however_it_is_written(self, tmp_path: Path) -> None:
        with self.writer(tmp_path, ManualClock()) as writer:
            end = writer.append([Event("a", "emma", "call", 5, {"one": [1, 2], "two": "ü"})])
            assert writer.append([Event("a", "emma", "call", 5, {"two": "ü", "one": (1, 2)})]) == end

    def test_a_producer_with_unique_ids_of_its_own_may_spare_the_look(self, tmp_path: Path) -> None:
        with self.writer(tmp_path, ManualClock()) as writer:
            writer.append(_events(1, 0) * 2, compare_ids=False)
            writer.append(_events(1, 0), compare_ids=False)
            assert len(set(writer.append_once(_events(2, 0)))) == 2
        assert list(self.reader(tmp_path).events()) == [*_events(1, 0) * 3, *_events(1, 1)]

    def test_a_conflict_of_one_thread_fails_no_other_thread_s_append(self, tmp_path: Path) -> None:
        with self.writer(tmp_path, ManualClock()) as writer, ThreadPoolExecutor(8) as pool:
            writer.append([_event("a", "emma")])

            def append(number: int) -> bool:
                try:
                    writer.append(
                        [_event(f"{number}", "emma"), Event("a", "emma", "other", number % 2, {})][: 1 + number % 2]
                    )
                except IdConflict:
                    return False
                return True

            assert list(pool.map(append, range(64))) == [number % 2 == 0 for number in range(64)]
        assert {event.id for event in self.reader(tmp_path).events()} == {"a", *(str(n) for n in range(0, 64, 2))}

    def test_a_writer_opened_again_goes_on_where_the_last_one_ended(self, tmp_path: Path) -> None:
        receipt = Position.start()
        for number in range(3):
            with self.writer(tmp_path, ManualClock(number)) as writer:
                assert writer.end == receipt
                receipt = writer.append(_events(1, number))
        events = list(self.reader(tmp_path).events())
        assert events == _events(3, 0)
        assert [event.appended_us for event in events] == [0, 1, 2]

    def test_a_reader_opened_before_an_append_sees_it(self, tmp_path: Path) -> None:
        reader = self.reader(tmp_path)
        with self.writer(tmp_path, ManualClock()) as writer:
            for count in range(1, 4):
                writer.append(_events(1, count - 1))
                assert list(reader.events()) == _events(count, 0)

    def test_an_entitys_events_are_numbered_from_one_on_however_they_come_in(self, tmp_path: Path) -> None:
        for round_ in range(2):
            with self.writer(tmp_path, ManualClock()) as writer:
                receipt = writer.append([_event(f"{round_}a", "emma"), _event(f"{round_}b", "ben")])
                writer.append_once([_event(f"{round_}c", "emma"), _event(f"{round_}a", "emma")])
                writer.append_unstored([_event(f"{round_}c", "emma"), _event(f"{round_}d", "ben")], since=receipt)
                writer.append_to("emma", [_event(f"{round_}e", "emma")])
        found = list(self.reader(tmp_path).events())
        assert [event.id for event in found] == ["0a", "0b", "0c", "0d", "0e", "1a", "1b", "1c", "1d", "1e"]
        assert [event.sequence for event in found if event.entity == "emma"] == [1, 2, 3, 4, 5, 6]
        assert [event.sequence for event in found if event.entity == "ben"] == [1, 2, 3, 4]

    def test_a_conditional_append_is_stored_at_the_expected_sequence_and_nowhere_else(self, tmp_path: Path) -> None:
        with self.writer(tmp_path, ManualClock()) as writer:
            writer.append([_event("x", "ben")])
            first = writer.append_to("emma", [_event("a", "emma"), _event("b", "emma")], expected_sequence=0)
            assert first == Receipt(writer.end, 1, 2)
            for wrong in (0, 1, 3):
                with pytest.raises(SequenceConflict) as conflict:
                    writer.append_to("emma", [_event("c", "emma")], expected_sequence=wrong)
                assert conflict.value.current == 2
            assert writer.end == first.position
            assert writer.append_to("emma", [_event("c", "emma")], 2) == Receipt(writer.end, 3, 3)
        assert [event.id for event in self.reader(tmp_path).events()] == ["x", "a", "b", "c"]

    def test_the_same_conditional_append_again_is_answered_with_the_first_receipt(self, tmp_path: Path) -> None:
        batch = [_event("a", "emma"), _event("b", "emma")]
        with self.writer(tmp_path, ManualClock()) as writer:
            receipt = writer.append_to("emma", batch, expected_sequence=0)
            writer.append([_event("c", "emma")])
            again = writer.append_to("emma", batch, expected_sequence=0)
            assert (again, again.repeated, receipt.repeated) == (receipt, True, False)
        with self.writer(tmp_path, ManualClock()) as writer:
            assert writer.append_to("emma", batch) == receipt
            assert writer.append_to("emma", batch[1:]) == Receipt(receipt.position, 2, 2)
        assert [event.id for event in self.reader(tmp_path).events()] == ["a", "b", "c"]

    def test_the_receipt_of_an_event_is_found_by_its_id(self, tmp_path: Path) -> None:
        with self.writer(tmp_path, ManualClock()) as writer:
            writer.append([_event("x", "ben"), _event("a", "emma"), _event("b", "emma")])
            assert writer.receipt_of("emma", "b") == Receipt(writer.end, 2, 2)
            assert writer.receipt_of("emma", "c") is None
            with pytest.raises(EventRefused, match="'x' is that of an event of 'ben'"):
                writer.receipt_of("emma", "x")

    def test_a_conditional_append_of_nothing_tells_whether_the_entity_is_there(self, tmp_path: Path) -> None:
        with self.writer(tmp_path, ManualClock()) as writer:
            writer.append([_event("a", "emma")])
            assert writer.append_to("emma", [], expected_sequence=1) == Receipt(writer.end, 2, 1)
            with pytest.raises(SequenceConflict):
                writer.append_to("emma", [], expected_sequence=0)
        assert [event.id for event in self.reader(tmp_path).events()] == ["a"]

    @pytest.mark.parametrize(
        ("ids", "entity", "reason"),
        [
            (("a", "new"), "emma", "Of its events 'a' are stored already, and 'new' are not"),
            (("x",), "emma", "The id 'x' is that of an event of 'ben', which is stored already"),
            (("new", "new"), "emma", "The id 'new' is there twice"),
            (("new",), "ben", "Event 'new' is one of 'ben', not of 'emma'"),
        ],
    )
    def test_a_conditional_append_is_refused_that_is_neither_new_nor_a_repetition(
        self, tmp_path: Path, ids: tuple[str, ...], entity: str, reason: str
    ) -> None:
        with self.writer(tmp_path, ManualClock()) as writer:
            receipt = writer.append([_event("x", "ben"), _event("a", "emma")])
            with pytest.raises(EventRefused, match=reason):
                writer.append_to("emma", [_event(id_, entity) for id_ in ids])
            assert writer.end == receipt

    def test_a_conditional_append_of_nothing_says_where_the_entity_is(self, tmp_path: Path) -> None:
        with self.writer(tmp_path, ManualClock()) as writer:
            receipt = writer.append([_event("a", "emma")])
            assert writer.append_to("emma", [], expected_sequence=1) == Receipt(receipt, 2, 1)
            with pytest.raises(SequenceConflict):
                writer.append_to("emma", [], expected_sequence=0)

    def test_of_many_that_decide_at_the_same_sequence_one_wins(self, tmp_path: Path) -> None:
        def decide(number: int) -> int:
            with self.writer(tmp_path, ManualClock()) as writer:
                try:
                    return writer.append_to("emma", [_event(f"{number}", "emma")], expected_sequence=0).last_sequence
                except SequenceConflict as conflict:
                    return -(conflict.current or 0)
                except JournalFenced:  # where there is one owner at a time: another one has opened the journal since
                    pass
            time.sleep(random.uniform(0, 0.5))
            return decide(number)

        with ThreadPoolExecutor(4) as pool:
            assert sorted(pool.map(decide, range(8))) == [-1] * 7 + [1]
        assert len(list(self.reader(tmp_path).events())) == 1


def _events(count: int, first: int) -> list[Event]:
    return [Event(f"e{number}", "entity", "call", number, {}) for number in range(first, first + count)]


def _event(id_: str, entity: str) -> Event:
    return Event(id_, entity, "call", 0, {})


class TestJournalOnFiles(JournalContract):
    writer = staticmethod(lambda folder, clock: open_journal(folder / "journal").writer(clock=clock))
    reader = staticmethod(lambda folder: open_journal(folder / "journal"))


class TestJournalOnFilesWithASegmentForEveryAppend(JournalContract):
    writer = staticmethod(lambda folder, clock: JournalWriter(folder / "journal", clock=clock, segment_bytes_max=1))
    reader = staticmethod(lambda folder: FileLog(folder / "journal"))


_IN_MEMORY: defaultdict[Path, MemoryJournal] = defaultdict(MemoryJournal)


class TestJournalInMemory(JournalContract):
    writer = staticmethod(lambda folder, clock: _IN_MEMORY[folder].writer(clock=clock))
    reader = staticmethod(lambda folder: _IN_MEMORY[folder])


@contextmanager
def _node(folder: Path, clock: Clock) -> Iterator[NodeWriter]:
    """The owner of node a; who comes second waits until it may be it."""
    while True:
        try:
            writer = NodeWriter(folder, "a", clock=clock)
            break
        except JournalLocked:
            time.sleep(0.01)
    with writer:
        yield writer


class _Merged:
    """The merged stream of the one node, with positions as the node gives them: offsets are the same in both."""

    def __init__(self, folder: Path, log: str) -> None:
        self._folder, self._log = folder, log

    def id(self) -> str | None:
        return self._merged().id()

    def end(self) -> Position:
        return Position.of({self._log: self._merged().end()["0"]})

    def events(self, start: Position | None = None, stop: Position | None = None) -> Iterator[Event]:
        first = 0 if start is None else start[self._log]
        last = None if stop is None else Position.of({"0": stop[self._log]})
        return self._merged().log("0").events(Position.of({"0": first}), last)

    def unstored(self, events: Sequence[Event], since: Position) -> list[Event]:
        there = {event.id for event in self.events(since)}
        return [event for event in events if event.id not in there]

    def _merged(self) -> MergedJournal:
        if (self._folder / "nodes").exists():
            with Merger(self._folder) as merger:
                merger.merge()
        return MergedJournal(self._folder)


class TestANodesJournal(JournalContract):
    writer = staticmethod(_node)

    def reader(self, folder: Path) -> Journal:
        return cast(Journal, _Merged(folder, "a.1"))


class TestTheSharedNodeSJournal(JournalContract):
    writer = staticmethod(lambda folder, clock: MergedJournal(folder).writer(clock=clock))

    def reader(self, folder: Path) -> Journal:
        return cast(Journal, _Merged(folder, "shared.1"))


@pytest.mark.parametrize("backend", ["memory", "files", "nodes"])
def test_a_writer_that_expects_another_journal_is_refused_and_creates_nothing(backend: str, tmp_path: Path) -> None:
    """(On Kafka: tests/journal/kafka/test_writer.py.)"""
    journal = (
        MemoryJournal() if backend == "memory" else open_journal(tmp_path, node="a" if backend == "nodes" else None)
    )
    for _ in range(2):
        with pytest.raises(JournalAway):
            journal.writer(known=str(uuid4()))
        if journal.id() is None:
            assert list(tmp_path.rglob("*.segment")) == []
            with journal.writer() as writer:
                writer.append(_events(1, 0))
            if backend == "nodes":
                with Merger(tmp_path) as merger:
                    merger.merge()
    with journal.writer(known=journal.id()) as writer:
        writer.append(_events(1, 1))
