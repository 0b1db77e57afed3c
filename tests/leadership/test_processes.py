"""Leaders as real processes: killed, paused and woken. What a signal can do, a test can."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stateside.leadership.application_lease import ApplicationLease, Claim
from tests.leadership.led import FENCED, LOST
from tests.sizes import not_in_fast
from tests.waiting import wait_until

pytestmark = not_in_fast("whole processes; the other tests of the election play them")

LEASE_S = 1.0
START_S_MAX = 30.0

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    processes: list[subprocess.Popen[str]] = []
    (tmp_path / "written").mkdir()

    def begin(name: str, *more: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.leadership.led", str(tmp_path), name, str(LEASE_S), *more]
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        return processes[-1]

    yield begin
    for process in processes:
        process.kill()
        process.communicate()


def says(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def written(root: Path) -> set[str]:
    return {path.name for path in (root / "written").glob("[0-9]*")}


def test_the_standby_of_a_leader_that_was_killed_leads_after_its_lease(tmp_path: Path, start: Start) -> None:
    leader = start("a")
    assert says(leader) == "leads 1"
    standby = start("b")
    wait_until((tmp_path / "lease" / "members" / "b.json").exists)
    leader.kill()
    began_s = time.monotonic()
    assert says(standby) == "leads 2"
    assert time.monotonic() - began_s > 0.5 * LEASE_S


def test_a_leader_that_was_paused_past_its_lease_writes_nothing_any_more(tmp_path: Path, start: Start) -> None:
    leader, standby = start("a"), None
    assert says(leader) == "leads 1"
    standby = start("b")
    wait_until(lambda: len(written(tmp_path)) > 2)
    leader.send_signal(signal.SIGSTOP)
    assert says(standby) == "leads 2"
    before = {name for name in written(tmp_path) if name.startswith("1-")}
    leader.send_signal(signal.SIGCONT)
    assert leader.wait(START_S_MAX) in (LOST, FENCED)
    assert {name for name in written(tmp_path) if name.startswith("1-")} == before
    wait_until(lambda: any(name.startswith("2-") for name in written(tmp_path)))
    assert standby.poll() is None


def test_a_leader_that_was_paused_between_its_check_and_its_write_is_stopped_by_its_gate(
    tmp_path: Path, start: Start
) -> None:
    leader = start("a", "stop")
    assert (says(leader), says(leader)) == ("leads 1", "stops")
    assert says(start("b")) == "leads 2"
    leader.send_signal(signal.SIGCONT)
    assert leader.wait(START_S_MAX) == FENCED
    assert {name for name in written(tmp_path) if name.startswith("1-")} == {"1-0", "1-1"}


def test_of_many_who_claim_an_epoch_at_the_same_time_one_gets_it(tmp_path: Path) -> None:
    """Fifty epochs, six threads that claim each of them: links are the operating system's, and it knows no threads."""
    from concurrent.futures import ThreadPoolExecutor
    from threading import Barrier

    ApplicationLease(tmp_path).make()
    together = Barrier(6)

    def claim(name: str) -> list[int]:
        won = []
        for epoch in range(1, 51):
            together.wait()
            if ApplicationLease(tmp_path).claim(Claim(epoch, name, name, "host", 1, 1.0, 0)):
                won.append(epoch)
        return won

    with ThreadPoolExecutor(6) as pool:
        won = [epoch for each in pool.map(claim, "abcdef") for epoch in each]
    assert sorted(won) == list(range(1, 51))
    assert not list((tmp_path / "lease" / "claims").glob(".*"))
