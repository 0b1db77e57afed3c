"""`stateside journal`: look into a journal, prove that it is right, take events in and out."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stateside.cli.applications import append
from stateside.cli.bars import bar
from stateside.cli.group import FILE, FOLDER
from stateside.cli.kafka import (
    address_of,
    check_place,
    journal_place,
    kafka_journal,
    kafka_option,
    kafka_queries,
    kafka_statistics,
    kafka_views,
)
from stateside.cli.selections import EPOCH, format_of, from_begin, selected, selection_flags
from stateside.cli.tables import readable, show_json
from stateside.errors import EntityUnknown

if TYPE_CHECKING:
    from stateside.journal.queries import Found, Queries, Views
    from stateside.journal.upkeep import Place


@click.group()
def journal() -> None:
    """Look after an application's journal."""


journal_folder = click.option("--dir", "folder", required=True, type=FOLDER, help="The application's folder.")
as_json_flag = click.option("--json", "as_json", is_flag=True, help="For machines.")
_limit = click.option("--limit", type=click.IntRange(1), help="Stop after so many.")


@journal.command()
@journal_place
@as_json_flag
def stat(folder: Path | None, kafka: str | None, as_json: bool) -> None:
    """Tell how large the journal is, where it ends, and how far what is made of it has come."""
    check_place(folder, kafka)
    kafka = address_of(folder, kafka)
    found = _statistics(folder) if folder and kafka is None else kafka_statistics(kafka or "")
    if as_json:
        show_json(found)
        return
    for name, value in found.items():
        if isinstance(value, tuple):
            for row in value:
                click.echo(f"  {', '.join(f'{key} {readable(key, each)}' for key, each in row.items())}")
        else:
            click.echo(f"{name.replace('_', ' '):18} {readable(name, value)}")


@journal.command()
@journal_place
@selection_flags
@_limit
@click.option("--follow", is_flag=True, help="Then go on with events as they come, until Ctrl-C.")
@as_json_flag
def read(
    folder: Path | None, kafka: str | None, limit: int | None, follow: bool, as_json: bool, **conditions: Any
) -> None:
    """Print events, in the journal's order. With --json a line each, as `export` has them, and with the position.

    The position is the one to read on --from behind the event.
    """
    with _queries(folder, kafka) as queries:
        selection = from_begin(queries.stream, selected(**conditions), conditions["start"])
        if selection.entity is not None and not follow:
            _check_known(queries, selection.entity, str(folder or kafka))
        found = selection.live(queries) if follow else selection.found(queries)
        for one in islice(found, limit):
            _show_event(one, as_json)


@journal.command()
@journal_place
@click.option("--prefix", default="", help="Only ids that begin so.")
@click.option("--after", help="Only ids behind this one: the last one of the page before.")
@_limit
@as_json_flag
def ids(
    folder: Path | None, kafka: str | None, prefix: str, after: str | None, limit: int | None, as_json: bool
) -> None:
    """Print the ids of all entities, in the order of their bytes, one a line."""
    with _queries(folder, kafka) as queries:
        for entity in islice(queries.entities(prefix, after).current(), limit):
            show_json({"entity": entity}, lines=True) if as_json else click.echo(entity)


@journal.command()
@journal_place
@click.option("--prefix", default="", help="Only tags that begin so.")
@as_json_flag
def tags(folder: Path | None, kafka: str | None, prefix: str, as_json: bool) -> None:
    """Print all tags by name, and how many events have each."""
    from stateside.journal.upkeep import tags as tags_of

    with _views(folder, kafka) as views:
        found = tags_of(views, prefix)
    for tag, events in found.items():
        show_json({"tag": tag, "events": events}, lines=True) if as_json else click.echo(f"{events:>12,}  {tag}")


@journal.command()
@journal_place
@as_json_flag
def verify(folder: Path | None, kafka: str | None, as_json: bool) -> None:
    """Read the whole journal and all that is made of it, and say what is wrong. Changes nothing.

    Checked are every frame's checksum, that no event is missing, that each entity's sequences go 1, 2, 3, …, and the
    indexes of ids and sequences and the views against the log. On Kafka, where checksums are the broker's affair: that
    every message is an event, and the sequences. The exit code is 1 if anything is wrong.
    """
    from stateside.journal.upkeep import verify as verify_folder
    from stateside.journal.upkeep import verify_stream

    check_place(folder, kafka)
    kafka = address_of(folder, kafka)
    with ExitStack() as stack:
        watch = stack.enter_context(bar("reading the journal"))
        if folder is not None and kafka is None:
            verdict = verify_folder(place_of(folder), watch)
        else:
            verdict = verify_stream(stack.enter_context(kafka_journal(kafka or "")), watch)
    show_json(verdict.as_dict()) if as_json else click.echo("\n".join(verdict.lines()))
    sys.exit(0 if verdict.ok else 1)


@journal.command()
@journal_place
@selection_flags
@click.option("--out", required=True, type=FILE, help="The file to write, or - for standard output (JSON lines).")
@click.option("--format", "format_", type=click.Choice(["jsonl", "parquet"]), help="By the file's name if not given.")
@as_json_flag
def export(folder: Path | None, kafka: str | None, out: Path, format_: Any, as_json: bool, **conditions: Any) -> None:
    """Write events to a file: JSON lines, which `stateside append` takes, or Parquet.

    The file is there when all of it is. Prints how many events it has, and the position at which the next export goes
    on.
    """
    from stateside.journal.upkeep import export as run_export
    from stateside.journal.upkeep import export_to

    chosen = format_ or format_of(out)
    with _queries(folder, kafka) as queries:
        selection = from_begin(queries.stream, selected(**conditions), conditions["start"])
        if str(out) == "-":
            done = export_to(queries.stream, selection, sys.stdout.buffer, chosen)
        else:
            with bar("exporting") as watch:
                done = run_export(queries.stream, selection, out, chosen, watch)
    told = {"events": done.events, "position": str(done.position)}
    to_stderr = str(out) == "-"
    if as_json:
        click.echo(json_line(told), err=to_stderr)
    else:
        click.echo(f"{done.events:,} events; the next export goes on --from {done.position}", err=to_stderr)


@journal.command()
@journal_folder
@kafka_option
@click.option("--rebuild", is_flag=True, help="Make them anew from the journal's beginning.")
@as_json_flag
def views(folder: Path, kafka: str | None, rebuild: bool, as_json: bool) -> None:
    """Bring the views of queries to the journal's end: where events of entities, tags, types and times stand.

    Queries are right without them, and much faster with them. Ctrl-C loses nothing: the next call goes on.
    """
    with _views(folder, kafka) as followed, bar("following the journal") as watch:
        follow = followed.rebuild if rebuild else followed.follow
        position = follow(lambda progress: watch(progress.events, progress.total))
    click.echo(json_line({"position": str(position)}) if as_json else str(position))


journal.add_command(append)


def place_of(folder: Path) -> Place:
    """The journal of the application in this folder."""
    from stateside.journal.upkeep import Place
    from stateside.layout import Layout

    return Place.of(Layout(folder).journal)


def _statistics(folder: Path) -> dict[str, Any]:
    from stateside.journal.upkeep import node_statistics, statistics

    place = place_of(folder)
    return node_statistics(place).as_dict() if place.has_nodes else statistics(place).as_dict()


@contextmanager
def _queries(folder: Path | None, kafka: str | None) -> Iterator[Queries]:
    """What can be asked of the journal that is named."""
    check_place(folder, kafka)
    kafka = address_of(folder, kafka)
    found = place_of(folder).queries() if folder and kafka is None else kafka_queries(folder, kafka or "")
    with found as queries:
        yield queries


@contextmanager
def _views(folder: Path | None, kafka: str | None) -> Iterator[Views]:
    from stateside.journal.queries import Views

    check_place(folder, kafka)
    kafka = address_of(folder, kafka)
    if folder is None or kafka is not None:
        with kafka_views(folder, kafka or "") as views:
            yield views
        return
    place = place_of(folder)
    with Views(place.stream(), place.views) as views:
        yield views


def _check_known(queries: Queries, entity: str, where: str) -> None:
    """EntityUnknown for a name that no event has: else a slip of the pen would look like an entity without events."""
    if queries.last_sequence(entity) == 0:
        raise EntityUnknown(
            f"This journal has no event of an entity {entity!r:.220}",
            where=where,
            next_step="`stateside journal ids --prefix …` lists those that it has",
        )


def _show_event(found: Found, as_json: bool) -> None:
    from stateside.journal.lines import fields_of

    fields = fields_of(found.event)
    if as_json:
        click.echo(json_line({"position": str(found.position)} | fields))
        return
    event = found.event
    time = (EPOCH + timedelta(microseconds=event.time_us)).isoformat().replace("+00:00", "Z")
    number = "-" if event.sequence is None else event.sequence
    shown = fields.get("data") or json_line(fields["payload"])
    marks = f"  [{', '.join(event.tags)}]" if event.tags else ""
    click.echo(f"{found.position!s:>10}  {time}  {event.entity} {number}  {event.type}  {shown}{marks}")


def json_line(document: Any) -> str:
    """A document as JSON in one line."""
    return json.dumps(document, ensure_ascii=False)
