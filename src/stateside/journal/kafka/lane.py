"""Lanes: one transaction after the other, by a producer that owns its partitions."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stateside.errors import EventRefused, JournalAway, JournalFenced, StatesideError
from stateside.journal.kafka.failures import FENCED, TOO_LARGE, is_one, told
from stateside.journal.kafka.messages import HEADERS
from stateside.journal.kafka.topic import Topic
from stateside.secret_options import without_secrets

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

log = logging.getLogger(__name__)

Delivered = dict[int, list[int]]  # the offsets of the messages, by partition and in the order of the sending
Check = Callable[[Delivered], None]
OnStep = Callable[
    [int], None
]  # told the number of each step of an append before it is done: for tests that crash there

_OPEN_AGAIN = "Open the journal again: that settles it. The same append then stores what is not stored"


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message on its way."""

    partition: int
    key: bytes
    value: bytes
    timestamp_ms: int


class Lane:
    """Stores messages in these partitions, an append a transaction. For one thread at a time."""

    def __init__(self, topic: Topic, producer: Producer, partitions: Sequence[int]) -> None:
        self._topic, self._producer = topic, producer
        self.partitions = frozenset(partitions)
        self._ended: StatesideError | None = None

    def store(self, messages: Sequence[Outgoing], check: Check, on_step: OnStep) -> Delivered:
        """Store them, all or none, and say where they stand. `check` looks at that before it counts, and may object.

        JournalFenced, now and for ever, once another owner is there. EventRefused if a message is too large.
        JournalAway if Kafka is away: whether they are stored is not known then if it happened at the very end, and this
        lane takes nothing more.
        """
        from confluent_kafka import KafkaException

        self.check_open()
        committing = False
        try:
            on_step(3)
            self._producer.begin_transaction()
            delivered = self._send(messages, on_step)
            check(delivered)
            on_step(5)
            committing = True
            self._producer.commit_transaction(self._topic.answer_s_max)
        except KafkaException as error:
            raise self._failed(error.args[0], unknown=committing) from error
        except BaseException as error:
            if committing:
                self._ended = in_doubt(type(error).__name__, self._topic)
            else:
                self._abort()
            raise
        return delivered

    def check_open(self) -> None:
        """Raises the reason why it takes nothing more, if there is one."""
        if self._ended is not None:
            raise self._ended

    def end(self, why: StatesideError) -> None:
        """Take nothing more."""
        self._ended = why

    def _send(self, messages: Sequence[Outgoing], on_step: OnStep) -> Delivered:
        delivered: Delivered = {}
        errors: list[KafkaError] = []

        def note(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                errors.append(error)
                return
            partition, offset = message.partition(), message.offset()
            assert partition is not None and offset is not None, "it is stored"
            delivered.setdefault(partition, []).append(offset)

        with _fatal_errors():
            for message in messages:
                self._produce(message, note)
            on_step(4)
            self._flush(errors)
        return delivered

    def _produce(self, message: Outgoing, note: Callable[[KafkaError | None, Message], None]) -> None:
        """Hand over one message, when there is room for it."""
        from confluent_kafka import KafkaException

        while True:
            try:
                return self._producer.produce(
                    self._topic.name,
                    message.value,
                    message.key,
                    message.partition,
                    on_delivery=note,
                    timestamp=message.timestamp_ms,
                    headers=HEADERS,
                )
            except BufferError:
                self._producer.poll(1.0)
            except KafkaException as error:
                if is_one(error.args[0], TOO_LARGE):
                    raise _too_large(message, self._topic) from error
                raise

    def _flush(self, errors: list[KafkaError]) -> None:
        """Wait until all messages are acknowledged, for as long as there is progress."""
        from confluent_kafka import KafkaError, KafkaException

        left, deadline = len(self._producer), time.monotonic() + self._topic.answer_s_max
        while left and not errors:
            now = self._producer.flush(1.0)
            if now < left:
                left, deadline = now, time.monotonic() + self._topic.answer_s_max
            elif time.monotonic() > deadline:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "the messages are not acknowledged"))
        if errors:
            raise KafkaException(errors[0])

    def _failed(self, error: KafkaError, *, unknown: bool) -> StatesideError:
        """What is told of an error, after which the lane is as it was, or takes nothing more."""
        found = told(error, self._topic)
        if isinstance(found, JournalFenced):
            self._ended = found
        elif unknown and not error.txn_requires_abort():
            self._ended = in_doubt(without_secrets(error.str(), self._topic.options), self._topic)
            return self._ended
        else:
            self._abort()
        return self._ended if isinstance(self._ended, JournalFenced) else found

    def _abort(self) -> None:
        """Have nothing of the transaction stored. If that cannot be told to the broker the next owner's start does."""
        from confluent_kafka import KafkaException

        try:
            self._producer.abort_transaction(self._topic.answer_s_max)
        except KafkaException as error:
            found = told(error.args[0], self._topic)
            if is_one(error.args[0], FENCED):
                self._ended = found
            else:
                log.warning("a transaction could not be aborted: %s", found)
                self._ended = JournalAway(
                    "Kafka does not answer since the last append, which was not stored",
                    where=self._topic.where,
                    next_step=_OPEN_AGAIN,
                )


def in_doubt(why: str, topic: Topic) -> JournalAway:
    """What is told once it is not known whether the last append is stored."""
    return JournalAway(
        f"It is not known whether the last append is stored: {why}", where=topic.where, next_step=_OPEN_AGAIN
    )


def ignore_step(number: int) -> None:
    """Nobody watches."""


@contextmanager
def _fatal_errors() -> Iterator[None]:
    """The client raises a fatal error, as that it is fenced, in the midst of calling `note`: Python then tells another.

    (SystemError: a result with an exception set.)
    """
    from confluent_kafka import KafkaException

    try:
        yield
    except SystemError as error:
        if isinstance(error.__cause__, KafkaException):
            raise KafkaException(*error.__cause__.args) from error
        raise


def _too_large(message: Outgoing, topic: Topic) -> EventRefused:
    return EventRefused(
        f"An event of {message.key.decode()!r} has {len(message.value):,} bytes as a message: the topic takes less",
        where=topic.where,
        next_step="Nothing of the append was stored. Make the event smaller, or let the topic's max.message.bytes "
        "(and the broker's message.max.bytes) be larger",
    )
