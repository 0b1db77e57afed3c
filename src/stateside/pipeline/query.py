"""One view's streaming query, through its restarts."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import AnalysisException
from pyspark.sql.pandas.types import to_arrow_schema

from stateside.checkpoint.catalogue import Catalogue
from stateside.checkpoint.heartbeat import Heartbeat, State
from stateside.checkpoint.log import Checkpoint
from stateside.checkpoint.variable_catalogue import check_state
from stateside.errors import OperatingError, PipelineFailed, SinkRefused, StatesideError, ViewBroken, ViewInvalid
from stateside.journal.stored import StoredStream
from stateside.layout import Layout
from stateside.pipeline import declaration
from stateside.pipeline.app import App, View
from stateside.pipeline.delivery import Delivery
from stateside.pipeline.derive import derive_catalogue
from stateside.pipeline.derive_state import derive_state_catalogue
from stateside.pipeline.failures import Failure, judge, reason
from stateside.pipeline.observation import Observation, rests, waits
from stateside.pipeline.progress import ProgressFile
from stateside.pipeline.session import DRIVER_LOG
from stateside.pipeline.settings import RunSettings
from stateside.pipeline.sinks.delta import archive_sink
from stateside.pipeline.sinks.guarantee import with_guarantee
from stateside.pipeline.sinks.sink import Sink, SinkContext
from stateside.pipeline.sources import JournalEvents, Reading
from stateside.positions import Position
from stateside.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

RESTART_PAUSE_S_MAX = 60.0
_DOUBLINGS_MAX = 64  # a float holds no more than a thousand
_END_POLL_S = 0.02

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Trouble:
    """Failures in a row, the last one's reason, and when the next start is due."""

    count: int = 0
    why: str | None = None
    due: float = 0.0
    batch: int | None = None  # the newest batch at the last failure: a newer one ends the row


class ViewQuery:
    """Starts a view's query, watches it, starts it again after a failure that is worth it, and stops it.

    Two threads use it: the runner's main one starts, tends and stops; the heart looks (`heartbeat`, `observe`).
    """

    def __init__(self, app: App, view: View, layout: Layout, session: SparkSession, settings: RunSettings) -> None:
        self.view = view
        self._app, self._layout, self._session, self._settings = app, layout, session, settings
        self._places = layout.view(view.name)
        self._checkpoint = Checkpoint(Storage.at(self._places.checkpoint))
        self._source = app.source_of(view)
        self._query: StreamingQuery | None = None
        self._delivery: Delivery | None = None
        self._trouble = _Trouble()
        self._seen = Observation(
            ProgressFile(self._places.progress), self._newest_batch(), self._settings.batch_interval_ms
        )
        self._verified = view.key is None
        self._failed: str | None = None

    def start(self) -> None:
        """Plan the query, keep its declaration, and start it; ViewInvalid if it cannot be run as declared."""
        frame, catalogue = self._plan()
        sink = self._open_sink(frame)
        writer = frame.writeStream.queryName(self.view.name).option("checkpointLocation", str(self._places.checkpoint))
        if self._settings.batch_interval_ms:
            writer = writer.trigger(processingTime=f"{self._settings.batch_interval_ms} milliseconds")
        if sink is None:
            sessions = catalogue is not None and catalogue.kind == "session"  # Spark has no update mode for them
            writer = writer.outputMode("append" if sessions else "update").format("noop")
        else:
            self._delivery = Delivery(sink, self._checkpoint, self._settings.hold_s_max)
            writer = writer.outputMode(_OUTPUT_MODES[self.view.rows]).foreachBatch(self._delivery)
        try:
            self._query = writer.start()
            self._seen.turn_to(self._query)
        except AnalysisException as error:
            raise ViewInvalid(
                f"The view {self.view.name!r} cannot be run: {reason(error)}",
                next_step="Mend its function, then run again",
            ) from error
        except Exception as error:
            raise PipelineFailed(
                f"The view {self.view.name!r} did not start: {reason(error)}", where=str(self._places.checkpoint)
            ) from error

    def tend(self) -> None:
        """Start the query again if it failed and it is time to; PipelineFailed if that is no use any more."""
        try:
            self._tend()
        except StatesideError as error:
            self._failed = self._failed or error.sentence()
            raise

    def _tend(self) -> None:
        if self._query is None:
            if time.monotonic() >= self._trouble.due:
                self._start_again()
            return
        failure = self._failure()
        if failure is not None:
            self._fail(failure)
        elif not self._verified and self._seen.in_this_run:
            self._verify()

    def _start_again(self) -> None:
        try:
            self.start()
        except OperatingError as error:  # a sink or a disk that is away counts like a failure while it runs
            gone = isinstance(error.__cause__, Py4JNetworkError | OSError)
            self._fail(Failure(error.sentence(), worth_retrying=not gone and not isinstance(error, SinkRefused)))

    def run_to_end(self) -> None:
        """Until all that its source holds now is processed, and the batch without data after it.

        Spark's own `processAllAvailable` would not return from a view with timers of the clock: batches without data
        follow each other there for ever. It is used for sources whose end only Spark knows.
        """
        end = StoredStream.at(self._layout.journal).end()
        stop_at = self._settings.stop_at
        target = stop_at if stop_at is not None and end.covers(stop_at) else end
        while not self._has_processed(target):
            self.tend()
            time.sleep(_END_POLL_S)
        if not self._verified:
            self._verify()

    def _has_processed(self, target: Position) -> bool:
        if self._query is None:
            return False
        try:
            if not isinstance(self._source, JournalEvents):
                self._query.processAllAvailable()
                return True
            last = self._checkpoint.commits()[-2:]
            done = sum(self._checkpoint.plan(batch).position.covers(target) for batch in last)
            return done == 2 or (done == len(last[-1:]) and waits(self._query))
        except Exception as error:
            if self._failure() is None and not isinstance(error, FileNotFoundError):
                raise PipelineFailed(f"The view {self.view.name!r} stopped: {reason(error)}") from error
            return False

    def quiet(self) -> bool:
        """Whether no batch is running: it waits for data, or has ended."""
        try:
            return self._query is None or not self._query.isActive or rests(self._query)
        except (Py4JError, OSError):
            return True

    def hold_no_longer(self) -> None:
        """Before a stop: a batch that is held for its sink is given up, uncommitted."""
        if self._delivery is not None:
            self._delivery.stop()

    def stop(self) -> None:
        """Stop the query, in the middle of a batch if there is one: it is repeated by the next run."""
        if self._query is not None:
            with suppress(Py4JError, OSError):  # the JVM is gone, and the query with it
                self._query.stop()

    def heartbeat(self, time_us: int, journal_end: Position) -> Heartbeat:
        """The sign of life; `journal_end` was read after `time_us`."""
        state, why = self.state()
        if isinstance(self._source, JournalEvents):
            return Heartbeat(time_us, journal_end, state, self._seen.batch, why)
        end_us = self._seen.asked_since(time_us) if state == "idle" else None
        end = None if end_us is None else self._position()
        return Heartbeat(time_us, end, state, self._seen.batch, why, None if end is None else end_us)

    def state(self) -> tuple[State, str | None]:
        """In which state the view is, and why if it waits or has failed."""
        if self._failed is not None:
            return "failed", self._failed
        if self._delivery is not None and self._delivery.holding is not None:
            return "holding", self._delivery.holding
        if self._query is None:
            return "holding", self._trouble.why or "it is starting"
        return ("idle" if self._seen.waiting else "running"), None

    def observe(self, time_us: int) -> list[dict[str, Any]]:
        """Look at the query, at this time, keep the progress of batches that it finished since, and return them."""
        return self._seen.look(time_us)

    def _plan(self) -> tuple[DataFrame, Catalogue | None]:
        try:
            frame = self.view.query(self._source.load(self._session, self._reading()), self._layout)
            self._check_streaming(frame)
            derive = derive_state_catalogue if self.view.state else derive_catalogue
            catalogue = derive(self._app.name, self.view, frame) if self.view.key else None
            plan = declaration.plan_text(frame, self._source)
        except StatesideError:
            raise
        except Exception as error:  # told now: an error of Spark's has no text any more once the JVM has ended
            raise ViewInvalid(
                f"The view {self.view.name!r} fails: {type(error).__name__}: {reason(error)}",
                next_step="Mend its function or the application's fields, then run again",
            ) from error
        declaration.keep(catalogue, plan, self._places, accept_changes=self._settings.accept_changes)
        return frame, catalogue

    def _check_streaming(self, frame: object) -> None:
        if not getattr(frame, "isStreaming", False):
            found = "a DataFrame that is not streaming" if hasattr(frame, "isStreaming") else f"{type(frame).__name__}"
            raise ViewInvalid(
                f"The function of the view {self.view.name!r} returns {found}, not a streaming DataFrame",
                next_step="Let it transform the events that it is given, and return the result",
            )

    def _reading(self) -> Reading:
        return Reading(
            self._layout.journal,
            self._app.fields,
            events_per_batch_max=self._settings.events_per_batch_max,
            stop_at=self._settings.stop_at,
            pause_file=self._layout.pause,
        )

    def _open_sink(self, frame: DataFrame) -> Sink | None:
        view = self.view
        factory = archive_sink(view.archive) if view.archive else view.sink
        if factory is None:
            return None
        schema = to_arrow_schema(frame.schema, timezone="UTC")
        return with_guarantee(factory(SinkContext(self._layout, view.name, schema)), view.guarantee, self._places)

    def _failure(self) -> Failure | None:
        """Why the query has ended; None while it runs."""
        assert self._query is not None
        delivered = self._delivery.error if self._delivery is not None else None
        try:
            return None if self._query.isActive else judge(self._query.exception(), delivered)
        except (Py4JError, OSError) as error:
            return judge(error)

    def _fail(self, failure: Failure) -> None:
        """Plan the next start, with a longer pause each time; or give up."""
        trouble = self._trouble
        batch = self._newest_batch()  # not the heart's: it may not have looked since
        if trouble.batch != batch:
            trouble.count, trouble.batch = 0, batch
        trouble.count += 1
        if not failure.worth_retrying or trouble.count > self._settings.restarts_max:
            self._failed = failure.why
            raise self._given_up(failure)
        doubled = 2.0 ** min(trouble.count - 1, _DOUBLINGS_MAX)
        pause_s = min(self._settings.restart_pause_s * doubled, RESTART_PAUSE_S_MAX)
        trouble.due = time.monotonic() + pause_s
        trouble.why = f"{failure.why} Restart {trouble.count} of {self._settings.restarts_max} in {pause_s:g} s"
        log.warning("view %s failed: %s", self.view.name, trouble.why)
        self._query = None

    def _given_up(self, failure: Failure) -> PipelineFailed:
        times = f", {self._trouble.count} times in a row" if self._trouble.count > 1 else ""
        return (ViewBroken if failure.lasting else PipelineFailed)(
            f"The view {self.view.name!r} stopped{times}: {failure.why}",
            where=str(self._layout.spark / DRIVER_LOG),
            next_step="Mend the cause and run again: it resumes at its last committed batch",
        )

    def _verify(self) -> None:
        """Once a run, after its first batch, which wrote the state's schema: the catalogue must fit it."""
        try:
            check_state(Catalogue.load(self._places.catalogue), self._checkpoint.storage)
        except FileNotFoundError:
            return
        self._verified = True

    def _position(self) -> Position | None:
        """Where the last batch ends."""
        try:
            return None if self._seen.batch is None else self._checkpoint.plan(self._seen.batch).position
        except (FileNotFoundError, StatesideError):
            return None

    def _newest_batch(self) -> int | None:
        return max(self._checkpoint.commits(), default=None)


_OUTPUT_MODES = {"closed": "append", "changed": "update"}
