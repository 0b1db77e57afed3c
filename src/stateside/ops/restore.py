"""Restore of a savepoint: the view's checkpoint is put aside, and the savepoint's files take its place.

1. Nobody may lead the folder or stand by for it. Where a lease exists, the restore takes the leadership
   (`leadership.alone`), and does the rest through its own gate: a paused leader can no longer write. Elsewhere the
   driver's lock excludes jobs. The journal must still have the events after the savepoint.
2. The savepoint's files are copied beside the checkpoint, to `checkpoint.restoring-…`, and made durable.
3. The checkpoint is renamed to `checkpoint.before-…`, and kept.
4. The copy is renamed to `checkpoint`. Copies left by crashes are deleted.

A crash before step 3 changes nothing; one between 3 and 4 leaves a copy and no checkpoint. No job starts then
(`views.savepoint.check_whole`), because the job would begin with the first event; repeating the restore completes the
work. The savepoint itself stays unchanged, whatever Spark does to the copy, and can be used again.
"""

from __future__ import annotations

import secrets
import shutil
from pathlib import Path

from stateside.core.errors import EventsGone, RequestInvalid
from stateside.core.layout import Layout, ViewLayout
from stateside.core.storage import make_durable, sync_directory
from stateside.journal import open_journal
from stateside.journal.backends.kafka import KafkaJournal
from stateside.leadership import excluding_drivers
from stateside.views.savepoint import RESTORING, Savepoint, names


def restore(layout: Layout, view: ViewLayout, name: str, now_us: int) -> Path | None:
    """Put a savepoint into the checkpoint's place; returns the old checkpoint's new path, None if there was none.

    PipelineRunning while a process runs a job on the folder or stands by, LeadershipLost if another process leads
    before the end, EventsGone if a journal on files has dropped events after the savepoint.
    """
    with excluding_drivers(layout.root) as (root, _):
        held = Layout(root)
        aside = _put_back(held, held.view(view.name), name, now_us)
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
    for path in left:  # only now: without a checkpoint, these copies are the evidence
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
    """The savepoint of this name, even if others are damaged; RequestInvalid, with the existing names."""
    found = names(view)
    if name in found:
        return Savepoint.read(view.savepoints / name)
    there = f"There are: {', '.join(found)}" if found else "There are none"
    raise RequestInvalid(f"The view {view.name!r} has no savepoint {name[:80]!r}", next_step=there)


def _check_journal(layout: Layout, chosen: Savepoint) -> None:
    """EventsGone if a journal on files, with or without nodes, lacks events. On Kafka the job itself reports a gap."""
    journal = open_journal(layout.journal)
    if isinstance(journal, KafkaJournal):
        return
    begin, partitions = journal.begin(), set(journal.partitions())
    if chosen.position.as_dict().keys() & partitions and not chosen.position.covers(begin):
        raise EventsGone(
            f"The journal begins at {begin}, behind the savepoint's position {chosen.position}",
            next_step="Take a newer savepoint, or bring the dropped segments back",
        )
