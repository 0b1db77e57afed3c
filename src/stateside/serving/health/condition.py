"""The condition of a view: the replica's batch and lag, the age of an answer, and the state of the job."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from stateside.core.errors import StatesideError
from stateside.core.json_file import JsonFile
from stateside.core.layout import DEAD_LETTERS, LATE_ROWS, ViewLayout
from stateside.core.storage import Storage
from stateside.replica.store import Snapshot
from stateside.serving.rows.floor import Floor
from stateside.serving.rows.view_readers import ViewReaders
from stateside.serving.stamp import Stamp
from stateside.spark_state.batch_log import Checkpoint


@dataclass(frozen=True, slots=True)
class ViewCondition:
    """`batch`, and the fields that depend on the batch, are None while the view cannot be answered."""

    view: str
    job: str
    batch: int | None = None
    age_ms: int | None = None
    lag_batches: int | None = None  # also None if the checkpoint cannot be read
    rows: int | None = None
    bytes: int = 0
    trouble: str | None = None
    dead_letters: int = 0
    late_rows: int = 0


async def conditions(views: ViewReaders) -> list[ViewCondition]:
    """The conditions of all current views."""
    jobs = {state["view"]: state["state"] for state in views.states()}
    return [await _condition(views, layout, jobs.get(layout.name, "unknown")) for layout in views.layouts()]


async def _condition(views: ViewReaders, layout: ViewLayout, job: str) -> ViewCondition:
    def look(snapshot: Snapshot, stamp: Stamp) -> tuple[Stamp, int, str | None]:
        return stamp, snapshot.count(), snapshot.trouble()

    letters, late = _count(DEAD_LETTERS, layout.dead_letters), _count(LATE_ROWS, layout.late_rows)
    try:
        stamp, rows, trouble = await views.get(layout.name).read(Floor(wait_ms=0), look)
    except StatesideError:
        return ViewCondition(layout.name, job, dead_letters=letters, late_rows=late)
    lag, size = await asyncio.to_thread(_disk, layout, stamp.batch)
    return ViewCondition(layout.name, job, stamp.batch, stamp.age_ms, lag, rows, size, trouble, letters, late)


def _count(file: JsonFile[int], path: Path) -> int:
    """A number that the runner writes after each batch that changes it."""
    try:
        return file.read_if_valid(path) or 0
    except OSError:
        return 0


def _disk(layout: ViewLayout, batch: int) -> tuple[int | None, int]:
    """The number of committed batches missing in the replica, and the replica's size in bytes."""
    try:
        newest = Checkpoint(Storage.at(layout.checkpoint_location)).commits()[-1:]
        lag = max(0, newest[0] - batch) if newest else 0
    except (OSError, StatesideError):
        lag = None
    return lag, sum(_sizes(layout))


def _sizes(layout: ViewLayout) -> Iterable[int]:
    for path in layout.replica.rglob("*.mdb"):
        try:
            yield path.stat().st_blocks * 512
        except OSError:  # a generation that was deleted just now
            continue
