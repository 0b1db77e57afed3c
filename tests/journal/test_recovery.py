"""Damage: what a crash may leave is set aside and told; what was acknowledged is never given up silently.

`damageable` is a journal of four frames (offsets 0, 2, 3, 6 to 7) whose bytes these tests damage one at a time.
"""

import errno
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from stateside.core.errors import JournalCorrupt, OperatingError
from stateside.core.positions import Position
from stateside.core.storage import write_atomically
from stateside.journal import Event, FileLog, JournalWriter, open_journal
from stateside.journal.backends.files import file_writer as writer_module
from stateside.journal.backends.files import segment
from stateside.journal.backends.files.segment import DurableEnd, segment_path
from tests.sizes import thinned

MakeEvents = Callable[..., list[Event]]

NEXT = Event("next", "entity", "call", 0, {})


@pytest.mark.parametrize(("marked", "step"), [(True, 3), (False, 7)], ids=["with an end mark", "without an end mark"])
def test_a_last_frame_cut_at_any_byte_is_set_aside_and_appends_go_on(
    damageable: Any, caplog: pytest.LogCaptureFixture, marked: bool, step: int
) -> None:
    torn = damageable.frames[-1]
    mark = damageable.mark_after(damageable.frames[-2]) if marked else None
    for cut in thinned(range(torn.begin_byte + 1, torn.end_byte), step):
        damageable.put(damageable.content[:cut], mark)
        caplog.clear()
        with JournalWriter(damageable.folder) as writer:
            assert writer.end["0"] == torn.first_offset
            assert writer.append([NEXT])["0"] == torn.first_offset + 1
        assert list(FileLog(damageable.folder).events()) == [*damageable.events[:-1], NEXT]
        line, *others = caplog.messages
        assert ["its end mark was missing" in other for other in others] == ([] if marked else [True])
        told, aside = line.split("; they are kept in ")
        assert told == (
            f"cut off {cut - torn.begin_byte} bytes of a torn frame: {damageable.segment} byte {torn.begin_byte}"
        )
        assert Path(aside).read_bytes() == damageable.content[torn.begin_byte : cut]
        Path(aside).unlink()


def test_a_proper_end_is_opened_without_a_word(damageable: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), JournalWriter(damageable.folder) as writer:
        assert writer.end["0"] == len(damageable.events)
    assert caplog.messages == []
    assert damageable.segment.read_bytes() == damageable.content


def test_a_whole_frame_that_was_not_acknowledged_yet_is_kept(damageable: Any, caplog: pytest.LogCaptureFixture) -> None:
    damageable.put(damageable.content, damageable.mark_after(damageable.frames[1]))
    assert list(FileLog(damageable.folder).events()) == damageable.events[:3]
    with JournalWriter(damageable.folder) as writer:
        assert writer.end["0"] == len(damageable.events)
    assert list(FileLog(damageable.folder).events()) == damageable.events
    assert caplog.messages == []


@pytest.mark.parametrize(
    "garbage",
    [b"\x00", b"\x00" * 4096, b"FRAM", b"garbage" * 50, b"FRAM" + b"\xff" * 60, b"STATEJRN" * 9],
    ids=lambda garbage: f"{len(garbage)} bytes from {garbage[:4]!r}",
)
def test_garbage_behind_the_end_mark_is_set_aside(
    damageable: Any, caplog: pytest.LogCaptureFixture, garbage: bytes
) -> None:
    damageable.put(damageable.content + garbage, damageable.end)
    with JournalWriter(damageable.folder) as writer:
        writer.append([NEXT])
    assert list(FileLog(damageable.folder).events()) == [*damageable.events, NEXT]
    assert caplog.messages[0].startswith(f"cut off {len(garbage)} bytes")
    assert _aside(damageable) == {f"torn-{len(damageable.content)}": garbage}


def test_what_was_set_aside_stays_when_the_same_place_is_torn_again(damageable: Any) -> None:
    tails = [b"first", b"second", b"third"]
    for tail in tails:
        damageable.put(damageable.content + tail, damageable.end)
        JournalWriter(damageable.folder).close()
    name = f"torn-{len(damageable.content)}"
    assert _aside(damageable) == dict(zip([name, f"{name}-2", f"{name}-3"], tails, strict=True))


def test_what_cannot_be_set_aside_is_not_cut_off(damageable: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    damageable.put(damageable.content + b"torn", damageable.end)
    monkeypatch.setattr(writer_module, "write_atomically", _disk_full)
    with pytest.raises(OperatingError, match="No space left on device"):
        JournalWriter(damageable.folder)
    assert damageable.segment.read_bytes() == damageable.content + b"torn"


def test_a_crash_before_the_cut_sets_the_bytes_aside_again(damageable: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    damageable.put(damageable.content + b"torn", damageable.end)
    with monkeypatch.context() as crashing:
        crashing.setattr(os, "truncate", _crash)
        with pytest.raises(KeyboardInterrupt):
            JournalWriter(damageable.folder)
    assert damageable.segment.read_bytes() == damageable.content + b"torn"
    JournalWriter(damageable.folder).close()
    assert damageable.segment.read_bytes() == damageable.content
    assert set(_aside(damageable).values()) == {b"torn"}


# A loss of power may bring an earlier end mark back


@pytest.mark.parametrize("bits", [0x01, 0xFF])
@pytest.mark.parametrize("marked", [None, 0, 1], ids=["no mark", "a mark before it", "a mark just before it"])
def test_any_byte_flipped_in_a_frame_that_others_follow_is_damage_whatever_the_mark_says(
    damageable: Any, marked: int | None, bits: int
) -> None:
    mark = None if marked is None else damageable.mark_after(damageable.frames[marked])
    frame = damageable.frames[2]
    for at_byte in thinned(range(frame.begin_byte, frame.end_byte), 5):
        damaged = _flipped(damageable.content, at_byte, bits)
        damageable.put(damaged, mark)
        with pytest.raises(JournalCorrupt) as corrupt:
            JournalWriter(damageable.folder)
        assert corrupt.value.where == f"{damageable.segment}, byte {frame.begin_byte}"
        assert f"a whole frame with offset 6 follows at byte {frame.end_byte}" in str(corrupt.value)
        assert damageable.segment.read_bytes() == damaged
    assert _aside(damageable) == {}


def test_a_gap_of_zeros_with_a_frame_behind_it_is_damage(damageable: Any) -> None:
    gap = damageable.frames[1:3]
    begin, end = gap[0].begin_byte, gap[-1].end_byte
    damageable.put(
        damageable.content[:begin] + bytes(end - begin) + damageable.content[end:],
        damageable.mark_after(damageable.frames[0]),
    )
    with pytest.raises(JournalCorrupt, match=f"a whole frame with offset 6 follows at byte {end}"):
        JournalWriter(damageable.folder)


@pytest.mark.parametrize("kept", [[0, 2, 3], [0, 1, 1], [0, 3]], ids=["one lost", "one doubled", "two lost"])
def test_whole_frames_that_do_not_continue_the_one_before_are_damage(damageable: Any, kept: list[int]) -> None:
    frames = [damageable.frames[index] for index in kept]
    header = damageable.content[: damageable.frames[0].begin_byte]
    damageable.put(
        header + b"".join(damageable.content[frame.begin_byte : frame.end_byte] for frame in frames),
        damageable.mark_after(damageable.frames[0]),
    )
    with pytest.raises(JournalCorrupt, match="a frame begins at offset"):
        JournalWriter(damageable.folder)


def test_a_damaged_last_frame_behind_the_end_mark_is_set_aside(damageable: Any) -> None:
    """It may be torn: a crash can write a frame's last block before the others."""
    last = damageable.frames[-1]
    damaged = _flipped(damageable.content, last.begin_byte + 40)
    damageable.put(damaged, damageable.mark_after(damageable.frames[1]))
    with JournalWriter(damageable.folder) as writer:
        assert writer.end["0"] == last.first_offset
    assert _aside(damageable) == {f"torn-{last.begin_byte}": damaged[last.begin_byte :]}


def test_bytes_in_a_torn_frame_that_look_like_a_frame_of_another_journal_do_not_count(
    damageable: Any, tmp_path: Path, make_events: MakeEvents
) -> None:
    with JournalWriter(tmp_path / "other") as writer:
        begin = segment_path(tmp_path / "other", 0).stat().st_size
        writer.append(make_events(2))
    tail = b"torn" + segment_path(tmp_path / "other", 0).read_bytes()[begin:]
    damageable.put(damageable.content + tail, damageable.end)
    JournalWriter(damageable.folder).close()
    assert _aside(damageable) == {f"torn-{len(damageable.content)}": tail}


# Damage to what was acknowledged


@pytest.mark.parametrize("bits", [0x01, 0xFF])
def test_any_byte_flipped_in_an_acknowledged_frame_is_found_and_named(damageable: Any, bits: int) -> None:
    frame = damageable.frames[1]
    where = f"{damageable.segment}, byte {frame.begin_byte}"
    for at_byte in thinned(range(frame.begin_byte, frame.end_byte), 3):
        damaged = _flipped(damageable.content, at_byte, bits)
        damageable.put(damaged, damageable.end)
        with pytest.raises(JournalCorrupt) as read:
            list(FileLog(damageable.folder).events())
        assert read.value.where == where
        with pytest.raises(JournalCorrupt) as opened:
            JournalWriter(damageable.folder)
        assert opened.value.where == where
        assert damageable.segment.read_bytes() == damaged


def test_events_behind_a_damaged_frame_are_read_as_they_were_or_not_at_all(damageable: Any) -> None:
    frame, last = damageable.frames[1], damageable.frames[3]
    refused, places = 0, thinned(range(frame.begin_byte, frame.end_byte), 3)
    for at_byte in places:
        damageable.put(_flipped(damageable.content, at_byte), damageable.end)
        try:
            events = list(FileLog(damageable.folder).events(Position.of({"0": last.first_offset})))
        except JournalCorrupt as error:
            assert str(damageable.segment) in str(error)
            refused += 1
        else:
            assert events == damageable.events[last.first_offset :]
    assert 0 < refused < len(places)


@pytest.mark.parametrize("bits", [0x01, 0xFF])
def test_any_byte_flipped_in_a_segments_header_is_found_and_named(damageable: Any, bits: int) -> None:
    for at_byte in thinned(range(damageable.frames[0].begin_byte), 3):
        damageable.put(_flipped(damageable.content, at_byte, bits), damageable.end)
        for use in (lambda: list(FileLog(damageable.folder).events()), lambda: JournalWriter(damageable.folder)):
            with pytest.raises(JournalCorrupt) as corrupt:
                use()
            assert corrupt.value.where == f"{damageable.segment}, byte 0"


def test_acknowledged_events_that_are_cut_off_at_any_byte_are_missed_and_counted(damageable: Any) -> None:
    for cut in thinned(range(damageable.frames[2].end_byte - 30, len(damageable.content)), 5):
        whole = [frame for frame in damageable.frames if frame.end_byte <= cut][-1]
        damageable.put(damageable.content[:cut], damageable.end)
        with pytest.raises(JournalCorrupt) as opened:
            JournalWriter(damageable.folder)
        missing = len(damageable.events) - whole.next_offset
        assert f"{missing} acknowledged events are missing" in str(opened.value)
        assert opened.value.where == f"{damageable.segment}, byte {whole.end_byte}"
        with pytest.raises(JournalCorrupt) as read:
            list(FileLog(damageable.folder).events())
        assert read.value.where == f"{damageable.segment}, byte {whole.end_byte}"
        assert damageable.segment.stat().st_size == cut


def test_events_before_a_cut_can_still_be_read(damageable: Any) -> None:
    damageable.put(damageable.content[:-1], damageable.end)
    stop = Position.of({"0": damageable.frames[-1].first_offset})
    assert list(FileLog(damageable.folder).events(stop=stop)) == damageable.events[:-1]


@pytest.mark.parametrize("size", [0, 7, 19, 100])
def test_a_segment_cut_inside_its_header_is_damaged(damageable: Any, size: int) -> None:
    damageable.put(damageable.content[:size], damageable.end)
    for use in (lambda: list(FileLog(damageable.folder).events()), lambda: JournalWriter(damageable.folder)):
        with pytest.raises(JournalCorrupt, match="header"):
            use()


@pytest.mark.parametrize("cut", [True, False], ids=["a frame cut short", "a damaged frame"])
def test_a_loss_at_the_end_can_be_accepted_by_deleting_the_end_mark(damageable: Any, cut: bool) -> None:
    at_byte = len(damageable.content) - 1
    damageable.put(damageable.content[:-1] if cut else _flipped(damageable.content, at_byte), damageable.end)
    with pytest.raises(JournalCorrupt, match="To accept the loss, delete the file end"):
        JournalWriter(damageable.folder)
    (damageable.folder / "end").unlink()
    with JournalWriter(damageable.folder) as writer:
        writer.append([NEXT])
    assert list(FileLog(damageable.folder).events()) == [*damageable.events[:-1], NEXT]
    assert len(_aside(damageable)) == 1


def test_an_end_mark_with_any_byte_flipped_or_missing_is_damaged(damageable: Any) -> None:
    damaged = [_flipped(damageable.end, at_byte) for at_byte in range(len(damageable.end))]
    for mark in [*damaged, b"", damageable.end[:-1], damageable.end + b"\x00"]:
        damageable.put(damageable.content, mark)
        for use in (FileLog(damageable.folder).end, lambda: JournalWriter(damageable.folder)):
            with pytest.raises(JournalCorrupt, match="end mark is damaged") as corrupt:
                use()
            assert corrupt.value.where == str(damageable.folder / "end")


def test_a_damaged_end_mark_can_be_deleted_and_nothing_is_lost(damageable: Any) -> None:
    damageable.put(damageable.content, None)
    assert JournalWriter(damageable.folder).end["0"] == len(damageable.events)
    assert list(FileLog(damageable.folder).events()) == damageable.events


def test_a_journal_whose_segments_are_all_gone_is_not_begun_anew(damageable: Any) -> None:
    damageable.segment.unlink()
    for _ in range(2):
        with pytest.raises(JournalCorrupt, match="7 acknowledged events are missing"):
            JournalWriter(damageable.folder)
    assert not damageable.segment.exists()


def test_a_journal_whose_last_segment_is_gone_is_not_continued(damageable: Any) -> None:
    with JournalWriter(damageable.folder, segment_bytes_max=1) as writer:
        writer.append([NEXT, NEXT], compare_ids=False)
    segment_path(damageable.folder, 7).unlink()
    with pytest.raises(JournalCorrupt, match="2 acknowledged events are missing"):
        JournalWriter(damageable.folder)


def _aside(damageable: Any) -> dict[str, bytes]:
    """What lies beside the segment: the ends of the names, and the bytes."""
    files = damageable.folder.glob(f"{damageable.segment.name}.*")
    return {path.name.removeprefix(f"{damageable.segment.name}."): path.read_bytes() for path in files}


def _disk_full(*arguments: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _crash(*arguments: object) -> None:
    raise KeyboardInterrupt


def _flipped(content: bytes, at_byte: int, bits: int = 0x10) -> bytes:
    return content[:at_byte] + bytes([content[at_byte] ^ bits]) + content[at_byte + 1 :]


def test_events_without_an_end_mark_are_damage_to_readers_until_a_writer_has_found_the_end(
    damageable: Any, caplog: pytest.LogCaptureFixture
) -> None:
    damageable.put(damageable.content, None)
    journal = FileLog(damageable.folder)
    for read in (journal.end, lambda: list(journal.events()), open_journal(damageable.folder).end):
        with pytest.raises(JournalCorrupt, match=r"end mark is missing.*let a writer open") as corrupt:
            read()
        assert corrupt.value.where == str(damageable.folder / "end")
    assert journal.id() is not None
    JournalWriter(damageable.folder).close()
    assert list(journal.events()) == damageable.events
    assert f"its end mark was missing; the last whole frame is its end, {len(damageable.events)}" in caplog.text


def test_later_segments_without_an_end_mark_are_damage_although_the_last_one_is_empty(tmp_path: Path) -> None:
    with JournalWriter(tmp_path, segment_bytes_max=1) as writer:
        for number in range(3):
            writer.append([Event(str(number), "entity", "call", 0, {})])
    (tmp_path / "end").unlink()
    for path in sorted(tmp_path.glob("*.segment"))[:-1]:
        path.unlink()
    with pytest.raises(JournalCorrupt, match="end mark is missing"):
        FileLog(tmp_path).end()


class Killed(BaseException):
    """The process ends here."""


def test_a_writer_killed_at_any_step_of_making_a_journal_leaves_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is made is there whole; between any two of them a writer may die."""
    made: list[str] = []

    def make(path: Path, content: bytes, **options: Any) -> None:
        if len(made) == steps:
            raise Killed
        made.append(path.name)
        write_atomically(path, content, **options)

    for module in (segment, writer_module):
        monkeypatch.setattr(module, "write_atomically", make)
    for steps in range(3):
        made.clear()
        folder = tmp_path / str(steps)
        with suppress(Killed):
            JournalWriter(folder).close()
        assert made == [segment_path(folder, 0).name, "end"][:steps]
        assert (FileLog(folder).end().one(), list(FileLog(folder).events())) == (0, [])
    monkeypatch.undo()
    for steps in range(3):
        with JournalWriter(tmp_path / str(steps)) as writer:
            writer.append([NEXT])
        assert list(FileLog(tmp_path / str(steps)).events()) == [NEXT]


def test_a_reader_that_looks_while_a_journal_is_made_takes_it_for_no_damage(
    damageable: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mark was not there yet when it was looked for, and then everything was."""
    reads = iter([None, DurableEnd.read(damageable.folder)])
    monkeypatch.setattr(segment.DurableEnd, "read", lambda directory: next(reads))
    assert FileLog(damageable.folder).end().one() == len(damageable.events)
