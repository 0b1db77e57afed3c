"""`stateside journal readers | archive | drop | trim`: who needs a journal's events, and away with what nobody does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stateside.cli.bars import bar
from stateside.cli.group import FOLDER
from stateside.cli.journal import as_json_flag, journal_folder, json_line, place_of
from stateside.cli.selections import parsed_position
from stateside.errors import RequestInvalid

if TYPE_CHECKING:
    from stateside.journal.upkeep import Dropped
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


@click.command()
@journal_folder
@click.option("--keep-days", type=click.FloatRange(0), default=0.0, help="Keep what is younger all the same.")
@as_json_flag
def trim(folder: Path, keep_days: float, as_json: bool) -> None:
    """Drop from the nodes' logs what the merged stream has: the events stay, once.

    Never the newest segment of a log goes. See docs/nodes.md.
    """
    from stateside.journal.upkeep import trim as run_trim
    from stateside.layout import Layout

    told = _told(run_trim(Layout(folder).journal, _days_ago_us(keep_days) if keep_days else None))
    if as_json:
        click.echo(json_line(told))
    else:
        click.echo(f"{told['segments']:,} segments with {told['events']:,} events dropped from the nodes' logs")


def _drop(
    folder: Path, before: Position | None, keep_days: float | None, archive_folder: Path | None, as_json: bool
) -> None:
    from stateside.journal.upkeep import drop_all, position_before
    from stateside.layout import Layout
    from stateside.ops.journal_readers import known_readers

    if (before is None) == (keep_days is None):
        raise RequestInvalid("It is not said what is to go", next_step="Give one of --before and --keep-days")
    place = place_of(folder)
    position = before or position_before(place, _days_ago_us(keep_days or 0))
    with bar("archiving segments") as watch:
        done = drop_all(place, position, known_readers(Layout(folder)), archive_folder, watch)
    told = _told(done) | {"archived": [str(path) for dropped in done.values() for path in dropped.archived]}
    if as_json:
        click.echo(json_line(told))
    else:
        counts = f"{told['segments']:,} segments with {told['events']:,} events dropped"
        click.echo(f"{counts}; it begins at {told['begin']} now")


def _told(done: Mapping[str, Dropped]) -> dict[str, Any]:
    """What went, all together, and where what is left begins."""
    begin = ",".join(f"{name}:{dropped.begin}" for name, dropped in done.items())
    segments, events = (sum(getattr(dropped, name) for dropped in done.values()) for name in ("segments", "events"))
    return {"segments": segments, "events": events, "begin": begin}


def _days_ago_us(days: float) -> int:
    from stateside.clock import SystemClock

    return SystemClock().now_us() - int(days * 86_400_000_000)
