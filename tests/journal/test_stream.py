"""A journal on files as a stream: any range, any offsets, small appends together, damage told as by every reader."""

import shutil
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateside.core.errors import JournalCorrupt, PositionInvalid
from stateside.core.positions import Position
from stateside.journal import Event, FileLog, JournalWriter
from stateside.journal.backends.files import frame_index
from stateside.journal.backends.files import frames as frames_module
from stateside.journal.backends.files.file_journal import FileJournal
from stateside.journal.columns import decode
from tests.journal.old_format import write_old
from tests.journal.queries.streams import MemoryStream
from tests.sizes import examples, not_in_fast


def event(number: int) -> Event:
    return Event(f"e{number}", f"c{number % 3}", "call", number, {"n": number, "text": "x" * (number % 50)}, ("a",))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """120 events in appends of 1 to 9, old segments and new ones, a handful of frames in each."""
    path = tmp_path_factory.mktemp("stream") / "journal"
    write_old(path, [[event(0), event(1)], [event(2)], [event(number) for number in range(3, 9)]])
    with JournalWriter(path, segment_bytes_max=6_000) as writer:
        first, size = 9, 1
        while first < 120:
            writer.append([event(number) for number in range(first, min(120, first + size))])
            first, size = first + size, size % 9 + 1
    return path


def read(stream: FileJournal, start: int, stop: int) -> list[Event]:
    events, at = list[Event](), start
    for first, batch in stream.batches("0", start, stop):
        assert first == at
        events.extend(decode(batch))
        at = first + batch.num_rows
    return events


@settings(max_examples=examples(60, 300), deadline=None)
@given(bounds=st.tuples(st.integers(0, 120), st.integers(0, 120)), group_bytes=st.sampled_from([1, 3_000, 1 << 20]))
def test_any_range_is_what_the_journal_has(folder: Path, bounds: tuple[int, int], group_bytes: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frames_module, "GROUP_BYTES", group_bytes)
        assert read(FileJournal(folder), *sorted(bounds)) == [event(number) for number in range(*sorted(bounds))]


@settings(max_examples=examples(60, 300), deadline=None)
@given(wanted=st.sets(st.integers(0, 119)), group_bytes=st.sampled_from([1, 3_000, 1 << 20]))
def test_any_offsets_are_gathered_in_order(folder: Path, wanted: set[int], group_bytes: int) -> None:
    offsets = np.array(sorted(wanted), np.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frames_module, "GROUP_BYTES", group_bytes)
        parts = list(FileJournal(folder).gather("0", offsets))
    assert [int(offset) for found, _ in parts for offset in found] == sorted(wanted)
    assert [each for _, batch in parts for each in decode(batch)] == [event(number) for number in sorted(wanted)]


@given(wanted=st.sets(st.integers(0, 299)))
def test_offsets_are_gathered_from_a_stream_that_has_ranges_only(wanted: set[int]) -> None:
    stream = MemoryStream(["p"])
    stream.append([event(number) for number in range(300)])
    parts = list(stream.gather("p", np.array(sorted(wanted), np.int64)))
    assert [each for _, batch in parts for each in decode(batch)] == [event(number) for number in sorted(wanted)]


def test_many_small_appends_come_as_one_batch(folder: Path) -> None:
    assert len(list(FileJournal(folder).batches("0", 0, 120))) == len(list(folder.glob("*.segment")))


def test_a_stream_sees_what_is_appended_after_it_was_opened(tmp_path: Path) -> None:
    stream = FileJournal(tmp_path)
    assert (stream.id(), stream.end(), read(stream, 0, 0)) == (None, Position.start(), [])
    with JournalWriter(tmp_path, segment_bytes_max=3_000) as writer:
        for number in range(20):
            writer.append([event(number)])
            assert read(stream, 0, number + 1) == [event(each) for each in range(number + 1)]
    assert stream.id() == FileLog(tmp_path).id()


def test_a_range_beyond_the_end_is_refused(folder: Path) -> None:
    with pytest.raises(PositionInvalid, match="ends at 120"):
        read(FileJournal(folder), 0, 121)


@pytest.mark.parametrize("opened_before", [True, False])
def test_damage_is_told_with_its_place(folder: Path, tmp_path: Path, opened_before: bool) -> None:
    copy = tmp_path / "journal"
    shutil.copytree(folder, copy)
    stream = FileJournal(copy)
    if opened_before:
        read(stream, 0, 120)
    path = sorted(copy.glob("*.segment"))[2]
    content = bytearray(path.read_bytes())
    content[-20] ^= 1
    path.write_bytes(content)
    with pytest.raises(JournalCorrupt, match=rf"checksum does not match .*{path.name}, byte \d+"):
        read(stream, 0, 120)
    path.write_bytes(content[:-30])
    with pytest.raises(JournalCorrupt, match=rf"cut short .*{path.name}, byte \d+|no event at offset"):
        read(stream, 0, 120)
    path.unlink()
    with pytest.raises(JournalCorrupt, match="no event at offset"):
        read(stream, 0, 120)
    assert read(stream, 0, 9) == [event(number) for number in range(9)]


@not_in_fast("many segments")
def test_where_frames_begin_is_kept_of_finished_segments_and_not_believed_if_it_is_damaged(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frame_index, "FRAMES_MIN", 0)
    copy = tmp_path / "journal"
    shutil.copytree(folder, copy)
    expected = [event(number) for number in range(120)]
    assert read(FileJournal(copy), 0, 120) == expected
    segments = sorted(path.stem for path in copy.glob("*.segment"))
    kept = sorted((copy / "frames").iterdir())
    assert [path.stem for path in kept] == segments[:-1]
    before = [path.stat().st_mtime_ns for path in kept]
    assert read(FileJournal(copy), 0, 120) == expected
    assert [path.stat().st_mtime_ns for path in kept] == before
    content = kept[1].read_bytes()
    places = [*range(0, len(content), 7), len(content) - 1]
    for damaged in [b"", kept[0].read_bytes(), *(content[:at] + b"\xff" + content[at + 1 :] for at in places)]:
        kept[1].write_bytes(damaged)
        assert read(FileJournal(copy), 0, 120) == expected
    assert kept[1].read_bytes() == content
    shutil.rmtree(copy / "frames")
    (copy / "frames").write_text("a file where the folder would be")
    assert read(FileJournal(copy), 0, 120) == expected


def test_another_journal_in_the_same_folder_is_noticed(tmp_path: Path) -> None:
    folder, stream = tmp_path / "journal", FileJournal(tmp_path / "journal")
    for number in (1, 2):
        with JournalWriter(folder) as writer:
            writer.append([event(number)])
        assert read(stream, 0, 1) == [event(number)]
        assert stream.id() == FileLog(folder).id()
        shutil.rmtree(folder)


@pytest.mark.timeout(60)
def test_waiting_ends_when_something_was_appended_or_the_time_is_over(tmp_path: Path) -> None:
    stream = FileJournal(tmp_path)
    with JournalWriter(tmp_path) as writer:
        assert not stream.wait(stream.end(), 0)
        assert not stream.wait(stream.end(), 0.02)
        began = time.monotonic()
        timer = threading.Timer(0.1, writer.append, [[event(0)]])
        timer.start()
        assert stream.wait(Position.start(), 600)
        assert time.monotonic() - began > 0.05
        timer.join()
        assert stream.wait(Position.start(), 0)
