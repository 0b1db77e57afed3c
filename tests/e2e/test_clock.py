"""`stateside billing clock` as a process: killed with SIGKILL at random moments, every fee is in the journal once."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections import Counter

import numpy as np
import pytest

from stateside.billing.generator.rows import assignment_rows
from stateside.billing.plans.file import parse_plan, plan_event
from stateside.core.clock import ManualClock, SystemClock
from stateside.core.layout import Layout
from stateside.journal import FileLog, JournalWriter
from stateside.journal.columns import GIVEN
from tests.sizes import sized

pytestmark = pytest.mark.e2e

DAY_US = 86_400_000_000
DAYS, CUSTOMERS, KILLS = 60, 1_000, sized(short=2, full=8)
WAIT_S_MAX = 90.0
PLAN = b"""
    plan = "daily"
    version = 1
    effective = 1970-01-02
    currency = "EUR"
    time_zone = "Etc/UTC"
    cycle = "day"
    [fees.base]
    price = "0.50"
"""


@pytest.fixture
def begun_us(layout: Layout) -> int:
    """Two months ago a thousand customers were assigned to a plan with a fee for each day; nobody has had one yet."""
    begun_us = SystemClock().now_us() // DAY_US * DAY_US - DAYS * DAY_US
    with JournalWriter(layout.journal, clock=ManualClock(0)) as writer:
        writer.append([plan_event(parse_plan(PLAN, "test"), "plan", 0)])
        rows = assignment_rows(np.arange(CUSTOMERS), "daily", begun_us, begun_us).select(GIVEN.names)
        for batch in rows.combine_chunks().to_batches():
            writer.append_batch(batch)
    return begun_us


def fees(layout: Layout) -> Counter[str]:
    return Counter(event.id for event in FileLog(layout.journal).events() if event.type == "fee")


def started(command: list[str]) -> subprocess.Popen[str]:
    """A process that says that it runs: from then on it hears SIGTERM."""
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert "runs" in process.stderr.readline()
    return process


def test_killed_at_random_moments_it_appends_every_fee_once_and_stops_on_sigterm(layout: Layout, begun_us: int) -> None:
    chance = random.Random(4)
    command = [sys.executable, "-m", "stateside", "billing", "clock", "--dir", str(layout.root)]
    for _ in range(KILLS):
        process = started(command)
        time.sleep(chance.uniform(0.5, 4))
        process.kill()
        process.communicate()
    process = started(command)  # the processes before it may have appended all fees: it is not there because they are
    try:
        deadline = time.monotonic() + WAIT_S_MAX
        while sum(fees(layout).values()) < (DAYS + 1) * CUSTOMERS:
            assert time.monotonic() < deadline, "fees are missing"
            time.sleep(0.5)
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S_MAX) == 0
    finally:
        process.kill()
        process.communicate()
    found = fees(layout)
    assert set(found.values()) == {1}
    assert len(found) in ((DAYS + 1) * CUSTOMERS, (DAYS + 2) * CUSTOMERS)  # the day may have changed meanwhile
