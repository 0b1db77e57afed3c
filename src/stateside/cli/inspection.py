"""`stateside inspect`: shows what a job does, running or dead, from its files alone."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stateside.cli.group import FILE
from stateside.cli.tables import PIPE_CHARS, show_json
from stateside.core.errors import RequestInvalid

if TYPE_CHECKING:
    from rich.console import RenderableType

    from stateside.inspection import Finding, Inspection, ViewInspection
    from stateside.inspection.presentation import Section

WATCH_S = 2.0
_STYLES = {"critical": "bold red", "warning": "yellow", "notice": "cyan"}


@click.command(name="inspect")
@click.argument("location", metavar="CHECKPOINT|DIR")
@click.option("--explain", is_flag=True, help="Findings: evidence, meaning and next step.")
@click.option("--watch", is_flag=True, help="Show it again every two seconds, until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="All figures and findings as JSON.")
@click.option("--html", "html_file", type=FILE, help="Write a page with plots here: one file, without scripts.")
def inspect(location: str, explain: bool, watch: bool, as_json: bool, html_file: Path | None) -> None:
    """Inspect a job: batches, state, disk and findings.

    CHECKPOINT is the checkpoint of any Structured Streaming query, a path or a URI; DIR is an application's folder, as
    for `stateside run`. The job may run or not: nothing is written there, no key is read, and neither Spark nor Java
    is needed. Our own runs are shown by their progress reports, queries of others by the times and sizes of their
    files. docs/inspect.md has what each number means. The exit code is 1 if a part could not be read.
    """
    from stateside.inspection.rules import findings
    from stateside.serving.health.inspections import FolderInspector

    if watch and (as_json or html_file):
        raise RequestInvalid("--watch shows tables alone", next_step="Leave out --json and --html, or --watch")
    inspector = FolderInspector(location)
    if watch:
        _watch(inspector.inspect, explain)
        return
    inspection = inspector.inspect()
    found = findings(inspection)
    if html_file is not None:
        from stateside.inspection.presentation import page

        html_file.write_text(page(inspection, found))
        click.echo(f"Written: {html_file}", err=True)
    if as_json:
        show_json(inspection.as_dict() | {"findings": [each.as_dict() for each in found]})
    elif html_file is None:
        _show(inspection, found, explain)
    for problem in inspection.problems:
        click.echo(f"Error: {problem}", err=True)
    sys.exit(1 if inspection.problems else 0)


def _watch(inspect_again: Callable[[], Inspection], explain: bool) -> None:
    from rich.console import Console, Group
    from rich.live import Live

    from stateside.inspection.rules import findings

    with Live(console=Console(), screen=True, auto_refresh=False) as live:
        while True:
            inspection = inspect_again()
            live.update(Group(*_shown(inspection, findings(inspection), explain, brief=True)), refresh=True)
            time.sleep(WATCH_S)


def _show(inspection: Inspection, found: Sequence[Finding], explain: bool) -> None:
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console = Console(width=PIPE_CHARS, no_color=True)
    with console.capture() as shown:
        for part in _shown(inspection, found, explain):
            console.print(part)
    click.echo("\n".join(line.rstrip() for line in shown.get().splitlines()))


def _shown(
    inspection: Inspection, found: Sequence[Finding], explain: bool, *, brief: bool = False
) -> Iterator[RenderableType]:
    """All parts; `brief` without what changes slowly: a screen shows no more than its height."""
    from rich.text import Text

    from stateside.inspection.presentation import application_disk

    yield Text(inspection.location, style="bold")
    if explain:
        yield from _explained(found)
    for view in inspection.views:
        yield from _view(view, brief)
    if inspection.disk and not brief:
        yield from _table(application_disk(inspection))
    if found and not explain:
        yield Text(f"\n{len(found)} {'finding' if len(found) == 1 else 'findings'}: --explain shows them.")


def _explained(found: Sequence[Finding]) -> Iterator[RenderableType]:
    from rich.padding import Padding
    from rich.text import Text

    if not found:
        yield Text("No finding.", style="green")
    for each in found:
        yield Text.assemble("\n", (f"{each.severity}: {each.code}", _STYLES[each.severity]))
        told = Text.assemble((each.evidence, "bold"), f"\n{each.meaning}\nNext: {each.next_step}")
        yield Padding(told, (0, 0, 0, 2), expand=False)


def _view(view: ViewInspection, brief: bool) -> Iterator[RenderableType]:
    from rich.text import Text

    from stateside.inspection.presentation import headline, notes, sections, series, sparkline

    yield Text(f"\n{headline(view)}", style="bold")
    for note in notes(view):
        yield Text(note, style="yellow")
    drawn = series(view)
    width = max((len(each.name) for each in drawn), default=0)
    for each in drawn:
        known = f"{each.text(each.known[-1])} (at most {each.text(max(each.known))})"
        yield Text.assemble(f"{each.name:<{width}}  ", (sparkline(each.values), "cyan"), f"  {known}")
    for section in sections(view, brief=brief):
        yield from _table(section)


def _table(section: Section) -> Iterator[RenderableType]:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
    for name, side in zip(section.head, section.sides, strict=True):
        table.add_column(Text(name), justify="right" if side == "r" else "left")
    for row in section.rows:
        table.add_row(*map(Text, row))
    yield Text(f"\n{section.title}", style="bold")
    yield table
    if section.note:
        yield Text(section.note, style="dim")
