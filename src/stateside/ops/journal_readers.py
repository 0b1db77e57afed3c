"""Who reads an application's journal, and up to where: what retention must wait for.

reader                        has read up to
a view, or a reaction         the end of the batch before its last finished one: the last one may be run again
                              (nothing, while it has not finished two)
a savepoint                   the end of its batch, from which a job may be begun again
the views of queries          their own position
who registered itself         what it registered (`journal.upkeep.readers`)
billing                       nothing: bills are explained, and audited, from all events

A view whose sources are others is none.
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
    """All readers of the journal in this folder that are known."""
    found = readers(JournalFiles.of(layout.journal))
    for path in sorted((layout.root / "views").glob("*/")):
        found += _of_view(ViewLayout(path))
    if layout.clock.exists() or list((layout.root / "views").glob("*/book")):
        found.append(Reader("billing, which explains and audits bills from all events,", Position.start()))
    return found


def _of_view(view: ViewLayout) -> list[Reader]:
    """The view, if it has a checkpoint, and its savepoints: these count also while its checkpoint is put aside."""
    checkpoint, found = Checkpoint(Storage.at(view.checkpoint)), list[Reader]()
    if view.checkpoint.exists():
        commits = checkpoint.commits()
        if commits and not checkpoint.journals(commits[-1]):
            return []
        read = checkpoint.plan(commits[-2]).position if len(commits) > 1 else Position.start()
        found.append(Reader(f"the view {view.name!r}", read))
    kept = savepoints(view)
    return [*found, *(Reader(f"the savepoint {one.name!r} of {view.name!r}", one.position) for one in kept)]
