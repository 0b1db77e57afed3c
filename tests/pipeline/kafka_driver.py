"""A driver of its own, for tests that need Spark with the Kafka connector: `kafka_driver.py ADDRESS TOPIC FOLDER`.

The session that all other tests share is started without the connector, so that they need no network.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import stateside
from stateside.core.layout import Layout
from stateside.pipeline.runner import Runner
from stateside.pipeline.sources import kafka


def application(address: str, topic: str) -> stateside.App:
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "3", "kafka.client.id": "env:CLIENT_ID"}
    fields = "customer string, amount long"
    app = stateside.App("shop", source=kafka(address, topic, fields=fields, options=options))

    @app.view(
        key=["customer", "_malformed"], source=kafka(address, topic, fields=fields, options=options, dead_letters=False)
    )
    def spending(messages: DataFrame) -> DataFrame:
        totals = (F.sum("amount").alias("total"), F.count("*").alias("messages"))
        return messages.groupBy("customer", "_malformed").agg(*totals)

    @app.view(key=["customer"])
    def guarded(messages: DataFrame) -> DataFrame:
        return messages.groupBy("customer").agg(F.sum("amount").alias("total"), F.count("*").alias("messages"))

    return app


def main(address: str, topic: str, folder: str) -> None:
    app = application(address, topic)
    with Runner(app, Layout(Path(folder))) as runner:  # which sees that Kafka is read, and fetches the connector
        runner.run_to_end()


if __name__ == "__main__":
    main(*sys.argv[1:])
