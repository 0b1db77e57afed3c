"""Appends that come together: each is answered as if they had come by themselves, in some order."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateside.core.errors import EventRefused, JournalAway, JournalCorrupt, SequenceConflict
from stateside.core.positions import Position
from stateside.journal import Event, FileLog, JournalWriter, MemoryJournal
from stateside.journal.admin import JournalFiles, drop
from stateside.journal.append_batch import Answer, Appended, AppendRequest
from stateside.journal.backends.files.segment import segment_path
from stateside.journal.backends.memory import MemoryWriter
from stateside.journal.receipt import Receipt
from tests.sizes import examples

NAMES = ["emma", "ben"]


def event(id_: str, entity: str = "emma") -> Event:
    return Event(id_, entity, "call", 0, {})


def together(writer: MemoryWriter, requests: Sequence[AppendRequest]) -> dict[int, Answer]:
    """What each is told, when all of them stand in line: by their numbers, in the order in which they were settled."""
    answers: dict[int, Answer] = {}
    while waiting := [number for number in range(len(requests)) if number not in answers]:
        found = writer._append_together([requests[number] for number in waiting])
        assert found[0] is not None
        answers |= {number: each for number, each in zip(waiting, found, strict=True) if each is not None}
    return answers


def one_by_one(writer: MemoryWriter, requests: Sequence[AppendRequest]) -> list[Answer]:
    answers: list[Answer] = []
    for request in requests:
        try:
            if request.entity is None:
                answers.append(writer.append_each(request.events))
            else:
                answers.append(writer.append_to(request.entity, request.events, request.expected_sequence))
        except (EventRefused, SequenceConflict) as error:
            answers.append(error)
    return answers


def told(answers: Iterable[Answer]) -> list[object]:
    """The answers, but for the positions in receipts (a repeated one has the first one's) and words of errors."""
    return [
        (answer.first_sequence, answer.last_sequence, answer.repeated)
        if isinstance(answer, Receipt)
        else (answer.position, sorted(answer.repeated))
        if isinstance(answer, Appended)
        else (type(answer), getattr(answer, "current", None))
        for answer in answers
    ]


plain = st.lists(st.builds(event, st.sampled_from("abcdefgh"), st.sampled_from(NAMES)), min_size=1, max_size=3).map(
    AppendRequest
)


@st.composite
def conditional(draw: st.DrawFn) -> AppendRequest:
    entity = draw(st.sampled_from(NAMES))
    ids = draw(st.lists(st.sampled_from("abcdefgh"), max_size=3))
    others = draw(st.sampled_from([entity] * 5 + NAMES))
    return AppendRequest([event(id_, others) for id_ in ids], entity, draw(st.none() | st.integers(0, 4)))


@settings(max_examples=examples(400, 5_000), deadline=None)
@given(before=st.lists(plain, max_size=2), requests=st.lists(plain | conditional(), min_size=1, max_size=6))
def test_whatever_comes_together_is_answered_as_if_it_came_one_after_the_other_in_some_order(
    before: list[AppendRequest], requests: list[AppendRequest]
) -> None:
    journals = MemoryJournal(), MemoryJournal()
    writers = [journal.writer() for journal in journals]
    for writer in writers:
        one_by_one(writer, before)
    answers = together(writers[0], requests)
    assert told(answers.values()) == told(one_by_one(writers[1], [requests[number] for number in answers]))
    first, second = ([(each.id, each.entity, each.sequence) for each in journal.events()] for journal in journals)
    assert first == second


def test_of_two_that_expect_the_same_sequence_one_is_stored_and_the_other_told_the_sequence_then() -> None:
    writer = MemoryJournal().writer()
    first, second = together(
        writer, [AppendRequest([event("a")], "emma", 0), AppendRequest([event("b")], "emma", 0)]
    ).values()
    assert isinstance(first, Receipt)
    assert isinstance(second, SequenceConflict)
    assert second.current == 1


def test_the_same_append_twice_at_once_is_stored_once_and_gets_one_receipt() -> None:
    journal = MemoryJournal()
    first, second = together(journal.writer(), [AppendRequest([event("a")], "emma", 0)] * 2).values()
    assert first == second
    assert isinstance(second, Receipt)
    assert second.repeated
    assert len(list(journal.events())) == 1


def test_nobody_is_told_of_a_conflict_with_what_was_not_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with JournalWriter(tmp_path) as writer:

        def full(batch: object) -> None:
            raise JournalAway("the disk is full")

        monkeypatch.setattr(writer, "_store_frame", full)
        with pytest.raises(JournalAway):
            writer._append_together([AppendRequest([event("a")], "emma", 0), AppendRequest([event("b")], "emma", 0)])


def old_and_new(folder: Path, damage: Callable[[], object]) -> list[Answer | None]:
    """What is told to appends that come together: one that repeats the first event of several segments, and two more.

    `damage` is what happened to that event since.
    """
    with JournalWriter(folder, segment_bytes_max=1) as writer:
        writer.append_to("emma", [event("old")])
        for number in range(3):
            writer.append_once([event(f"{number}", "ben")])
        damage()
        new = AppendRequest([event("new", "ben")]), AppendRequest([event("next")], "emma", 1)
        return list(writer._append_together([new[0], AppendRequest([event("old")], "emma"), new[1]]))


def test_who_repeats_an_event_that_was_dropped_is_refused_and_nobody_else(tmp_path: Path) -> None:
    first, repeat, last = old_and_new(tmp_path, lambda: drop(JournalFiles(tmp_path), 3, []))
    assert isinstance(repeat, EventRefused)
    assert "'old' is stored already, and dropped since" in str(repeat)
    assert isinstance(first, Appended)
    assert first.position == Position.of({"0": 5})
    assert isinstance(last, Receipt)
    assert [found.id for found in FileLog(tmp_path).events(Position.of({"0": 4}))] == ["new", "next"]


def test_who_repeats_an_event_that_is_damaged_is_told_and_nobody_else(tmp_path: Path) -> None:
    first, repeat, last = old_and_new(tmp_path, lambda: segment_path(tmp_path, 0).write_bytes(b"?" * 10_000))
    assert isinstance(repeat, JournalCorrupt)
    assert (isinstance(first, Appended), isinstance(last, Receipt)) == (True, True)


def test_threads_that_append_on_conditions_share_syncs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frames: list[object] = []
    ready = Barrier(16)
    with JournalWriter(tmp_path) as writer, ThreadPoolExecutor(16) as pool:
        store = writer._store_frame

        def counted(batch: pa.RecordBatch) -> int:
            frames.append(batch)
            return store(batch)

        def append(thread: int) -> None:
            ready.wait(10)
            for number in range(20):
                receipt = writer.append_to(f"c{thread}", [event(f"{thread}-{number}", f"c{thread}")], number)
                assert receipt.last_sequence == number + 1

        monkeypatch.setattr(writer, "_store_frame", counted)
        list(pool.map(append, range(16)))
    assert len(list(FileLog(tmp_path).events())) == 320
    assert len(frames) < 240
