"""A Kafka writer's index: last sequences and ids of a topic's events, to number new events and recognise repeated ones.

In LMDB, with hashes of 16 bytes (`journal.index`) and numbers big-endian:

    "e" hash of an entity   -> u64 sequence of its last event
    "i" hash of an id       -> u32 partition, u64 offset of the first event with it
    "p" u32 partition       -> u64 offset up to which the index has its events, u64 offset after the last of them
    "t"                     -> the topic's id, and how many partitions it has

An index of another topic, or one beyond this topic's end, is rebuilt.

A folder has one index per concurrent writer, `0/`, `1/`, …: so an owner paused in the middle of a transaction does not
block its successor, which takes the next index.

`OwnedEvents` keeps the index up to date with all events of an owner's partitions.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateside.core.errors import EventsGone, JournalAway, JournalCorrupt
from stateside.core.positions import Position
from stateside.core.storage import CLOSED, try_lock
from stateside.journal.append_batch import EventPlace
from stateside.journal.backends.files.frames import Offsets
from stateside.journal.backends.kafka.admin import Admin, Described
from stateside.journal.backends.kafka.topic import Topic, partition_of
from stateside.journal.backends.kafka.topic_reader import KafkaJournal
from stateside.journal.backends.kafka.transactions import Delivered
from stateside.journal.index import DerivedIndex, hash_of, keeping

_NUMBER = struct.Struct(">Q")
_PLACE = struct.Struct(">IQ")
_REACHED = struct.Struct(">QQ")
_TOPIC = b"t"
_WHAT = "sequences and ids"


class TopicIndex(DerivedIndex):
    """The last sequences and the ids of a topic's events."""

    def __init__(self, folder: Path, topic: Described) -> None:
        self._topic = f"{topic.id} {topic.partitions}".encode()
        with keeping(_WHAT, folder):
            self.claimed, self._lock = _claimed(folder)
        try:
            super().__init__(self.claimed / "data", _WHAT)
            if self._environment.stat()["entries"] and self._stored(_TOPIC) != [(_TOPIC, self._topic)]:
                self.forget()
        except BaseException:
            os.close(self._lock)
            raise

    def lasts(self, entities: Iterable[str]) -> list[int]:
        """The sequence of each entity's last event; 0 for an entity without events."""
        found = self.values(b"e" + hash_of(entity) for entity in entities)
        return [0 if value is None else int(_NUMBER.unpack(value)[0]) for value in found]

    def places(self, ids: Iterable[str]) -> list[EventPlace | None]:
        """The place of the first event with each id; None for an id without event."""
        found = self.values(b"i" + hash_of(id_) for id_ in ids)
        return [None if value is None else _event_place(*_PLACE.unpack(value)) for value in found]

    def covers(self, partition: int) -> int:
        """The offset up to which the index has the partition's events."""
        return self._reached(partition)[0]

    def behind_last(self, partition: int) -> int:
        """The offset just after the partition's last indexed event; 0 if there is none."""
        return self._reached(partition)[1]

    def note(self, partition: int, offsets: Offsets | Sequence[int], batch: pa.RecordBatch) -> None:
        """Add events of a partition, after those indexed already."""
        entities, ids, sequences = (batch.column(name).to_pylist() for name in ("entity", "id", "sequence"))
        self.add((b"i" + hash_of(id_), _PLACE.pack(partition, at)) for id_, at in zip(ids, offsets, strict=True))
        lasts = dict(zip(entities, sequences, strict=True)).items()  # the last one of each entity
        behind = int(offsets[-1]) + 1
        self.add((b"e" + hash_of(entity), _NUMBER.pack(sequence)) for entity, sequence in lasts)
        self.add([(_partition_key(partition), _REACHED.pack(behind, behind))])

    def reach(self, partition: int, offset: int) -> None:
        """Move the covered offset to `offset`, with no events between the two."""
        reached, behind = self._reached(partition)
        if offset > reached:
            self.add([(_partition_key(partition), _REACHED.pack(offset, behind))])

    def counts(self, key: bytes, stored: bytes, new: bytes) -> bytes:
        """Of equal ids the first event counts; else the later value, as a partition is read in order."""
        return stored if key.startswith(b"i") else new

    def marks(self) -> list[tuple[bytes, bytes]]:
        return [(_TOPIC, self._topic)]

    def flush(self) -> None:
        if self._unwritten:
            super().flush()

    def close(self) -> None:
        """Write the index and release the files."""
        if self._lock == CLOSED:
            return
        try:
            self.flush()
        finally:
            super().close()
            lock, self._lock = self._lock, CLOSED
            os.close(lock)

    def _reached(self, partition: int) -> tuple[int, int]:
        (value,) = self.values([_partition_key(partition)])
        return (0, 0) if value is None else _REACHED.unpack(value)


def _claimed(folder: Path) -> tuple[Path, int]:
    """The folder's first index that no other writer has open, and its lock."""
    for number in count():
        directory = folder / str(number)
        directory.mkdir(parents=True, exist_ok=True)
        lock = try_lock(directory / "lock")
        if lock is not None:
            return directory, lock
    raise AssertionError("there is always a next number")


def _partition_key(partition: int) -> bytes:
    return b"p" + struct.pack(">I", partition)


class Moved(Exception):
    """Partitions have more, or fewer, messages than their owner knows; the messages sent just now do not count."""

    def __init__(self, delivered: Delivered) -> None:
        super().__init__(delivered)
        self.delivered = delivered


class OwnedEvents:
    """The events of an owner's partitions. For one thread at a time."""

    def __init__(
        self, journal: KafkaJournal, described: Described, partitions: Sequence[int], folder: Path, accept_gone: bool
    ) -> None:
        """Call `catch_up` to read new events."""
        self._journal, self._described, self._accept_gone = journal, described, accept_gone
        self._topic: Topic = journal.topic
        self._admin = Admin(journal.topic)
        self._partitions = partitions
        self._next: dict[int, int] = {}  # by partition: the expected offset of the next message
        self._index = TopicIndex(folder, described)
        self.lasts, self.places = self._index.lasts, self._index.places

    def partition_of(self, entity: str) -> int:
        return partition_of(entity, self._described.partitions)

    def end(self, partitions: Iterable[int]) -> Position:
        """The position just after the last events of these partitions."""
        return position_of({number: self._index.behind_last(number) for number in partitions})

    def check(self, delivered: Delivered) -> None:
        """Moved, unless the delivered messages directly follow the known ones, without gaps."""
        for number, offsets in delivered.items():
            if offsets[0] != self._next[number] or offsets[-1] - offsets[0] != len(offsets) - 1:
                raise Moved(delivered)

    def note(
        self, batch: pa.RecordBatch, partitions: Sequence[int], delivered: Delivered, ends: Mapping[int, int]
    ) -> list[EventPlace]:
        """Add stored events, each in its partition; returns their places.

        The transaction's marker follows them, or a foreign message and then the marker: `ends`, the partitions' ends
        afterwards, show which.
        """
        numbers = np.array(partitions)
        for number, offsets in delivered.items():
            self._index.note(number, offsets, batch.take(pa.array(np.flatnonzero(numbers == number))))
            self._next[number] = offsets[-1] + 2
            if ends[number] == self._next[number]:
                self._index.reach(number, ends[number])
        each = {number: iter(offsets) for number, offsets in delivered.items()}
        return [_event_place(number, next(each[number])) for number in partitions]

    def catch_up(self, partitions: Sequence[int]) -> None:
        """Read all new events of these partitions. JournalAway if the topic is not the one of the start."""
        if self._admin.described() != self._described:
            raise self._another()
        ends = self._admin.ends(partitions)
        if any(self._index.covers(number) > ends[number] for number in partitions):
            self._index.forget()
            partitions, ends = self._partitions, self._admin.ends(self._partitions)
        for number in partitions:
            self._read(number, ends[number])
            self._next[number] = ends[number]

    def make_room(self) -> None:
        """Write unwritten entries to disk if there are many: before an append, as nothing may fail after one."""
        self._index.flush_if_due()

    def write(self) -> None:
        self._index.flush()

    def close(self) -> None:
        self._index.close()

    def _read(self, number: int, end: int) -> None:
        start, begin = self._index.covers(number), self._admin.begins([number])[number]
        if start < begin:
            if not self._accept_gone:
                raise self._gone(number, start, begin)
            start = min(begin, end)
        for offsets, batch in self._journal.located(str(number), start, end):
            self._check_partition(number, batch)
            self._index.note(number, offsets.tolist(), batch)
            self._index.flush_if_due()
        self._index.reach(number, end)

    def _check_partition(self, number: int, batch: pa.RecordBatch) -> None:
        for entity in pc.unique(batch.column("entity")).to_pylist():
            if self.partition_of(entity) != number:
                raise JournalCorrupt(
                    f"Events of {entity!r} stand in partition {number}; of {self._described.partitions} partitions "
                    f"theirs is {self.partition_of(entity)}",
                    where=self._topic.where,
                    next_step="Nothing was stored. A journal keeps its number of partitions: were some added to the "
                    "topic? Copy the events into a new topic then",
                )

    def _another(self) -> JournalAway:
        return JournalAway(
            f"The topic is another one than it was when this writer was opened: not {self._described.id}, "
            f"with {self._described.partitions} partitions",
            where=self._topic.where,
            next_step="Nothing was stored. If it was recreated on purpose, open the journal again; else bring it back",
        )

    def _gone(self, number: int, start: int, begin: int) -> EventsGone:
        return EventsGone(
            f"The events at {number}:{start} to {number}:{begin - 1} are gone: Kafka's retention deleted them before "
            "this writer's index knew of them, so the last sequences of their entities are not known",
            where=self._topic.where,
            next_step=f"Bring back an index that knows them ({self._index.claimed.parent}, from the machine of the "
            "last owner), or go on without them (accept_gone): entities of which nothing is left then begin with 1",
        )


def _event_place(partition: int, offset: int) -> EventPlace:
    return EventPlace(str(partition), offset)


def position_of(offsets: dict[int, int]) -> Position:
    return Position.of({str(partition): offset for partition, offset in offsets.items()})
