"""`stateside journal merge`: one stream of all nodes' logs, for as long as it lasts."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stateside.cli.bars import bar
from stateside.cli.journal import as_json_flag, journal_folder, json_line

if TYPE_CHECKING:
    from stateside.journal.merge import Merger

_TELL_S = 1.0


@click.command()
@journal_folder
@click.option("--partitions", type=click.IntRange(1), help="Of a new stream, for its whole life; 1 if not given.")
@click.option("--once", is_flag=True, help="Merge what is there, and end.")
@as_json_flag
def merge(folder: Path, partitions: int | None, once: bool, as_json: bool) -> None:
    """Merge the logs of all nodes of a journal into one stream, in which each entity's events stand in order.

    It goes on until Ctrl-C or SIGTERM, which harm nothing, and prints a line a second while something is merged, with
    how many entities wait for an event that is missing (`gaps`; `stateside journal stat` shows them). With --once it
    ends, with code 1 if a log cannot be read.
    """
    from stateside.journal.merge import Merger
    from stateside.journal.merge.partition import MERGED, Born
    from stateside.layout import Layout
    from stateside.processes import signals

    journal = Layout(folder).journal
    _check(journal)
    born = Born.read(journal / MERGED)
    with signals() as came, Merger(journal, partitions or (1 if born is None else born.partitions)) as merger:
        with bar("merging") as watch:
            total = _durable(journal)
            _first(merger, once, lambda read: watch(read, max(total, read)), as_json)
        if not once:
            _go_on(merger, came, as_json)


def _first(merger: Merger, once: bool, watch: Any, as_json: bool) -> None:
    """What was there when it began. Only of one pass an error is the end."""
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
    if as_json:
        click.echo(json_line(told))
    else:
        waiting = f"; {told['gaps']:,} entities wait for a missing event" if told["gaps"] else ""
        click.echo(f"{moved:,} events merged, up to {told['position']}{waiting}")


def _durable(journal: Path) -> int:
    """How many events the logs have."""
    from stateside.journal.nodes.log import node_logs

    return sum(log.durable_end().offset for log in node_logs(journal).values())


def _check(journal: Path) -> None:
    from stateside.errors import RequestInvalid
    from stateside.journal.segment import segment_offsets

    if segment_offsets(journal):
        raise RequestInvalid(
            "This journal has one log for all writers, which is the stream already",
            where=str(journal),
            next_step="There is nothing to merge: nodes write a folder of their own (docs/nodes.md)",
        )
