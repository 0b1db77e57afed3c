"""Kafka: a batch is one transaction, with its messages and a note of its number.

How a batch gets in exactly once, for readers with `isolation.level=read_committed`; a crash at any step, followed by a
rerun of the same batch, changes nothing. A run does steps 1 to 4 before its first batch, and again after an error:

1. The writer's id is drawn, once, and kept in the view's folder (`kafka_notes.Mark`).
2. The topic of notes is created, once; if it is missing later the batch is held, another one is refused.
3. A producer with the transactional id VIEW-WRITER is initialised. With this the broker ends what an older run left
   open, one way or the other, and refuses that run from now on.
4. The last note is read. Because of step 3 nobody changes it from here on but this run, which remembers its own.
   If it is of this batch or of a later one of the query: done.
5. A transaction is begun, and the messages are sent. No reader sees them yet.
6. The note is sent in the same transaction, and all is acknowledged.
7. The transaction is committed: messages and note count from now on, in one atomic step.
8. The caller lets Spark commit the batch. A crash before that repeats the batch, which then ends at step 4.

A message is a row: the value a JSON object (`json_rows`), the key what the key columns say: the text itself of one
column of text, the JSON of one other column, a JSON object of several; none if the one column is null. Messages of one
key come in the order of their values' text, whatever the order of the rows. The headers `stateside-query` and
`stateside-batch` tell where a message comes from. Keys go to partitions as Java's clients send them.

A batch must be through within `transaction.timeout.ms` (60 s by default), and readers of committed messages wait for a
run that was killed in the middle of one until the next run starts, or for that long.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from stateside.errors import ArchiveInvalid, PipelineRunning, SinkAway, SinkRefused, StatesideError, ViewInvalid
from stateside.pipeline.sinks.json_rows import check_json, json_texts
from stateside.pipeline.sinks.kafka_notes import ANSWER_S_MAX, NOTE_KEY, Mark, Notes
from stateside.pipeline.sinks.sink import BatchId, OnStep, SinkContext, SinkFactory, ignore_step
from stateside.secret_options import with_secrets, without_secrets

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Producer

log = logging.getLogger(__name__)

Message = tuple[str | None, str]  # key and value

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}", re.ASCII)
_DEFAULTS = {"partitioner": "murmur2_random"}
_QUIET = {"log_level": "2"}  # what goes wrong is told by errors; at 3 each vain attempt to connect would be a line
_OURS = {"bootstrap.servers", "transactional.id", "enable.idempotence", "acks", "isolation.level", "group.id"}


def kafka(
    servers: str,
    topic: str,
    *,
    key: Sequence[str] = (),
    options: Mapping[str, str] | None = None,
    on_step: OnStep = ignore_step,
) -> SinkFactory:
    """A sink that sends each row as a message to a Kafka topic, which must be there.

    `key` names the columns that make the message's key. `options` are librdkafka's; a value `env:NAME` is taken from
    that environment variable.
    """
    if not _TOPIC.fullmatch(topic) or topic in (".", ".."):
        raise ViewInvalid(f"{topic!r} is no name of a Kafka topic", next_step="Use letters, digits, '.', '_', '-'")
    given = dict(options or {})
    if taken := _OURS & given.keys():
        raise ViewInvalid(
            f"The Kafka sink sets {min(taken)!r} itself", next_step="Leave it out of its options, or use `servers`"
        )
    return lambda context: _open(context, servers, topic, tuple(key), given, on_step)


def _open(
    context: SinkContext, servers: str, topic: str, key: tuple[str, ...], options: dict[str, str], on_step: OnStep
) -> KafkaSink:
    check_json(context.schema)
    if missing := [name for name in key if name not in context.schema.names]:
        raise ViewInvalid(
            f"The view {context.view!r} has no column {missing[0]!r}, which was to be a message's key",
            next_step=f"Choose among {', '.join(context.schema.names)}",
        )
    places = context.layout.view(context.view)
    mark = places.mark(f"kafka-{topic}")
    if mark.exists() and not (places.checkpoint / "metadata").exists():
        raise ArchiveInvalid(
            f"The view {context.view!r} has sent messages to {topic!r}, but its checkpoint is gone: "
            "to go on would send them a second time",
            where=str(places.checkpoint),
            next_step=f"Nothing was sent. Bring the checkpoint back, or, if they are to be sent again, delete {mark}",
        )
    client = {**_QUIET, **with_secrets(options), "bootstrap.servers": servers}
    _check_options(client, options)
    return KafkaSink(client, context.view, topic, key, mark, on_step)


class KafkaSink:
    """Sends batches to a topic, by the steps above."""

    def __init__(
        self, client: dict[str, Any], view: str, topic: str, key: tuple[str, ...], mark: Path, on_step: OnStep
    ) -> None:
        self._client = client
        self._view = view
        self._topic = topic
        self._key = key
        self._mark = mark
        self._on_step = on_step
        self._turn: Turn | None = None
        self._fenced: PipelineRunning | None = None

    def write(self, rows: pa.Table, batch: BatchId) -> None:
        """Send the rows, unless the batch is stored.

        After an error nothing of the producer is used again: the next call begins at step 1, and learns at step 4 what
        became of the batch. PipelineRunning, now and for ever, once another run has taken over.
        """
        from confluent_kafka import KafkaException

        if self._fenced is not None:
            raise self._fenced
        if not rows.num_rows:
            return
        messages = messages_of(rows, self._key)
        turn, self._turn = self._turn, None
        try:
            turn = turn or self._take_over()
            turn = self._send(messages, batch, turn)
        except KafkaException as error:
            told = _told(error.args[0], self._topic, self._client["bootstrap.servers"])
            self._fenced = told if isinstance(told, PipelineRunning) else None
            raise told from error
        self._turn = turn

    def _take_over(self) -> Turn:
        """Become the one who writes: steps 1 to 4."""
        self._on_step(1)
        mark = Mark.load_or_draw(self._mark)
        notes = Notes(self._client, self._view, mark.writer)
        self._on_step(2)
        notes.create(mark, self._mark)
        self._on_step(3)
        producer = _producer(self._client, f"stateside-{self._view}-{mark.writer}")
        _check_topic(producer, self._topic)
        producer.init_transactions(ANSWER_S_MAX)
        self._on_step(4)
        return Turn(producer, notes.topic, notes.last())

    def _send(self, messages: Sequence[Message], batch: BatchId, turn: Turn) -> Turn:
        if turn.stored(batch):
            return turn
        self._on_step(5)
        turn.producer.begin_transaction()
        headers = [("stateside-query", batch.query.encode()), ("stateside-batch", str(batch.batch).encode())]
        for key, value in messages:
            _produce(turn.producer, self._topic, None if key is None else key.encode(), value.encode(), headers)
        self._on_step(6)
        _produce(turn.producer, turn.notes_topic, NOTE_KEY, json.dumps(asdict(batch)).encode(), [])
        _flush(turn.producer)
        self._on_step(7)
        turn.producer.commit_transaction(ANSWER_S_MAX)
        self._on_step(8)
        return Turn(turn.producer, turn.notes_topic, batch)


@dataclass(frozen=True, slots=True)
class Turn:
    """A producer that the broker takes messages from, and the last note, which it alone moves on."""

    producer: Producer
    notes_topic: str
    last: BatchId | None

    def stored(self, batch: BatchId) -> bool:
        """Whether the batch, or a later one of its query, is stored already."""
        return self.last is not None and self.last.query == batch.query and self.last.batch >= batch.batch


def _check_topic(producer: Producer, topic: str) -> None:
    """Told now, a missing topic is told by its name and at once; in the midst of a transaction it would take 30 s."""
    from confluent_kafka import KafkaException

    if (error := producer.list_topics(topic, ANSWER_S_MAX).topics[topic].error) is not None:
        raise KafkaException(error)


def _produce(producer: Producer, topic: str, key: bytes | None, value: bytes, headers: list[tuple[str, bytes]]) -> None:
    """Hand over one message, when there is room for it. What becomes of it the commit tells.

    (Not a delivery callback: the client raises fatal errors in the midst of calling those.)
    """
    while True:
        try:
            return producer.produce(topic, value, key, headers=headers)  # type: ignore[arg-type]
        except BufferError:
            producer.poll(1.0)


def _flush(producer: Producer) -> None:
    """Wait until all messages are acknowledged or given up, for as long as there is progress."""
    from confluent_kafka import KafkaError, KafkaException

    left, deadline = len(producer), time.monotonic() + ANSWER_S_MAX
    while left:
        now = producer.flush(1.0)
        if now < left:
            left, deadline = now, time.monotonic() + ANSWER_S_MAX
        elif time.monotonic() > deadline:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "the messages are not acknowledged"))


def messages_of(rows: pa.Table, key: Sequence[str]) -> list[Message]:
    """The rows as messages, in an order that does not depend on the rows' order."""
    values = json_texts(rows)
    keys = [_key(text, key) for text in json_texts(rows.select(list(key)))] if key else [None] * len(values)
    return sorted(zip(keys, values, strict=True), key=lambda message: (message[0] or "", message[1]))


def _key(text: str, columns: Sequence[str]) -> str | None:
    if len(columns) > 1:
        return text
    value = json.loads(text)[columns[0]]
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _producer(client: Mapping[str, Any], transactional_id: str) -> Producer:
    from confluent_kafka import Producer

    settings = {**_DEFAULTS, **client, "transactional.id": transactional_id}
    return Producer(settings, logger=log)


def _check_options(client: Mapping[str, Any], options: Mapping[str, str]) -> None:
    """ViewInvalid for options that librdkafka does not take. Nothing is connected to."""
    from confluent_kafka import KafkaException

    try:
        _producer(client, "checked")
    except (KafkaException, ValueError, TypeError) as error:
        reason = error.args[0].str() if isinstance(error, KafkaException) else str(error)
    else:
        return
    raise ViewInvalid(  # not `from error`: it may have a secret in its text
        f"The Kafka sink's options are not in order: {without_secrets(reason, options)}",
        next_step="Mend them, then run again",
    )


def _told(error: KafkaError, topic: str, servers: str) -> StatesideError:
    """What an error of the client's means for the run."""
    code, where = error.code(), f"topic {topic} at {servers}"
    if code in _codes("_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"):
        return PipelineRunning(
            "Another run of this view writes to Kafka now, or this one stood still for longer than a transaction may",
            where=where,
            next_step="Nothing of this batch was stored by this run. Let one run only go on",
        )
    if code in _codes(*_REFUSALS):
        return SinkRefused(
            f"Kafka refuses the batch: {error.str()}",
            where=where,
            next_step="Nothing of the batch was stored. Mend the rows, the topic or the rights, and run again",
        )
    return SinkAway(
        f"Kafka does not take the batch: {error.str()}",
        where=where,
        next_step="Bring the broker or the topic back: the batch is held until then",
    )


_REFUSALS = (
    "MSG_SIZE_TOO_LARGE",
    "RECORD_LIST_TOO_LARGE",
    "INVALID_MSG",
    "INVALID_RECORD",
    "TOPIC_EXCEPTION",
    "POLICY_VIOLATION",
    "UNSUPPORTED_VERSION",
    "TOPIC_AUTHORIZATION_FAILED",
    "GROUP_AUTHORIZATION_FAILED",
    "CLUSTER_AUTHORIZATION_FAILED",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    "SASL_AUTHENTICATION_FAILED",
    "INVALID_TRANSACTION_TIMEOUT",
)


def _codes(*names: str) -> set[int]:
    from confluent_kafka import KafkaError

    return {getattr(KafkaError, name) for name in names}
