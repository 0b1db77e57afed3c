"""Standbys as whole processes, Python and JVM: the leader is paused past its lease and woken.

The standby's JVM is killed while it waits, and in the end one leader hands over to the next.

`tests/leadership/` has every step of the election, and pauses at each, without Spark; here Spark and all kinds of sinks
are in it, under load.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from stateside.core.layout import Layout
from stateside.leadership import standing
from stateside.views.heartbeat import Heartbeat
from tests.e2e.test_sinks_killed import (
    CATCH_UP_S_MAX,
    START_S_MAX,
    VIEWS,
    all_caught_up,
    assert_every_row_once,
    producing,
    wait_until,
    wait_until_it_works,
)
from tests.pipeline.sinks.endpoint import Store, endpoint
from tests.sizes import in_full

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.timeout(600)]

LEASE_S = 4.0


class Drivers:
    """Processes of `stateside run`, each with a name and a log of its own."""

    def __init__(self, layout: Layout, url: str) -> None:
        self.layout, self.url = layout, url
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.paused: list[int] = []

    def start(self, name: str, *flags: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "stateside", "run", "tests.e2e.sinks_app:app", "--dir", str(self.layout.root)]
        command += ["--identity", name, "--lease-s", str(LEASE_S), "--standby-scope", "machine", *flags]
        self.layout.root.mkdir(parents=True, exist_ok=True)
        with self.log(name).open("ab") as log:
            environment = os.environ | {"ENDPOINT": self.url}
            root = Path(__file__).parents[2]
            self.running[name] = subprocess.Popen(command, cwd=root, env=environment, stdout=log, stderr=log)
        return self.running[name]

    def pause(self) -> None:
        """The driver that started last, with its JVM."""
        self.paused = processes(self.layout)
        self._signal_paused(signal.SIGSTOP)

    def resume(self) -> None:
        """What was paused goes on. A JVM that was left so would stay for ever."""
        self._signal_paused(signal.SIGCONT)
        self.paused = []

    def _signal_paused(self, number: signal.Signals) -> None:
        for pid in self.paused:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def log(self, name: str) -> Path:
        return self.layout.root / f"run-{name}.log"

    def told(self, name: str) -> str:
        return self.log(name).read_text()


@contextmanager
def drivers(layout: Layout, url: str) -> Iterator[Drivers]:
    started = Drivers(layout, url)
    try:
        yield started
    finally:
        started.resume()
        for process in started.running.values():
            process.terminate()
        for process in started.running.values():
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
        for name in started.running:
            print(f"--- {name}\n{started.told(name)}")


def processes(layout: Layout) -> list[int]:
    """The driver that started last: its Python process and its JVM."""
    return [int(pid) for pid in layout.driver_lock.read_text().split()]


def kill_spark_of(driver: subprocess.Popen[bytes]) -> None:
    (jvm,) = Path(f"/proc/{driver.pid}/task/{driver.pid}/children").read_text().split()
    os.kill(int(jvm), signal.SIGKILL)


def identities(layout: Layout) -> tuple[str | None, list[str]]:
    told = standing(layout.root, 0)
    if told is None:
        return None, []
    return (told["leader"] or {}).get("identity"), [each["identity"] for each in told["standbys"]]


def hand_over(started: Drivers, b: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
    c = started.start("c", "--take-over")
    wait_until(lambda: "c leads from epoch 3 on" in started.told("c"), c)
    wait_until_it_works(started.layout, c)
    assert b.wait(START_S_MAX) == 0
    assert "b has handed over to c" in started.told("b")
    return c


@in_full(
    "test_paused_leader wakes a leader at three steps, test_sinks_killed has every sink, test_leaders the hand-over"
)
def test_a_leader_paused_past_its_lease_and_a_hand_over_leave_every_row_once_in_every_sink(
    layout: Layout, tmp_path: Path
) -> None:
    store = Store(tmp_path / "endpoint.jsonl")
    with endpoint(store) as url, producing(layout) as produced, drivers(layout, url) as started:
        a = started.start("a", "--standby")
        wait_until_it_works(layout, a)
        b = started.start("b", "--standby")
        wait_until(lambda: identities(layout) == ("a", ["b"]), b)
        kill_spark_of(b)
        wait_until(lambda: identities(layout) == ("a", []), b)
        wait_until(lambda: identities(layout) == ("a", ["b"]), b)
        assert "Spark has ended while this run stood by" in started.told("b")
        started.pause()
        began_s = time.monotonic()
        wait_until_it_works(layout, b)
        print(f"taken over after {time.monotonic() - began_s:.1f} s, with a lease of {LEASE_S} s")
        started.resume()
        assert a.wait(START_S_MAX) == 1
        assert "Error: This leader of epoch 1 was paused" in started.told("a")
        assert "b (process" in started.told("a")

        last = hand_over(started, b)
        produced.stop()
        wait_until(lambda: all_caught_up(layout), last, CATCH_UP_S_MAX)
        last.terminate()
        assert last.wait(60) == 0
        assert all("Traceback" not in started.told(name) for name in started.running)
    assert identities(layout) == (None, [])
    beats = [Heartbeat.load(layout.view(name).heartbeat) for name in VIEWS]
    assert {beat.state for beat in beats if beat is not None} == {"stopped"}
    assert_every_row_once(layout, store, produced.ids)
