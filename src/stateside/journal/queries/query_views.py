"""Query views: indexes of a stream's events by entity, tag, type and time, derived from the stream.

How views follow the stream; a crash between any two steps leaves correct views, up to the last transaction:

1. The process takes the lock: one process follows, any number read.
2. Views that are missing, damaged, condemned by a reader, or of another stream are replaced by empty ones
   (`generation`). So are views that the stream contradicts: the stream ends before them, or their last event has
   another id.
3. Events are read from the end of the views on, in portions of about 50,000.
4. One transaction adds a portion, and moves the views' position (`indexer`). No reader sees one without the other.

Memory: the events of one transaction, about 100 MB at most, or one append of the journal.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from stateside.core.errors import JournalCorrupt, SetupError, ViewsBusy
from stateside.core.positions import Position
from stateside.core.progress import Watch, nobody
from stateside.core.storage import try_lock
from stateside.journal.backends.files.frames import Offsets
from stateside.journal.columns import SCHEMA
from stateside.journal.contract import Journal
from stateside.journal.queries import generation as generations
from stateside.journal.queries.format import ViewsDamaged, ViewsState
from stateside.journal.queries.generation import Generation
from stateside.journal.queries.indexer import Indexing, PartitionRange
from stateside.journal.queries.view_snapshot import ViewsSnapshot

TRANSACTION_EVENTS = 50_000
TRANSACTION_BYTES = 32 << 20
_COLUMNS = ["id", "entity", "type", "time", "tags", "sequence"]
_NOWHERE: Offsets = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Portion:
    """The events of one transaction: all with start <= offset < behind, and their offsets."""

    start: int
    behind: int
    offsets: Offsets
    batch: pa.RecordBatch


def portions(stream: Journal, partition: str, start: int, stop: int) -> Iterator[Portion]:
    """The events in portions of one transaction each, with the columns that the views need.

    The last portion reaches `stop`, and may be empty: a stream may have a gap there.
    """
    waiting: list[pa.RecordBatch] = []
    places: list[Offsets] = []
    rows = size = 0
    for offsets, batch in stream.located(partition, start, stop):
        for low in range(0, batch.num_rows, TRANSACTION_EVENTS):
            waiting.append(batch.select(_COLUMNS).slice(low, TRANSACTION_EVENTS))
            places.append(offsets[low : low + TRANSACTION_EVENTS])
            rows, size = rows + waiting[-1].num_rows, size + waiting[-1].nbytes
            if rows >= TRANSACTION_EVENTS or size >= TRANSACTION_BYTES:
                behind = int(places[-1][-1]) + 1
                yield Portion(start, behind, np.concatenate(places), _joined(waiting))
                start, waiting, places, rows, size = behind, [], [], 0, 0
    if start < stop:
        yield Portion(start, stop, np.concatenate([_NOWHERE, *places]), _joined(waiting))


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """The batches as one; an empty batch if there are none."""
    if not batches:
        return pa.RecordBatch.from_pylist([], schema=pa.schema([SCHEMA.field(name) for name in _COLUMNS]))
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


TRANSACTION_S_MIN = 0.2  # groups a few events into one transaction; queries read them from the stream meanwhile
WAIT_S = 0.5
log = logging.getLogger(__name__)


class QueryViews:
    """A stream's views in a folder. Any number of threads may read through one shared object (LMDB's rule).

    No fault of the folder is an error for a query: missing parts are read from the stream.
    """

    def __init__(self, stream: Journal, folder: Path) -> None:
        self.stream, self.folder = stream, folder
        self._generation: Generation | None = None
        self._borne_out: tuple[Path, Position] | None = None  # the views checked against the stream, and their position
        self._opening = threading.RLock()
        self._following = threading.Lock()

    def position(self) -> Position:
        """Up to where the views have all events."""
        try:
            with self.snapshot() as snapshot:
                return Position.start() if snapshot is None else snapshot.state.position()
        except ViewsDamaged:
            return Position.start()

    @contextmanager
    def snapshot(self) -> Iterator[ViewsSnapshot | None]:
        """The views as of now; None if there are none of this stream.

        ViewsDamaged if damage shows, here or in the block: the views are condemned, and the next snapshot is None.
        """
        generation = self._current()
        if generation is None:
            yield None
            return
        try:
            with generation.reading() as transaction:
                snapshot = ViewsSnapshot(transaction, generation.databases)
                yield snapshot if self._may_be_read(generation, snapshot.state) else None
        except ViewsDamaged as damage:
            if self._generation is generation:  # else the views were closed or replaced during the read
                generation.condemn(str(damage))
            raise

    def condemn(self, reason: str) -> None:
        """Have the views rebuilt: something in them contradicts the stream."""
        generation = self._current()
        if generation is not None:
            generation.condemn(reason)

    def follow(self, watch: Watch = nobody, stop: threading.Event | None = None) -> Position:
        """Bring the views to the stream's present end, or as far as possible until `stop` is set.

        ViewsBusy if another process follows, SetupError if the disk refuses writes. Calls `watch` after each
        transaction.
        """
        with self._lock():
            self._prepare()
            self._follow(watch, stop or threading.Event())
        return self.position()

    def keep_following(self, stop: threading.Event, watch: Watch = nobody) -> None:
        """Follow the stream until `stop` is set. While another process follows, wait, and take over when it ends.

        Raises only errors that need an operator: SetupError if the disk refuses writes, or the stream's own, as
        JournalCorrupt. Damaged views are rebuilt without an error.
        """
        while not stop.is_set():
            try:
                with self._lock():
                    while not stop.is_set():
                        self._prepare()
                        self._follow(watch, stop)
                        self._pause(stop)
            except ViewsBusy:
                stop.wait(WAIT_S)

    def rebuild(self, watch: Watch = nobody, stop: threading.Event | None = None) -> Position:
        """Rebuild the views from the stream's beginning. Errors as of `follow`."""
        with self._lock():
            self._begin()
            self._follow(watch, stop or threading.Event())
        return self.position()

    def close(self) -> None:
        """Close the files. Concurrent readers get an error."""
        with self._opening:
            if self._generation is not None:
                self._generation.environment.close()
            self._generation = None

    def __enter__(self) -> QueryViews:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _current(self) -> Generation | None:
        """The current environment, if trustworthy."""
        with self._opening:
            path = generations.current(self.folder)
            if self._generation is None or self._generation.path != path:
                self._generation = _opened(path)
            try:
                if self._generation is not None:
                    self._generation.check()
            except ViewsDamaged:
                return None
            return self._generation

    def _belongs(self, state: ViewsState) -> bool:
        """Whether views in this state are of this stream, by its id and end."""
        return state.stream in (None, self.stream.id()) and self.stream.end().covers(state.position())

    def _may_be_read(self, generation: Generation, state: ViewsState) -> bool:
        """Whether the stream confirms the views; checked once for each position of the views.

        So views of a journal that was restored from a copy, and went on, are not read, even if no process follows the
        journal. An unreadable event is left for its reader to report.
        """
        if not self._belongs(state):
            return False
        known = generation.path, state.position()
        if known != self._borne_out:
            with suppress(JournalCorrupt):
                if not self._is_borne_out(state):
                    return False
            self._borne_out = known
        return True

    @contextmanager
    def _lock(self) -> Iterator[None]:
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self._following.acquire(blocking=False):
            raise _busy("Another thread of this process", self.folder)
        try:
            handle = try_lock(self.folder / "lock")
            if handle is None:
                raise _busy("Another process", self.folder)
            try:
                yield
            finally:
                os.close(handle)
        finally:
            self._following.release()

    def _prepare(self) -> None:
        """Step 2."""
        try:
            with self.snapshot() as snapshot:
                usable = snapshot is not None and self._is_borne_out(snapshot.state)
        except ViewsDamaged:
            usable = False
        if not usable:
            self._begin()

    def _is_borne_out(self, state: ViewsState) -> bool:
        """Whether the last events of the views are in the stream, too."""
        for partition, offset, id_ in zip(state.partitions, state.offsets, state.last_ids, strict=True):
            there = offset > self.stream.begin()[partition]  # else retention has dropped it
            for _, batch in self.stream.gather(partition, np.array([offset - 1])) if there else ():
                if batch.column("id").to_pylist() != [id_]:
                    return False
        return True

    def _begin(self) -> Generation:
        with self._opening:
            self._generation = generations.begin(self.folder)
            return self._generation

    def _follow(self, watch: Watch, stop: threading.Event) -> None:
        """Steps 3 and 4, up to the stream's end; from the beginning if the views turn out to be damaged."""
        for attempt in (1, 2):
            generation = self._current() or self._begin()
            try:
                self._catch_up(generation, watch, stop)
                return
            except ViewsDamaged as damage:
                generation.condemn(str(damage))
                if attempt == 2:
                    raise SetupError(
                        f"The journal's views are damaged again as soon as they are made: {damage}",
                        where=str(self.folder),
                        next_step="See to this disk. Queries go on meanwhile: they read the stream itself",
                    ) from damage

    def _catch_up(self, generation: Generation, watch: Watch, stop: threading.Event) -> None:
        generation.environment.reader_check()  # readers that were killed must not hold old pages
        with generation.reading() as transaction:
            state = ViewsSnapshot(transaction, generation.databases).state
        end, id_ = self.stream.end(), self.stream.id()
        if not self._belongs(state):
            raise ViewsDamaged("the views are of another stream than the one that is there now")
        for partition in self.stream.partitions():
            covered = state.covers(partition)
            start = max(covered, self.stream.begin()[partition])
            if covered and start > covered:  # Kafka's retention does not ask
                raise ViewsDamaged(f"events from {partition}:{covered} on were deleted before the views had them")
            for portion in portions(self.stream, partition, start, end[partition]):
                if stop.is_set():
                    return
                state = _take_in(generation, id_, partition, portion)
                watch(sum(state.offsets), end.events())

    def _pause(self, stop: threading.Event) -> None:
        """Wait for more events, and at least `TRANSACTION_S_MIN`, to avoid a transaction per event."""
        stop.wait(TRANSACTION_S_MIN)
        position = self.position()
        while not stop.is_set() and not self.stream.wait(position, WAIT_S):
            pass


def _busy(who: str, folder: Path) -> ViewsBusy:
    return ViewsBusy(
        f"{who} follows the stream with these views",
        where=str(folder),
        next_step="That is fine for who asks: what it does is read from here too",
    )


def _opened(path: Path | None) -> Generation | None:
    """The environment at `path`; None if missing or unusable."""
    if path is None or not (path / "data.mdb").exists():
        return None
    try:
        return Generation(path)
    except ViewsDamaged as damage:
        log.warning("the views in %s cannot be opened, queries read the stream: %s", path, damage)
        return None


def _take_in(generation: Generation, stream_id: str | None, partition: str, portion: Portion) -> ViewsState:
    """Step 4; returns the new state of the views."""
    with generation.writing() as transaction:
        state = ViewsSnapshot(transaction, generation.databases).state
        state.stream = stream_id
        if not state.covers(partition):
            state.offsets[state.number(partition)] = portion.start  # rebuilt views have no dropped events
        part = PartitionRange(state.number(partition), portion.start, portion.behind, portion.offsets, portion.batch)
        Indexing(transaction, generation.databases, state).add(part)
        transaction.put(b"state", state.pack(), db=generation.databases["meta"])
    return state
