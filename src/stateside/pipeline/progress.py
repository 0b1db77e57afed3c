"""Progress of batches: Spark's own reports, observed while a query runs and kept beside the checkpoint as JSON lines.

progress.jsonl      the newest batches, up to LINES_MAX
progress.1.jsonl    the LINES_MAX before them
totals.json         sums over all batches (`views.job_totals`)

`inspection.batch_reports` reads the lines, and lists the figures that are added to Spark's report.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from stateside.core.json_file import JsonFile
from stateside.core.layout import LATE_ROWS, ViewLayout
from stateside.inspection.batch_reports import events_left, older, read_progress, rows_too_late
from stateside.views.job_totals import JOB_TOTALS, JobTotals

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from stateside.pipeline.settings import RunSettings

LINES_MAX = 2_000  # about 3 KB each: two files are 12 MB per view


class ProgressFile:
    """An append-only file, rotated when full. One writer; readers at any time."""

    def __init__(self, path: Path, lines_max: int = LINES_MAX) -> None:
        self._path = path
        self._lines_max = lines_max
        self._lines = _count(path)

    def append(self, progress: dict[str, Any]) -> None:
        if self._lines >= self._lines_max:
            self._path.replace(older(self._path))
            self._lines = 0
        with self._path.open("a") as file:
            file.write(json.dumps(progress, separators=(",", ":")) + "\n")
        self._lines += 1


def _count(path: Path) -> int:
    if not path.exists():
        return 0
    content = path.read_bytes()
    if content and not content.endswith(b"\n"):  # a crash cut the last line short: end it
        with path.open("ab") as file:
            file.write(b"\n")
    return content.count(b"\n") + (not content.endswith(b"\n") and bool(content))


RECENT = 3  # batches whose costs decide about a larger one
EVENTS_FIRST = 50_000  # of the first batch, before any duration is known
EVENTS_MIN = 1_000
GROWTH_MAX = 2.0  # from one batch to the next
SHRINKING_MAX = 8.0
_FULL = 0.9  # a batch with a smaller part of its limit had no more events to take


@dataclass(frozen=True, slots=True)
class BatchCost:
    """The events of a batch, its duration, and the part that any batch takes: planning, logs, commits of the state."""

    events: int
    took_ms: float
    fixed_ms: float

    @classmethod
    def of(cls, progress: Mapping[str, Any]) -> BatchCost:
        """From Spark's report. Commits of the state are part of `addBatch`, reported as a sum over all stores."""
        durations = progress["durationMs"]
        took_ms = durations["triggerExecution"]
        operators = progress.get("stateOperators", ())
        commits = [each.get("commitTimeMs", 0) / max(1, each.get("numStateStoreInstances", 1)) for each in operators]
        fixed_ms = took_ms - durations.get("addBatch", took_ms) + max(commits, default=0)
        return cls(progress["numInputRows"], took_ms, min(fixed_ms, took_ms))

    def events_in(self, target_ms: int) -> float:
        """How many events a batch with these costs takes in `target_ms`, or in twice the fixed cost if that is more."""
        event_ms = max(self.took_ms - self.fixed_ms, 1) / self.events
        return max(target_ms - self.fixed_ms, self.fixed_ms) / event_ms


@dataclass(frozen=True, slots=True)
class BatchSizes:
    """How many events the next batch takes, so that batches take about `target_ms`.

    After a batch that took too long the next one is smaller at once; after full batches it grows, by GROWTH_MAX at most
    and by the worst of the RECENT ones. Where the fixed cost is more than half of the target, as with a slow checkpoint
    store, smaller batches would only cost throughput: a batch then takes about twice the fixed cost.
    """

    target_ms: int
    events_max: int

    @property
    def first(self) -> int:
        return min(EVENTS_FIRST, self.events_max)

    def after(self, limit: int, recent: Sequence[BatchCost]) -> int:
        """The events of the next batch; `limit` was that of the newest one in `recent`."""
        last, wanted = recent[-1], [batch.events_in(self.target_ms) for batch in recent]
        if last.events >= _FULL * limit and min(wanted) > limit:
            return self._bounded(min(min(wanted), limit * GROWTH_MAX))
        tells = last.events >= limit / SHRINKING_MAX  # a batch of few events says nothing about the limit
        if last.took_ms > self.target_ms and wanted[-1] < limit and tells:
            return self._bounded(max(wanted[-1], limit / SHRINKING_MAX))
        return self._bounded(limit)

    def _bounded(self, events: float) -> int:
        return min(max(round(events), EVENTS_MIN), self.events_max)


NEXT_BATCH: Final[JsonFile[int]] = JsonFile(
    "The events of the next batch",
    lambda document: int(document["events"]),
    lambda events: {"events": events},
    durable=False,
    make_folder=False,
)


def pace_file(view: ViewLayout) -> Path:
    return view.root / "next-batch.json"


class Pace:
    """The pause between a view's batches, and the events of the next one, which the journal's source reads from a file.

    Spark's offset log has the range of a planned batch: a repeated batch has the same events, whatever is in the file.
    """

    def __init__(self, sizes: BatchSizes | None = None, pause_ms: int = 0, file: Path = Path()) -> None:
        self._sizes, self._pause_ms, self._file = sizes, pause_ms, file
        self._recent: deque[BatchCost] = deque(maxlen=RECENT)
        self._limit = None if sizes is None else sizes.first
        self._cold = True

    @classmethod
    def of(cls, settings: RunSettings, file: Path, before: Iterable[Mapping[str, Any]]) -> Pace:
        """The pace by a run's settings; it goes on where the batches `before` ended."""
        target_ms, most = settings.batch_target_ms, settings.events_per_batch_max
        pace = cls(BatchSizes(target_ms, most) if target_ms else None, settings.batch_pause_ms, file)
        for progress in before if target_ms else ():
            pace._limit = min(progress.get("pace", {}).get("events") or pace._limit or most, most)
        return pace

    def begin(self) -> None:
        """Before the query starts."""
        self._cold = True
        if self._limit is not None:
            NEXT_BATCH.write(self._file, self._limit)

    def follow(self, progress: dict[str, Any]) -> None:
        """Take the pause out of a batch's durations, size the next batch, and note both in the report."""
        if self._sizes is None and not self._pause_ms:
            return
        paused_ms = self._take_out_pause(progress)
        if self._sizes is not None and self._limit is not None and progress["numInputRows"]:
            self._size_next(progress, self._sizes, self._limit)
        target_ms = None if self._sizes is None else self._sizes.target_ms
        progress["pace"] = {"paused_ms": paused_ms, "target_ms": target_ms, "events": self._limit}

    def _size_next(self, progress: Mapping[str, Any], sizes: BatchSizes, limit: int) -> None:
        cold, self._cold = self._cold, False
        if cold:  # the first batch of a query also loads classes and state
            return
        self._recent.append(BatchCost.of(progress))
        self._limit = sizes.after(limit, tuple(self._recent))
        if self._limit != limit:
            NEXT_BATCH.write(self._file, self._limit)

    def _take_out_pause(self, progress: dict[str, Any]) -> int:
        """The source pauses while Spark asks for its end."""
        durations = progress["durationMs"]
        paused_ms = min(self._pause_ms, int(durations.get("latestOffset", 0)))
        if paused_ms:
            durations["latestOffset"] -= paused_ms
            durations["triggerExecution"] -= paused_ms
            progress["processedRowsPerSecond"] = (
                progress["numInputRows"] * 1_000 / max(1, durations["triggerExecution"])
            )
        return paused_ms


_WAITING_FOR_DATA = "Waiting for data to arrive"
_WAITING_FOR_TRIGGER = "Waiting for next trigger"
_LATE_US_MAX = 100_000  # Spark may poll a source later than due by this much


class Observation:
    """Observes a query a few times a second, and its successors after restarts. For one thread, the heartbeat's.

    `batch` is the last finished batch, of this run or before; `in_this_run` whether one finished since the start.
    `caught_up_us` is the time at which the source ended where `batch` ends, if known. `works` is true once the present
    query has finished a batch or found nothing new: its resources are then reachable.
    """

    def __init__(
        self,
        progress: ProgressFile,
        last_batch: int | None,
        interval_ms: int,
        dead_letters: Callable[[int], int] = lambda batch: 0,
        pace: Pace | None = None,
        late_rows: Path | None = None,
        further: Callable[[Mapping[str, Any]], dict[str, Any]] = lambda progress: {},
    ) -> None:
        """`dead_letters` is called with each finished batch, and stores and counts its new dead letters.

        `late_rows` is the file that counts the rows dropped by the watermark. `further` returns more of a report.
        """
        self._progress = progress
        self._dead_letters = dead_letters
        self.pace = pace or Pace()
        self._late_rows, self._further = late_rows, further
        self._interval_us = interval_ms * 1_000
        self._query: StreamingQuery | None = None
        self._quiet_looks: deque[int] = deque()  # consecutive observations of a waiting query
        self.batch = last_batch
        self.caught_up_us: int | None = None
        self.in_this_run = False
        self.waiting = False
        self.works = False

    def turn_to(self, query: StreamingQuery) -> None:
        """Observe this query from now on.

        A failed query is observed until its successor starts: its last batches count.
        """
        self._query, self.works = query, False

    def look(self, time_us: int) -> list[dict[str, Any]]:
        """Observe at this time; keeps and returns the progress of the batches finished since the last call."""
        query = self._query
        if query is None:
            return []
        waiting = query.isActive and waits(query)  # read first: a batch that ends in between is then found
        finished = _finished_since(query, self.batch)
        for progress in finished:
            batch = int(progress["batchId"])
            progress.update(self._further(progress), deadLetters=self._dead_letters(batch))
            self.pace.follow(progress)
            self._progress.append(progress)
            self._count_late(rows_too_late(progress))
            self.batch, self.in_this_run = batch, True
            self.caught_up_us = caught_up_us(progress)
        self.waiting = waiting
        if query is self._query and (finished or waiting):
            self.works = True
        if finished or not waiting:
            self._quiet_looks.clear()
        if waiting:
            self._quiet_looks.append(time_us)
        return finished

    def _count_late(self, rows: int) -> None:
        if rows and self._late_rows is not None:
            LATE_ROWS.write(self._late_rows, (LATE_ROWS.read_if_valid(self._late_rows) or 0) + rows)

    def asked_since(self, time_us: int) -> int | None:
        """A time since which Spark has polled the source again and found nothing new; None if unknown.

        Spark polls all the time, or once per `batch_interval_ms`, so certainly after an observation older than the
        interval.
        """
        looks = self._quiet_looks
        due_us = time_us - self._interval_us - _LATE_US_MAX
        while len(looks) > 1 and looks[1] <= due_us:
            looks.popleft()
        return looks[0] if looks and looks[0] <= due_us else None


class TotalsFile:
    """The totals of a view's job (`views.job_totals`), which go on over runs. For one thread, the heartbeat's."""

    def __init__(self, view: ViewLayout) -> None:
        self._path, self._written = view.totals, JOB_TOTALS.read_if_valid(view.totals)
        self._now = self._written or JobTotals()
        if self._written is None:
            self.add(read_progress(view.progress))
        self._starts_before = self._now.starts

    def add(self, finished: Iterable[Mapping[str, Any]]) -> None:
        """Add batches by their reports; not yet written."""
        for progress in finished:
            self._now = self._now.plus(progress, events_left(progress))

    def save(self, starts: int, *, sink_held: bool) -> None:
        """Write what has changed, with the number of starts of the query in this run."""
        self._now = replace(self._now, starts=self._starts_before + starts, sink_held=sink_held)
        if self._now != self._written:
            JOB_TOTALS.write(self._path, self._now)
            self._written = self._now


def caught_up_us(progress: Mapping[str, Any]) -> int | None:
    """The time at which the sources ended where a batch ends; None if unknown, or if the batch left events over.

    Spark asks a source for its end after the trigger's time, which the report has. A batch planned by an earlier run is
    repeated without asking, and a batch with a limit may end before the source does.
    """
    ends = [(source["endOffset"], source.get("latestOffset")) for source in progress["sources"]]
    known = "latestOffset" in progress["durationMs"] and bool(ends)
    if not known or any(latest is None or end != latest for end, latest in ends):
        return None
    return round(datetime.fromisoformat(progress["timestamp"]).timestamp() * 1_000_000)


def waits(query: StreamingQuery) -> bool:
    """Whether the query waits for data: its source had nothing new."""
    status = json.loads(query._jsq.status().json())
    message = status["message"]
    return message == _WAITING_FOR_DATA or (message == _WAITING_FOR_TRIGGER and not status["isDataAvailable"])


def rests(query: StreamingQuery) -> bool:
    """Whether no batch is running, though data may wait for the next one."""
    return json.loads(query._jsq.status().json())["message"] in (_WAITING_FOR_DATA, _WAITING_FOR_TRIGGER)


def _finished_since(query: StreamingQuery, batch: int | None) -> list[dict[str, Any]]:
    """The progress of the batches that finished after this one, oldest first."""
    last = query._jsq.lastProgress()
    if last is None:
        return []
    newest = json.loads(last.json())
    if newest["batchId"] == batch:
        return []
    reports = [json.loads(report.json()) for report in query._jsq.recentProgress()]
    return [report for report in reports if _is_batch(report) and (batch is None or report["batchId"] > batch)]


def _is_batch(report: dict[str, Any]) -> bool:
    """Whether a batch ran; Spark also reports, now and then, that there was nothing to do."""
    return "addBatch" in report["durationMs"]
