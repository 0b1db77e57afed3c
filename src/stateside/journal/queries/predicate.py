"""Predicates of event queries, and how the views find matching events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateside.core.positions import OFFSET_MAX
from stateside.journal.queries.format import TAG, TYPE
from stateside.journal.queries.view_snapshot import Postings, ViewsSnapshot

LOOK_EVENTS = 4_096  # places per lookup
RANGE_EVENTS_MAX = 1 << 20


class EventQuery(Protocol):
    """A predicate on events."""

    def look(self, snapshot: ViewsSnapshot, partition: str, start: int, stop: int) -> Postings | range:
        """The places of the first matching events in start <= offset < stop, according to the views.

        Or a range that may have matches: none lie between `start` and the range, and the range may end before `stop`.
        """

    def matches(self, batch: pa.RecordBatch) -> Any:
        """A boolean for each event: whether it matches."""


@dataclass(frozen=True, slots=True)
class AllEvents:
    def look(self, snapshot: ViewsSnapshot, partition: str, start: int, stop: int) -> range:
        return range(start, stop)

    def matches(self, batch: pa.RecordBatch) -> Any:
        return np.ones(batch.num_rows, bool)


@dataclass(frozen=True, slots=True)
class EntityEvents:
    """Events of one entity, from a sequence to another, both included."""

    entity: str
    from_sequence: int = 1
    to_sequence: int = OFFSET_MAX - 1

    def look(self, snapshot: ViewsSnapshot, partition: str, start: int, stop: int) -> Postings:
        """By the entity's posting list."""
        sequences = range(self.from_sequence, self.to_sequence + 1)
        return snapshot.entity_places(self.entity, partition, start, stop, sequences, LOOK_EVENTS)

    def matches(self, batch: pa.RecordBatch) -> Any:
        """By entity only; the caller checks sequences."""
        return _equal(batch.column("entity"), self.entity)


@dataclass(frozen=True, slots=True)
class TaggedEvents:
    """Events with a tag."""

    tag: str

    def look(self, snapshot: ViewsSnapshot, partition: str, start: int, stop: int) -> Postings:
        """By the tag's posting list."""
        return snapshot.places(TAG, self.tag, partition, start, stop, LOOK_EVENTS)

    def matches(self, batch: pa.RecordBatch) -> Any:
        tags = batch.column("tags")
        found = np.zeros(batch.num_rows, bool)
        found[pc.list_parent_indices(tags).to_numpy()[_equal(tags.flatten(), self.tag)]] = True
        return found


@dataclass(frozen=True, slots=True)
class TypedEvents:
    """Events of a type."""

    type: str

    def look(self, snapshot: ViewsSnapshot, partition: str, start: int, stop: int) -> Postings:
        """By the type's posting list."""
        return snapshot.places(TYPE, self.type, partition, start, stop, LOOK_EVENTS)

    def matches(self, batch: pa.RecordBatch) -> Any:
        return _equal(batch.column("type"), self.type)


@dataclass(frozen=True, slots=True)
class EventsBetween:
    """Events with from_us <= time < to_us."""

    from_us: int
    to_us: int

    def look(self, snapshot: ViewsSnapshot, partition: str, start: int, stop: int) -> range:
        """By zone maps: the first zones that may have a match."""
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
        times = batch.column("time").cast(pa.int64()).to_numpy()
        return (times >= self.from_us) & (times < self.to_us)


def _equal(column: pa.Array, name: str) -> Any:
    return pc.equal(column, name).to_numpy(zero_copy_only=False)
