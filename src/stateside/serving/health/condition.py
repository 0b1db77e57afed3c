"""The condition of a view: the replica's batch and lag, the age of an answer, and the state of the job."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from stateside.core.errors import StatesideError
from stateside.core.json_file import JsonFile
from stateside.core.layout import DEAD_LETTERS, LATE_ROWS, ViewLayout
from stateside.core.positions import Position
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
    watermark_us: int | None = None
    position: Position | None = None  # of the replica
    committed: Position | None = None  # of the newest batch in the checkpoint; None if it cannot be read
    reads_journal: bool = False  # whether the job's source is a journal

    @property
    def lag_events(self) -> int | None:
        """Committed events that the replica does not have yet."""
        return None if self.committed is None or self.position is None else beyond(self.committed, self.position)


def beyond(end: Position, position: Position) -> int:
    """The number of events between a position and an end, in the end's partitions."""
    return sum(max(0, offset - position[partition]) for partition, offset in end.parts)


async def conditions(views: ViewReaders) -> list[ViewCondition]:
    """The conditions of all current views."""
    return [await _condition(views, layout, views.state(layout.name)["state"]) for layout in views.layouts()]


async def _condition(views: ViewReaders, layout: ViewLayout, job: str) -> ViewCondition:
    def look(snapshot: Snapshot, stamp: Stamp) -> tuple[Stamp, int, str | None]:
        return stamp, snapshot.count(), snapshot.trouble()

    letters, late = _count(DEAD_LETTERS, layout.dead_letters), _count(LATE_ROWS, layout.late_rows)
    try:
        stamp, rows, trouble = await views.get(layout.name).read(Floor(wait_ms=0), look)
    except StatesideError:
        return ViewCondition(layout.name, job, dead_letters=letters, late_rows=late)
    newest, size = await asyncio.to_thread(_disk, layout)
    return ViewCondition(
        layout.name,
        job,
        stamp.batch,
        stamp.age_ms,
        None if newest is None else max(0, newest.batch - stamp.batch),
        rows,
        size,
        trouble,
        letters,
        late,
        stamp.watermark_us,
        stamp.position,
        None if newest is None else newest.position,
        reads_journal=newest is not None and newest.reads_journal,
    )


def _count(file: JsonFile[int], path: Path) -> int:
    """A number that the runner writes after each batch that changes it."""
    try:
        return file.read_if_valid(path) or 0
    except OSError:
        return 0


class _Committed(NamedTuple):
    """The newest committed batch."""

    batch: int
    position: Position
    reads_journal: bool


def _disk(layout: ViewLayout) -> tuple[_Committed | None, int]:
    """The newest committed batch, if known, and the replica's size in bytes."""
    try:
        checkpoint = Checkpoint(Storage.at(layout.checkpoint_location))
        batch = max(checkpoint.commits(), default=-1)
        newest = _Committed(-1, Position.start(), False)
        if batch >= 0:
            newest = _Committed(batch, checkpoint.plan(batch).position, bool(checkpoint.journals(batch)))
    except (OSError, StatesideError):
        return None, sum(_sizes(layout))
    return newest, sum(_sizes(layout))


def _sizes(layout: ViewLayout) -> Iterable[int]:
    for path in layout.replica.rglob("*.mdb"):
        try:
            yield path.stat().st_blocks * 512
        except OSError:  # a generation that was deleted just now
            continue
