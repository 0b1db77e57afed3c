"""Kafka sink: a batch is one transaction with its messages and a note of its number.

Exactly-once protocol, for readers with `isolation.level=read_committed`; a crash at any step, followed by a rerun of
the same batch, changes nothing. A run does steps 1 to 4 before its first batch, and again after an error:

1. The writer's id is drawn, once, and kept in the view's folder (`KafkaMark`).
2. The notes topic is created, once. If the topic is missing later, the batch is held; another topic is refused.
3. A producer with the transactional id stateside-VIEW-WRITER is initialised. The broker then ends any open transaction
   of an older run, and fences the older run.
4. The last note is read. After step 3 only this run changes the notes, and it remembers its own. If the note is of this
   batch or a later one of the query: done.
5. A transaction is begun, and the messages are sent. No reader sees them yet.
6. The note is sent in the same transaction, and all messages are acknowledged.
7. The transaction is committed: messages and note become visible in one atomic step.
8. The caller lets Spark commit the batch. A crash before the commit repeats the batch, which then ends at step 4.

Messages: the value is the row as a JSON object (`json_rows`). The key of one text column is the text itself, of one
other column its JSON, of several columns a JSON object; a null in the one column means no key. Messages of one key are
ordered by their values' text, whatever the order of the rows. The headers `stateside-query` and `stateside-batch` name
the origin. Keys go to partitions as Java's clients send them.

A batch must finish within `transaction.timeout.ms` (60 s by default). Readers of committed messages wait for a run
killed inside a transaction until the next run starts, or for that timeout.

Notes: the number of the last stored batch, in a topic that belongs to this sink alone, with one partition and
compaction, so the last note stays for as long as the topic does.

    stateside-notes-VIEW-WRITER     "last" -> {"query": …, "batch": 12}

Consumer group offsets, the usual place, do not work: the broker forgets them some days after the last commit
(`offsets.retention.minutes`, 7 days by default). A run that crashed between the sink's commit and Spark's, and
restarted after that time, would store its batch twice. One notes topic for all sinks does not work either: a reader of
committed records does not see past the oldest open transaction in a partition, even another sink's, and could miss its
own last note.

The *mark* in the view's folder has the writer's id and the id of the notes topic. The topic is created only once: to
continue with a missing or different topic would mean to forget the stored batches.
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
from stateside.core.json_file import JsonFile
from stateside.core.secrets import with_secrets, without_secrets
from stateside.core.wait import retry
from stateside.pipeline.sinks.json_rows import check_json, json_texts
from stateside.pipeline.sinks.sink import BatchId, OnStep, SinkContext, SinkFactory, ignore_step

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Producer
    from confluent_kafka.admin import AdminClient

log = logging.getLogger(__name__)
ANSWER_S_MAX = 15.0  # a broker that is silent for longer counts as away
LOOK_S = 0.05
NOTE_KEY = b"last"
NEWEST = 50  # offsets read first; after many aborted batches the last note lies further back
_SETTINGS = {
    "cleanup.policy": "compact",
    # Segments are closed and compacted soon, so a start reads few notes and the topic stays small.
    "segment.ms": "3600000",
    "min.cleanable.dirty.ratio": "0.01",
}


@dataclass(frozen=True, slots=True)
class KafkaMark:
    """The writer's id, and the id of its notes topic (None until the topic is created)."""

    writer: str
    topic_id: str | None = None

    @classmethod
    def load_or_draw(cls, path: Path) -> KafkaMark:
        """The mark at this path; a new mark is drawn and made durable first."""
        if not path.exists():
            cls(secrets.token_hex(8)).save(path)
        return _MARK.load(path)

    def save(self, path: Path) -> None:
        """Write the mark, atomically and durably."""
        _MARK.write(path, self)


_MARK = JsonFile("The mark of the Kafka sink", lambda document: KafkaMark(**document))


@dataclass(frozen=True, slots=True)
class BatchNotes:
    """The notes topic of one writer. Raises KafkaException whenever the broker is away or refuses."""

    client: dict[str, Any]  # librdkafka's settings
    view: str
    writer: str

    @property
    def topic(self) -> str:
        return f"stateside-notes-{self.view}-{self.writer}"

    def create(self, mark: KafkaMark, path: Path) -> None:
        """Create the topic, or check its id if the mark has one."""
        from confluent_kafka.admin import AdminClient

        admin = AdminClient(self.client, logger=log)  # kept referenced: pending answers die with the client
        if mark.topic_id is None:
            self._create(admin)
            replace(mark, topic_id=self._await_topic_id(admin)).save(path)
        elif self._topic_id(admin) != mark.topic_id:
            raise ArchiveInvalid(
                f"The topic {self.topic!r}, which says what batches are stored, is another one than before",
                where=self.client["bootstrap.servers"],
                next_step="Nothing was sent. Find out who recreated it; "
                f"to begin again as well, and perhaps send a batch twice, delete {path}",
            )
        self._check_policy(admin)

    def last(self) -> BatchId | None:
        """The batch that was stored last; None if there is none."""
        from confluent_kafka import Consumer, TopicPartition

        reading = {"group.id": self.topic, "isolation.level": "read_committed", "enable.partition.eof": True}
        quick = {"fetch.wait.max.ms": 10, "enable.auto.commit": False}  # no waiting at the end of the partition
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
        except KafkaException as error:  # created by a run that crashed before it saved the topic's id
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise

    def _await_topic_id(self, admin: AdminClient) -> str:
        """The id of a new topic: brokers learn of topics one after the other."""
        return retry(lambda: self._topic_id(admin), SinkAway, ANSWER_S_MAX, LOOK_S)

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
        """Without compaction the broker would eventually delete the last note."""
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
_QUIET = {"log_level": "2"}  # errors are raised anyway; at 3 every failed connection attempt logs a line
_OURS = {"bootstrap.servers", "transactional.id", "enable.idempotence", "acks", "isolation.level", "group.id"}


def kafka(
    servers: str,
    topic: str,
    *,
    key: Sequence[str] = (),
    options: Mapping[str, str] | None = None,
    on_step: OnStep = ignore_step,
) -> SinkFactory:
    """A sink that sends each row as a message to an existing Kafka topic.

    `key` names the columns of the message key. `options` are librdkafka's; a value `env:NAME` is read from the
    environment variable NAME.
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

        After an error the producer is discarded: the next call begins at step 1, and step 4 reports whether the batch
        was stored. Once another run has taken over, every call raises PipelineRunning.
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
        """Become the only writer: steps 1 to 4."""
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
    """An initialised producer, and the last note, which only this producer changes."""

    producer: Producer
    notes_topic: str
    last: BatchId | None

    def stored(self, batch: BatchId) -> bool:
        """Whether the batch, or a later one of its query, is already stored."""
        return self.last is not None and self.last.query == batch.query and self.last.batch >= batch.batch


def _check_topic(producer: Producer, topic: str) -> None:
    """Report a missing topic by name and at once; inside a transaction the error would take 30 s."""
    from confluent_kafka import KafkaException

    if (error := producer.list_topics(topic, ANSWER_S_MAX).topics[topic].error) is not None:
        raise KafkaException(error)


def _produce(producer: Producer, topic: str, key: bytes | None, value: bytes, headers: list[tuple[str, bytes]]) -> None:
    """Enqueue one message when the queue has space; the commit reports delivery errors.

    No delivery callback: the client raises fatal errors while it calls callbacks.
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
    """ViewInvalid for options that librdkafka rejects. Opens no connection."""
    from confluent_kafka import KafkaException

    try:
        _producer(client, "checked")
    except (KafkaException, ValueError, TypeError) as error:
        reason = error.args[0].str() if isinstance(error, KafkaException) else str(error)
    else:
        return
    raise ViewInvalid(  # not `from error`: its text may contain a secret
        f"The Kafka sink's options are not in order: {without_secrets(reason, options)}",
        next_step="Mend them, then run again",
    )


def _told(error: KafkaError, topic: str, servers: str) -> StatesideError:
    """The Stateside error for an error of the client."""
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
