"""Consumers: the messages of an offset range, read by pooled Kafka consumers."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from stateside.core.errors import JournalAway
from stateside.journal.backends.kafka.kafka_errors import asking
from stateside.journal.backends.kafka.messages import offset_of
from stateside.journal.backends.kafka.topic import Topic

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

MESSAGES_AT_ONCE = 2_000
KEPT_MAX = 4  # idle consumers in the pool
_LOOK_S = 0.01
_PASSING = ("_TRANSPORT", "_ALL_BROKERS_DOWN", "_TIMED_OUT", "_RESOLVE")  # the client retries by itself


class Gone(Exception):
    """Messages of the range are deleted."""


class Fetcher:
    """Reads committed messages of a topic. Any number of threads may; each read has its own consumer.

    A pooled consumer may report an error of its previous assignment to its next reader: a consumer prefetches beyond
    its last read, and the topic may be recreated meanwhile.
    """

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._kept: list[Consumer] = []
        self._keeping = threading.Lock()

    def messages(self, partition: int, start: int, stop: int) -> Iterator[list[Message]]:
        """The messages with offsets start <= offset < stop, in groups. The partition reaches `stop`.

        Gone if messages are deleted, JournalAway if none arrive for too long. Memory: one group, and the client's
        prefetch (16 MiB).
        """
        from confluent_kafka import KafkaException, TopicPartition

        with asking(self._topic):
            while True:
                consumer, is_new = self._taken()
                try:
                    consumer.assign([TopicPartition(self._topic.name, partition, start)])
                    for found in self._read(consumer, partition, start, stop):
                        yield found
                        start = offset_of(found[-1]) + 1
                    consumer.unassign()
                except (Gone, KafkaException):
                    consumer.close()
                    if is_new:
                        raise
                    continue  # perhaps an error of a pooled consumer's earlier range: try a new consumer
                except BaseException:
                    consumer.close()
                    raise
                self._give_back(consumer)
                return

    def close(self) -> None:
        with self._keeping:
            kept, self._kept = self._kept, []
        for consumer in kept:
            consumer.close()

    def _read(self, consumer: Consumer, partition: int, start: int, stop: int) -> Iterator[list[Message]]:
        deadline = time.monotonic() + self._topic.answer_s_max
        while start < stop:
            found = []
            for message in consumer.consume(MESSAGES_AT_ONCE, _LOOK_S):
                offset = message.offset()
                if message.partition() != partition or not _counts(message) or offset is None or offset < start:
                    continue
                start = offset + (message.error() is None)  # end of partition: its offset is the next one already
                if message.error() is None and offset < stop:
                    found.append(message)
            if found:
                yield found
                deadline = time.monotonic() + self._topic.answer_s_max
            elif start < stop and time.monotonic() > deadline:
                raise JournalAway(
                    f"Partition {partition} does not give the messages from {start} on, which it has",
                    where=self._topic.where,
                    next_step="See that all brokers run, then try again",
                )

    def _taken(self) -> tuple[Consumer, bool]:
        """A consumer, and whether the consumer is new."""
        with self._keeping:
            if self._kept:
                return self._kept.pop(), False
        return self._topic.consumer(), True

    def _give_back(self, consumer: Consumer) -> None:
        with self._keeping:
            if len(self._kept) < KEPT_MAX:
                self._kept.append(consumer)
                return
        consumer.close()


def _counts(message: Message) -> bool:
    """Whether to count a message or end of partition; Gone or KafkaException for an error."""
    from confluent_kafka import KafkaError, KafkaException

    error = message.error()
    if error is None or error.code() == KafkaError._PARTITION_EOF:
        return True
    if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
        raise Gone(error.str())
    if error.code() in {getattr(KafkaError, name) for name in _PASSING}:
        return False
    raise KafkaException(error)
