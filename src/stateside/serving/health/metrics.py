"""Metrics in Prometheus' text format, of a folder and of all processes of a server. `docs/metrics.md` lists them.

Names are `stateside_PART_WHAT_UNIT`: the parts are `journal`, `merge`, `job` (the pipeline of a view), `state` and
`checkpoint` (Spark's), `replica`, `view` (what an answer shows), `answer` and so on of the server, and an application's
own name. Units are seconds, bytes, rows, events and batches; counters end in `_total`.

A scrape is bounded: no rows are read. Counters of a job come from its `totals.json`, answers from the `tallies` of the
processes, and the sizes of folders are added up at most once in SIZES_S. What is unknown is left out; if a part cannot
be measured at all, `stateside_metrics_trouble` is 1 for it.
"""

from __future__ import annotations

import logging
import os
import platform
import shutil
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from stateside.core.errors import StatesideError
from stateside.core.layout import Layout, ViewLayout
from stateside.core.positions import Position
from stateside.inspection.rules import Finding
from stateside.journal.backends.nodes import MergedJournal
from stateside.journal.contract import PARTITION, DurableEnd
from stateside.journal.location import is_merged
from stateside.serving.health.condition import ViewCondition, beyond
from stateside.serving.health.merge_status import MergeCondition
from stateside.serving.health.status import JournalEnd
from stateside.serving.health.tallies import (
    FOLDER_VARIABLE,
    SECONDS,
    Counts,
    Gauge,
    ProcessUse,
    Series,
    Tallies,
    with_children,
)
from stateside.serving.rows.view_readers import ViewReaders
from stateside.views.heartbeat import State
from stateside.views.job_totals import BOUNDS_S, JOB_TOTALS, WHOLE, Durations, JobTotals

if TYPE_CHECKING:
    from stateside.serving.web.request import Request

KIND: Final = "text/plain; version=0.0.4; charset=utf-8"
SIZES_S: Final = 10.0
JOB_STATES: Final = (*get_args(State), "down", "unknown")
_SNAPSHOTS: Final = (".zip", ".snapshot")
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric with its samples, each the values of the labels and a number; a counter's name ends in `_total`."""

    name: str
    help: str
    samples: Sequence[tuple[Sequence[str], float]]
    labels: tuple[str, ...] = ()
    kind: Literal["gauge", "counter"] = "gauge"

    def family(self) -> Any:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        made = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily}[self.kind]
        family = made(self.name, self.help, labels=self.labels)
        for values, number in self.samples:
            family.add_metric(values, number)
        return family


@dataclass(frozen=True, slots=True)
class Histogram:
    """A histogram, each sample with the counts of all buckets, the unbounded one last, and the sum."""

    name: str
    help: str
    samples: Sequence[tuple[Sequence[str], Sequence[int], float]]
    labels: tuple[str, ...]
    bounds: Sequence[float]

    def family(self) -> Any:
        from prometheus_client.core import HistogramMetricFamily

        family = HistogramMetricFamily(self.name, self.help, labels=self.labels)
        bounds = [*(f"{each:g}" for each in self.bounds), "+Inf"]
        for values, buckets, total in self.samples:
            family.add_metric(values, list(zip(bounds, accumulate(buckets), strict=True)), total)
        return family


Family = Metric | Histogram
Measure = Callable[["Request"], Awaitable[Sequence[Metric]]]  # an application's own metrics (`extension`)


class _Collector:
    """What prometheus_client asks for the families."""

    def __init__(self, families: Iterable[Family]) -> None:
        self._families = families

    def collect(self) -> Iterator[Any]:
        return (each.family() for each in self._families if each.samples)


def text(families: Iterable[Family]) -> bytes:
    """The families in Prometheus' text format; ValueError for a name that two of them have."""
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry()
    registry.register(_Collector(families))
    return generate_latest(registry)


@dataclass(frozen=True, slots=True)
class FolderUse:
    """The bytes of a folder's files; of a checkpoint also the time of the oldest snapshot that a restart begins with.

    A restart of the job loads the newest snapshot of each partition, and then the changes after it. A partition without
    a snapshot counts from its oldest file on.
    """

    bytes: int
    snapshot_s: float | None

    @classmethod
    def of(cls, folder: Path) -> FolderUse:
        total, begins = 0, list[float]()
        for place, _, names in os.walk(folder):
            snapshots, files = list[float](), list[float]()
            for name in names:
                try:
                    found = os.stat(os.path.join(place, name))  # noqa: PTH116, PTH118 - three times as fast as a Path
                except OSError:  # Spark deletes old files meanwhile
                    continue
                total += found.st_size
                (snapshots if name.endswith(_SNAPSHOTS) else files).append(found.st_mtime)
            if files and _is_partition(Path(place), folder / "state"):
                begins.append(max(snapshots) if snapshots else min(files))
        return cls(total, min(begins, default=None))


def _is_partition(place: Path, state: Path) -> bool:
    """Whether the folder is state/OPERATOR/PARTITION, or one of several stores in it."""
    names = place.relative_to(state).parts if place.is_relative_to(state) else ()
    return len(names) in (2, 3) and names[0].isdigit() and names[1].isdigit() and names[2:] != ("SSTs",)


@dataclass(frozen=True, slots=True)
class ViewFigures:
    """All that is known of a view."""

    condition: ViewCondition
    layout: ViewLayout
    now_s: float
    heard_ms: int | None = None
    totals: JobTotals | None = None
    checkpoint: FolderUse | None = None
    job_lag_events: int | None = None


Of = Callable[[ViewFigures], float | None]


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1_000


def _since(now_s: float, then_s: float | None) -> float | None:
    return max(0.0, now_s - then_s) if then_s else None


def _total(of: Callable[[JobTotals], float | None]) -> Of:
    return lambda view: None if view.totals is None else of(view.totals)


def _held(view: ViewFigures) -> float | None:
    return None if view.totals is None else float(view.totals.sink_held and view.condition.job == "holding")


_OF_VIEWS: Final[tuple[tuple[str, str, Of], ...]] = (
    ("stateside_job_batches_total", "Batches that the job has finished", _total(lambda job: job.batches)),
    ("stateside_job_input_rows_total", "Rows that the job has read from its sources", _total(lambda job: job.rows)),
    (
        "stateside_job_restarts_total",
        "Starts of the job's query after the first one",
        _total(lambda job: max(0, job.starts - 1)),
    ),
    (
        "stateside_job_dead_letters_total",
        "Events that did not reach the view",
        lambda view: view.condition.dead_letters,
    ),
    ("stateside_job_late_rows_total", "Rows that the view dropped as late", lambda view: view.condition.late_rows),
    ("stateside_job_lag_events", "Events that no committed batch has yet", lambda view: view.job_lag_events),
    ("stateside_job_sink_held", "Whether a batch waits for its sink", _held),
    (
        "stateside_job_heartbeat_age_seconds",
        "Time since the job's last heartbeat",
        lambda view: _seconds(view.heard_ms),
    ),
    (
        "stateside_checkpoint_bytes",
        "Files of the checkpoint on disk",
        lambda view: None if view.checkpoint is None else view.checkpoint.bytes,
    ),
    (
        "stateside_checkpoint_snapshot_age_seconds",
        "Age of the oldest snapshot that a restart loads",
        lambda view: None if view.checkpoint is None else _since(view.now_s, view.checkpoint.snapshot_s),
    ),
    (
        "stateside_replica_lag_batches",
        "Committed batches that the replica lacks",
        lambda view: view.condition.lag_batches,
    ),
    ("stateside_replica_lag_events", "Committed events that the replica lacks", lambda view: view.condition.lag_events),
    ("stateside_replica_bytes", "What the replica takes up on disk", lambda view: view.condition.bytes),
    (
        "stateside_replica_trouble",
        "Whether the replica does not move on",
        lambda view: float(view.condition.trouble is not None),
    ),
    ("stateside_view_batch", "The batch of an answer", lambda view: view.condition.batch),
    ("stateside_view_age_seconds", "The age of an answer", lambda view: _seconds(view.condition.age_ms)),
    (
        "stateside_view_watermark_lag_seconds",
        "Time since the watermark of an answer",
        lambda view: _since(view.now_s, (view.condition.watermark_us or 0) / 1_000_000),
    ),
    ("stateside_view_rows", "Rows of the view", lambda view: view.condition.rows),
    ("stateside_view_generation", "The generation that is served", lambda view: view.layout.generation),
)


def view_families(views: Sequence[ViewFigures]) -> Iterator[Family]:
    """The metrics of views and their jobs."""
    for name, told, of in _OF_VIEWS:
        samples = [((view.condition.view,), number) for view in views if (number := of(view)) is not None]
        yield Metric(name, told, samples, ("view",), "counter" if name.endswith("_total") else "gauge")
    states = [
        ((view.condition.view, state), float(view.condition.job == state)) for view in views for state in JOB_STATES
    ]
    yield Metric("stateside_job_state", "Whether the job is in this state", states, ("view", "state"))
    yield from _durations([(view.condition.view, view.totals.took) for view in views if view.totals])
    yield from _operators([(view.condition.view, view.totals) for view in views if view.totals])


def _durations(jobs: Sequence[tuple[str, Mapping[str, Durations]]]) -> Iterator[Family]:
    whole = [((view,), took[WHOLE].buckets, took[WHOLE].sum_s) for view, took in jobs]
    yield Histogram("stateside_job_batch_seconds", "Durations of batches", whole, ("view",), BOUNDS_S)
    parts = [
        ((view, part), each.buckets, each.sum_s) for view, took in jobs for part, each in took.items() if part != WHOLE
    ]
    labels = "view", "part"
    yield Histogram("stateside_job_batch_part_seconds", "Durations of the parts of batches", parts, labels, BOUNDS_S)


def _operators(jobs: Sequence[tuple[str, JobTotals]]) -> Iterator[Family]:
    each = [((view, str(number)), one) for view, job in jobs for number, one in enumerate(job.operators)]
    rows = [(labels, one.rows) for labels, one in each if one.rows is not None]
    labels = "view", "operator"
    yield Metric("stateside_state_rows", "Rows in the state of an operator, where Spark counts them", rows, labels)
    sizes = [(labels, one.bytes) for labels, one in each]
    yield Metric("stateside_state_memory_bytes", "Memory of an operator's state, as Spark reports", sizes, labels)


def merge_families(found: MergeCondition) -> Iterator[Metric]:
    """The metrics of a journal that nodes write."""
    yield Metric("stateside_merge_trouble", "Whether logs or stream cannot be read", [((), float(found.trouble))])
    if found.trouble:
        return
    yield Metric("stateside_merge_gaps", "Entities that wait for a missing event", [((), found.gaps)])
    yield Metric("stateside_merge_gap_seconds", "How long the first of them has waited", [((), found.gap_s)])
    lags = [((name,), events) for name, events in found.behind.items()]
    yield Metric("stateside_merge_lag_events", "Durable events that are not merged yet", lags, ("log",))


def answer_families(counted: Mapping[Series, Counts]) -> Iterator[Family]:
    """The metrics of answers."""
    answers = [(series, sum(counts[:-1])) for series, counts in counted.items()]
    yield Metric("stateside_answers_total", "Answers", answers, ("route", "method", "status"), "counter")
    took: dict[str, Counts] = defaultdict(lambda: [0] * (len(SECONDS) + 2))
    for (route, _, _), counts in counted.items():
        took[route] = [a + b for a, b in zip(took[route], counts, strict=True)]
    samples = [((route,), buckets, sum_us / 1_000_000) for route, (*buckets, sum_us) in took.items()]
    yield Histogram("stateside_answer_seconds", "How long answers took", samples, ("route",), SECONDS)


def process_families(processes: Iterable[int], main: int) -> Iterator[Metric]:
    """The use of all processes of the server, in the names that Prometheus' own clients give; nothing without /proc."""
    found = {pid: use for pid in processes if (use := ProcessUse.of(pid)) is not None}
    if main not in found:
        return
    used, start_s = list(found.values()), found[main].start_s
    cpu_s = sum(each.cpu_s for each in used)
    yield Metric("process_cpu_seconds_total", "CPU time of all processes of the server", [((), cpu_s)], (), "counter")
    resident = sum(each.resident_bytes for each in used)
    yield Metric(
        "process_resident_memory_bytes", "Resident memory of all; shared pages count in each", [((), resident)]
    )
    yield Metric("process_open_fds", "Open files of all processes", [((), sum(each.open_files for each in used))])
    yield Metric("process_start_time_seconds", "Start of the server, in seconds since 1970", [((), start_s)])


def finding_family(findings: Sequence[Finding]) -> Metric:
    """The findings of the folder; one that is mended is gone."""
    found = sorted({(each.view or "", each.code) for each in findings})
    return Metric(
        "stateside_finding", "What an operator should look at", [(each, 1) for each in found], ("view", "code")
    )


class Metrics:
    """The counters of one worker process, and the metrics of all workers and of the folder."""

    def __init__(self, measures: Sequence[Measure] = ()) -> None:
        folder = os.environ.get(FOLDER_VARIABLE)
        self._main = os.getpid() if folder is None else os.getppid()
        self._tallies = Tallies(None if folder is None else Path(folder))
        self._measures = measures
        self._uses: dict[Path, tuple[float, FolderUse]] = {}
        self._end: JournalEnd | None = None
        self.answered = self._tallies.count  # `route` is a pattern, never an address: so there are few
        self.under_way = self._tallies.under_way

    def of_server(self) -> Iterator[Family]:
        """The metrics of the processes."""
        processes = with_children(self._main)
        yield from answer_families(self._tallies.all())
        open_ = self._tallies.now_under_way(processes)
        yield Metric("stateside_watchers", "Open streams of changes", [((), open_[Gauge.WATCHERS])])
        statements = open_[Gauge.SQL_STATEMENTS]
        yield Metric("stateside_sql_statements", "SQL statements that run or wait", [((), statements)])
        yield from process_families(processes, self._main)
        built = [((version("stateside"), platform.python_version()), 1)]
        yield Metric("stateside_build_info", "The version that runs", built, ("version", "python"))

    def of_folder(self, views: ViewReaders, conditions: Sequence[ViewCondition]) -> Iterator[Family]:
        """The metrics of journal, views and disks."""
        end, trouble = self._journal_end(views.layout)
        if end is not None or trouble:
            yield from self._journal(views.layout, end, trouble)
        merge = views.merge_condition()
        if merge is not None:
            yield from merge_families(merge)
        yield from view_families([self._figures(views, each, end) for each in conditions])
        yield from _disks(views.layout)

    async def of_application(self, request: Request) -> list[Family]:
        """The application's own metrics, and whether all of them could be measured."""
        found, troubles = list[Family](), list[tuple[tuple[str], float]]()
        for measure in self._measures:
            trouble, part = 0.0, measure.__module__.removeprefix("stateside.").partition(".")[0]
            try:
                found += await measure(request)
            except (OSError, StatesideError) as error:
                log.warning("metrics of %s: %s", part, error)
                trouble = 1.0
            troubles.append(((part,), trouble))
        told = "Whether a part could not be measured"
        return [*found, Metric("stateside_metrics_trouble", told, troubles, ("part",))]

    def _figures(self, views: ViewReaders, condition: ViewCondition, end: Position | int | None) -> ViewFigures:
        layout, now_s = views.layout.view(condition.view), time.time()
        totals = JOB_TOTALS.read_if_valid(layout.totals)
        place = Path(layout.checkpoint_location)
        use = self._use(place) if place.is_dir() else None
        lag = _lag(condition, end)
        if lag is None and totals is not None:
            lag = totals.events_left
        return ViewFigures(condition, layout, now_s, views.state(layout.name)["heard_ms"], totals, use, lag)

    def _use(self, folder: Path) -> FolderUse:
        known = self._uses.get(folder)
        if known is None or time.monotonic() - known[0] > SIZES_S:
            known = self._uses[folder] = time.monotonic(), FolderUse.of(folder)
        return known[1]

    def _journal_end(self, layout: Layout) -> tuple[Position | int | None, bool]:
        """The end of the folder's journal, on Kafka an offset; and whether the end cannot be read."""
        try:
            if is_merged(layout.journal):
                return MergedJournal(layout.journal).end(), False
            self._end = self._end or JournalEnd(layout.journal)
            if self._end.is_on_kafka():
                end = (self._end.now() or {}).get("end")
                return end, end is None
            found = DurableEnd.read(layout.journal)
        except (OSError, StatesideError):
            return None, True
        return None if found is None else Position.of({PARTITION: found.offset}), False

    def _journal(self, layout: Layout, end: Position | int | None, trouble: bool) -> Iterator[Metric]:
        yield Metric("stateside_journal_trouble", "Whether the journal's end cannot be read", [((), float(trouble))])
        if end is not None:
            events = end if isinstance(end, int) else end.events()
            told = "Events that the journal has taken: its end"
            yield Metric("stateside_journal_events_total", told, [((), events)], (), "counter")
        if end is not None and not isinstance(end, int):
            size = self._use(layout.journal).bytes
            yield Metric("stateside_journal_bytes", "Files of the journal on disk", [((), size)])


def _lag(condition: ViewCondition, end: Position | int | None) -> int | None:
    """The events of the journal that no committed batch has; None for a view of another source, or if unknown."""
    at = condition.committed
    if end is None or at is None or not condition.reads_journal:
        return None
    if isinstance(end, Position):
        return beyond(end, at)
    return max(0, end - at.events()) if len(at.parts) <= 1 else None


def _disks(layout: Layout) -> Iterator[Metric]:
    """The disks of the folder and of its journal, which may be another one."""
    places = {"folder": layout.root, "journal": layout.journal}
    disks = {(name,): shutil.disk_usage(place) for name, place in places.items() if place.is_dir()}
    free = [(labels, disk.free) for labels, disk in disks.items()]
    yield Metric("stateside_disk_free_bytes", "Free space on the disk of folder or journal", free, ("place",))
    sizes = [(labels, disk.total) for labels, disk in disks.items()]
    yield Metric("stateside_disk_size_bytes", "Size of the disk of folder or journal", sizes, ("place",))
