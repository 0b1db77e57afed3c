"""Begins a view's job again from a savepoint: the checkpoint is put aside, and the savepoint's files take its place.

1. Nobody may lead the folder or stand by for it. Where anybody ever did, this leads itself (`leadership.alone`), and
   does the rest through its gate: a leader that was paused, and wakes up, can write no more. Elsewhere the driver's
   lock keeps jobs away. The journal must still have what comes after the savepoint.
2. The savepoint's files are copied beside the checkpoint, to `checkpoint.restoring-…`, and made durable.
3. The checkpoint is renamed to `checkpoint.before-…`, and kept.
4. The copy is renamed to `checkpoint`. Copies that a crash has left are deleted.

A crash before step 3 changes nothing; one between 3 and 4 leaves a copy and no checkpoint. A job does not start then
(`checkpoint.savepoint.check_whole`), as it would begin with the first event; the same command does the rest. The
savepoint itself stays as it is: whatever Spark does to the copy, it can be used again.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stateside.core.errors import EventsGone, PipelineRunning, RequestInvalid
from stateside.core.layout import Layout, ViewLayout
from stateside.core.storage import make_durable, sync_directory, try_lock
from stateside.journal.partitions import StoredStream, is_merged
from stateside.leadership import Leadership, Lease, alone
from stateside.views.savepoint import RESTORING, Savepoint, names


def restore(layout: Layout, view: ViewLayout, name: str, now_us: int) -> Path | None:
    """Put the savepoint of this name into the checkpoint's place; where the old one is now, None if there was none.

    PipelineRunning while anybody runs a job on the folder or stands by to, LeadershipLost if somebody else leads before
    it is done, EventsGone if a journal on files has dropped events that it needs.
    """
    if not Lease(layout.root).exists():
        with _locked(layout, shared=False):
            return _put_back(layout, view, name, now_us)
    with _locked(layout, shared=True), alone(layout.root) as leadership, _told_if_lost(leadership):
        gated = Layout(leadership.root)
        aside = _put_back(gated, gated.view(view.name), name, now_us)
        return None if aside is None else view.root / aside.name


def _put_back(layout: Layout, view: ViewLayout, name: str, now_us: int) -> Path | None:
    chosen = find(view, name)
    _check_journal(layout, chosen)
    left = list(view.root.glob(f"{RESTORING}*"))
    copy = _copied(chosen, view.root / f"{RESTORING}{secrets.token_hex(8)}")
    aside = view.root / f"checkpoint.before-{now_us}" if view.checkpoint.exists() else None
    if aside is not None:
        view.checkpoint.rename(aside)
    copy.rename(view.checkpoint)
    sync_directory(view.root)
    for path in left:  # only now: while there is no checkpoint, they say why
        shutil.rmtree(path, ignore_errors=True)
    return aside


def _copied(chosen: Savepoint, copy: Path) -> Path:
    try:
        shutil.copytree(chosen.checkpoint, copy)
        make_durable(copy)
    except BaseException:
        shutil.rmtree(copy, ignore_errors=True)
        raise
    return copy


def find(view: ViewLayout, name: str) -> Savepoint:
    """The savepoint of this name, whether others are damaged or not; RequestInvalid, with those that there are."""
    found = names(view)
    if name in found:
        return Savepoint.read(view.savepoints / name)
    there = f"There are: {', '.join(found)}" if found else "There are none"
    raise RequestInvalid(f"The view {view.name!r} has no savepoint {name[:80]!r}", next_step=there)


@contextmanager
def _locked(layout: Layout, *, shared: bool) -> Iterator[None]:
    """With the driver's lock; leaders share it, as one that is paused may hold it."""
    handle = try_lock(layout.driver_lock, shared=shared)
    if handle is None:
        raise PipelineRunning(
            "A job runs on this folder", where=str(layout.root), next_step="Stop it first: its checkpoint is replaced"
        )
    try:
        yield
    finally:
        os.close(handle)


@contextmanager
def _told_if_lost(leadership: Leadership) -> Iterator[None]:
    """A gate that is shut fails in many ways, and that somebody else leads is the reason for all."""
    try:
        yield
    except Exception:
        leadership.check()
        raise


def _check_journal(layout: Layout, chosen: Savepoint) -> None:
    """Of a journal on files, that of nodes included. One on Kafka is not asked: the job says it when it starts."""
    if not is_merged(layout.journal) and not list(layout.journal.glob("*.segment")):
        return  # its source is another
    stream = StoredStream.at(layout.journal)
    begin = stream.begin()
    if chosen.position.as_dict().keys() & stream.journals.keys() and not chosen.position.covers(begin):
        raise EventsGone(
            f"The journal begins at {begin}, behind the savepoint's position {chosen.position}",
            next_step="Take a newer savepoint, or bring the dropped segments back",
        )
