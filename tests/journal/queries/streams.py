"""A stream of several partitions in memory, and a plain model of what queries must answer."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import cycle

import numpy as np
import pyarrow as pa

from stateside.core.positions import Position
from stateside.journal.backends.files.frames import Offsets
from stateside.journal.columns import encode
from stateside.journal.contract import Journal
from stateside.journal.event import Event


class MemoryStream(Journal):
    """Partitions in memory, each event in that of its entity. It gives sequences, or not, as it is told."""

    def __init__(self, partitions: Sequence[str], *, numbering: bool = True) -> None:
        self.stored: dict[str, list[Event]] = {name: [] for name in partitions}
        self.numbering = numbering
        self.name: str | None = "memory"
        self._counts: dict[str, int] = {}

    def append(self, events: Sequence[Event]) -> None:
        for event in events:
            self._counts[event.entity] = number = self._counts.get(event.entity, 0) + 1
            log = self.stored[list(self.stored)[zlib.crc32(event.entity.encode()) % len(self.stored)]]
            log.append(replace(event, sequence=number if self.numbering else None))

    @property
    def where(self) -> str:
        return "memory"

    def id(self) -> str | None:
        return self.name

    def end(self) -> Position:
        return Position.of({name: len(log) for name, log in self.stored.items()})

    def partitions(self) -> Sequence[str]:
        return tuple(self.stored)

    def batches(self, partition: str, start: int, stop: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        assert 0 <= start <= stop <= len(self.stored[partition])
        for first in range(start, stop, 7):
            events = self.stored[partition][first : min(stop, first + 7)]
            batch = encode(events, 0)
            numbers = pa.array([event.sequence for event in events], pa.int64())
            yield first, batch.set_column(batch.schema.get_field_index("sequence"), "sequence", numbers)


class SparseStream(Journal):
    """A partition with a gap behind each append, of another width each time: some are wider than a zone."""

    def __init__(self) -> None:
        self.stored: list[tuple[int, Event]] = []
        self.behind = 0
        self._counts: Counter[str] = Counter()
        self._gaps = cycle([1, 1, 11, 0, 2])

    def append(self, events: Sequence[Event]) -> None:
        for offset, event in enumerate(events, self.behind):
            self._counts[event.entity] += 1
            self.stored.append((offset, replace(event, sequence=self._counts[event.entity])))
        self.behind += len(events) + next(self._gaps)

    @property
    def where(self) -> str:
        return "memory"

    def id(self) -> str | None:
        return "sparse"

    def end(self) -> Position:
        return Position.of({"0": self.behind})

    def partitions(self) -> Sequence[str]:
        return ("0",)

    def located(self, partition: str, start: int, stop: int) -> Iterator[tuple[Offsets, pa.RecordBatch]]:
        assert 0 <= start <= stop <= self.behind
        wanted = [(offset, event) for offset, event in self.stored if start <= offset < stop]
        for low in range(0, len(wanted), 7):
            events = [event for _, event in wanted[low : low + 7]]
            batch = encode(events, 0)
            numbers = pa.array([event.sequence for event in events], pa.int64())
            numbered = batch.set_column(batch.schema.get_field_index("sequence"), "sequence", numbers)
            yield np.array([offset for offset, _ in wanted[low : low + 7]]), numbered

    def batches(self, partition: str, start: int, stop: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        for offsets, batch in self.located(partition, start, stop):
            for row, offset in enumerate(offsets.tolist()):
                yield offset, batch.slice(row, 1)


class Model:
    """All events in the order of the stream, looked through for every answer."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def append(self, events: Sequence[Event]) -> None:
        self.events.extend(events)

    def entity(self, entity: str, low: int = 1, high: int | None = None) -> list[tuple[int, Event]]:
        mine = [event for event in self.events if event.entity == entity]
        return [(n, event) for n, event in enumerate(mine, 1) if low <= n and (high is None or n <= high)]

    def tagged(self, tag: str) -> list[Event]:
        return [event for event in self.events if tag in event.tags]

    def typed(self, type_: str) -> list[Event]:
        return [event for event in self.events if event.type == type_]

    def between(self, from_us: int, to_us: int) -> list[Event]:
        return [event for event in self.events if from_us <= event.time_us < to_us]

    def entities(self, prefix: str = "") -> list[str]:
        return sorted({event.entity for event in self.events if event.entity.startswith(prefix)}, key=str.encode)

    def born(self) -> list[str]:
        return list(dict.fromkeys(event.entity for event in self.events))
