"""The display of a running demo: a live table on a terminal; elsewhere a line per phase or every few seconds."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import pyarrow.compute as pc
from rich.columns import Columns
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from stateside.archive import ArchiveTable
from stateside.billing.money import format_micros
from stateside.core.clock import age_text

LINE_S = 5.0
PERIODS_SHOWN = 2  # of a customer, the newest


@dataclass(frozen=True, slots=True)
class DisplayState:
    """The figures at one moment."""

    phase: str
    share_done: float
    events: int
    stamp: Mapping[str, Any] | None
    lag_events: int
    open_periods: Sequence[str]
    sealed_periods: Sequence[str]
    invoices: int
    notes: int
    dead_letters: int
    duplicates: int
    requests: int
    failed: int
    restarts: int
    bills: Sequence[dict[str, Any]]


class Display:
    """Shows states as they come."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._last_line_s = float("-inf")
        self._last_phase = ""

    def __enter__(self) -> Display:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._live:
            self._live.stop()

    def show(self, moment: DisplayState) -> None:
        if self._live:
            self._live.update(_picture(moment), refresh=True)
        elif moment.phase != self._last_phase or time.monotonic() - self._last_line_s >= LINE_S:
            self._last_phase, self._last_line_s = moment.phase, time.monotonic()
            self._console.print(_line(moment), highlight=False, soft_wrap=True)


def _line(moment: DisplayState) -> str:
    phase = f"{moment.phase} {moment.share_done:.0%}" if 0 < moment.share_done < 1 else moment.phase
    parts = [phase, f"{moment.events:,} events in", f"lag {moment.lag_events:,}"]
    if moment.stamp:
        parts.insert(1, f"batch {moment.stamp['batch']}, age {age_text(moment.stamp['age_ms'])}")
    parts.append(f"open {', '.join(moment.open_periods) or 'none'}, {_sealed(moment)}")
    parts.append(f"{moment.requests:,} requests, {moment.failed} failed")
    return "  ".join(parts)


def _sealed(moment: DisplayState) -> str:
    return f"{moment.invoices:,} invoices, {moment.notes:,} notes"


def _picture(moment: DisplayState) -> Group:
    facts = Table.grid(padding=(0, 2))
    stamp = moment.stamp or {}
    for name, value in (
        ("events in", f"{moment.events:,}"),
        (
            "batch",
            f"{stamp.get('batch', '–')}   at position {stamp.get('position', '–')}, lag {moment.lag_events:,} events",
        ),
        ("watermark", str(stamp.get("watermark", "–"))),
        (
            "periods",
            f"open {', '.join(moment.open_periods) or 'none'}   sealed {', '.join(moment.sealed_periods) or 'none'}",
        ),
        ("sealed", _sealed(moment)),
        ("refused", f"{moment.dead_letters:,} dead letters, {moment.duplicates:,} duplicates came in"),
        ("answers", f"{moment.requests:,}, {moment.failed} failed, newest {_age(stamp)} old"),
        ("restarts", str(moment.restarts)),
    ):
        facts.add_row(Text(name, style="dim"), value)
    title = Text(f"stateside demo: {moment.phase}", style="bold")
    bar = Columns([ProgressBar(total=1.0, completed=moment.share_done, width=60)])
    return Group(title, bar, facts, _bills(moment.bills))


def _age(stamp: Mapping[str, Any]) -> str:
    return age_text(stamp["age_ms"]) if stamp else "–"


def _bills(bills: Sequence[dict[str, Any]]) -> Table:
    table = Table(title="bills", title_justify="left", box=None, header_style="dim", padding=(0, 2))
    for name in ("customer", "period", "state", "events"):
        table.add_column(name)
    table.add_column("so far", justify="right")
    for bill in bills:
        for period in bill["periods"][-PERIODS_SHOWN:]:
            facts = (bill["customer"], period["period"], period["state"], str(period["events"]))
            table.add_row(*facts, format_micros(period["charged_micros"], period["currency"]))
    return table


@dataclass(slots=True)
class DocumentCounts:
    """The number of documents and their periods; the table is read only when its count has changed."""

    table: ArchiveTable
    invoices: int = 0
    notes: int = 0
    periods: tuple[str, ...] = ()

    def look(self) -> DocumentCounts:
        """Update the counts."""
        if self.table.count() != self.invoices + self.notes:
            documents = self.table.read()
            self.invoices = pc.sum(pc.equal(documents["kind"], "invoice")).as_py() or 0
            self.notes = documents.num_rows - self.invoices
            self.periods = tuple(sorted(documents["period"].unique().to_pylist()))
        return self
