"""Commands that ask a server: rows, sums over buckets, rollups."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import click

from stateside.cli.group import PORT

if TYPE_CHECKING:
    from stateside.serving.clients import Client

TOKEN_VARIABLE: Final = "STATESIDE_TOKEN"  # not an option: the list of processes shows those to everybody


def asking(command: Callable[..., None]) -> Callable[..., None]:
    """The flags of every command that asks a server."""
    for option in (
        click.option("--wait-ms", type=click.IntRange(0), help="Wait so long for that; 5,000 by default."),
        click.option("--max-age-ms", type=click.IntRange(0), help="Only if the answer is no older than this."),
        click.option("--min-position", metavar="RECEIPT", help="Only if the answer covers this receipt."),
        click.option("--url", default=f"http://127.0.0.1:{PORT}", show_default=True, help="The server to ask."),
    ):
        command = option(command)
    return command


def client_of(url: str) -> Client:
    """A client of this server, with the token that the environment has for it."""
    from stateside.serving.clients import Client

    return Client(url, token=os.environ.get(TOKEN_VARIABLE))


@click.command()
@click.argument("path")
@asking
def get(path: str, url: str, min_position: str | None, **floor: int | None) -> None:
    """Ask for a view's rows by key, or by the first parts of one: VIEW/PART/PART…

    Prints the stamped answer as JSON. With a floor (the options) it waits until the answer is as fresh as you ask, and
    never gives less: `--min-position` with an append's receipt reads your own event.
    """
    view, *key = path.split("/")
    with client_of(url) as client:
        click.echo(json.dumps(client.rows(view, *key, **floor_of(min_position, floor)), indent=2))


def floor_of(min_position: str | None, floor: dict[str, int | None]) -> dict[str, Any]:
    """The floor that the flags ask for, as a client takes it."""
    from stateside.positions import Position

    position = {} if min_position is None else {"min_position": Position.parse(min_position)}
    return position | {name: value for name, value in floor.items() if value is not None}


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
    url: str,
    min_position: str | None,
    **floor: int | None,
) -> None:
    """Add up a range of a windowed view's buckets: VIEW/PART…, the key's parts before the window.

    The state holds each event once, in its bucket; this is how a sliding window is asked for. Prints the stamped answer
    as JSON. Times lie on the buckets' borders; any other is refused, never moved.
    """
    view, *key = path.split("/")
    with client_of(url) as client:
        answer = client.sum(
            view, *key, last=last, from_time=from_time, to_time=to_time, **floor_of(min_position, floor)
        )
    click.echo(json.dumps(answer, indent=2))


@click.command()
@click.argument("view")
@click.argument("columns", default="")
@click.argument("key", default="")
@asking
def rollup(view: str, columns: str, key: str, url: str, min_position: str | None, **floor: int | None) -> None:
    """Ask for a view's rows added up by some of its key's columns: VIEW COLUMN,COLUMN… PART/PART…

    The view declares which: with rollups=[["country"]] there is `stateside rollup spending country`, a row for each
    country, and `stateside rollup spending country de`. With rollups=[[]] VIEW alone asks for the total of all rows.
    Prints the stamped answer as JSON.
    """
    by, parts = (text.split(separator) if text else [] for text, separator in ((columns, ","), (key, "/")))
    with client_of(url) as client:
        answer = client.rollup(view, by, *parts, **floor_of(min_position, floor))
    click.echo(json.dumps(answer, indent=2))
