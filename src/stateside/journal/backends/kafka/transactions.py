"""Ownership and transactions: fencing by transactional ids, and lanes that store one transaction after the other.

A `Lane` stores appends with a producer that owns its partitions; `Lanes` are all lanes of an owner, and choose the lane
of an append.

Ownership uses Kafka's fence: initialising a transactional id ends the open transaction of its previous producer, and
Kafka accepts nothing more from that producer, wherever it was paused. A topic has these ids:

    stateside-journal.TOPIC.P        the owner of partition P alone writes with it
    stateside-journal.TOPIC.all      the owner of all partitions writes with it

How a process becomes the owner of partitions:

1. The process initialises the ids of its own writes: `all`, or one for each of its partitions.
2. The process initialises the ids with which other processes could write to the same partitions: the owner of all
   initialises the ids of every partition, the owner of some initialises `all`. Producers of this step are dropped at
   once: their purpose is to fence.
3. Only now the process reads the ends of the partitions. Kafka settles the former owners' transactions before answering
   steps 1 and 2; so all their acknowledged events, and events stored without a receipt, lie before the end.

Why a partition never has two owners that both can write. Of two with the same id the later one has fenced the other in
step 1. Let A own all and B some. A can write only if no process initialised `all` after A's step 1, so B's step 2 came
before A's step 1; B can write only if no process initialised B's id after B's step 1, so A's step 2 came before B's
step 1. But A's step 2 comes after A's step 1, which comes after B's step 2, which comes after B's step 1, which comes
after A's step 2: a contradiction. (Both may be fenced, if they start at the same moment. The one that opens again is
owner.)
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stateside.core.errors import (
    EntityElsewhere,
    EventRefused,
    JournalAway,
    JournalFenced,
    SettingInvalid,
    StatesideError,
)
from stateside.core.secrets import without_secrets
from stateside.journal.backends.kafka.kafka_errors import FENCED, TOO_LARGE, asking, is_one, told
from stateside.journal.backends.kafka.messages import HEADERS
from stateside.journal.backends.kafka.topic import Topic, partition_of

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

log = logging.getLogger(__name__)
Delivered = dict[int, list[int]]  # the messages' offsets by partition, in sending order
Check = Callable[[Delivered], None]
OnStep = Callable[[int], None]  # called before each step of an append, with its number: for tests that crash there
_OPEN_AGAIN = "Open the journal again: that settles it. The same append then stores what is not stored"


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message to be sent."""

    partition: int
    key: bytes
    value: bytes
    timestamp_ms: int


class Lane:
    """Stores messages in these partitions, one transaction per append. For one thread at a time."""

    def __init__(self, topic: Topic, producer: Producer, partitions: Sequence[int]) -> None:
        self._topic, self._producer = topic, producer
        self.partitions = frozenset(partitions)
        self._ended: StatesideError | None = None

    def store(self, messages: Sequence[Outgoing], check: Check, on_step: OnStep) -> Delivered:
        """Store the messages, all or none, and return their offsets.

        `check` gets the offsets before the commit, and may raise to abort. JournalFenced, now and for ever, once there
        is another owner. EventRefused if a message is too large. JournalAway if Kafka is away: if a failed
        commit leaves the outcome unknown, the lane accepts nothing more.
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
        """Raise the reason why the lane accepts nothing more, if any."""
        if self._ended is not None:
            raise self._ended

    def end(self, why: StatesideError) -> None:
        """Accept nothing more."""
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
        """Enqueue one message, waiting for space in the client's buffer."""
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
        """Wait until all messages are acknowledged, as long as there is progress."""
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
        """The error to raise; the lane is unchanged afterwards, or accepts nothing more."""
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
        """Abort the transaction, or leave the abort to the next owner's start if no broker answers."""
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
    """The error for an append of unknown outcome."""
    return JournalAway(
        f"It is not known whether the last append is stored: {why}", where=topic.where, next_step=_OPEN_AGAIN
    )


def ignore_step(number: int) -> None:
    """The default `OnStep`."""


@contextmanager
def _fatal_errors() -> Iterator[None]:
    """Unwrap fatal client errors, such as fencing, raised during a call of `note`.

    Python reports SystemError instead: a result with an exception set.
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


class Lanes:
    """The lanes of some of a topic's partitions, or one lane for all."""

    def __init__(self, topic: Topic, partitions: int, lanes: Sequence[Lane]) -> None:
        """`partitions`: the topic's number of partitions."""
        self._topic, self._partitions = topic, partitions
        self._by_partition = {number: lane for lane in lanes for number in lane.partitions}
        self._of_all = lanes[0] if len(lanes) == 1 and len(lanes[0].partitions) == partitions else None

    def of(self, entities: Callable[[], Iterable[str]]) -> Lane:
        """The lane of these entities' partitions; EntityElsewhere or EventRefused if no single lane has all."""
        if self._of_all is not None:
            return self._of_all
        found: dict[Lane, int] = {}
        for entity in sorted(set(entities())):
            number = partition_of(entity, self._partitions)
            if number not in self._by_partition:
                raise self._elsewhere(entity, number)
            found.setdefault(self._by_partition[number], number)
        if len(found) > 1:
            raise self._several(sorted(found.values()))
        return next(iter(found), next(iter(self._by_partition.values())))

    def end(self, why: StatesideError) -> None:
        """Let no lane accept anything more."""
        for lane in self._by_partition.values():
            lane.end(why)

    def _elsewhere(self, entity: str, number: int) -> EntityElsewhere:
        return EntityElsewhere(
            f"{entity!r} belongs to partition {number}, and this writer owns {_listed(sorted(self._by_partition))}",
            where=self._topic.where,
            next_step="Append them at the owner of that partition",
        )

    def _several(self, numbers: Sequence[int]) -> EventRefused:
        return EventRefused(
            f"The events of this append belong to partitions {_listed(numbers)}: only the owner of all partitions "
            "stores such ones, all or none",
            where=self._topic.where,
            next_step="Nothing was stored. Append the events of each partition by themselves",
        )


def wanted_partitions(topic: Topic, partitions: Sequence[int] | None, there: int) -> list[int]:
    """The partitions to own, all by default; SettingInvalid if some do not exist."""
    if partitions is None:
        return list(range(there))
    wanted = sorted(set(partitions))
    if not wanted or not 0 <= wanted[0] <= wanted[-1] < there:
        raise SettingInvalid(
            f"The partitions {_listed(wanted) or 'none'} are to be owned, and there are 0 to {there - 1}",
            where=topic.where,
            next_step="Name some of these, or none at all to own them all",
        )
    return wanted


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


AT_ONCE = 8
_ALL = "all"


def own_all(topic: Topic, partitions: int, message_bytes_max: int) -> Lane:
    """Steps 1 and 2 for all partitions: one lane, so that one transaction may have events of any of them."""
    (producer,) = _initialised(topic, [_ALL], message_bytes_max)
    _fence(topic, [str(number) for number in range(partitions)], message_bytes_max)
    return Lane(topic, producer, range(partitions))


def own_some(topic: Topic, partitions: Sequence[int], message_bytes_max: int) -> list[Lane]:
    """Steps 1 and 2 for some partitions: a lane for each."""
    producers = _initialised(topic, [str(number) for number in partitions], message_bytes_max)
    _fence(topic, [_ALL], message_bytes_max)
    return [Lane(topic, producer, [number]) for producer, number in zip(producers, partitions, strict=True)]


def _fence(topic: Topic, names: Sequence[str], message_bytes_max: int) -> None:
    """Fence all producers with these ids; AT_ONCE at a time, as each is a client with threads of its own."""
    for first in range(0, len(names), AT_ONCE):
        _initialised(topic, names[first : first + AT_ONCE], message_bytes_max)


def _initialised(topic: Topic, names: Sequence[str], message_bytes_max: int) -> list[Producer]:
    def initialise(name: str) -> Producer:
        producer = topic.producer(f"stateside-journal.{topic.name}.{name}", message_bytes_max)
        producer.init_transactions(topic.answer_s_max)
        return producer

    with asking(topic), ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(initialise, names))
