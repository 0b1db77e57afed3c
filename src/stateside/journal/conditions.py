"""Conditions: which events a reader wants, told of single events and, by their summaries, of whole segments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateside.journal.summaries import Marks, Summary, marks_of

_TIME: Final = pa.timestamp("us", tz="UTC")
_MIN, _MAX = -(2**63), 2**63 - 1


@dataclass(frozen=True, slots=True)
class Span:
    """Numbers from one to another, both included: of times, microseconds since 1970."""

    first: int = _MIN
    last: int = _MAX

    def cut(self, other: Span) -> Span:
        """What lies in both; an empty one is upside down."""
        return Span(max(self.first, other.first), min(self.last, other.last))

    def misses(self, first: int, last: int) -> bool:
        """Whether it has none of these numbers."""
        return last < self.first or first > self.last


EVER: Final = Span()


@dataclass(frozen=True, slots=True)
class Conditions:
    """All of them must hold. `types`: one of these; `tags`: any of these; None: whatever it is."""

    types: frozenset[str] | None = None
    tags: frozenset[str] | None = None
    time: Span = EVER
    appended: Span = EVER

    def __bool__(self) -> bool:
        """Whether any event may be unwanted."""
        return self != ANY

    def wanted(self, batch: pa.RecordBatch) -> pa.Array | None:
        """Which events are; None for all."""
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
        """Whether surely no event of the segment is wanted."""
        return (
            _lacks(summary.types, self.types)
            or _lacks(summary.tags, self.tags)
            or self.time.misses(summary.first_us, summary.last_us)
            or self.appended.misses(summary.first_appended_us, summary.last_appended_us)
        )


ANY: Final = Conditions()


def _lacks(marks: Marks, wanted: frozenset[str] | None) -> bool:
    return marks is not None and wanted is not None and marks.isdisjoint(marks_of(wanted))


def _within(times: pa.Array, span: Span) -> pa.Array:
    numbers = times.cast(_TIME).cast(pa.int64())
    return pc.and_(pc.greater_equal(numbers, span.first), pc.less_equal(numbers, span.last))


def _has_any(lists: pa.ListArray, wanted: Sequence[str]) -> pa.Array:
    """For each list, whether it has any of the wanted texts."""
    parents = pc.list_parent_indices(lists).filter(pc.is_in(pc.list_flatten(lists), pa.array(wanted, pa.string())))
    return pc.is_in(pa.array(np.arange(len(lists))), parents)
