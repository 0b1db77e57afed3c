"""What an owner knows of its partitions: all that they have, as the topic says it, and how it comes to know."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateside.errors import EventsGone, JournalAway, JournalCorrupt
from stateside.journal import content
from stateside.journal.kafka.admin import Admin, Described
from stateside.journal.kafka.index import Index, Place
from stateside.journal.kafka.journal import KafkaJournal
from stateside.journal.kafka.lane import Delivered
from stateside.journal.kafka.topic import Topic, partition_of
from stateside.journal.receipt import Stored
from stateside.positions import Position

_KNOWN_BY = ("id", "entity", "sequence")


class Moved(Exception):
    """Partitions have more, or less, than their owner knows; what was sent to them just now does not count."""

    def __init__(self, delivered: Delivered) -> None:
        super().__init__(delivered)
        self.delivered = delivered


class Known:
    """The events of an owner's partitions. For one thread at a time."""

    def __init__(
        self, journal: KafkaJournal, described: Described, partitions: Sequence[int], folder: Path, accept_gone: bool
    ) -> None:
        """Knows nothing new until `catch_up`."""
        self._journal, self._described, self._accept_gone = journal, described, accept_gone
        self._topic: Topic = journal.topic
        self._admin = Admin(journal.topic)
        self._partitions = partitions
        self._next: dict[int, int] = {}  # by partition: the offset that the next message must get
        self._index = Index(folder, described)
        self.lasts, self.places = self._index.lasts, self._index.places

    def partition_of(self, entity: str) -> int:
        """The partition that an entity's events stand in."""
        return partition_of(entity, self._described.partitions)

    def end(self, partitions: Iterable[int]) -> Position:
        """The position just behind the last events of these partitions."""
        return position_of({number: self._index.behind_last(number) for number in partitions})

    def stored(self, ids: Sequence[str]) -> list[Stored]:
        """Those of the events with these ids that are there, as they stand in the topic."""
        found: list[Stored] = []
        for id_, place in zip(ids, self.places(ids), strict=True):
            if place is not None:
                found.extend(self._stored_at(place, id_))
        return found

    def contents(self, places: Collection[content.Place]) -> dict[content.Place, content.Found]:
        """What the events at these places say. Those that Kafka's retention deleted are left out."""
        found: dict[content.Place, content.Found] = {}
        for partition in {place.log for place in places}:

            def read(start: int, stop: int, of: str = partition) -> Iterator[tuple[Sequence[int], pa.RecordBatch]]:
                for offsets, batch in self._journal.located(of, start, stop):
                    yield offsets.tolist(), batch

            offsets = [place.offset for place in places if place.log == partition]
            found |= content.read_contents(read, partition, offsets)
        return found

    def _stored_at(self, place: Place, id_: str) -> Iterator[Stored]:
        try:
            for _, batch in self._journal.located(str(place.partition), place.offset, place.offset + 1):
                id_, entity, sequence = (batch.column(name)[0].as_py() for name in _KNOWN_BY)
                yield Stored(place.offset, id_, entity, sequence, str(place.partition))
        except (EventsGone, JournalCorrupt) as error:
            yield Stored.without_content(place.offset, id_, error, str(place.partition))

    def check(self, delivered: Delivered) -> None:
        """Moved, unless messages that got these offsets stand just behind what is known, and nothing among them."""
        for number, offsets in delivered.items():
            if offsets[0] != self._next[number] or offsets[-1] - offsets[0] != len(offsets) - 1:
                raise Moved(delivered)

    def note(
        self, batch: pa.RecordBatch, partitions: Sequence[int], delivered: Delivered, ends: Mapping[int, int]
    ) -> list[Place]:
        """These events, each in its partition, were stored there; where each of them stands.

        The mark of the transaction stands behind them, or somebody else's message and then the mark: `ends`, where the
        partitions ended afterwards, say which.
        """
        numbers = np.array(partitions)
        for number, offsets in delivered.items():
            self._index.note(number, offsets, batch.take(pa.array(np.flatnonzero(numbers == number))))
            self._next[number] = offsets[-1] + 2
            if ends[number] == self._next[number]:
                self._index.reach(number, ends[number])
        each = {number: iter(offsets) for number, offsets in delivered.items()}
        return [Place(number, next(each[number])) for number in partitions]

    def catch_up(self, partitions: Sequence[int]) -> None:
        """Know all that these partitions have. JournalAway if the topic is another one than at the start."""
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
        """Have on disk what has gathered in memory, if that is much: before an append, as none may fail after one."""
        self._index.write_if_due()

    def write(self) -> None:
        """Have on disk what is known."""
        self._index.write()

    def close(self) -> None:
        """Let the files go."""
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
            self._index.write_if_due()
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
            next_step="Nothing was stored. If it was made anew on purpose, open the journal again; else bring it back",
        )

    def _gone(self, number: int, start: int, begin: int) -> EventsGone:
        return EventsGone(
            f"The events at {number}:{start} to {number}:{begin - 1} are gone: Kafka's retention deleted them before "
            "this writer's index knew of them, so the last sequences of their entities are not known",
            where=self._topic.where,
            next_step=f"Bring back an index that knows them ({self._index.directory.parent}, from the machine of the "
            "last owner), or go on without them (accept_gone): entities of which nothing is left then begin with 1",
        )


def position_of(offsets: dict[int, int]) -> Position:
    """The position with these offsets."""
    return Position.of({str(partition): offset for partition, offset in offsets.items()})
