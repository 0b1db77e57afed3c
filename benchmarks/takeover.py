"""How long an application stands still when its leader is killed, paused, or hands over to new code.

Told is the time from the last commit of the old leader to the first one of the new, under a steady load of events, as
the files `commits/N` have it. All processes are on this machine. `STATESIDE_BENCH_LEASE_S` is the lease.
"""

from __future__ import annotations

import os
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from benchmarks.compare import Figure
from stateside.core.layout import Layout
from stateside.core.processes import Child
from stateside.core.storage import Storage
from stateside.journal import Event, JournalWriter
from stateside.leadership import standing
from stateside.spark_state.batch_log import Checkpoint

LEASE_S = float(os.environ.get("STATESIDE_BENCH_LEASE_S", "2"))
ROUNDS = 3
VIEW = "total"
STEADY_S = 3.0  # of batches before each change
WAIT_S_MAX = 180.0


def run(folder: Path) -> Iterator[Figure]:
    layout = Layout(folder / "shop")
    with Leaders(layout) as leaders:
        for name, change in CHANGES.items():
            spans = sorted(leaders.measure(change) for _ in range(ROUNDS))
            yield Figure(f"{name}, lease {LEASE_S:g} s: without a batch for, median", "s", statistics.median(spans))
            yield Figure(f"{name}, lease {LEASE_S:g} s: without a batch for, longest", "s", spans[-1])


class Leaders:
    """Drivers of one folder, of which the last one leads, and a producer."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.running: list[Child] = []
        self._count = 0
        self._ended = threading.Event()
        self._producer = threading.Thread(target=self._produce, daemon=True)

    def __enter__(self) -> Leaders:
        self._producer.start()
        self.start("--standby")
        self.until(lambda: len(self._commits_s()) > 5)
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._producer.join()
        for child in self.running:
            child.stop()

    def measure(self, change: Callable[[Leaders], None]) -> float:
        """Have another leader; the time from the last commit before its claim to the first one after."""
        before = self._epoch()
        change(self)
        self.until(lambda: self._epoch() > before)
        claim = self.layout.root / "lease" / "claims" / f"{self._epoch()}.json"
        claimed_s = claim.stat().st_mtime
        self.until(lambda: max(self._commits_s()) > claimed_s)
        commits_s = self._commits_s()
        last_s = max(each for each in commits_s if each <= claimed_s)
        time.sleep(STEADY_S)
        return min(each for each in commits_s if each > claimed_s) - last_s

    def start(self, *flags: str) -> Child:
        self._count += 1
        command = [sys.executable, "-m", "stateside", "run", "benchmarks.app:app", "--dir", str(self.layout.root)]
        command += ["--identity", f"n{self._count}", "--lease-s", str(LEASE_S), "--standby-scope", "machine", *flags]
        self.running.append(Child(command, self.layout.root / f"run-{self._count}.log"))
        return self.running[-1]

    def stand_by(self, *flags: str) -> None:
        """Have a standby that is ready."""
        self.start("--standby", *flags)
        self.until(lambda: bool((standing(self.layout.root, time.time_ns() // 1_000) or {}).get("standbys")))
        time.sleep(STEADY_S)

    def signal_leader(self, *signals: signal.Signals) -> None:
        for each in signals:
            for pid in self.layout.driver_lock.read_text().split():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), each)

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_S_MAX
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"It did not come about: {self.running[-1].tail()}")
            time.sleep(0.02)

    def _epoch(self) -> int:
        return int((standing(self.layout.root, 0) or {"epoch": 0})["epoch"])

    def _commits_s(self) -> list[float]:
        storage = Storage.at(self.layout.view(VIEW).checkpoint)
        return sorted(storage.modified_us(f"commits/{batch}") / 1e6 for batch in Checkpoint(storage).commits())

    def _produce(self) -> None:
        number = 0
        with JournalWriter(self.layout.journal) as writer:
            while not self._ended.wait(0.02):
                writer.append([Event(f"o{number}", f"e{number % 100}", "order", 0, {"amount": 1})])
                number += 1


def kill(leaders: Leaders) -> None:
    leaders.stand_by()
    leaders.signal_leader(signal.SIGKILL)


def kill_beside_a_cold_one(leaders: Leaders) -> None:
    leaders.stand_by("--cold")
    leaders.signal_leader(signal.SIGKILL)


def pause(leaders: Leaders) -> None:
    """For good: that it changes nothing when it wakes up is for tests to show."""
    leaders.stand_by()
    paused = leaders.layout.driver_lock.read_text().split()
    leaders.signal_leader(signal.SIGSTOP)
    leaders.until(lambda: leaders.layout.driver_lock.read_text().split() != paused)
    for pid in paused:
        os.kill(int(pid), signal.SIGKILL)


def hand_over(leaders: Leaders) -> None:
    leaders.start("--take-over")


CHANGES = {
    "leader killed": kill,
    "leader killed, standby cold": kill_beside_a_cold_one,
    "leader paused": pause,
    "leader hands over": hand_over,
}
