"""Sources: the input of a view. The journal is the default; Kafka, files and any streaming DataFrame work alike.

    @app.view(key=["item"], source=sources.journal(types=["impression"]))
    @app.view(key=["item"], source=sources.kafka("localhost:9092", "impressions", fields="item string"))
    @app.view(key=["item"], source=sources.kafka_journal("localhost:9092", "events", fields="item string"))
    @app.view(key=["item"], source=sources.files("incoming", fields="item string, at timestamp"))
    @app.view(key=["value"], source=sources.stream(lambda spark: spark.readStream.format("rate").load()))

A source is a value; only `load`, called with a session, touches Spark.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol

from stateside.core.errors import ViewInvalid
from stateside.core.layout import ViewLayout
from stateside.core.positions import Position
from stateside.core.secrets import with_secrets
from stateside.journal.topic_note import check_not_read
from stateside.pipeline import jars

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from stateside.pipeline.dead_letters import Validator

JOURNAL_FORMAT = "stateside-journal"
EVENTS_PER_BATCH_MAX = 1_000_000
_FILE_FORMATS = ("json", "csv", "parquet", "orc", "text")


@dataclass(frozen=True, slots=True)
class Reading:
    """How a run reads a view's source: journal, payload fields, limits, and the treatment of refused events."""

    journal: Path
    fields: str = ""
    events_per_batch_max: int = EVENTS_PER_BATCH_MAX
    stop_at: Position | None = None
    part: tuple[Position, Position] | None = None  # read only this part again, as a batch
    pause_file: Path | None = None
    pause_ms: int = 0  # between the commit of a batch and the plan of the next
    barrier_file: Path | None = None  # a position at which a batch ends (`views.savepoint`)
    limit_file: Path | None = None  # the events of the next batch (`progress.Pace`)
    refused: Path | None = None  # folder of refused events (`dead_letters`); None: each event is a row
    future_us_max: int | None = None  # events dated further beyond their append time are refused
    times: tuple[str, ...] = ()  # fields under the same limit (`watermarks`)
    places: ViewLayout | None = None  # of the generation that reads


class Source(Protocol):
    """The input of a view."""

    @property
    def needs_jars(self) -> tuple[str, ...]:
        """The groups of `jars.lock` that Spark must be started with."""

    def load(self, session: SparkSession, reading: Reading) -> DataFrame: ...


@dataclass(frozen=True, slots=True)
class JournalEvents:
    """Events of the application's journal: all, or with some types, or with any of some tags."""

    types: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    columns: tuple[str, ...] = field(default=(), repr=False, kw_only=True)  # do not change which events are read
    start: str | None = field(default=None, repr=False, kw_only=True)  # of a new query
    dead_letters: bool = field(default=True, repr=False, kw_only=True)

    needs_jars: ClassVar[tuple[str, ...]] = ()

    def load(self, session: SparkSession, reading: Reading) -> DataFrame:
        """The events with their envelope's columns, then the payload's fields."""
        reader = session.readStream if reading.part is None else session.read
        return reader.format(JOURNAL_FORMAT).options(**self.options(reading)).load()

    def options(self, reading: Reading) -> dict[str, str]:
        """The options of the Spark source. SettingInvalid if the journal is not on files."""
        check_not_read(reading.journal)
        options = {
            "path": reading.journal,
            "eventsPerBatchMax": reading.events_per_batch_max,
            "fields": reading.fields,
            "stopAt": reading.stop_at,
            "pauseFile": reading.pause_file,
            "pauseMs": reading.pause_ms or None,
            "barrierFile": reading.barrier_file,
            "limitFile": reading.limit_file,
            "types": json.dumps(self.types) if self.types else None,
            "tags": json.dumps(self.tags) if self.tags else None,
            "columns": ", ".join(self.columns),
            "start": self.start if reading.part is None else reading.part[0],
            "end": None if reading.part is None else reading.part[1],
            "refused": reading.refused if self.dead_letters else None,
            "futureUsMax": reading.future_us_max,
            "times": json.dumps(reading.times) if reading.times else None,
        }
        return {name: str(value) for name, value in options.items() if value not in (None, "")}


@dataclass(frozen=True, slots=True)
class KafkaTopic:
    """Messages of a Kafka topic whose values are JSON objects with these fields.

    Every message is a row, of a transactional topic every committed one:

        topic, partition, offset, timestamp    the message's place in Kafka, and its time there
        key, value                             as text
        _malformed                             whether the value is not exactly one JSON object whose fields have these
                                               types, or key or value are no UTF-8
        …                                      the fields; null if absent from the object, all null if it is malformed,
                                               or has no value at all (a tombstone)

    Messages that are malformed or do not fit the fields become dead letters (`kafka_validator`), as do messages whose
    `time`, the field of the view's watermark, lies too far ahead; `_malformed` is then false in every row. Without
    `dead_letters` each message is a row. A view that ignores `_malformed` counts a malformed message, but adds nothing
    of it; a view that filters by `_malformed` decides itself, and finds the bytes in Kafka by topic, partition and
    offset.
    """

    servers: str = field(repr=False)  # not in repr: the same topic may move, and options may hold secrets
    topic: str
    fields: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    time: str | None = field(default=None, repr=False)
    dead_letters: bool = field(default=True, repr=False)

    needs_jars: ClassVar[tuple[str, ...]] = ("kafka",)

    def load(self, session: SparkSession, reading: Reading) -> DataFrame:
        """The messages, from the earliest on."""
        defaults = {
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": str(reading.events_per_batch_max),
            "kafka.isolation.level": "read_committed",
        }
        fixed = {"kafka.bootstrap.servers": self.servers, "subscribe": self.topic}
        options = defaults | with_secrets(self.options) | fixed
        messages = kafka_messages(session, options, reading)
        if not self.dead_letters or reading.refused is None:
            return parse_messages(messages, self.fields)
        from stateside.pipeline.dead_letters import Validator

        return self.validated(messages, Validator(reading.refused, reading.future_us_max))

    def validated(self, messages: DataFrame, validator: Validator) -> DataFrame:
        """Kafka's rows as described above, without dead letters."""
        from stateside.pipeline.kafka_validator import APPEND_TIME, validated

        texts = messages.selectExpr(
            *(*_MESSAGE, "cast(key as string) as key", "cast(value as string) as value", APPEND_TIME)
        )
        judged = texts.selectExpr(
            *(*_MESSAGE, "make_valid_utf8(key) as key", "make_valid_utf8(value) as value"),
            *(f"({_NO_TEXT}) as {_MALFORMED}", "_appended"),
        )
        given = [*_MESSAGE, "key", "value", _MALFORMED]
        return validated(judged, given, self.fields, validator, self.topic, body="value", time=self.time or "timestamp")


def kafka_messages(session: SparkSession, options: Mapping[str, str], reading: Reading) -> DataFrame:
    """The rows of Spark's Kafka connector, as a stream or, with a `part` to read, as a batch."""
    if reading.part is None:
        return session.readStream.format("kafka").options(**options).load()
    bounds = {"startingOffsets": reading.part[0], "endingOffsets": reading.part[1]}
    ranges = {name: json.dumps(_kafka_offsets(position, reading.part[1])) for name, position in bounds.items()}
    return session.read.format("kafka").options(**{**options, **ranges}).load()


def _kafka_offsets(position: Position, end: Position) -> dict[str, dict[str, int]]:
    """A position with all partitions of `end`, in the connector's form."""
    found: dict[str, dict[str, int]] = {}
    known = position.as_dict()
    for name, _ in end.parts:
        topic, _, number = name.rpartition("-")
        found.setdefault(topic, {})[number] = known.get(name, _EARLIEST)
    return found


_EARLIEST = -2  # Kafka's offset of a partition that did not exist before


_NO_TEXT = "not coalesce(is_valid_utf8(key), true) or not coalesce(is_valid_utf8(value), true)"
_MESSAGE = ("topic", "partition", "offset", "timestamp")
_MALFORMED = "_malformed"


def parse_messages(messages: DataFrame, fields: str) -> DataFrame:
    """Kafka's rows as KafkaTopic describes them.

    The value is parsed inside an object of our own, `{"it": VALUE, "end": true}`: Spark's parser stops at the end of
    the requested object, and would not see a second object or garbage after the first.
    """
    inner = fields.replace("\\", "\\\\").replace("'", "\\'")
    schema = f"it struct<{inner}>, end boolean, _broken string"
    options = "map('mode', 'PERMISSIVE', 'columnNameOfCorruptRecord', '_broken')"
    texts = messages.selectExpr(*_MESSAGE, "cast(key as string) as key", "cast(value as string) as value")
    wrapped = """concat('{"it":', value, ',"end":true}')"""
    parsed = texts.selectExpr("*", f"from_json({wrapped}, '{schema}', {options}) as _parsed")
    broken = "value is not null and (_parsed._broken is not null or _parsed.end is null or _parsed.it is null)"
    judged = parsed.selectExpr("*", f"(({broken}) or {_NO_TEXT}) as {_MALFORMED}")
    told = judged.selectExpr(
        *_MESSAGE,
        "make_valid_utf8(key) as key",
        "make_valid_utf8(value) as value",
        _MALFORMED,
        f"if({_MALFORMED}, null, _parsed.it) as _it",
    )
    _check_names(told)
    return told.select("*", "_it.*").drop("_it")


def _check_names(told: DataFrame) -> None:
    names = {field.name.lower() for field in told.schema["_it"].dataType.fields}  # type: ignore[attr-defined]
    if clashes := names & {*_MESSAGE, "key", "value", _MALFORMED, "_it"}:
        raise ViewInvalid(
            f"The field {min(clashes)!r} has the name of a column that every Kafka message has",
            next_step="Leave it out of the source's fields, and take it from `value` with get_json_object",
        )


@dataclass(frozen=True, slots=True)
class Files:
    """Files that appear in a folder, each read once."""

    path: str
    fields: str
    format: str = "json"
    files_per_batch_max: int = field(default=1_000, repr=False)
    options: Mapping[str, str] = field(default_factory=dict)

    needs_jars: ClassVar[tuple[str, ...]] = ()

    def load(self, session: SparkSession, reading: Reading) -> DataFrame:
        reader = session.readStream.format(self.format).schema(self.fields)
        reader = reader.option("maxFilesPerTrigger", str(self.files_per_batch_max)).options(**self.options)
        return reader.load(self.path)


@dataclass(frozen=True, slots=True)
class DataFrameSource:
    """Any streaming DataFrame, made by the user's own function."""

    make: Callable[[SparkSession], DataFrame]
    needs_jars: tuple[str, ...] = ()

    def load(self, session: SparkSession, reading: Reading) -> DataFrame:
        return self.make(session)


def journal(
    types: Sequence[str] = (),
    tags: Sequence[str] = (),
    *,
    columns: Sequence[str] = (),
    start: str | None = None,
    dead_letters: bool = True,
) -> Source:
    """The application's journal: all its events, or with one of `types`, or with any of `tags`.

    `columns`: further columns of the events, from `partition`, `sequence`, `version`, `metadata`, `data`, `extra`.

    `start`: where a new query begins: a position, or `begin` for the first event that retention has left.

    `dead_letters`: whether events that do not fit the fields, or are dated too far ahead, become dead letters. If not,
    each event is a row, with nulls for all fields if it does not fit, and the view must guard its watermark itself.
    """
    return JournalEvents(tuple(types), tuple(tags), columns=tuple(columns), start=start, dead_letters=dead_letters)


def kafka(
    servers: str,
    topic: str,
    *,
    fields: str,
    time: str | None = None,
    options: Mapping[str, str] | None = None,
    dead_letters: bool = True,
) -> Source:
    """A Kafka topic with JSON messages, from its earliest one on; `KafkaTopic` lists the columns.

    `fields` is DDL; `time` the field of the views' watermark, by default Kafka's own `timestamp`; `options` are Spark's
    own, and a value `env:NAME` is read from the environment variable NAME. `dead_letters` as in `journal`.
    """
    return KafkaTopic(servers, topic, fields, dict(options or {}), time, dead_letters)


def kafka_journal(
    servers: str,
    topic: str,
    *,
    fields: str = "",
    types: Sequence[str] = (),
    tags: Sequence[str] = (),
    options: Mapping[str, str] | None = None,
    dead_letters: bool = True,
) -> Source:
    """A journal on Kafka (`journal.kafka`), from its earliest event on; `kafka_source` lists the columns.

    `fields`, of the payload, is DDL; `options` are Spark's own, as in `kafka`; `dead_letters` as in `journal`.
    """
    from stateside.pipeline.kafka_source import KafkaEvents

    return KafkaEvents(servers, topic, fields, tuple(types), tuple(tags), dict(options or {}), dead_letters)


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


def stream(make: Callable[[SparkSession], DataFrame], *, jars: Sequence[str] = ()) -> Source:
    """Any streaming DataFrame that a function makes from the session; `jars` like `("kafka",)` if needed."""
    return DataFrameSource(make, tuple(jars))


def with_jars(conf: Mapping[str, str], sources: Iterable[Source]) -> dict[str, str]:
    """These Spark settings plus the jars that the sources need, fetched if missing on this machine.

    Where no source needs jars, nothing is fetched or changed. SetupError if a jar cannot be fetched.
    """
    groups = sorted({group for source in sources for group in source.needs_jars})
    files = [str(file) for group in groups for file in jars.fetch(group)]
    given = [conf["spark.jars"]] if conf.get("spark.jars") else []
    return {**conf, "spark.jars": ",".join(given + files)} if files else dict(conf)
