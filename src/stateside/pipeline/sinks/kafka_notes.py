"""The notes of a Kafka sink: which batch it stored last, in a topic of the sink's own.

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
import secrets
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stateside.errors import ArchiveInvalid, SinkAway
from stateside.pipeline.sinks.sink import BatchId
from stateside.storage import write_atomically

if TYPE_CHECKING:
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
class Mark:
    """Who writes, and the id of the topic that its notes are in (none before that was created)."""

    writer: str
    topic_id: str | None = None

    @classmethod
    def load_or_draw(cls, path: Path) -> Mark:
        """The mark at this path; a new one is drawn and made durable first."""
        if not path.exists():
            cls(secrets.token_hex(8)).save(path)
        return cls(**json.loads(path.read_bytes()))

    def save(self, path: Path) -> None:
        """Write it, atomically and durably."""
        write_atomically(path, json.dumps(asdict(self)).encode())


@dataclass(frozen=True, slots=True)
class Notes:
    """The topic of notes of one writer. KafkaException, whenever the broker is away or refuses."""

    client: dict[str, Any]  # librdkafka's settings
    view: str
    writer: str

    @property
    def topic(self) -> str:
        """The topic's name."""
        return f"stateside-notes-{self.view}-{self.writer}"

    def create(self, mark: Mark, path: Path) -> None:
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
