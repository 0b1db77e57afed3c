"""One view's streaming query, through its restarts."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException
from pyspark.sql.pandas.types import to_arrow_schema

from stateside.checkpoint.catalogue import Catalogue
from stateside.checkpoint.heartbeat import Heartbeat, State
from stateside.checkpoint.log import Checkpoint
from stateside.checkpoint.tallies import not_in_rollups
from stateside.checkpoint.variable_catalogue import check_state
from stateside.errors import (
    CheckpointInvalid,
    OperatingError,
    PipelineFailed,
    StatesideError,
    ViewBroken,
    ViewInvalid,
)
from stateside.journal.stored import StoredStream
from stateside.layout import Layout
from stateside.leadership import Leadership
from stateside.pipeline import declaration
from stateside.pipeline.app import App, View
from stateside.pipeline.dead_letters import DeadLetters
from stateside.pipeline.delivery import Delivery, always
from stateside.pipeline.failures import Failure, judge, judge_start, reason
from stateside.pipeline.observation import Observation, rests, waits
from stateside.pipeline.planning import PlannedView, Planner
from stateside.pipeline.progress import ProgressFile
from stateside.pipeline.restarts import Restarts
from stateside.pipeline.schema_paths import bring_home
from stateside.pipeline.session import DRIVER_LOG
from stateside.pipeline.settings import RunSettings
from stateside.pipeline.sinks.delta import archive_sink
from stateside.pipeline.sinks.guarantee import with_guarantee
from stateside.pipeline.sinks.sink import Sink, SinkContext
from stateside.pipeline.sources import JournalEvents
from stateside.positions import Position
from stateside.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_END_POLL_S = 0.02

log = logging.getLogger(__name__)


class ViewQuery:
    """Starts a view's query, watches it, starts it again after a failure that is worth it, and stops it.

    Two threads use it: the runner's main one starts, tends and stops; the heart looks (`heartbeat`, `observe`).
    """

    def __init__(
        self,
        app: App,
        view: View,
        layout: Layout,
        session: SparkSession,
        settings: RunSettings,
        leadership: Leadership | None = None,
    ) -> None:
        """With a `leadership` the layout is the one of its gate."""
        self.view = view
        self._leadership = leadership
        self._query_id: str | None = None
        self._layout, self._session, self._settings = layout, session, settings
        self._places = layout.view(view.name)
        self._checkpoint = Checkpoint(Storage.at(self._places.checkpoint))
        self._source = app.source_of(view)
        self._planner = Planner(app, layout, settings, layout.pause if leadership is None else leadership.pause_file)
        self._query: StreamingQuery | None = None
        self._last: StreamingQuery | None = None  # the one that failed; it may not have ended yet
        self._delivery: Delivery | None = None
        self._restarts = Restarts(settings.restarts_max, settings.restart_pause_s, settings.hold_s_max)
        self._dead_letters = DeadLetters(layout, view.name, self._checkpoint)
        self._seen = Observation(
            ProgressFile(self._places.progress),
            self._newest_batch(),
            self._settings.batch_interval_ms,
            self._dead_letters.collect,
        )
        self._verified = view.key is None
        self._failed: str | None = None

    def start(self) -> None:
        """Plan the query, keep its declaration, and start it; ViewInvalid if it cannot be run as declared."""
        plan = self._plan()
        frame, catalogue = plan.frame, plan.catalogue
        if catalogue is not None and (lacking := not_in_rollups(catalogue)):
            log.warning(
                "view %s: its rollups do not have %s: only counts, sums and averages can be taken away again",
                self.view.name,
                ", ".join(lacking),
            )
        sink = self._open_sink(frame)
        self._dead_letters.begin()
        bring_home(self._places.checkpoint)
        writer = frame.writeStream.queryName(self.view.name).option("checkpointLocation", str(self._places.checkpoint))
        if self._settings.batch_interval_ms:
            writer = writer.trigger(processingTime=f"{self._settings.batch_interval_ms} milliseconds")
        if sink is None:
            sessions = catalogue is not None and catalogue.kind == "session"  # Spark has no update mode for them
            writer = writer.outputMode("append" if sessions else "update").format("noop")
        else:
            may_write = always if self._leadership is None else self._leadership.check
            self._delivery = Delivery(sink, self._checkpoint, self._settings.hold_s_max, may_write)
            writer = writer.outputMode(_OUTPUT_MODES[self.view.rows]).foreachBatch(self._delivery)
        try:
            self._query = writer.start()
            self._query_id = self._query_id or str(self._query.id)
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
            if time.monotonic() >= self._restarts.due_s:
                self._start_again()
            return
        failure = self._failure()
        if (failure is None or failure.worth_retrying) and not self._has_its_checkpoint():
            self.hold_no_longer()
            self.stop()  # Spark itself goes on for a while, in a folder that it makes anew
            self._fail(self._missing_checkpoint())
        elif failure is not None:
            self._fail(failure)
        elif not self._verified and self._seen.in_this_run:
            self._verify()

    def _start_again(self) -> None:
        if _is_active(self._last):  # in the middle of a batch: Spark takes no second query of its name
            return
        if not self._has_its_checkpoint():  # without it Spark would begin a new one, from the first event on
            self._fail(self._missing_checkpoint())
            return
        try:
            self.start()
        except ConnectionError:  # the one to the JVM
            raise
        except (OperatingError, OSError) as error:  # a sink or a disk that is away counts like a failure while it runs
            self._fail(judge_start(error))

    def _has_its_checkpoint(self) -> bool:
        """Whether the checkpoint that this run began with is still at its place."""
        try:
            return self._checkpoint.query_id() == self._query_id
        except (OSError, CheckpointInvalid):
            return False

    def _missing_checkpoint(self) -> Failure:
        place = self._checkpoint.storage.root
        why = f"The checkpoint is away, or another one is in its place ({place}). Bring it back: the view waits for it."
        return Failure(why, worth_retrying=True, away=True)

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

    def heartbeat(self, time_us: int, journal_end: Position | None) -> Heartbeat:
        """The sign of life; `journal_end` was read after `time_us`, and is None while the journal is away."""
        state, why = self.state()
        if isinstance(self._source, JournalEvents):
            return Heartbeat(time_us, journal_end, state, self._seen.batch, why)
        asked_us = self._seen.asked_since(time_us) if state == "idle" else None
        end_us = self._seen.caught_up_us if asked_us is None else asked_us
        end = None if end_us is None else self._position()
        return Heartbeat(time_us, end, state, self._seen.batch, why, None if end is None else end_us)

    def state(self) -> tuple[State, str | None]:
        """In which state the view is, and why if it waits or has failed."""
        if self._failed is not None:
            return "failed", self._failed
        if self._delivery is not None and self._delivery.holding is not None:
            return "holding", self._delivery.holding
        if self._query is None or (self._restarts.away and not self._seen.works):
            return "holding", self._restarts.why or "it is starting"
        return ("idle" if self._seen.waiting else "running"), None

    def observe(self, time_us: int) -> list[dict[str, Any]]:
        """Look at the query, at this time, keep the progress of batches that it finished since, and return them."""
        return self._seen.look(time_us)

    def _plan(self) -> PlannedView:
        plan, accept = self._planner.plan(self.view, self._session), self._settings.accept_changes
        declaration.keep(plan.catalogue, plan.text, self._places, accept_changes=accept)
        return plan

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
        """Plan the next start, or give up."""
        before, batch = self._restarts.why, self._newest_batch_if_told()
        if not self._restarts.plan(failure, batch, time.monotonic()):
            self._failed = failure.why
            raise self._given_up(failure)
        if self._restarts.why != before:
            log.warning("view %s failed: %s", self.view.name, self._restarts.why)
        self._last, self._query = self._query or self._last, None

    def _given_up(self, failure: Failure) -> PipelineFailed:
        times = f", {self._restarts.count} times in a row" if self._restarts.count > 1 else ""
        return (ViewBroken if failure.lasting else PipelineFailed)(
            f"The view {self.view.name!r} stopped{times}: {failure.why}",
            where=str(self._layout.spark / DRIVER_LOG),
            next_step="Mend the cause and run again: it resumes at its last committed batch",
        )

    def _verify(self) -> None:
        """Once a run, after its first batch, which wrote the state's schema: the catalogue must fit it."""
        try:
            check_state(Catalogue.load(self._places.catalogue), self._checkpoint.storage)
        except OSError:  # not there yet, or away: then later
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

    def _newest_batch_if_told(self) -> int | None:
        """The same, looked up now: the heart may not have looked since. None also while the checkpoint is away."""
        try:
            return self._newest_batch()
        except OSError:
            return None


def _is_active(query: StreamingQuery | None) -> bool:
    try:
        return query is not None and query.isActive
    except (Py4JError, OSError):  # the JVM is gone, which the next start tells
        return False


_OUTPUT_MODES = {"closed": "append", "changed": "update"}
