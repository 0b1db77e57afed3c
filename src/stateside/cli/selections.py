"""Which events a command is about: the flags that say so, and what they mean."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from stateside.errors import PositionInvalid, RequestInvalid

if TYPE_CHECKING:
    from stateside.journal.stream import Stream, Trimmed
    from stateside.journal.upkeep import Selection
    from stateside.journal.upkeep.exporting import Format
    from stateside.positions import Position

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def _moment(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """A time, as microseconds since 1970."""
    try:
        return None if value is None else (datetime.fromisoformat(value) - EPOCH) // timedelta(microseconds=1)
    except (ValueError, TypeError, OverflowError) as error:
        raise click.BadParameter(f"{value!r} is no time with a time zone, like 2026-01-31T12:00:00Z") from error


def parsed_position(ctx: click.Context, param: click.Parameter, value: str | None) -> Position | None:
    """A position, like 0:1234."""
    from stateside.positions import Position

    try:
        return None if value is None else Position.parse(value)
    except PositionInvalid as error:
        raise click.BadParameter(error.sentence()) from error


def selection_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Flags that say which events are meant; all of them must hold."""
    flags = (
        click.option(
            "--from", "start", metavar="POSITION", callback=parsed_position, help="From this position on, like 0:1234."
        ),
        click.option(
            "--to",
            "stop",
            metavar="POSITION",
            callback=parsed_position,
            help="Up to this position; the end by default.",
        ),
        click.option("--entity", help="Of this entity."),
        click.option("--tag", help="With this tag."),
        click.option("--type", "type_", help="Of this type."),
        click.option(
            "--since", "from_us", metavar="TIME", callback=_moment, help="Happened then or later: 2026-01-31T12:00:00Z."
        ),
        click.option("--until", "to_us", metavar="TIME", callback=_moment, help="Happened before then."),
    )
    for flag in reversed(flags):
        command = flag(command)
    return command


def selected(start: Position | None, type_: str | None, **others: Any) -> Selection:
    """What the flags say."""
    from stateside.journal.upkeep import Selection
    from stateside.positions import Position

    return Selection(start or Position.start(), type=type_, **others)


def from_begin(stream: Trimmed | Stream, selection: Selection, asked: Position | None) -> Selection:
    """Where nothing else is asked for, from the first event that is there; people are told if others are gone."""
    from stateside.journal.stream import begin as begin_of

    begin = begin_of(stream)
    if asked is not None or not begin.events():
        return selection
    click.echo(f"The events before {begin} are gone; it begins there.", err=True)
    return replace(selection, start=begin)


def format_of(out: Path) -> Format:
    """The format that a file's name tells."""
    formats: dict[str, Format] = {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
    if str(out) == "-":
        return "jsonl"
    if out.suffix not in formats:
        raise RequestInvalid(f"The name {out.name!r} tells no format", next_step="Give --format jsonl or parquet")
    return formats[out.suffix]
