"""How durable an acknowledged append is: what is synced when, by the setting."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stateside.core.errors import JournalCorrupt, SettingInvalid
from stateside.journal import Event, FileLog, JournalWriter
from stateside.journal.backends.files.segment import segment_offsets, segment_path
from stateside.journal.index import Ids
from tests.journal.receipts import offsets

MakeEvents = Callable[..., list[Event]]


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are synced from now on."""
    names: list[str] = []
    sync = os.fdatasync

    def note(handle: int) -> None:
        names.append(Path(f"/proc/self/fd/{handle}").readlink().name)
        sync(handle)

    monkeypatch.setattr(os, "fdatasync", note)
    return names


def test_every_append_is_synced_by_default(tmp_path: Path, make_events: MakeEvents, synced: list[str]) -> None:
    with JournalWriter(tmp_path) as writer:
        synced.clear()
        for number in range(3):
            writer.append(make_events(1, number))
        assert synced == [segment_path(tmp_path, 0).name] * 3


def test_written_appends_are_synced_with_the_next_segment_and_at_the_close(
    tmp_path: Path, make_events: MakeEvents, synced: list[str]
) -> None:
    with JournalWriter(tmp_path, durability="written", segment_bytes_max=6_000) as writer:
        synced.clear()
        while len(segment_offsets(tmp_path)) < 2:
            assert synced == []
            writer.append(make_events(1, first=writer.end["0"]))
            assert FileLog(tmp_path).end() == writer.end
        first, second = (segment_path(tmp_path, offset).name for offset in segment_offsets(tmp_path))
        assert synced == [first, "end"]
        synced.clear()
    assert synced == [second, "end"]


KILLED = """
import os, sys
from pathlib import Path
from stateside.journal import Event, JournalWriter
writer = JournalWriter(Path(sys.argv[1]), durability="written")
for number in range(20):
    writer.append([Event(f"e{number}", "emma", "call", 0, {})])
print(writer.end["0"], flush=True)
os._exit(0)
"""


@pytest.mark.e2e
def test_what_was_written_survives_a_process_that_ends_without_a_word(
    tmp_path: Path, run_python: Callable[..., str]
) -> None:
    assert run_python(KILLED, tmp_path).strip() == "20"
    with JournalWriter(tmp_path) as writer:
        assert writer.end["0"] == 20
    assert [event.sequence for event in FileLog(tmp_path).events()] == list(range(1, 21))


def test_a_loss_of_power_after_written_appends_is_told_and_can_be_accepted(
    tmp_path: Path, make_events: MakeEvents
) -> None:
    with JournalWriter(tmp_path, durability="written") as writer:
        writer.append(make_events(2))
        size = segment_path(tmp_path, 0).stat().st_size
        writer.append_once(make_events(3, first=2))
        writer.append_to("emma", [Event("x", "emma", "t", 0, {})])
    os.truncate(segment_path(tmp_path, 0), size)
    with pytest.raises(JournalCorrupt, match="4 acknowledged events are missing"):
        JournalWriter(tmp_path)
    (tmp_path / "end").unlink()
    with JournalWriter(tmp_path) as writer:
        assert offsets(writer.append_once(make_events(3, first=2))) == [2, 3, 4]
    assert [event.sequence for event in FileLog(tmp_path).events()] == [1, 1, 1, 2, 2]


def test_an_index_that_knows_what_was_lost_is_not_believed(
    tmp_path: Path, make_events: MakeEvents, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the journal has grown again, beyond where the index ends, before anybody asks the index."""
    monkeypatch.setattr("stateside.journal.index.WRITTEN_AT_ONCE", 1)
    with JournalWriter(tmp_path, durability="written") as writer:
        writer.append(make_events(2))
        size = segment_path(tmp_path, 0).stat().st_size
        writer.append(make_events(3, first=2))
        assert offsets(writer.append_once(make_events(1, first=4))) == [4]  # now the index has all five
    os.truncate(segment_path(tmp_path, 0), size)
    (tmp_path / "end").unlink()
    with JournalWriter(tmp_path) as writer:
        writer.append(make_events(6, first=100))
        assert offsets(writer.append_once(make_events(1, first=4))) == [8]
    assert Ids(FileLog(tmp_path)).offsets(["e4"], FileLog(tmp_path).durable_end()) == [8]


def test_a_failed_sync_of_a_full_segment_breaks_the_writer(
    tmp_path: Path, make_events: MakeEvents, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(handle: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with JournalWriter(tmp_path, durability="written", segment_bytes_max=1) as writer:
        writer.append(make_events(1))
        with monkeypatch.context() as broken:
            broken.setattr(os, "fdatasync", fail)
            for _ in range(2):
                with pytest.raises(Exception, match="failed to sync"):
                    writer.append(make_events(1, first=1))
    assert list(FileLog(tmp_path).events()) == make_events(1)


def test_another_setting_is_refused(tmp_path: Path) -> None:
    setting: Any = "hoped for"
    with pytest.raises(SettingInvalid, match="durability is 'hoped for'"):
        JournalWriter(tmp_path, durability=setting)
    assert list(tmp_path.iterdir()) == []
