"""Reads of a journal on Kafka, from any process, while its owners write. `Fetcher` has the pooled consumers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from stateside.core.clock import Clock
from stateside.core.errors import EventsGone, JournalAway, JournalCorrupt, PositionInvalid, SettingInvalid
from stateside.core.positions import Position
from stateside.journal.backends.files.frames import Offsets
from stateside.journal.backends.kafka.admin import Admin
from stateside.journal.backends.kafka.kafka_errors import asking
from stateside.journal.backends.kafka.messages import Message, NoEvent, batch_of, offset_of
from stateside.journal.backends.kafka.topic import Topic
from stateside.journal.contract import DurableEnd, Journal, Log, only
from stateside.journal.upcasters import Upcasters

if TYPE_CHECKING:
    from confluent_kafka import Consumer
    from confluent_kafka import Message as KafkaMessage

    from stateside.journal.backends.kafka.topic_folder import PlacedWriter
    from stateside.journal.backends.kafka.topic_owner import KafkaWriter


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

    def messages(self, partition: int, start: int, stop: int) -> Iterator[list[KafkaMessage]]:
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

    def _read(self, consumer: Consumer, partition: int, start: int, stop: int) -> Iterator[list[KafkaMessage]]:
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


def _counts(message: KafkaMessage) -> bool:
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


GAP_OFFSETS = MESSAGES_AT_ONCE  # reading so many unwanted messages is as fast as another request

_ONE_PARTITION = (
    "The journal of a folder has one, for good. A new journal: create it with --partitions 1. If partitions were added "
    "to this one: copy its events into a new topic of one partition, and name that in the folder's topic.json"
)


class KafkaJournal(Journal):
    """A topic's committed events.

    Offsets are those of the topic. Transaction markers take some of them, so not every offset has an event; the end is
    after the last marker, covers every receipt, and never moves back.

    `folder`: for the indexes of writers. The writers of an application's folder take turns (`shared`), and its
    partitions are named as in stamps, `billing-0`; any other writer owns the topic until the next one is opened, and
    partitions are named by their numbers. `pass_over` names messages that are no events and must not stop a
    reader: partition and offset, like 0:17.
    """

    pause_s_max = 0.05  # reading the end queries a broker, in about a millisecond

    def __init__(
        self,
        topic: Topic,
        folder: Path | None = None,
        *,
        shared: bool = False,
        upcasters: Upcasters | None = None,
        pass_over: Iterable[str] = (),
    ) -> None:
        self.topic, self._folder, self._shared = topic, folder, shared
        self.upcasters = upcasters or Upcasters()
        self._passed_over = _places(pass_over)
        self._admin, self._fetcher = Admin(topic), Fetcher(topic)

    @property
    def where(self) -> str:
        return self.topic.where

    def in_stamps(self, position: Position) -> Position:
        return position if self._shared else self.topic.in_stamps(position)

    def name_of(self, number: int) -> str:
        """The name of a partition in this journal's positions."""
        return f"{self.topic.name}-{number}" if self._shared else str(number)

    def log(self, partition: str | None = None) -> TopicLog:
        return TopicLog(self, partition)

    def writer(self, *, clock: Clock | None = None, known: str | None = None) -> KafkaWriter | PlacedWriter:
        from stateside.journal.backends.kafka.topic_folder import PlacedWriter
        from stateside.journal.backends.kafka.topic_owner import KafkaWriter

        if self._folder is None:
            raise SettingInvalid(
                "A writer of a topic needs a folder for its index", where=self.where, next_step="Open it with `index`"
            )
        if self._shared:
            return PlacedWriter(self._folder, self.topic, clock=clock, known=known)
        self._check_known(known)  # before the writer becomes the owner
        return KafkaWriter(self.topic, self._folder, clock=clock)

    def id(self) -> str | None:
        """None if there is no topic. Queried at each call: a topic may be deleted and recreated."""
        found = self._admin.found()
        return None if found is None else found.id

    def partitions(self) -> Sequence[str]:
        return [self.name_of(number) for number in range(self._admin.described().partitions)]

    def end(self) -> Position:
        return self._position(self._admin.ends(range(self._admin.described().partitions)))

    def begin(self) -> Position:
        return self._position(self._admin.begins(range(self._admin.described().partitions)))

    def batches(self, partition: str, start: int, stop: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """A batch ends where a transaction does. `located` is faster for many events."""
        for offsets, batch in self.located(partition, start, stop):
            cuts = [0, *(np.flatnonzero(np.diff(offsets) > 1) + 1).tolist(), len(offsets)]
            for low, high in pairwise(cuts):
                yield int(offsets[low]), batch.slice(low, high - low)

    def located(self, partition: str, start: int, stop: int) -> Iterator[tuple[Offsets, pa.RecordBatch]]:
        """JournalCorrupt at a message that is no event, EventsGone if some events are deleted."""
        yield from self._events(partition, start, stop, lambda offset: True)

    def gather(self, partition: str, offsets: Offsets) -> Iterator[tuple[Offsets, pa.RecordBatch]]:
        """Messages between the offsets are fetched, but not parsed."""
        for wanted in np.split(offsets, np.flatnonzero(np.diff(offsets) > GAP_OFFSETS) + 1):
            if len(wanted):
                among = set(wanted.tolist())
                yield from self._events(partition, int(wanted[0]), int(wanted[-1]) + 1, among.__contains__)

    def close(self) -> None:
        self._fetcher.close()

    def _events(
        self, partition: str, start: int, stop: int, wanted: Callable[[int], bool]
    ) -> Iterator[tuple[Offsets, pa.RecordBatch]]:
        """The events of a range at wanted offsets.

        After each fetch the topic's id is checked: a reader may pause between two fetches, and the client would read on
        in another topic of the same name.
        """
        topic_id, number = self._checked(partition, start, stop)
        try:
            for messages in self._fetcher.messages(number, start, stop) if start < stop else ():
                found = [
                    message for message in messages if self._counts(number, message) and wanted(offset_of(message))
                ]
                self._check_same(topic_id)
                if found:
                    yield batch_of(found)
        except NoEvent as error:
            raise self._no_event(number, error) from error
        except Gone as error:
            self._check_same(topic_id)
            raise self._gone(number, start) from error

    def _counts(self, partition: int, message: Message) -> bool:
        return not self._passed_over or (partition, message.offset()) not in self._passed_over

    def _checked(self, partition: str, start: int, stop: int) -> tuple[str, int]:
        """The topic's id and the partition's number, after checking the range."""
        described = self._admin.described()
        numbers = {self.name_of(number): number for number in range(described.partitions)}
        if partition not in numbers:
            raise self._invalid(f"This topic has no partition {partition!r}")
        number = numbers[partition]
        end = self._admin.ends([number])[number]
        if not 0 <= start <= stop <= end:
            raise self._invalid(f"Offsets {start} to {stop} do not lie in partition {partition}, which ends at {end}")
        if start < stop and start < self._admin.begins([number])[number]:
            raise self._gone(number, start)
        return described.id, number

    def _check_same(self, topic_id: str) -> None:
        if self.id() != topic_id:
            raise JournalAway(
                f"The topic is another one than it was when the reader began: not {topic_id}",
                where=self.topic.where,
                next_step="Begin to read again, in the topic that is there now",
            )

    def _invalid(self, what: str) -> PositionInvalid:
        return PositionInvalid(
            what,
            where=self.topic.where,
            next_step="The reader's position belongs to another journal, or the topic was recreated",
        )

    def _position(self, offsets: dict[int, int]) -> Position:
        return Position.of({self.name_of(number): offset for number, offset in offsets.items()})

    def _gone(self, number: int, start: int) -> EventsGone:
        partition, begin = self.name_of(number), self._admin.begins([number])[number]
        return EventsGone(
            f"The events at {partition}:{start} to {partition}:{begin - 1} are gone: Kafka's retention deleted them",
            where=self.topic.where,
            next_step=f"Bring them back from a copy into a new topic, or begin at {self.begin()} without them; "
            "retention.ms=-1 keeps what is there now",
        )

    def _no_event(self, number: int, found: NoEvent) -> JournalCorrupt:
        return JournalCorrupt(
            f"The message at {self.name_of(number)}:{found.offset} is no event: {found.reason}",
            where=self.topic.where,
            next_step="Nothing was skipped. See who sends to this topic besides its owner; to read on without this "
            f"message, name it: pass_over {number}:{found.offset}",
        )


class TopicLog(Log):
    """A partition of a topic in one order; with no partition named, the topic's only one.

    Positions include the topic's name, as in stamps of a view that reads the topic with Spark: `billing-0:12`.
    JournalAway if there is no such topic, SettingInvalid if several partitions are there and none was named.
    """

    def __init__(self, journal: KafkaJournal, partition: str | None = None) -> None:
        self._journal, self._partition, self.topic = journal, partition, journal.topic
        self.upcasters = journal.upcasters

    @property
    def where(self) -> str:
        return self._journal.where

    def id(self) -> str | None:
        return self._journal.id()

    def begin(self) -> Position:
        return self._position(self._journal.begin())

    def end(self) -> Position:
        return self._position(self._journal.end())

    def durable_end(self) -> DurableEnd:
        """The end, without a place in files."""
        return DurableEnd(self.end().one(), 0, 0)

    def in_stamps(self, position: Position) -> Position:
        return self._journal.in_stamps(Position.of({self._partition or self._journal.name_of(0): position.one()}))

    def batches(self, start: int, stop: int, mark: DurableEnd | None = None) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Gaps occur between batches only."""
        yield from self._journal.batches(self._named(), start, stop)

    def _position(self, position: Position) -> Position:
        named = self._named()
        return self._journal.in_stamps(Position.of({named: position[named]}))

    def _named(self) -> str:
        """Looked up each time: partitions may be added to a topic during a read."""
        return self._partition or only(self._journal.partitions(), self.where, _ONE_PARTITION)


def _places(named: Iterable[str]) -> frozenset[tuple[int, int]]:
    """The messages named by these texts."""
    found = set()
    for text in named:
        partition, _, offset = text.partition(":")
        if not (partition.isdecimal() and offset.isdecimal()):
            raise PositionInvalid(f"{text!r} names no message", next_step="Write it like 0:17")
        found.add((int(partition), int(offset)))
    return frozenset(found)
