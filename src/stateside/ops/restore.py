"""Restore of a savepoint: its files become a new generation of each of its views, and the generation before is kept.

1. Nobody may lead the folder or stand by for it, and nobody else may change generations. Where a lease exists, the
   restore takes the leadership (`leadership.alone`), and does the rest through its own gate: a paused leader can no
   longer write. Elsewhere the driver's lock excludes jobs.
2. All files of the savepoint are compared with their digests. The journal must still have the events after it.
3. For each view the folder of a new generation is made: the savepoint's files, the other files of the view, the tables
   of its archive, and the plans of the batches after the savepoint that were delivered before (`views.plan_history`).
   The next run repeats these batches as they were, so that no sink gets a row twice or misses one.
4. All files are made durable. Then one file names the new generations of all views, in one step.

A crash before step 4 changes nothing: the next change deletes the folders. The savepoint itself stays unchanged, and
can be used again; `stateside rollback` goes back to the generation before.

A *fork* is another folder, with the views of a savepoint and a journal of its own: the events of this one, up to now.
Its sinks write into the fork, whatever the application names (`pipeline.sinks`).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import uuid4

from stateside.core.errors import EventsGone, RequestInvalid
from stateside.core.layout import Layout, ViewGeneration, ViewLayout, ViewPointer
from stateside.core.storage import make_durable, sync_directory, write_atomically
from stateside.journal import open_journal
from stateside.journal.backends.files.segment import END_NAME, SUFFIX
from stateside.journal.backends.kafka import KafkaJournal
from stateside.leadership import excluding_drivers
from stateside.pipeline.sinks.files import ID_NAME, mark_name
from stateside.views.plan_history import prepare_replay
from stateside.views.savepoint import RESTORING, Savepoint, find, names, savepoint_sets
from stateside.views.view_generations import alone, carry_over, link, link_archive, new_generation, sweep, switch

Parts = Mapping[str, Savepoint]  # by view
_NOT_FORKED: Final = ("views", "readers")  # of a journal's folder: rebuilt, or others' positions
_CARRIED: Final = ("catalogue.json", "plan.txt")  # of the savepoint; all other files are the present ones


@dataclass(frozen=True, slots=True)
class Restored:
    """A view that goes on after a savepoint's batch, as a new generation."""

    view: str
    savepoint: Savepoint
    replayed: int  # batches that run again as before
    before: ViewGeneration
    after: ViewGeneration


def parts_of(layout: Layout, name: str, views: Sequence[ViewLayout]) -> Parts:
    """The savepoint of each view under a name: of all views, or of one; RequestInvalid, with the existing names."""
    for one in savepoint_sets(layout):
        if one.name == name:
            return one.parts(layout)
    for view in views:
        if name in names(view):
            return {view.name: find(view, name)}
    found = [*(one.name for one in savepoint_sets(layout)), *(each for view in views for each in names(view))]
    there = f"There are: {', '.join(found)}" if found else "There are none"
    raise RequestInvalid(f"There is no savepoint {name[:80]!r}", where=str(layout.root), next_step=there)


def restore(layout: Layout, parts: Parts, *, deliver_again: bool = False) -> list[Restored]:
    """Make new generations of these savepoints, all in one step.

    PipelineRunning while a process runs a job on the folder or stands by, LeadershipLost if another process leads
    before the end, EventsGone if a journal on files has dropped events after the savepoint, CheckpointInvalid for a
    damaged savepoint, CheckpointGap if the batches after it are not known any more, unless `deliver_again`.
    """
    with alone(layout), excluding_drivers(layout.root) as (root, _):
        held = Layout(root)
        sweep(held)
        for part in parts.values():
            part.verify()
            _check_journal(held, part)
        made = [_made(held, name, part, deliver_again) for name, part in parts.items()]
        switch(held, ((each.view, each.before, each.after) for each in made), at_once=True)  # readers go back in time
        for each in made:  # only now: without a checkpoint, these copies are the evidence
            for left in held.at(each.view, each.before).root.glob(f"{RESTORING}*"):
                shutil.rmtree(left, ignore_errors=True)
        return made


def _made(layout: Layout, name: str, part: Savepoint, deliver_again: bool) -> Restored:
    """Step 3."""
    pointer = layout.pointers().get(name) or ViewPointer(ViewGeneration(1, name))
    before = pointer.current or ViewGeneration(1, name)
    old, generation = layout.at(name, before), new_generation(layout, name, pointer)
    new = layout.at(name, generation)
    carry_over(old, new.root, "tables", old.batches.name, old.replayed.name)
    if part.view_files.exists():
        for file in _CARRIED:
            if (part.view_files / file).exists():
                shutil.copy2(part.view_files / file, new.root / file)
    shutil.copytree(part.checkpoint, new.checkpoint, copy_function=link)
    link_archive(old, new)
    replayed = _prepare(layout, name, new, deliver_again=deliver_again)
    make_durable(new.root)
    return Restored(name, part, replayed, before, generation)


def _prepare(layout: Layout, name: str, new: ViewLayout, *, deliver_again: bool) -> int:
    """Prepare the batches to repeat; returns their number. To deliver again, the query gets another id.

    So a sink takes no batch for one that it has stored under the same number, with other rows.
    """
    if deliver_again:
        (new.checkpoint / ".metadata.crc").unlink(missing_ok=True)
        write_atomically(new.checkpoint / "metadata", json.dumps({"id": str(uuid4())}).encode())
        return 0
    pointer = layout.pointers().get(name) or ViewPointer(ViewGeneration(1, name))
    return prepare_replay(new, [layout.at(name, each) for each in (pointer.current, *pointer.kept) if each is not None])


def _check_journal(layout: Layout, chosen: Savepoint) -> None:
    """EventsGone if a journal on files, with or without nodes, lacks events. On Kafka the job itself reports a gap."""
    journal = open_journal(layout.journal)
    if isinstance(journal, KafkaJournal):
        return
    begin, partitions = journal.begin(), set(journal.partitions())
    if chosen.position.as_dict().keys() & partitions and not chosen.position.covers(begin):
        raise EventsGone(
            f"The journal begins at {begin}, after the savepoint's position {chosen.position}",
            next_step="Take a newer savepoint, or bring the dropped segments back",
        )


def delete(layout: Layout, name: str, parts: Parts) -> None:
    """Delete a savepoint of all views, with those of its views that no other one names; or a view's own."""
    for one in savepoint_sets(layout):
        if one.name == name:
            one.delete(layout)
            return
    for part in parts.values():
        shutil.rmtree(part.folder)


def copy(name: str, parts: Parts, target: Path) -> Path:
    """Copy a savepoint to another place, its files verified there; returns its folder, which `bring_back` reads."""
    folder = target / name
    if folder.exists():
        raise RequestInvalid(f"There is {folder} already", next_step="Name another folder")
    part_of = folder.with_name(f".{folder.name}.copying")
    shutil.rmtree(part_of, ignore_errors=True)
    for view, part in parts.items():
        shutil.copytree(part.folder, part_of / view / part.name)
        Savepoint.read(part_of / view / part.name).verify()
    make_durable(part_of)
    part_of.rename(folder)
    sync_directory(target)
    return folder


def bring_back(layout: Layout, folder: Path) -> Parts:
    """Bring a copied savepoint into the folder, to be restored; CheckpointInvalid if it is none, or damaged."""
    found = {}
    for path in sorted(folder.glob("*/*/savepoint.json")):
        view, part = path.parents[1].name, Savepoint.read(path.parent)
        part.verify()
        target = layout.view(view).savepoints / part.name
        if not target.exists():
            shutil.copytree(part.folder, target.with_name(f".taking-{part.name}"))
            target.with_name(f".taking-{part.name}").rename(target)
        found[view] = Savepoint.read(target)
    if not found:
        raise RequestInvalid(f"{folder} is no copy of a savepoint", next_step="Give the folder that `copy` named")
    return found


def fork(layout: Layout, name: str, parts: Parts, target: Path) -> Layout:
    """Make another folder of a savepoint, with a journal of its own. The job may run.

    RequestInvalid for a journal on Kafka, and for a folder that exists.
    """
    if isinstance(open_journal(layout.journal), KafkaJournal):
        raise RequestInvalid(
            "The journal is a Kafka topic, which a fork would share",
            where=str(layout.root),
            next_step="Copy the topic, and the savepoint into a folder of its own: `stateside savepoint copy`",
        )
    if target.exists():
        raise RequestInvalid(f"There is {target} already", next_step="Name a folder that does not exist")
    making = Layout(target.with_name(f".{target.name}.forking"))
    shutil.rmtree(making.root, ignore_errors=True)
    for view, part in parts.items():
        part.verify()
        _forked(layout, view, part, making)
    _copy_journal(layout.journal, making.journal)
    _link_others(layout, making)
    for view in parts:
        _mark_folders(making.view(view), making.root, target)
    write_atomically(making.fork, json.dumps({"of": str(layout.root), "savepoint": name}).encode())
    make_durable(making.root)
    making.root.rename(target)
    return Layout(target)


def _forked(layout: Layout, name: str, part: Savepoint, fork: Layout) -> None:
    """The view in the fork: its first generation there. Its archive is whole, so the batches after are repeated."""
    old, new = layout.view(name), fork.view(name)
    new.root.parent.mkdir(parents=True, exist_ok=True)
    if part.view_files.exists():
        shutil.copytree(part.view_files, new.root)
    else:
        carry_over(old, new.root, "tables", old.batches.name, old.replayed.name)
    shutil.copytree(part.checkpoint, new.checkpoint, copy_function=link)
    link_archive(old, new)
    _prepare(layout, name, new, deliver_again=False)


def _copy_journal(source: Path, target: Path) -> None:
    """A copy of a journal that is being written to: of each log first its end, then its segments, which have more.

    A finished segment never changes, so that a link suffices.
    """
    if not source.exists():  # all views have other sources
        return
    for folder in sorted([source, *(path for path in source.rglob("*") if path.is_dir())]):
        within = folder.relative_to(source)
        if within.parts[:1] and within.parts[0] in _NOT_FORKED:
            continue
        (target / within).mkdir(parents=True, exist_ok=True)
        files = sorted((path for path in folder.iterdir() if path.is_file()), key=lambda path: path.name != END_NAME)
        segments = [path for path in files if path.suffix == SUFFIX]
        for path in files:
            (link if path in segments[:-1] else shutil.copy2)(str(path), str(target / within / path.name))


def _mark_folders(view: ViewLayout, root: Path, target: Path) -> None:
    """A files sink knows its folder by an id in it, and by a mark that is named by the folder's path."""
    marks = {path.read_bytes(): path for path in view.root.glob("marks/files-*.json")}
    for path in (root / "files").rglob(ID_NAME):
        if (mark := marks.get(path.read_bytes())) is not None:
            shutil.copy2(mark, view.mark(mark_name(target / path.parent.relative_to(root))))


def _link_others(layout: Layout, fork: Layout) -> None:
    """What the application has beside its views and its journal: tables, files, fields, the clock's progress."""
    for folder in ("tables", "files"):
        for path in (layout.root / folder).glob("*"):
            if not (fork.root / folder / path.name).exists():
                shutil.copytree(path, fork.root / folder / path.name, copy_function=link)
    for file in (layout.fields, layout.clock):
        if file.exists():
            shutil.copy2(file, fork.root / file.name)
