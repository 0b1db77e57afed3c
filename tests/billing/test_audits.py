"""Audits that are started over HTTP: whoever looks does not keep one from starting, and what goes wrong is told."""

from __future__ import annotations

import asyncio
import json
import os

import pytest

from stateside.billing.answers import api as module
from stateside.billing.answers.api import TEXT_CHARS_MAX, Audits
from stateside.core import processes, storage
from stateside.core.layout import Layout
from stateside.core.storage import try_lock


@pytest.fixture
def audits(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> Audits:
    """Of a folder in which every audit finds nothing, at once."""

    async def finds_nothing(command: object, seconds_max: float) -> tuple[int, str, str]:
        return 0, "events  1 = 1", ""

    monkeypatch.setattr(processes, "run", finds_nothing)
    layout.audit.mkdir(parents=True)
    return Audits(layout)


async def started(audits: Audits) -> dict[str, object]:
    """What is told once the audit has ended."""
    assert (await audits.start())["running"]
    await asyncio.gather(*audits._running)
    return audits.state()


@pytest.mark.parametrize("shared", [False, True])
def test_one_is_started_also_while_somebody_looks_whether_one_runs(
    audits: Audits, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    monkeypatch.setattr(module, "LOOK_S_MAX", 60.0)

    async def run() -> None:
        looking = try_lock(audits._lock, shared=shared)
        assert looking is not None
        starting = asyncio.ensure_future(audits.start())
        await asyncio.sleep(0.05)
        assert not starting.done()
        os.close(looking)
        await starting
        await asyncio.gather(*audits._running)
        assert audits.state()["last"]["ok"] is True

    asyncio.run(run())


def test_of_two_who_look_none_takes_the_other_for_an_audit(audits: Audits) -> None:
    looking = try_lock(audits._lock, shared=True)
    assert looking is not None
    assert audits.state() == {"running": False, "last": None}
    os.close(looking)


def test_while_one_runs_no_other_is_started(audits: Audits, layout: Layout) -> None:
    running = try_lock(audits._lock)
    assert running is not None
    assert asyncio.run(audits.start()) == {"running": True, "last": None}
    assert not audits._running
    os.close(running)


def test_one_that_cannot_be_run_or_written_down_is_told(
    audits: Audits, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_room(*given: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(storage, "write_atomically", no_room)
    found = asyncio.run(started(audits))
    assert found["running"] is False
    assert found["last"] is not None
    assert "No space left on device" in caplog.text
    monkeypatch.undo()
    monkeypatch.setattr(processes, "run", no_room)
    last = asyncio.run(started(audits))["last"]
    assert isinstance(last, dict)
    assert (last["ok"], last["text"]) == (None, "The audit cannot be run: No space left on device")
    assert json.loads(audits._last.read_bytes()) == last


def test_a_text_that_is_cut_says_so(audits: Audits, monkeypatch: pytest.MonkeyPatch) -> None:
    async def finds_much(command: object, seconds_max: float) -> tuple[int, str, str]:
        return 1, "x" * (TEXT_CHARS_MAX + 1_234), ""

    monkeypatch.setattr(processes, "run", finds_much)
    last = asyncio.run(started(audits))["last"]
    assert isinstance(last, dict)
    assert last["text"].endswith("x\n… and 1,234 characters more, which `stateside audit` prints")
