"""A supervised part: started again when it was killed, given up when that is no use."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stateside.core.errors import PipelineFailed
from stateside.core.processes import free_port
from stateside.testbed.component import RESTARTS_MAX, Supervised
from tests.poisoned import poisoned

pytestmark = pytest.mark.e2e

WAIT_S_MAX = 90.0


@pytest.fixture
def parts() -> Iterator[list[Supervised]]:
    started: list[Supervised] = []
    yield started
    for part in started:
        part.stop()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S_MAX
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def ended(part: Supervised) -> bool:
    return part.child.returncode() is not None


@pytest.mark.parametrize(("arguments", "module"), [(["--version"], "stateside"), ([], "stateside.testbed.producer")])
def test_a_part_imports_nothing_from_the_current_folder(
    tmp_path: Path, parts: list[Supervised], monkeypatch: pytest.MonkeyPatch, arguments: list[str], module: str
) -> None:
    monkeypatch.chdir(poisoned(tmp_path / "here"))
    part = Supervised("part", arguments, tmp_path / "log", module=module)
    parts.append(part)
    wait_for(lambda: ended(part))
    assert "current folder" not in part.child.tail()


def test_a_part_that_cannot_run_is_given_up_at_once_with_its_own_sentence(
    tmp_path: Path, parts: list[Supervised]
) -> None:
    part = Supervised("pipeline", ["run", "no_such_module:app", "--dir", str(tmp_path)], tmp_path / "log")
    parts.append(part)
    wait_for(lambda: ended(part))
    with pytest.raises(PipelineFailed) as failure:
        part.supervise()
    assert failure.value.what.startswith("The pipeline cannot run: There is no application 'no_such_module:app'")
    assert failure.value.where == str(tmp_path / "log")
    assert part.restarts == 0


def test_a_part_that_was_killed_is_started_again(tmp_path: Path, parts: list[Supervised]) -> None:
    arguments = ["serve", "--dir", str(tmp_path), "--port", str(free_port())]
    part = Supervised("server", arguments, tmp_path / "log")
    parts.append(part)
    first = part.child.pid
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: ended(part))
    part.supervise()
    assert part.restarts == 1
    assert part.child.pid != first
    assert part.child.returncode() is None


def test_a_part_that_lasted_may_be_started_again_any_number_of_times(
    tmp_path: Path, parts: list[Supervised], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stateside.testbed.component.LASTED_S", 0.0)
    part = Supervised("server", ["serve", "--dir", str(tmp_path), "--port", str(free_port())], tmp_path / "log")
    parts.append(part)
    for _ in range(RESTARTS_MAX + 2):
        os.kill(part.child.pid, signal.SIGKILL)
        wait_for(lambda: ended(part))
        part.supervise()
    assert part.restarts == RESTARTS_MAX + 2


def test_a_part_that_ends_again_and_again_is_given_up_with_its_last_words(
    tmp_path: Path, parts: list[Supervised], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stateside.testbed.component.LASTED_S", 2 * WAIT_S_MAX)  # however slow the machine is
    part = Supervised("client", ["get", "bill/c0", "--url", "http://127.0.0.1:9"], tmp_path / "log")
    parts.append(part)
    with pytest.raises(PipelineFailed, match="The client ended 6 times, last with 1:\nError: "):
        for _ in range(RESTARTS_MAX + 1):
            wait_for(lambda: ended(part))
            part.supervise()
