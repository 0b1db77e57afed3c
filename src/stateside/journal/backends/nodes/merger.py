"""The merger: writes the events of all nodes' logs into one stream, in the order of each entity's sequences.

`Output` collects merged events per partition until there are enough for a frame. `Waiting` holds events read before
their predecessor, and the gaps. `Merger` runs the protocol.

Memory is bounded: an event beyond `BYTES_MAX` is forgotten, and its log read again from there once another event has
been merged. Gaps outlive forgotten events, up to `GAPS_MAX`.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import pyarrow as pa

from stateside.core.clock import Clock, SystemClock
from stateside.core.errors import StatesideError
from stateside.core.positions import Position
from stateside.core.storage import CLOSED
from stateside.journal.backends.files.lock import lock_alone
from stateside.journal.backends.files.segment import PARTITION, DurableEnd
from stateside.journal.backends.nodes.log import NodeLog, is_sealed, node_logs, reaching
from stateside.journal.backends.nodes.node_index import Lasts
from stateside.journal.backends.nodes.partition import (
    MERGED,
    Gap,
    Gaps,
    MergedLog,
    MergedPartition,
    Piece,
    Sources,
    merged_frame,
    opened,
)


class Output:
    """The pieces of each partition, in order. A run of rows of one batch becomes one piece."""

    def __init__(self) -> None:
        self.pieces: dict[str, list[Piece]] = defaultdict(list)
        self.events = self.bytes = 0
        self._runs: dict[str, list[int]] = defaultdict(list)
        self._log, self._first, self._batch = "", 0, None

    def begin(self, log: str, first: int, batch: pa.RecordBatch) -> None:
        """Start a batch, the source of the rows to `add`; `first` is the offset of its first event in its log."""
        self._log, self._first, self._batch = log, first, batch

    def add(self, partition: str, row: int) -> None:
        self._runs[partition].append(row)
        self.events += 1

    def add_piece(self, partition: str, piece: Piece) -> None:
        """Add events from elsewhere, after the rows so far."""
        self._end_run(partition)
        self._add(partition, piece)
        self.events += len(piece.offsets)

    def end(self) -> None:
        """End the batch."""
        for partition in list(self._runs):
            self._end_run(partition)
        self._batch = None

    def _end_run(self, partition: str) -> None:
        rows = self._runs.pop(partition, None)
        if not rows or self._batch is None:
            return
        whole = len(rows) == self._batch.num_rows
        batch = self._batch if whole else self._batch.take(pa.array(rows))
        self._add(partition, Piece(self._log, [self._first + row for row in rows], batch))

    def _add(self, partition: str, piece: Piece) -> None:
        self.pieces[partition].append(piece)
        self.bytes += piece.batch.nbytes


BYTES_MAX = 64 << 20
GAPS_MAX = 10_000
_ROW_BYTES = 1_000  # overhead of Python and Arrow for a batch of one event


@dataclass(frozen=True, slots=True)
class Row:
    """A waiting event and its place."""

    log: str
    offset: int
    batch: pa.RecordBatch

    @property
    def bytes(self) -> int:
        """Approximate memory in bytes."""
        return int(self.batch.nbytes) + _ROW_BYTES

    @property
    def appended_us(self) -> int:
        """When the node appended the event."""
        return int(self.batch.column("appended")[0].value)


class Waiting:
    """The waiting events, by entity and sequence."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_max, self._bytes = bytes_max, 0
        self._rows: dict[str, dict[int, Row]] = {}
        self._since_us: dict[str, int] = {}
        self.forgotten: dict[str, int] = {}  # per log: the offset of the first event beyond the memory limit

    def __contains__(self, entity: str) -> bool:
        return entity in self._since_us

    def put(self, entity: str, sequence: int, row: Row) -> Row | None:
        """Let an event wait. Returns another event that waits with the same entity and sequence, if any."""
        found = self._rows.get(entity, {}).get(sequence)
        if found is not None:
            return found if (found.log, found.offset) != (row.log, row.offset) else None
        if len(self._since_us) < GAPS_MAX:
            self._since_us[entity] = min(row.appended_us, self._since_us.get(entity, row.appended_us))
        if self._bytes + row.bytes > self._bytes_max or entity not in self._since_us:
            self.forgotten[row.log] = min(row.offset, self.forgotten.get(row.log, row.offset))
            return None
        self._rows.setdefault(entity, {})[sequence] = row
        self._bytes += row.bytes
        return None

    def take(self, entity: str, after: int) -> Iterator[Row]:
        """Remove and return the entity's events that follow sequence `after` without a gap."""
        rows = self._rows.get(entity, {})
        while (row := rows.pop(after + 1, None)) is not None:
            self._bytes -= row.bytes
            after += 1
            yield row
        if not rows:
            self._rows.pop(entity, None)
            self._since_us.pop(entity, None)

    def take_forgotten(self) -> dict[str, int]:
        """Return and clear the offset per log from which to read again."""
        forgotten, self.forgotten = self.forgotten, {}
        return forgotten

    def lowest(self) -> dict[str, int]:
        """Per log, the offset of the first waiting or forgotten event."""
        found = dict(self.forgotten)
        for rows in self._rows.values():
            for row in rows.values():
                found[row.log] = min(row.offset, found.get(row.log, row.offset))
        return found

    def entities(self) -> list[str]:
        """The entities with a gap, oldest gap first."""
        return sorted(self._since_us, key=self._since_us.__getitem__)

    def gaps(self, lasts: Mapping[str, int]) -> list[Gap]:
        """The gaps; `lasts` has the last merged sequence of each entity."""
        return [Gap(entity, lasts[entity] + 1, self._since_us[entity]) for entity in self.entities()]


FRAME_EVENTS_MAX = 20_000
FRAME_BYTES_MAX = 16 << 20  # approximate: one batch of a log may exceed the limit
PAUSE_S_MIN, PAUSE_S_MAX = 0.001, 0.01
TROUBLE_PAUSE_S = 0.5
_ONE_IS_ENOUGH = "One merger is enough. If that process is paused, end it, then start this one again"
Watch = Callable[[int], None]  # receives the number of events read from the logs so far
log = logging.getLogger(__name__)


def nobody(read: int) -> None:
    """A watch that does nothing."""


class Merger:
    """The one merger of a folder. For one thread.

    Invariant: an entity's events have the sequences 1, 2, 3, …, and no two have the same sequence (`NodeWriter`). So an
    event is in the stream already exactly if its sequence is at most the entity's last merged sequence, and is merged
    now exactly if its sequence is the next one. Sequences alone decide; all marks only save reading.

    Protocol:

    1. The merger takes the lock; a second merger gets JournalLocked.
    2. The merger reads each log from its cursor up to the log's end mark or seal. Events before the mark or seal are
       durable and stay (`log.seal`).
    3. For each event: if its sequence is the entity's next one, the event goes to the output of the entity's partition,
       followed by the events that waited for it. If its sequence is later, the event waits. If the event was merged
       before, it is dropped.
    4. When the output is large enough, and at the end of a pass, the merger stores one frame per partition, as a
       journal does (`JournalWriter`, steps 4 to 6). The last event of a frame records how far the logs were read, and
       up to where they are *done*: all earlier events are in the stream. Of the frames stored together only the last
       one records the new done position; the others repeat the previous one.
    5. The index of the entities' last sequences takes the frame in.

    A crash before a frame is durable: the frame never existed; its events are read again. A crash after: on restart the
    index first follows the stream, so the frame's events are dropped when read again. A crash between the frames of two
    partitions: the marks are still the previous ones, so the second partition's events are read again, and the first
    partition's are dropped. There is no other record of progress. Offsets are those of a journal: they never change.

    A merger restarts from the marks of the last frames of all partitions together. A waiting event lies beyond the done
    position, so it is read again, too.
    """

    def __init__(
        self, folder: Path, partitions: int = 1, *, clock: Clock | None = None, waiting_bytes_max: int = BYTES_MAX
    ) -> None:
        self._folder, self._merged = folder, folder / MERGED
        self._clock, self._waiting_bytes_max = clock or SystemClock(), waiting_bytes_max
        with reaching(self._merged):
            self._merged.mkdir(parents=True, exist_ok=True)
            self._lock = lock_alone(self._merged / "lock", "Another process merges this folder", _ONE_IS_ENOUGH)
        self._logs: dict[str, MergedLog] = {}
        self._index: Lasts | None = None
        self._doubtful = self._output_failed = False
        self._watch: Watch = nobody
        self.duplicates = 0  # events dropped although read for the first time
        try:
            with reaching(self._merged):
                self._born = opened(folder, partitions)
                self._start()
        except BaseException:
            self.close()
            raise

    def merge(self, watch: Watch = nobody) -> int:
        """Merge all durable events of the logs; returns their number.

        If a log cannot be read, the others are merged all the same, and then its error is raised.
        """
        self._watch = watch
        with reaching(self._merged):
            if self._doubtful:
                self._start()
            self._doubtful, before = True, self._stored
            errors = self._pass()
            while self._waiting.forgotten and self._stored != self._stored_at_look_back:
                errors = self._pass()
            self._doubtful = False
            self._show_gaps()
        if errors:
            raise errors[0]
        return self._stored - before

    def run(self, stop: threading.Event) -> None:
        """Merge until `stop` is set."""
        for _ in self.passes():
            if stop.is_set():
                return

    def passes(self, watch: Watch = nobody) -> Iterator[int]:
        """Merge forever; yields the number of events of each pass. Logs an error once, and tries again."""
        pause_s, told = PAUSE_S_MIN, None
        while True:
            moved = 0
            try:
                moved, told = self.merge(watch), None
                pause_s = PAUSE_S_MIN if moved else min(2 * pause_s, PAUSE_S_MAX)
            except StatesideError as error:
                if str(error) != told:
                    log.warning("the merger tries again: %s", error)
                pause_s, told = TROUBLE_PAUSE_S, str(error)
            yield moved
            time.sleep(pause_s)

    def gaps(self) -> list[Gap]:
        """The entities with a missing event, oldest gap first."""
        return self._waiting.gaps(self._last(self._waiting.entities()))

    @property
    def end(self) -> Position:
        return Position.of({name: merged.end[PARTITION] for name, merged in self._logs.items()})

    @property
    def sources(self) -> Sources:
        """How far the logs are merged, and how far they were read."""
        return Sources(self._done, Position.of(self._read))

    def close(self) -> None:
        """Stop merging. All stored events are durable."""
        self._close_files()
        lock, self._lock = self._lock, CLOSED
        if lock != CLOSED:
            os.close(lock)

    def __enter__(self) -> Merger:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _start(self) -> None:
        """Bring the index up to date, and set the cursors to the marks of the last frames."""
        self._close_files()
        names = self._born.names()
        for name in names:
            self._logs[name] = MergedLog(self._merged / name, self._born.journal_id(name), self._clock)
        partitions = {name: MergedPartition(self._merged / name) for name in names}
        self._index = Lasts(self._merged / "index", lambda: partitions)
        self._index.follow()
        sources = Sources()
        for partition in partitions.values():
            sources = sources.joined(partition.sources())
        self._done, self._read = sources.done, sources.read.as_dict()
        self._cursors = self._done.as_dict()
        self._marks: dict[str, DurableEnd] = {}
        self._finished: dict[str, int] = {}  # sealed logs, and their ends
        self._waiting, self._output = Waiting(self._waiting_bytes_max), Output()
        self._lasts: dict[str, int] = {}  # of events in the output
        self._stored, self._stored_at_look_back = 0, 0
        self._doubtful = self._output_failed = False
        self._gaps_shown: Gaps | None = None

    def _pass(self) -> list[StatesideError]:
        """Read all logs once; returns the errors of those that failed."""
        self._look_back()
        errors = []
        for name, source in node_logs(self._folder).items():
            try:
                self._merge_log(name, source)
            except StatesideError as error:
                if self._output_failed:
                    raise
                errors.append(error)
        self._flush()
        return errors

    def _look_back(self) -> None:
        """Move the cursors back to forgotten events, if anything was merged since: only then can they follow."""
        if self._stored == self._stored_at_look_back:
            return
        self._stored_at_look_back = self._stored
        for name, offset in self._waiting.take_forgotten().items():
            self._cursors[name] = min(offset, self._cursors[name])

    def _merge_log(self, name: str, source: NodeLog) -> None:
        """Steps 2 to 4 for one log. A sealed log that was read to its end is skipped."""
        start = self._cursors.get(name, 0)
        if self._finished.get(name) == start:
            return
        sealed, end = is_sealed(source.directory), source.durable_end()
        mark = self._marks.get(name)
        for first, batch in source.batches(start, end.offset, mark if mark and mark.offset <= start else None):
            self._take(name, first, batch)
            self._cursors[name] = first + batch.num_rows
            self._read[name] = max(self._read.get(name, 0), self._cursors[name])
            if self._output.events >= FRAME_EVENTS_MAX or self._output.bytes >= FRAME_BYTES_MAX:
                self._flush()
        self._marks[name] = end
        if sealed:
            self._finished[name] = end.offset

    def _take(self, name: str, first: int, batch: pa.RecordBatch) -> None:
        """Step 3 for the events of a batch."""
        entities, sequences = (batch.column(column).to_pylist() for column in ("entity", "sequence"))
        lasts = self._last(set(entities))
        self._output.begin(name, first, batch)
        for row, (entity, sequence) in enumerate(zip(entities, sequences, strict=True)):
            if sequence == lasts[entity] + 1:
                lasts[entity] = self._emit(entity, sequence, row)
            elif sequence > lasts[entity]:
                self._wait(entity, sequence, Row(name, first + row, batch.take(pa.array([row]))))
            elif first + row >= self._read.get(name, 0):
                self._tell_duplicate(entity, sequence, name, first + row)
        self._output.end()
        self._lasts.update(lasts)

    def _emit(self, entity: str, sequence: int, row: int) -> int:
        """Output the entity's next event and its waiting successors; returns the entity's new last sequence."""
        partition = self._born.partition_of(entity)
        self._output.add(partition, row)
        if entity in self._waiting:
            for waited in self._waiting.take(entity, sequence):
                self._output.add_piece(partition, Piece(waited.log, [waited.offset], waited.batch))
                sequence += 1
        return sequence

    def _wait(self, entity: str, sequence: int, row: Row) -> None:
        if self._waiting.put(entity, sequence, row) is not None:
            self._tell_duplicate(entity, sequence, row.log, row.offset)

    def _tell_duplicate(self, entity: str, sequence: int, name: str, offset: int) -> None:
        self.duplicates += 1
        log.warning("dropped the event at %s:%d: %r has a sequence %d already", name, offset, entity, sequence)

    def _last(self, entities: set[str] | list[str]) -> dict[str, int]:
        """The last sequence of each entity, including events in the output."""
        assert self._index is not None
        unknown = [entity for entity in entities if entity not in self._lasts]
        found = self._index.last(unknown)
        return {entity: self._lasts[entity] if entity in self._lasts else found[entity] for entity in entities}

    def _flush(self) -> None:
        """Steps 4 and 5. After an error here, everything is read again from the stream."""
        assert self._index is not None
        self._output_failed = True
        done, read = self._now_done(), Position.of(self._read)
        partitions = sorted(self._output.pieces)
        for partition in partitions:
            sources = Sources(done if partition == partitions[-1] else self._done, read)
            batch = merged_frame(self._output.pieces[partition], sources)
            first = self._logs[partition].store(batch)
            self._index.note(partition, first, batch)
            self._index.flush_if_due()
            self._stored += batch.num_rows
        self._done, self._output, self._lasts = done, Output(), {}
        self._output_failed = False
        self._watch(read.events())

    def _now_done(self) -> Position:
        """Up to where no event of the logs is missing, once the output is stored."""
        lowest = self._waiting.lowest()
        return Position.of({name: min(at, lowest.get(name, at)) for name, at in self._cursors.items()})

    def _show_gaps(self) -> None:
        """Publish the gaps when they have changed."""
        gaps = Gaps.of(self.gaps())
        if gaps != self._gaps_shown:
            gaps.write(self._merged)
            self._gaps_shown = gaps

    def _close_files(self) -> None:
        for merged in self._logs.values():
            merged.close()
        self._logs = {}
        if self._index is not None:
            self._index.close()
            self._index = None
