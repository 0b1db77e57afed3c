"""A journal in memory, for tests of code that appends and reads: the same contract, for the life of the process.

journal = MemoryJournal()
with journal.writer() as writer:
    writer.append_to("emma", [Event("c-1", "emma", "call", 0, {})], expected_sequence=0)
assert [event.sequence for event in journal.events()] == [1]
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from uuid import uuid4

import pyarrow as pa

from stateside.core.clock import Clock, SystemClock
from stateside.core.errors import PositionInvalid
from stateside.core.positions import Position
from stateside.journal.append_batch import EventPlace
from stateside.journal.backends.files.segment import PARTITION
from stateside.journal.contract import Journal
from stateside.journal.upcasters import Upcasters
from stateside.journal.writer import LogWriter, Names, OneLog, Result


class MemoryJournal(Journal):
    """Any number of writers, in any threads, append in turns."""

    def __init__(self, *, upcasters: Upcasters | None = None) -> None:
        self.upcasters = upcasters or Upcasters()
        self._id: str | None = None
        self._batches: list[tuple[int, pa.RecordBatch]] = []
        self._end = 0
        self._appending = threading.RLock()
        self._offsets: dict[str, int] = {}
        self._lasts: dict[str, int] = {}

    @property
    def where(self) -> str:
        return "memory"

    def writer(self, *, clock: Clock | None = None, known: str | None = None) -> MemoryWriter:
        self._check_known(known)
        self._id = self._id or str(uuid4())
        return MemoryWriter(self, clock or SystemClock())

    def id(self) -> str | None:
        """The journal's id; None before the first writer."""
        return self._id

    def end(self) -> Position:
        return Position.of({PARTITION: self._end})

    def partitions(self) -> Sequence[str]:
        return (PARTITION,)

    def batches(self, partition: str, start: int, stop: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        if not 0 <= start <= stop <= self._end:
            raise PositionInvalid(
                f"Offsets {start} to {stop} do not lie in this journal, which ends at {self._end}",
                next_step="The reader's position belongs to another journal",
            )
        for first, batch in list(self._batches):
            begin, end = max(start, first), min(stop, first + batch.num_rows)
            if begin < end:
                yield begin, batch.slice(begin - first, end - begin)


class MemoryWriter(LogWriter):
    def __init__(self, journal: MemoryJournal, clock: Clock) -> None:
        super().__init__(clock)
        self._journal = journal

    def close(self) -> None:
        """Nothing to release."""

    @property
    def end(self) -> Position:
        return self._journal.end()

    def _in_turn(self, act: Callable[[], Result], names: Names) -> Result:
        with self._journal._appending:
            return act()

    def _check_since(self, since: Position) -> None:
        for _ in self._journal.batches(PARTITION, since[PARTITION], self._journal._end):  # PositionInvalid
            break

    def _store(self, batch: pa.RecordBatch, lasts: Mapping[str, int]) -> OneLog:
        journal, first = self._journal, self._journal._end
        for offset, id_ in enumerate(batch.column("id").to_pylist(), first):
            journal._offsets.setdefault(id_, offset)
        journal._batches.append((first, batch))
        journal._end += batch.num_rows
        journal._lasts.update(lasts)
        return OneLog(PARTITION, first)

    def _read(self, log: str, start: int, stop: int) -> Iterator[tuple[range, pa.RecordBatch]]:
        for first, batch in self._journal.batches(log, start, stop):
            yield range(first, first + batch.num_rows), batch

    def _places(self, ids: Sequence[str]) -> list[EventPlace | None]:
        offsets = map(self._journal._offsets.get, ids)
        return [None if offset is None else EventPlace(PARTITION, offset) for offset in offsets]

    def _lasts(self, entities: Sequence[str]) -> list[int]:
        return [self._journal._lasts.get(entity, 0) for entity in entities]
