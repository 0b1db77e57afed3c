"""Frames of one segment, read by several threads while it grows."""

from __future__ import annotations

import threading
from array import array
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stateside.journal import Event, JournalWriter
from stateside.journal.backends.files import frames
from stateside.journal.backends.files.frames import Frames


def test_a_segment_grows_while_another_thread_copies_where_its_frames_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """numpy lets other threads run while it copies, and an array whose buffer is in use cannot grow."""
    (tmp_path / "journal").mkdir()
    with JournalWriter(tmp_path / "journal") as writer:
        writer.append([Event("a", "emma", "call", 0, {})])
        (path,) = (tmp_path / "journal").glob("*.seg*")
        opened = Frames(path)
        opened.extend(path.stat().st_size)
        writer.append([Event("b", "emma", "call", 0, {})])
    failures: list[BaseException] = []

    def extend() -> None:
        try:
            opened.extend(path.stat().st_size)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=extend)

    class Copying:
        def __getattr__(self, name: str) -> Any:
            return getattr(np, name)

        def array(self, content: Any, *rest: Any) -> Any:
            if isinstance(content, array) and thread.ident is None:
                with memoryview(content):
                    thread.start()
                    thread.join(0.5)  # it fails at once, or waits until the copy is made
            return np.array(content, *rest)

    monkeypatch.setattr(frames, "np", Copying())
    assert [batch.num_rows for _, batch in opened.batches(0, 1)] == [1]
    thread.join()
    assert failures == []
    assert [batch.num_rows for _, batch in opened.batches(0, 2)] == [2]
