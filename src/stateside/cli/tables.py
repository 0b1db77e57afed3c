"""Output on the terminal: tables and progress bars for people, JSON for machines."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import click

from stateside.core.clock import age_text
from stateside.core.progress import Watch, nobody

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID

    from stateside.replica.bootstrap import LoadProgress
    from stateside.serving.clients import Answer, Change, Stamp

MICROS: Final = "_micros"  # suffix of amount columns, shown in whole units
MILLISECONDS: Final = "_ms"  # suffix of durations in a server's own rows
PIPE_CHARS = 100_000  # wide enough that nothing is cut or wrapped in a pipe
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(\.\d+)?Z")
_DECIMALS_MIN = 2


def show_answer(answer: Answer, as_json: bool) -> None:
    """Show a stamped answer."""
    if as_json:
        show_json(answer.document)
        return
    show_rows(answer.rows, answer.stamps)
    if not answer.one_batch:
        click.echo("These rows are of several batches: a share's history does not go back so far.", err=True)
    if lacking := answer.document.get("not_in_rollups"):
        click.echo(f"Rollups do not have {', '.join(lacking)}: minima and the like cannot be added up.", err=True)
    if answer.cursor is not None:
        click.echo("There are more rows: `stateside scan` shows them all.", err=True)


def show_rows(rows: Sequence[Mapping[str, Any]], stamps: Sequence[Stamp]) -> None:
    """Show rows as a table, and their stamps below."""
    _show_table(rows)
    for line in dict.fromkeys(_stamped(stamp) for stamp in stamps):
        click.secho(line, dim=True)


def show_change(change: Change, as_json: bool) -> None:
    """Show a change from a subscription."""
    if as_json:
        stamp = None if change.stamp is None else change.stamp.as_dict()
        told = {"kind": change.kind, "id": change.id, "stamp": stamp, "rows": change.rows, "removed": change.removed}
        show_json(told | {"last": change.last}, lines=True)
        return
    head = change.kind if change.stamp is None else f"{change.kind}: {_stamped(change.stamp)}"
    click.secho(head, dim=True)
    if change.rows:
        _show_table(change.rows)
    if change.removed:
        click.echo("gone:")
        _show_table(change.removed)


def show_document(document: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], as_json: bool) -> None:
    """Show a document about the server itself: for people, these rows."""
    show_json(document) if as_json else _show_table([_for_people(row) for row in rows])


def _for_people(row: Mapping[str, Any]) -> dict[str, Any]:
    """A server's row for people: `age_ms` as an age, a list of names as names."""
    shown = {}
    for name, value in row.items():
        if name.endswith(MILLISECONDS):
            shown[name.removesuffix(MILLISECONDS)] = None if value is None else age_text(value)
        else:
            shown[name] = ", ".join(map(_in_a_list, value)) if isinstance(value, list) else value
    return shown


def _in_a_list(value: str | Mapping[str, Any]) -> str:
    """A name, or an object like `generation 1, bytes 4,096`."""
    return (
        value if isinstance(value, str) else " ".join(f"{name} {readable(name, part)}" for name, part in value.items())
    )


def show_json(document: Any, *, lines: bool = False) -> None:
    """Print a document as JSON; with `lines` in one line."""
    click.echo(json.dumps(document, indent=None if lines else 2, ensure_ascii=False))


def show_result(document: Any, text: str, as_json: bool, *, err: bool = False) -> None:
    """Print a result in one line: as JSON for machines, as this text for people; with `err` on standard error."""
    click.echo(json.dumps(document, ensure_ascii=False) if as_json else text, err=err)


def readable(name: str, value: Any) -> str:
    """A value of this column for people."""
    if value is None:
        return "-"
    if isinstance(value, int) and not isinstance(value, bool):
        return _amount(value) if name.endswith(MICROS) else f"{value:,}"
    if isinstance(value, str):
        found = _TIME.fullmatch(value)
        return f"{found[1]} {found[2]}{found[3] or ''}" if found else value
    return f"{value:,}" if isinstance(value, float) else json.dumps(value, ensure_ascii=False)


def _show_table(rows: Sequence[Mapping[str, Any]]) -> None:
    if not rows:
        click.echo("no rows")
        return
    names = list(dict.fromkeys(name for row in rows for name in row))
    numeric = [all(isinstance(row.get(name), int | float | None) for row in rows) for name in names]
    click.echo(
        columns(
            [[readable(name, row.get(name)) for name in names] for row in rows],
            "".join("r" if each else "l" for each in numeric),
            head=[name.removesuffix(MICROS) for name in names],
        )
    )


def columns(rows: Sequence[Sequence[str]], sides: str, head: Sequence[str] | None = None) -> str:
    """Rows in aligned columns; `sides` has l or r for each column. With a `head`, as wide as the terminal at most."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    if not rows:
        return ""
    table = Table(box=None, show_header=head is not None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for name, side in zip(head or sides, sides, strict=True):
        table.add_column(Text(name), justify="right" if side == "r" else "left", no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, row))
    console = Console()
    if head is None or not console.is_terminal:
        console = Console(width=PIPE_CHARS, no_color=True)
    with console.capture() as shown:
        console.print(table)
    return "\n".join(line.rstrip() for line in shown.get().splitlines())


def _amount(micros: int) -> str:
    whole, rest = divmod(abs(micros), 1_000_000)
    decimals = f"{rest:06}".rstrip("0").ljust(_DECIMALS_MIN, "0")
    return f"{'-' if micros < 0 else ''}{whole:,}.{decimals}"


def _stamped(stamp: Stamp) -> str:
    """The stamp in a line."""
    share = "" if stamp.share is None else f", share {stamp.share}"
    source = "" if stamp.source == "live" else f", {stamp.source}"
    return f"{stamp.view}, batch {stamp.batch}{share}{source}, position {stamp.position}, {age_text(stamp.age_ms)} old"


@contextmanager
def bar(what: str) -> Iterator[Watch]:
    """A progress bar for people; without a terminal, nothing."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield nobody
        return
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


class LoadBars:
    """A progress bar for each view that bootstraps. The tails call `LoadBars`, each from its own thread."""

    def __init__(self, console: Console) -> None:
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        columns = (TextColumn("loading {task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, TextColumn("{task.fields[rows]:,} rows"), console=console)
        self._lock = threading.Lock()
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, told: LoadProgress) -> None:
        """Show the progress of a bootstrap; a finished bootstrap's bar is removed."""
        with self._lock:
            if told.view not in self._tasks:
                self._progress.start()
                self._tasks[told.view] = self._progress.add_task(told.view, total=1.0, rows=told.rows)
            self._progress.update(self._tasks[told.view], completed=told.done, rows=told.rows)
            if told.done >= 1.0:
                self._progress.remove_task(self._tasks.pop(told.view))
            if not self._tasks:
                self._progress.stop()

    def close(self) -> None:
        """Remove the bars: an abandoned bootstrap never reports its end."""
        self._progress.stop()
