"""Generations of a view in an application's folder: made, kept, returned to and dropped.

A change of a view, a rescale, a migration and a restore fill a new generation beside the current one; then one file
names the current generation of every view (`core.layout.POINTERS`), and is replaced in one step.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from stateside.core.errors import PipelineRunning, RequestInvalid
from stateside.core.layout import POINTERS, Layout, Pointers, ViewGeneration, ViewLayout, ViewPointer
from stateside.core.lease import hold
from stateside.core.storage import Storage, size_of
from stateside.spark_state.batch_log import Checkpoint
from stateside.views.catalogue import Catalogue
from stateside.views.heartbeat import Heartbeat
from stateside.views.plan_history import prepare_replay

KEPT: Final = 1  # generations before the current one
ENDING_S_MAX: Final = 30.0  # for the end of the JVM of a process that was killed
NOT_CARRIED_OVER: Final = ("checkpoint*", "replica*", "savepoints", "generations", "refused", "heartbeat.json")


@contextmanager
def alone(layout: Layout, wait_s: float = ENDING_S_MAX) -> Iterator[int]:
    """Holds the lock of the one process that changes generations; PipelineRunning while another one does.

    The JVM of a process that was killed holds it too, until the JVM has ended.
    """
    layout.root.mkdir(parents=True, exist_ok=True)
    handle = hold(
        layout.apply_lock,
        lambda pids: PipelineRunning(
            f"Another process ({pids}) applies a change to this folder",
            where=str(layout.root),
            next_step="Wait for its end, or stop it: the same command goes on where it ended",
        ),
        wait_s=wait_s,
    )
    try:
        yield handle
    finally:
        os.close(handle)


def carry_over(view: ViewLayout, target: Path, *leave: str) -> None:
    """Copy the files of a view beside its state: its declaration, and what its sinks and its code keep there."""
    left = shutil.ignore_patterns(*NOT_CARRIED_OVER, *leave)
    shutil.copytree(view.root, target, ignore=left, dirs_exist_ok=True)


def link_archive(view: ViewLayout, new: ViewLayout) -> None:
    """Link the tables of a view's archive to those of a new generation. No file of a table is ever changed."""
    archive = Catalogue.load(view.catalogue).archive if view.catalogue.exists() else None
    for name in (archive, f"{archive}_corrections") if archive is not None else ():
        if view.table(name).exists():
            shutil.copytree(view.table(name), new.table(name), copy_function=link)


def link(source: str, target: str) -> None:
    """Link a file that is never changed, or copy it where no link is possible: for `copytree`."""
    Storage.at(Path(source).parent).bring(Path(source).name, Path(target))


def new_generation(layout: Layout, name: str, pointer: ViewPointer) -> ViewGeneration:
    """A generation of a view that there is not yet."""
    folder = layout.root / "views" / name
    if not pointer.all() and not folder.exists():
        return ViewGeneration(1, name)
    there = [int(path.name) for path in folder.glob("generations/*") if path.name.isdigit()]
    number = 1 + max([1, *there, *(each.number for each in pointer.all())])
    return ViewGeneration(number, f"{name}/generations/{number}")


def sweep(layout: Layout) -> None:
    """Delete the generations that no pointer names: replaced ones, and remains of crashes. For the lock's holder.

    Savepoints stay, of whatever generation.
    """
    pointers = layout.pointers()
    named = {each.folder for pointer in pointers.values() for each in pointer.all()}
    views = layout.root / "views"
    for path in views.glob("*/generations/*/"):
        if str(path.relative_to(views)) not in named:
            shutil.rmtree(path, ignore_errors=True)
    for name in (name for name in pointers if name not in named):
        for path in (views / name).glob("*"):
            if path.name not in ("generations", "savepoints"):
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def roll_back(layout: Layout, name: str) -> ViewGeneration:
    """Make the kept generation of a view current again; returns it. PipelineRunning while a job runs.

    Readers go back to it at once, and in time: it has the events up to its switch, until its application runs.
    """
    with alone(layout), _no_driver(layout):
        pointers = layout.pointers()
        pointer = pointers.get(name)
        if pointer is None or pointer.current is None or not pointer.kept:
            raise RequestInvalid(
                f"The view {name!r} has no generation to go back to",
                where=str(layout.generations),
                next_step="`stateside views` shows which generations are kept",
            )
        first, *others = pointer.kept
        old, kept = layout.at(name, pointer.current), layout.at(name, first)
        if _query(old) == _query(kept):  # rescaled, or restored: sinks know batches of both by the same numbers
            prepare_replay(kept, [old])
        pointers[name] = ViewPointer(first, kept=(pointer.current, *others), at_once=True)
        POINTERS.write(layout.generations, pointers)
        return first


def switch(layout: Layout, made: Iterable[tuple[str, ViewGeneration, ViewGeneration]], *, at_once: bool) -> None:
    """Name the new generations of views, each given as (view, before, after), in one step; those before are kept."""
    pointers = layout.pointers()
    for view, before, after in made:
        pointer = pointers.get(view) or ViewPointer(before)
        pointers[view] = replace(pointer, current=after, kept=(before, *pointer.kept)[:KEPT], at_once=at_once)
    POINTERS.write(layout.generations, pointers)
    sweep(layout)


def _query(view: ViewLayout) -> str | None:
    return Checkpoint(Storage.at(view.checkpoint)).query_id()


def drop(layout: Layout, name: str) -> int:
    """Delete the generations of a view that are kept or whose filling was given up; returns the bytes.

    Of a view that was removed, or never served, all. While a change is applied, PipelineRunning.
    """
    with alone(layout):
        pointers = layout.pointers()
        pointer = pointers.get(name, ViewPointer(ViewGeneration(1, name)))
        heartbeat = Heartbeat.load(layout.view(name).heartbeat)
        if pointer.current is None or (heartbeat is not None and heartbeat.state == "removed"):
            return _drop_all(layout, name, pointers, pointer)
        dropped = [each for each in (pointer.next, *pointer.kept) if each is not None]
        size = sum(size_of(layout.at(name, each).root) for each in dropped)
        if dropped:
            POINTERS.write(layout.generations, pointers | {name: replace(pointer, next=None, kept=())})
            sweep(layout)
        return size


def _drop_all(layout: Layout, name: str, pointers: Pointers, pointer: ViewPointer) -> int:
    roots = [layout.at(name, each).root for each in pointer.all()]
    size = sum(map(size_of, roots))
    for root in roots:  # first: without a pointer, a folder is a view's first generation
        shutil.rmtree(root, ignore_errors=True)
    if pointers.pop(name, None) is not None:
        POINTERS.write(layout.generations, pointers)
    return size


@contextmanager
def _no_driver(layout: Layout) -> Iterator[None]:
    handle = hold(
        layout.driver_lock,
        lambda pids: PipelineRunning(
            f"A job (process {pids}) runs on this folder",
            where=str(layout.root),
            next_step="Stop it first; or apply the old application, which goes back while the job runs",
        ),
    )
    try:
        yield
    finally:
        os.close(handle)
