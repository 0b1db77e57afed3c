"""Fetching: the messages of a range of offsets, from consumers that are kept for the next reader."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from stateside.core.errors import JournalAway
from stateside.journal.kafka.kafka_errors import asking
from stateside.journal.kafka.messages import offset_of
from stateside.journal.kafka.topic import Topic

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

MESSAGES_AT_ONCE = 2_000
KEPT_MAX = 4  # consumers that wait for the next reader
_LOOK_S = 0.01
_PASSING = ("_TRANSPORT", "_ALL_BROKERS_DOWN", "_TIMED_OUT", "_RESOLVE")  # the client tries again by itself


class Gone(Exception):
    """Messages of the range are not there any more."""


class Fetcher:
    """Reads committed messages of a topic. Any number of threads may; each reading has a consumer of its own.

    A consumer keeps an error that it met for whoever asks it next, even when it was told to read something else since:
    it reads ahead of its last reader, and the topic may be made anew meanwhile.
    """

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._kept: list[Consumer] = []
        self._keeping = threading.Lock()

    def messages(self, partition: int, start: int, stop: int) -> Iterator[list[Message]]:
        """The messages with offsets start <= offset < stop, some at a time. The partition reaches `stop`.

        Gone if they are deleted, JournalAway if nothing comes for too long. Memory: what was fetched at once, and what
        the client fetches ahead (16 MiB).
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
                    continue  # what a kept one tells may be of the range that it read before: a new one is asked
                except BaseException:
                    consumer.close()
                    raise
                self._give_back(consumer)
                return

    def close(self) -> None:
        """Close what is kept."""
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
                start = offset + (message.error() is None)  # the end of a partition is told with the offset behind it
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
        """A consumer, and whether it is a new one."""
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
    """Whether it is a message, or the word that there are no more; Gone or KafkaException if it tells of an error."""
    from confluent_kafka import KafkaError, KafkaException

    error = message.error()
    if error is None or error.code() == KafkaError._PARTITION_EOF:
        return True
    if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
        raise Gone(error.str())
    if error.code() in {getattr(KafkaError, name) for name in _PASSING}:
        return False
    raise KafkaException(error)
