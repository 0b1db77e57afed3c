"""Sinks: where a query's rows go, each batch once.

`sink` has the contract and the guarantees; every other module is one kind of sink, with its protocol numbered in its
docstring.

    @app.reaction(sink=sinks.files("large_orders", format="jsonl"))

Each function here returns a factory for `sink=`; nothing is opened, and no heavy library imported, before a run.
"""

from stateside.pipeline.sinks.delta import delta
from stateside.pipeline.sinks.files import files
from stateside.pipeline.sinks.http import http
from stateside.pipeline.sinks.journal import journal
from stateside.pipeline.sinks.kafka import kafka

__all__ = ["delta", "files", "http", "journal", "kafka"]
