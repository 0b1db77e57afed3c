"""The reader of a view: answers queries from one snapshot of the replica, with the stamp of the snapshot."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from hashlib import blake2b
from typing import TypeVar

from stateside.core.clock import Clock, SystemClock
from stateside.core.errors import NotFreshEnough
from stateside.core.layout import ViewLayout
from stateside.core.storage import Storage
from stateside.replica.store import ReplicaReader, Snapshot
from stateside.serving.rows.archive import SealedRows
from stateside.serving.rows.floor import NEWEST, STUCK, AsOf, Floor
from stateside.serving.rows.relation import Relation, ViewAnswer
from stateside.serving.rows.shape import Shape
from stateside.serving.stamp import Stamp
from stateside.spark_state.unsafe_row import Value
from stateside.views.catalogue import Catalogue
from stateside.views.functions import KnownFunctions
from stateside.views.heartbeat import Heartbeat

ORDERED_AT_A_TIME_MAX = 2  # reads in column order
POLL_S = 0.01

T = TypeVar("T")


class _NotYet(Exception):
    """What the replica lacks of the floor, and the reason if the replica is stuck."""

    def __init__(self, missing: str, trouble: str | None) -> None:
        super().__init__(missing)
        self.missing, self.trouble = missing, trouble


class ViewReader:
    """Reads one view's replica: its own, or a given one, which stays open on `close`.

    `sealed` has the rows that left the state for the view's archive; None without an archive. `ordering` limits the
    reads that may take seconds, so that other reads find a free thread.
    """

    def __init__(self, layout: ViewLayout, clock: Clock | None = None, replica: ReplicaReader | None = None) -> None:
        self.clock, self.layout = clock or SystemClock(), layout
        functions = KnownFunctions(layout.name, layout.functions)
        catalogue = replace(Catalogue.load(layout.catalogue), view=layout.name)  # a renamed view's has the old name
        self.shape = Shape(catalogue, Storage.at(layout.checkpoint_location), functions)
        self.sealed = SealedRows.of(self.shape, layout)
        self.ordering = asyncio.Semaphore(ORDERED_AT_A_TIME_MAX)
        self._look = blake2b(self.shape.catalogue.as_json(), digest_size=8).hexdigest()
        self._owns_replica = replica is None
        self._replica = replica or ReplicaReader(layout.replica)  # last: a failure after opening would leak the replica

    @property
    def replica(self) -> ReplicaReader:
        """The replica, for callers that read many snapshots."""
        return self._replica

    def stamp_of(self, snapshot: Snapshot) -> Stamp | None:
        """The stamp of a snapshot; None before the first batch."""
        return self._stamp(snapshot)

    def close(self) -> None:
        if self._owns_replica:
            self._replica.close()

    async def rows(self, key: Sequence[Value], floor: Floor | None = None) -> ViewAnswer:
        """The live rows whose key begins with these values; NotFreshEnough if the floor is not reached in time."""
        return await Relation(self).rows(key, floor or Floor())

    async def rollup(self, by: Sequence[str], parts: Sequence[str], floor: Floor | None = None) -> ViewAnswer:
        """The rows of the rollup by these columns whose rollup key begins with these parts; waits like `rows`."""
        return await Relation(self, self.shape.rollup(by)).rollup(parts, floor or Floor())

    async def stamp(self, floor: Floor | None = None) -> Stamp:
        """The stamp that an answer would have, for data read elsewhere at the same batch; waits like `rows`."""
        return await self.read(floor or Floor(), lambda snapshot, stamp: stamp)

    async def read(
        self, floor: Floor, read: Callable[[Snapshot, Stamp], T], as_of: AsOf = NEWEST, *, aside: bool = False
    ) -> T:
        """The result of `read` on the first snapshot that reaches the floor; NotFreshEnough if none does in time.

        With `as_of` the snapshot is of the given batch; HistoryGone if the batch is too old. A `read` of more than a
        millisecond runs `aside`, in a thread, so that other requests are answered meanwhile.
        """
        deadline = time.monotonic() + floor.wait_ms / 1_000
        while True:
            try:
                if aside:
                    return await asyncio.to_thread(self._attempt, floor, read, as_of)
                return self._attempt(floor, read, as_of)
            except _NotYet as not_yet:
                if time.monotonic() >= deadline:
                    raise self._not_fresh_enough(not_yet) from None
            await asyncio.sleep(POLL_S)

    def check(self, floor: Floor) -> None:
        """NotFreshEnough if the newest snapshot is below the floor."""
        try:
            self._attempt(floor, lambda snapshot, stamp: None, NEWEST)
        except _NotYet as not_yet:
            raise self._not_fresh_enough(not_yet) from None

    @contextmanager
    def held(self, floor: Floor, check: Callable[[], None]) -> Iterator[tuple[Snapshot, Stamp]]:
        """A snapshot at the floor and its stamp, for a thread that reads for long.

        Waits like `read`, without asyncio; `check` is called in every round, and may raise to end the wait.
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
                not_yet = _NotYet(missing or "", snapshot.trouble())
            if time.monotonic() >= deadline:
                raise self._not_fresh_enough(not_yet)
            time.sleep(POLL_S)

    def _attempt(self, floor: Floor, read: Callable[[Snapshot, Stamp], T], as_of: AsOf) -> T:
        if as_of.batch is not None:
            self._check_there(as_of.batch)
        with self._replica.snapshot(as_of.batch, as_of.fingerprint) as snapshot:
            stamp = self._stamp(snapshot)
            missing = "it has no batch yet" if stamp is None else floor.missing(stamp)
            if stamp is None or missing is not None:
                raise _NotYet(missing or "", snapshot.trouble())
            return read(snapshot, stamp)

    def _check_there(self, batch: int) -> None:
        with self._replica.snapshot() as newest:
            applied = newest.batch()
            if applied is None or applied.batch < batch:
                stands = "it has no batch yet" if applied is None else f"it stands at batch {applied.batch}"
                raise _NotYet(f"{stands}, batch {batch} was asked for", newest.trouble())

    def _not_fresh_enough(self, not_yet: _NotYet) -> NotFreshEnough:
        heartbeat = Heartbeat.load(self.layout.heartbeat)
        outage = heartbeat and heartbeat.outage(self.clock.now_us())
        return NotFreshEnough(
            f"The view {self.shape.catalogue.view!r} is not fresh enough: {not_yet.missing}"
            + (f". {outage}" if outage else "")
            + (STUCK if not_yet.trouble else ""),
            where=not_yet.trouble,
            next_step="Ask for less, or again once the job runs"
            if outage
            else "Ask again, wait longer (wait_ms), or ask for less",
        )

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
            age_ms=max(0, (self.clock.now_us() - since_us) // 1_000),
            age_basis="commit" if fresh_us is None else "heartbeat",
            replica=snapshot.replica(),
            share=snapshot.share_text(),
            edition=f"{self._look} {batch.fingerprint}",
            generation=self.layout.generation,
        )
