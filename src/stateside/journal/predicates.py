"""Predicates on events, and filtered reads that skip whole segments by their zone maps.

A range of offsets is split into *stretches*, one per segment. A finished segment that its zone map rules out gives no
stretch and is not opened. A segment without a zone map is read, and a complete read creates the zone map on the way.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateside.journal.backends.files import retention_base, segment, zone_maps
from stateside.journal.backends.files.file_log import FileLog
from stateside.journal.backends.files.segment import DurableEnd
from stateside.journal.backends.files.zone_maps import Collector, Marks, Summary, marks_of
from stateside.journal.contract import Log

_TIME: Final = pa.timestamp("us", tz="UTC")
_MIN, _MAX = -(2**63), 2**63 - 1


@dataclass(frozen=True, slots=True)
class NumberRange:
    """An inclusive range of numbers; for times, microseconds since 1970."""

    first: int = _MIN
    last: int = _MAX

    def cut(self, other: NumberRange) -> NumberRange:
        """The intersection; an empty one has first > last."""
        return NumberRange(max(self.first, other.first), min(self.last, other.last))

    def misses(self, first: int, last: int) -> bool:
        """Whether the ranges are disjoint."""
        return last < self.first or first > self.last


EVER: Final = NumberRange()


@dataclass(frozen=True, slots=True)
class Conditions:
    """A conjunction of predicates. `types`: one of these; `tags`: any of these; None: no restriction."""

    types: frozenset[str] | None = None
    tags: frozenset[str] | None = None
    time: NumberRange = EVER
    appended: NumberRange = EVER

    def __bool__(self) -> bool:
        """Whether there is any restriction."""
        return self != ANY

    def wanted(self, batch: pa.RecordBatch) -> pa.Array | None:
        """The mask of matching events; None for all."""
        masks = []
        if self.types is not None:
            masks.append(pc.is_in(batch.column("type"), pa.array(sorted(self.types), pa.string())))
        if self.tags is not None:
            masks.append(_has_any(batch.column("tags"), sorted(self.tags)))
        for name, span in (("time", self.time), ("appended", self.appended)):
            if span != EVER:
                masks.append(_within(batch.column(name), span))
        wanted = None
        for mask in masks:
            wanted = mask if wanted is None else pc.and_(wanted, mask)
        return wanted

    def rule_out(self, summary: Summary) -> bool:
        """Whether certainly no event of the segment matches."""
        return (
            _lacks(summary.types, self.types)
            or _lacks(summary.tags, self.tags)
            or self.time.misses(summary.first_us, summary.last_us)
            or self.appended.misses(summary.first_appended_us, summary.last_appended_us)
        )


ANY: Final = Conditions()


def _lacks(marks: Marks, wanted: frozenset[str] | None) -> bool:
    return marks is not None and wanted is not None and marks.isdisjoint(marks_of(wanted))


def _within(times: pa.Array, span: NumberRange) -> pa.Array:
    numbers = times.cast(_TIME).cast(pa.int64())
    return pc.and_(pc.greater_equal(numbers, span.first), pc.less_equal(numbers, span.last))


def _has_any(lists: pa.ListArray, wanted: Sequence[str]) -> pa.Array:
    """For each list, whether any of its texts is wanted."""
    parents = pc.list_parent_indices(lists).filter(pc.is_in(pc.list_flatten(lists), pa.array(wanted, pa.string())))
    return pc.is_in(pa.array(np.arange(len(lists))), parents)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Events with start <= offset < stop. `unsummed`: a whole finished segment without a zone map."""

    start: int
    stop: int
    unsummed: bool = False

    def __len__(self) -> int:
        return self.stop - self.start


def stretches(journal: Log, start: int, stop: int, conditions: Conditions) -> list[Stretch]:
    """The parts of this range with possible matches, in order. EventsGone if the range begins before the journal."""
    if not isinstance(journal, FileLog):
        return [Stretch(start, stop)] if start < stop else []
    end = journal.check(start, stop)
    if start == stop:
        return []
    firsts = segment.segment_offsets(journal.directory)
    if not firsts or start < firsts[0]:
        raise retention_base.missing(journal.directory, start)
    if not conditions:
        return [Stretch(start, stop)]
    journal_id = segment.journal_id(journal.directory)
    assert journal_id is not None, "there are segments"
    found = []
    for first, behind in pairwise([*firsts[bisect_right(firsts, start) - 1 :], end.offset]):
        low, high = max(start, first), min(stop, behind)
        if low >= high:
            continue
        finished = first < end.segment_offset
        path = segment.segment_path(journal.directory, first)
        summary = zone_maps.load(path, journal_id, behind - first) if finished else None
        if summary is None or not conditions.rule_out(summary):
            unsummed = finished and summary is None and (low, high) == (first, behind)
            found.append(Stretch(low, high, unsummed))
    return found


def selected(
    journal: Log, start: int, stop: int, conditions: Conditions, mark: DurableEnd | None = None
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """As `Journal.batches`, but may omit batches without a matching event; the others are whole."""
    for stretch in stretches(journal, start, stop, conditions):
        batches = journal.batches(stretch.start, stretch.stop, mark)
        yield from _summed(journal, stretch, batches) if stretch.unsummed else batches


def split(found: Sequence[Stretch], events: int) -> list[Stretch]:
    """The stretches in parts of about `events` events without a gap. Segments without a zone map stay whole."""
    units = [unit for stretch in found for unit in _cut(stretch, events)]
    parts: list[Stretch] = []
    for unit in units:
        last = parts[-1] if parts else None
        if last is not None and last.stop == unit.start and len(last) + len(unit) <= events:
            parts[-1] = Stretch(last.start, unit.stop)
        else:
            parts.append(unit)
    return parts


def shares(waiting: Mapping[str, int], events: int) -> dict[str, int]:
    """How many events to read of each partition, `events` at most in total.

    Each partition gets the same; the surplus of one goes to the others, and the remainder goes one each to the
    partitions with the most events waiting.
    """
    taken = dict.fromkeys(waiting, 0)
    while hungry := [name for name in waiting if taken[name] < waiting[name]]:
        each = events // len(hungry)
        for name in sorted(hungry, key=lambda name: taken[name] - waiting[name])[: None if each else events]:
            more = min(max(each, 1), waiting[name] - taken[name])
            taken[name] += more
            events -= more
        if not events:
            break
    return taken


def _summed(
    journal: Log, stretch: Stretch, batches: Iterator[tuple[int, pa.RecordBatch]]
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The same batches; at the end the segment gets its zone map."""
    assert isinstance(journal, FileLog), "only segments have zone maps"
    collector = Collector()
    for first, batch in batches:
        collector.take(batch)
        yield first, batch
    path, journal_id = segment.segment_path(journal.directory, stretch.start), segment.journal_id(journal.directory)
    if journal_id is not None:
        zone_maps.keep(path, journal_id, collector.summary())


def _cut(stretch: Stretch, events: int) -> list[Stretch]:
    count = 1 if stretch.unsummed else -(-len(stretch) // events)
    edges = [stretch.start + len(stretch) * part // count for part in range(count + 1)]
    return [Stretch(a, b, stretch.unsummed) for a, b in pairwise(edges)]
