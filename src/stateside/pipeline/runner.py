"""The runner: starts an application's queries, keeps their heartbeats, and stops them.

with Runner(app, Layout(folder)) as runner:
    runner.wait(told_to_stop)        # until that says so, or PipelineFailed
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError
from pyspark.sql.pandas.types import to_arrow_schema

from stateside.checkpoint.catalogue import Catalogue
from stateside.checkpoint.heartbeat import Heartbeat, State
from stateside.checkpoint.log import Checkpoint
from stateside.checkpoint.variable_catalogue import check_state
from stateside.clock import Clock, SystemClock
from stateside.errors import PipelineFailed, StatesideError, ViewInvalid
from stateside.journal import Journal
from stateside.layout import Layout, ViewLayout
from stateside.pipeline import lease
from stateside.pipeline.app import App, View
from stateside.pipeline.derive import derive_catalogue
from stateside.pipeline.derive_state import derive_state_catalogue
from stateside.pipeline.session import DRIVER_LOG, start_session, stop_session
from stateside.pipeline.sinks.sink import BatchId, Sink, SinkContext
from stateside.pipeline.source import ENVELOPE_NAMES, EVENTS_PER_BATCH_MAX
from stateside.pipeline.sources import Reading
from stateside.positions import Position
from stateside.storage import Storage, write_atomically

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

HEARTBEAT_S = 0.2

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunSettings:
    """How to run: where Spark is, how many events a batch takes at most, up to where, and further Spark settings."""

    master: str = "local[2]"
    events_per_batch_max: int = EVENTS_PER_BATCH_MAX
    stop_at: Position | None = None
    lease_wait_s: float = lease.WAIT_S_MAX
    spark: dict[str, str] = field(default_factory=dict)


class Runner:
    """Runs all views of one application on one Spark session, as the only driver of its folder."""

    def __init__(
        self, app: App, layout: Layout, settings: RunSettings | None = None, *, session: SparkSession | None = None
    ) -> None:
        """A given `session` is used and left running; without one the runner starts its own and stops it at the end."""
        self._app = app
        self._layout = layout
        self._settings = settings or RunSettings()
        self._given_session = session
        self._journal = Journal(layout.journal)
        self._clock: Clock = SystemClock()
        self._queries: dict[str, StreamingQuery] = {}
        self._verified: set[str] = set()
        self._beating = threading.Event()
        self._heart = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def __enter__(self) -> Runner:
        _check_app(self._app)
        with ExitStack() as stack:
            handle = lease.acquire(self._layout.driver_lock, self._settings.lease_wait_s)
            stack.callback(os.close, handle)
            self._spark = self._given_session or self._start_session(handle, stack)
            for view in self._app.views.values():
                self._queries[view.name] = self._start(view)
                stack.callback(_stop, self._queries[view.name])
            self._heart.start()
            self._cleanup = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._beating.set()
        self._heart.join()
        with self._cleanup:
            self._write_heartbeats("failed" if isinstance(error, PipelineFailed) else "stopped")

    def wait(self, told_to_stop: Callable[[], bool]) -> None:
        """Until it is told to stop; PipelineFailed as soon as a query ends by itself."""
        while not told_to_stop():
            self._check()
            time.sleep(HEARTBEAT_S)

    def run_to_end(self) -> None:
        """Until all that the journal holds now (up to `stop_at`) is processed, and the batch without data after it."""
        for query in self._queries.values():
            try:
                query.processAllAvailable()
            except Exception:
                self._check()
                raise
        self._check()

    def _start_session(self, lease_handle: int, stack: ExitStack) -> SparkSession:
        session = start_session(
            self._app.name,
            self._layout.spark,
            master=self._settings.master,
            conf=self._settings.spark,
            lease=lease_handle,
        )
        stack.callback(stop_session, session)
        return session

    def _start(self, view: View) -> StreamingQuery:
        places = self._layout.view(view.name)
        try:
            source = self._app.source_of(view)
            frame = view.function(source.load(self._spark, self._reading()))
            derive = derive_state_catalogue if view.state else derive_catalogue
            catalogue = derive(self._app.name, view, frame) if view.key else None
        except StatesideError:
            raise
        except Exception as error:  # told now: an error of Spark's has no text any more once the JVM has ended
            raise ViewInvalid(
                f"The view {view.name!r} fails: {type(error).__name__}: {_reason(error)}",
                next_step="Mend its function or the application's fields, then run again",
            ) from error
        if catalogue:
            _write_catalogue(catalogue, places)
        writer = frame.writeStream.queryName(view.name).option("checkpointLocation", str(places.checkpoint))
        writer = self._with_sink(view, writer, frame)
        try:
            return writer.start()
        except Exception as error:
            raise PipelineFailed(
                f"The view {view.name!r} did not start: {_reason(error)}", where=str(places.checkpoint)
            ) from error

    def _with_sink(self, view: View, writer: DataStreamWriter, frame: DataFrame) -> DataStreamWriter:
        if view.sink is None:
            return writer.outputMode("update").format("noop")
        checkpoint = Checkpoint(Storage.at(self._layout.view(view.name).checkpoint))
        context = SinkContext(self._layout, view.name, to_arrow_schema(frame.schema, timezone="UTC"))
        writer = writer.outputMode("append" if view.rows == "closed" else "update")
        return writer.foreachBatch(_batch_function(view.sink(context), checkpoint))

    def _reading(self) -> Reading:
        return Reading(
            self._layout.journal,
            self._app.fields,
            events_per_batch_max=self._settings.events_per_batch_max,
            stop_at=self._settings.stop_at,
        )

    def _check(self) -> None:
        for name, query in self._queries.items():
            reason = _stopped(query)
            if reason is not None:
                raise PipelineFailed(
                    f"The view {name!r} stopped: {reason}",
                    where=str(self._layout.spark / DRIVER_LOG),
                    next_step="Mend the cause and run again: it resumes at its last committed batch",
                )
            if name not in self._verified and self._app.views[name].key:
                self._verify(name)

    def _verify(self, name: str) -> None:
        """Once, as soon as Spark has written the state's schema: the catalogue must fit it."""
        places = self._layout.view(name)
        try:
            check_state(Catalogue.load(places.catalogue), Storage.at(places.checkpoint))
        except FileNotFoundError:
            return
        self._verified.add(name)

    def _beat(self) -> None:
        while not self._beating.wait(HEARTBEAT_S):
            try:
                self._write_heartbeats("running")
            except (OSError, StatesideError) as error:  # a full disk, say: answers grow old until it succeeds again
                log.error("no heartbeat: %s", error)

    def _write_heartbeats(self, state: State) -> None:
        time_us = self._clock.now_us()  # before the journal's end is read: what was there at this time lies before it
        heartbeat = Heartbeat(time_us, self._journal.end(), state)
        for name in self._queries:
            write_atomically(self._layout.view(name).heartbeat, heartbeat.as_json(), durable=False)


def _batch_function(sink: Sink, checkpoint: Checkpoint) -> Callable[[DataFrame, int], None]:
    """What Spark calls for each batch: one action on its rows, once."""

    def write(rows: DataFrame, batch: int) -> None:
        query = checkpoint.query_id()
        assert query is not None, "Spark writes the query's id before its first batch"
        sink.write(rows.toArrow(), BatchId(query, batch))

    return write


def _write_catalogue(catalogue: Catalogue, places: ViewLayout) -> None:
    """Write it; refuse a query that was changed on a checkpoint that has batches already."""
    path = places.catalogue
    begun = bool(Checkpoint(Storage.at(places.checkpoint)).commits())
    if begun and path.exists() and Catalogue.load(path) != catalogue:
        raise ViewInvalid(
            f"The view {catalogue.view!r} was changed: it is not the one that its state was built with",
            where=str(path),
            next_step="Run it on a new folder, or take the change back",
        )
    write_atomically(path, catalogue.as_json())


def _check_app(app: App) -> None:
    if not app.views:
        raise ViewInvalid(f"The application {app.name!r} has no view", next_step="Declare one with @app.view(key=[…])")
    names = {field.split()[0] for field in app.fields.split(",") if field.strip()}
    clashes = names & set(ENVELOPE_NAMES)
    if clashes:
        raise ViewInvalid(
            f"The payload field {min(clashes)!r} has the name of a column that every event has",
            next_step="Leave it out of the application's fields, or give it another name in the payload",
        )


def _stop(query: StreamingQuery) -> None:
    with suppress(Py4JError, OSError):  # the JVM is gone, and the query with it
        query.stop()


def _stopped(query: StreamingQuery) -> str | None:
    """Why the query has ended; None while it runs."""
    try:
        return None if query.isActive else _reason(query.exception())
    except (Py4JError, OSError) as error:
        return f"Spark's JVM is gone ({error})"


def _reason(error: Exception | None) -> str:
    """The one line that says why: of a Python traceback the last one, of anything else the first."""
    if error is None:
        return "it was stopped from outside"
    lines = str(error).strip().splitlines()
    starts = [number for number, line in enumerate(lines) if "Traceback (most recent call last)" in line]
    causes = [line for line in lines[starts[-1] + 1 :] if line and not line[0].isspace()] if starts else []
    return causes[0] if causes else lines[0]
