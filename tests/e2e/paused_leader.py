"""A process that leads one folder after the other on one Spark session, to be paused there: see `test_paused_leader`.

It says `ready PID JVM`, then takes lines `FOLDER STEP` from its input. It leads the folder and runs the application
until that ends, and says why in a line. At the steps `before the sink` and `after the sink` of batch 1 it stops itself
and its JVM (SIGSTOP); at others the test does, which sees the files that Spark writes.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import stateside
from stateside import sinks
from stateside.core.errors import StatesideError
from stateside.core.layout import Layout
from stateside.leadership import Candidate
from stateside.pipeline.runner import Runner
from stateside.pipeline.session import jvm_pid, start_session, stop_session
from stateside.pipeline.settings import RunSettings
from stateside.pipeline.sinks.sink import BatchId, Sink, SinkFactory

LEASE_S = 1.0
BATCH = 1  # the one that it is paused in
BEFORE_SINK, AFTER_SINK = "before the sink", "after the sink"


def application(sink: SinkFactory) -> stateside.App:
    """Each event adds 1, so that a batch's row in the table is the offset at which it ends."""
    app = stateside.App("paused", fields="amount long")

    @app.view(key=["entity"], sink=sink, rows="changed")
    def total(events: DataFrame) -> DataFrame:
        return events.groupBy("entity").agg(F.sum("amount").alias("total"))

    return app


class Pausing:
    """A sink around another one, which pauses its whole driver in the middle of a batch."""

    def __init__(self, inner: Sink, step: str, pids: tuple[int, ...]) -> None:
        self._inner, self._step, self._pids = inner, step, pids

    def write(self, rows: pa.Table, batch: BatchId) -> None:
        self._reach(BEFORE_SINK, batch)
        self._inner.write(rows, batch)
        self._reach(AFTER_SINK, batch)

    def _reach(self, step: str, batch: BatchId) -> None:
        if (step, BATCH) == (self._step, batch.batch):
            for pid in self._pids:
                os.kill(pid, signal.SIGSTOP)


def lead(layout: Layout, step: str) -> None:
    leadership = Candidate(layout.root, "old", lease_s=LEASE_S).wait(lambda: False)
    assert leadership is not None
    pids = (jvm_pid(session) or 0, os.getpid())
    app = application(lambda context: Pausing(sinks.delta("totals")(context), step, pids))
    with Runner(app, layout, RunSettings(restarts_max=0), session=session, leadership=leadership) as runner:
        runner.wait(lambda: False)


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        session = start_session("old", Path(folder))
        print("ready", os.getpid(), jvm_pid(session), flush=True)
        try:
            for line in sys.stdin:
                root, _, step = line.strip().partition(" ")
                try:
                    lead(Layout(Path(root)), step)
                except StatesideError as error:
                    print(f"{type(error).__name__}: {error}", flush=True)
        finally:
            stop_session(session)
