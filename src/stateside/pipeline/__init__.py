"""The PySpark edge: session, sources, views and their catalogue, runner, sinks.

The package itself imports nothing, so `java` and `jars` work where Spark is not installed yet.
"""

from typing import TYPE_CHECKING

from stateside.core.extras import lazy

if TYPE_CHECKING:
    from stateside.pipeline.app import App, Function
    from stateside.pipeline.journal_source import JournalSource, JournalStreamReader, OffsetRange
    from stateside.pipeline.kafka_source import spark_options
    from stateside.pipeline.sinks.sink import (
        BatchId,
        OnStep,
        Sink,
        SinkContext,
        SinkFactory,
        ignore_step,
        inside,
        keyed,
        sweeps_late,
    )
    from stateside.pipeline.sources import JournalEvents, Reading, Source, kafka_journal
else:
    __getattr__ = lazy(
        __name__,
        {
            "stateside.pipeline.app": ["App", "Function"],
            "stateside.pipeline.journal_source": ["JournalSource", "JournalStreamReader", "OffsetRange"],
            "stateside.pipeline.kafka_source": ["spark_options"],
            "stateside.pipeline.sinks.sink": [
                "BatchId",
                "OnStep",
                "Sink",
                "SinkContext",
                "SinkFactory",
                "ignore_step",
                "inside",
                "keyed",
                "sweeps_late",
            ],
            "stateside.pipeline.sources": ["JournalEvents", "Reading", "Source", "kafka_journal"],
        },
    )

__all__ = [
    "App",
    "BatchId",
    "Function",
    "JournalEvents",
    "JournalSource",
    "JournalStreamReader",
    "OffsetRange",
    "OnStep",
    "Reading",
    "Sink",
    "SinkContext",
    "SinkFactory",
    "Source",
    "ignore_step",
    "inside",
    "kafka_journal",
    "keyed",
    "spark_options",
    "sweeps_late",
]
