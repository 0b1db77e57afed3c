"""`stateside journal readers | archive | drop`: who needs a journal's events, and away with what nobody does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stateside.cli.bars import bar
from stateside.cli.group import FOLDER
from stateside.cli.journal import as_json_flag, journal_folder, json_line, parsed_position, place_of
from stateside.errors import RequestInvalid

if TYPE_CHECKING:
    from stateside.positions import Position


@click.command()
@journal_folder
@as_json_flag
def readers(folder: Path, as_json: bool) -> None:
    """Print who reads the journal, and up to where: nothing that one of them needs is dropped."""
    from stateside.layout import Layout
    from stateside.ops.journal_readers import known_readers

    for reader in known_readers(Layout(folder)):
        told = {"reader": reader.name, "position": str(reader.position)}
        click.echo(json_line(told) if as_json else f"{told['position']:>12}  {reader.name}")


def _retention_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Flags that say what is to go."""
    flags = (
        click.option(
            "--before", metavar="POSITION", callback=parsed_position, help="Segments that lie wholly before it."
        ),
        click.option("--keep-days", type=click.FloatRange(0), help="Segments all of whose events are older."),
    )
    for flag in reversed(flags):
        command = flag(command)
    return command


@click.command()
@journal_folder
@_retention_flags
@click.option("--to", "archive_folder", required=True, type=FOLDER, help="Where the Parquet files go.")
@as_json_flag
def archive(
    folder: Path, before: Position | None, keep_days: float | None, archive_folder: Path, as_json: bool
) -> None:
    """Write old segments as Parquet files, one each, and then drop them from the journal.

    Only what every known reader has read can go (`stateside journal readers`), and never the newest segment. A call
    that was ended goes on where it was.
    """
    _drop(folder, before, keep_days, archive_folder, as_json)


@click.command()
@journal_folder
@_retention_flags
@click.confirmation_option(prompt="The events are gone then, for good. Drop them?")
@as_json_flag
def drop(folder: Path, before: Position | None, keep_days: float | None, as_json: bool) -> None:
    """Drop old segments from the journal, without an archive.

    Only what every known reader has read can go (`stateside journal readers`), and never the newest segment.
    """
    _drop(folder, before, keep_days, None, as_json)


def _drop(
    folder: Path, before: Position | None, keep_days: float | None, archive_folder: Path | None, as_json: bool
) -> None:
    from stateside.clock import SystemClock
    from stateside.journal.segment import PARTITION
    from stateside.journal.upkeep import drop as run_drop
    from stateside.journal.upkeep import offset_before
    from stateside.layout import Layout
    from stateside.ops.journal_readers import known_readers

    if (before is None) == (keep_days is None):
        raise RequestInvalid("It is not said what is to go", next_step="Give one of --before and --keep-days")
    place, offset = place_of(folder), 0 if before is None else before[PARTITION]
    if keep_days is not None:
        offset = offset_before(place, SystemClock().now_us() - int(keep_days * 86_400_000_000))
    with bar("archiving segments") as watch:
        done = run_drop(place, offset, known_readers(Layout(folder)), archive_folder, watch)
    told = {"segments": done.segments, "events": done.events, "begin": f"{PARTITION}:{done.begin}"}
    if as_json:
        click.echo(json_line(told | {"archived": [str(path) for path in done.archived]}))
    else:
        click.echo(f"{done.segments:,} segments with {done.events:,} events dropped; it begins at {told['begin']} now")
