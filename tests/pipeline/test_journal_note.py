"""The note of the journal that a view has read: written by the runner's heartbeats, until one succeeds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import stateside
from stateside.core.layout import Layout
from stateside.pipeline import runner as runner_module
from stateside.pipeline.runner import Runner
from tests.written import WORDS, Written

ID = "5b1c0f0e-7d0c-4a58-9c53-3e5ce0e9c1aa"


def test_a_note_that_a_full_disk_refused_is_written_by_a_later_heartbeat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = Layout(tmp_path).view("words")
    Written(view.checkpoint, WORDS).batch([], source=json.dumps({"journal": ID, "0": 1}))
    runner = Runner(stateside.App("words"), Layout(tmp_path))

    def full(*given: object, **named: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched, pytest.raises(OSError, match="No space"):
        patched.setattr(runner_module, "write_atomically", full)
        runner._note_journal(view)
    assert view.journal_read() is None
    runner._note_journal(view)
    assert view.journal_read() == ID
