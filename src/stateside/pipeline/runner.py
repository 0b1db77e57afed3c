"""The runner: starts an application's queries, supervises them, keeps their heartbeats, and stops them.

with Runner(app, Layout(folder)) as runner:
    runner.wait(told_to_stop)        # until that says so, or PipelineFailed

How it stops, within `stop_s_max`:

1. The journal's source plans no new batch (the file `pause`), and a batch that is held for its sink is given up.
2. The batch that is running comes to its end, and is committed.
3. The queries are stopped. One whose batch outlasted the time is stopped in the middle; the next run repeats it.
4. A leader releases its lease: from here on a standby may begin, while this one's JVM still ends.

With a `leadership` everything but Spark's scratch files is reached through the leader's gate (`leadership.election`).
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError

from stateside.core.clock import Clock, SystemClock
from stateside.core.errors import StatesideError, ViewInvalid
from stateside.core.layout import Layout
from stateside.core.positions import Position
from stateside.core.storage import write_atomically
from stateside.journal.partitions import acknowledged_end
from stateside.journal.payload import keep_fields
from stateside.leadership import Leadership
from stateside.pipeline import driver_lock
from stateside.pipeline.app import App
from stateside.pipeline.declaration import payload_fields
from stateside.pipeline.journal_source import ENVELOPE_NAMES
from stateside.pipeline.session import jvm_pid, start_session, stop_session
from stateside.pipeline.settings import RunSettings
from stateside.pipeline.sources import with_jars
from stateside.pipeline.view_query import ViewQuery
from stateside.views.heartbeat import Heartbeat

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HEARTBEAT_S = 0.2
_STOP_POLL_S = 0.02

log = logging.getLogger(__name__)

OnBeat = Callable[[str, Heartbeat, list[dict[str, Any]]], None]  # view, its heartbeat, batches finished since the last


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
    ) -> None:
        """A given `session` is used and left running; without one the runner starts its own and stops it at the end.

        `on_beat` is called by the heart, a few times a second, for each view. A `leadership` is released at the end.
        """
        self._app = app
        self._leadership = leadership
        self._layout = layout if leadership is None else Layout(leadership.root)
        self._pause = self._layout.pause if leadership is None else leadership.pause_file
        self._driver_lock, self._scratch = layout.driver_lock, layout.spark  # by their own paths: no gate to go through
        self._settings = settings or RunSettings.of(("in the application", app.settings))
        self._given_session = session
        self._on_beat = on_beat
        self._clock: Clock = SystemClock()
        self._journal_end = Position.of({})  # the last one that was seen; the heart's
        self._queries: list[ViewQuery] = []
        self._stopped = threading.Event()
        self._heart = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def __enter__(self) -> Runner:
        check_app(self._app)
        with ExitStack() as stack:
            leads = self._leadership is not None
            if self._leadership is not None:
                stack.callback(self._leadership.release)  # if it fails before it has begun
            handle = driver_lock.acquire(self._driver_lock, self._settings.lease_s_max, shared=leads)
            stack.callback(os.close, handle)
            stack.callback(self._pause.unlink, missing_ok=True)  # before the next driver may begin
            self._pause.unlink(missing_ok=True)
            session = self._given_session or self._start_session(handle, stack)
            driver_lock.note_holder(handle, os.getpid(), *filter(None, [jvm_pid(session)]))
            if self._leadership is not None:
                stack.callback(self._leadership.release)
            self._start_queries(session, stack)
            self._note_removed_views()
            self._heart.start()
            self._cleanup = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self._cleanup:
            self._come_to_rest()
            self._stopped.set()
            self._heart.join()
            for query in self._queries:
                self._try_heartbeat(query, stopped=True)

    def wait(self, told_to_stop: Callable[[], bool]) -> None:
        """Until it is told to stop; PipelineFailed as soon as a view fails for good, LeadershipLost if others lead."""
        while not told_to_stop():
            self._check_leadership()
            with self._as_leader():
                for query in self._queries:
                    query.tend()
            time.sleep(HEARTBEAT_S)

    def _start_queries(self, session: SparkSession, stack: ExitStack) -> None:
        with self._as_leader():
            for view in self._app.views.values():
                query = ViewQuery(self._app, view, self._layout, session, self._settings, self._leadership)
                query.start()
                self._queries.append(query)
                stack.callback(query.stop)
            keep_fields(self._layout.fields, payload_fields(self._app))

    def _note_removed_views(self) -> None:
        """A view that the application does not declare any more is served as it was left, and its state says so."""
        for view in self._layout.views():
            heartbeat = Heartbeat.load(view.heartbeat)
            if view.name not in self._app.views and heartbeat is not None and heartbeat.state != "removed":
                log.warning("the view %s is not declared any more: its last rows are served on", view.name)
                removed = replace(heartbeat, state="removed", why=None)
                write_atomically(view.heartbeat, removed.as_json(), durable=False, make_folder=False)

    @contextmanager
    def _as_leader(self) -> Iterator[None]:
        """A gate that is shut lets things fail in many ways: LeadershipLost is the reason for all of them."""
        try:
            yield
        except Exception:
            self._check_leadership()
            raise

    def _check_leadership(self) -> None:
        if self._leadership is not None:
            with suppress(OSError):  # the storage is away: nobody else can take over either
                self._leadership.check()

    def run_to_end(self) -> None:
        """Until all that the sources hold now (up to `stop_at`) is processed, and the batches without data after it."""
        for query in self._queries:
            query.run_to_end()
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
        deadline = time.monotonic() + self._settings.stop_s_max
        while not all(query.quiet() for query in self._queries):
            if time.monotonic() >= deadline:
                log.warning("stopping in the middle of a batch, which the next run repeats")
                return
            time.sleep(_STOP_POLL_S)

    def _beat(self) -> None:
        while not self._stopped.wait(HEARTBEAT_S):
            for query in self._queries:
                self._try_heartbeat(query)

    def _try_heartbeat(self, query: ViewQuery, *, stopped: bool = False) -> None:
        """One view's trouble keeps no other from its heartbeat."""
        try:
            self._write_heartbeat(query, stopped=stopped)
        except (OSError, StatesideError) as error:  # a full disk, say: answers grow old until it succeeds again
            log.error("no heartbeat: %s", error)
        except Exception:  # the JVM is dying: the main thread says so, in a sentence
            log.info("no heartbeat", exc_info=True)

    def _write_heartbeat(self, query: ViewQuery, *, stopped: bool) -> None:
        time_us = self._clock.now_us()  # before the end is read: what was there at this time lies before it
        finished: list[dict[str, Any]] = []
        with suppress(*((Py4JError, OSError) if stopped else ())):  # the JVM may be gone: then the last word is enough
            finished = query.observe(time_us)
        heartbeat = query.heartbeat(time_us, self._find_journal_end())
        if stopped and heartbeat.state != "failed":
            heartbeat = replace(heartbeat, state="stopped", why=None)
        place = self._layout.view(query.view.name).heartbeat
        write_atomically(place, heartbeat.as_json(), durable=False, make_folder=False)
        self._tell(query.view.name, heartbeat, finished)

    def _find_journal_end(self) -> Position | None:
        """Where the journal ends; None if it is away. A journal never gets shorter: one that did is not there."""
        try:
            end = acknowledged_end(self._layout.journal)
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
