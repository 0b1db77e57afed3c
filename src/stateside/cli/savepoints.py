"""`stateside savepoint`: a view's checkpoint as of one batch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from stateside.cli.group import FOLDER
from stateside.cli.tables import show_result
from stateside.core.errors import RequestInvalid, ViewUnknown

if TYPE_CHECKING:
    from stateside.core.layout import ViewLayout
    from stateside.views.savepoint import Savepoint

_DIR = click.option("--dir", "folder", required=True, type=FOLDER, help="The application's folder.")
_VIEW = click.option("--view", "name", metavar="VIEW", help="Which view's; needed where there are several.")
_JSON = click.option("--json", "as_json", is_flag=True, help="For machines.")


@click.group()
def savepoint() -> None:
    """Take, list and restore savepoints: the state of a job after one batch.

    Taking a savepoint is safe while the job runs. A savepoint is a folder in DIR/views/VIEW/savepoints. Delete the
    folder when you no longer need it: until then the journal's retention keeps all events after the savepoint.
    """


@savepoint.command("take")
@_DIR
@_VIEW
@_JSON
def take_(folder: Path, name: str | None, as_json: bool) -> None:
    """Take a savepoint of the newest finished batch. The job continues without waiting."""
    from stateside.core.clock import SystemClock
    from stateside.views.savepoint import take

    _show([take(_view(folder, name), SystemClock().now_us())], as_json)


@savepoint.command("list")
@_DIR
@_VIEW
@_JSON
def list_(folder: Path, name: str | None, as_json: bool) -> None:
    """List savepoints, oldest first."""
    from stateside.views.savepoint import savepoints

    _show(savepoints(_view(folder, name), lambda damaged: click.echo(str(damaged), err=True)), as_json)


@savepoint.command("restore")
@click.argument("savepoint_name", metavar="NAME")
@_DIR
@_VIEW
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def restore_(savepoint_name: str, folder: Path, name: str | None, yes: bool) -> None:
    """Restart the job from the savepoint NAME, at its next start. The job must be stopped.

    Billing's documents stay correct: billing's sink knows their journal position. Other sinks recognise batches by
    number, and the numbers come again: empty those sinks first, or make sure that no row is needed twice.
    """
    from stateside.core.clock import SystemClock
    from stateside.core.layout import Layout
    from stateside.ops.restore import find, restore

    view = _view(folder, name)
    batch = find(view, savepoint_name).batch
    if not yes:
        question = f"The job {view.name} then begins again after batch {batch:,}. Its checkpoint is put aside. Go on?"
        click.confirm(question, abort=True)
    aside = restore(Layout(folder), view, savepoint_name, SystemClock().now_us())
    click.echo(
        f"{savepoint_name} is the checkpoint now; " + (f"the one before is {aside}" if aside else "there was none")
    )


def _view(folder: Path, name: str | None) -> ViewLayout:
    from stateside.core.layout import Layout

    layout = Layout(folder)
    if layout.pointed() is not None:
        raise RequestInvalid(
            "This folder serves a checkpoint of another job", next_step="Savepoints are of our own jobs"
        )
    views = {view.name: view for view in layout.views()}
    if name is None and len(views) == 1:
        return next(iter(views.values()))
    if name is None and views:
        raise RequestInvalid(f"Say with --view which one: {', '.join(views)}")
    if name not in views:
        raise ViewUnknown(
            f"There is no view {name!r} in this folder" if name else "There is no view in this folder",
            where=str(folder),
            next_step=f"There are: {', '.join(views)}" if views else "Run its application first",
        )
    return views[name]


def _show(found: list[Savepoint], as_json: bool) -> None:
    for one in found:
        line = f"{one.name:<28}  batch {one.batch:>8,}  position {one.position!s:<16}  {one.bytes:>14,} bytes"
        show_result(one.as_dict(), line, as_json)
    if not found and not as_json:
        click.echo("There is no savepoint.")
