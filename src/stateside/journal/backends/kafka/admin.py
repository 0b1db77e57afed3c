"""Topic administration: identity, offsets and settings of a topic, as reported by the brokers, and topic creation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from stateside.core.errors import JournalAway, SettingInvalid
from stateside.core.wait import retry
from stateside.journal.backends.kafka.kafka_errors import MISSING, MOVING, is_one, missing, told
from stateside.journal.backends.kafka.topic import Topic

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.admin._listoffsets import OffsetSpec

Answer = TypeVar("Answer")

PARTITIONS_MAX = 1_000
_LOOK_S = 0.1
_SETTINGS = {
    **{"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"},  # a journal keeps its events
    "message.timestamp.type": "LogAppendTime",  # a message's time is the broker's, not the producer's
}


@dataclass(frozen=True, slots=True)
class Described:
    """A topic's id, constant for its life and unique to it, and its number of partitions."""

    id: str
    partitions: int


class Admin:
    """Queries brokers about one topic, from any number of threads. A query takes about a millisecond."""

    def __init__(self, topic: Topic) -> None:
        self.topic = topic

    @cached_property
    def _client(self) -> AdminClient:
        return self.topic.admin()

    def found(self) -> Described | None:
        """The topic; None if there is none. JournalAway if no broker answers."""
        from confluent_kafka import KafkaException, TopicCollection

        wait_s = self.topic.answer_s_max
        asked = self._client.describe_topics(TopicCollection([self.topic.name]), request_timeout=wait_s)
        try:
            found = self._answer(asked[self.topic.name])
        except KafkaException as error:
            if is_one(error.args[0], MISSING):
                return None
            raise told(error.args[0], self.topic) from error
        high, low = found.topic_id.get_most_significant_bits(), found.topic_id.get_least_significant_bits()
        return Described(str(UUID(int=(high % 2**64) << 64 | low % 2**64)), len(found.partitions))

    def described(self) -> Described:
        """The topic; JournalAway if there is none."""
        found = self.found()
        if found is None:
            raise missing(self.topic)
        return found

    def begins(self, partitions: Iterable[int]) -> dict[int, int]:
        """The first offsets of the partitions; retention has deleted everything before them."""
        from confluent_kafka.admin._listoffsets import OffsetSpec

        return self._offsets(partitions, OffsetSpec.earliest())  # type: ignore[no-untyped-call]

    def ends(self, partitions: Iterable[int]) -> dict[int, int]:
        """The end offsets of the partitions, for readers of committed events."""
        from confluent_kafka.admin._listoffsets import OffsetSpec

        return self._offsets(partitions, OffsetSpec.latest())  # type: ignore[no-untyped-call]

    def settings(self) -> Mapping[str, str]:
        """The topic's settings; empty if this client is not authorised to read them."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin._config import ConfigResource
        from confluent_kafka.admin._resource import ResourceType

        resource = ConfigResource(ResourceType.TOPIC, self.topic.name)
        asked = self._client.describe_configs([resource], request_timeout=self.topic.answer_s_max)
        try:
            return {name: entry.value for name, entry in self._answer(asked[resource]).items()}
        except KafkaException as error:
            if is_one(error.args[0], ("TOPIC_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED")):
                return {}
            raise told(error.args[0], self.topic) from error

    def create(self, partitions: int, settings: Mapping[str, str]) -> Described:
        """Create the topic; on return every client sees the topic."""
        from confluent_kafka import KafkaError, KafkaException
        from confluent_kafka.cimpl import NewTopic

        wait_s = self.topic.answer_s_max
        new = NewTopic(self.topic.name, num_partitions=partitions, config=dict(settings))
        try:
            self._answer(self._client.create_topics([new], request_timeout=wait_s)[self.topic.name])
        except KafkaException as error:
            if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                raise SettingInvalid(
                    f"There is a topic {self.topic.name!r} already",
                    where=self.topic.servers,
                    next_step="Use it as it is, or give the new journal another name",
                ) from error
            raise told(error.args[0], self.topic) from error
        return self._awaited()

    def _answer(self, asked: Future[Answer]) -> Answer:
        """A broker's answer; KafkaException also if there is none in time, or this process was paused meanwhile."""
        from confluent_kafka import KafkaError, KafkaException

        try:
            return asked.result(self.topic.answer_s_max + 1)
        except TimeoutError as error:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "no broker answered in time")) from error

    def _awaited(self) -> Described:
        """Wait for the brokers: the controller creates a topic a moment before the brokers know its leaders."""

        def ask() -> Described:
            found = self.described()
            self.ends(range(found.partitions))
            return found

        return retry(ask, JournalAway, self.topic.answer_s_max, _LOOK_S)

    def _offsets(self, partitions: Iterable[int], which: OffsetSpec) -> dict[int, int]:
        from confluent_kafka import IsolationLevel, KafkaException, TopicPartition

        wanted: dict[Any, Any] = {TopicPartition(self.topic.name, partition): which for partition in partitions}
        if not wanted:
            return {}
        wait_s = self.topic.answer_s_max

        def ask() -> dict[int, int]:
            asked = self._client.list_offsets(
                wanted, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=wait_s
            )
            return {place.partition: int(self._answer(answer).offset) for place, answer in asked.items()}

        try:
            return retry(ask, KafkaException, wait_s, _LOOK_S, passes=lambda error: is_one(error.args[0], MOVING))
        except KafkaException as error:
            raise told(error.args[0], self.topic) from error


def create_topic(
    topic: Topic, *, partitions: int, settings: Mapping[str, str] | None = None, exists_ok: bool = False
) -> Described:
    """Create the topic of a new journal, with a fixed number of partitions; SettingInvalid if the name is taken.

    The topic keeps its events for ever, unless `settings` (those of a Kafka topic) say otherwise. The brokers decide
    the number of replicas (default.replication.factor). `exists_ok`: accept an existing topic with as many partitions.
    """
    if not 1 <= partitions <= PARTITIONS_MAX:
        raise SettingInvalid(f"A topic of {partitions} partitions", next_step=f"Give it 1 to {PARTITIONS_MAX}")
    wanted = {**_SETTINGS, **(settings or {})}
    check_policy(topic, wanted)
    found = Admin(topic).found() if exists_ok else None
    return found if found and found.partitions == partitions else Admin(topic).create(partitions, wanted)


def check_policy(topic: Topic, settings: Mapping[str, str]) -> None:
    """SettingInvalid if Kafka would compact the topic, and so delete an entity's older events."""
    policy = settings.get("cleanup.policy", "delete")
    if "compact" in policy:
        raise SettingInvalid(
            f"The topic's cleanup.policy is {policy!r}: of each entity it would keep the last event only",
            where=topic.where,
            next_step="Set it to delete (with retention.ms=-1 to keep all events), then try again",
        )
