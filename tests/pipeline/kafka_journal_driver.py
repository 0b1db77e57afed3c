"""A driver of its own, with the Kafka connector: `kafka_journal_driver.py ADDRESS TOPIC FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import stateside
from stateside.core.layout import Layout
from stateside.pipeline.runner import Runner
from stateside.pipeline.sources import kafka_journal


def application(address: str, topic: str) -> stateside.App:
    chosen: dict[str, Any] = {"fields": "amount long", "types": ["order", "it's"], "tags": ["web", "it's"]}
    app = stateside.App("shop", source=kafka_journal(address, topic, **chosen))

    @app.view(key=["entity", "_malformed"], source=kafka_journal(address, topic, **chosen, dead_letters=False))
    def spending(events: DataFrame) -> DataFrame:
        last = F.max("sequence").alias("last")
        return events.groupBy("entity", "_malformed").agg(F.sum("amount").alias("total"), F.count("*").alias("n"), last)

    @app.view(key=["entity"])
    def guarded(events: DataFrame) -> DataFrame:
        return events.groupBy("entity").agg(F.sum("amount").alias("total"), F.count("*").alias("n"))

    return app


if __name__ == "__main__":
    with Runner(application(*sys.argv[1:3]), Layout(Path(sys.argv[3]))) as runner:
        runner.run_to_end()
