"""Appending: all or none, durable before it is acknowledged, whatever is killed or full. Turns: `test_turns`."""

import errno
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import pytest

from stateside.core.clock import ManualClock
from stateside.core.errors import EventRefused, JournalAway, OperatingError
from stateside.core.positions import Position
from stateside.journal import Event, FileLog, JournalWriter
from stateside.journal.backends.files import segment
from stateside.journal.backends.files.segment import DurableEnd, journal_id, segment_offsets
from stateside.journal.columns import decode, encode
from stateside.journal.writer import OneLog
from tests.journal.conftest import strangers
from tests.journal.receipts import offsets

MakeEvents = Callable[..., list[Event]]


def test_an_append_returns_the_position_just_after_its_events(tmp_path: Path, make_events: MakeEvents) -> None:
    with JournalWriter(tmp_path) as writer:
        assert writer.append(make_events(2)) == writer.end == Position.of({"0": 2})
        assert writer.append(make_events(3, first=2)) == writer.end == Position.of({"0": 5})


def test_an_append_of_nothing_writes_nothing(tmp_path: Path) -> None:
    with JournalWriter(tmp_path) as writer:
        size = next(tmp_path.glob("*.segment")).stat().st_size
        assert writer.append([]) == Position.start()
        assert next(tmp_path.glob("*.segment")).stat().st_size == size


def test_events_carry_the_time_of_the_writers_clock(tmp_path: Path, make_events: MakeEvents) -> None:
    clock = ManualClock(100)
    with JournalWriter(tmp_path, clock=clock) as writer:
        writer.append(make_events(1))
        clock.advance(50)
        writer.append(make_events(1, first=1))
    assert [event.appended_us for event in FileLog(tmp_path).events()] == [100, 150]


def test_a_record_batch_can_be_appended_as_it_is(tmp_path: Path, make_events: MakeEvents) -> None:
    batch = encode(make_events(3), appended_us=7).slice(1)
    with JournalWriter(tmp_path) as writer:
        writer.append_batch(batch)
    assert list(FileLog(tmp_path).events()) == list(decode(batch))


def test_a_bad_event_refuses_the_whole_append_and_nothing_is_stored(tmp_path: Path, make_events: MakeEvents) -> None:
    with JournalWriter(tmp_path) as writer:
        writer.append(make_events(1))
        size = next(tmp_path.glob("*.segment")).stat().st_size
        with pytest.raises(EventRefused, match="Event 1 of the batch"):
            writer.append([make_events(1, 1)[0], Event("", "e", "t", 0, {}), make_events(1, 2)[0]])
        assert next(tmp_path.glob("*.segment")).stat().st_size == size
        assert writer.append(make_events(1, first=1))["0"] == 2
    assert list(FileLog(tmp_path).events()) == make_events(2)


def test_an_append_larger_than_readers_take_is_refused(
    tmp_path: Path, make_events: MakeEvents, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment, "FRAME_BYTES_MAX", 2_000)
    with JournalWriter(tmp_path) as writer:
        with pytest.raises(EventRefused, match="append the events in smaller batches"):
            writer.append(make_events(100))
        writer.append(make_events(2))
    assert list(FileLog(tmp_path).events()) == make_events(2)


def test_segments_end_soon_after_their_limit(tmp_path: Path, make_events: MakeEvents) -> None:
    with JournalWriter(tmp_path, segment_bytes_max=4_000) as writer:
        for number in range(20):
            writer.append(make_events(1, number))
    sizes = [path.stat().st_size for path in sorted(tmp_path.glob("*.segment"))]
    assert len(sizes) > 2
    assert all(4_000 <= size < 5_000 for size in sizes[:-1])
    assert list(FileLog(tmp_path).events()) == make_events(20)


def test_a_crash_between_a_new_segment_and_its_first_frame_does_no_harm(
    tmp_path: Path, make_events: MakeEvents
) -> None:
    with JournalWriter(tmp_path) as writer:
        writer.append(make_events(2))
    segment.create(tmp_path, 2, encode([], 0).schema, journal_id(tmp_path) or uuid4())
    assert list(FileLog(tmp_path).events()) == make_events(2)
    with JournalWriter(tmp_path) as writer:
        writer.append(make_events(2, first=2))
    assert segment_offsets(tmp_path) == [0, 2]
    assert list(FileLog(tmp_path).events()) == make_events(4)


def test_a_failed_opening_gives_the_lock_back(tmp_path: Path, make_events: MakeEvents) -> None:
    with JournalWriter(tmp_path) as writer:
        writer.append(make_events(1))
    mark = (tmp_path / "end").read_bytes()
    (tmp_path / "end").write_bytes(b"damaged")
    with pytest.raises(Exception, match="damaged"):
        JournalWriter(tmp_path)
    (tmp_path / "end").write_bytes(mark)
    JournalWriter(tmp_path).close()


APPENDER = """
import sys, types
sys.modules["pandas"] = types.SimpleNamespace(__version__="0")  # the real one, which pyarrow imports, takes a second
from pathlib import Path
from stateside.journal import Event, JournalWriter
with JournalWriter(Path(sys.argv[1]), segment_bytes_max=3_000) as writer:
    while True:
        first = writer.end["0"]
        numbers = range(first, first + 1 + first % 4)
        print(writer.append([Event(f"e{n}", "emma", "call", n, {"n": n}) for n in numbers])["0"], flush=True)
"""


@pytest.mark.e2e
def test_a_writer_killed_in_mid_append_loses_no_acknowledged_event_and_doubles_none(tmp_path: Path) -> None:
    journal, acknowledged = FileLog(tmp_path), 0
    for round_ in range(3):
        command = [sys.executable, "-c", APPENDER, str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as appender:
            assert appender.stdout is not None
            first = int(appender.stdout.readline())
            assert first > acknowledged
            time.sleep(random.Random(round_).uniform(0.02, 0.08))
            seen = journal.end()["0"]
            appender.kill()
            receipts = [int(line) for line in appender.stdout if line.endswith("\n")]
        acknowledged = max([first, *receipts])
        assert journal.end()["0"] >= max(acknowledged, seen)
        ids = [event.id for event in journal.events()]
        assert ids == [f"e{number}" for number in range(len(ids))]
    with JournalWriter(tmp_path) as writer:
        assert writer.end["0"] >= acknowledged
    ids = [event.id for event in journal.events()]
    assert ids == [f"e{number}" for number in range(len(ids))]
    assert [event.sequence for event in journal.events()] == list(range(1, len(ids) + 1))
    assert len(segment_offsets(tmp_path)) > 2


FULL_DISK = """
import resource, sys, types
sys.modules["pandas"] = types.SimpleNamespace(__version__="0")  # the real one, which pyarrow imports, takes a second
from pathlib import Path
from stateside.core.errors import OperatingError
from stateside.journal import Event, FileLog, JournalWriter
from stateside.journal.writer import OneLog

folder = Path(sys.argv[1])
def events(first, count, size=10):
    return [Event(f"e{n}", "emma", "call", n, {"text": "x" * size}) for n in range(first, first + count)]
def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
def ids():
    return [event.id for event in FileLog(folder).events()]
def refused(action):
    try:
        action()
    except OperatingError as error:
        print(error)
    else:
        raise AssertionError("the disk was not full")

limit(100)                                                  # no room for a segment's header
refused(lambda: JournalWriter(folder))
limit(resource.RLIM_INFINITY)
writer = JournalWriter(folder, segment_bytes_max=8_000)
writer.append(events(0, 2))
(segment,) = folder.glob("*.segment")
size = segment.stat().st_size
limit(size + 700)                                           # room for a part of a frame
for _ in range(3):
    refused(lambda: writer.append(events(2, 5, size=1_000)))
    assert segment.stat().st_size == size and ids() == ["e0", "e1"] and writer.end["0"] == 2
limit(resource.RLIM_INFINITY)                               # room again
writer.append(events(2, 8, size=1_000))
limit(100)                                                  # the segment is full, and no room for the next one
refused(lambda: writer.append(events(10, 1)))
assert len(list(folder.glob("*.segment"))) == 1 and len(ids()) == 10
limit(resource.RLIM_INFINITY)
writer.append(events(10, 1))
assert len(list(folder.glob("*.segment"))) == 2
assert ids() == [f"e{n}" for n in range(11)]
writer.close()
assert JournalWriter(folder).end["0"] == 11
"""


@pytest.mark.e2e
def test_a_full_disk_is_told_stores_nothing_and_is_forgotten_when_there_is_room(
    tmp_path: Path, run_python: Callable[..., str]
) -> None:
    errors = run_python(FULL_DISK, tmp_path / "journal").splitlines()
    assert len(errors) == 5
    for error in errors:
        assert error.startswith(f"The journal cannot be written: {os.strerror(errno.EFBIG)} ({tmp_path}/journal)")
        assert "Nothing was stored" in error


def test_a_closed_writer_touches_no_file_any_more_and_may_be_closed_again(
    tmp_path: Path, make_events: MakeEvents
) -> None:
    writer = JournalWriter(tmp_path / "journal")
    writer.append(make_events(1))
    writer.close()
    others = strangers(tmp_path, 6)
    for append in (writer.append, writer.append_once):
        with pytest.raises(JournalAway, match="closed"):
            append(make_events(1, 1))
    with pytest.raises(JournalAway, match="closed"), writer._turns.take():
        pass
    writer.close()
    assert [os.fstat(handle).st_size for handle in others] == [100] * 6
    assert {os.pread(handle, 100, 0) for handle in others} == {b"V" * 100}
    for handle in others:
        os.close(handle)
    assert len(list(FileLog(tmp_path / "journal").events())) == 1


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OperatingError, match="The journal cannot be written: Not a directory"):
        JournalWriter(tmp_path / "file" / "journal")


def test_after_a_failed_sync_nothing_is_written_until_the_journal_is_opened_again(
    tmp_path: Path, make_events: MakeEvents, monkeypatch: pytest.MonkeyPatch
) -> None:
    with JournalWriter(tmp_path) as writer:
        writer.append(make_events(2))
        with monkeypatch.context() as broken:
            broken.setattr(os, "fdatasync", _fail)
            with pytest.raises(OperatingError, match="failed to sync: Input/output error"):
                writer.append(make_events(1, first=2))
        with pytest.raises(OperatingError, match="Open the journal again"):
            writer.append(make_events(1, first=2))
        assert list(FileLog(tmp_path).events()) == make_events(2)
    with JournalWriter(tmp_path) as writer:
        writer.append(make_events(1, first=writer.end["0"]))
    ids = [event.id for event in FileLog(tmp_path).events()]
    assert ids == [f"e{number}" for number in range(len(ids))]


def test_readers_see_events_only_after_they_were_synced(
    tmp_path: Path, make_events: MakeEvents, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = _ends_at_syncs(tmp_path, monkeypatch)
    with JournalWriter(tmp_path) as writer:
        writer.append(make_events(2))
        assert ends[-1] == 0
        writer.append(make_events(3, first=2))
        assert ends[-1] == 2
    assert FileLog(tmp_path).end()["0"] == 5


def test_a_frame_that_a_crash_left_unsynced_is_synced_before_readers_see_it(
    tmp_path: Path, make_events: MakeEvents, monkeypatch: pytest.MonkeyPatch
) -> None:
    with JournalWriter(tmp_path) as writer:
        writer.append(make_events(2))
        mark = (tmp_path / "end").read_bytes()
        writer.append(make_events(3, first=2))
    (tmp_path / "end").write_bytes(mark)
    ends = _ends_at_syncs(tmp_path, monkeypatch)
    JournalWriter(tmp_path).close()
    assert ends == [2]
    assert FileLog(tmp_path).end()["0"] == 5


def test_the_end_mark_is_synced_when_a_journal_is_opened_and_closed_and_when_a_segment_begins(
    tmp_path: Path, make_events: MakeEvents, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks = _durable_marks(tmp_path, monkeypatch)
    with JournalWriter(tmp_path, segment_bytes_max=3_000) as writer:
        assert [mark and mark.offset for mark in marks] == [0]
        for number in range(12):
            writer.append(make_events(1, number))
            assert marks[-1] and marks[-1].segment_offset == segment_offsets(tmp_path)[-1]
    assert len(segment_offsets(tmp_path)) > 2
    assert [mark and mark.offset for mark in marks] == [*segment_offsets(tmp_path), 12]


def test_the_end_mark_is_synced_before_a_new_segment_gets_its_first_frame(
    tmp_path: Path, make_events: MakeEvents, monkeypatch: pytest.MonkeyPatch
) -> None:
    with JournalWriter(tmp_path, segment_bytes_max=1) as writer:
        writer.append(make_events(2))
        marks = _durable_marks(tmp_path, monkeypatch)
        monkeypatch.setattr(segment, "pack_frame", _crash)
        with pytest.raises(KeyboardInterrupt):
            writer.append(make_events(1, first=2))
        size = (tmp_path / f"{2:020d}.segment").stat().st_size
        assert marks == [DurableEnd(2, 2, size)]


def test_a_mark_that_cannot_be_synced_at_the_close_is_told_and_the_journal_is_given_back(
    tmp_path: Path, make_events: MakeEvents, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as broken, JournalWriter(tmp_path) as writer:
        writer.append(make_events(2))
        broken.setattr(os, "fdatasync", _fail)
    assert caplog.messages == [f"the end mark in {tmp_path} was not synced: Input/output error"]
    with JournalWriter(tmp_path) as writer:
        assert writer.end["0"] == 2


def test_a_crash_while_a_new_journal_is_opened_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the first opening ends, readers see an empty journal and the next opening succeeds."""
    for name in ("fsync", "fdatasync", "pwrite"):
        with monkeypatch.context() as crashing:
            crashing.setattr(os, name, _crash)
            with pytest.raises(KeyboardInterrupt):
                JournalWriter(tmp_path / name)
        assert FileLog(tmp_path / name).end() == Position.start()
        with JournalWriter(tmp_path / name) as writer:
            assert writer.end == Position.start()


def _ends_at_syncs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Where readers saw the journal's end at each sync of a segment from now on."""
    ends: list[int] = []
    sync = os.fdatasync

    def note(handle: int) -> None:
        if not _is_mark(handle, folder):
            ends.append(FileLog(folder).end()["0"])
        sync(handle)

    monkeypatch.setattr(os, "fdatasync", note)
    return ends


def _durable_marks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[DurableEnd | None]:
    """The end mark at each of its syncs from now on; the last one is what a loss of power leaves at least."""
    marks: list[DurableEnd | None] = []
    sync = os.fdatasync

    def note(handle: int) -> None:
        if _is_mark(handle, folder):
            marks.append(DurableEnd.read(folder))
        sync(handle)

    monkeypatch.setattr(os, "fdatasync", note)
    return marks


def _is_mark(handle: int, folder: Path) -> bool:
    mark = folder / "end"
    return mark.exists() and os.path.samestat(os.fstat(handle), mark.stat())


def _fail(handle: int) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def _crash(*arguments: object) -> None:
    raise KeyboardInterrupt


def test_an_append_whose_mark_cannot_be_written_is_not_repeated_by_this_writer(tmp_path: Path) -> None:
    """It is stored but not acknowledged: a retry here would store it twice, so the writer takes nothing more."""
    writer = JournalWriter(tmp_path)
    os.close(writer._mark)
    for _ in range(2):
        with pytest.raises(OperatingError, match="Open the journal again"):
            writer.append([Event("1", "emma", "call", 0, {})])
    writer._mark = os.open(os.devnull, os.O_RDONLY)
    writer.close()
    with JournalWriter(tmp_path) as again:
        assert again.end == Position.of({"0": 1})


@pytest.mark.parametrize("crash_at", ["the frame", "its sync", "the mark", "the receipt"])
def test_a_producer_without_a_receipt_asks_what_is_stored_and_so_stores_every_event_once(
    tmp_path: Path, make_events: MakeEvents, monkeypatch: pytest.MonkeyPatch, crash_at: str
) -> None:
    with JournalWriter(tmp_path) as writer:
        receipt = writer.append(make_events(2))
        with monkeypatch.context() as crashing, pytest.raises(KeyboardInterrupt):
            _crash_at(crash_at, crashing)
            writer.append(make_events(3, first=2))
    with JournalWriter(tmp_path) as writer:
        stored = writer.end["0"] == 5
        assert stored == (crash_at != "the frame")
        again = FileLog(tmp_path).unstored(make_events(3, first=2), since=receipt)
        assert again == ([] if stored else make_events(3, first=2))
        for _ in range(2):
            assert writer.append_unstored(make_events(3, first=2), since=receipt)["0"] == 5
    assert list(FileLog(tmp_path).events()) == make_events(5)


def _crash_at(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the next append end where it would write the frame, sync it, move the mark or return the receipt."""
    if step == "the frame":
        monkeypatch.setattr(os, "pwrite", _crash)
    elif step == "its sync":
        monkeypatch.setattr(os, "fdatasync", _crash)
    elif step == "the mark":
        monkeypatch.setattr(DurableEnd, "pack", _crash)
    else:
        monkeypatch.setattr(OneLog, "appended", _crash)


def test_threads_may_share_a_writer(tmp_path: Path) -> None:
    with JournalWriter(tmp_path) as writer, ThreadPoolExecutor(8) as pool:
        receipts = list(pool.map(lambda n: writer.append([Event(f"{n}", "emma", "call", 0, {})]), range(80)))
    assert sorted(receipt["0"] for receipt in receipts) == list(range(1, 81))
    assert {event.id for event in FileLog(tmp_path).events()} == {f"{n}" for n in range(80)}


@pytest.mark.parametrize("append", [JournalWriter.append, JournalWriter.append_once])
def test_a_journal_that_is_taken_away_in_the_middle_of_a_turn_is_away_and_not_damaged(
    tmp_path: Path, make_events: MakeEvents, append: Callable[[JournalWriter, list[Event]], object]
) -> None:
    folder, away = tmp_path / "journal", tmp_path / "away"
    writer = JournalWriter(folder)
    with JournalWriter(folder) as other:
        other.append(make_events(2))
    settle = writer._settle

    def settle_and_lose() -> None:
        settle()
        folder.rename(away)

    writer._settle = settle_and_lose  # type: ignore[method-assign]
    with pytest.raises(JournalAway):
        append(writer, make_events(1, 2))
    assert not folder.exists()
    away.rename(folder)
    writer._settle = settle  # type: ignore[method-assign]
    append(writer, make_events(1, 2))
    writer.close()
    assert [event.id for event in FileLog(folder).events()] == [event.id for event in make_events(3)]


@pytest.mark.parametrize("left", ["nothing", "an empty folder", "another journal"])
def test_a_writer_whose_journal_is_away_makes_no_new_one_and_goes_on_when_it_is_back(
    tmp_path: Path, make_events: MakeEvents, left: str
) -> None:
    folder, away = tmp_path / "journal", tmp_path / "away"
    writer = JournalWriter(folder)
    writer.append_once(make_events(2))
    folder.rename(away)
    if left != "nothing":
        folder.mkdir()
    if left == "another journal":
        with JournalWriter(folder) as other:
            other.append(make_events(5, 50))
    for _ in range(2):
        with pytest.raises(JournalAway):
            writer.append_once(make_events(1, 2))
    with pytest.raises(JournalAway):
        JournalWriter(folder, known=journal_id(away))
    assert left != "nothing" or not folder.exists()
    assert list(folder.glob("*.segment")) == [] or left == "another journal"
    shutil.rmtree(folder, ignore_errors=True)
    away.rename(folder)
    assert offsets(writer.append_once(make_events(1, 2))) == [2]
    writer.close()
    with JournalWriter(folder, known=journal_id(folder)) as again:
        assert offsets(again.append_once(make_events(1, 3))) == [3]
    assert [event.id for event in FileLog(folder).events()] == [event.id for event in make_events(4)]
