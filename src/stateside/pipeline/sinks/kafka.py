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

The notes of a Kafka sink: which batch it stored last, in a topic of the sink's own.

A note is written in the same transaction as the batch's messages, so the last committed one tells what is stored. The
topic is the sink's alone, with one partition, and compacted: the last note stays for as long as the topic does.

    stateside-notes-VIEW-WRITER     "last" -> {"query": …, "batch": 12}

Why not the offsets of a consumer group, the usual place: the broker forgets those some days after the last commit
(`offsets.retention.minutes`, 7 days by default). A run that crashed between the sink's commit and Spark's, and was
started again only after that, would store its batch twice. And why not one topic for the notes of all sinks: a reader
of committed records does not see past the oldest transaction that is open in a partition, be it somebody else's; so it
could miss its own last note.

The *mark* in the view's folder has the writer's id, drawn once, and the id of the topic of notes. So that topic is
created once only: if it is missing later, or another one, to go on would mean to forget what was stored.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from stateside.core.errors import ArchiveInvalid, PipelineRunning, SinkAway, SinkRefused, StatesideError, ViewInvalid
from stateside.core.secrets import with_secrets, without_secrets
from stateside.core.storage import write_atomically
from stateside.pipeline.sinks.json_rows import check_json, json_texts
from stateside.pipeline.sinks.sink import BatchId, OnStep, SinkContext, SinkFactory, ignore_step

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Producer
    from confluent_kafka.admin import AdminClient

log = logging.getLogger(__name__)
ANSWER_S_MAX = 15.0  # longer than this a broker may be silent, then it counts as away
LOOK_S = 0.05
NOTE_KEY = b"last"
NEWEST = (
    50  # of the partition's offsets are looked at first; the last note lies further back after many aborted batches
)
_SETTINGS = {
    "cleanup.policy": "compact",
    # Closed and compacted soon: a start reads few notes, and the topic stays small.
    "segment.ms": "3600000",
    "min.cleanable.dirty.ratio": "0.01",
}


@dataclass(frozen=True, slots=True)
class KafkaMark:
    """Who writes, and the id of the topic that its notes are in (none before that was created)."""

    writer: str
    topic_id: str | None = None

    @classmethod
    def load_or_draw(cls, path: Path) -> KafkaMark:
        """The mark at this path; a new one is drawn and made durable first."""
        if not path.exists():
            cls(secrets.token_hex(8)).save(path)
        return cls(**json.loads(path.read_bytes()))

    def save(self, path: Path) -> None:
        """Write it, atomically and durably."""
        write_atomically(path, json.dumps(asdict(self)).encode())


@dataclass(frozen=True, slots=True)
class BatchNotes:
    """The topic of notes of one writer. KafkaException, whenever the broker is away or refuses."""

    client: dict[str, Any]  # librdkafka's settings
    view: str
    writer: str

    @property
    def topic(self) -> str:
        """The topic's name."""
        return f"stateside-notes-{self.view}-{self.writer}"

    def create(self, mark: KafkaMark, path: Path) -> None:
        """Create the topic, unless the mark says that it was created before: then it must be that one."""
        from confluent_kafka.admin import AdminClient

        admin = AdminClient(self.client, logger=log)  # held on to: with it go the answers that are still to come
        if mark.topic_id is None:
            self._create(admin)
            replace(mark, topic_id=self._await_topic_id(admin)).save(path)
        elif self._topic_id(admin) != mark.topic_id:
            raise ArchiveInvalid(
                f"The topic {self.topic!r}, which says what batches are stored, is another one than before",
                where=self.client["bootstrap.servers"],
                next_step="Nothing was sent. Find out who made it anew; "
                f"to begin anew as well, and perhaps send a batch twice, delete {path}",
            )
        self._check_policy(admin)

    def last(self) -> BatchId | None:
        """The batch that was stored last; None if none was."""
        from confluent_kafka import Consumer, TopicPartition

        reading = {"group.id": self.topic, "isolation.level": "read_committed", "enable.partition.eof": True}
        quick = {"fetch.wait.max.ms": 10, "enable.auto.commit": False}  # at the end there is nothing to wait for
        consumer = Consumer({**self.client, **reading, **quick}, logger=log)
        try:
            low, high = consumer.get_watermark_offsets(TopicPartition(self.topic, 0), timeout=ANSWER_S_MAX)
            found = self._last_since(consumer, max(low, high - NEWEST))
            return found or (self._last_since(consumer, low) if high - low > NEWEST else None)
        finally:
            consumer.close()

    def _last_since(self, consumer: Any, offset: int) -> BatchId | None:
        from confluent_kafka import KafkaError, KafkaException, TopicPartition

        consumer.assign([TopicPartition(self.topic, 0, offset)])
        last = None
        while True:
            message = consumer.poll(ANSWER_S_MAX)
            if message is None:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "the topic of notes cannot be read"))
            if message.error() is None:
                last = BatchId(**json.loads(message.value()))
            elif message.error().code() == KafkaError._PARTITION_EOF:
                return last
            else:
                raise KafkaException(message.error())

    def _create(self, admin: AdminClient) -> None:
        from confluent_kafka import KafkaError, KafkaException
        from confluent_kafka.cimpl import NewTopic

        topic = NewTopic(self.topic, num_partitions=1, config=_SETTINGS)
        try:
            admin.create_topics([topic], request_timeout=ANSWER_S_MAX)[self.topic].result()
        except KafkaException as error:  # a run that crashed before it could note its id made it
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise

    def _await_topic_id(self, admin: AdminClient) -> str:
        """The id of a topic that was just created: brokers hear of it one after the other."""
        deadline = time.monotonic() + ANSWER_S_MAX
        while True:
            try:
                return self._topic_id(admin)
            except SinkAway:
                if time.monotonic() > deadline:
                    raise
                time.sleep(LOOK_S)

    def _topic_id(self, admin: AdminClient) -> str:
        from confluent_kafka import KafkaError, KafkaException, TopicCollection

        topics = admin.describe_topics(TopicCollection([self.topic]), request_timeout=ANSWER_S_MAX)
        try:
            return str(topics[self.topic].result().topic_id)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise
            raise SinkAway(
                f"The topic {self.topic!r}, which says what batches are stored, is missing",
                where=self.client["bootstrap.servers"],
                next_step="Bring it back: the batch is held until then",
            ) from error

    def _check_policy(self, admin: AdminClient) -> None:
        """Without compaction the broker would delete the last note one day."""
        from confluent_kafka.admin._config import ConfigResource
        from confluent_kafka.admin._resource import ResourceType

        resource = ConfigResource(ResourceType.TOPIC, self.topic)
        settings = admin.describe_configs([resource], request_timeout=ANSWER_S_MAX)[resource].result()
        policy = settings["cleanup.policy"].value
        if policy != "compact":
            raise ArchiveInvalid(
                f"The topic {self.topic!r}, which says what batches are stored, has the cleanup.policy {policy!r}: "
                "what it says would be deleted",
                where=self.client["bootstrap.servers"],
                next_step="Nothing was sent. Set its cleanup.policy to compact, then run again",
            )


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
        self._turn: ProducerTurn | None = None
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

    def _take_over(self) -> ProducerTurn:
        """Become the one who writes: steps 1 to 4."""
        self._on_step(1)
        mark = KafkaMark.load_or_draw(self._mark)
        notes = BatchNotes(self._client, self._view, mark.writer)
        self._on_step(2)
        notes.create(mark, self._mark)
        self._on_step(3)
        producer = _producer(self._client, f"stateside-{self._view}-{mark.writer}")
        _check_topic(producer, self._topic)
        producer.init_transactions(ANSWER_S_MAX)
        self._on_step(4)
        return ProducerTurn(producer, notes.topic, notes.last())

    def _send(self, messages: Sequence[Message], batch: BatchId, turn: ProducerTurn) -> ProducerTurn:
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
        return ProducerTurn(turn.producer, turn.notes_topic, batch)


@dataclass(frozen=True, slots=True)
class ProducerTurn:
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
