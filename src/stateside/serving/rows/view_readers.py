"""The readers of all views in a folder, opened on demand, and the state of each view's job."""

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
from stateside.journal.contract import PARTITION, DurableEnd
from stateside.leadership import standing
from stateside.replica.store import ReplicaReader
from stateside.serving.health.merge_status import MergeCondition, merge_condition
from stateside.serving.rows.floor import WAIT_MS_DEFAULT, WAIT_MS_MAX, Floor, Sought, sought
from stateside.serving.rows.foreign_job import ForeignJob
from stateside.serving.rows.relation import ViewAnswer
from stateside.serving.rows.view_reader import POLL_S, ViewReader
from stateside.spark_state.checkpoint_folder import reading
from stateside.views.heartbeat import Heartbeat
from stateside.views.inference import Refusal

__all__ = ["WAIT_MS_DEFAULT", "WAIT_MS_MAX", "Floor", "ViewAnswer", "ViewReader", "ViewReaders"]

Sign = tuple[int, int] | None


class ViewReaders:
    """All views of a folder; a view appears as soon as it has a catalogue and a replica."""

    def __init__(self, layout: Layout, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._layout = layout
        self._replicas: dict[str, ReplicaReader] = {}  # outlive their view's reader, which a new catalogue replaces
        self._readers: dict[str, tuple[str, Sign, ViewReader]] = {}  # catalogue path, its version, reader

    def names(self) -> list[str]:
        """The views that have run in this folder."""
        return [view.name for view in self._layout.views()]

    def layouts(self) -> list[ViewLayout]:
        return self._layout.views()

    def states(self) -> list[dict[str, Any]]:
        """For each view, the state in its job's last heartbeat, and the heartbeat's age; `unknown` without a heartbeat.

        A view of a foreign job that cannot be served is `refused`.
        """
        now_us = self._clock.now_us()
        served = [_state(view, Heartbeat.load(view.heartbeat), now_us) for view in self._layout.views()]
        return served + [_refused(refusal) for refusal in ForeignJob.load(self._layout).refused]

    def state(self, name: str) -> dict[str, Any]:
        """The state of one view, as in `states`."""
        view = self._layout.view(name)
        return _state(view, Heartbeat.load(view.heartbeat), self._clock.now_us())

    def leadership(self) -> dict[str, Any] | None:
        """The application's leader and standbys; None where the application runs without a lease."""
        return standing(self._layout.root, self._clock.now_us())

    def merge_condition(self) -> MergeCondition | None:
        """The progress of merging the logs of nodes; None if no nodes write the folder's journal."""
        return merge_condition(self._layout.journal, self._clock.now_us())

    def note(self) -> str | None:
        """What is awaited, or wrong, with the checkpoint of a foreign job."""
        return ForeignJob.load(self._layout).note

    def sought(self, position: Position) -> Sought | None:
        """A search for the position's place in the merged stream; None where nodes do not write the journal.

        PositionAhead if the folder's journal ends before the position, since no append here returned such a receipt: a
        receipt of another journal is refused at once. Not checked where the journal is elsewhere or unreadable, nor for
        partitions of other sources.
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
        """The reader of a view, by the view's current catalogue.

        ViewUnknown if there is no such view, ViewInvalid if the view is refused, NotFreshEnough before its first batch.
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
        sign = _sign(catalogue)  # before reading: the next request then notices a catalogue replaced meanwhile
        reader = self._open(view)
        self._readers[name] = catalogue, sign, reader
        return reader

    async def ready(self, name: str, floor: Floor) -> ViewReader:
        """The reader of a view; waits for its first batch up to the floor's limit. Errors as for `get`."""
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
    """The version of a catalogue file, by inode and time; None without a file."""
    try:
        found = os.stat(catalogue)  # noqa: PTH116 - a Path takes as long as the call
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns


def without_cause(state: dict[str, Any]) -> dict[str, Any]:
    """A view's state for a scoped token: without the cause, which may name paths, offsets and events of others."""
    return {**state, "why": None}


def _refused(refusal: Refusal) -> dict[str, Any]:
    return {"view": refusal.view, "state": "refused", "why": refusal.why, "heard_ms": None}


def _state(view: ViewLayout, heartbeat: Heartbeat | None, now_us: int) -> dict[str, Any]:
    if heartbeat is None:
        return {"view": view.name, "state": "unknown", "why": None, "heard_ms": None}
    heard_ms = max(0, (now_us - heartbeat.time_us) // 1_000)
    return {"view": view.name, "state": heartbeat.state_at(now_us), "why": heartbeat.why, "heard_ms": heard_ms}
