"""A leader, Python and JVM, is paused at one step of a batch after the other, and wakes up when another one leads.

The steps are those of Spark's own protocol: it writes the plan (`offsets/N`), then the state, hands the rows to the
sink, and commits (`commits/N`). At the files the test pauses the processes as soon as it is told of them: a temporary
name, so mostly between Spark's look whether the file is there and the rename.
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from stateside import sinks
from stateside.core.layout import Layout
from stateside.core.storage import Storage
from stateside.journal import Event
from stateside.leadership import Candidate
from stateside.pipeline.runner import Runner
from stateside.spark_state.batch_log import Checkpoint
from stateside.testing import append, rows
from tests.e2e.paused_leader import AFTER_SINK, BATCH, BEFORE_SINK, LEASE_S, application
from tests.sizes import sized
from tests.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.timeout(600)]

PLANNING, PLANNED = f"offsets/.{BATCH}.", f"offsets/{BATCH}"
STORING = f"state/0/0/.{BATCH + 1}_"
COMMITTING, COMMITTED = f"commits/.{BATCH}.", f"commits/{BATCH}"
SHORT = (PLANNING, BEFORE_SINK, COMMITTING)
STEPS = sized(short=SHORT, full=(*SHORT, PLANNED, STORING, AFTER_SINK, COMMITTED))

_CREATED, _MOVED_TO = 0x100, 0x80


@dataclass
class OldLeader:
    """The process that is paused."""

    process: subprocess.Popen[str]
    pids: list[int]

    def begin(self, layout: Layout, step: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{layout.root} {step}\n")
        self.process.stdin.flush()

    def pause(self) -> None:
        self.send(signal.SIGSTOP)

    def wake(self) -> None:
        self.send(signal.SIGCONT)

    def send(self, signal_: signal.Signals) -> None:
        for pid in self.pids:
            os.kill(pid, signal_)

    def is_paused(self) -> bool:
        return all(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T" for pid in self.pids)

    def says(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


@pytest.fixture(scope="module")
def old() -> Iterator[OldLeader]:
    command = [sys.executable, "-m", "tests.e2e.paused_leader"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen(command, cwd=Path(__file__).parents[2], text=True, **pipes)  # type: ignore[call-overload]
    assert process.stdout is not None
    ready, *pids = process.stdout.readline().split()
    assert ready == "ready"
    leader = OldLeader(process, [int(pid) for pid in pids])
    yield leader
    leader.wake()
    process.stdin.close()
    process.wait(60)


@contextmanager
def told_of(folder: Path) -> Iterator[int]:
    """A descriptor that says at once which names appear in a folder."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = libc.inotify_init1(0)
    try:
        assert libc.inotify_add_watch(descriptor, os.fsencode(folder), _CREATED | _MOVED_TO) >= 0
        yield descriptor
    finally:
        os.close(descriptor)


def wait_for(descriptor: int, start: str) -> None:
    """Until a name that begins so appears."""
    while True:
        content, at = os.read(descriptor, 65_536), 0
        while at < len(content):
            (length,) = struct.unpack_from("12xI", content, at)
            if content[at + 16 : at + 16 + length].rstrip(b"\0").decode().startswith(start):
                return
            at += 16 + length


def orders(first: int, count: int) -> list[Event]:
    return [Event(f"o{n}", "emma", "order", 0, {"amount": 1}) for n in range(first, first + count)]


def run_as(name: str, layout: Layout, spark: SparkSession) -> None:
    leadership = Candidate(layout.root, name, lease_s=LEASE_S).wait(lambda: False)
    assert leadership is not None
    with Runner(application(sinks.delta("totals")), layout, session=spark, leadership=leadership) as runner:
        runner.run_to_end()


def pause_at(step: str, layout: Layout, old: OldLeader) -> None:
    """Have the next batch begun, and the leader paused in it."""
    folder, _, start = step.rpartition("/")
    if not folder:
        append(layout, orders(3, 4))
    else:
        with told_of(layout.view("total").checkpoint / folder) as descriptor:
            append(layout, orders(3, 4))
            wait_for(descriptor, start)
            old.pause()
    wait_until(old.is_paused)


def stored(layout: Layout) -> dict[str, bytes]:
    """All that counts of checkpoint and table: every file but those under temporary names."""
    folders = (layout.view("total").checkpoint, layout.table("totals"))
    files = (path for folder in folders for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(layout.root)): path.read_bytes() for path in files if not path.name.startswith(".")}


def ends(layout: Layout) -> list[int]:
    """The offsets at which the committed batches end."""
    checkpoint = Checkpoint(Storage.at(layout.view("total").checkpoint))
    return [int(str(checkpoint.plan(batch).position).rpartition(":")[2]) for batch in checkpoint.commits()]


@pytest.mark.parametrize("step", STEPS)
def test_a_leader_that_wakes_up_in_the_middle_of_a_batch_commits_nothing_and_stores_no_row(
    step: str, spark: SparkSession, layout: Layout, old: OldLeader
) -> None:
    append(layout, orders(0, 3))
    old.begin(layout, step)
    wait_until(lambda: (layout.view("total").checkpoint / "commits" / "0").exists())
    pause_at(step, layout, old)
    print("paused with", sorted(path.name for path in layout.view("total").checkpoint.glob("[oc]*/*")))
    append(layout, orders(7, 1))
    run_as("new", layout, spark)
    before = stored(layout)
    old.wake()
    assert old.says().startswith("LeadershipLost: This leader of epoch 1 was paused")
    assert stored(layout) == before
    append(layout, orders(8, 2))
    run_as("next", layout, spark)
    totals = DeltaTable(layout.table("totals")).to_pyarrow_table()["total"].to_pylist()
    assert sorted(totals) == ends(layout) and totals and max(totals) == 10, "each batch's row stands there once"
    assert rows(layout, "total")[0]["total"] == 10
