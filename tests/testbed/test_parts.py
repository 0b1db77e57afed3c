"""Parts: processes with all that they started, ended without anything left."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from stateside.core.errors import SetupError
from stateside.testbed.component import Component, members, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")]

# As a worker with an executor and its Python worker: a child, and a grandchild in a process group of its own.
FAMILY = """
import os, subprocess, sys, time
inner = "import os, time; os.setpgid(0, 0); print('up', flush=True); time.sleep(60)"
subprocess.Popen([sys.executable, "-c", inner])
time.sleep(60)
"""


def part(tmp_path: Path, script: str) -> Component:
    return Component("family", [sys.executable, "-c", script], tmp_path / "family.log", os.environ)


def await_that(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_part_is_ended_with_all_that_it_started(tmp_path: Path, end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stateside.testbed.component.MEMBERS_S_MAX", 0.3)
    family = part(tmp_path, FAMILY)
    family.start()
    await_that(lambda: "up" in family.log.read_text())
    assert len(members(family.pid)) == 2
    getattr(family, end)()
    assert not family.runs()
    await_that(lambda: not members(family.pid))
    family.start()  # it may be started again
    assert family.runs()
    family.kill()


def test_processes_of_others_are_no_members(tmp_path: Path) -> None:
    family = part(tmp_path, "import time; time.sleep(60)")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stranger:
        family.start()
        assert members(family.pid) == [family.pid]
        assert stranger.pid not in members(family.pid)
        family.stop()
        stranger.communicate(b"\n")


def test_a_part_has_the_environment_that_it_was_given(tmp_path: Path) -> None:
    script = "import os; print(os.environ['WHO'])"
    lone = Component("lone", [sys.executable, "-c", script], tmp_path / "log", os.environ | {"WHO": "emma"})
    lone.start()
    await_that(lambda: not lone.runs())
    assert lone.last_words() == "emma"


def test_a_part_that_ends_while_something_is_waited_for_is_told_with_its_last_words(tmp_path: Path) -> None:
    script = "print('No port left.'); raise SystemExit(1)"
    lone = part(tmp_path, script)
    lone.start()
    with pytest.raises(SetupError, match=r"A leader did not come about: family has ended.*No port left\.") as refusal:
        wait_until("A leader", lambda: False, [lone], 60)
    assert refusal.value.where == str(lone.log)


def test_what_does_not_come_about_is_waited_for_only_so_long(tmp_path: Path) -> None:
    lone = part(tmp_path, "import time; time.sleep(60)")
    lone.start()
    with pytest.raises(SetupError, match="that took longer than 0 s"):
        wait_until("A leader", lambda: False, [lone], 0.2)
    lone.kill()
