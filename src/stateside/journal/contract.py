"""What a journal is, whatever it is stored on. `tests/contract` has the suite that every backend passes.

    Journal     events in partitions, each with an offset; read by anybody, and appended by `writer`
    Log         the events of one partition, in one order
    Writer      appends: durable once they return, all or none, each id once, sequences of an entity without gaps

A partition is a sequence of events with offsets from 0 on. An event never changes its offset, and all events of an
entity are in one partition, in the order of their sequence. Some offsets may have no event: on Kafka, transaction
markers take offsets too. So the end covers every receipt, but need not equal one.

A receipt is the position just after the events of an append (`Position`), or that position with the sequences of the
events (`Receipt`). A view on the journal has the events once its stamp covers the receipt.

Errors: EventRefused for what is no event, IdConflict for a stored id with other content, SequenceConflict for another
sequence than expected; PositionInvalid for a position beyond the end, EventsGone for events dropped on purpose,
JournalCorrupt for missing or damaged ones; JournalAway while the storage cannot be reached, JournalLocked and
JournalFenced where another process writes, EntityElsewhere where another writer has the entity.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import ClassVar, Protocol, Self

import numpy as np
import pyarrow as pa

from stateside.core.clock import Clock
from stateside.core.errors import JournalAway, PositionInvalid, SettingInvalid
from stateside.core.positions import Position
from stateside.journal.append_batch import Answer, Appended, EventPlace
from stateside.journal.backends.files.frames import Offsets
from stateside.journal.backends.files.segment import PARTITION, DurableEnd
from stateside.journal.columns import decode
from stateside.journal.event import Event
from stateside.journal.group_commit import Told
from stateside.journal.receipt import Receipt
from stateside.journal.upcasters import Upcasters

__all__ = [
    "PARTITION",
    "Answer",
    "Appended",
    "DurableEnd",
    "EventPlace",
    "Journal",
    "Log",
    "Offsets",
    "Receipt",
    "Writer",
]

PAUSE_S_MIN = 0.0005
GAP_EVENTS = 64  # reading so many unwanted events is cheaper than another request


class Writer(Protocol):
    """Appends to a journal. Threads may share a writer."""

    @property
    def end(self) -> Position:
        """The position after the last durable event, as of this writer's last append."""

    def append(self, events: Sequence[Event], *, compare_ids: bool = True) -> Position:
        """Store the events, all or none, and return their receipt once they are durable.

        An id is stored once: an event already stored with the same content is not stored again, and the receipt covers
        the stored event. IdConflict if the journal, or this append, has the id with other content. A producer that
        guarantees unique ids can skip the lookup (`compare_ids=False`): a repeated id is then stored again.
        """

    def append_each(
        self, events: Sequence[Event], *, compare_ids: bool = True, any_time: Collection[str] = ()
    ) -> Appended:
        """As `append`; returns the place of each event, and which events were stored before.

        `any_time`: ids of events whose producer gave no time; their times are not compared.
        """

    def submit(self, events: Sequence[Event], told: Told, *, any_time: Collection[str] = ()) -> None:
        """As `append_each`, without waiting: `told` gets the answer, or the error, in another thread.

        `told` must neither block nor fail.
        """

    def append_once(self, events: Sequence[Event]) -> list[Position]:
        """As `append`; returns the receipt of each event, or of its stored original."""

    def append_unstored(self, events: Sequence[Event], since: Position) -> Position:
        """Repeat an append without a receipt; `since` is its producer's last receipt. The receipt covers all events.

        Same as `append`, whose id lookup finds stored events; `since` is only checked.
        """

    def append_batch(self, batch: pa.RecordBatch) -> Position:
        """Store the events of a record batch with at least the columns `columns.GIVEN`.

        The journal assigns the sequences, whatever the batch has. Ids are not compared: for producers that guarantee
        unique ids, and for copies of streams with repetitions.
        """

    def append_to(self, entity: str, events: Sequence[Event], expected_sequence: int | None = None) -> Receipt:
        """Store events of one entity if its last event has the expected sequence (0: the entity has no event yet).

        Otherwise SequenceConflict, with the current sequence. The same events again, recognised by their ids, get the
        first receipt and are not stored twice, whatever sequence is expected. IdConflict if their content differs;
        EventRefused if only some of the ids are stored, or an event belongs to another entity.
        """

    def receipt_of(self, entity: str, id_: str) -> Receipt | None:
        """The receipt of the entity's event with this id; None if no event has the id.

        IdConflict if the event belongs to another entity.
        """

    def close(self) -> None:
        """Release the storage. Acknowledged events are durable already; a later append raises JournalAway."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *error: object) -> None: ...


class Log(ABC):
    """Events in one order, read only. Shows exactly the durable events, whose append was, or will be, acknowledged."""

    upcasters: Upcasters = Upcasters()  # convert each of `events` to its type's newest schema

    @property
    @abstractmethod
    def where(self) -> str:
        """For messages."""

    @abstractmethod
    def id(self) -> str | None:
        """The journal's id, constant for its life and unique to it; None before the first writer.

        Looked up at each call, as a journal may be replaced.
        """

    @abstractmethod
    def begin(self) -> Position:
        """The position of the first event not dropped: the start, until retention drops some."""

    @abstractmethod
    def durable_end(self) -> DurableEnd:
        """The end with its place in the files: later reads from there find their frame without a search."""

    @abstractmethod
    def batches(self, start: int, stop: int, mark: DurableEnd | None = None) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The events with offsets start <= offset < stop, each batch with the offset of its first event.

        A batch has no gaps, and is in the journal's schema (`columns`). `mark` is an earlier `durable_end` at or before
        `start`, if the reader has one: it saves the search for the frame.
        """

    def in_stamps(self, position: Position) -> Position:
        """A position in this log, such as {PARTITION: 12}, in the form of the stamps of a view on the journal."""
        return position

    def end(self) -> Position:
        """The position after the last durable event."""
        return self.in_stamps(Position.of({PARTITION: self.durable_end().offset}))

    def offset_at(self, position: Position) -> int:
        """The offset of a position from a stamp; PositionInvalid if the position is not in this log."""
        offset = position.one()
        if self.in_stamps(Position.of({PARTITION: offset})) != position:
            raise PositionInvalid(
                f"{str(position)[:80]!r} is no position in this folder's journal, and its events cannot be shown",
                where=self.where,
                next_step="The view has read another journal, or a topic: ask where that is",
            )
        return offset

    def events(self, start: Position | None = None, stop: Position | None = None) -> Iterator[Event]:
        """The events from one position up to another (the end by default), in order."""
        last = self.offset_at(self.end() if stop is None else stop)
        for _, batch in self.batches(0 if start is None else self.offset_at(start), last):
            yield from self.upcasters.all(decode(batch))

    def unstored(self, events: Sequence[Event], since: Position) -> list[Event]:
        """The events whose ids are not in the log from a position on.

        For a producer that got no receipt: `since` is its last receipt, and it appends the returned events again. A
        writer must have opened the journal meanwhile, to settle the fate of the append.
        """
        wanted = {event.id for event in events}
        for _, batch in self.batches(self.offset_at(since), self.end().one()):
            wanted.difference_update(batch.column("id").to_pylist())
        return [event for event in events if event.id in wanted]


class Journal(ABC):
    """Durable events by partition and offset. Any number of threads and processes may read, while others write."""

    pause_s_max: ClassVar[float] = 0.01  # between two looks at the end: reading the end mark takes some 20 µs
    upcasters: Upcasters = Upcasters()  # convert each of `events` to its type's newest schema

    @property
    @abstractmethod
    def where(self) -> str:
        """For messages."""

    @abstractmethod
    def id(self) -> str | None:
        """The journal's id, constant for its life and unique to it; None before the journal was created."""

    @abstractmethod
    def partitions(self) -> Sequence[str]:
        """The names of the partitions, always in the same order; new ones come last."""

    @abstractmethod
    def end(self) -> Position:
        """The position after the last durable event of every partition. Never moves back."""

    @abstractmethod
    def batches(self, partition: str, start: int, stop: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The events with offsets start <= offset < stop, each batch with the offset of its first event.

        A batch has no gaps, and is in the journal's schema (`columns`). PositionInvalid if the range goes beyond the
        end; JournalCorrupt if events are missing, EventsGone if they were dropped on purpose. Memory: one batch, of a
        few MiB or of one append.
        """

    def log(self, partition: str | None = None) -> Log:
        """The events of a partition, by default of the only one: SettingInvalid if there are several."""
        raise SettingInvalid("This journal has no log", where=self.where, next_step="Use a journal on files or Kafka")

    def writer(self, *, clock: Clock | None = None, known: str | None = None) -> Writer:
        """A writer of this journal. `known`: the expected id: JournalAway if another journal, or none, is there.

        Receipts are positions as in stamps (`in_stamps`).
        """
        raise SettingInvalid("This journal is read only", where=self.where, next_step="Append where it is written")

    def begin(self) -> Position:
        """The position of the first events not dropped."""
        return Position.start()

    def acknowledged(self) -> Position:
        """The position after all acknowledged events; with nodes, including those not yet merged."""
        return self.end()

    def in_stamps(self, position: Position) -> Position:
        """A position in this journal in the form of the stamps of a view on the journal."""
        return position

    def sources(self, offsets: Mapping[str, int], marks: Mapping[str, DurableEnd] | None = None) -> Position:
        """Of a merged journal: a position in the nodes' logs, all events before which are before these offsets.

        `marks` are earlier ends of the partitions, at or before the offsets: they save a search.
        """
        return Position.start()

    def tail(self, entity: str, first: int, last: int) -> list[Event]:
        """The entity's events with sequences `first` to `last`, up to the first gap, that are not merged yet."""
        return []

    def logs(self) -> Mapping[str, Log]:
        """The log of each partition."""
        return {name: self.log(name) for name in self.partitions()}

    def located(self, partition: str, start: int, stop: int) -> Iterator[tuple[Offsets, pa.RecordBatch]]:
        """As `batches`, with the offset of each event: a batch may span a gap."""
        for first, batch in self.batches(partition, start, stop):
            yield np.arange(first, first + batch.num_rows), batch

    def gather(self, partition: str, offsets: Offsets) -> Iterator[tuple[Offsets, pa.RecordBatch]]:
        """The events at these ascending offsets: in groups, each with its offsets."""
        for wanted in np.split(offsets, np.flatnonzero(np.diff(offsets) > GAP_EVENTS) + 1):
            for found, batch in self.located(partition, int(wanted[0]), int(wanted[-1]) + 1) if len(wanted) else ():
                rows = np.flatnonzero(np.isin(found, wanted, assume_unique=True))
                if len(rows):
                    yield found[rows], batch.take(pa.array(rows))

    def events(self, start: Position | None = None, stop: Position | None = None) -> Iterator[Event]:
        """The events from one position up to another (the end by default), one partition after the other."""
        first, last = start or Position.start(), stop or self.end()
        for partition in self._named(first, last):
            for _, batch in self.located(partition, first[partition], last[partition]):
                yield from self.upcasters.all(decode(batch))

    def unstored(self, events: Sequence[Event], since: Position) -> list[Event]:
        """As `Log.unstored`."""
        wanted, end = {event.id for event in events}, self.end()
        for partition in self._named(since, end):
            for _, batch in self.located(partition, since[partition], end[partition]):
                wanted.difference_update(batch.column("id").to_pylist())
        return [event for event in events if event.id in wanted]

    def wait(self, position: Position, timeout_s: float) -> bool:
        """Wait until the end has moved beyond the position, or the timeout; whether it moved. 0 s: only check."""
        deadline, pause_s = time.monotonic() + timeout_s, PAUSE_S_MIN
        while position.covers(self.end()):
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return False
            time.sleep(min(pause_s, left_s))
            pause_s = min(2 * pause_s, self.pause_s_max)
        return True

    def close(self) -> None:  # noqa: B027 (most journals keep nothing open)
        """Release connections. The journal may be used again."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _check_known(self, known: str | None) -> None:
        """JournalAway if another journal than the expected one, or none, is there."""
        if known is not None and (found := self.id()) != known:
            raise JournalAway(
                f"The journal is away: here is {found or 'none'}, not {known}",
                where=self.where,
                next_step="Nothing was stored. Bring the journal back, or use another folder for a new one",
            )

    def _named(self, *positions: Position) -> Sequence[str]:
        """The partitions; PositionInvalid if a position names another one."""
        partitions = self.partitions()
        for position in positions:
            for name, _ in position.parts:
                if name not in partitions:
                    raise PositionInvalid(
                        f"This journal has {len(partitions)} partitions, and none is {name!r}",
                        where=self.where,
                        next_step="The reader's position belongs to another journal",
                    )
        return partitions


def only(names: Sequence[str], where: str, next_step: str) -> str:
    """The only one of these partitions; SettingInvalid if there are several, or none."""
    if len(names) != 1:
        what = (
            "several partitions, and no order of its events that is the same for all" if names else "no partition yet"
        )
        raise SettingInvalid(
            f"This journal has {what}",
            where=where,
            next_step=next_step,
        )
    return names[0]
