"""A stage for the pages: billing over three months, Spark's part played in Python, and a real server on it.

The job reads a real journal, writes a checkpoint as Spark does, fills the real tables, and has a heartbeat. It can be
killed, and be there again. `python -m tests.pages.stage FOLDER PORT` runs it, to look at.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Final
from zoneinfo import ZoneInfo

import httpx

from stateside.billing.calendar import Cycle
from stateside.billing.model import DAY_US, HOUR_US, assignment, usage
from stateside.billing.plans.file import plan_event
from stateside.core.clock import ManualClock
from stateside.core.layout import Layout
from stateside.core.processes import Child, free_port
from stateside.journal import Event, FileLog, JournalWriter
from stateside.views.heartbeat import Heartbeat
from tests.billing.written_bills import WrittenBills, plan
from tests.serving.conftest import wait_until_it_answers

PLAN: Final = """
plan = "basic"
version = 1
effective = 2026-01-01
currency = "EUR"
time_zone = "Europe/Berlin"
cycle = "month"
rounding = "half-even"
prices.call = { included = 6000, price = "0.09", per = 60 }
prices.message = { tiers = [{ up_to = 100, price = "0.10" }, { price = "0.05" }] }
prices.data = { price = "0.000003", per = 1000 }
prices.package.weekend = { price = "4.99" }
fees.base = { price = "9.99" }
"""
CYCLE: Final = Cycle("month", "Europe/Berlin")
NOW_US: Final = int(datetime(2026, 4, 18, 14, 30, tzinfo=ZoneInfo("Europe/Berlin")).timestamp()) * 1_000_000
APRIL: Final = CYCLE.containing(NOW_US)
MARCH: Final = CYCLE.containing(APRIL.start_us - 1)
FEBRUARY: Final = CYCLE.containing(MARCH.start_us - 1)
JANUARY: Final = CYCLE.containing(FEBRUARY.start_us - 1)
MONTHS: Final = (JANUARY, FEBRUARY, MARCH, APRIL)
LONG: Final = "Donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeamtengesellschaft"
RICH: Final = "magnate"  # more than ten million
BEAT_S: Final = 0.2


class Stage:
    """A billing folder, and the job that works in it."""

    def __init__(self, layout: Layout, customers: int = 24, *, rich: bool = True) -> None:
        self.layout, self.clock = layout, ManualClock(JANUARY.start_us - 20 * DAY_US)
        self.bills = WrittenBills.begin(layout)
        self.names = ["emma", "ben", LONG, *([RICH] if rich else []), *(f"c{number:03}" for number in range(customers))]
        self._random = random.Random(7)
        self._ids = 0
        self._job: threading.Thread | None = None
        self._ends = threading.Event()
        self._lock = threading.Lock()

    def open(self) -> None:
        """Plans and assignments, if there are customers, and no usage."""
        now_us = self.clock.now_us()
        self.append(plan_event(plan(PLAN), "p-1", now_us))
        if self.names:
            self.append(*(assignment(f"a-{name}", name, "basic", JANUARY.start_us, now_us) for name in self.names))
        self.batch()

    def play(self) -> None:
        """The months: January and February sealed, February with notes, March in its grace time, April open."""
        self.open()
        for month in MONTHS:
            self._use(month.start_us, min(month.end_us, NOW_US))
            if month in (FEBRUARY, MARCH):  # the month before is closed now
                before = MONTHS[MONTHS.index(month) - 1]
                self.batch(before.end_us)
            if month is MARCH:
                self.late_calls(FEBRUARY.end_us - DAY_US)
            self.batch()
        self.use("ben", "message", 1)
        self.append(Event("odd-1", "stranger", "call", NOW_US - DAY_US, {"quantity": 60}))
        self.append(Event("odd-2", "emma", "call", NOW_US - DAY_US, {"quantity": -5}))
        self.append(Event("odd-3", "ben", "fax", NOW_US - DAY_US, {"quantity": 1}))
        self.append(Event("odd-4", "stranger", "data", NOW_US - DAY_US, {"quantity": 1000}))
        self.batch()

    def late_calls(self, time_us: int) -> None:
        """Calls of a period that may be closed."""
        self.append(*(usage(self._id(), name, "call", time_us, 7200) for name in self.names[:3]))

    def use(self, customer: str, type_: str, amount: int, time_us: int = NOW_US, **named: str) -> None:
        """One event, now."""
        self.append(usage(self._id(), customer, type_, time_us, amount, **named))

    def append(self, *events: Event) -> None:
        with self._lock, JournalWriter(self.layout.journal, clock=self.clock) as writer:
            writer.append(events)

    def batch(self, *close: int) -> None:
        """One batch, as Spark would run it, and what it reports of it."""
        began_s, first = time.monotonic(), self.bills.position
        self.bills.play(close)
        self._report(time.monotonic() - began_s, self.bills.position - first)

    def begin(self) -> None:
        """The job runs: a batch whenever there is something to do, and a heartbeat."""
        self._ends.clear()
        self._job = threading.Thread(target=self._run, daemon=True)
        self._job.start()

    def kill(self) -> None:
        """The job is gone, without a word."""
        if self._job is not None:
            self._ends.set()
            self._job.join()
            self._job = None

    def _run(self) -> None:
        while not self._ends.wait(BEAT_S):
            end = FileLog(self.layout.journal).end()
            if end["0"] > self.bills.position:
                self.batch()
            beat = Heartbeat(time.time_ns() // 1_000, end, "idle", self.bills.batch_number - 1)
            beat.save(self.layout.view("bill").heartbeat)

    def _use(self, start_us: int, stop_us: int) -> None:
        """Usage of all customers from one time to another, a batch a week."""
        made = sorted(self._made(start_us, stop_us), key=lambda event: event.time_us)
        week_us = 7 * DAY_US
        for begin_us in range(start_us, stop_us, week_us):
            self.clock.time_us = max(self.clock.time_us, begin_us + week_us)
            week = [event for event in made if begin_us <= event.time_us < begin_us + week_us]
            if week:
                self.append(*week)
                self.batch()

    def _made(self, start_us: int, stop_us: int) -> Iterator[Event]:
        for name in self.names:
            yield usage(self._id(), name, "fee", start_us + HOUR_US, 1, name="base")
            for _ in range(130 if name == "emma" else self._random.randrange(2, 14)):
                yield self._some(name, self._random.randrange(start_us, stop_us))
            for number in range(340 if name == RICH and stop_us == NOW_US else 0):
                yield usage(self._id(), name, "data", start_us + number * HOUR_US, 10**13)
        yield usage(self._id(), "emma", "package", start_us + 5 * DAY_US, 1, name="weekend")
        yield usage(self._id(), "emma", "credit", start_us + 6 * DAY_US, 2_500_000)

    def _some(self, name: str, time_us: int) -> Event:
        type_ = self._random.choices(("call", "message", "data"), (5, 4, 3))[0]
        most = {"call": 900, "message": 4, "data": 400_000_000}[type_]
        return usage(self._id(), name, type_, time_us, 1 + self._random.randrange(most))

    def _id(self) -> str:
        self._ids += 1
        return f"e-{self._ids:06}"

    def _report(self, seconds: float, rows: int) -> None:
        took_ms = max(1, int(seconds * 1_000))
        operators = [_operator("stateStoreSave", len(self.bills.rows)), _operator("dedupe", len(self.bills.seen))]
        progress = {
            "timestamp": datetime.now(ZoneInfo("UTC")).isoformat().replace("+00:00", "Z"),
            "batchId": self.bills.batch_number - 1,
            "numInputRows": rows,
            "processedRowsPerSecond": rows / max(seconds, 0.001),
            "durationMs": {"addBatch": took_ms, "triggerExecution": took_ms + 40, "walCommit": 15, "commitOffsets": 15},
            "eventTime": {"watermark": "2026-04-01T00:00:00.000Z"},
            "stateOperators": operators,
        }
        with self.layout.view("bill").progress.open("a") as file:
            file.write(json.dumps(progress) + "\n")


def _operator(name: str, rows: int) -> dict[str, object]:
    return {"operatorName": name, "numRowsTotal": rows, "numRowsUpdated": 0, "memoryUsedBytes": rows * 90}


@contextmanager
def serving(folder: Path, *options: str, port: int | None = None, path: str = "/healthz") -> Iterator[str]:
    """A real server on a folder; its address."""
    port = port or free_port()
    command: Sequence[str] = [sys.executable, "-m", "stateside", "serve", "--port", str(port), *options]
    child = Child([*command, "--dir", str(folder)], folder.parent / f"server-{port}.log")
    try:
        url = f"http://127.0.0.1:{port}"
        wait_until_it_answers(url + path, child)
        yield url
    finally:
        child.stop()


def main(folder: Path, port: int) -> None:
    stage = Stage(Layout(folder))
    stage.play()
    stage.begin()
    with serving(folder, port=port) as url:
        print(httpx.get(f"{url}/v1/views").text, url, flush=True)
        while True:
            time.sleep(2)
            stage.use("emma", "call", random.randrange(1, 300))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
