"""The process that plays Spark's part in front of a sink, and is killed.

    python -m tests.pipeline.sinks.child MODULE SUITE

It imports the suite's module once, then forks a child for each life that it reads from its standard input (a line of
JSON, `harness.Life`), and answers with the child's exit status. The forks begin before any thread or file of the sink's
exists, so every life is a process like one started again. Only the nursery waits for its children, so it never kills a
stranger that has got a dead child's number.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pyarrow as pa

from stateside.core.errors import SinkAway
from stateside.core.layout import Layout
from stateside.core.storage import write_atomically
from stateside.pipeline.sinks.sink import BatchId, OnStep, Sink

from .harness import AFTER, BEFORE, VIEW, Life, SinkCase, World


def main(module: str, suite: str) -> None:
    """Fork children until the input ends."""
    case: SinkCase = getattr(import_module(module), suite).case
    for name in case.imports:
        import_module(name)
    pa.array([1])  # pyarrow imports pandas now, not in every life
    for line in sys.stdin:
        print(status_of(case, Life(**json.loads(line))), flush=True)


def status_of(case: SinkCase, life: Life) -> int:
    """Let one child live, and end it if the life says so."""
    assert threading.active_count() == 1, "a thread does not survive a fork: start it in the sink's factory"
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        live_and_exit(case, life, lambda: os.write(writing, b"open"))
    os.close(writing)
    if life.counted_from_open:
        os.read(reading, 1)
    os.close(reading)
    if life.kill_after_ms is not None:
        time.sleep(life.kill_after_ms / 1e3)
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def live_and_exit(case: SinkCase, life: Life, say_open: Callable[[], object]) -> None:
    """The child: it never returns."""
    status = 1
    try:
        live(case, life, say_open)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def live(case: SinkCase, life: Life, say_open: Callable[[], object]) -> None:
    """Plan, write, commit, batch by batch, beginning at the first that is not committed."""
    world = World(Layout(Path(life.root)), life.address)
    checkpoint = world.layout.view(VIEW).checkpoint
    reached = killer(life.kill_at_step)
    sink = case.open(world, life.guarantee, reached)
    query = world.query_id()
    say_open()
    for batch in range(first_uncommitted(checkpoint), life.until_batch):
        write_atomically(checkpoint / "offsets" / str(batch), b"", durable=False)
        rows = case.table(batch)
        if rows.num_rows:
            reached(BEFORE)
        write_when_there(sink, rows, BatchId(query, batch))
        if rows.num_rows:
            reached(AFTER)
        write_atomically(checkpoint / "commits" / str(batch), b"", durable=False)


def write_when_there(sink: Sink, rows: pa.Table, batch: BatchId) -> None:
    """Hold the batch while the sink is away, as the runner does."""
    while True:
        try:
            return sink.write(rows, batch)
        except SinkAway:
            time.sleep(0.01)


def killer(kill_at_step: int | None) -> OnStep:
    """A listener to steps that ends this process, the hard way, at one of them."""

    def reached(step: int) -> None:
        if step == kill_at_step:
            os.kill(os.getpid(), signal.SIGKILL)

    return reached


def first_uncommitted(checkpoint: Path) -> int:
    """Where a restart goes on."""
    commits = checkpoint / "commits"
    done = [int(path.name) for path in commits.iterdir() if path.name.isdecimal()] if commits.exists() else []
    return max(done, default=-1) + 1


if __name__ == "__main__":
    main(*sys.argv[1:])
