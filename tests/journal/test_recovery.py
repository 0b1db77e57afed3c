"""Damage: what a crash may leave is cut off and told; what was acknowledged is never given up silently.

`damageable` is a journal of four frames (offsets 0, 2, 3, 6 to 7) whose bytes these tests damage one at a time.
"""

import logging
from typing import Any

import pytest

from stateside.errors import JournalCorrupt
from stateside.journal import Event, Journal, JournalWriter
from stateside.journal.segment import segment_path
from stateside.positions import Position

NEXT = Event("next", "entity", "call", 0, {})


@pytest.mark.parametrize(("marked", "step"), [(True, 1), (False, 7)], ids=["with an end mark", "without an end mark"])
def test_a_last_frame_cut_at_any_byte_is_cut_off_and_appends_go_on(
    damageable: Any, caplog: pytest.LogCaptureFixture, marked: bool, step: int
) -> None:
    torn = damageable.frames[-1]
    mark = damageable.mark_after(damageable.frames[-2]) if marked else None
    for cut in range(torn.begin_byte + 1, torn.end_byte, step):
        damageable.put(damageable.content[:cut], mark)
        caplog.clear()
        with JournalWriter(damageable.folder) as writer:
            assert writer.end["0"] == torn.first_offset
            assert writer.append([NEXT])["0"] == torn.first_offset + 1
        assert list(Journal(damageable.folder).events()) == [*damageable.events[:-1], NEXT]
        (line,) = caplog.messages
        assert line == (
            f"cut off {cut - torn.begin_byte} bytes of a torn frame: {damageable.segment} byte {torn.begin_byte}"
        )


def test_a_proper_end_is_opened_without_a_word(damageable: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), JournalWriter(damageable.folder) as writer:
        assert writer.end["0"] == len(damageable.events)
    assert caplog.messages == []
    assert damageable.segment.read_bytes() == damageable.content


def test_a_whole_frame_that_was_not_acknowledged_yet_is_kept(damageable: Any, caplog: pytest.LogCaptureFixture) -> None:
    damageable.put(damageable.content, damageable.mark_after(damageable.frames[1]))
    assert list(Journal(damageable.folder).events()) == damageable.events[:3]
    with JournalWriter(damageable.folder) as writer:
        assert writer.end["0"] == len(damageable.events)
    assert list(Journal(damageable.folder).events()) == damageable.events
    assert caplog.messages == []


@pytest.mark.parametrize(
    "garbage",
    [b"\x00", b"\x00" * 4096, b"FRAM", b"garbage" * 50, b"FRAM" + b"\xff" * 60, b"STATEJRN" * 9],
    ids=lambda garbage: f"{len(garbage)} bytes from {garbage[:4]!r}",
)
def test_garbage_behind_the_end_mark_is_cut_off(
    damageable: Any, caplog: pytest.LogCaptureFixture, garbage: bytes
) -> None:
    damageable.put(damageable.content + garbage, damageable.end)
    with JournalWriter(damageable.folder) as writer:
        writer.append([NEXT])
    assert list(Journal(damageable.folder).events()) == [*damageable.events, NEXT]
    assert caplog.messages[0].startswith(f"cut off {len(garbage)} bytes")


def test_a_damaged_frame_behind_the_end_mark_is_cut_off_with_what_follows_it(damageable: Any) -> None:
    at_byte = damageable.frames[2].end_byte - 1
    damageable.put(_flipped(damageable.content, at_byte), damageable.mark_after(damageable.frames[1]))
    with JournalWriter(damageable.folder) as writer:
        assert writer.end["0"] == damageable.frames[2].first_offset


@pytest.mark.parametrize("bits", [0x01, 0xFF])
def test_any_byte_flipped_in_an_acknowledged_frame_is_found_and_named(damageable: Any, bits: int) -> None:
    frame = damageable.frames[1]
    where = f"{damageable.segment}, byte {frame.begin_byte}"
    for at_byte in range(frame.begin_byte, frame.end_byte):
        damaged = _flipped(damageable.content, at_byte, bits)
        damageable.put(damaged, damageable.end)
        with pytest.raises(JournalCorrupt) as read:
            list(Journal(damageable.folder).events())
        assert read.value.where == where
        with pytest.raises(JournalCorrupt) as opened:
            JournalWriter(damageable.folder)
        assert opened.value.where == where
        assert damageable.segment.read_bytes() == damaged


def test_events_behind_a_damaged_frame_are_read_as_they_were_or_not_at_all(damageable: Any) -> None:
    frame, last = damageable.frames[1], damageable.frames[3]
    refused = 0
    for at_byte in range(frame.begin_byte, frame.end_byte):
        damageable.put(_flipped(damageable.content, at_byte), damageable.end)
        try:
            events = list(Journal(damageable.folder).events(Position.of({"0": last.first_offset})))
        except JournalCorrupt as error:
            assert str(damageable.segment) in str(error)
            refused += 1
        else:
            assert events == damageable.events[last.first_offset :]
    assert 0 < refused < frame.end_byte - frame.begin_byte


@pytest.mark.parametrize("bits", [0x01, 0xFF])
def test_any_byte_flipped_in_a_segments_header_is_found_and_named(damageable: Any, bits: int) -> None:
    for at_byte in range(damageable.frames[0].begin_byte):
        damageable.put(_flipped(damageable.content, at_byte, bits), damageable.end)
        for use in (lambda: list(Journal(damageable.folder).events()), lambda: JournalWriter(damageable.folder)):
            with pytest.raises(JournalCorrupt) as corrupt:
                use()
            assert corrupt.value.where == f"{damageable.segment}, byte 0"


def test_acknowledged_events_that_are_cut_off_at_any_byte_are_missed_and_counted(damageable: Any) -> None:
    for cut in range(damageable.frames[2].end_byte - 30, len(damageable.content)):
        whole = [frame for frame in damageable.frames if frame.end_byte <= cut][-1]
        damageable.put(damageable.content[:cut], damageable.end)
        with pytest.raises(JournalCorrupt) as opened:
            JournalWriter(damageable.folder)
        missing = len(damageable.events) - whole.next_offset
        assert f"{missing} acknowledged events are missing" in str(opened.value)
        assert opened.value.where == f"{damageable.segment}, byte {whole.end_byte}"
        with pytest.raises(JournalCorrupt) as read:
            list(Journal(damageable.folder).events())
        assert read.value.where == f"{damageable.segment}, byte {whole.end_byte}"
        assert damageable.segment.stat().st_size == cut


def test_events_before_a_cut_can_still_be_read(damageable: Any) -> None:
    damageable.put(damageable.content[:-1], damageable.end)
    stop = Position.of({"0": damageable.frames[-1].first_offset})
    assert list(Journal(damageable.folder).events(stop=stop)) == damageable.events[:-1]


@pytest.mark.parametrize("size", [0, 7, 19, 100])
def test_a_segment_cut_inside_its_header_is_damaged(damageable: Any, size: int) -> None:
    damageable.put(damageable.content[:size], damageable.end)
    for use in (lambda: list(Journal(damageable.folder).events()), lambda: JournalWriter(damageable.folder)):
        with pytest.raises(JournalCorrupt, match="header"):
            use()


def test_a_loss_can_be_accepted_by_deleting_the_end_mark(damageable: Any) -> None:
    damageable.put(damageable.content[:-1], damageable.end)
    with pytest.raises(JournalCorrupt, match="To accept the loss, delete the file end"):
        JournalWriter(damageable.folder)
    (damageable.folder / "end").unlink()
    with JournalWriter(damageable.folder) as writer:
        writer.append([NEXT])
    assert list(Journal(damageable.folder).events()) == [*damageable.events[:-1], NEXT]


def test_without_an_end_mark_a_damaged_frame_is_still_no_torn_one(damageable: Any) -> None:
    """A crash tears the end of the file; a wrong checksum in front of it is damage, and is not cut off."""
    damageable.put(_flipped(damageable.content, damageable.frames[1].end_byte - 1), None)
    with pytest.raises(JournalCorrupt, match="checksum"):
        JournalWriter(damageable.folder)


def test_an_end_mark_with_any_byte_flipped_or_missing_is_damaged(damageable: Any) -> None:
    damaged = [_flipped(damageable.end, at_byte) for at_byte in range(len(damageable.end))]
    for mark in [*damaged, b"", damageable.end[:-1], damageable.end + b"\x00"]:
        damageable.put(damageable.content, mark)
        for use in (Journal(damageable.folder).end, lambda: JournalWriter(damageable.folder)):
            with pytest.raises(JournalCorrupt, match="end mark is damaged") as corrupt:
                use()
            assert corrupt.value.where == str(damageable.folder / "end")


def test_a_damaged_end_mark_can_be_deleted_and_nothing_is_lost(damageable: Any) -> None:
    damageable.put(damageable.content, None)
    assert JournalWriter(damageable.folder).end["0"] == len(damageable.events)
    assert list(Journal(damageable.folder).events()) == damageable.events


def test_a_journal_whose_segments_are_all_gone_is_not_begun_anew(damageable: Any) -> None:
    damageable.segment.unlink()
    for _ in range(2):
        with pytest.raises(JournalCorrupt, match="7 acknowledged events are missing"):
            JournalWriter(damageable.folder)
    assert not damageable.segment.exists()


def test_a_journal_whose_last_segment_is_gone_is_not_continued(damageable: Any) -> None:
    with JournalWriter(damageable.folder, segment_bytes_max=1) as writer:
        writer.append([NEXT, NEXT])
    segment_path(damageable.folder, 7).unlink()
    with pytest.raises(JournalCorrupt, match="2 acknowledged events are missing"):
        JournalWriter(damageable.folder)


def _flipped(content: bytes, at_byte: int, bits: int = 0x10) -> bytes:
    return content[:at_byte] + bytes([content[at_byte] ^ bits]) + content[at_byte + 1 :]
