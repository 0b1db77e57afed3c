"""Selecting: reading only those events of a journal that meet conditions, and of whole segments without any, nothing.

A range of offsets falls into *stretches*, a segment each. A finished segment whose summary rules it out is none: it is
not opened. One that has no summary yet is read, and if all of it is read here its summary is made on the way.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa

from stateside.journal import base, segment, summaries
from stateside.journal.conditions import Conditions
from stateside.journal.reader import Journal
from stateside.journal.segment import DurableEnd
from stateside.journal.summaries import Collector


@dataclass(frozen=True, slots=True)
class Stretch:
    """Events with start <= offset < stop. `unsummed`: it is a whole finished segment that has no summary yet."""

    start: int
    stop: int
    unsummed: bool = False

    def __len__(self) -> int:
        return self.stop - self.start


def stretches(journal: Journal, start: int, stop: int, conditions: Conditions) -> list[Stretch]:
    """Where in this range wanted events may be, in order. EventsGone if the range begins before the journal does."""
    end = journal.check(start, stop)
    if start == stop:
        return []
    firsts = segment.segment_offsets(journal.directory)
    if not firsts or start < firsts[0]:
        raise base.missing(journal.directory, start)
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
        summary = summaries.load(path, journal_id, behind - first) if finished else None
        if summary is None or not conditions.rule_out(summary):
            unsummed = finished and summary is None and (low, high) == (first, behind)
            found.append(Stretch(low, high, unsummed))
    return found


def selected(
    journal: Journal, start: int, stop: int, conditions: Conditions, mark: DurableEnd | None = None
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """As `Journal.batches`, but batches that have no wanted event may be left out; the others are whole."""
    for stretch in stretches(journal, start, stop, conditions):
        batches = journal.batches(stretch.start, stretch.stop, mark)
        yield from _summed(journal, stretch, batches) if stretch.unsummed else batches


def split(found: Sequence[Stretch], events: int) -> list[Stretch]:
    """The stretches, in parts of about so many events without a gap. Segments that have no summary stay whole."""
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
    """How many events of each partition are read when so many are at most, all told.

    Each gets the same; what one does not need goes to the others, and of what is left over, those with the most get one
    each.
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
    journal: Journal, stretch: Stretch, batches: Iterator[tuple[int, pa.RecordBatch]]
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The same batches; the segment has a summary then."""
    collector = Collector()
    for first, batch in batches:
        collector.take(batch)
        yield first, batch
    path, journal_id = segment.segment_path(journal.directory, stretch.start), segment.journal_id(journal.directory)
    if journal_id is not None:
        summaries.keep(path, journal_id, collector.summary())


def _cut(stretch: Stretch, events: int) -> list[Stretch]:
    count = 1 if stretch.unsummed else -(-len(stretch) // events)
    edges = [stretch.start + len(stretch) * part // count for part in range(count + 1)]
    return [Stretch(a, b, stretch.unsummed) for a, b in pairwise(edges)]
