"""An application in the foreground: runs until a signal comes, and tells people or machines how it goes.

on a terminal        a table that lives: a row a view
into a file or pipe  a line whenever a view changes its state, for slow batches, late rows and dead letters
--json               a JSON line on stdout for each batch, and for each change of state
"""

from __future__ import annotations

import json
import logging
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TextIO

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from stateside.checkpoint.heartbeat import Heartbeat
from stateside.checkpoint.provider import counted_rows
from stateside.errors import ViewInvalid
from stateside.layout import Layout
from stateside.leadership import Leadership
from stateside.pipeline import declaration
from stateside.pipeline.app import App
from stateside.pipeline.runner import Runner, check_app
from stateside.pipeline.session import has_ended
from stateside.pipeline.settings import FILE_NAME, RunSettings, read_file
from stateside.pipeline.standing_by import lead, needs_lease, standing_by, warmed_up
from stateside.processes import signals

_COLOURS = {
    **{"running": "green", "idle": "cyan", "holding": "yellow", "stopped": "white", "failed": "red"},
    "removed": "white",
}
_REFRESHES_PER_S = 4
SLOW_MS = 10_000  # a batch that takes so long is told of
PAUSE_US = 10_000_000  # of late rows and dead letters a view is told of at most so often, all since the last time

log = logging.getLogger(__name__)


class Teller(Protocol):
    """Is told of every heartbeat, and who leads."""

    def note(self, what: str) -> None:
        """Called before the runner begins, and after its end, with a sentence on who leads."""

    def tell(self, view: str, heartbeat: Heartbeat, finished: list[dict[str, Any]]) -> None:
        """Called by the runner's heart for each view, with the batches that it finished since the last time."""


def run_application(app: App, folder: Path, settings: RunSettings, teller: Teller) -> None:
    """Run it until SIGINT or SIGTERM; PipelineFailed if a view fails for good.

    Where there is a lease (`standing_by`), it leads first, and also ends when it has handed over.
    """
    layout = Layout(folder)
    check_app(app)  # now, and not when a leader has ended
    declaration.check_before_spark(app, layout, settings)  # Spark takes seconds to start
    with signals() as came, _no_empty_folder(folder):
        if needs_lease(layout, settings):
            while not came and not _has_led(app, layout, settings, teller, lambda: bool(came)):
                log.warning("Spark has ended while this run stood by: it is started again")
            return
        with Runner(app, layout, settings, on_beat=teller.tell) as runner:
            runner.wait(lambda: bool(came))


@contextmanager
def _no_empty_folder(folder: Path) -> Iterator[None]:
    """A new folder in which no view ever began is removed again: its application was refused."""
    existed = folder.exists()
    try:
        yield
    except ViewInvalid:
        if not existed and not any((folder / name).exists() for name in ("journal", "views")):
            shutil.rmtree(folder, ignore_errors=True)
        raise


def _has_led(app: App, layout: Layout, settings: RunSettings, teller: Teller, told_to_stop: Callable[[], bool]) -> bool:
    """Lead, when the time comes, to the end; False if the session that was kept ready for that has ended before."""
    with standing_by(layout, settings, told_to_stop) as candidate, ExitStack() as stack:
        if candidate is None:
            return True
        with candidate.getting_ready():
            session = stack.enter_context(warmed_up(app, layout, settings))
        leadership = lead(candidate, layout, settings, lambda: told_to_stop() or has_ended(session), teller.note)
        if leadership is None:
            return told_to_stop()
        runner = Runner(app, layout, settings, session=session, on_beat=teller.tell, leadership=leadership)
        _run_leader(runner, leadership, told_to_stop, teller)
        return True


def _run_leader(runner: Runner, leadership: Leadership, told_to_stop: Callable[[], bool], teller: Teller) -> None:
    try:
        with runner:
            runner.wait(lambda: told_to_stop() or leadership.asked is not None)
    finally:
        leadership.release()
    if leadership.asked is not None:
        teller.note(f"{leadership.claim.identity} has handed over to {leadership.asked.identity}")


def gather_settings(app: App, file: Path | None, flags: Mapping[str, Any]) -> RunSettings:
    """The settings from code, then from the file (`stateside.toml` here, if there is one), then from flags."""
    default = Path(FILE_NAME)
    path = file or (default if default.exists() else None)
    in_file = [] if path is None else [(f"in {path}", read_file(path))]
    return RunSettings.of(("in the application", app.settings), *in_file, ("as a flag", flags))


@dataclass(slots=True)
class LinesForPeople:
    """A line whenever a view changes its state or its reason, for slow batches, late rows and dead letters."""

    output: TextIO
    told: dict[str, tuple[str, str | None]] = field(default_factory=dict)
    lost: dict[str, _Lost] = field(default_factory=dict)

    def note(self, what: str) -> None:
        """A line."""
        print(what, file=self.output, flush=True)

    def tell(self, view: str, heartbeat: Heartbeat, finished: list[dict[str, Any]]) -> None:
        """Tell a change; running and idle take turns all the time, and count as one."""
        state = "running" if heartbeat.state == "idle" else heartbeat.state
        if self.told.get(view) != (state, heartbeat.why):
            self.told[view] = (state, heartbeat.why)
            self.note(f"{view}: {state}{f': {heartbeat.why}' if heartbeat.why else ''}")
        lost = self.lost.setdefault(view, _Lost())
        for batch in map(summary, finished):
            if batch["duration_ms"] >= SLOW_MS:
                took_s = batch["duration_ms"] / 1_000
                self.note(f"{view}: batch {batch['batch']} was slow: {took_s:,.1f} s for {batch['events']:,} events")
            lost.add(batch)
        for line in lost.lines(heartbeat.time_us, at_once=heartbeat.state in ("stopped", "failed")):
            self.note(f"{view}: {line}")


@dataclass(slots=True)
class _Lost:
    """What of a view's events did not get into it since that was last told."""

    late: int = 0
    dead_letters: int = 0
    told_us: int | None = None

    def add(self, batch: Mapping[str, Any]) -> None:
        self.late += batch["late"]
        self.dead_letters += batch["dead_letters"]

    def lines(self, now_us: int, *, at_once: bool) -> Iterator[str]:
        due = self.told_us is None or now_us - self.told_us >= PAUSE_US or at_once
        if not due or not self.late + self.dead_letters:
            return
        if self.late:
            yield f"{_counted(self.late, 'row')} came too late, after the watermark: the view does not have them"
        if self.dead_letters:
            letters = _counted(self.dead_letters, "dead letter")
            yield f"{letters}: `stateside dead-letters --dir …` lists them with the reasons"
        self.late, self.dead_letters, self.told_us = 0, 0, now_us


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


@dataclass(slots=True)
class LinesForMachines:
    """A JSON line for each batch, and for each change of state.

    A view that has told `idle` is silent until its next batch: Spark asks the source all the time, and for a moment
    looks as if it ran. The line of a batch tells that the view runs again.
    """

    output: TextIO
    told: dict[str, tuple[str, str | None]] = field(default_factory=dict)

    def note(self, what: str) -> None:
        """A line with nothing but the note."""
        self._print({"note": what})

    def tell(self, view: str, heartbeat: Heartbeat, finished: list[dict[str, Any]]) -> None:
        """Tell the batches, then the state if it is another one than before."""
        for progress in finished:
            self._print({"view": view, **summary(progress)})
        before, state = self.told.get(view), (heartbeat.state, heartbeat.why)
        if finished and before == _IDLE:
            before = self.told[view] = _RUNNING
        if state != before and not (state == _RUNNING and before == _IDLE):
            self.told[view] = state
            self._print({"view": view, "state": heartbeat.state, "why": heartbeat.why, "time_us": heartbeat.time_us})

    def _print(self, document: dict[str, Any]) -> None:
        print(json.dumps(document), file=self.output, flush=True)


_IDLE: tuple[str, str | None] = ("idle", None)
_RUNNING: tuple[str, str | None] = ("running", None)


class LiveTable:
    """A table that lives, on a terminal."""

    def __init__(self, console: Console, title: str) -> None:
        self._console, self._title = console, title
        self._rows: dict[str, tuple[Heartbeat, dict[str, Any]]] = {}
        self._lock = threading.Lock()

    @contextmanager
    def shown(self) -> Iterator[LiveTable]:
        """Shown until the `with` ends."""
        with Live(get_renderable=self._table, console=self._console, refresh_per_second=_REFRESHES_PER_S):
            yield self

    def note(self, what: str) -> None:
        """Above the table."""
        self._console.print(what)

    def tell(self, view: str, heartbeat: Heartbeat, finished: list[dict[str, Any]]) -> None:
        """Take it into the next picture."""
        with self._lock:
            batch = self._rows.get(view, (None, {}))[1]
            for progress in finished:  # of the last batch, but what got lost since the start
                lost = {name: batch.get(name, 0) for name in ("late", "dead_letters")}
                newest = summary(progress)
                batch = {**newest, **{name: newest[name] + before for name, before in lost.items()}}
            self._rows[view] = (heartbeat, batch)

    def _table(self) -> Table:
        table = Table(title=Text(self._title, style="table.title"), title_justify="left", expand=False)
        for name, justify in _COLUMNS:
            table.add_column(name, justify=justify)  # type: ignore[arg-type]
        with self._lock:
            for view, (heartbeat, batch) in self._rows.items():
                table.add_row(*_cells(view, heartbeat, batch))
        return table


_COLUMNS = [
    *(("view", "left"), ("state", "left"), ("batch", "right"), ("events", "right"), ("events/s", "right")),
    *(("ms", "right"), ("late", "right"), ("dead letters", "right"), ("watermark", "left"), ("why", "left")),
]


def _cells(view: str, heartbeat: Heartbeat, batch: dict[str, Any]) -> list[str | Text]:
    number = "" if heartbeat.batch is None else str(heartbeat.batch)
    names = ("events", "events_per_s", "duration_ms", "late", "dead_letters")
    figures = [f"{batch[name]:,.0f}" if name in batch else "" for name in names]
    state = Text(heartbeat.state, style=_COLOURS[heartbeat.state])
    return [view, state, number, *figures, batch.get("watermark") or "", Text(heartbeat.why or "")]


def _all_rows(operators: Sequence[Mapping[str, Any]]) -> int | None:
    """How many rows all operators keep; None if those of one are not counted."""
    rows = [counted_rows(operator) for operator in operators]
    return None if None in rows else sum(filter(None, rows))


def summary(progress: dict[str, Any]) -> dict[str, Any]:
    """What people want to know of a batch, from Spark's own report of it."""
    operators = progress.get("stateOperators", [])
    return {
        "batch": progress["batchId"],
        "began": progress["timestamp"],
        "events": progress["numInputRows"],
        "events_per_s": progress.get("processedRowsPerSecond") or 0.0,
        "duration_ms": progress["durationMs"].get("triggerExecution", 0),
        "watermark": progress.get("eventTime", {}).get("watermark"),
        "state_rows": _all_rows(operators),
        "late": sum(operator.get("numRowsDroppedByWatermark", 0) for operator in operators),
        "dead_letters": progress.get("deadLetters", 0),
    }
