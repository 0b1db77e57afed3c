"""The heartbeat: read back as written, and silence where there is none."""

from pathlib import Path

import pytest

from stateside.core.positions import Position
from stateside.views.heartbeat import Heartbeat, State


def test_a_heartbeat_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    for heartbeat in (
        Heartbeat(1, Position.start(), "running"),
        Heartbeat(1_700_000_000_000_000, Position.of({"a-0": 7, "a-1": 2**60}), "stopped"),
    ):
        heartbeat.save(tmp_path / "heartbeat.json")
        assert Heartbeat.load(tmp_path / "heartbeat.json") == heartbeat


def test_without_a_heartbeat_there_is_silence(tmp_path: Path) -> None:
    assert Heartbeat.load(tmp_path / "heartbeat.json") is None
    assert Heartbeat.load(tmp_path / "no folder" / "heartbeat.json") is None


@pytest.mark.parametrize(
    ("state", "age_s", "seen"),
    [
        ("running", 1, "running"),
        ("idle", 1, "idle"),
        ("holding", 1, "holding"),
        ("running", 6, "down"),
        ("holding", 6, "down"),
        ("stopped", 10**6, "stopped"),
        ("failed", 10**6, "failed"),
    ],
)
def test_a_reader_tells_idle_from_down(state: State, age_s: int, seen: str) -> None:
    assert Heartbeat(0, None, state).state_at(age_s * 1_000_000) == seen


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"time_us": 1}', b'{"source_end": "?"}', b'{"of_later": 1}'])
def test_a_heartbeat_that_cannot_be_read_is_silence(tmp_path: Path, content: bytes) -> None:
    """It is not written durably: a loss of power may leave anything, and readers must go on."""
    (tmp_path / "heartbeat.json").write_bytes(content)
    assert Heartbeat.load(tmp_path / "heartbeat.json") is None
