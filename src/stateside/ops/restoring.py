"""Begins a view's job again from a savepoint: the checkpoint is put aside, and the savepoint's files take its place.

1. Nobody may lead the folder or stand by for it. The driver's lock is held, so that no job runs here, and the journal
   must still have what comes after the savepoint.
2. The savepoint's files are copied beside the checkpoint, made durable.
3. The checkpoint is renamed to `checkpoint.before-…`, and kept.
4. The copy is renamed to `checkpoint`.

A crash before step 3 changes nothing; one between 3 and 4 leaves no checkpoint, and the same command does the rest. The
savepoint itself stays as it is: whatever Spark does to the copy, it can be used again.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stateside.checkpoint.savepoint import Savepoint, savepoints
from stateside.errors import EventsGone, PipelineRunning, RequestInvalid
from stateside.journal import Journal
from stateside.journal.segment import PARTITION
from stateside.layout import Layout, ViewLayout
from stateside.leadership import standing
from stateside.storage import sync_directory, try_lock

SILENT_LEASES = 3  # who was not heard for so long is gone; it says so more often than once a lease


def restore(layout: Layout, view: ViewLayout, name: str, now_us: int) -> Path | None:
    """Put the savepoint of this name into the checkpoint's place; where the old one is now, None if there was none.

    PipelineRunning while a job runs on the folder, EventsGone if the journal has dropped events that it needs.
    """
    _check_leader(layout, now_us)
    with _no_driver(layout):
        chosen = find(view, name)
        _check_journal(layout, chosen)
        copy = view.root / "checkpoint.restoring"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(chosen.checkpoint, copy)
        _make_durable(copy)
        aside = view.root / f"checkpoint.before-{now_us}" if view.checkpoint.exists() else None
        if aside is not None:
            view.checkpoint.rename(aside)
        copy.rename(view.checkpoint)
        sync_directory(view.root)
        return aside


def find(view: ViewLayout, name: str) -> Savepoint:
    """The savepoint of this name; RequestInvalid, with those that there are."""
    found = savepoints(view)
    for one in found:
        if one.name == name:
            return one
    there = f"There are: {', '.join(one.name for one in found)}" if found else "There are none"
    raise RequestInvalid(f"The view {view.name!r} has no savepoint {name[:80]!r}", next_step=there)


def _check_leader(layout: Layout, now_us: int) -> None:
    """PipelineRunning if somebody leads the folder or stands by for it, on whichever machine, and was heard lately."""
    told = standing(layout.root, now_us)
    if told is None:
        return
    lately_ms = SILENT_LEASES * told["lease_ms"]
    alive = [member for member in (told["leader"], *told["standbys"]) if member is not None]
    heard = [member for member in alive if member["heard_ms"] is not None and member["heard_ms"] < lately_ms]
    if heard:
        names = ", ".join(f"{member['identity']} on {member['host']}" for member in heard)
        raise PipelineRunning(
            f"Jobs lead this folder or stand by for it: {names}",
            where=str(layout.root),
            next_step=f"Stop them all. One that was killed is not heard any more after {lately_ms / 1_000:g} s",
        )


@contextmanager
def _no_driver(layout: Layout) -> Iterator[None]:
    handle = try_lock(layout.driver_lock)
    if handle is None:
        raise PipelineRunning(
            "A job runs on this folder", where=str(layout.root), next_step="Stop it first: its checkpoint is replaced"
        )
    try:
        yield
    finally:
        os.close(handle)


def _check_journal(layout: Layout, chosen: Savepoint) -> None:
    if not list(layout.journal.glob("*.segment")) or PARTITION not in chosen.position.as_dict():
        return  # its source is another
    begin = Journal(layout.journal).begin()[PARTITION]
    if chosen.position[PARTITION] < begin:
        raise EventsGone(
            f"The journal begins at {begin}, behind the savepoint's position {chosen.position}",
            next_step="Take a newer savepoint, or bring the dropped segments back",
        )


def _make_durable(folder: Path) -> None:
    for path in [*folder.rglob("*"), folder]:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
