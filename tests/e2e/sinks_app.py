"""An application whose every event goes to every kind of sink that needs no server but the test's own."""

from __future__ import annotations

import os

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import stateside
from stateside import sinks

app = stateside.App("sinks", fields="n long", source=stateside.sources.journal(types=["order"]))


def rows(events: DataFrame) -> DataFrame:
    return events.select("id", "n")


def answers(events: DataFrame) -> DataFrame:
    answer = F.concat(F.lit("answer-to-"), "id").alias("entity")
    return events.select(answer, F.lit("answered").alias("type"), "time", "n")


app.reaction(name="to_files", sink=sinks.files("out", format="jsonl"))(rows)
app.reaction(name="to_table", sink=sinks.delta("orders"))(rows)
app.reaction(name="to_keyed_table", sink=sinks.delta("keyed", key=["id"]))(rows)
app.reaction(name="to_endpoint", sink=sinks.http(os.environ["ENDPOINT"]))(rows)
app.reaction(name="to_journal", sink=sinks.journal())(answers)
