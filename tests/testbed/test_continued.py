"""A demo that goes on in its folder waits for a batch of its own."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stateside.billing.generator import Generator, generate
from stateside.billing.generator.output import to_journal
from stateside.billing.model import clock_tick
from stateside.core.layout import Layout
from stateside.core.positions import Position
from stateside.core.processes import Child, free_port
from stateside.journal import FileLog
from stateside.testbed.system import covering_stamp, runs
from stateside.testing import append, run_to
from stateside.views.heartbeat import Heartbeat

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WAIT_S_MAX = 90.0


def covered_in_time(url: str, position: Position) -> bool:
    deadline = time.monotonic() + WAIT_S_MAX
    while time.monotonic() < deadline:
        if covering_stamp(url, position) is not None:
            return True
    return False


@pytest.mark.spark
def test_an_old_replica_does_not_pass_for_the_first_batch(spark: SparkSession, layout: Layout, tmp_path: Path) -> None:
    from stateside.billing.pipeline import app

    generate(Generator(seed=2, customers=3, events_per_period=4, periods=1), to_journal(layout.journal))
    old = FileLog(layout.journal).end()
    run_to(app, layout, spark)
    port = str(free_port())
    command = [sys.executable, "-m", "stateside", "serve", "--dir", str(layout.root), "--port", port]
    server = Child(command, tmp_path / "server.log")
    try:
        url = f"http://127.0.0.1:{port}"
        assert covered_in_time(url, old), server.tail()
        new = append(layout, [clock_tick(0, "one more")])
        assert covering_stamp(url, new) is None
        run_to(app, layout, spark)
        assert covered_in_time(url, new), server.tail()
    finally:
        server.stop()


def test_the_heartbeat_of_a_killed_run_is_no_sign_of_life() -> None:
    killed = Heartbeat(1, Position.parse("0:1"), "running")
    assert not runs(None, None)
    assert not runs(killed, killed)
    assert not runs(Heartbeat(2, Position.parse("0:1"), "stopped"), killed)
    assert runs(Heartbeat(2, Position.parse("0:1"), "running"), killed)
    assert runs(killed, None)
