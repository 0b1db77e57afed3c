"""Events to append, journals to damage, and Python processes that own a journal."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from stateside.journal import Event, FileLog, JournalWriter
from stateside.journal.backends.files.segment import DurableEnd, Frame, Segment, segment_path
from tests.sizes import FAST

MakeEvents = Callable[..., list[Event]]


@dataclass(frozen=True)
class Damageable:
    """A journal of one segment that was closed properly, with its bytes, to be put back in any damaged form."""

    folder: Path
    segment: Path
    content: bytes
    end: bytes
    frames: list[Frame]
    events: list[Event]

    @classmethod
    def of(cls, folder: Path) -> "Damageable":
        path = segment_path(folder, 0)
        opened = Segment(path)
        frames = list(opened.frames())
        opened.close()
        events = list(FileLog(folder).events())
        return cls(folder, path, path.read_bytes(), (folder / "end").read_bytes(), frames, events)

    def put(self, content: bytes, end: bytes | None) -> None:
        """Lay the segment and the end mark down with this content; None for no mark."""
        self.segment.write_bytes(content)
        (self.folder / "end").unlink(missing_ok=True)
        if end is not None:
            (self.folder / "end").write_bytes(end)

    def mark_after(self, frame: Frame) -> bytes:
        """The end mark as it stood when this frame was the last one acknowledged."""
        return DurableEnd(frame.next_offset, 0, frame.end_byte).pack()


def strangers(folder: Path, count: int) -> list[int]:
    """Files that have nothing to do with a journal, and get the first numbers that are free."""
    handles = []
    for number in range(count):
        (folder / f"stranger-{number}").write_bytes(b"V" * 100)
        handles.append(os.open(folder / f"stranger-{number}", os.O_RDWR))
    return handles


@pytest.fixture(scope="session")
def make_events() -> MakeEvents:
    """So many small events, numbered from a first one on."""

    def make(count: int, first: int = 0) -> list[Event]:
        return [
            Event(f"e{number}", f"entity-{number % 3}", "call", number, {"number": number}, ("tag",))
            for number in range(first, first + count)
        ]

    return make


@pytest.fixture
def damageable(tmp_path: Path, make_events: MakeEvents) -> Damageable:
    """Four appends of one to three events in one segment."""
    with JournalWriter(tmp_path / "journal") as writer:
        for count in (2, 1, 3, 1):
            writer.append(make_events(count, writer.end["0"]))
    return Damageable.of(tmp_path / "journal")


@pytest.fixture(scope="session")
def run_python() -> Callable[..., str]:
    """Run a script in another Python process to its end and return what it printed; not in `make test-fast`."""
    if FAST:
        pytest.skip("in `make test`: whole processes")

    def run(script: str, *arguments: object) -> str:
        command = [sys.executable, "-c", script, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run
