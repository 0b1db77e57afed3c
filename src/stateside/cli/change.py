"""Changing an application that runs: check, apply, rollback, drop-generation."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from stateside.cli.applications import loaded, setting_flags, telling
from stateside.cli.group import FOLDER

_CONFIG = click.option(
    "--config", type=click.Path(dir_okay=False, path_type=Path), help="Settings: this file, not stateside.toml."
)
_DIR = click.option("--dir", "folder", required=True, type=FOLDER, help="The application's folder.")
_VIEW = click.option("--view", "name", required=True, metavar="VIEW", help="The view.")


@click.command()
@click.argument("target")
@click.option("--dir", "folder", type=FOLDER, help="Compare with what runs in this folder.")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def check(target: str, folder: Path | None, as_json: bool) -> None:
    """Compare an application with its folder: what continues, what has to be folded again, and at which cost.

    TARGET names the application like `shop:app`. Without --dir: whether the application loads and all its views can be
    planned. Spark is started only where kind, key and source do not show the difference. The exit code is 1 if `run`
    would refuse the application.
    """
    from stateside.core.layout import Layout
    from stateside.pipeline import comparison
    from stateside.pipeline.apply import compared

    app, settings = loaded(target, None, (), {})
    found = compared(app, settings, folder and folder.absolute())
    click.echo(json.dumps(comparison.as_json(found), indent=2) if as_json else comparison.table(found))
    if folder is not None and not as_json and any(each.refused or each.was for each in found):
        click.echo(f"To make these changes while the old rows are served:\n  {comparison.command(app, Layout(folder))}")
    sys.exit(1 if any(each.refused for each in found) else 0)


@click.command()
@click.argument("target")
@_DIR
@click.option("--view", "views", multiple=True, metavar="VIEW", help="Only the changes of this view; several times.")
@click.option("--refold", multiple=True, metavar="VIEW", help="Fold this view again although it did not change.")
@click.option("--exit", "exit_", is_flag=True, help="End after the switch, even if a job was running before.")
@_CONFIG
@click.option("--json", "as_json", is_flag=True, help="A JSON line on stdout for each batch and change of state.")
@setting_flags
def apply(
    target: str,
    folder: Path,
    views: tuple[str, ...],
    refold: tuple[str, ...],
    exit_: bool,
    config: Path | None,
    as_json: bool,
    spark: tuple[str, ...],
    **flags: Any,
) -> None:
    """Make the changes that `stateside check` shows, while the old rows are served.

    Each changed view is folded again from its source, beside the old one, and takes its place at one moment for all
    servers. A job that runs in this folder goes on meanwhile, and hands over at the end: then this command goes on as
    the run of the changed application. If it is ended before, repeat it: it resumes where it was.
    """
    from stateside.pipeline.apply import Wanted
    from stateside.pipeline.apply import apply as make

    app, settings = loaded(target, config, spark, flags)
    click.echo(f"Starting Spark to change {target} in {folder} …", err=True)
    with telling(f"{app.name} in {folder}; Ctrl-C stops it", as_json) as teller:
        make(app, folder.absolute(), settings, teller, Wanted(views, refold, exit_))


@click.command()
@_DIR
@_VIEW
def rollback(folder: Path, name: str) -> None:
    """Go back to the generation of a view that was served before its last change. The job must be stopped.

    Its rows are those of the switch, until the application that folded it runs again. To go back while the job runs,
    apply the old application.
    """
    from stateside.core.layout import Layout
    from stateside.pipeline.apply import roll_back

    generation = roll_back(Layout(folder), name)
    click.echo(f"{name}: generation {generation.number} is served again. Run the application that it belongs to.")


@click.command(name="drop-generation")
@_DIR
@_VIEW
def drop_generation(folder: Path, name: str) -> None:
    """Delete the kept generations of a view; or all of a view that the application no longer declares."""
    from stateside.core.layout import Layout
    from stateside.pipeline.apply import drop

    click.echo(f"{drop(Layout(folder), name):,} bytes are free again.")
