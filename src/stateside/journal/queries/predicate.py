"""Questions: which events are asked for, and how the views help to find them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateside.core.positions import OFFSET_MAX
from stateside.journal.queries.format import TAG, TYPE
from stateside.journal.queries.view_snapshot import Postings, ViewsSnapshot

LOOK_EVENTS = 4_096  # places that are looked up at a time
RANGE_EVENTS_MAX = 1 << 20


class EventQuery(Protocol):
    """Which events are asked for."""

    def look(self, snapshot: ViewsSnapshot, partition: str, start: int, stop: int) -> Postings | range:
        """Where such events stand in start <= offset < stop, as the views know it: the places of the first ones.

        Or a range in which some may stand: there is none between `start` and the range, and it need not reach `stop`.
        """

    def matches(self, batch: pa.RecordBatch) -> Any:
        """Which of these events are such ones: a boolean for each."""


@dataclass(frozen=True, slots=True)
class AllEvents:
    """Every event."""

    def look(self, snapshot: ViewsSnapshot, partition: str, start: int, stop: int) -> range:
        """All of them: no view is needed."""
        return range(start, stop)

    def matches(self, batch: pa.RecordBatch) -> Any:
        """All of them."""
        return np.ones(batch.num_rows, bool)


@dataclass(frozen=True, slots=True)
class EntityEvents:
    """Events of one entity, from a sequence to another, both included."""

    entity: str
    from_sequence: int = 1
    to_sequence: int = OFFSET_MAX - 1

    def look(self, snapshot: ViewsSnapshot, partition: str, start: int, stop: int) -> Postings:
        """By the entity's blocks."""
        sequences = range(self.from_sequence, self.to_sequence + 1)
        return snapshot.entity_places(self.entity, partition, start, stop, sequences, LOOK_EVENTS)

    def matches(self, batch: pa.RecordBatch) -> Any:
        """The entity's; of which sequence they are is another question."""
        return _equal(batch.column("entity"), self.entity)


@dataclass(frozen=True, slots=True)
class TaggedEvents:
    """Events with a tag."""

    tag: str

    def look(self, snapshot: ViewsSnapshot, partition: str, start: int, stop: int) -> Postings:
        """By the tag's blocks."""
        return snapshot.places(TAG, self.tag, partition, start, stop, LOOK_EVENTS)

    def matches(self, batch: pa.RecordBatch) -> Any:
        """Those that have the tag, among others perhaps."""
        tags = batch.column("tags")
        found = np.zeros(batch.num_rows, bool)
        found[pc.list_parent_indices(tags).to_numpy()[_equal(tags.flatten(), self.tag)]] = True
        return found


@dataclass(frozen=True, slots=True)
class TypedEvents:
    """Events of a type."""

    type: str

    def look(self, snapshot: ViewsSnapshot, partition: str, start: int, stop: int) -> Postings:
        """By the type's blocks."""
        return snapshot.places(TYPE, self.type, partition, start, stop, LOOK_EVENTS)

    def matches(self, batch: pa.RecordBatch) -> Any:
        """Those of the type."""
        return _equal(batch.column("type"), self.type)


@dataclass(frozen=True, slots=True)
class EventsBetween:
    """Events that happened at a time from the one up to, and without, the other."""

    from_us: int
    to_us: int

    def look(self, snapshot: ViewsSnapshot, partition: str, start: int, stop: int) -> range:
        """By zones: the first ones that may have such an event."""
        low = high = stop
        for first, zone in snapshot.zones(partition, start, stop):
            if zone.may_have(self.from_us, self.to_us):
                low, high = (max(start, first) if low == stop else low), min(stop, zone.behind)
                if high - low >= RANGE_EVENTS_MAX:
                    break
            elif low < stop:
                break
        return range(low, high)

    def matches(self, batch: pa.RecordBatch) -> Any:
        """Those of the time."""
        times = batch.column("time").cast(pa.int64()).to_numpy()
        return (times >= self.from_us) & (times < self.to_us)


def _equal(column: pa.Array, name: str) -> Any:
    return pc.equal(column, name).to_numpy(zero_copy_only=False)
