"""The rehearsal: what a standby does before it waits, so that a takeover is short and does not fail for its code.

1. Every view is planned as it would be run. One that cannot be run, or does not fit the state that is there, is told
   now, while the old leader still works.
2. A view of our own is run over a few events in a scratch folder: Spark then has loaded what a query needs (its
   planner, RocksDB, Python workers), which takes longer than everything else in a first batch.

Nothing is read from the application's sources, nothing goes to its sinks, and nothing in its folder is changed but the
scratch files.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pyarrow as pa

from stateside.journal import Event, JournalWriter
from stateside.layout import Layout
from stateside.pipeline.app import App
from stateside.pipeline.planning import Planner
from stateside.pipeline.runner import Runner
from stateside.pipeline.settings import RunSettings
from stateside.pipeline.sinks.sink import BatchId

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_EVENTS = 10


def rehearse(app: App, layout: Layout, settings: RunSettings, session: SparkSession) -> None:
    """Both steps; ViewInvalid if a view could not be run."""
    planner = Planner(app, layout, settings, layout.pause)
    for view in app.views.values():
        planner.check(view, session)
    with TemporaryDirectory(prefix="rehearsal-", dir=layout.spark) as folder:
        _run(Layout(Path(folder)), session)


def _run(layout: Layout, session: SparkSession) -> None:
    with JournalWriter(layout.journal) as journal:
        journal.append([Event(f"e{n}", f"entity-{n}", "rehearsed", 0, {"n": n}) for n in range(_EVENTS)])
    with Runner(_app(), layout, RunSettings(restarts_max=0), session=session) as runner:
        runner.run_to_end()


def _app() -> App:
    app = App("rehearsal", fields="n long")

    @app.view(key=["entity"], sink=lambda context: _Nowhere(), rows="changed")
    def rehearsal(events: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        return events.groupBy("entity").agg(F.sum("n").alias("total"), F.count("*").alias("events"))

    return app


class _Nowhere:
    """A sink that stores nothing."""

    def write(self, rows: pa.Table, batch: BatchId) -> None:
        """Take the rows, and leave it at that."""
