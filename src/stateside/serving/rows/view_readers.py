"""The readers of all views in a folder, opened on demand, and the state of each view's job."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stateside.core.clock import Clock, SystemClock
from stateside.core.errors import (
    GenerationGone,
    NotFreshEnough,
    PositionAhead,
    ReplicaInvalid,
    StatesideError,
    ViewInvalid,
    ViewUnknown,
)
from stateside.core.layout import Layout, ViewLayout, ViewPointer
from stateside.core.positions import Position
from stateside.core.storage import Storage, size_of
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
_UNSETTLED: Sign = (-1, -1)


@dataclass(frozen=True, slots=True)
class _Opened:
    """A view's reader, the catalogue it was opened with, and the versions of the catalogue and of the pointers."""

    catalogue: str
    sign: Sign
    pointers: Sign
    reader: ViewReader


class ViewReaders:
    """All views of a folder; a view appears as soon as it has a catalogue and a replica."""

    def __init__(self, layout: Layout, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self.layout = self._layout = layout
        self._replicas: dict[Path, ReplicaReader] = {}  # outlive their view's reader, which a new catalogue replaces
        self._readers: dict[str, _Opened] = {}
        self._pointers = str(layout.generations)

    @property
    def folder(self) -> Path:
        return self._layout.root

    def names(self) -> list[str]:
        """The views that have run in this folder."""
        return [view.name for view in self._layout.views()]

    def layouts(self) -> list[ViewLayout]:
        return self._layout.views()

    def states(self) -> list[dict[str, Any]]:
        """For each view, the state in its job's last heartbeat, and the heartbeat's age; `unknown` without a heartbeat.

        A view of a foreign job that cannot be served is `refused`. Views with several generations name them, with the
        bytes of those that are kept.
        """
        now_us, pointers = self._clock.now_us(), self._layout.pointers()
        served = [
            _state(view, Heartbeat.load(view.heartbeat), now_us) | self._generations(view, pointers.get(view.name))
            for view in self._layout.views()
        ]
        return served + [_refused(refusal) for refusal in ForeignJob.load(self._layout).refused]

    def state(self, name: str) -> dict[str, Any]:
        """The state of one view, as in `states`."""
        view = self._layout.view(name)
        return _state(view, Heartbeat.load(view.heartbeat), self._clock.now_us())

    def _generations(self, view: ViewLayout, pointer: ViewPointer | None) -> dict[str, Any]:
        if pointer is None:
            return {}
        kept = [(each.number, size_of(self._layout.at(view.name, each).root)) for each in pointer.kept]
        return {
            "generation": view.generation,
            "kept": [{"generation": number, "bytes": size} for number, size in kept],
            "filling": None if pointer.next is None else pointer.next.number,
        }

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
        """The reader of a view's current generation, by its current catalogue.

        ViewUnknown if there is no such view, ViewInvalid if the view is refused, NotFreshEnough before its first batch.
        """
        opened, pointers = self._readers.get(name), _sign(self._pointers)  # signs are read before what they stand for:
        if opened is not None and opened.pointers == pointers and opened.sign == _sign(opened.catalogue):
            return opened.reader
        if name not in self._named():
            self._readers.pop(name, None)
            raise self._unknown(name)
        view, settled = self._chosen(name)
        catalogue = str(view.catalogue)
        sign = _sign(catalogue)  # the next request then notices a file that was replaced meanwhile
        if opened is None or (opened.catalogue, opened.sign) != (catalogue, sign):
            self._readers.pop(name, None)
            opened = _Opened(catalogue, sign, pointers, self._open(view))
        self._readers[name] = replace(opened, pointers=pointers if settled else _UNSETTLED)
        return opened.reader

    def _named(self) -> set[str]:
        """The names of all views; closes the replicas of generations that are no longer kept."""
        views, pointers = self._layout.views(), self._layout.pointers()
        generations = ((name, each) for name, pointer in pointers.items() for each in pointer.all())
        roots = {view.root for view in views} | {self._layout.at(*each).root for each in generations}
        for root in self._replicas.keys() - roots:
            self._replicas.pop(root).close()
        return {view.name for view in views}

    def of_generation(self, name: str, number: int) -> ViewReader:
        """The reader of a view's generation with this number; GenerationGone if it is not kept."""
        current = self.get(name)
        if current.layout.generation == number:
            return current
        pointer = self._layout.pointers().get(name, ViewPointer(None))
        for generation in filter(None, (pointer.current, *pointer.kept)):
            if generation.number == number:
                return self._open(self._layout.at(name, generation))
        raise GenerationGone(
            f"Generation {number} of the view {name!r} is not kept, and {current.layout.generation} is served",
            next_step="Begin again: without the cursor, or with a batch of the present generation",
        )

    def _chosen(self, name: str) -> tuple[ViewLayout, bool]:
        """The generation to read, and whether it stays so until the pointers change.

        A replica of the current generation that does not have everything yet that the one before has waits: a reader
        never goes back in time. The choice depends only on the two replicas, so all processes of a server agree.
        """
        current, pointer = self._layout.view(name), self._layout.pointers().get(name)
        if pointer is None or pointer.current is None or not pointer.kept or pointer.at_once:
            return current, True
        opened = self._readers.get(name)
        if opened is not None and opened.reader.layout == current:
            return current, True
        before = self._layout.at(name, pointer.kept[0])
        seen, reached = self._position(before), self._position(current)
        if seen is None or (reached is not None and reached.covers(seen)):
            return current, True
        return before, False

    def _position(self, view: ViewLayout) -> Position | None:
        """The position of a generation's replica; None without a batch, or without a replica."""
        try:
            with self._replica(view).snapshot() as snapshot:
                batch = snapshot.batch()
        except (FileNotFoundError, ReplicaInvalid):
            return None
        return None if batch is None else batch.position

    def _replica(self, view: ViewLayout) -> ReplicaReader:
        if view.root not in self._replicas:
            self._replicas[view.root] = ReplicaReader(view.replica)
        return self._replicas[view.root]

    async def ready(self, name: str, floor: Floor) -> ViewReader:
        """The reader of a view; waits for its first batch, and for the floor, up to the floor's limit.

        The floor may be reached by a generation that becomes current meanwhile. Errors as for `get`; NotFreshEnough
        also below the floor.
        """
        deadline = time.monotonic() + floor.wait_ms / 1_000
        while True:
            try:
                reader = self.get(name)
                if not floor.is_none:
                    reader.check(floor)
                return reader
            except NotFreshEnough:
                if time.monotonic() >= deadline:
                    raise
            await asyncio.sleep(POLL_S)

    def _open(self, view: ViewLayout) -> ViewReader:
        try:
            replica = self._replica(view)
            with reading(Storage.at(view.checkpoint_location)):
                return ViewReader(view, self._clock, replica)
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
