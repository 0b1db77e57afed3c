"""A view's streaming query: its start, restarts, delivery to the sink, and stop.

Schema paths of a `transformWithState`:

    state/OPERATOR/_metadata/v2/BATCH := "v2\n" {"stateStoreInfo": [{"stateSchemaFilePaths": [path…], …}], …}

Spark stores absolute paths, by the checkpoint's path in that run. Another leader reaches the same folder through
another gate, and a restored or moved checkpoint lies elsewhere: Spark would look at the old path, and fail or treat the
state as one without a schema. So `bring_home` rewrites the paths before a query starts.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException
from pyspark.sql.pandas.types import to_arrow_schema

from stateside.core.errors import (
    ArchiveInvalid,
    CheckpointAway,
    CheckpointInvalid,
    JournalAway,
    OperatingError,
    PipelineFailed,
    SinkAway,
    StatesideError,
    ViewBroken,
    ViewInvalid,
)
from stateside.core.layout import Layout
from stateside.core.positions import Position
from stateside.core.storage import Storage, write_atomically
from stateside.inspection.batch_reports import read_progress
from stateside.journal import open_journal
from stateside.leadership import Leadership
from stateside.pipeline import declaration
from stateside.pipeline.app import App, View
from stateside.pipeline.dead_letters import DeadLetters
from stateside.pipeline.failures import Failure, judge, judge_start, reason
from stateside.pipeline.progress import Observation, Pace, ProgressFile, TotalsFile, pace_file, rests, waits
from stateside.pipeline.session import DRIVER_LOG, cores, session_conf, task_figures
from stateside.pipeline.settings import RunSettings
from stateside.pipeline.sinks.delta import archive_sink
from stateside.pipeline.sinks.files import files
from stateside.pipeline.sinks.sink import BatchId, Sink, SinkContext, is_inside, is_sweeping_late, with_guarantee
from stateside.pipeline.sources import JournalEvents
from stateside.pipeline.view_plan import PlannedView, Planner
from stateside.pipeline.watermarks import rows_dropped
from stateside.spark_state.batch_log import SHUFFLE_PARTITIONS, Checkpoint
from stateside.views.aggregates import not_in_rollups
from stateside.views.catalogue import Catalogue
from stateside.views.heartbeat import Heartbeat, State
from stateside.views.plan_history import BatchReplay, PlanHistory
from stateside.views.savepoint import savepoints
from stateside.views.state_catalogue import check_state

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from stateside.pipeline.batch_spans import BatchSpans

PAUSE_S_MAX = 60.0
AWAY_PAUSE_S_MIN = 0.2
_DOUBLINGS_MAX = 64  # a float overflows after about 1,000


@dataclass(slots=True)
class Restarts:
    """Consecutive failures, the last reason, and the time of the next start.

    A finished batch resets the count. Failures because a resource is *away* do not count for up to `hold_s_max` from
    the first of them on; after that time they count like any other.
    """

    restarts_max: int
    pause_s: float
    hold_s_max: float
    count: int = 0
    why: str | None = None
    due_s: float = 0.0
    _batch: int | None = None  # the newest batch at the last failure
    _away_since_s: float | None = None

    @property
    def away(self) -> bool:
        """Whether the last failure was because a resource is away."""
        return self._away_since_s is not None

    def plan(self, failure: Failure, batch: int | None, now_s: float) -> bool:
        """Plan the next start; returns whether there is one. `batch` is the newest batch, None if unknown."""
        progressed = batch is not None and batch != self._batch
        if progressed:
            self.count, self._batch = 0, batch
        if progressed or not failure.away:
            self._away_since_s = None
        return self._plan_held(failure, now_s) if failure.away else self._plan_counted(failure, now_s)

    def _plan_held(self, failure: Failure, now_s: float) -> bool:
        if self._away_since_s is None:
            self._away_since_s = now_s
        if now_s - self._away_since_s >= self.hold_s_max:
            return self._plan_counted(failure, now_s)
        self.due_s = now_s + max(self.pause_s, AWAY_PAUSE_S_MIN)
        self.why = failure.why
        return True

    def _plan_counted(self, failure: Failure, now_s: float) -> bool:
        self.count += 1
        if not failure.worth_retrying or self.count > self.restarts_max:
            return False
        pause_s = min(self.pause_s * 2.0 ** min(self.count - 1, _DOUBLINGS_MAX), PAUSE_S_MAX)
        self.due_s = now_s + pause_s
        self.why = f"{failure.why} Restart {self.count} of {self.restarts_max} in {pause_s:g} s"
        return True


_VERSION = "v2"
_WITHIN = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*:)?.*/(?P<rest>state/\d+/_stateSchema/[^/]+/[^/]+)")


def bring_home(checkpoint: Path) -> None:
    """Rewrite all schema paths in a checkpoint to lie inside it.

    For the driver only, while no query runs on the checkpoint.
    """
    for entry in checkpoint.glob("state/*/_metadata/v2/*"):
        if entry.name.isdigit():
            _bring_home(entry, checkpoint.absolute())


def _bring_home(entry: Path, checkpoint: Path) -> None:
    metadata = _metadata(entry.read_text())
    if metadata is None or not _moved(metadata, checkpoint):
        return
    # Spark reads a file without a checksum unchecked, so both contents are valid between the two steps.
    entry.with_name(f".{entry.name}.crc").unlink(missing_ok=True)
    content = f"{_VERSION}\n{json.dumps(metadata, ensure_ascii=False, separators=(',', ':'))}"
    write_atomically(entry, content.encode(), make_folder=False)


def _metadata(text: str) -> dict[str, Any] | None:
    """The parsed document; None for an unknown format, which is left for Spark to report."""
    version, _, document = text.partition("\n")
    try:
        found = json.loads(document) if version == _VERSION else None
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _moved(metadata: dict[str, Any], checkpoint: Path) -> bool:
    """Correct the paths; returns whether any has changed."""
    changed = False
    for store in metadata.get("stateStoreInfo", ()):
        before = store.get("stateSchemaFilePaths", [])
        after = [_path_in(path, checkpoint) for path in before]
        changed = changed or before != after
        store["stateSchemaFilePaths"] = after
    return changed


def _path_in(path: str, checkpoint: Path) -> str:
    found = _WITHIN.fullmatch(path)
    return path if found is None else f"{found['scheme'] or ''}{checkpoint}/{found['rest']}"


PAUSE_S_MIN = 0.2
HOLD_PAUSE_S_MAX = 10.0
_AWAY = (SinkAway, ArchiveInvalid, JournalAway, OSError)  # a missing table or a full disk may come back
log = logging.getLogger(__name__)


def always() -> None:
    """The check of a run without a lease: writing is always allowed."""


class BatchDelivery:
    """The `foreachBatch` function of a query: one action on a batch's rows, once.

    While the sink's destination is away, the batch is held here, uncommitted, and retried with growing pauses. Spark
    waits meanwhile, events stay in the journal, and readers keep the last batch. `holding` has the reason.
    """

    def __init__(
        self,
        sink: Sink | None,
        checkpoint: Checkpoint,
        hold_s_max: float,
        may_write: Callable[[], None] = always,
        late: Callable[[BatchId], None] | None = None,
    ) -> None:
        """`may_write` is called before each attempt, and raises LeadershipLost if this process no longer leads.

        `late` delivers the batch's late events.
        """
        self._sink = sink
        self._late = late
        self._checkpoint = checkpoint
        self._hold_s_max = hold_s_max
        self._may_write = may_write
        self._stopping = threading.Event()
        self.holding: str | None = None
        self.error: Exception | None = None
        self.sink_ms = -1, 0  # the last batch that was written, and for how long, pauses included

    def __call__(self, rows: DataFrame, batch: int) -> None:
        """Deliver the batch; raises errors that holding cannot cure, or that outlast `hold_s_max`."""
        try:
            self._deliver(rows, BatchId(self._query_of(batch), batch))
        except Exception as error:
            self.error = error  # Spark passes it on only as text
            raise
        finally:
            self.holding = None

    def stop(self) -> None:
        """Stop holding: the held batch fails, uncommitted, and the next run repeats it."""
        self._stopping.set()

    def _deliver(self, rows: DataFrame, batch: BatchId) -> None:
        table = _computed(rows, self._sink)
        begun_s = time.monotonic()
        self._write(table, batch)
        self.sink_ms = batch.batch, round(1_000 * (time.monotonic() - begun_s))

    def _write(self, table: pa.Table | None, batch: BatchId) -> None:
        pause_s, deadline = PAUSE_S_MIN, time.monotonic() + self._hold_s_max
        while True:
            try:
                self._may_write()
                if self._sink is not None and table is not None:
                    self._sink.write(table, batch)
                return None if self._late is None else self._late(batch)
            except _AWAY as error:
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    raise
                self._hold(batch, str(error))
                if self._stopping.wait(min(pause_s, left_s)):
                    raise
            pause_s = min(2 * pause_s, HOLD_PAUSE_S_MAX)

    def _query_of(self, batch: int) -> str:
        """The query's id; CheckpointAway if the checkpoint, or the batch's plan in it, is missing.

        Spark itself does not notice: it would write the plan of the next batch into a new folder. If the batch were
        delivered and the checkpoint came back without the plan, other events would get the batch's number.
        """
        query = self._checkpoint.query_id()
        if query is None or not self._checkpoint.storage.exists(f"offsets/{batch}"):
            raise CheckpointAway(
                f"The checkpoint with the plan of batch {batch} is away",
                where=self._checkpoint.storage.root,
                next_step="Bring it back: nothing of the batch was delivered, and the view waits",
            )
        return query

    def _hold(self, batch: BatchId, why: str) -> None:
        if why != self.holding:
            log.warning("batch %d is held: %s", batch.batch, why)
        self.holding = why


def _computed(rows: DataFrame, sink: Sink | None) -> pa.Table | None:
    """The rows for the sink; without a sink they are computed, which brings the state forward, and not fetched."""
    if sink is not None:
        return rows.toArrow()
    rows.write.format("noop").mode("append").save()
    return None


_END_POLL_S = 0.02


class ViewQuery:
    """A view's query: start, observation, restarts after retryable failures, stop.

    Used by two threads: the runner's main thread starts, tends and stops; the heartbeat thread reads (`heartbeat`,
    `observe`).
    """

    def __init__(
        self,
        app: App,
        view: View,
        layout: Layout,
        session: SparkSession,
        settings: RunSettings,
        leadership: Leadership | None = None,
        spans: BatchSpans | None = None,
    ) -> None:
        """With a `leadership`, the layout is the gate's."""
        self.view, self._spans = view, spans
        self._leadership = leadership
        self._query_id: str | None = None
        self._layout, self._session, self._settings = layout, session, settings
        self.places = layout.view(view.name)
        self._checkpoint = Checkpoint(Storage.at(self.places.checkpoint))
        self._source = app.source_of(view)
        self._planner = Planner(app, layout, settings, layout.pause if leadership is None else leadership.pause_file)
        self._query: StreamingQuery | None = None
        self._last: StreamingQuery | None = None  # the failed query, which may not have ended yet
        self._delivery: BatchDelivery | None = None
        self._restarts = Restarts(settings.restarts_max, settings.restart_pause_s, settings.hold_s_max)
        self._dead_letters = DeadLetters(layout, view.name, self._checkpoint)
        self._seen = Observation(
            ProgressFile(self.places.progress),
            self._newest_batch(),
            self._settings.batch_interval_ms,
            self._dead_letters.collect,
            Pace.of(settings, pace_file(self.places), read_progress(self.places.progress)),
            self.places.late_rows,
            self._further,
        )
        self._totals, self._starts = TotalsFile(self.places), 0
        self._history = PlanHistory(self.places.batches, self._checkpoint, self._oldest_savepoint)
        self._writer: DataStreamWriter | None = None
        self._replay: BatchReplay | None = None  # None without a sink: nothing was delivered
        self.replays = False
        self._tasks: int | None = None  # the state's partitions, known after a batch; 0 if it cannot have several
        self._skips = view.skips and bool(layout.pinned)  # in a backfill
        self._verified = view.key is None
        self._failed: str | None = None
        self._caught_up = False

    def start(self) -> None:
        """Plan and start the query, and keep its declaration; ViewInvalid if the view cannot be run as declared."""
        plan = self._plan()
        frame, catalogue = plan.frame, plan.catalogue
        if catalogue is not None and (lacking := not_in_rollups(catalogue)):
            log.warning(
                "view %s: its rollups do not have %s: only counts, sums and averages can be taken away again",
                self.view.name,
                ", ".join(lacking),
            )
        sink, late = self._open_sink(frame), self._open_late(plan)
        self._dead_letters.begin()
        self._seen.pace.begin()
        bring_home(self.places.checkpoint)
        writer = frame.writeStream.queryName(self.view.name).option("checkpointLocation", str(self.places.checkpoint))
        if sink is None and late is None:
            sessions = catalogue is not None and catalogue.kind == "session"  # Spark has no update mode for sessions
            writer = writer.outputMode("append" if sessions else "update").format("noop")
        else:
            may_write = always if self._leadership is None else self._leadership.check
            delivered = None if self._skips else sink
            self._delivery = BatchDelivery(delivered, self._checkpoint, self._settings.hold_s_max, may_write, late)
            mode = "update" if sink is None else _OUTPUT_MODES[self.view.rows]
            writer = writer.outputMode(mode).foreachBatch(self._delivery)
            self._replay = BatchReplay(self.places.replayed, self._checkpoint)
        self._writer = writer
        self._launch()
        self._starts += 1

    def _launch(self) -> None:
        """Start the planned query: for the next batch to be replayed alone, if there is one."""
        assert self._writer is not None
        before, self.replays = self.replays, self._replay is not None and self._replay.plan_next()
        if self.replays != before and self._replay is not None:
            log.info("view %s: %d batches run again, as before the restore", self.view.name, self._replay.left())
        if self.replays:
            writer = self._writer.trigger(once=True)
        elif self._settings.until_caught_up:
            writer = self._writer.trigger(availableNow=True)  # ends by itself, at the source's end as of now
        else:
            writer = self._writer.trigger(processingTime=f"{self._settings.batch_interval_ms} milliseconds")
        try:
            with session_conf(self._session, self._partitions()):
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
                f"The view {self.view.name!r} did not start: {reason(error)}", where=str(self.places.checkpoint)
            ) from error

    def _partitions(self) -> dict[str, int]:
        """Of a state's first batch: the number of the settings, or that of the generation before, or the session's."""
        number: int | None = self._settings.partitions
        if not number and self._layout.pinned:
            number = declaration.state_partitions(Layout(self._layout.root).view(self.view.name))
        return {SHUFFLE_PARTITIONS: number} if number else {}

    def tend(self) -> None:
        """Restart the query if it failed and a restart is due; PipelineFailed once restarts are given up."""
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
        if self.caught_up:
            if not self._verified:
                self._verify()
            return
        failure = self._failure()
        if failure is not None and self._has_ended() and (self.replays or self._settings.until_caught_up):
            if self.replays:
                self._launch()
            return
        if (failure is None or failure.worth_retrying) and not self._has_its_checkpoint():
            self.hold_no_longer()
            self.stop()  # Spark itself continues for a while, in a new folder
            self._fail(self._missing_checkpoint())
        elif failure is not None:
            self._fail(failure)
        elif not self._verified and self._seen.in_this_run:
            self._verify()

    @property
    def caught_up(self) -> bool:
        """With `until_caught_up`: whether the query has processed all events of its start, and ended."""
        if self._settings.until_caught_up and not self._caught_up and not self.replays:
            self._caught_up = self._has_ended()
        return self._caught_up

    def _has_ended(self) -> bool:
        """Whether the query has ended by itself."""
        with suppress(Py4JError, OSError):  # the JVM is gone
            return self._query is not None and not self._query.isActive and self._query.exception() is None
        return False

    def _start_again(self) -> None:
        if _is_active(self._last):  # still inside a batch: Spark accepts no second query of its name
            return
        if not self._has_its_checkpoint():  # without a checkpoint Spark would start from the first event
            self._fail(self._missing_checkpoint())
            return
        try:
            self.start()
        except ConnectionError:  # the connection to the JVM
            raise
        except (OperatingError, OSError) as error:  # counts like a failure of a running query
            self._fail(judge_start(error))

    def _has_its_checkpoint(self) -> bool:
        """Whether the checkpoint of this run's start is still in place."""
        try:
            return self._checkpoint.query_id() == self._query_id
        except (OSError, CheckpointInvalid):
            return False

    def _missing_checkpoint(self) -> Failure:
        place = self._checkpoint.storage.root
        why = f"The checkpoint is away, or another one is in its place ({place}). Bring it back: the view waits for it."
        return Failure(why, worth_retrying=True, away=True)

    def run_to_end(self, told_to_stop: Callable[[], bool] = lambda: False) -> None:
        """Run until all present events of the source are processed, and the batch without data after them.

        Spark's own `processAllAvailable` would not return from a view with processing-time timers, whose batches
        without data follow each other without end. Sources whose end only Spark knows use `processAllAvailable`.
        """
        journal = open_journal(self._layout.journal)
        end = journal.in_stamps(journal.end())
        stop_at = self._settings.stop_at
        target = stop_at if stop_at is not None and end.covers(stop_at) else end
        while not told_to_stop() and not self._has_processed(target):
            self.tend()
            time.sleep(_END_POLL_S)
        if not self._verified and not told_to_stop():
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

    def quiet(self, *, closed: bool = False) -> bool:
        """Whether no batch is running, and with `closed` none is due that only closes rows."""
        try:
            return self._query is None or not self._query.isActive or (waits if closed else rests)(self._query)
        except (Py4JError, OSError):
            return True

    def hold_no_longer(self) -> None:
        """Before a stop: give up a batch that is held for its sink, uncommitted."""
        if self._delivery is not None:
            self._delivery.stop()

    def stop(self) -> None:
        """Stop the query, even inside a batch; the next run repeats the batch."""
        if self._query is not None:
            with suppress(Py4JError, OSError):  # the JVM is gone, with the query
                self._query.stop()

    def heartbeat(self, time_us: int, journal_end: Position | None) -> Heartbeat:
        """The heartbeat; `journal_end` was read after `time_us`, and is None while the journal is away."""
        state, why = self.state()
        if isinstance(self._source, JournalEvents):
            return Heartbeat(time_us, journal_end, state, self._seen.batch, why)
        asked_us = self._seen.asked_since(time_us) if state == "idle" else None
        end_us = self._seen.caught_up_us if asked_us is None else asked_us
        end = None if end_us is None else self.position()
        return Heartbeat(time_us, end, state, self._seen.batch, why, None if end is None else end_us)

    def state(self) -> tuple[State, str | None]:
        """The state of the view, and the reason if it waits or has failed."""
        if self._failed is not None:
            return "failed", self._failed
        if self._delivery is not None and self._delivery.holding is not None:
            return "holding", self._delivery.holding
        if self._query is None or (self._restarts.away and not self._seen.works):
            return "holding", self._restarts.why or "it is starting"
        return ("idle" if self._seen.waiting or self.caught_up else "running"), None

    def observe(self, time_us: int) -> list[dict[str, Any]]:
        """Observe the query at this time; keeps and returns the progress of newly finished batches."""
        finished = self._seen.look(time_us)
        self._totals.add(finished)
        self._history.note(int(progress["batchId"]) for progress in finished)
        delivery = self._delivery
        self._totals.save(self._starts, sink_held=delivery is not None and delivery.holding is not None)
        return finished

    def _oldest_savepoint(self) -> int | None:
        return min((one.batch for one in savepoints(self.places, lambda damaged: None)), default=None)

    def _further(self, progress: Mapping[str, Any]) -> dict[str, Any]:
        """What the report of a batch has besides Spark's figures."""
        trace = None if self._spans is None else self._spans.tell(self.view.name, progress)
        return self._figures(int(progress["batchId"])) | ({} if trace is None else {"traceparent": trace})

    def _figures(self, batch: int) -> dict[str, int]:
        """Figures for a batch's report: `inspection.batch_reports` lists them."""
        if self._tasks is None:
            self._tasks = declaration.state_partitions(self.places) or 0
        settings, delivery = self._settings, self._delivery
        figures = {"triggerMs": settings.batch_interval_ms, "batchesKept": settings.batches_kept}
        figures |= {"lateKept": int(self.view.late != "count" or is_sweeping_late(self.view.sink))}
        figures |= task_figures(self._session)
        if delivery is None or delivery.sink_ms[0] == batch:
            figures["sinkMs"] = 0 if delivery is None else delivery.sink_ms[1]
        return figures | ({"cores": cores(self._session), "partitions": self._tasks} if self._tasks else {})

    def _plan(self) -> PlannedView:
        plan, accept = self._planner.plan(self.view, self._session), self._settings.accept_changes
        declaration.keep(plan.catalogue, plan.text, self.places, accept_changes=accept)
        return plan

    def _open_sink(self, frame: DataFrame) -> Sink | None:
        view = self.view
        factory = archive_sink(view.archive) if view.archive else view.sink
        if factory is None:
            return None
        if self._layout.fork.exists() and not is_inside(factory):
            log.warning("view %s: this is a fork: its rows go to files/%s, not to its sink", view.name, view.name)
            factory = files(view.name, format="jsonl")
        schema = to_arrow_schema(frame.schema, timezone="UTC")
        return with_guarantee(factory(SinkContext(self._layout, view.name, schema)), view.guarantee, self.places)

    def _open_late(self, plan: PlannedView) -> Callable[[BatchId], None] | None:
        """The delivery of a batch's late events; None for a view that only counts them."""
        sweep, view = plan.late, self.view
        if sweep is None:
            return None
        sweep.check(self._session)
        factory = archive_sink(f"{view.archive}_corrections") if view.late == "corrections" else view.late
        schema = to_arrow_schema(plan.frame.schema, timezone="UTC")
        sink = factory(SinkContext(self._layout, view.name, schema)) if callable(factory) else None
        if self._skips and sink is not None:
            return None

        def deliver(batch: BatchId) -> None:
            query = self._query
            if batch.batch == 0 or (query is not None and not rows_dropped(query)):
                return
            found = self._checkpoint.range_of(batch.batch)
            if sink is None:
                sweep.write_letters(self._session, found)
            elif (rows := sweep.rows(self._session, found)).num_rows:
                sink.write(rows, batch)

        return deliver

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
        """Once per run, after the first batch has written the state's schema: the catalogue must fit the schema."""
        try:
            check_state(Catalogue.load(self.places.catalogue), self._checkpoint.storage)
        except OSError:  # not written yet, or away: check later
            return
        self._verified = True

    def position(self) -> Position | None:
        """The end position of the last batch."""
        try:
            return None if self._seen.batch is None else self._checkpoint.plan(self._seen.batch).position
        except (FileNotFoundError, StatesideError):
            return None

    def _newest_batch(self) -> int | None:
        return max(self._checkpoint.commits(), default=None)

    def _newest_batch_if_told(self) -> int | None:
        """`_newest_batch`, read now because the heartbeat thread may lag; None also while the checkpoint is away."""
        try:
            return self._newest_batch()
        except OSError:
            return None


def _is_active(query: StreamingQuery | None) -> bool:
    try:
        return query is not None and query.isActive
    except (Py4JError, OSError):  # the JVM is gone: the next start reports that
        return False


_OUTPUT_MODES = {"closed": "append", "changed": "update"}
