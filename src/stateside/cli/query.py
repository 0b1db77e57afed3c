"""Commands that query servers: rows, scans, changes, SQL, sums, rollups, views, and the location of a key."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

import click

from stateside.cli.group import PORT, TOKEN_VARIABLE
from stateside.cli.tables import show_answer, show_change, show_document, show_json, show_rows

if TYPE_CHECKING:
    from stateside.serving.clients import Client

UNREACHED_S: Final = 0.5  # people should learn soon that no server answers
ROWS_SHOWN: Final = 100  # default of a scan


URL = click.option(
    "--url",
    multiple=True,
    default=[f"http://127.0.0.1:{PORT}"],
    show_default=True,
    help="A server to ask; may be given several times.",
)
JSON = click.option("--json", "as_json", is_flag=True, help="For machines: the answer as HTTP has it.")


def floored(command: Callable[..., None]) -> Callable[..., None]:
    """The flags of every command with a stamped answer."""
    for option in (
        click.option("--wait-ms", type=click.IntRange(0), help="Wait so long for that; 5,000 by default."),
        click.option("--max-age-ms", type=click.IntRange(0), help="Only if the answer is no older than this."),
        click.option("--min-position", metavar="RECEIPT", help="Only if the answer covers this receipt."),
        URL,
    ):
        command = option(command)
    return command


def asking(command: Callable[..., None]) -> Callable[..., None]:
    """The flags of every command that asks for rows."""
    return floored(JSON(command))


def client_of(url: str | Sequence[str]) -> Client:
    """A client of these servers, with the token from the environment."""
    from stateside.serving.clients import Client

    return Client(url, token=os.environ.get(TOKEN_VARIABLE), unreached_s=UNREACHED_S)


def floor_of(min_position: str | None, floor: dict[str, int | None]) -> dict[str, Any]:
    """The floor from the flags, as keyword arguments of a client."""
    from stateside.core.positions import Position

    position = {} if min_position is None else {"min_position": Position.parse(min_position)}
    return position | {name: value for name, value in floor.items() if value is not None}


@click.command()
@click.argument("path")
@click.option("--as-of", type=click.IntRange(0), metavar="BATCH", help="As of this batch, out of the history.")
@asking
def get(path: str, url: Sequence[str], as_json: bool, min_position: str | None, **floor: int | None) -> None:
    """Get a view's rows by key, or by the first parts of a key: VIEW/PART/PART…

    With a floor (the options) the command waits until the answer is fresh enough, and never returns an older one:
    `--min-position` with an append's receipt reads your own event.
    """
    view, *key = path.split("/")
    with client_of(url) as client:
        show_answer(client.rows(view, *key, **floor_of(min_position, floor)), as_json)


@click.command()
@click.argument("path")
@click.option("--where", multiple=True, metavar="CONDITION", help="Only rows that meet this, like 'total>=1000'.")
@click.option("--order", metavar="COLUMN", help="By this column; with - in front from the greatest on.")
@click.option("--columns", metavar="COLUMN,…", help="Only these columns.")
@click.option("--rows", "rows_max", type=click.IntRange(0), help=f"So many at most; {ROWS_SHOWN} by default. 0: all.")
@click.option("--as-of", type=click.IntRange(0), metavar="BATCH", help="As of this batch, out of the history.")
@asking
def scan(
    path: str,
    where: Sequence[str],
    order: str | None,
    columns: str | None,
    rows_max: int | None,
    url: Sequence[str],
    as_json: bool,
    min_position: str | None,
    **floor: int | None,
) -> None:
    """Scan a view's rows, or the rows whose key begins with these parts: VIEW or VIEW/PART/PART…

    All rows are of one batch, in the order of their keys or of a column. With --json each page is a line.
    """
    view, *key = path.split("/")
    shown = columns.split(",") if columns else None
    most = {None: ROWS_SHOWN, 0: None}.get(rows_max, rows_max)
    with client_of(url) as client:
        pages = client.scan(
            view, *key, where=where, order=order, columns=shown, rows_max=most, **floor_of(min_position, floor)
        )
        for page in pages:
            if as_json:
                show_json(page.document, lines=True)
            else:
                show_answer(page, False)


@click.command()
@click.argument("path")
@click.option("--rollup", metavar="COLUMN,…", help="Watch the rollup by these columns; VIEW alone is then the path.")
@click.option("--after", metavar="ID", help="Go on after this change, by its id in an earlier watch.")
@click.option("--count", type=click.IntRange(1), help="Stop after so many; by default it goes on until Ctrl-C.")
@URL
@JSON
def watch(
    path: str, rollup: str | None, after: str | None, count: int | None, url: Sequence[str], as_json: bool
) -> None:
    """Subscribe to the rows of a key, of all keys with these first parts, or of a view: VIEW/PART/PART…

    Prints the present rows first, then the changes of every batch. Broken connections are restored.
    """
    view, *key = path.split("/")
    by = None if rollup is None else [name for name in rollup.split(",") if name]
    with client_of(url) as client, closing(client.watch(view, *key, rollup=by, after=after)) as changes:  # type: ignore[type-var]
        for number, change in enumerate(changes, 1):
            show_change(change, as_json)
            if number == count:
                return


@click.command()
@click.argument("statement")
@click.option("--parameter", "parameters", multiple=True, help="What stands for the next ? in the statement.")
@click.option("--rows", "rows_max", type=click.IntRange(1), help="So many at most.")
@click.option("--timeout-ms", type=click.IntRange(1), help="So long at most.")
@URL
@JSON
def sql(
    statement: str,
    parameters: Sequence[str],
    rows_max: int | None,
    timeout_ms: int | None,
    url: Sequence[str],
    as_json: bool,
) -> None:
    """Run one SQL STATEMENT over the views and the archive, on one snapshot."""
    with client_of(url) as client:
        answer = client.sql(statement, parameters, rows_max=rows_max, timeout_ms=timeout_ms)
    if as_json:
        show_json(answer.document)
    else:
        show_rows(answer.rows, answer.stamps)


@click.command()
@URL
@JSON
def views(url: Sequence[str], as_json: bool) -> None:
    """List the served views, each with the state of its job."""
    with client_of(url) as client:
        found = client.views()
    show_document({"views": found}, found, as_json)


@click.command()
@click.argument("path")
@URL
@JSON
def locate(path: str, url: Sequence[str], as_json: bool) -> None:
    """Show the servers that hold a key: VIEW/PART…"""
    view, *key = path.split("/")
    with client_of(url) as client:
        found = client.locate(view, *key)
    show_document({"share": found.share, "servers": found.servers}, found.servers, as_json)


@click.command(name="sum")
@click.argument("path")
@click.option("--last", metavar="DURATION", help="The last so long: 90s, 15m, 24h, 7d.")
@click.option("--from", "from_time", metavar="TIME", help="From this time on, like 2026-01-31T12:00:00Z.")
@click.option("--to", "to_time", metavar="TIME", help="Up to this time; the newest bucket's end by default.")
@asking
def sum_(
    path: str,
    last: str | None,
    from_time: str | None,
    to_time: str | None,
    url: Sequence[str],
    as_json: bool,
    min_position: str | None,
    **floor: int | None,
) -> None:
    """Sum a range of a windowed view's buckets: VIEW/PART…, the key's parts before the window.

    The state holds each event once, in its bucket; a sum over buckets is a sliding window. Times must lie on bucket
    boundaries; any other time is refused, never rounded.
    """
    view, *key = path.split("/")
    with client_of(url) as client:
        answer = client.sum(
            view, *key, last=last, from_time=from_time, to_time=to_time, **floor_of(min_position, floor)
        )
    show_answer(answer, as_json)


@click.command()
@click.argument("view")
@click.argument("columns", default="")
@click.argument("key", default="")
@asking
def rollup(
    view: str,
    columns: str,
    key: str,
    url: Sequence[str],
    as_json: bool,
    min_position: str | None,
    **floor: int | None,
) -> None:
    """Get a view's rows added up by some of its key's columns: VIEW COLUMN,COLUMN… PART/PART…

    The view declares its rollups: with rollups=[["country"]] there is `stateside rollup spending country`, a row for
    each country, and `stateside rollup spending country de`. With rollups=[[]] VIEW alone returns the total of all
    rows.
    """
    by, parts = (text.split(separator) if text else [] for text, separator in ((columns, ","), (key, "/")))
    with client_of(url) as client:
        show_answer(client.rollup(view, by, *parts, **floor_of(min_position, floor)), as_json)
