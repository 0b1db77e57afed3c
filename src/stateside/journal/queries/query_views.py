"""Views: where a stream's events stand, by entity, tag, type and time. They follow the stream and are made of it.

How they follow; a crash between any two steps leaves views that are right, and as far as the last transaction:

1. The process takes the lock: one follows, any number read.
2. Views that are missing, damaged, condemned by a reader, or of another stream are begun anew, empty (`generation`).
   So are those that the stream does not bear out: it ends before them, or the last event that they have has another id.
3. Events are read from where the views end, some ten thousand at a time.
4. One transaction takes them in, and moves the views' position (`indexing`). No reader sees one without the other.

Memory: the events of one transaction, some 100 MB at most, or one append of the journal.

Portions: a stream's events as the views take them in, some ten thousand in a transaction.

Progress: how far views are that follow a stream, as a watch is told it.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from stateside.core.errors import JournalCorrupt, SetupError, ViewsBusy
from stateside.core.positions import Position
from stateside.core.storage import try_lock
from stateside.journal.columns import SCHEMA
from stateside.journal.frames import Offsets
from stateside.journal.queries import generation as generations
from stateside.journal.queries.format import ViewsDamaged, ViewsState
from stateside.journal.queries.generation import Generation
from stateside.journal.queries.indexer import Indexing, PartitionRange
from stateside.journal.queries.view_snapshot import ViewsSnapshot
from stateside.journal.stream import Stream, begin, gather, located

TRANSACTION_EVENTS = 50_000
TRANSACTION_BYTES = 32 << 20
_COLUMNS = ["id", "entity", "type", "time", "tags", "sequence"]
_NOWHERE: Offsets = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Portion:
    """What a transaction takes in: all events with offsets start <= offset < behind, and where they stand."""

    start: int
    behind: int
    offsets: Offsets
    batch: pa.RecordBatch


def portions(stream: Stream, partition: str, start: int, stop: int) -> Iterator[Portion]:
    """The events in portions of the size that a transaction takes, with what the views need of them.

    The last one reaches `stop`, with no event in it perhaps: a stream may have a gap there.
    """
    waiting: list[pa.RecordBatch] = []
    places: list[Offsets] = []
    rows = size = 0
    for offsets, batch in located(stream, partition, start, stop):
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
    """The batches as one; without any an empty one."""
    if not batches:
        return pa.RecordBatch.from_pylist([], schema=pa.schema([SCHEMA.field(name) for name in _COLUMNS]))
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


@dataclass(frozen=True, slots=True)
class ViewsProgress:
    """How far the views are: so many of the stream's events are in them, of so many."""

    events: int
    total: int

    @property
    def done(self) -> float:
        """The share of the work done, from 0 to 1."""
        return self.events / self.total if self.total else 1.0


Watch = Callable[[ViewsProgress], None]


def nobody(progress: ViewsProgress) -> None:
    """Watches nothing."""


TRANSACTION_S_MIN = 0.2  # a few events wait so long for others: queries read them from the stream meanwhile
WAIT_S = 0.5
log = logging.getLogger(__name__)


class QueryViews:
    """A stream's views in a folder. Any number of threads may read; share one object among them (LMDB's rule).

    Nothing that is wrong with the folder is an error for who asks: what the views do not have is read from the stream.
    """

    def __init__(self, stream: Stream, folder: Path) -> None:
        self.stream, self.folder = stream, folder
        self._generation: Generation | None = None
        self._borne_out: tuple[Path, Position] | None = None  # which views, and up to where
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
        """The views as they are now; None if there are none that belong to this stream.

        Damaged if they turn out to be so, here or in the block: they are condemned, and the next snapshot is None.
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
            if self._generation is generation:  # else they were closed or replaced under who reads
                generation.condemn(str(damage))
            raise

    def condemn(self, reason: str) -> None:
        """Let the views be made anew: something in them is not borne out by the stream."""
        generation = self._current()
        if generation is not None:
            generation.condemn(reason)

    def follow(self, watch: Watch = nobody, stop: threading.Event | None = None) -> Position:
        """Bring the views to the end that the stream has now, or as far as they come until `stop` is set.

        ViewsBusy if another process follows, SetupError if the disk does not take them. The watch is told after each
        transaction.
        """
        with self._lock():
            self._prepare()
            self._follow(watch, stop or threading.Event())
        return self.position()

    def keep_following(self, stop: threading.Event, watch: Watch = nobody) -> None:
        """Follow the stream until `stop` is set. While another process does, wait, and take over when it ends.

        It ends with an error that somebody must see to: SetupError if the disk does not take the views, or the stream's
        own, as JournalCorrupt. What is wrong with the views themselves is none: they are made anew.
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
        """Make the views anew from the stream's beginning. Errors as of `follow`."""
        with self._lock():
            self._begin()
            self._follow(watch, stop or threading.Event())
        return self.position()

    def close(self) -> None:
        """Let the files go. Who still reads gets an error."""
        with self._opening:
            if self._generation is not None:
                self._generation.environment.close()
            self._generation = None

    def __enter__(self) -> QueryViews:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _current(self) -> Generation | None:
        """The environment that counts, if it can be trusted."""
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
        """Whether views in this state are of this stream, as far as can be told at once."""
        return state.stream in (None, self.stream.id()) and self.stream.end().covers(state.position())

    def _may_be_read(self, generation: Generation, state: ViewsState) -> bool:
        """Whether the stream bears the views out: looked up once for each position that they reach.

        So views of a journal that was put back from a copy, and went on, are not read, even if nobody follows it. An
        event that cannot be read is told to who reads it.
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
        """Whether the last events that the views have are the stream's, too."""
        for partition, offset, id_ in zip(state.partitions, state.offsets, state.last_ids, strict=True):
            there = offset > begin(self.stream)[partition]  # else it was dropped meanwhile
            for _, batch in gather(self.stream, partition, np.array([offset - 1])) if there else ():
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
        generation.environment.reader_check()  # readers that were killed hold no old pages back
        with generation.reading() as transaction:
            state = ViewsSnapshot(transaction, generation.databases).state
        end, id_ = self.stream.end(), self.stream.id()
        if not self._belongs(state):
            raise ViewsDamaged("the views are of another stream than the one that is there now")
        for partition in self.stream.partitions():
            covered = state.covers(partition)
            start = max(covered, begin(self.stream)[partition])
            if covered and start > covered:  # as Kafka's retention does, which asks nobody
                raise ViewsDamaged(f"events from {partition}:{covered} on were deleted before the views had them")
            for portion in portions(self.stream, partition, start, end[partition]):
                if stop.is_set():
                    return
                state = _take_in(generation, id_, partition, portion)
                watch(ViewsProgress(sum(state.offsets), end.events()))

    def _pause(self, stop: threading.Event) -> None:
        """Wait until there is more to take in, and not for every single event."""
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
    """The environment there; None if there is none, or it is not usable."""
    if path is None or not (path / "data.mdb").exists():
        return None
    try:
        return Generation(path)
    except ViewsDamaged as damage:
        log.warning("the views in %s cannot be opened, queries read the stream: %s", path, damage)
        return None


def _take_in(generation: Generation, stream_id: str | None, partition: str, portion: Portion) -> ViewsState:
    """Step 4: the state that the views have then."""
    with generation.writing() as transaction:
        state = ViewsSnapshot(transaction, generation.databases).state
        state.stream = stream_id
        if not state.covers(partition):
            state.offsets[state.number(partition)] = portion.start  # what was dropped is in no views that are made anew
        part = PartitionRange(state.number(partition), portion.start, portion.behind, portion.offsets, portion.batch)
        Indexing(transaction, generation.databases, state).add(part)
        transaction.put(b"state", state.pack(), db=generation.databases["meta"])
    return state
