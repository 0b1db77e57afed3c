"""The views of a folder, each with its reader."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

from stateside.core.clock import Clock, SystemClock
from stateside.core.errors import NotFreshEnough, PositionAhead, StatesideError, ViewInvalid, ViewUnknown
from stateside.core.layout import Layout, ViewLayout
from stateside.core.positions import Position
from stateside.core.storage import Storage
from stateside.journal.segment import PARTITION, DurableEnd
from stateside.leadership import standing
from stateside.replica.store import ReplicaReader
from stateside.serving.health.merge_status import MergeCondition, merge_condition
from stateside.serving.rows.floor import WAIT_MS_DEFAULT, WAIT_MS_MAX, Floor
from stateside.serving.rows.foreign_job import ForeignJob
from stateside.serving.rows.node_receipts import Sought, sought
from stateside.serving.rows.view_reader import POLL_S, SumAnswer, ViewAnswer, ViewReader
from stateside.spark_state.checkpoint_folder import reading
from stateside.views.heartbeat import Heartbeat
from stateside.views.inference import Refusal

__all__ = ["WAIT_MS_DEFAULT", "WAIT_MS_MAX", "Floor", "SumAnswer", "ViewAnswer", "ViewReader", "ViewReaders"]

Sign = tuple[int, int] | None


class ViewReaders:
    """All views of a folder; a view appears as soon as it has a catalogue and a replica."""

    def __init__(self, layout: Layout, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._layout = layout
        self._replicas: dict[str, ReplicaReader] = {}  # kept when a view's reader is made anew
        self._readers: dict[str, tuple[str, Sign, ViewReader]] = {}  # with the catalogue that they were made by

    def names(self) -> list[str]:
        """The views that have been run in this folder."""
        return [view.name for view in self._layout.views()]

    def layouts(self) -> list[ViewLayout]:
        """Where they are."""
        return self._layout.views()

    def states(self) -> list[dict[str, Any]]:
        """For each view, what its job's last heartbeat says, and how long ago that was; `unknown` without one.

        A view of a job that is not ours, which cannot be served, is `refused`.
        """
        now_us = self._clock.now_us()
        served = [_state(view, Heartbeat.load(view.heartbeat), now_us) for view in self._layout.views()]
        return served + [_refused(refusal) for refusal in ForeignJob.load(self._layout).refused]

    def state(self, name: str) -> dict[str, Any]:
        """The same for one view."""
        view = self._layout.view(name)
        return _state(view, Heartbeat.load(view.heartbeat), self._clock.now_us())

    def leadership(self) -> dict[str, Any] | None:
        """Who leads the application and who stands by; None where it runs without a lease."""
        return standing(self._layout.root, self._clock.now_us())

    def merge_condition(self) -> MergeCondition | None:
        """How far the logs are merged of nodes that write the folder's journal; None if none do."""
        return merge_condition(self._layout.journal, self._clock.now_us())

    def note(self) -> str | None:
        """What is waited for, or wrong, with the checkpoint of a job that is not ours."""
        return ForeignJob.load(self._layout).note

    def sought(self, position: Position) -> Sought | None:
        """What helps to find out whether this position is covered, where nodes write the journal.

        PositionAhead if the folder's journal ends before this position: no append to it has returned that. So a receipt
        of another journal is told at once, if it lies there. Nothing is said where the journal is not here, or cannot
        be read; nor of other partitions than its own, which are another source's.
        """
        try:
            end = DurableEnd.read(self._layout.journal)
            if end is None:
                return sought(self._layout.journal, position)
        except PositionAhead:
            raise
        except (OSError, StatesideError):
            return None
        if position[PARTITION] > end.offset:
            raise PositionAhead(
                f"The journal ends at {PARTITION}:{end.offset}, and {str(position)[:80]!r} was asked for: that is no"
                " receipt of this journal, or not of what is left of it",
                next_step="Give the receipt that appending here returned, or ask without min_position",
            )
        return None

    def get(self, name: str) -> ViewReader:
        """The reader of a view, by the catalogue that it has now.

        ViewUnknown if there is none of that name, ViewInvalid if it is refused, NotFreshEnough before its first batch.
        """
        if name in self._readers:
            catalogue, sign, reader = self._readers[name]
            if sign == _sign(catalogue):
                return reader
            del self._readers[name]
        if name not in self.names():
            raise self._unknown(name)
        view = self._layout.view(name)
        catalogue = str(view.catalogue)
        sign = _sign(catalogue)  # before it is read: if it is replaced meanwhile, the next request finds that
        reader = self._open(view)
        self._readers[name] = catalogue, sign, reader
        return reader

    async def ready(self, name: str, floor: Floor) -> ViewReader:
        """The reader of a view; waits for its first batch as long as the floor says. Errors as for `get`."""
        deadline = time.monotonic() + floor.wait_ms / 1_000
        while True:
            try:
                return self.get(name)
            except NotFreshEnough:
                if time.monotonic() >= deadline:
                    raise
            await asyncio.sleep(POLL_S)

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
        told = ForeignJob.load(self._layout)
        for refusal in told.refused:
            if refusal.view == name:
                return ViewInvalid(f"The view {name!r} is not served: {refusal.why}")
        served = f"Views served: {', '.join(self.names()) or 'none yet'}"
        return ViewUnknown(
            f"There is no view {name[:80]!r} here", next_step=f"{told.note} {served}" if told.note else served
        )


def _sign(catalogue: str) -> Sign:
    """Another one whenever another file is there; None if there is none."""
    try:
        found = os.stat(catalogue)  # noqa: PTH116 - a Path takes as long as the call
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns


def without_cause(state: dict[str, Any]) -> dict[str, Any]:
    """A view's state as a scoped token is told it: the cause may name paths, offsets, and events of others."""
    return {**state, "why": None}


def _refused(refusal: Refusal) -> dict[str, Any]:
    return {"view": refusal.view, "state": "refused", "why": refusal.why, "heard_ms": None}


def _state(view: ViewLayout, heartbeat: Heartbeat | None, now_us: int) -> dict[str, Any]:
    if heartbeat is None:
        return {"view": view.name, "state": "unknown", "why": None, "heard_ms": None}
    heard_ms = max(0, (now_us - heartbeat.time_us) // 1_000)
    return {"view": view.name, "state": heartbeat.state_at(now_us), "why": heartbeat.why, "heard_ms": heard_ms}
