"""An upgrade: new code takes over from old between two batches, while a client reads and a producer appends."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from stateside.core.layout import Layout
from stateside.core.processes import EXIT_FINAL, Child, free_port
from stateside.inspection.batch_reports import read_progress
from stateside.journal import Event, JournalWriter
from stateside.leadership import standing
from stateside.pipeline.session import JVM_STOP_S_MAX
from tests.docs.commands import command
from tests.serving.conftest import wait_until_it_answers
from tests.sizes import FULL, in_full
from tests.waiting import WAIT_S_MAX, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.timeout(600)]

CODE = """
import stateside
from pyspark.sql import functions as F

app = stateside.App("shop", fields="amount long")

@app.view(key=["entity"]{more})
def total(events):
    return events.groupBy("entity").agg(F.{fold}("amount").alias("total"))
"""
STOP_S_MAX = 10.0  # the setting's default: for the batch that is running
QUERY_STOP_S_MAX = 2.0  # for each query after that; the application has one
ROOM_S = 60.0  # for the rest of a whole process's end, on a busy machine


class Reading:
    """A client that asks again and again, each time once: an answer that fails is a failure."""

    def __init__(self, url: str) -> None:
        self.totals: list[int] = []
        self.failed: list[str] = []
        self.longest_s = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read, args=(f"{url}/v1/views/total/rows/emma",))

    def __enter__(self) -> Reading:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def _read(self, url: str) -> None:
        with httpx.Client(timeout=WAIT_S_MAX) as client:
            while not self._ended.wait(0.02):
                began_s = time.monotonic()
                try:
                    answer = client.get(url).raise_for_status().json()
                    self.totals.append(answer["rows"][0]["total"])
                except (httpx.HTTPError, LookupError) as error:
                    self.failed.append(f"{type(error).__name__}: {error}")
                self.longest_s = max(self.longest_s, time.monotonic() - began_s)


@contextmanager
def producing(layout: Layout) -> Iterator[list[Event]]:
    ended, events = threading.Event(), list[Event]()

    def produce() -> None:
        with JournalWriter(layout.journal) as writer:
            while not ended.wait(0.02):
                events.append(Event(f"o{len(events)}", "emma", "order", 0, {"amount": 1}))
                writer.append(events[-1:])

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield events
    finally:
        ended.set()
        thread.join()


@contextmanager
def serving(layout: Layout, log: Path) -> Iterator[str]:
    port = free_port()
    child = Child([sys.executable, "-m", "stateside", "serve", "--dir", str(layout.root), "--port", str(port)], log)
    try:
        wait_until_it_answers(f"http://127.0.0.1:{port}/v1/views/total/rows/emma", child)
        yield f"http://127.0.0.1:{port}"
    finally:
        child.stop()


class Drivers:
    """Runs of different code on one folder, each from a module of its own."""

    def __init__(self, layout: Layout, code: Path) -> None:
        self._layout, self._code = layout, code
        self._running: list[subprocess.Popen[str]] = []

    def start(self, name: str, flag: str, fold: str = "sum", more: str = "") -> subprocess.Popen[str]:
        """Run new code with the command that docs/standby.md has with this flag."""
        (self._code / f"{name}.py").write_text(CODE.format(fold=fold, more=more))
        shown = command("standby.md", flag, dir=self._layout.root)
        shown[shown.index("shop:app")] = f"{name}:app"
        more_flags = ["--identity", name, "--lease-s", "4", "--standby-scope", "machine"]
        started = [sys.executable, "-m", "stateside", *shown, *more_flags]
        self._running.append(subprocess.Popen(started, cwd=self._code, stderr=subprocess.PIPE, text=True))
        return self._running[-1]

    def stop(self) -> None:
        for process in self._running:
            process.kill()
            process.communicate()

    def leader(self) -> str | None:
        told = (standing(self._layout.root, 0) or {}).get("leader")
        return told and told["identity"]


@pytest.fixture
def drivers(layout: Layout, tmp_path: Path) -> Iterator[Drivers]:
    (tmp_path / "code").mkdir()
    made = Drivers(layout, tmp_path / "code")
    yield made
    made.stop()


def finished(layout: Layout) -> list[int]:
    return [report["batchId"] for report in read_progress(layout.view("total").progress)]


@in_full("test_change hands over to other code")
def test_new_code_takes_over_without_a_failed_read(layout: Layout, tmp_path: Path, drivers: Drivers) -> None:
    with producing(layout) as events:
        old = drivers.start("old", "--standby")
        wait_until(lambda: len(finished(layout)) > 1)
        with serving(layout, tmp_path / "serve.log") as url, Reading(url) as reading:
            if FULL:  # the rehearsal's own test shows it in short runs
                wrong = drivers.start("wrong", "--take-over", fold="max")
                assert "is not the one that its state was built with" in wrong.communicate(timeout=120)[1]
                assert (wrong.returncode, drivers.leader()) == (EXIT_FINAL, "old"), "it did not even ask"

            new = drivers.start("new", "--take-over", more=", rollups=[[]]")
            assert "old has handed over to new" in old.communicate(timeout=120)[1]
            assert (old.returncode, drivers.leader()) == (0, "new")
            handed_over = len(finished(layout))
            wait_until(lambda: len(finished(layout)) > handed_over + 2)
            wait_until(lambda: httpx.get(f"{url}/v1/views/total/rollup").status_code == 200)

            new.send_signal(signal.SIGTERM)
            new.communicate(timeout=STOP_S_MAX + QUERY_STOP_S_MAX + JVM_STOP_S_MAX + ROOM_S)
    assert (new.returncode, drivers.leader()) == (0, None)
    assert finished(layout) == list(range(len(finished(layout)))), "no batch was given up, and none done twice"
    assert reading.failed == [] and len(reading.totals) > 50
    assert reading.totals == sorted(reading.totals) and reading.totals[-1] <= len(events)
    print(f"{len(reading.totals)} reads, the longest {reading.longest_s:.2f} s")
