"""The merger: puts the events of all nodes' logs into one stream, each entity's in the order of its sequences.

Output: merged events on their way into the partitions, until there are enough of them for a frame.

Waiting: events that were read before the one that comes before them, and the gaps that they wait for.

Memory is bounded: what finds no room is forgotten, and its log read again from there when something has moved. The gaps
are remembered longer than the events, but not without end either.
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
from stateside.journal.lock import lock_alone
from stateside.journal.merge.gaps import Gap, Gaps
from stateside.journal.merge.partition import MERGED, MergedLog, MergedPartition, Piece, Sources, merged_frame, opened
from stateside.journal.nodes.last_sequences import Lasts
from stateside.journal.nodes.log import NodeLog, is_sealed, node_logs, reaching
from stateside.journal.segment import PARTITION, DurableEnd


class Output:
    """The pieces of each partition, in order. A run of rows of one batch becomes one piece."""

    def __init__(self) -> None:
        self.pieces: dict[str, list[Piece]] = defaultdict(list)
        self.events = self.bytes = 0
        self._runs: dict[str, list[int]] = defaultdict(list)
        self._log, self._first, self._batch = "", 0, None

    def begin(self, log: str, first: int, batch: pa.RecordBatch) -> None:
        """What comes next are rows of this batch, whose first event has this offset in its log."""
        self._log, self._first, self._batch = log, first, batch

    def add(self, partition: str, row: int) -> None:
        """A row of the batch."""
        self._runs[partition].append(row)
        self.events += 1

    def add_piece(self, partition: str, piece: Piece) -> None:
        """Events that come from somewhere else, behind the rows so far."""
        self._end_run(partition)
        self._add(partition, piece)
        self.events += len(piece.offsets)

    def end(self) -> None:
        """No more rows of this batch."""
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
_ROW_BYTES = 1_000  # what Python and Arrow take for a batch of one event beside its values


@dataclass(frozen=True, slots=True)
class Row:
    """An event that waits: where it stands, and itself."""

    log: str
    offset: int
    batch: pa.RecordBatch

    @property
    def bytes(self) -> int:
        """What it takes in memory, roughly."""
        return int(self.batch.nbytes) + _ROW_BYTES

    @property
    def appended_us(self) -> int:
        """When its node took it in."""
        return int(self.batch.column("appended")[0].value)


class Waiting:
    """The events that wait, by entity and sequence."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_max, self._bytes = bytes_max, 0
        self._rows: dict[str, dict[int, Row]] = {}
        self._since_us: dict[str, int] = {}
        self.forgotten: dict[str, int] = {}  # in each log the offset of the first event that found no room

    def __contains__(self, entity: str) -> bool:
        return entity in self._since_us

    def put(self, entity: str, sequence: int, row: Row) -> Row | None:
        """Let an event wait. Returns another one that waits as this entity's event of this sequence, if there is."""
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
        """The entity's events that follow this sequence without a gap, which wait no longer."""
        rows = self._rows.get(entity, {})
        while (row := rows.pop(after + 1, None)) is not None:
            self._bytes -= row.bytes
            after += 1
            yield row
        if not rows:
            self._rows.pop(entity, None)
            self._since_us.pop(entity, None)

    def take_forgotten(self) -> dict[str, int]:
        """From where on each log must be read again; to be asked once."""
        forgotten, self.forgotten = self.forgotten, {}
        return forgotten

    def lowest(self) -> dict[str, int]:
        """In each log the offset of the first event that waits, here or forgotten."""
        found = dict(self.forgotten)
        for rows in self._rows.values():
            for row in rows.values():
                found[row.log] = min(row.offset, found.get(row.log, row.offset))
        return found

    def entities(self) -> list[str]:
        """The entities with a gap, those that wait for the longest first."""
        return sorted(self._since_us, key=self._since_us.__getitem__)

    def gaps(self, lasts: Mapping[str, int]) -> list[Gap]:
        """What is missing; `lasts` has the last merged sequence of each entity."""
        return [Gap(entity, lasts[entity] + 1, self._since_us[entity]) for entity in self.entities()]


FRAME_EVENTS_MAX = 20_000
FRAME_BYTES_MAX = 16 << 20  # about: a batch of a log that comes on top may be larger
PAUSE_S_MIN, PAUSE_S_MAX = 0.001, 0.01
TROUBLE_PAUSE_S = 0.5
_ONE_IS_ENOUGH = "One merger is enough. If that process is paused, end it, then start this one again"
Watch = Callable[[int], None]  # told how many events of the logs were read so far
log = logging.getLogger(__name__)


def nobody(read: int) -> None:
    """Watches nothing."""


class Merger:
    """The one merger of a folder. For one thread.

    What it goes by: an entity's events have the sequences 1, 2, 3, … and no two have the same one (`NodeWriter`). So an
    event is in the stream already exactly if its sequence is not beyond that of the entity's last merged event, and its
    turn is now exactly if it is the next one. That alone decides what is merged; all marks only spare reading.

    How events are merged:

    1. The lock is taken; a second merger gets JournalLocked.
    2. Each log is read from where the merger stands in it up to its end mark or seal. What is there is durable and
       stays (`log.seal`).
    3. Of each event: if it is its entity's next one, it goes to the output of the entity's partition, and behind it
       those that waited for it. If it comes later, it waits. If it was merged before, it is dropped.
    4. When the output is large enough, and at the end of a pass, it is stored: one frame for each partition, as a
       journal stores it (`JournalWriter`, steps 4 to 6). The last event of a frame says up to where the logs were read,
       and up to where they are *done*: all before is in the stream. Only the last one of the frames that are stored
       together may say what is done with them: the others repeat what was done before.
    5. The index of the entities' last sequences takes the frame in.

    A crash before a frame is durable: it was never there; its events are read again. After: the index, which is behind
    then, follows the stream when the merger starts again, so its events are dropped when they are read again. Between
    the frames of two partitions: the marks are those of before, so the second one's events are read again, and the
    first one's dropped. There is no other record of progress. Offsets are those of a journal: they never change.

    A merger starts again from the marks of the last frames, all partitions together. An event that waits lies behind
    what is done, so it is read again, too.
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
        self.duplicates = 0  # events that were dropped although they were read for the first time
        try:
            with reaching(self._merged):
                self._born = opened(folder, partitions)
                self._start()
        except BaseException:
            self.close()
            raise

    def merge(self, watch: Watch = nobody) -> int:
        """Merge whatever is durable in the logs; how many events that were.

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
        """Merge until the event is set."""
        for _ in self.passes():
            if stop.is_set():
                return

    def passes(self, watch: Watch = nobody) -> Iterator[int]:
        """Merge for ever: of each pass how many events. What goes wrong is logged, once, and tried again."""
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
        """The entities that wait for a missing event, for the longest first."""
        return self._waiting.gaps(self._last(self._waiting.entities()))

    @property
    def end(self) -> Position:
        """The stream's end."""
        return Position.of({name: merged.end[PARTITION] for name, merged in self._logs.items()})

    @property
    def sources(self) -> Sources:
        """Up to where the logs are merged, and were read."""
        return Sources(self._done, Position.of(self._read))

    def close(self) -> None:
        """Merge no more. All that was stored is durable."""
        self._close_files()
        lock, self._lock = self._lock, CLOSED
        if lock != CLOSED:
            os.close(lock)

    def __enter__(self) -> Merger:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _start(self) -> None:
        """Know what the stream has, and stand where its last frames say."""
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
        self._finished: dict[str, int] = {}  # logs that are sealed, and where
        self._waiting, self._output = Waiting(self._waiting_bytes_max), Output()
        self._lasts: dict[str, int] = {}  # of what is in the output
        self._stored, self._stored_at_look_back = 0, 0
        self._doubtful = self._output_failed = False
        self._gaps_shown: Gaps | None = None

    def _pass(self) -> list[StatesideError]:
        """Go through all logs once; what was wrong with some of them."""
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
        """Go back to what was forgotten, if anything was merged since it was last read: only then can it matter."""
        if self._stored == self._stored_at_look_back:
            return
        self._stored_at_look_back = self._stored
        for name, offset in self._waiting.take_forgotten().items():
            self._cursors[name] = min(offset, self._cursors[name])

    def _merge_log(self, name: str, source: NodeLog) -> None:
        """Steps 2 to 4 for one log. One that is sealed, and read to its end, is not even looked at."""
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
        """An event whose turn it is, and those that waited for it; the sequence that the entity is at then."""
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
        """The last sequence of each entity, with what is in the output."""
        assert self._index is not None
        unknown = [entity for entity in entities if entity not in self._lasts]
        found = self._index.last(unknown)
        return {entity: self._lasts[entity] if entity in self._lasts else found[entity] for entity in entities}

    def _flush(self) -> None:
        """Steps 4 and 5. After an error here everything is read anew from the stream."""
        assert self._index is not None
        self._output_failed = True
        done, read = self._now_done(), Position.of(self._read)
        partitions = sorted(self._output.pieces)
        for partition in partitions:
            sources = Sources(done if partition == partitions[-1] else self._done, read)
            batch = merged_frame(self._output.pieces[partition], sources)
            first = self._logs[partition].store(batch)
            self._index.note(partition, first, batch)
            self._index.write_if_due()
            self._stored += batch.num_rows
        self._done, self._output, self._lasts = done, Output(), {}
        self._output_failed = False
        self._watch(read.events())

    def _now_done(self) -> Position:
        """Up to where nothing of the logs is missing, once the output is stored."""
        lowest = self._waiting.lowest()
        return Position.of({name: min(at, lowest.get(name, at)) for name, at in self._cursors.items()})

    def _show_gaps(self) -> None:
        """Tell other processes of the gaps, when they have changed."""
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
