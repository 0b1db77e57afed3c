"""A journal in memory, for tests of code that appends and reads: the same contract, for the life of the process.

journal = MemoryJournal()
with journal.writer() as writer:
    writer.append_to("emma", [Event("c-1", "emma", "call", 0, {})], expected_sequence=0)
assert [event.sequence for event in journal.events()] == [1]
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from uuid import uuid4

import pyarrow as pa

from stateside.core.clock import Clock, SystemClock
from stateside.core.errors import PositionInvalid
from stateside.core.positions import Position
from stateside.journal.backends.files.segment import PARTITION
from stateside.journal.columns import decode
from stateside.journal.event import Event
from stateside.journal.upcasters import Upcasters
from stateside.journal.writer import Appending


class MemoryJournal:
    """Reads as `Journal` does. Any number of writers, in any threads, append in turns."""

    def __init__(self, *, upcasters: Upcasters | None = None) -> None:
        self._upcasters = upcasters or Upcasters()
        self._id: str | None = None
        self._batches: list[tuple[int, pa.RecordBatch]] = []
        self._end = 0
        self._appending = threading.RLock()
        self._offsets: dict[str, int] = {}
        self._lasts: dict[str, int] = {}

    def writer(self, clock: Clock | None = None) -> MemoryWriter:
        self._id = self._id or str(uuid4())
        return MemoryWriter(self, clock or SystemClock())

    def id(self) -> str | None:
        """The journal's id; None before the first writer."""
        return self._id

    def end(self) -> Position:
        """The position after the last event."""
        return Position.of({PARTITION: self._end})

    def events(self, start: Position | None = None, stop: Position | None = None) -> Iterator[Event]:
        """The events from one position up to another (the end by default), in order."""
        first = 0 if start is None else start[PARTITION]
        for _, batch in self.batches(first, (stop or self.end())[PARTITION]):
            yield from self._upcasters.all(decode(batch))

    def unstored(self, events: Sequence[Event], since: Position) -> list[Event]:
        """The events whose ids are not in the journal from a position on."""
        there = {event.id for event in self.events(since)}
        return [event for event in events if event.id not in there]

    def batches(self, start: int, stop: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The events with offsets start <= offset < stop, each batch with the offset of its first event."""
        if not 0 <= start <= stop <= self._end:
            raise PositionInvalid(
                f"Offsets {start} to {stop} do not lie in this journal, which ends at {self._end}",
                next_step="The reader's position belongs to another journal",
            )
        for first, batch in list(self._batches):
            begin, end = max(start, first), min(stop, first + batch.num_rows)
            if begin < end:
                yield begin, batch.slice(begin - first, end - begin)


class MemoryWriter(Appending):
    def __init__(self, journal: MemoryJournal, clock: Clock) -> None:
        super().__init__(clock)
        self._journal = journal

    def close(self) -> None:
        """Nothing to release."""

    def __enter__(self) -> MemoryWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def _offset(self) -> int:
        return self._journal._end

    @contextmanager
    def _turn(self) -> Iterator[None]:
        with self._journal._appending:
            yield

    def _store(self, batch: pa.RecordBatch) -> None:
        journal = self._journal
        for offset, id_ in enumerate(batch.column("id").to_pylist(), journal._end):
            journal._offsets.setdefault(id_, offset)
        journal._batches.append((journal._end, batch))
        journal._end += batch.num_rows

    def _read(self, start: int, stop: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        return self._journal.batches(start, stop)

    def _offsets(self, ids: Sequence[str]) -> Sequence[int | None]:
        return [self._journal._offsets.get(id_) for id_ in ids]

    def _lasts(self, entities: Sequence[str]) -> Sequence[int]:
        return [self._journal._lasts.get(entity, 0) for entity in entities]

    def _note(self, lasts: Mapping[str, int]) -> None:
        self._journal._lasts.update(lasts)
