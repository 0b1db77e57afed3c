"""An application in the foreground: runs until a signal comes, and tells people or machines how it goes.

on a terminal        a table that lives: a row a view
into a file or pipe  a line whenever a view changes its state, for slow batches, late rows and dead letters
--json               a JSON line on stdout for each batch, and for each change of state

Standing by: a run that waits for the leadership of its application's folder before it starts.

    stateside run shop:app --dir D --standby        leads, or waits until the leader is gone
    stateside run shop:app --dir D --take-over      asks the leader to hand over between two batches, then leads
    stateside run shop:app --dir D                  where anybody led before: as --standby, but not for ever

Spark is started, and has rehearsed (`rehearsal`), before anything is waited or asked for.
Without these, in a folder where nobody ever led, there is no lease, and a lock keeps a second driver out (`lease`).

The rehearsal: what a standby does before it waits, so that a takeover is short and does not fail for its code.

1. Every view is planned as it would be run. One that cannot be run, or does not fit the state that is there, is told
   now, while the old leader still works.
2. A view of our own is run over a few events in a scratch folder: Spark then has loaded what a query needs (its
   planner, RocksDB, Python workers), which takes longer than everything else in a first batch.

Nothing is read from the application's sources, nothing goes to its sinks, and nothing in its folder is changed but the
scratch files.
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
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Protocol, TextIO

import pyarrow as pa
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from stateside.core.errors import PipelineRunning, ViewInvalid
from stateside.core.layout import Layout
from stateside.core.processes import signals
from stateside.journal import Event, JournalWriter
from stateside.leadership import Candidate, Leadership, Lease, check_folder
from stateside.pipeline import declaration
from stateside.pipeline.app import App
from stateside.pipeline.runner import Runner, check_app
from stateside.pipeline.session import has_ended, start_session, stop_session
from stateside.pipeline.settings import FILE_NAME, RunSettings, read_file
from stateside.pipeline.sinks.sink import BatchId
from stateside.pipeline.sources import with_jars
from stateside.pipeline.view_plan import Planner
from stateside.spark_state.provider import counted_rows
from stateside.views.heartbeat import Heartbeat

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_EVENTS = 10


def rehearse(app: App, layout: Layout, settings: RunSettings, session: SparkSession) -> None:
    """Both steps; ViewInvalid if a view could not be run."""
    planner = Planner(app, layout, settings, layout.pause)
    for view in app.views.values():
        planner.check(view, session)
    with TemporaryDirectory(prefix="rehearsal-", dir=layout.spark) as folder:
        _run(Layout(Path(folder)), session)


def _run(layout: Layout, session: SparkSession) -> None:
    with JournalWriter(layout.journal) as journal:
        journal.append([Event(f"e{n}", f"entity-{n}", "rehearsed", 0, {"n": n}) for n in range(_EVENTS)])
    with Runner(_app(), layout, RunSettings(restarts_max=0), session=session) as runner:
        runner.run_to_end()


def _app() -> App:
    app = App("rehearsal", fields="n long")

    @app.view(key=["entity"], sink=lambda context: _Nowhere(), rows="changed")
    def rehearsal(events: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        return events.groupBy("entity").agg(F.sum("n").alias("total"), F.count("*").alias("events"))

    return app


class _Nowhere:
    """A sink that stores nothing."""

    def write(self, rows: pa.Table, batch: BatchId) -> None:
        """Take the rows, and leave it at that."""


Tell = Callable[[str], None]


def needs_lease(layout: Layout, settings: RunSettings) -> bool:
    """Whether a run of this folder must lead."""
    return settings.standby or settings.take_over or Lease(layout.root).exists()


@contextmanager
def standing_by(layout: Layout, settings: RunSettings, told_to_stop: Callable[[], bool]) -> Iterator[Candidate | None]:
    """A candidate that has its name among the members, and gives it back; None if the run is told to stop before.

    SettingInvalid or LeaseInvalid for a folder that cannot hold a lease, IdentityTaken for a name that is in use.
    """
    if settings.standby or settings.take_over:
        check_folder(layout.root, "machine" if settings.standby_scope == "machine" else "shared")
    candidate = Candidate(layout.root, settings.identity, lease_s=settings.lease_s)
    if not candidate.enter(told_to_stop):
        yield None
        return
    try:
        yield candidate
    finally:
        candidate.leave()


def lead(
    candidate: Candidate, layout: Layout, settings: RunSettings, told_to_stop: Callable[[], bool], tell: Tell
) -> Leadership | None:
    """Wait for the leadership; None if the run is told to stop before. PipelineRunning if it may not wait so long.

    Who asks for it waits without end: once the leader has heard that it stops, however long its batch takes, and if
    nobody waited any more then, nobody would lead.
    """
    _tell_leader(candidate, settings, tell)
    waits_on = settings.standby or settings.take_over
    leadership = candidate.wait(told_to_stop, float("inf") if waits_on else settings.lease_s_max)
    if leadership is None and not told_to_stop():
        raise _running(candidate, layout, settings)
    if leadership is not None:
        tell(f"{candidate.identity} leads from epoch {leadership.claim.epoch} on")
    return leadership


@contextmanager
def warmed_up(app: App, layout: Layout, settings: RunSettings) -> Iterator[SparkSession | None]:
    """A session that is ready while another one still leads; None if Spark is to be started by who leads.

    On a cluster it is: a driver that waits there would hold executors which the leader needs.
    """
    if settings.cold or not settings.master.startswith("local"):
        yield None
        return
    conf = with_jars(settings.spark_conf(), map(app.source_of, app.views.values()))
    session = start_session(app.name, layout.spark, master=settings.master, conf=conf)
    try:
        rehearse(app, layout, settings, session)
        yield session
    finally:
        stop_session(session)


def _tell_leader(candidate: Candidate, settings: RunSettings, tell: Tell) -> None:
    """Who leads, if anybody does; who is to take over asks for it."""
    leader = candidate.ask() if settings.take_over else candidate.leader()
    if leader is not None:
        doing = "asks for the leadership" if settings.take_over else "stands by"
        tell(
            f"{candidate.identity} {doing}: {leader.identity} leads, or led last (process {leader.pid}, {leader.host})"
        )


def _running(candidate: Candidate, layout: Layout, settings: RunSettings) -> PipelineRunning:
    leader = candidate.leader()
    who = "another process" if leader is None else f"{leader.identity} (process {leader.pid} on {leader.host})"
    return PipelineRunning(
        f"After {settings.lease_s_max:g} s this folder is still led by {who}",
        where=str(layout.root),
        next_step="Stop that one, or run this one with --standby: it begins when the other one is gone",
    )


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
