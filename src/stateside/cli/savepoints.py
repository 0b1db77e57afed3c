"""`stateside savepoint`: the checkpoints of views as of one batch or one position."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stateside.cli.group import FOLDER
from stateside.cli.tables import show_result
from stateside.core.errors import RequestInvalid, ViewUnknown

if TYPE_CHECKING:
    from datetime import datetime

    from stateside.core.layout import Layout, ViewLayout
    from stateside.ops.restore import Parts
    from stateside.views.savepoint import Savepoint

_DIR = click.option("--dir", "folder", required=True, type=FOLDER, help="The application's folder.")
_VIEW = click.option("--view", "view", metavar="VIEW", help="One view's; without it all views'.")
_JSON = click.option("--json", "as_json", is_flag=True, help="For machines.")
_NAME = click.argument("name", metavar="NAME")
_TO = click.option("--to", "target", required=True, type=click.Path(path_type=Path, file_okay=False))


@click.group()
def savepoint() -> None:
    """Savepoints: the state of a job after one batch, or of all its views at one position.

    Taking one is safe while the job runs. Delete a savepoint when you no longer need it: until then the journal's
    retention keeps all events after it.
    """


@savepoint.command("take")
@_DIR
@_VIEW
@click.option("--batch", type=click.IntRange(min=0), help="Of this batch, still kept, instead of the newest one.")
@click.option("--at", type=click.DateTime(), help="Of the last batch committed by this time (UTC).")
@_JSON
def take_(folder: Path, view: str | None, batch: int | None, at: datetime | None, as_json: bool) -> None:
    """Take a savepoint: of all views at one position, or of one view's batch. The job continues without waiting."""
    from stateside.core.clock import SystemClock
    from stateside.views.savepoint import take, take_all

    layout, now_us = _layout(folder), SystemClock().now_us()
    views = _views(layout, view)
    if batch is None and at is None and view is None and len(views) > 1:
        made = take_all(layout, list(views.values()), now_us)
        _show(made.as_dict(), f"{made.name}  position {made.position}  {', '.join(made.views)}", as_json)
        return
    if len(views) > 1:
        raise RequestInvalid(f"Batches are numbered by view. Say with --view which one: {', '.join(views)}")
    (places,) = views.values()
    _show_one(take(places, now_us, _batch(places, batch, at)), as_json)


def _batch(view: ViewLayout, batch: int | None, at: datetime | None) -> int | None:
    from datetime import UTC

    from stateside.views.savepoint import batch_at

    if at is None:
        return batch
    if batch is not None:
        raise RequestInvalid("A savepoint is of a --batch, or of a time (--at), not of both")
    return batch_at(view, round(at.replace(tzinfo=UTC).timestamp() * 1_000_000))


@savepoint.command("list")
@_DIR
@_VIEW
@_JSON
def list_(folder: Path, view: str | None, as_json: bool) -> None:
    """List savepoints, oldest first: those of all views, then each view's own."""
    from stateside.views.savepoint import savepoint_sets, savepoints

    layout, count = _layout(folder), 0
    for made in savepoint_sets(layout) if view is None else ():
        count += 1
        _show(made.as_dict(), f"{made.name:<28}  position {made.position!s:<16}  {', '.join(made.views)}", as_json)
    for places in _views(layout, view).values():
        for one in savepoints(places, lambda damaged: click.echo(str(damaged), err=True)):
            count += 1
            _show_one(one, as_json)
    if not count and not as_json:
        click.echo("There is no savepoint.")


@savepoint.command("verify")
@_NAME
@_DIR
@click.option("--spark/--no-spark", default=True, help="Also let Spark load the state (takes some seconds).")
@_JSON
def verify_(name: str, folder: Path, spark: bool, as_json: bool) -> None:
    """Verify the savepoint NAME: the digests of all files, and that Spark reads the same number of rows from them."""
    from stateside.pipeline.rescale import verify_rows

    for view, part in _parts(folder, name).items():
        told: dict[str, Any] = {"view": view, "files": part.verify()}
        if spark:
            told["rows"] = verify_rows(part)
        rows = "".join(f", {count:,} rows in {store}" for store, count in told.get("rows", {}).items())
        _show(told, f"{view}: {told['files']} files are as they were taken{rows}", as_json)


@savepoint.command("copy")
@_NAME
@_DIR
@_TO
def copy_(name: str, folder: Path, target: Path) -> None:
    """Copy the savepoint NAME into another folder, on another disk for example; its files are verified there."""
    from stateside.ops.restore import copy

    made = copy(name, _parts(folder, name), target)
    click.echo(f"Copied. To restore it: stateside savepoint restore {made} --dir {folder}")


@savepoint.command("delete")
@_NAME
@_DIR
def delete_(name: str, folder: Path) -> None:
    """Delete the savepoint NAME, and those of its views that no other one needs."""
    from stateside.ops.restore import delete

    layout = _layout(folder)
    delete(layout, name, _parts(folder, name))
    click.echo(f"{name} is deleted")


@savepoint.command("fork")
@_NAME
@_DIR
@_TO
def fork_(name: str, folder: Path, target: Path) -> None:
    """Make another folder from the savepoint NAME, to try changed code on real state. The job may run.

    The fork has the journal's events up to now. What its sinks write stays in the fork.
    """
    from stateside.ops.restore import fork

    fork(_layout(folder), name, _parts(folder, name), target)
    click.echo(f"{target} begins at {name}. To try changed code there: stateside check APP --dir {target}")


@savepoint.command("restore")
@_NAME
@_DIR
@_VIEW
@click.option("--deliver-again", is_flag=True, help="Do not repeat the batches as they were: sinks get all rows again.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def restore_(name: str, folder: Path, view: str | None, deliver_again: bool, yes: bool) -> None:
    """Restart the job from the savepoint NAME, or from the folder of a copy, at its next start. Stop the job first.

    The next run repeats the batches after the savepoint as they were: no sink gets a row twice, and none misses one.
    The generation before is kept: `stateside rollback` goes back.
    """
    from stateside.ops.restore import bring_back, restore

    layout = _layout(folder)
    parts = bring_back(layout, Path(name)) if "/" in name else _parts(folder, name)
    parts = {each: part for each, part in parts.items() if view in (None, each)}
    if not yes:
        then = ", ".join(f"{view} after batch {part.batch:,}" for view, part in parts.items())
        click.confirm(f"The job then begins again: {then}. Go on?", abort=True)
    for made in restore(layout, parts, deliver_again=deliver_again):
        again = f", and repeats {made.replayed:,} batches" if made.replayed else ""
        click.echo(
            f"{made.view}: goes on after batch {made.savepoint.batch:,}{again}; generation {made.after.number} is "
            f"served from now on; generation {made.before.number} is kept"
        )


def _layout(folder: Path) -> Layout:
    from stateside.core.layout import Layout

    layout = Layout(folder)
    if layout.pointed() is not None:
        raise RequestInvalid(
            "This folder serves a checkpoint of another job", next_step="Savepoints are of our own jobs"
        )
    return layout


def _views(layout: Layout, name: str | None) -> dict[str, ViewLayout]:
    from stateside.views.savepoint import living_views

    views = living_views(layout)
    if (name is not None and name not in views) or not views:
        raise ViewUnknown(
            f"There is no view {name!r} in this folder" if name else "There is no view in this folder",
            where=str(layout.root),
            next_step=f"There are: {', '.join(views)}" if views else "Run its application first",
        )
    return views if name is None else {name: views[name]}


def _parts(folder: Path, name: str) -> Parts:
    from stateside.ops.restore import parts_of

    layout = _layout(folder)
    return parts_of(layout, name, list(_views(layout, None).values()))


def _show_one(one: Savepoint, as_json: bool) -> None:
    line = f"{one.name:<28}  batch {one.batch:>8,}  position {one.position!s:<16}  {one.bytes:>14,} bytes"
    _show(one.as_dict(), line, as_json)


def _show(document: dict[str, Any], line: str, as_json: bool) -> None:
    show_result(document, line, as_json)
