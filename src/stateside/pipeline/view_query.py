"""One view's streaming query, through its restarts.

Restarts: when a query that failed is started again, and when that is given up.

Schema paths: where Spark finds the schemas of a `transformWithState` again.

    state/OPERATOR/_metadata/v2/BATCH := "v2
" {"stateStoreInfo": [{"stateSchemaFilePaths": [path…], …}], …}

Spark keeps these as whole paths, by the name that the checkpoint had in that run. Another leader reaches the same
folder through another gate, a restored or moved one lies elsewhere: Spark would look at the old place, and fail or
take the state for one without a schema. So before a query starts they are made to lead to where it will run.

Delivery: hands a query's batches to its sink, and holds a batch while the sink's other side is away.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from stateside.journal.partitions import StoredStream
from stateside.leadership import Leadership
from stateside.pipeline import declaration
from stateside.pipeline.app import App, View
from stateside.pipeline.dead_letters import DeadLetters
from stateside.pipeline.failures import Failure, judge, judge_start, reason
from stateside.pipeline.progress import Observation, ProgressFile, rests, waits
from stateside.pipeline.session import DRIVER_LOG
from stateside.pipeline.settings import RunSettings
from stateside.pipeline.sinks.delta import archive_sink
from stateside.pipeline.sinks.sink import BatchId, Sink, SinkContext, with_guarantee
from stateside.pipeline.sources import JournalEvents
from stateside.pipeline.view_plan import PlannedView, Planner
from stateside.spark_state.batch_log import Checkpoint
from stateside.views.catalogue import Catalogue
from stateside.views.heartbeat import Heartbeat, State
from stateside.views.state_catalogue import check_state
from stateside.views.tallies import not_in_rollups

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

PAUSE_S_MAX = 60.0
AWAY_PAUSE_S_MIN = 0.2
_DOUBLINGS_MAX = 64  # a float holds no more than a thousand


@dataclass(slots=True)
class Restarts:
    """Failures in a row, the last one's reason, and when the next start is due.

    A batch that was finished in between ends the row. Failures because something is *away* are not counted, for up to
    `hold_s_max` from the first of them on; what outlasts that is counted like any other.
    """

    restarts_max: int
    pause_s: float
    hold_s_max: float
    count: int = 0
    why: str | None = None
    due_s: float = 0.0
    _batch: int | None = None  # the newest one at the last failure
    _away_since_s: float | None = None

    @property
    def away(self) -> bool:
        """Whether the last failure was because something is away."""
        return self._away_since_s is not None

    def plan(self, failure: Failure, batch: int | None, now_s: float) -> bool:
        """Plan the next start; whether there is to be one. `batch` is the newest one, None where it cannot be told."""
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
    """Let all schema paths in a checkpoint lead into it. Its driver's to call, while no query runs on it."""
    for entry in checkpoint.glob("state/*/_metadata/v2/*"):
        if entry.name.isdigit():
            _bring_home(entry, checkpoint.absolute())


def _bring_home(entry: Path, checkpoint: Path) -> None:
    metadata = _metadata(entry.read_text())
    if metadata is None or not _moved(metadata, checkpoint):
        return
    # Without its checksum a file is read as it is: between the two steps Spark would find either content right.
    entry.with_name(f".{entry.name}.crc").unlink(missing_ok=True)
    content = f"{_VERSION}\n{json.dumps(metadata, ensure_ascii=False, separators=(',', ':'))}"
    write_atomically(entry, content.encode(), make_folder=False)


def _metadata(text: str) -> dict[str, Any] | None:
    """None of what is not as we know it: Spark says itself what it makes of that."""
    version, _, document = text.partition("\n")
    try:
        found = json.loads(document) if version == _VERSION else None
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _moved(metadata: dict[str, Any], checkpoint: Path) -> bool:
    """Put the paths right; whether any was not."""
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
_AWAY = (SinkAway, ArchiveInvalid, JournalAway, OSError)  # a table that is gone, a full disk: it may come back
log = logging.getLogger(__name__)


def always() -> None:
    """Who runs without a lease may always write."""


class BatchDelivery:
    """What Spark calls for each batch of a query (`foreachBatch`): one action on its rows, once.

    While the other side is away the batch is held here, uncommitted, and tried again with longer and longer pauses.
    Spark waits meanwhile, events stay in the journal, and readers keep the last batch. `holding` says why.
    """

    def __init__(
        self, sink: Sink, checkpoint: Checkpoint, hold_s_max: float, may_write: Callable[[], None] = always
    ) -> None:
        """`may_write` is asked before each attempt, and raises LeadershipLost if this process may not any more."""
        self._sink = sink
        self._checkpoint = checkpoint
        self._hold_s_max = hold_s_max
        self._may_write = may_write
        self._stopping = threading.Event()
        self.holding: str | None = None
        self.error: Exception | None = None

    def __call__(self, rows: DataFrame, batch: int) -> None:
        """Deliver the batch; raises only what holding does not help against, or what outlasts it."""
        try:
            self._deliver(rows, BatchId(self._query_of(batch), batch))
        except Exception as error:
            self.error = error  # Spark tells it on as text only
            raise
        finally:
            self.holding = None

    def stop(self) -> None:
        """Hold no longer: the batch that is held fails, uncommitted, and is repeated by the next run."""
        self._stopping.set()

    def _deliver(self, rows: DataFrame, batch: BatchId) -> None:
        table = rows.toArrow()
        pause_s, deadline = PAUSE_S_MIN, time.monotonic() + self._hold_s_max
        while True:
            try:
                self._may_write()
                return self._sink.write(table, batch)
            except _AWAY as error:
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    raise
                self._hold(batch, str(error))
                if self._stopping.wait(min(pause_s, left_s)):
                    raise
            pause_s = min(2 * pause_s, HOLD_PAUSE_S_MAX)

    def _query_of(self, batch: int) -> str:
        """The query's id; CheckpointAway if its checkpoint, or the batch's plan in it, is not there.

        Spark itself does not notice: it would write the plan of the next batch into a new folder. If the batch were
        delivered then, and the checkpoint came back without that plan, other events would get the batch's number.
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


_END_POLL_S = 0.02


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
        self._delivery: BatchDelivery | None = None
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
            self._delivery = BatchDelivery(sink, self._checkpoint, self._settings.hold_s_max, may_write)
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
