"""Views as readers see them: rows by key out of a replica, in one snapshot, with the stamp of that snapshot."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from stateside.checkpoint.catalogue import Catalogue
from stateside.checkpoint.computed import KnownSteps
from stateside.checkpoint.heartbeat import Heartbeat
from stateside.checkpoint.inferred import Refusal
from stateside.checkpoint.place import reading
from stateside.checkpoint.unsafe_row import Value
from stateside.clock import Clock, SystemClock
from stateside.errors import KeyInvalid, NotFreshEnough, StatesideError, ViewInvalid, ViewUnknown
from stateside.layout import Layout, ViewLayout
from stateside.positions import Position
from stateside.replica.store import ReplicaReader, Snapshot
from stateside.serving.reading.shape import Shape
from stateside.serving.reading.sums import Span
from stateside.serving.reading.told import Told
from stateside.serving.stamp import Stamp, iso_time
from stateside.storage import Storage

WAIT_MS_DEFAULT = 5_000
WAIT_MS_MAX = 30_000
ROWS_MAX = 10_000
_POLL_S = 0.01

T = TypeVar("T")
Sign = tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class Floor:
    """What the reader asks for at least: events up to a position, an age at most, and how long it would wait for it."""

    min_position: Position | None = None
    max_age_ms: int | None = None
    wait_ms: int = WAIT_MS_DEFAULT

    def missing(self, stamp: Stamp) -> str | None:
        """What the stamp lacks, if anything."""
        if self.min_position and not stamp.position.covers(self.min_position):
            return f"it stands at position {stamp.position}, {self.min_position} was asked for"
        if self.max_age_ms is not None and stamp.age_ms > self.max_age_ms:
            return f"it is {stamp.age_ms} ms old, {self.max_age_ms} ms were asked for at most"
        return None


@dataclass(frozen=True, slots=True)
class Answer:
    """Rows, objects by column name, and the stamp of the snapshot that they come from."""

    stamp: Stamp
    rows: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class SumAnswer:
    """One row, or none, with the columns of a range of buckets combined; the range, if there was any; the stamp."""

    stamp: Stamp
    rows: list[dict[str, Any]]
    range: dict[str, str] | None
    buckets: int


class ViewReader:
    """Reads one view's replica: its own, or one that is given, and is then not closed with it."""

    def __init__(self, layout: ViewLayout, clock: Clock | None = None, replica: ReplicaReader | None = None) -> None:
        self._clock = clock or SystemClock()
        steps = KnownSteps(layout.name, layout.steps)
        self.shape = Shape(Catalogue.load(layout.catalogue), Storage.at(layout.checkpoint_location), steps)
        self._owns_replica = replica is None
        self._replica = replica or ReplicaReader(layout.replica)  # last: nothing after it may fail and leave it open

    def close(self) -> None:
        """Let the replica go."""
        if self._owns_replica:
            self._replica.close()

    async def rows(self, key: Sequence[Value], floor: Floor | None = None) -> Answer:
        """The rows whose key begins with these values; waits for the floor, then NotFreshEnough. Never less."""
        prefix = self.shape.codec.encode(key)
        return await self.read(floor or Floor(), lambda snapshot, stamp: Answer(stamp, self._rows(snapshot, prefix)))

    async def stamp(self, floor: Floor | None = None) -> Stamp:
        """What an answer would be an answer of, for what is read elsewhere at the same batch; waits like `rows`."""
        return await self.read(floor or Floor(), lambda snapshot, stamp: stamp)

    async def sum(self, key: Sequence[Value], span: Span, floor: Floor | None = None) -> SumAnswer:
        """The buckets of one key, the parts before its window, in a range, combined (see `sums`); waits like `rows`."""
        self.shape.sums.window(key)
        return await self.read(floor or Floor(), lambda snapshot, stamp: self._sum(snapshot, stamp, key, span))

    async def rollup(self, columns: Sequence[str], parts: Sequence[str], floor: Floor | None = None) -> Answer:
        """The rows of the rollup by these columns whose coarser key begins with these parts; waits like `rows`."""
        rollups = self.shape.rollups
        key = rollups.parse_key(columns, parts)
        return await self.read(
            floor or Floor(),
            lambda snapshot, stamp: Answer(stamp, rollups.rows(snapshot, columns, key, ROWS_MAX)),
        )

    async def read(self, floor: Floor, read: Callable[[Snapshot, Stamp], T]) -> T:
        """What `read` makes of the first snapshot that lacks nothing of the floor; NotFreshEnough if none comes."""
        deadline = time.monotonic() + floor.wait_ms / 1_000
        while True:
            with self._replica.snapshot() as snapshot:
                stamp = self._stamp(snapshot)
                missing = "it has no batch yet" if stamp is None else floor.missing(stamp)
                if stamp is not None and missing is None:
                    return read(snapshot, stamp)
                trouble = snapshot.trouble()
            if time.monotonic() >= deadline:
                raise self._not_fresh(missing, trouble)
            await asyncio.sleep(_POLL_S)

    @contextmanager
    def held(self, floor: Floor, check: Callable[[], None]) -> Iterator[tuple[Snapshot, Stamp]]:
        """For a thread that takes its time: the first snapshot that lacks nothing of the floor, and its stamp.

        Waits like `read`, without asyncio; `check` is called meanwhile, and may raise to end it.
        """
        deadline = time.monotonic() + floor.wait_ms / 1_000
        while True:
            check()
            with self._replica.snapshot() as snapshot:
                stamp = self._stamp(snapshot)
                missing = "it has no batch yet" if stamp is None else floor.missing(stamp)
                if stamp is not None and missing is None:
                    yield snapshot, stamp
                    return
                trouble = snapshot.trouble()
            if time.monotonic() >= deadline:
                raise self._not_fresh(missing, trouble)
            time.sleep(_POLL_S)

    def _not_fresh(self, missing: str | None, trouble: str | None) -> NotFreshEnough:
        return NotFreshEnough(
            f"The view {self.shape.catalogue.view!r} is not fresh enough: {missing}"
            + (f". Its replica does not move: {trouble}" if trouble else ""),
            next_step="Ask again, wait longer (wait_ms), or ask for less; see whether the pipeline runs",
        )

    def _rows(self, snapshot: Snapshot, prefix: bytes) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        for key, row in snapshot.range(prefix):
            if len(rows) == ROWS_MAX:
                raise KeyInvalid(f"More than {ROWS_MAX} rows begin with this key", next_step="Give more of its parts")
            rows.append(self.shape.row(key, row))
        return rows

    def _sum(self, snapshot: Snapshot, stamp: Stamp, key: Sequence[Value], span: Span) -> SumAnswer:
        found = self.shape.sums.read(snapshot, stamp, key, span)
        if found is None:
            return SumAnswer(stamp, [], None, 0)
        over = (found.start_us, found.end_us)
        rows = [] if found.values is None else [self.shape.shown([*key, over], found.values)]
        return SumAnswer(stamp, rows, {"from": iso_time(over[0]), "to": iso_time(over[1])}, found.buckets)

    def _stamp(self, snapshot: Snapshot) -> Stamp | None:
        batch, fresh_us = snapshot.batch(), snapshot.fresh_us()
        if batch is None:
            return None
        catalogue = self.shape.catalogue
        if catalogue.query not in (None, batch.query):
            raise NotFreshEnough(
                f"The checkpoint of the view {catalogue.view!r} is another query's now", next_step="Ask again"
            )
        since_us = batch.committed_us if fresh_us is None else fresh_us
        return Stamp(
            view=catalogue.view,
            batch=batch.batch,
            position=batch.position,
            watermark_us=batch.watermark_us,
            committed_us=batch.committed_us,
            age_ms=max(0, (self._clock.now_us() - since_us) // 1_000),
            age_basis="commit" if fresh_us is None else "heartbeat",
            replica=snapshot.replica(),
        )


class Views:
    """All views of a folder; a view appears as soon as it has a catalogue and a replica."""

    def __init__(self, layout: Layout, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._layout = layout
        self._replicas: dict[str, ReplicaReader] = {}  # kept when a view's reader is made anew
        self._readers: dict[str, tuple[Sign, ViewReader]] = {}

    def names(self) -> list[str]:
        """The views that have been run in this folder."""
        return [view.name for view in self._layout.views()]

    def states(self) -> list[dict[str, Any]]:
        """For each view, what its job's last heartbeat says, and how long ago that was; `unknown` without one.

        A view of a job that is not ours, which cannot be served, is `refused`.
        """
        now_us = self._clock.now_us()
        served = [_state(view, Heartbeat.load(view.heartbeat), now_us) for view in self._layout.views()]
        return served + [_refused(refusal) for refusal in Told.load(self._layout).refused]

    def note(self) -> str | None:
        """What is waited for, or wrong, with the checkpoint of a job that is not ours."""
        return Told.load(self._layout).note

    def get(self, name: str) -> ViewReader:
        """The reader of a view, by the catalogue that it has now.

        ViewUnknown if there is none of that name, ViewInvalid if it is refused, NotFreshEnough before its first batch.
        """
        if name in self._readers:
            sign, reader = self._readers[name]
            if sign == _sign(self._layout.view(name)):
                return reader
            del self._readers[name]
        if name not in self.names():
            raise self._unknown(name)
        view = self._layout.view(name)
        sign = _sign(view)  # before it is read: if it is replaced meanwhile, the next request finds that
        self._readers[name] = sign, self._open(view)
        return self._readers[name][1]

    async def ready(self, name: str, floor: Floor) -> ViewReader:
        """The reader of a view; waits for its first batch as long as the floor says. Errors as for `get`."""
        deadline = time.monotonic() + floor.wait_ms / 1_000
        while True:
            try:
                return self.get(name)
            except NotFreshEnough:
                if time.monotonic() >= deadline:
                    raise
            await asyncio.sleep(_POLL_S)

    def _open(self, view: ViewLayout) -> ViewReader:
        try:
            if view.name not in self._replicas:
                self._replicas[view.name] = ReplicaReader(view.replica)
            with reading(Storage.at(view.checkpoint_location)):
                return ViewReader(view, self._clock, self._replicas[view.name])
        except FileNotFoundError:
            raise NotFreshEnough(
                f"The view {view.name!r} has no batch yet", next_step="Ask again in a moment"
            ) from None

    def _unknown(self, name: str) -> StatesideError:
        told = Told.load(self._layout)
        for refusal in told.refused:
            if refusal.view == name:
                return ViewInvalid(f"The view {name!r} is not served: {refusal.why}")
        served = f"Views served: {', '.join(self.names()) or 'none yet'}"
        return ViewUnknown(
            f"There is no view {name[:80]!r} here", next_step=f"{told.note} {served}" if told.note else served
        )


def _sign(view: ViewLayout) -> Sign:
    """Another one whenever the view has another catalogue; None if it has none."""
    try:
        found = os.stat(view.catalogue)  # noqa: PTH116 - a Path takes as long as the call
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns


def _refused(refusal: Refusal) -> dict[str, Any]:
    return {"view": refusal.view, "state": "refused", "why": refusal.why, "heard_ms": None}


def _state(view: ViewLayout, heartbeat: Heartbeat | None, now_us: int) -> dict[str, Any]:
    if heartbeat is None:
        return {"view": view.name, "state": "unknown", "why": None, "heard_ms": None}
    heard_ms = max(0, (now_us - heartbeat.time_us) // 1_000)
    return {"view": view.name, "state": heartbeat.state_at(now_us), "why": heartbeat.why, "heard_ms": heard_ms}
