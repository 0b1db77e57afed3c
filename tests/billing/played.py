"""Spark's part in billing, played in Python by the rules that `tests/semantics` pins: no JVM, and crashes at will."""

from __future__ import annotations

import json
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Any

from stateside.billing.book.book import BookKeeper
from stateside.billing.invoicing.invoice_sink import BillingSink
from stateside.billing.model import CLOCK, GRACE_US
from stateside.billing.rating.rating import events_table, rate
from stateside.core.clock import ManualClock
from stateside.core.errors import OperatingError
from stateside.core.layout import Layout
from stateside.journal import Event, FileLog, JournalWriter
from stateside.pipeline.sinks.sink import BatchId, OnStep, SinkContext, ignore_step
from tests.billing.billed import Row, closed

SCHEMA = closed([]).schema
Cell = tuple[str, int, str, str]  # customer, period's end, type, plan


class Crash(OperatingError):
    """A crash of the driver."""


def crash_at(step: int) -> OnStep:
    def on_step(reached: int) -> None:
        if reached == step:
            raise Crash(f"a crash at step {step}")

    return on_step


def sink(layout: Layout, on_step: OnStep = ignore_step, *, guarded: bool = True) -> BillingSink:
    return BillingSink.of(SinkContext(layout, "bill", SCHEMA), on_step, guarded=guarded)


def append(layout: Layout, events: Sequence[tuple[int, Event]]) -> FileLog:
    """Append events, each at its own time; neighbours of the same time together."""
    clock = ManualClock()
    with JournalWriter(layout.journal, clock=clock) as writer:
        for appended_us, together in groupby(events, itemgetter(0)):
            clock.time_us = appended_us
            writer.append([event for _, event in together], compare_ids=False)
    return FileLog(layout.journal)


@dataclass
class Query:
    """A query of the view `bill` and its checkpoint: what it has folded, and what it planned for its last batch."""

    layout: Layout
    id: str = "query"
    batch: int = -1
    position: int = 0
    watermark_us: int = 0
    newest_us: int = 0
    open: dict[Cell, tuple[int, int]] = field(default_factory=dict)
    ids: set[tuple[str, int]] = field(default_factory=set)
    guarded: bool = True

    def copy(self) -> Query:
        """A copy of the checkpoint, to come back to."""
        return deepcopy(self)

    def run(self, stop: int, on_step: OnStep = ignore_step) -> Query:
        """The query after one more batch, which ends at this offset; as it is if that crashes."""
        after = self.copy()
        rows = after._fold(stop)
        for number, query in ((self.batch, self), (after.batch, after)):
            if number >= 0:
                query._write_plan(number)
        sink(self.layout, on_step, guarded=self.guarded).write(closed(rows), BatchId(self.id, after.batch))
        return after

    def run_to_end(self, length: int = 1_000_000) -> Query:
        """The query after all of the journal, and the batches without data that then are due."""
        query, end = self, FileLog(self.layout.journal).end()["0"]
        while query.position < end or query.watermark_us < query._next_watermark_us():
            query = query.run(min(query.position + length, end))
        return query

    def _fold(self, stop: int) -> list[Row]:
        """Move on by a batch; what the aggregation emits."""
        late_us, self.watermark_us = self.watermark_us, self._next_watermark_us()
        journal = FileLog(self.layout.journal)
        book = BookKeeper(journal, None).at(stop)
        for row in rate(events_table(journal, self.position, stop), book).to_pylist():
            if row["reason"] is None:
                time_us = round(row["time"].timestamp() * 1_000_000)
                self.newest_us = max(self.newest_us, time_us)
                if row["type"] != CLOCK:
                    end_us = book.plans[row["plan"]].cycle.containing(time_us).end_us
                    self._add((row["customer"], end_us, row["type"], row["plan"]), row["id"], row["quantity"], late_us)
        self.batch, self.position = self.batch + 1, stop
        emitted = [cell for cell in self.open if cell[1] <= self.watermark_us]
        return [(*cell, *self.open.pop(cell)) for cell in emitted]

    def _add(self, cell: Cell, id_: str, quantity: int, late_us: int) -> None:
        if cell[1] > late_us and (id_, cell[1]) not in self.ids:
            self.ids.add((id_, cell[1]))
            before, events = self.open.get(cell, (0, 0))
            self.open[cell] = before + quantity, events + 1

    def _next_watermark_us(self) -> int:
        return max(self.watermark_us, (self.newest_us - GRACE_US) // 1_000 * 1_000)

    def _write_plan(self, number: int) -> None:
        path = self.layout.view("bill").checkpoint / "offsets" / f"{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        metadata = {"batchWatermarkMs": self.watermark_us // 1_000, "batchTimestampMs": 0, "conf": {}}
        path.write_text(f"v1\n{json.dumps(metadata)}\n{json.dumps({'journal': 'played', '0': self.position})}")


def documents(layout: Layout) -> list[dict[str, Any]]:
    """All documents: the invoices, then the notes, in the order of their numbers."""
    found: list[dict[str, Any]] = sink(layout).documents.read().sort_by("number").to_pylist()
    return found
