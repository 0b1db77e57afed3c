"""Whole drivers, Python and JVM, killed by SIGKILL at random moments under load: every sink has every row once.

`tests/pipeline/sinks/` kills each sink at every step without Spark, quickly; here Spark itself is in it. `make test`
kills once, `make test-full` thirty times.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from stateside.core.layout import Layout
from stateside.core.storage import Storage
from stateside.journal import Event, FileLog, JournalWriter
from stateside.spark_state.batch_log import Checkpoint
from stateside.views.heartbeat import Heartbeat
from tests.pipeline.sinks.endpoint import Store, endpoint
from tests.sizes import sized

KILLS = sized(short=1, full=30)
SEED = 11
START_S_MAX = 120
CATCH_UP_S_MAX = sized(short=120, full=900)  # with all that was produced during thirty starts

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.timeout(sized(short=400, full=3_600))]

VIEWS = ("to_files", "to_table", "to_keyed_table", "to_endpoint", "to_journal")


def test_killed_drivers_leave_every_row_once_in_every_sink(layout: Layout, tmp_path: Path) -> None:
    chance = random.Random(SEED)
    store = Store(tmp_path / "endpoint.jsonl")
    with endpoint(store) as url, producing(layout) as produced:
        for number in range(KILLS):
            driver = start(layout, url)
            try:
                wait_until_it_works(layout, driver)
                time.sleep(chance.uniform(0, 3))
            finally:
                kill(layout, driver, jvm_first=bool(number % 2))
        produced.stop()
        driver = start(layout, url)
        try:
            wait_until(lambda: all_caught_up(layout), driver, CATCH_UP_S_MAX)
        finally:
            driver.terminate()
            driver.wait(60)
    assert_every_row_once(layout, store, produced.ids)


class Produced:
    """A producer that goes on, beside the driver, which emits into the same journal."""

    def __init__(self, layout: Layout) -> None:
        self.ids: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._produce, args=(layout.journal,))

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _produce(self, journal: Path) -> None:
        with JournalWriter(journal) as writer:
            while not self._stop.wait(0.05):
                names = [f"o{len(self.ids) + n}" for n in range(5)]
                writer.append([Event(name, "emma", "order", 0, {"n": int(name[1:])}) for name in names])
                self.ids.extend(names)


@contextmanager
def producing(layout: Layout) -> Iterator[Produced]:
    produced = Produced(layout)
    produced.start()
    try:
        yield produced
    finally:
        produced.stop()


def start(layout: Layout, url: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "stateside", "run", "tests.e2e.sinks_app:app", "--dir", str(layout.root)]
    layout.root.mkdir(parents=True, exist_ok=True)
    with (layout.root / "run.log").open("ab") as log:
        return subprocess.Popen(
            command, cwd=Path(__file__).parents[2], env=os.environ | {"ENDPOINT": url}, stdout=log, stderr=log
        )


def kill(layout: Layout, driver: subprocess.Popen[bytes], *, jvm_first: bool) -> None:
    """End both of its processes, the hard way; the next driver waits until both have died.

    One that has not come so far as to have a JVM is ended alone.
    """
    jvm = jvm_of(layout, driver)
    for pid in [*jvm, driver.pid] if jvm_first else [driver.pid, *jvm]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    driver.wait(60)


def jvm_of(layout: Layout, driver: subprocess.Popen[bytes]) -> list[int]:
    """The JVM of this driver, and not of one before it, whose number may be another process's by now."""
    pids = layout.driver_lock.read_text().split() if layout.driver_lock.exists() else []
    return [int(pid) for pid in pids[1:] if pids[0] == str(driver.pid)]


def wait_until_it_works(layout: Layout, driver: subprocess.Popen[bytes]) -> None:
    """Until this driver, not the one before, beats and has a JVM to kill."""

    began_us = time.time_ns() // 1_000

    def works() -> bool:
        beats = [Heartbeat.load(layout.view(name).heartbeat) for name in VIEWS]
        pids = layout.driver_lock.read_text().split() if layout.driver_lock.exists() else []
        beaten = all(b is not None and b.batch is not None and b.time_us > began_us for b in beats)
        return len(pids) == 2 and pids[0] == str(driver.pid) and beaten

    wait_until(works, driver)


def all_caught_up(layout: Layout) -> bool:
    """Every view is idle, with a batch that this run has finished or found, and nothing waits in the journal."""
    end = FileLog(layout.journal).end()
    beats = [Heartbeat.load(layout.view(name).heartbeat) for name in VIEWS]
    now_us = time.time_ns() // 1_000
    return all(b is not None and b.state_at(now_us) == "idle" and b.source_end == end for b in beats) and quiet(layout)


def quiet(layout: Layout) -> bool:
    """Whether the last planned batch of every view is committed and has read all."""
    end = FileLog(layout.journal).end()
    for name in VIEWS:
        checkpoint = Checkpoint(Storage.at(layout.view(name).checkpoint))
        commits = checkpoint.commits()
        if not commits or not checkpoint.plan(commits[-1]).position.covers(end):
            return False
    return True


def wait_until(condition: Callable[[], bool], driver: subprocess.Popen[bytes], wait_s: float = START_S_MAX) -> None:
    deadline = time.monotonic() + wait_s
    while not condition():
        assert driver.poll() is None, "the driver ended by itself: see run.log"
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.1)


def assert_every_row_once(layout: Layout, store: Store, produced: Sequence[str]) -> None:
    """In every one of the five sinks."""
    once = dict.fromkeys(produced, 1)
    assert len(once) > 100, "there was something to lose"
    found = {
        "files": ids(json.loads(line) for f in layout.files("out").glob("*.jsonl") for line in f.open()),
        "table": ids(DeltaTable(layout.table("orders")).to_pyarrow_table().to_pylist()),
        "keyed table": ids(DeltaTable(layout.table("keyed")).to_pyarrow_table().to_pylist()),
        "endpoint": ids(store.rows()),
        "journal": Counter(
            e.entity.removeprefix("answer-to-") for e in FileLog(layout.journal).events() if e.type == "answered"
        ),
    }
    assert {name: difference(counts, once) for name, counts in found.items()} == dict.fromkeys(found, ([], []))


def ids(rows: Iterable[dict[str, Any]]) -> Counter[str]:
    return Counter(row["id"] for row in rows)


def difference(found: Counter[str], once: dict[str, int]) -> tuple[list[str], list[str]]:
    """What is lost, and what is doubled or strange."""
    lost = sorted(once.keys() - found.keys())
    return lost, sorted(name for name, count in found.items() if count != 1 or name not in once)
