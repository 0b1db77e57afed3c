"""Translation of Kafka client errors into the journal's errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from stateside.core.errors import EventRefused, JournalAway, JournalFenced, StatesideError
from stateside.core.secrets import without_secrets
from stateside.journal.backends.kafka.topic import Topic

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

FENCED = ("_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH")
TOO_LARGE = ("MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE")
MISSING = ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION", "UNKNOWN_TOPIC_ID")
MOVING = (  # a partition's leader changes, or is elected for the first time: a retry succeeds
    "NOT_LEADER_FOR_PARTITION",
    "LEADER_NOT_AVAILABLE",
    "FENCED_LEADER_EPOCH",
    "UNKNOWN_LEADER_EPOCH",
    "OFFSET_NOT_AVAILABLE",
    "KAFKA_STORAGE_ERROR",
)
DENIED = (
    "TOPIC_AUTHORIZATION_FAILED",
    "GROUP_AUTHORIZATION_FAILED",
    "CLUSTER_AUTHORIZATION_FAILED",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    "SASL_AUTHENTICATION_FAILED",
    "_AUTHENTICATION",
    "_SSL",
)


@contextmanager
def asking(topic: Topic) -> Iterator[None]:
    """Translate a Kafka client error into one with a next step."""
    from confluent_kafka import KafkaException

    try:
        yield
    except KafkaException as error:
        raise told(error.args[0], topic) from error


def told(error: KafkaError, topic: Topic) -> StatesideError:
    """The journal's error for a Kafka error."""
    if is_one(error, FENCED):
        return JournalFenced(
            "Another owner has taken these partitions over, or this one stood still for longer than a transaction may",
            where=topic.where,
            next_step="This append was not acknowledged. Let one owner only go on; who opens the journal again is it",
        )
    if is_one(error, TOO_LARGE):
        return EventRefused(
            f"An event is larger than the topic takes: {error.str()}",
            where=topic.where,
            next_step="Nothing of the append was stored. Make the event smaller, or let the topic's max.message.bytes "
            "(and the broker's message.max.bytes) be larger",
        )
    if is_one(error, MISSING):
        return missing(topic)
    reason = without_secrets(error.str(), topic.options)
    if is_one(error, DENIED):
        return JournalAway(
            f"Kafka does not let this client in: {reason}",
            where=topic.where,
            next_step="Mend the options (security.protocol, sasl.*, ssl.*) or the rights, then try again",
        )
    return JournalAway(
        f"Kafka does not answer: {reason}",
        where=topic.where,
        next_step="See that the address is right and the brokers run, then try again",
    )


def missing(topic: Topic) -> JournalAway:
    """The error for a topic that does not exist."""
    return JournalAway(
        f"There is no topic {topic.name!r}",
        where=topic.servers,
        next_step="Create it, if it is to be a new journal: `stateside journal create "
        f"kafka://{topic.servers}/{topic.name} --partitions N`; it is never created by mistake",
    )


def is_one(error: KafkaError, names: tuple[str, ...]) -> bool:
    """Whether the error has one of these names."""
    from confluent_kafka import KafkaError

    return error.code() in {getattr(KafkaError, name) for name in names if hasattr(KafkaError, name)}
