"""Reading: any range, over any segments, and never beyond the durable end."""

import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateside.core.errors import JournalCorrupt, PositionInvalid
from stateside.core.positions import Position
from stateside.journal import Event, FileLog, JournalWriter
from stateside.journal.backends.files.segment import DurableEnd, segment_offsets
from tests.sizes import examples

MakeEvents = Callable[..., list[Event]]


@settings(max_examples=examples(12, 100))
@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=8),
    segment_bytes_max=st.sampled_from([1, 2_000, 3_000, 1 << 20]),
    data=st.data(),
)
def test_appended_batches_read_back_the_same_from_any_start_to_any_stop(
    make_events: MakeEvents, sizes: list[int], segment_bytes_max: int, data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        journal = FileLog(Path(folder))
        marks, events = [journal.durable_end()], list[Event]()
        for size in sizes:
            with JournalWriter(Path(folder), segment_bytes_max=segment_bytes_max) as writer:
                writer.append(make_events(size, len(events)))
            events += make_events(size, len(events))
            marks.append(journal.durable_end())
        for _ in range(5):
            start = data.draw(st.integers(0, len(events)))
            stop = data.draw(st.integers(start, len(events)))
            mark = data.draw(st.sampled_from([None, *(mark for mark in marks if mark.offset <= start)]))
            assert list(journal.events(_at(start), _at(stop))) == events[start:stop]
            assert _offsets_and_ids(journal, start, stop, mark) == [
                (offset, events[offset].id) for offset in range(start, stop)
            ]


def test_the_end_is_the_default_stop(tmp_path: Path, make_events: MakeEvents) -> None:
    _append(tmp_path, make_events(3))
    assert list(FileLog(tmp_path).events(_at(1))) == make_events(2, first=1)
    assert list(FileLog(tmp_path).events(_at(3))) == []


def test_a_folder_that_nobody_has_written_to_is_an_empty_journal(tmp_path: Path) -> None:
    journal = FileLog(tmp_path / "nowhere")
    assert journal.end() == Position.start()
    assert list(journal.events()) == []


@pytest.mark.parametrize(("start", "stop"), [(0, 4), (4, 4), (2, 1), (-1, 2)])
def test_offsets_that_do_not_lie_in_the_journal_are_refused(
    tmp_path: Path, make_events: MakeEvents, start: int, stop: int
) -> None:
    _append(tmp_path, make_events(3))
    with pytest.raises(PositionInvalid, match="which ends at 3"):
        list(FileLog(tmp_path).batches(start, stop))


def test_a_frame_that_is_written_but_not_marked_durable_is_not_seen(tmp_path: Path, make_events: MakeEvents) -> None:
    _append(tmp_path, make_events(3))
    mark = (tmp_path / "end").read_bytes()
    _append(tmp_path, make_events(2, first=3))
    (tmp_path / "end").write_bytes(mark)
    assert FileLog(tmp_path).end() == _at(3)
    assert list(FileLog(tmp_path).events()) == make_events(3)
    with pytest.raises(PositionInvalid):
        list(FileLog(tmp_path).events(_at(0), _at(5)))


def test_garbage_behind_the_end_mark_is_not_looked_at(tmp_path: Path, make_events: MakeEvents) -> None:
    _append(tmp_path, make_events(3))
    with next(tmp_path.glob("*.segment")).open("ab") as file:
        file.write(b"\x00garbage" * 20)
    assert list(FileLog(tmp_path).events()) == make_events(3)


def test_a_journal_keeps_its_id_and_shares_it_with_no_other(tmp_path: Path, make_events: MakeEvents) -> None:
    first, other = FileLog(tmp_path / "first"), FileLog(tmp_path / "other")
    assert first.id() is other.id() is None
    for count in (1, 2):
        _append(first.directory, make_events(count))
        _append(other.directory, make_events(count))
    assert UUID(first.id()) != UUID(other.id())
    before = first.id()
    with JournalWriter(first.directory, segment_bytes_max=1) as writer:
        writer.append(make_events(1))
        assert first.id() == before


def test_a_journal_has_its_id_from_its_first_opening_on(tmp_path: Path) -> None:
    tmp_path.joinpath("lock").touch()
    assert FileLog(tmp_path).id() is None
    with JournalWriter(tmp_path):
        assert FileLog(tmp_path).id() is not None


def test_the_same_journal_elsewhere_is_the_same_journal(tmp_path: Path, make_events: MakeEvents) -> None:
    _append(tmp_path / "here", make_events(1))
    shutil.copytree(tmp_path / "here", tmp_path / "there")
    assert FileLog(tmp_path / "here").id() == FileLog(tmp_path / "there").id()


@pytest.mark.parametrize("foreign", [0, 2, 4])
def test_a_segment_of_another_journal_is_not_read(tmp_path: Path, make_events: MakeEvents, foreign: int) -> None:
    journal = _three_segments(tmp_path / "journal", make_events)
    other = _three_segments(tmp_path / "other", make_events)
    name = f"{foreign:020d}.segment"
    shutil.copy(other.directory / name, journal.directory / name)
    wrong = 0 if foreign == 4 else foreign  # a foreign newest segment makes the others foreign
    with pytest.raises(JournalCorrupt, match=f"this segment is of the journal .*{wrong:020d}.segment, byte 0"):
        list(journal.events(_at(wrong)))
    if foreign != 2:
        return
    assert list(journal.events(_at(0), _at(2))) == make_events(2)
    assert list(journal.events(_at(4))) == make_events(2, first=4)


def test_a_writer_does_not_go_on_behind_a_segment_of_another_journal(tmp_path: Path, make_events: MakeEvents) -> None:
    journal = _three_segments(tmp_path / "journal", make_events)
    other = _three_segments(tmp_path / "other", make_events)
    shutil.copy(other.directory / f"{4:020d}.segment", journal.directory)
    with pytest.raises(JournalCorrupt, match=f"the newest one of {other.id()}"):
        JournalWriter(journal.directory)


def test_events_are_found_by_their_ids_from_a_position_on(tmp_path: Path, make_events: MakeEvents) -> None:
    _append(tmp_path, make_events(4))
    journal = FileLog(tmp_path)
    asked = make_events(3, first=3)
    assert journal.unstored(asked, since=_at(0)) == journal.unstored(asked, since=_at(3)) == asked[1:]
    assert journal.unstored(asked, since=_at(4)) == asked
    assert journal.unstored([], since=_at(0)) == []
    with pytest.raises(PositionInvalid):
        journal.unstored(asked, since=_at(5))


def test_a_reader_beside_a_writer_sees_whole_appends_in_order(tmp_path: Path, make_events: MakeEvents) -> None:
    appends, size = 150, 3

    def write() -> None:
        with JournalWriter(tmp_path, segment_bytes_max=20_000) as writer:
            for number in range(appends):
                writer.append(make_events(size, size * number))

    thread = threading.Thread(target=write)
    thread.start()
    journal, ids, ends = FileLog(tmp_path), list[str](), list[int]()
    while len(ids) < appends * size:
        end, mark = journal.end(), journal.durable_end()
        ids += [event.id for event in journal.events(_at(len(ids)), end)]
        ends.append(end["0"])
        assert mark.offset >= len(ids) == end["0"]
        assert thread.is_alive() or journal.end()["0"] == appends * size
    thread.join()
    assert ids == [event.id for event in make_events(appends * size)]
    assert ends == sorted(ends)
    assert all(end % size == 0 for end in ends)
    assert len(segment_offsets(tmp_path)) > 3


def test_batches_stay_valid_after_the_reader_has_moved_on(tmp_path: Path, make_events: MakeEvents) -> None:
    with JournalWriter(tmp_path, segment_bytes_max=1) as writer:
        for number in range(3):
            writer.append(make_events(1, number))
    batches = [batch for _, batch in FileLog(tmp_path).batches(0, 3)]
    shutil.rmtree(tmp_path)
    assert [batch.column("id").to_pylist() for batch in batches] == [["e0"], ["e1"], ["e2"]]


@pytest.mark.parametrize(("start", "stop"), [(0, 6), (0, 3), (2, 3), (2, 4), (3, 6), (3, 4)])
def test_a_deleted_segment_is_an_error_and_nothing_is_skipped(
    tmp_path: Path, make_events: MakeEvents, start: int, stop: int
) -> None:
    journal = _three_segments(tmp_path, make_events)
    (tmp_path / "00000000000000000002.segment").unlink()
    with pytest.raises(JournalCorrupt, match=f"no event at offset {max(start, 2)}") as corrupt:
        list(journal.events(_at(start), _at(stop)))
    assert str(tmp_path) in str(corrupt.value)


@pytest.mark.parametrize("gone", [0, 4])
def test_a_deleted_first_or_last_segment_is_an_error_too(tmp_path: Path, make_events: MakeEvents, gone: int) -> None:
    journal = _three_segments(tmp_path, make_events)
    (tmp_path / f"{gone:020d}.segment").unlink()
    with pytest.raises(JournalCorrupt, match=f"no event at offset {gone}"):
        list(journal.events())
    assert list(journal.events(_at(2), _at(4))) == make_events(2, first=2)


def test_an_earlier_segment_that_lost_its_last_frame_is_an_error(tmp_path: Path, make_events: MakeEvents) -> None:
    with JournalWriter(tmp_path, segment_bytes_max=2_500) as writer:
        ends = []
        while len(segment_offsets(tmp_path)) < 2:
            ends.append(DurableEnd.read(tmp_path))
            writer.append(make_events(1, writer.end["0"]))
    before_last = ends[-2]
    assert before_last is not None
    first = tmp_path / f"{0:020d}.segment"
    first.write_bytes(first.read_bytes()[: before_last.segment_bytes])
    with pytest.raises(JournalCorrupt, match=f"no event at offset {before_last.offset}"):
        list(FileLog(tmp_path).events())


def _three_segments(folder: Path, make_events: MakeEvents) -> FileLog:
    with JournalWriter(folder, segment_bytes_max=1) as writer:
        for _ in range(3):
            writer.append(make_events(2, writer.end["0"]))
    assert segment_offsets(folder) == [0, 2, 4]
    return FileLog(folder)


def _append(folder: Path, events: list[Event]) -> None:
    with JournalWriter(folder) as writer:
        writer.append(events)


def _at(offset: int) -> Position:
    return Position.of({"0": offset})


def _offsets_and_ids(journal: FileLog, start: int, stop: int, mark: DurableEnd | None) -> list[tuple[int, str]]:
    return [
        (first + index, id_)
        for first, batch in journal.batches(start, stop, mark)
        for index, id_ in enumerate(batch.column("id").to_pylist())
    ]
