"""Readers of an application's journal, and their positions: the events that retention must keep.

reader                        has read up to
a view, or a reaction         the end of the batch before its last committed one: the last one may run again
                              (nothing, before its second commit)
a savepoint                   the end of its batch, from which a job may be restarted
the views of queries          their own position
a registered reader           its registered position (`journal.admin.retention`)
billing                       nothing: bills are explained, and audited, from all events

A view with other sources only is no reader.
"""

from __future__ import annotations

from stateside.core.layout import Layout, ViewLayout
from stateside.core.positions import Position
from stateside.core.storage import Storage
from stateside.journal.admin import JournalFiles
from stateside.journal.admin.retention import Reader, readers
from stateside.spark_state.batch_log import Checkpoint
from stateside.views.savepoint import savepoints


def known_readers(layout: Layout) -> list[Reader]:
    """All known readers of the journal in this folder."""
    found = readers(JournalFiles.of(layout.journal))
    views = layout.folders()
    for view in views:
        found += _of_view(view)
    for view in {view.savepoints: view for view in views}.values():
        kept = savepoints(view)
        found += [Reader(f"the savepoint {one.name!r} of {view.name!r}", one.position) for one in kept]
    if layout.clock.exists() or any((view.root / "book").exists() for view in views):
        found.append(Reader("billing, which explains and audits bills from all events,", Position.start()))
    return found


def _of_view(view: ViewLayout) -> list[Reader]:
    """The view, if it has a checkpoint."""
    if not view.checkpoint.exists():
        return []
    checkpoint = Checkpoint(Storage.at(view.checkpoint))
    commits = checkpoint.commits()
    if commits and not checkpoint.journals(commits[-1]):
        return []
    read = checkpoint.plan(commits[-2]).position if len(commits) > 1 else Position.start()
    return [Reader(f"the view {view.name!r}", read)]
