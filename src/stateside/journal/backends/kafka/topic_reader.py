"""Reads of a journal on Kafka, from any process, while its owners write."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from types import TracebackType

import numpy as np
import pyarrow as pa

from stateside.core.errors import EventsGone, JournalAway, JournalCorrupt, PositionInvalid
from stateside.core.positions import Position
from stateside.journal.backends.files.file_journal import moved
from stateside.journal.backends.files.frames import Offsets
from stateside.journal.backends.kafka.admin import Admin
from stateside.journal.backends.kafka.consumers import MESSAGES_AT_ONCE, Fetcher, Gone
from stateside.journal.backends.kafka.messages import Message, NoEvent, batch_of, offset_of
from stateside.journal.backends.kafka.topic import Topic
from stateside.journal.columns import decode
from stateside.journal.event import Event
from stateside.journal.upcasters import Upcasters

PAUSE_S_MAX = 0.05  # reading the end queries a broker, in about a millisecond
GAP_OFFSETS = MESSAGES_AT_ONCE  # reading so many unwanted messages is as fast as another request


class KafkaJournal:
    """A topic's committed events. Reads as `Journal` does, and is a `Stream`: sparse, trimmed, and gathering.

    Offsets are those of the topic. Transaction markers take some of them, so not every offset has an event; the end is
    after the last marker, covers every receipt, and never moves back.

    Any number of threads may read. With `upcasters`, `events` converts each event to its type's newest schema.
    `pass_over` names messages that are no events and must not stop a reader: partition and offset, like 0:17.
    """

    def __init__(self, topic: Topic, *, upcasters: Upcasters | None = None, pass_over: Iterable[str] = ()) -> None:
        self.topic = topic
        self._upcasters = upcasters or Upcasters()
        self._passed_over = _places(pass_over)
        self._admin, self._fetcher = Admin(topic), Fetcher(topic)

    def id(self) -> str | None:
        """The topic's id, constant for its life and unique to it; None if there is no topic.

        Queried at each call: a topic may be deleted and recreated.
        """
        found = self._admin.found()
        return None if found is None else found.id

    def partitions(self) -> Sequence[str]:
        """The names of the partitions: 0, 1, 2, …"""
        return [str(number) for number in range(self._admin.described().partitions)]

    def end(self) -> Position:
        """The position after all committed events."""
        return _position(self._admin.ends(range(self._admin.described().partitions)))

    def begin(self) -> Position:
        """The position of the first events not deleted by retention."""
        return _position(self._admin.begins(range(self._admin.described().partitions)))

    def events(self, start: Position | None = None, stop: Position | None = None) -> Iterator[Event]:
        """The events from one position up to another (the end by default), one partition after the other."""
        first, last = start or Position.start(), stop or self.end()
        for partition in self._named(first, last):
            for _, batch in self.located(partition, first[partition], last[partition]):
                yield from self._upcasters.all(decode(batch))

    def unstored(self, events: Sequence[Event], since: Position) -> list[Event]:
        """The events whose ids are not in the journal from a position on."""
        wanted, end = {event.id for event in events}, self.end()
        for partition in self._named(since, end):
            for _, batch in self.located(partition, since[partition], end[partition]):
                wanted.difference_update(batch.column("id").to_pylist())
        return [event for event in events if event.id in wanted]

    def batches(self, partition: str, start: int, stop: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """As `Stream.batches`: a batch ends where a transaction does. `located` is faster for many events."""
        for offsets, batch in self.located(partition, start, stop):
            cuts = [0, *(np.flatnonzero(np.diff(offsets) > 1) + 1).tolist(), len(offsets)]
            for low, high in pairwise(cuts):
                yield int(offsets[low]), batch.slice(low, high - low)

    def located(self, partition: str, start: int, stop: int) -> Iterator[tuple[Offsets, pa.RecordBatch]]:
        """As `Sparse.located`. JournalCorrupt at a message that is no event, EventsGone if some events are deleted."""
        yield from self._events(partition, start, stop, lambda offset: True)

    def gather(self, partition: str, offsets: Offsets) -> Iterator[tuple[Offsets, pa.RecordBatch]]:
        """As `Gathering.gather`: messages between the offsets are fetched, but not parsed."""
        for wanted in np.split(offsets, np.flatnonzero(np.diff(offsets) > GAP_OFFSETS) + 1):
            if len(wanted):
                among = set(wanted.tolist())
                yield from self._events(partition, int(wanted[0]), int(wanted[-1]) + 1, among.__contains__)

    def wait(self, position: Position, timeout_s: float) -> bool:
        """As `Stream.wait`: polls the end, with growing pauses."""
        return moved(self.end, position, timeout_s, PAUSE_S_MAX)

    def close(self) -> None:
        """Close the connections. The journal may be used again."""
        self._fetcher.close()

    def __enter__(self) -> KafkaJournal:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _events(
        self, partition: str, start: int, stop: int, wanted: Callable[[int], bool]
    ) -> Iterator[tuple[Offsets, pa.RecordBatch]]:
        """The events of a range at wanted offsets.

        After each fetch the topic's id is checked: a reader may pause between two fetches, and the client would read on
        in another topic of the same name.
        """
        topic_id = self._checked(partition, start, stop)
        number = int(partition)
        try:
            for messages in self._fetcher.messages(number, start, stop) if start < stop else ():
                found = [
                    message for message in messages if self._counts(number, message) and wanted(offset_of(message))
                ]
                self._check_same(topic_id)
                if found:
                    yield batch_of(found)
        except NoEvent as error:
            raise self._no_event(partition, error) from error
        except Gone as error:
            self._check_same(topic_id)
            raise self._gone(partition, start) from error

    def _counts(self, partition: int, message: Message) -> bool:
        return not self._passed_over or (partition, message.offset()) not in self._passed_over

    def _named(self, *positions: Position) -> Sequence[str]:
        """The partitions; PositionInvalid if a position names another one."""
        partitions = self.partitions()
        for position in positions:
            for name, _ in position.parts:
                if name not in partitions:
                    raise self._invalid(f"This topic has {len(partitions)} partitions, and none is {name!r}")
        return partitions

    def _checked(self, partition: str, start: int, stop: int) -> str:
        """The topic's id, after checking the range."""
        described = self._admin.described()
        if partition not in map(str, range(described.partitions)):
            raise self._invalid(f"This topic has no partition {partition!r}")
        number = int(partition)
        end = self._admin.ends([number])[number]
        if not 0 <= start <= stop <= end:
            raise self._invalid(f"Offsets {start} to {stop} do not lie in partition {partition}, which ends at {end}")
        if start < stop and start < self._admin.begins([number])[number]:
            raise self._gone(partition, start)
        return described.id

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

    def _gone(self, partition: str, start: int) -> EventsGone:
        begin = self._admin.begins([int(partition)])[int(partition)]
        return EventsGone(
            f"The events at {partition}:{start} to {partition}:{begin - 1} are gone: Kafka's retention deleted them",
            where=self.topic.where,
            next_step=f"Bring them back from a copy into a new topic, or begin at {self.begin()} without them; "
            "retention.ms=-1 keeps what is there now",
        )

    def _no_event(self, partition: str, found: NoEvent) -> JournalCorrupt:
        return JournalCorrupt(
            f"The message at {partition}:{found.offset} is no event: {found.reason}",
            where=self.topic.where,
            next_step="Nothing was skipped. See who sends to this topic besides its owner; to read on without this "
            f"message, name it: pass_over {partition}:{found.offset}",
        )


def _position(offsets: dict[int, int]) -> Position:
    return Position.of({str(partition): offset for partition, offset in offsets.items()})


def _places(named: Iterable[str]) -> frozenset[tuple[int, int]]:
    """The messages named by these texts."""
    found = set()
    for text in named:
        partition, _, offset = text.partition(":")
        if not (partition.isdecimal() and offset.isdecimal()):
            raise PositionInvalid(f"{text!r} names no message", next_step="Write it like 0:17")
        found.add((int(partition), int(offset)))
    return frozenset(found)
