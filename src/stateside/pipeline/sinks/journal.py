"""The journal itself: a query's rows become events again, for other queries to react to.

How a batch gets in exactly once; a crash at any step, followed by a rerun of the same batch, changes nothing:

1. The rows become events with ids made of query, batch and key (`emission`): a rerun makes the same ones. A row that
   cannot be an event refuses the batch, before anything of it is stored.
2. The journal is opened, which settles what a crash left, and the first time it is asked for the highest batch of this
   query that it has events of. A batch with a higher number is new, if it is not the first one of this run; any other
   one may be a rerun, or a leader that was paused in the middle of it may be about to store it (`leadership`).
3. The mark beside the checkpoint must say whose events these are, and from which position on they may be found: some
   journal end from before this batch's first append. It is written before the first append of a query, and now and
   then moved on, before the first append of a new batch.
4. The events are appended, in groups that fit into a frame each. If the batch may be a rerun, events whose ids the
   journal has are left out; if a rerun makes another event of a row, the stored one counts, and the log is told.
5. The caller lets Spark commit the batch. A crash before that repeats the batch, which then finds all its ids.

The steady state is step 4 alone, without a look: a batch is known to be new by its number. An old position in
the mark is never wrong, only slower: all of a batch's events lie behind every journal end from before its first append.
So nothing depends on what the query reads. That one process at a time emits for a query is the driver's lease.

Readers see a batch's events group by group. A query that reads the types which it emits feeds itself, for ever: emit
another type than those that are read.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from stateside.checkpoint.log import Checkpoint
from stateside.errors import ArchiveInvalid, IdConflict, JournalLocked, OperatingError, SinkAway
from stateside.journal import Event, Journal, JournalWriter
from stateside.journal.segment import PARTITION
from stateside.layout import Layout
from stateside.pipeline.sinks.emission import batch_of, check_columns, events_of
from stateside.pipeline.sinks.sink import BatchId, OnStep, SinkContext, SinkFactory, ignore_step
from stateside.positions import Position
from stateside.storage import Storage, write_atomically

EVENTS_PER_APPEND_MAX = 2_000  # so that even the largest events fit into one frame
LOOK_EVENTS_MAX = 100_000  # how far behind the journal's end to look from, before that is moved on

log = logging.getLogger(__name__)


def journal(*, on_step: OnStep = ignore_step) -> SinkFactory:
    """A sink that appends a query's rows to the application's journal, as events. `emission` says which columns."""
    return lambda context: _open(context, on_step)


def _open(context: SinkContext, on_step: OnStep) -> JournalSink:
    check_columns(context.view, context.schema)
    places = context.layout.view(context.view)
    mark = MarkFile(places.mark("journal"), Checkpoint(Storage.at(places.checkpoint)), Journal(context.layout.journal))
    mark.begin()
    return JournalSink(context.layout, mark, on_step)


@dataclass(frozen=True, slots=True)
class Mark:
    """Whose events were emitted (None: nobody's yet), into which journal, from where on, from which batch on."""

    query: str | None = None
    journal: str | None = None
    since: int = 0
    batch: int = 0


@dataclass(frozen=True, slots=True)
class MarkFile:
    """The mark in its file, beside the checkpoint of the query that it is about."""

    path: Path
    checkpoint: Checkpoint
    journal: Journal

    def begin(self) -> None:
        """A query that has not begun yet has emitted nothing: the place to look from is the journal's end.

        ArchiveInvalid if another query has emitted before: this one would emit everything a second time.
        """
        query, mark = self.checkpoint.query_id(), self.read()
        if mark.query is not None and mark.query != query:
            raise ArchiveInvalid(
                f"The query {mark.query} has emitted events into the journal, and its checkpoint is gone: "
                "to go on would emit the same events a second time",
                where=str(self.path.parent.parent),
                next_step=f"Nothing was emitted. Bring the checkpoint back, or delete {self.path} to emit all anew",
            )
        if query is None:
            self.write(Mark(since=self.journal.end()[PARTITION], journal=self.journal.id()))

    def write(self, mark: Mark) -> None:
        """Note this, durably."""
        write_atomically(self.path, json.dumps(asdict(mark)).encode())

    def read(self) -> Mark:
        """What was noted; without a note, all of the journal is looked at."""
        try:
            return Mark(**json.loads(self.path.read_bytes()))
        except FileNotFoundError:
            return Mark()

    def since(self, batch: int) -> Position:
        """The position behind which a batch's events lie: the noted one, if it is one of this journal and for it."""
        mark = self.read()
        known = mark.journal == self.journal.id() and mark.since <= self.journal.end()[PARTITION]
        return Position.of({PARTITION: mark.since if known and batch >= mark.batch else 0})

    def highest(self, query: str) -> int:
        """The highest batch of a query that the journal may have events of."""
        mark, end = self.read(), self.journal.end()[PARTITION]
        found = mark.batch
        for _, events in self.journal.batches(self.since(mark.batch)[PARTITION], end):
            ids = events.column("id")
            for id_ in ids.filter(pc.starts_with(ids, f"{query}/")).to_pylist():
                found = max(found, batch_of(id_))
        return found


class JournalSink:
    """Appends batches to the journal, by the steps above."""

    def __init__(self, layout: Layout, mark: MarkFile, on_step: OnStep = ignore_step) -> None:
        self._folder = layout.journal
        self._mark = mark
        self._on_step = on_step
        self._writer: JournalWriter | None = None
        self._query: str | None = None
        self._highest = -1  # of that query: no later batch has been begun

    def write(self, rows: pa.Table, batch: BatchId) -> None:
        """Append the rows as events, unless they are there."""
        if rows.num_rows:
            self._on_step(1)
            self._emit(events_of(rows, batch), batch)

    def __del__(self) -> None:
        self._close()  # the contract of sinks has no end: one that is let go gives its files back

    def _emit(self, events: list[Event], batch: BatchId) -> None:
        with self._writing() as writer:
            self._on_step(2)
            new = self._begin(batch)
            self._on_step(3)
            self._note(batch.batch, writer, new)
            since = None if new else self._mark.since(batch.batch)
            for first in range(0, len(events), EVENTS_PER_APPEND_MAX):
                self._on_step(4)
                _append(writer, events[first : first + EVENTS_PER_APPEND_MAX], since)
            self._on_step(5)

    def _begin(self, batch: BatchId) -> bool:
        """Step 2: whether the batch is new. From now on, whatever becomes of it, it is so no longer."""
        if batch.query != self._query:
            self._highest = max(self._mark.highest(batch.query), batch.batch)
            self._query = batch.query
        new = batch.batch > self._highest
        self._highest = max(self._highest, batch.batch)
        return new

    def _note(self, batch: int, writer: JournalWriter, new: bool) -> None:
        """Step 3."""
        mark = self._mark.read()
        if mark.query is None:
            since = self._mark.since(batch)[PARTITION]
            self._mark.write(Mark(self._mark.checkpoint.query_id(), self._mark.journal.id(), since, mark.batch))
        elif new and writer.end[PARTITION] - mark.since >= LOOK_EVENTS_MAX:
            self._mark.write(Mark(mark.query, self._mark.journal.id(), writer.end[PARTITION], batch))

    @contextmanager
    def _writing(self) -> Iterator[JournalWriter]:
        """The writer, opened anew after whatever went wrong; SinkAway if waiting or mending helps."""
        try:
            self._writer = self._writer or JournalWriter(self._folder)
            yield self._writer
        except (JournalLocked, OperatingError) as error:
            self._close()
            raise SinkAway(error.what, where=error.where, next_step=error.next_step) from error
        except BaseException:
            self._close()
            raise

    def _close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()


def _append(writer: JournalWriter, events: list[Event], since: Position | None) -> None:
    """Step 4, for one group; with `since`, some of it may be stored."""
    if since is None:
        writer.append(events, compare_ids=False)  # they have the batch's number in their ids, and it is new
        return
    try:
        writer.append_unstored(events, since=since)
    except IdConflict as conflict:
        log.warning("a rerun makes other events than those that are stored, which count: %s", conflict.what)
        others = [event for number, event in enumerate(events) if number not in conflict.events]
        _append(writer, others, since)
