"""The runner: start, supervision, heartbeats and stop of an application's queries.

    with Runner(app, Layout(folder)) as runner:
        runner.wait(told_to_stop)        # until told_to_stop() is true, or PipelineFailed

The stop, within `stop_s_max`:

1. The journal's source plans no new batch (the file `pause`), and a batch held for its sink is given up.
2. The running batch finishes and is committed.
3. The queries are stopped. A query whose batch outlasts the limit is stopped inside the batch; the next run repeats it.
4. A leader releases its lease: from here on a standby may start, while this run's JVM still ends.

With a `leadership`, all files except Spark's scratch files are reached through the leader's gate
(`leadership.election`).
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError

from stateside.core.clock import Clock, SystemClock
from stateside.core.errors import StatesideError, ViewChanged, ViewInvalid
from stateside.core.layout import Layout, ViewLayout
from stateside.core.lease import note_holders
from stateside.core.positions import Position
from stateside.core.storage import Storage, write_atomically
from stateside.core.wait import wait_until
from stateside.journal import open_journal
from stateside.journal.backends.kafka import KafkaJournal
from stateside.journal.payload import keep_fields
from stateside.leadership import Leadership, hold_driver_lock
from stateside.pipeline import comparison
from stateside.pipeline.app import App
from stateside.pipeline.declaration import payload_fields
from stateside.pipeline.journal_source import ENVELOPE_NAMES
from stateside.pipeline.session import jvm_pid, start_session, stop_session
from stateside.pipeline.settings import RunSettings
from stateside.pipeline.sources import with_jars
from stateside.pipeline.view_plan import Planner
from stateside.pipeline.view_query import ViewQuery
from stateside.spark_state.batch_log import Checkpoint
from stateside.views.heartbeat import Heartbeat
from stateside.views.savepoint import check_whole, savepoint_sets, take_all

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from stateside.pipeline.batch_spans import BatchSpans

HEARTBEAT_S = 0.2
RETRY_S = 30.0  # before the next attempt at a savepoint
_STOP_POLL_S = 0.02

log = logging.getLogger(__name__)

OnBeat = Callable[[str, Heartbeat, list[dict[str, Any]]], None]  # view, heartbeat, newly finished batches


class Runner:
    """Runs all views of one application on one Spark session, as the only driver of its folder."""

    def __init__(
        self,
        app: App,
        layout: Layout,
        settings: RunSettings | None = None,
        *,
        session: SparkSession | None = None,
        on_beat: OnBeat | None = None,
        leadership: Leadership | None = None,
        lock: int | None = None,
    ) -> None:
        """A given `session` is left running at the end; without one the runner starts and stops its own.

        The heartbeat thread calls `on_beat`, a few times a second, for each view. A `leadership` is released at the
        end. A given `lock` is held by the caller. A layout with pinned views is for filling generations, beside the
        application's own run.
        """
        self._app = app
        self._leadership = leadership
        self._layout = layout if leadership is None else Layout(leadership.root)
        self._pause = self._layout.pause if leadership is None else leadership.pause_file
        self._driver_lock, self._scratch, self._lock = layout.driver_lock, layout.spark, lock  # not through the gate
        self._settings = settings or RunSettings.of(("in the application", app.settings))
        self._given_session = session
        self._on_beat = on_beat
        self._clock: Clock = SystemClock()
        self._journal_end = Position.of({})  # the last known end; owned by the heartbeat thread
        self._noted: set[str] = set()  # views whose journal is written down; of the same thread
        self.caught_up = False  # with `until_caught_up`: every view has the events that its source had at the start
        self.hands_over = False  # to a process that applies a change: the stop also waits for batches that close rows
        self._queries: list[ViewQuery] = []
        self._stopped = threading.Event()
        self._heart = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._keeper = threading.Thread(target=self._take_savepoints, name="savepoints", daemon=True)

    def __enter__(self) -> Runner:
        check_app(self._app)
        with ExitStack() as stack:
            leads = self._leadership is not None
            if self._leadership is not None:
                stack.callback(self._leadership.release)  # for a failure before the queries start
            handle = self._lock
            if handle is None:
                handle = hold_driver_lock(self._driver_lock, self._settings.lease_s_max, shared=leads)
                stack.callback(os.close, handle)
                check_whole(Layout(self._driver_lock.parent))  # no job starts after an interrupted restore
            stack.callback(self._pause.unlink, missing_ok=True)  # before the lock is released
            self._pause.unlink(missing_ok=True)
            session = self._given_session or self._start_session(handle, stack)
            note_holders(handle, os.getpid(), *filter(None, [jvm_pid(session)]))
            if self._leadership is not None:
                stack.callback(self._leadership.release)
            self._start_queries(session, stack)
            if not self._layout.pinned:
                note_removed_views(self._app, self._layout)
            self._heart.start()
            if self._settings.savepoint_every_s and not self._layout.pinned:
                self._keeper.start()
            self._cleanup = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self._cleanup:
            self._come_to_rest()
            self._stopped.set()
            self._heart.join()
            if self._keeper.is_alive():
                self._keeper.join()
            for query in self._queries:
                self._try_heartbeat(query, stopped=True)

    def wait(self, told_to_stop: Callable[[], bool]) -> None:
        """Run until told to stop or, with `until_caught_up`, until `caught_up`.

        PipelineFailed once a view fails for good, LeadershipLost if another process leads.
        """
        while not told_to_stop() and not self.caught_up:
            self._check_leadership()
            with self._as_leader():
                for query in self._queries:
                    query.tend()
            self.caught_up = all(query.caught_up for query in self._queries)  # not after a stop, which ends them too
            time.sleep(_STOP_POLL_S if any(query.replays for query in self._queries) else HEARTBEAT_S)

    def reached(self) -> dict[str, Position | None]:
        """The end position of each view's last batch, if known."""
        return {query.view.name: query.position() for query in self._queries}

    def _start_queries(self, session: SparkSession, stack: ExitStack) -> None:
        with self._as_leader():
            self._check_names(session)
            spans = batch_spans(self._layout.journal, self._app.name)
            if spans is not None:
                stack.callback(spans.close)
            for view in self._app.views.values():
                query = ViewQuery(self._app, view, self._layout, session, self._settings, self._leadership, spans)
                self._start(query, session)
                self._queries.append(query)
                stack.callback(query.stop)
            if not self._layout.pinned:
                keep_fields(self._layout.fields, payload_fields(self._app))

    def _start(self, query: ViewQuery, session: SparkSession) -> None:
        """Start a query; if its view has changed, the error has the verdicts on all views."""
        try:
            query.start()
        except ViewChanged:
            self._refuse_changes(session)
            raise

    def _check_names(self, session: SparkSession) -> None:
        """ViewChanged if a view was renamed: under the new name its events would be folded, and delivered, again."""
        declared, known = self._app.views.keys(), comparison.known_views(self._layout).keys()
        if not self._layout.pinned and declared - known and known - declared:
            self._refuse_changes(session)

    def _refuse_changes(self, session: SparkSession) -> None:
        planner = Planner(self._app, self._layout, self._settings, self._pause)
        found = comparison.compare(self._app, self._layout, lambda view: planner.plan(view, session))
        comparison.refuse(self._app, self._layout, found, accept_changes=self._settings.accept_changes)

    @contextmanager
    def _as_leader(self) -> Iterator[None]:
        """A shut gate makes operations fail in many ways: report LeadershipLost instead."""
        try:
            yield
        except Exception:
            self._check_leadership()
            raise

    def _check_leadership(self) -> None:
        if self._leadership is not None:
            with suppress(OSError):  # with the storage away nobody else can take over either
                self._leadership.check()

    def run_to_end(self, told_to_stop: Callable[[], bool] = lambda: False) -> None:
        """Process all present events of the sources (up to `stop_at`), and the batches without data after them."""
        for query in self._queries:
            query.run_to_end(told_to_stop)
            query.tend()

    def _start_session(self, lease_handle: int, stack: ExitStack) -> SparkSession:
        session = start_session(
            self._app.name,
            self._scratch,
            master=self._settings.master,
            conf=with_jars(self._settings.spark_conf(), map(self._app.source_of, self._app.views.values())),
            lease=lease_handle,
            cluster_s_max=self._settings.cluster_s_max,
        )
        stack.callback(stop_session, session)
        return session

    def _come_to_rest(self) -> None:
        """Steps 1 and 2 of the stop."""
        try:
            self._check_leadership()
            self._pause.touch()
        except (OSError, StatesideError) as error:
            log.warning("stopping wherever the batches are, which the next run repeats: %s", error)
            return
        for query in self._queries:
            query.hold_no_longer()

        def quiet() -> bool:
            return all(query.quiet(closed=self.hands_over) for query in self._queries)

        if not wait_until(quiet, self._settings.stop_s_max, _STOP_POLL_S):
            log.warning("stopping in the middle of a batch, which the next run repeats")

    def _beat(self) -> None:
        while not self._stopped.wait(HEARTBEAT_S):
            for query in self._queries:
                self._try_heartbeat(query)

    def _take_savepoints(self) -> None:
        """Take a savepoint of all views each `savepoint_every_s`, counted on over restarts, and drop older ones."""
        while not self._stopped.wait(HEARTBEAT_S):
            try:
                own = [one for one in savepoint_sets(self._layout) if one.automatic]
                due_us = own[-1].taken_us + self._settings.savepoint_every_s * 1_000_000 if own else 0
                views = [query.places for query in self._queries if query.position() is not None]
                if self._clock.now_us() >= due_us and len(views) == len(self._queries):
                    own.append(take_all(self._layout, views, self._clock.now_us(), automatic=True))
                    for old in own[: -self._settings.savepoints_kept]:
                        old.delete(self._layout)
            except (OSError, StatesideError) as error:
                log.warning("no savepoint: %s", error)
                self._stopped.wait(RETRY_S)

    def _try_heartbeat(self, query: ViewQuery, *, stopped: bool = False) -> None:
        """Trouble with one view must not stop the heartbeats of the others."""
        try:
            self._write_heartbeat(query, stopped=stopped)
        except (OSError, StatesideError) as error:  # a full disk, say: answers age until a heartbeat succeeds
            log.error("no heartbeat: %s", error)
        except Exception:  # the JVM is dying: the main thread reports the cause
            log.info("no heartbeat", exc_info=True)

    def _write_heartbeat(self, query: ViewQuery, *, stopped: bool) -> None:
        time_us = self._clock.now_us()  # before the end is read, so all events of this time lie before the end
        finished: list[dict[str, Any]] = []
        with suppress(*((Py4JError, OSError) if stopped else ())):  # the JVM may be gone: keep the last observation
            finished = query.observe(time_us)
        heartbeat = query.heartbeat(time_us, self._find_journal_end())
        if stopped and heartbeat.state != "failed":
            heartbeat = replace(heartbeat, state="stopped", why=None)
        heartbeat.save(query.places.heartbeat)
        self._tell(query.view.name, heartbeat, finished)
        self._note_journal(query.places)

    def _note_journal(self, view: ViewLayout) -> None:
        """Write down, once a run, which journal the view has read."""
        if view.name in self._noted:
            return
        checkpoint = Checkpoint(Storage.at(view.checkpoint))
        for batch in checkpoint.commits()[-1:]:
            for journal in checkpoint.journals(batch):
                if journal != view.journal_read():
                    write_atomically(view.journal_note, journal.encode(), make_folder=False)
            self._noted.add(view.name)  # after the write, which a full disk fails

    def _find_journal_end(self) -> Position | None:
        """The journal's end; None if the journal is away. A journal never shrinks: a shorter one counts as away."""
        try:
            journal = open_journal(self._layout.journal)
            end = Position.start() if isinstance(journal, KafkaJournal) else journal.acknowledged()
        except (OSError, StatesideError) as error:
            log.info("the journal's end is not known: %s", error)
            return None
        if not end.covers(self._journal_end):
            return None
        self._journal_end = end
        return end

    def _tell(self, view: str, heartbeat: Heartbeat, finished: list[dict[str, Any]]) -> None:
        try:
            if self._on_beat is not None:
                self._on_beat(view, heartbeat, finished)
        except OSError as error:
            log.warning("the run goes on, but nobody takes its reports any more: %s", error)
            self._on_beat = None


def batch_spans(journal: Path, application: str) -> BatchSpans | None:
    """The spans of batches, if OpenTelemetry's environment variables ask for them and its packages are installed."""
    asked = {"OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"} & os.environ.keys()
    disabled = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    if not asked or disabled or os.environ.get("OTEL_TRACES_EXPORTER", "otlp") != "otlp":
        return None
    try:
        from stateside.pipeline.batch_spans import BatchSpans
    except ModuleNotFoundError as error:
        log.warning("no traces are sent: %s. Install it with: pip install 'stateside[otel]'", error)
        return None
    return BatchSpans.by_environment(journal, application)


def note_removed_views(app: App, layout: Layout) -> None:
    """A view that the application no longer declares is served as it was left, with the state `removed`."""
    for view in layout.views():
        heartbeat = Heartbeat.load(view.heartbeat)
        if view.name not in app.views and heartbeat is not None and heartbeat.state != "removed":
            log.warning("the view %s is not declared any more: its last rows are served on", view.name)
            removed = replace(heartbeat, state="removed", why=None)
            removed.save(view.heartbeat)


def check_app(app: App) -> None:
    """ViewInvalid for an application that cannot be run at all."""
    if not app.views:
        raise ViewInvalid(f"The application {app.name!r} has no view", next_step="Declare one with @app.view(key=[…])")
    names = {field.split()[0] for field in app.fields.split(",") if field.strip()}
    clashes = names & set(ENVELOPE_NAMES)
    if clashes:
        raise ViewInvalid(
            f"The payload field {min(clashes)!r} has the name of a column that every event has",
            next_step="Leave it out of the application's fields, or give it another name in the payload",
        )
