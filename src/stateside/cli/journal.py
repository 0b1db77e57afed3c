"""`stateside journal`: inspection, verification, export, merging and retention of a journal.

The module also has the flags that select events.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from stateside.cli.applications import append
from stateside.cli.group import FILE, FOLDER
from stateside.cli.kafka import create, journal_at, journal_place, kafka_option, kafka_statistics, query_views
from stateside.cli.tables import bar, readable, show_json, show_result
from stateside.core.errors import EntityUnknown, PositionInvalid, RequestInvalid

if TYPE_CHECKING:
    from stateside.core.positions import Position
    from stateside.journal.admin import Dropped, JournalFiles, Selection
    from stateside.journal.admin.export import Format
    from stateside.journal.backends.nodes import Merger
    from stateside.journal.contract import Journal
    from stateside.journal.queries import FoundEvent, Queries

_TELL_S: Final = 1.0
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def _moment(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """A time, as microseconds since 1970."""
    try:
        return None if value is None else (datetime.fromisoformat(value) - EPOCH) // timedelta(microseconds=1)
    except (ValueError, TypeError, OverflowError) as error:
        raise click.BadParameter(f"{value!r} is no time with a time zone, like 2026-01-31T12:00:00Z") from error


def parsed_position(ctx: click.Context, param: click.Parameter, value: str | None) -> Position | None:
    """A position, like 0:1234."""
    from stateside.core.positions import Position

    try:
        return None if value is None else Position.parse(value)
    except PositionInvalid as error:
        raise click.BadParameter(error.sentence()) from error


def selection_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Flags that select events; all of them must hold."""
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
    from stateside.core.positions import Position
    from stateside.journal.admin import Selection

    return Selection(start or Position.start(), type=type_, **others)


def from_begin(stream: Journal, selection: Selection, asked: Position | None) -> Selection:
    """Without an explicit start, begin at the first event still present, and report dropped events."""

    begin = stream.begin()
    if asked is not None or not begin.events():
        return selection
    click.echo(f"The events before {begin} are gone; it begins there.", err=True)
    return replace(selection, start=begin)


def format_of(out: Path) -> Format:
    """The format by the file's name."""
    formats: dict[str, Format] = {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
    if str(out) == "-":
        return "jsonl"
    if out.suffix not in formats:
        raise RequestInvalid(f"The name {out.name!r} tells no format", next_step="Give --format jsonl or parquet")
    return formats[out.suffix]


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
    """Report the journal's size and end, and the progress of its indexes and merged stream."""
    with journal_at(folder, kafka) as opened:
        found = _statistics(folder, opened)
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

    The position is the value of --from to continue after the event.
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
@click.option("--after", help="Only ids after this one: the last one of the page before.")
@_limit
@as_json_flag
def ids(
    folder: Path | None, kafka: str | None, prefix: str, after: str | None, limit: int | None, as_json: bool
) -> None:
    """Print the ids of all entities, in byte order, one a line."""
    with _queries(folder, kafka) as queries:
        for entity in islice(queries.entities(prefix, after).current(), limit):
            show_result({"entity": entity}, entity, as_json)


@journal.command()
@journal_place
@click.option("--prefix", default="", help="Only tags that begin so.")
@as_json_flag
def tags(folder: Path | None, kafka: str | None, prefix: str, as_json: bool) -> None:
    """Print all tags by name, with the number of events of each."""
    from stateside.journal.admin import tags as tags_of

    with query_views(folder, kafka) as views:
        found = tags_of(views, prefix)
    for tag, events in found.items():
        show_result({"tag": tag, "events": events}, f"{events:>12,}  {tag}", as_json)


@journal.command()
@journal_place
@as_json_flag
def verify(folder: Path | None, kafka: str | None, as_json: bool) -> None:
    """Read the whole journal and all its indexes, and report errors. Changes nothing.

    Checks every frame's checksum, that no event is missing, that each entity's sequences go 1, 2, 3, …, and the indexes
    of ids and sequences and the views against the log. On Kafka, where checksums are the broker's affair: that every
    message is an event, and the sequences. The exit code is 1 if anything is wrong.
    """
    from stateside.journal.admin import verify as verify_folder
    from stateside.journal.admin import verify_stream
    from stateside.journal.backends.kafka import KafkaJournal

    with journal_at(folder, kafka) as opened, bar("reading the journal") as watch:
        on_kafka = isinstance(opened, KafkaJournal)
        verdict = verify_stream(opened, watch) if on_kafka else verify_folder(place_of(folder), watch)
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

    The file appears once complete. Prints the number of events, and the position at which the next export continues.
    """
    from stateside.journal.admin import export as run_export
    from stateside.journal.admin import export_to

    chosen = format_ or format_of(out)
    with _queries(folder, kafka) as queries:
        selection = from_begin(queries.stream, selected(**conditions), conditions["start"])
        if str(out) == "-":
            done = export_to(queries.stream, selection, sys.stdout.buffer, chosen)
        else:
            with bar("exporting") as watch:
                done = run_export(queries.stream, selection, out, chosen, watch)
    told = {"events": done.events, "position": str(done.position)}
    text = f"{done.events:,} events; the next export goes on --from {done.position}"
    show_result(told, text, as_json, err=str(out) == "-")


@journal.command()
@journal_folder
@kafka_option
@click.option("--rebuild", is_flag=True, help="Make them again from the journal's beginning.")
@as_json_flag
def views(folder: Path, kafka: str | None, rebuild: bool, as_json: bool) -> None:
    """Bring the views of queries to the journal's end: indexes of events by entity, tag, type and time.

    Queries are right without views, and much faster with them. Ctrl-C loses nothing: the next call continues.
    """
    with query_views(folder, kafka) as followed, bar("following the journal") as watch:
        follow = followed.rebuild if rebuild else followed.follow
        position = follow(watch)
    show_result({"position": str(position)}, str(position), as_json)


journal.add_command(append)
journal.add_command(create)


def place_of(folder: Path | None) -> JournalFiles:
    from stateside.core.layout import Layout
    from stateside.journal.admin import JournalFiles

    assert folder is not None, "the journal is on files"
    return JournalFiles.of(Layout(folder).journal)


def _statistics(folder: Path | None, opened: Journal) -> dict[str, Any]:
    from stateside.journal.admin import node_statistics, statistics
    from stateside.journal.backends.kafka import KafkaJournal

    if isinstance(opened, KafkaJournal):
        return kafka_statistics(opened)
    place = place_of(folder)
    return node_statistics(place).as_dict() if place.has_nodes else statistics(place).as_dict()


@contextmanager
def _queries(folder: Path | None, kafka: str | None) -> Iterator[Queries]:
    """Queries over the named journal."""
    from stateside.journal.queries import Queries

    with query_views(folder, kafka) as views:
        yield Queries(views.stream, views)


def _check_known(queries: Queries, entity: str, where: str) -> None:
    """EntityUnknown for an unknown name: otherwise a typo would look like an entity without events."""
    if queries.last_sequence(entity) == 0:
        raise EntityUnknown(
            f"This journal has no event of an entity {entity!r:.220}",
            where=where,
            next_step="`stateside journal ids --prefix …` lists those that it has",
        )


def _show_event(found: FoundEvent, as_json: bool) -> None:
    from stateside.journal.json_lines import fields_of

    fields = fields_of(found.event)
    event = found.event
    time = (EPOCH + timedelta(microseconds=event.time_us)).isoformat().replace("+00:00", "Z")
    number = "-" if event.sequence is None else event.sequence
    shown = fields.get("data") or json.dumps(fields["payload"], ensure_ascii=False)
    marks = f"  [{', '.join(event.tags)}]" if event.tags else ""
    text = f"{found.position!s:>10}  {time}  {event.entity} {number}  {event.type}  {shown}{marks}"
    show_result({"position": str(found.position)} | fields, text, as_json)


@journal.command()
@journal_folder
@click.option("--partitions", type=click.IntRange(1), help="Of a new stream, for its whole life; 1 if not given.")
@click.option("--once", is_flag=True, help="Merge what is there, and end.")
@as_json_flag
def merge(folder: Path, partitions: int | None, once: bool, as_json: bool) -> None:
    """Merge the logs of all nodes of a journal into one stream, in which each entity's events stand in order.

    Runs until Ctrl-C or SIGTERM, which harm nothing, and prints a line a second while events are merged, with the
    number of entities that wait for a missing event (`gaps`; `stateside journal stat` shows them). With --once the
    command ends after one pass, with code 1 if a log cannot be read.
    """
    from stateside.core.layout import Layout
    from stateside.core.processes import signals
    from stateside.journal.backends.nodes import Merger
    from stateside.journal.backends.nodes.partition import MERGED, StreamIdentity

    journal = Layout(folder).journal
    _check(journal)
    born = StreamIdentity.read(journal / MERGED)
    with signals() as came, Merger(journal, partitions or (1 if born is None else born.partitions)) as merger:
        with bar("merging") as watch:
            total = _durable(journal)
            _first(merger, once, lambda read: watch(read, max(total, read)), as_json)
        if not once:
            _go_on(merger, came, as_json)


def _first(merger: Merger, once: bool, watch: Any, as_json: bool) -> None:
    """Merge the events present at the start. An error is final only with --once."""
    moved = merger.merge(watch) if once else next(iter(merger.passes(watch)))
    _tell(merger, moved, as_json)


def _go_on(merger: Merger, came: list[int], as_json: bool) -> None:
    moved, told_s, gaps = 0, time.monotonic(), len(merger.gaps())
    for count in merger.passes():
        moved += count
        if came or (time.monotonic() - told_s >= _TELL_S and (moved or len(merger.gaps()) != gaps)):
            if moved or not came:
                _tell(merger, moved, as_json)
            moved, told_s, gaps = 0, time.monotonic(), len(merger.gaps())
        if came:
            return


def _tell(merger: Merger, moved: int, as_json: bool) -> None:
    told = {"merged": moved, "position": str(merger.end), "gaps": len(merger.gaps())}
    waiting = f"; {told['gaps']:,} entities wait for a missing event" if told["gaps"] else ""
    show_result(told, f"{moved:,} events merged, up to {told['position']}{waiting}", as_json)


def _durable(journal: Path) -> int:
    """The number of durable events in all logs."""
    from stateside.journal.backends.nodes.log import node_logs

    return sum(log.durable_end().offset for log in node_logs(journal).values())


def _check(journal: Path) -> None:
    from stateside.journal.backends.files.segment import segment_offsets

    if segment_offsets(journal):
        raise RequestInvalid(
            "This journal has one log for all writers, which is the stream already",
            where=str(journal),
            next_step="There is nothing to merge: nodes write a folder of their own (docs/nodes.md)",
        )


@journal.command()
@journal_folder
@as_json_flag
def readers(folder: Path, as_json: bool) -> None:
    """Print the journal's readers and their positions: events that a reader still needs are never dropped."""
    from stateside.core.layout import Layout
    from stateside.ops.journal_readers import known_readers

    for reader in known_readers(Layout(folder)):
        told = {"reader": reader.name, "position": str(reader.position)}
        show_result(told, f"{told['position']:>12}  {reader.name}", as_json)


def _retention_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Flags that select the segments to drop."""
    flags = (
        click.option(
            "--before", metavar="POSITION", callback=parsed_position, help="Segments that lie wholly before it."
        ),
        click.option("--keep-days", type=click.FloatRange(0), help="Segments all of whose events are older."),
    )
    for flag in reversed(flags):
        command = flag(command)
    return command


@journal.command()
@journal_folder
@_retention_flags
@click.option("--to", "archive_folder", required=True, type=FOLDER, help="Where the Parquet files go.")
@as_json_flag
def archive(
    folder: Path, before: Position | None, keep_days: float | None, archive_folder: Path, as_json: bool
) -> None:
    """Write old segments as Parquet files, one each, and then drop them from the journal.

    Only segments that every known reader has read can go (`stateside journal readers`), and never the newest segment.
    An interrupted call continues where it stopped.
    """
    _drop(folder, before, keep_days, archive_folder, as_json)


@journal.command()
@journal_folder
@_retention_flags
@click.confirmation_option(prompt="The events are gone then, for good. Drop them?")
@as_json_flag
def drop(folder: Path, before: Position | None, keep_days: float | None, as_json: bool) -> None:
    """Drop old segments from the journal, without an archive.

    Only segments that every known reader has read can go (`stateside journal readers`), and never the newest segment.
    """
    _drop(folder, before, keep_days, None, as_json)


@journal.command()
@journal_folder
@click.option("--keep-days", type=click.FloatRange(0), default=0.0, help="Keep what is younger all the same.")
@as_json_flag
def trim(folder: Path, keep_days: float, as_json: bool) -> None:
    """Drop from the nodes' logs the events that the merged stream has: each event stays, once.

    The newest segment of a log never goes. See docs/nodes.md.
    """
    from stateside.core.layout import Layout
    from stateside.journal.admin import trim as run_trim

    told = _told(run_trim(Layout(folder).journal, _days_ago_us(keep_days) if keep_days else None))
    text = f"{told['segments']:,} segments with {told['events']:,} events dropped from the nodes' logs"
    show_result(told, text, as_json)


def _drop(
    folder: Path, before: Position | None, keep_days: float | None, archive_folder: Path | None, as_json: bool
) -> None:
    from stateside.core.layout import Layout
    from stateside.journal.admin import drop_all, position_before
    from stateside.ops.journal_readers import known_readers

    if (before is None) == (keep_days is None):
        raise RequestInvalid("It is not said what is to go", next_step="Give one of --before and --keep-days")
    place = place_of(folder)
    position = before or position_before(place, _days_ago_us(keep_days or 0))
    with bar("archiving segments") as watch:
        done = drop_all(place, position, known_readers(Layout(folder)), archive_folder, watch)
    told = _told(done) | {"archived": [str(path) for dropped in done.values() for path in dropped.archived]}
    counts = f"{told['segments']:,} segments with {told['events']:,} events dropped"
    show_result(told, f"{counts}; it begins at {told['begin']} now", as_json)


def _told(done: Mapping[str, Dropped]) -> dict[str, Any]:
    """The totals over all partitions, and the new beginning."""
    begin = ",".join(f"{name}:{dropped.begin}" for name, dropped in done.items())
    segments, events = (sum(getattr(dropped, name) for dropped in done.values()) for name in ("segments", "events"))
    return {"segments": segments, "events": events, "begin": begin}


def _days_ago_us(days: float) -> int:
    from stateside.core.clock import SystemClock

    return SystemClock().now_us() - int(days * 86_400_000_000)
