"""Foreground runs: an application until SIGINT or SIGTERM, with reports for people or machines, and standby runs.

Reports:

    on a terminal        a live table, one row per view
    into a file or pipe  a line per change of a view's state, slow batch, backlog, late rows and dead letters
    --json               a JSON line on stdout for each batch and each change of state

Standby: the run waits for the leadership of the application's folder first.

    stateside run shop:app --dir D --standby        leads, or waits until the leader is gone
    stateside run shop:app --dir D --take-over      asks the leader to hand over between two batches, then leads
    stateside run shop:app --dir D                  in a folder with a lease: as --standby, with a time limit

Spark is started and has rehearsed before the run waits or asks. Without these flags, in a folder that never had a
leader, there is no lease, and a lock keeps a second driver out (`hold_driver_lock`).

Rehearsal: the work of a standby before it waits, so that failover is short and does not fail because of the code.

1. Every view is planned as it would be run. A view that cannot be run, or does not fit the existing state, is reported
   while the old leader still works.
2. A built-in view is run over a few events in a scratch folder. Spark then has loaded the parts that a query needs
   (planner, RocksDB, Python workers), which take most of the time of a first batch.

A rehearsal reads nothing from the application's sources, writes nothing to its sinks, and changes nothing in its folder
except scratch files.
"""

from __future__ import annotations

import json
import logging
import os
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

from stateside.core.errors import PipelineFailed, PipelineRunning, ViewInvalid
from stateside.core.layout import Layout
from stateside.core.processes import signals
from stateside.core.storage import try_lock
from stateside.inspection.batch_reports import events_left, rows_too_late
from stateside.journal import Event, open_journal
from stateside.leadership import ApplicationLease, Candidate, Leadership, check_folder
from stateside.pipeline import comparison, declaration
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
    """Both steps of the rehearsal; ViewInvalid if a view could not be run."""
    planner = Planner(app, layout, settings, layout.pause)
    for view in app.views.values():
        planner.check(view, session)
    with TemporaryDirectory(prefix="rehearsal-", dir=layout.spark) as folder:
        _run(Layout(Path(folder)), session)


def _run(layout: Layout, session: SparkSession) -> None:
    with open_journal(layout.journal).writer() as journal:
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

    def write(self, rows: pa.Table, batch: BatchId) -> None: ...


Tell = Callable[[str], None]


def needs_lease(layout: Layout, settings: RunSettings) -> bool:
    """Whether a run in this folder must lead."""
    return settings.standby or settings.take_over or ApplicationLease(layout.root).exists()


@contextmanager
def standing_by(layout: Layout, settings: RunSettings, told_to_stop: Callable[[], bool]) -> Iterator[Candidate | None]:
    """A candidate registered among the members until the `with` ends; None if the run is told to stop before.

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
    """Wait for the leadership; None if the run is told to stop before, PipelineRunning after the time limit.

    With `standby` or `take_over` there is no limit: a leader that has accepted a request stops, however long its batch
    takes, and without a waiting successor nobody would lead.
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
    """A session that is ready while another process still leads; None if Spark is to start only after the election.

    On a cluster the result is None: a waiting driver would hold executors that the leader needs.
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
    """Report the present leader, if any; with `take_over` ask it to hand over."""
    leader = candidate.ask() if settings.take_over else candidate.leader()
    if leader is not None:
        doing = "asks for the leadership" if settings.take_over else "stands by"
        tell(
            f"{candidate.identity} {doing}: {leader.identity} leads, or led last (process {leader.pid}, {leader.host})"
        )


def _running(candidate: Candidate, layout: Layout, settings: RunSettings) -> PipelineRunning:
    leader = candidate.leader()
    return PipelineRunning(
        f"After {settings.lease_s_max:g} s this folder is still led by {leader or 'another process'}",
        where=str(layout.root),
        next_step="Stop that one, or run this one with --standby: it begins when the other one is gone",
    )


_COLOURS = {
    **{"running": "green", "idle": "cyan", "holding": "yellow", "stopped": "white", "failed": "red"},
    "removed": "white",
}
_REFRESHES_PER_S = 4
SLOW_MS = 10_000  # a batch that takes longer is reported
PAUSE_US = 10_000_000  # reports of a view's late rows and dead letters are at least so far apart
log = logging.getLogger(__name__)


class Teller(Protocol):
    """Receives every heartbeat, and changes of leadership."""

    def note(self, what: str) -> None:
        """Called before the runner starts and after its end, with a sentence about the leadership."""

    def tell(self, view: str, heartbeat: Heartbeat, finished: list[dict[str, Any]]) -> None:
        """Called by the heartbeat thread for each view, with the batches finished since the last call."""


def run_application(app: App, folder: Path, settings: RunSettings, teller: Teller) -> None:
    """Run the application until SIGINT or SIGTERM, or `until_caught_up`; PipelineFailed if a view fails for good.

    With a lease (`standing_by`) the run first waits to lead, and also ends after a handover.
    """
    layout = Layout(folder)
    check_app(app)  # before standing by, not at failover
    check_before_spark(app, layout, settings)  # Spark takes seconds to start
    with signals() as came, _no_empty_folder(folder):
        if needs_lease(layout, settings):
            while not came and not _has_led(app, layout, settings, teller, lambda: bool(came)):
                log.warning("Spark has ended while this run stood by: it is started again")
            return
        with Runner(app, layout, settings, on_beat=teller.tell) as runner:
            lead_until(runner, layout, lambda: bool(came), teller)
        _tell_end(runner, settings, teller)


def check_before_spark(app: App, layout: Layout, settings: RunSettings) -> None:
    """ViewChanged or SettingInvalid for a change that is visible without a plan."""
    comparison.refuse(app, layout, comparison.compare(app, layout), accept_changes=settings.accept_changes)
    declaration.check_partitions(app, layout, settings)


def lead_until(runner: Runner, layout: Layout, told_to_stop: Callable[[], bool], teller: Teller) -> None:
    """Run until told to stop, or until a process that applies a change asks for the folder."""
    layout.handover.unlink(missing_ok=True)
    runner.wait(lambda: told_to_stop() or is_asked(layout))
    if is_asked(layout):
        runner.hands_over = True
        teller.note("This run hands over to the process that applies a change")


def is_asked(layout: Layout) -> bool:
    """Whether a live process asks the driver to stop."""
    if not layout.handover.exists():
        return False
    handle = try_lock(layout.apply_lock, shared=True)
    if handle is not None:  # nobody applies a change any more
        os.close(handle)
    return handle is None


@contextmanager
def _no_empty_folder(folder: Path) -> Iterator[None]:
    """Remove a new folder again if the application was refused before any view began."""
    existed = folder.exists()
    try:
        yield
    except ViewInvalid:
        if not existed and not any((folder / name).exists() for name in ("journal", "views")):
            shutil.rmtree(folder, ignore_errors=True)
        raise


def _has_led(app: App, layout: Layout, settings: RunSettings, teller: Teller, told_to_stop: Callable[[], bool]) -> bool:
    """Wait for the leadership and lead to the end; False if the warm session has ended before."""
    with standing_by(layout, settings, told_to_stop) as candidate, ExitStack() as stack:
        if candidate is None:
            return True
        with candidate.getting_ready():
            session = stack.enter_context(warmed_up(app, layout, settings))
        leadership = lead(candidate, layout, settings, lambda: told_to_stop() or has_ended(session), teller.note)
        if leadership is None:
            return told_to_stop()
        runner = Runner(app, layout, settings, session=session, on_beat=teller.tell, leadership=leadership)
        run_leader(runner, leadership, told_to_stop, teller)
        _tell_end(runner, settings, teller)
        return True


def run_leader(runner: Runner, leadership: Leadership, told_to_stop: Callable[[], bool], teller: Teller) -> None:
    """Run until told to stop, or until another process asks for the leadership."""
    try:
        with runner:
            runner.wait(lambda: told_to_stop() or leadership.asked is not None)
            runner.hands_over = leadership.asked is not None
    finally:
        leadership.release()
    if leadership.asked is not None:
        teller.note(f"{leadership.claim.identity} has handed over to {leadership.asked.identity}")


def _tell_end(runner: Runner, settings: RunSettings, teller: Teller) -> None:
    """With `until_caught_up`: report where the views are; PipelineFailed if they were stopped before."""
    if not settings.until_caught_up:
        return
    reached = ", ".join(f"{view} at {position}" for view, position in runner.reached().items())
    if not runner.caught_up:
        raise PipelineFailed(
            f"The run was stopped before all views had caught up: {reached}",
            next_step="Run it again: it resumes at its last committed batch",
        )
    teller.note(f"caught up: {reached}")


def gather_settings(app: App, file: Path | None, flags: Mapping[str, Any]) -> RunSettings:
    """The settings from code, then from the file (`stateside.toml` in the current folder, if any), then from flags."""
    default = Path(FILE_NAME)
    path = file or (default if default.exists() else None)
    in_file = [] if path is None else [(f"in {path}", read_file(path))]
    return RunSettings.of(("in the application", app.settings), *in_file, ("as a flag", flags))


@dataclass(slots=True)
class LinesForPeople:
    """A line per change of a view's state or reason, slow batch, backlog, late rows and dead letters."""

    output: TextIO
    told: dict[str, tuple[str, str | None]] = field(default_factory=dict)
    lost: dict[str, _Lost] = field(default_factory=dict)

    def note(self, what: str) -> None:
        print(what, file=self.output, flush=True)

    def tell(self, view: str, heartbeat: Heartbeat, finished: list[dict[str, Any]]) -> None:
        """Report a change; `running` and `idle` alternate all the time, and count as one state."""
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
    """The events of a view that were dropped or refused since the last report, and the events that wait."""

    late: int = 0
    dead_letters: int = 0
    waiting: str | None = None
    told_us: int | None = None

    def add(self, batch: Mapping[str, Any]) -> None:
        self.late += batch["late"]
        self.dead_letters += batch["dead_letters"]
        lags = (batch["left"] or 0) > batch["events"]  # by more than a batch
        after = f"after batch {batch['batch']}, {batch['events_per_s']:,.0f} events/s"
        self.waiting = f"{_counted(batch['left'], 'event')} left {after}" if lags else None

    def lines(self, now_us: int, *, at_once: bool) -> Iterator[str]:
        due = self.told_us is None or now_us - self.told_us >= PAUSE_US or at_once
        if not due or not (self.late or self.dead_letters or self.waiting):
            return
        if self.waiting:
            yield self.waiting
        if self.late:
            yield f"{_counted(self.late, 'row')} came too late, after the watermark: the view does not have them"
        if self.dead_letters:
            letters = _counted(self.dead_letters, "dead letter")
            yield f"{letters}: `stateside dead-letters --dir …` lists them with the reasons"
        self.late, self.dead_letters, self.waiting, self.told_us = 0, 0, None, now_us


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


@dataclass(slots=True)
class LinesForMachines:
    """A JSON line for each batch and each change of state.

    After `idle` a view is silent until its next batch: Spark polls the source all the time, and looks as if it ran for
    a moment. The line of a batch implies that the view runs again.
    """

    output: TextIO
    told: dict[str, tuple[str, str | None]] = field(default_factory=dict)

    def note(self, what: str) -> None:
        self._print({"note": what})

    def tell(self, view: str, heartbeat: Heartbeat, finished: list[dict[str, Any]]) -> None:
        """Print the batches, then a changed state."""
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
    """A live table on a terminal."""

    def __init__(self, console: Console, title: str) -> None:
        self._console, self._title = console, title
        self._rows: dict[str, tuple[Heartbeat, dict[str, Any]]] = {}
        self._lock = threading.Lock()

    @contextmanager
    def shown(self) -> Iterator[LiveTable]:
        """Show the table until the `with` ends."""
        with Live(get_renderable=self._table, console=self._console, refresh_per_second=_REFRESHES_PER_S):
            yield self

    def note(self, what: str) -> None:
        """Print above the table."""
        self._console.print(what, markup=False)

    def tell(self, view: str, heartbeat: Heartbeat, finished: list[dict[str, Any]]) -> None:
        """Keep the heartbeat and batches for the next refresh."""
        with self._lock:
            batch = self._rows.get(view, (None, {}))[1]
            for progress in finished:  # figures of the last batch; late rows and dead letters since the start
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
    """The state rows of all operators; None if one operator does not count its rows."""
    rows = [counted_rows(operator) for operator in operators]
    return None if None in rows else sum(filter(None, rows))


def summary(progress: dict[str, Any]) -> dict[str, Any]:
    """The figures of a batch for people and machines, from Spark's progress report."""
    operators = progress.get("stateOperators", [])
    return {
        "batch": progress["batchId"],
        "began": progress["timestamp"],
        "events": progress["numInputRows"],
        "left": events_left(progress),
        "events_per_s": progress.get("processedRowsPerSecond") or 0.0,
        "duration_ms": progress["durationMs"].get("triggerExecution", 0),
        "watermark": progress.get("eventTime", {}).get("watermark"),
        "state_rows": _all_rows(operators),
        "late": rows_too_late(progress),
        "dead_letters": progress.get("deadLetters", 0),
        **({"pace": progress["pace"]} if "pace" in progress else {}),
    }
