"""A process that leaves an application's folder in which Spark's retention has deleted the early batches.

    python retention_driver.py FOLDER SPARK_SETTINGS_AS_JSON VIEW…

It runs some batches, brings the replicas up to them, then runs many more without any replica following, and asks
Spark's own `statestore` reader for the rows of the last batch: FOLDER/oracle.json.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

import stateside
from stateside.core.layout import Layout
from stateside.core.storage import Storage
from stateside.journal import Event, FileLog
from stateside.pipeline.runner import Runner
from stateside.pipeline.session import start_session, stop_session
from stateside.pipeline.settings import RunSettings
from stateside.replica.tail import Tail
from stateside.spark_state.batch_log import Checkpoint
from stateside.testing import append

EARLY, LATE, PER_BATCH, KINDS = 12, 52, 4, 3
NAMES = [f"user-{number}" for number in range(9)] + ["\U0001f600" * 150]  # longer than LMDB's keys can be


def keeper() -> Any:
    """A sum, and a list of all amounts; made in a function, so that it goes to Spark's workers by value."""
    from pyspark.sql.streaming import StatefulProcessor

    class Keeper(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.amounts = handle.getListState("amounts", "amount long")
            self.total = handle.getValueState("total", "amount long")
            self.zeros = handle.getListState("zeros", "amount long")

        def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
            for row in rows:
                before = self.total.get() or (0,)
                self.total.update((before[0] + row.amount,))
                self.amounts.appendValue((row.amount,))
                self.zeros.appendValue((0,))
                if before[0] > 300:
                    self.total.clear()
            yield Row(user=key[0], amount=0)

        def close(self) -> None: ...

    return Keeper()


def application(views: list[str]) -> stateside.App:
    app = stateside.App("shop", fields="amount long")

    def spending(events: DataFrame) -> DataFrame:
        return events.groupBy("entity").agg(F.sum("amount").alias("total"))

    def visits(events: DataFrame) -> DataFrame:
        timed = events.withWatermark("time", "1 second")
        return timed.groupBy("entity", F.session_window("time", "1 second")).agg(F.sum("amount").alias("total"))

    def kinds(events: DataFrame) -> DataFrame:
        kind = (F.col("amount") % KINDS).alias("kind")
        return events.groupBy("entity", kind).agg(F.sum("amount").alias("total"), F.count("*").alias("orders"))

    def kept(events: DataFrame) -> DataFrame:
        named = events.select("entity", "amount")
        return named.groupBy("entity").transformWithState(keeper(), "user string, amount long", "Update", "none")

    declared: dict[str, Any] = {
        "spending": (spending, {"key": ["entity"]}),
        "visits": (visits, {"key": ["entity", "session_window"]}),
        "kinds": (kinds, {"key": ["entity", "kind"], "rollups": [["kind"], []]}),
        "kept": (kept, {"key": ["entity"], "state": "total"}),
    }
    for name in views:
        function, options = declared[name]
        app.view(**options)(function)
    return app


def run(app: stateside.App, layout: Layout, spark: SparkSession, numbers: range, settings: RunSettings) -> None:
    """Take in these events, a few a batch; each is 300 ms after the one before."""
    events = [
        Event(f"{number}", NAMES[number * 7 % len(NAMES)], "order", number * 300_000, {"amount": number})
        for number in numbers
    ]
    append(layout, events)
    stop_at = FileLog(layout.journal).end()
    limits: dict[str, Any] = {"events_per_batch_max": PER_BATCH, "restarts_max": 0, "stop_at": stop_at}
    with Runner(app, layout, RunSettings(**limits, batches_kept=settings.batches_kept), session=spark) as runner:
        runner.run_to_end()


def oracle(layout: Layout, spark: SparkSession, view: str) -> dict[str, Any]:
    """The last batch, and its rows as the served ones are: the key and the sum, sorted."""
    checkpoint = layout.view(view).checkpoint
    batch = Checkpoint(Storage.at(checkpoint)).commits()[-1]
    reader = spark.read.format("statestore").option("batchId", batch)
    if view == "kept":
        found = reader.option("stateVarName", "total").load(str(checkpoint))
        pairs = found.selectExpr("key.entity", "value.amount").collect()
    else:
        pairs = reader.load(str(checkpoint)).selectExpr("key.entity", "value.sum").collect()
    return {"batch": batch, "rows": sorted([name, amount] for name, amount in pairs)}


def main(folder: str, conf: str, *views: str) -> None:
    layout, app = Layout(Path(folder)), application(list(views))
    settings = RunSettings(batches_kept=2, spark=json.loads(conf))
    spark = start_session("retention", Path(folder) / "spark", conf=settings.spark_conf())
    try:
        run(app, layout, spark, range(EARLY), settings)
        for view in views:
            tail = Tail(layout.view(view))
            tail.step()
            tail.close()
        run(app, layout, spark, range(EARLY, EARLY + LATE), settings)
        (layout.root / "oracle.json").write_text(json.dumps({view: oracle(layout, spark, view) for view in views}))
    finally:
        stop_session(spark)


if __name__ == "__main__":
    main(*sys.argv[1:])
