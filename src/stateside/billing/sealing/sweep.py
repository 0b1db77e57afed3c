"""The sweep: reads a batch's range of the journal back, and finds what its rows do not have.

Those are the late events, which Spark's aggregation dropped, and the bad ones, which never got there. A late event that
repeats the id of an earlier one is bad, too (`repeats`). The rule for late
ones is Spark's own (pinned in tests/semantics): batch N drops a row whose period ends at or before the watermark in
`offsets/N-1`, the batch before; batch 0 drops none. Rating is the same pure function that the aggregation's rows went
through, and depends on the events up to the batch's end alone: so the two never disagree.

For the same reason nothing need be rated twice where a task has left a report (`rating.reports`), whichever attempt it
belongs to: in its range only the events that it says are bad are rated here, to tell why, and those that may be late,
if any period of the range is closed. Both are exactly what rating the whole range would find. Ranges without a report
are rated whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateside.billing.book.book import Book
from stateside.billing.model import CLOCK
from stateside.billing.rating.rating import events_of, events_table, joined, rate
from stateside.billing.rating.reports import Report
from stateside.billing.sealing.columns import Longs, groups, longs
from stateside.billing.sealing.dead_letters import DEAD_LETTERS, dead_letters, letters_of
from stateside.billing.sealing.frontier import Frontier
from stateside.billing.sealing.notes import LATE
from stateside.billing.sealing.repeats import Repeats
from stateside.checkpoint.log import Checkpoint, Plan
from stateside.errors import CheckpointGap
from stateside.journal import Journal

PIECE_EVENTS_MAX: Final = 200_000  # read and rated at a time: this bounds the memory, about 100 MiB


@dataclass(frozen=True, slots=True)
class Planned:
    """What Spark planned for a batch: its range of the journal, its watermark and that of the batch before."""

    start: int
    stop: int
    watermark_before_us: int
    watermark_us: int

    @classmethod
    def of(cls, checkpoint: Checkpoint, batch: int) -> Planned:
        """The plan of a batch, which is written before the batch runs. CheckpointGap if the one before it is gone."""
        before = _plan(checkpoint, batch - 1) if batch else None
        plan = _plan(checkpoint, batch)
        return cls(
            start=before.position.one() if before else 0,
            stop=plan.position.one(),
            watermark_before_us=before.watermark_us if before else 0,
            watermark_us=plan.watermark_us,
        )


@dataclass(frozen=True, slots=True)
class Swept:
    """The late events (`notes.LATE`) and the dead letters that were found, in the journal's order."""

    late: pa.Table
    bad: pa.Table


def sweep(
    journal: Journal,
    book: Book,
    planned: Planned,
    frontier: Frontier,
    repeats: Repeats,
    reports: Sequence[Report] = (),
) -> Swept:
    """What a batch's rows do not have, and documents neither. With any reports of this journal the same is found."""
    closed_us = max(planned.watermark_before_us, frontier.closed_us)
    start = frontier.sweep_from(planned.start, planned.watermark_before_us)
    late, bad = [LATE.empty_table()], [DEAD_LETTERS.schema.empty_table()]
    for part in _parts(start, planned.stop, reports):
        events = _suspects(journal, part, closed_us) if isinstance(part, Report) else events_table(journal, *part)
        if events.num_rows:
            rated = rate(events, book)
            old = _old(rated, book, closed_us)
            again = repeats.of(_came_after(events, old, frontier, planned), book, planned.stop)
            late.append(_late(old, frontier, again["offset"]))
            bad += [dead_letters(events, rated), letters_of(again)]
    return Swept(pa.concat_tables(late), pa.concat_tables(bad).sort_by("offset"))


def _parts(start: int, stop: int, reports: Sequence[Report]) -> Iterator[Report | tuple[int, int]]:
    """The range in order: reports within it that do not overlap, and what lies between them in pieces."""
    for report in sorted(reports, key=lambda report: report.start):
        if start <= report.start and report.stop <= stop:
            yield from _pieces(start, report.start)
            yield report
            start = report.stop
    yield from _pieces(start, stop)


def _pieces(start: int, stop: int) -> Iterator[tuple[int, int]]:
    for first in range(start, stop, PIECE_EVENTS_MAX):
        yield first, min(first + PIECE_EVENTS_MAX, stop)


def _suspects(journal: Journal, report: Report, closed_us: int) -> pa.Table:
    """The events of a report's range that may be bad or late; if there can be none the journal is not read."""
    found: list[pa.Table] = []
    if report.bad or report.first_end_us <= closed_us:
        for first, batch in journal.batches(report.start, report.stop):
            times_us = batch.column("time").cast(pa.int64()).to_numpy()
            rows = report.suspects(first, times_us, closed_us)
            if len(rows):
                found.append(events_of(batch.take(pa.array(rows)), first + rows))
    return joined(found)


def _old(rated: pa.Table, book: Book, closed_us: int) -> pa.Table:
    """The usage of periods that end up to this time, with the end. A period ends after its events: so few qualify."""
    usage = pc.and_(pc.is_null(rated["reason"]), pc.not_equal(rated["type"], CLOCK))
    events = rated.filter(pc.and_(usage, pa.array(longs(rated["time"]) < closed_us)))
    ends_us = _ends_us(events, book)
    events = events.append_column("period_end", pa.array(ends_us).cast(LATE.field("period_end").type))
    return events.filter(pa.array(ends_us <= closed_us))


def _came_after(events: pa.Table, old: pa.Table, frontier: Frontier, planned: Planned) -> pa.Table:
    """The events that came when their periods were closed; of those that are accounted for meanwhile as well.

    A batch that is run again finds the same: what it sealed itself closes nothing before its own end.
    """
    offsets, ends_us = longs(old["offset"]), longs(old["period_end"])
    after = (ends_us <= planned.watermark_before_us) | frontier.closed_before(offsets, ends_us)
    return events.filter(pc.is_in(events["offset"], pa.array(offsets[after])))


def _late(old: pa.Table, frontier: Frontier, repeated: pa.ChunkedArray) -> pa.Table:
    """The usage of closed periods that is not accounted for, and repeats nothing."""
    new = ~frontier.covers(longs(old["offset"]), longs(old["period_end"]))
    new &= ~np.isin(longs(old["offset"]), longs(repeated))
    return old.filter(pa.array(new)).select(LATE.names).cast(LATE)


def _ends_us(events: pa.Table, book: Book) -> Longs:
    """The ends of the events' periods, by their plans' cycles."""
    times_us = longs(events["time"])
    ends_us = np.zeros(events.num_rows, np.int64)
    for (plan,), rows in groups(events, "plan"):
        ends_us[rows] = book.plans[plan].cycle.ends(times_us[rows])
    return ends_us


def _plan(checkpoint: Checkpoint, batch: int) -> Plan:
    try:
        return checkpoint.plan(batch)
    except FileNotFoundError:
        raise CheckpointGap(
            f"The plan of batch {batch} is gone, which says what is late in the batch after it",
            where=checkpoint.storage.path(f"offsets/{batch}"),
            next_step="Restore the file from a copy: nothing of the batch was stored",
        ) from None
