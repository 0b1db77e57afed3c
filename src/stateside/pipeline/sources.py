"""Sources: what a view reads. The journal is the default; Kafka, files, or any streaming DataFrame work alike.

    @app.view(key=["item"], source=sources.journal(types=["impression"]))
    @app.view(key=["item"], source=sources.kafka("localhost:9092", "impressions", fields="item string"))
    @app.view(key=["item"], source=sources.files("incoming", fields="item string, at timestamp"))
    @app.view(key=["value"], source=sources.stream(lambda spark: spark.readStream.format("rate").load()))

A source is a value; Spark is first touched when `load` is called with a session.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from stateside.errors import ViewInvalid
from stateside.positions import Position

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

JOURNAL_FORMAT = "stateside-journal"
_FILE_FORMATS = ("json", "csv", "parquet", "orc", "text")


@dataclass(frozen=True, slots=True)
class Reading:
    """How a run reads its sources: where the journal is, with which payload fields, how much a batch, up to where."""

    journal: Path
    fields: str = ""
    events_per_batch_max: int = 1_000_000
    stop_at: Position | None = None
    pause_file: Path | None = None


class Source(Protocol):
    """What a view reads."""

    def load(self, session: SparkSession, reading: Reading) -> DataFrame:
        """The streaming DataFrame."""


@dataclass(frozen=True, slots=True)
class JournalEvents:
    """Events of the application's journal: all, or those of some types, or with any of some tags."""

    types: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()

    def load(self, session: SparkSession, reading: Reading) -> DataFrame:
        """The events with their envelope's columns, then the payload's fields."""
        options = {
            "path": reading.journal,
            "eventsPerBatchMax": reading.events_per_batch_max,
            "fields": reading.fields,
            "stopAt": reading.stop_at,
            "pauseFile": reading.pause_file,
            "types": json.dumps(self.types) if self.types else None,
            "tags": json.dumps(self.tags) if self.tags else None,
        }
        given = {name: str(value) for name, value in options.items() if value not in (None, "")}
        return session.readStream.format(JOURNAL_FORMAT).options(**given).load()


@dataclass(frozen=True, slots=True)
class KafkaTopic:
    """Messages of Kafka topics, whose values are JSON objects with these fields."""

    servers: str
    topic: str
    fields: str
    options: Mapping[str, str] = field(default_factory=dict)

    def load(self, session: SparkSession, reading: Reading) -> DataFrame:
        """Columns: topic, partition, offset, timestamp, key and value as text, then the value's fields."""
        reader = (
            session.readStream.format("kafka")
            .option("kafka.bootstrap.servers", self.servers)
            .option("subscribe", self.topic)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", str(reading.events_per_batch_max))
            .options(**self.options)
        )
        text = ("cast(key as string) as key", "cast(value as string) as value")
        messages = reader.load().selectExpr("topic", "partition", "offset", "timestamp", *text)
        fields = self.fields.replace("\\", "\\\\").replace("'", "\\'")
        parsed = messages.selectExpr("*", f"from_json(value, '{fields}') as _fields")
        return parsed.select("*", "_fields.*").drop("_fields")


@dataclass(frozen=True, slots=True)
class Files:
    """Files that appear in a folder, each read once."""

    path: str
    fields: str
    format: str = "json"
    files_per_batch_max: int = 1_000
    options: Mapping[str, str] = field(default_factory=dict)

    def load(self, session: SparkSession, reading: Reading) -> DataFrame:
        """The files' rows with these fields."""
        reader = session.readStream.format(self.format).schema(self.fields)
        reader = reader.option("maxFilesPerTrigger", str(self.files_per_batch_max)).options(**self.options)
        return reader.load(self.path)


@dataclass(frozen=True, slots=True)
class Stream:
    """Any streaming DataFrame, made by the user's own function."""

    make: Callable[[SparkSession], DataFrame]

    def load(self, session: SparkSession, reading: Reading) -> DataFrame:
        """What the function makes."""
        return self.make(session)


def journal(types: Sequence[str] = (), tags: Sequence[str] = ()) -> Source:
    """The application's journal: all its events, or those of these types, or with any of these tags."""
    return JournalEvents(tuple(types), tuple(tags))


def kafka(servers: str, topic: str, *, fields: str, options: Mapping[str, str] | None = None) -> Source:
    """A Kafka topic with JSON messages, from its earliest one on. `fields` is DDL; `options` are Spark's own."""
    return KafkaTopic(servers, topic, fields, dict(options or {}))


def files(
    path: str | Path,
    *,
    fields: str,
    format: str = "json",
    files_per_batch_max: int = 1_000,
    options: Mapping[str, str] | None = None,
) -> Source:
    """A folder in which files appear: written elsewhere and renamed into it, whole. `fields` is DDL."""
    if format not in _FILE_FORMATS:
        raise ViewInvalid(f"Files of the format {format!r} cannot be read", next_step=f"Use {', '.join(_FILE_FORMATS)}")
    return Files(str(path), fields, format, files_per_batch_max, dict(options or {}))


def stream(make: Callable[[SparkSession], DataFrame]) -> Source:
    """Any streaming DataFrame that a function makes from the session."""
    return Stream(make)
