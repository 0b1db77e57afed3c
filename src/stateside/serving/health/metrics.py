"""Metrics in Prometheus' text format, summed over all processes of a server.

| metric | labels | what |
|---|---|---|
| `stateside_answers_total` | route, method, status | answers |
| `stateside_answer_seconds` | route | durations of answers, as a histogram |
| `stateside_view_batch` | view | the replica's batch |
| `stateside_view_age_seconds` | view | the age of an answer at present |
| `stateside_view_lag_batches` | view | committed batches not yet in the replica |
| `stateside_view_rows` | view | rows in the replica |
| `stateside_replica_bytes` | view | the replica's size on disk |
| `stateside_view_trouble` | view | 1 while the replica does not move on, 0 otherwise |
| `stateside_view_dead_letters` | view | events that did not reach the view (billing's are in its own table) |
| `stateside_view_late_rows` | view | rows that the view dropped as late |
| `stateside_job_state` | view, state | 1 for the job's present state |
| `stateside_merge_gaps` | | entities that wait for a missing event |
| `stateside_merge_gap_seconds` | | age of the oldest gap |
| `stateside_merge_behind_events` | log | durable events of a node's log not yet in the merged stream |
| `stateside_merge_trouble` | | 1 while logs or stream cannot be read, 0 otherwise |

Metrics of views and of the merge are read on request; those of the merge only where nodes write the journal. Answers
are counted by each process in files of its own (`Tallies`), in a folder that the server creates at its start; the
process that is asked adds the files up:

    PROCESS.json    the series, in order: [[route, method, status], …]
    PROCESS.cells   for each series, in the same order, 8-byte numbers: answers in each of the buckets of `SECONDS`,
                    longer answers, and the sum of all durations in microseconds

A count is one number in a memory-mapped file: a request writes nothing, a killed process loses nothing, and the counts
of an ended process stay. Bounded: unknown methods, and series beyond SERIES_MAX, are counted as `other`.
"""

from __future__ import annotations

import mmap
import os
import secrets
import tempfile
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

from stateside.core.json_file import JsonFile
from stateside.serving.health.condition import ViewCondition
from stateside.serving.health.merge_status import MergeCondition

SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
SERIES_MAX: Final = 1_024
OTHER: Final = "other"
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_SUM: Final = len(SECONDS) + 1  # after the buckets, including the unbounded one
_WIDTH: Final = _SUM + 1
_CELL_BYTES: Final = 8
Series = tuple[str, str, str]
Counts = list[int]
_NAMES: Final[JsonFile[list[Series]]] = JsonFile(
    "The names of the series",
    lambda document: [(route, method, status) for route, method, status in document],
    list,
    durable=False,
)


class Tallies:
    """The counters of this process: private, or in a folder shared with other processes."""

    def __init__(self, folder: Path | None = None) -> None:
        size = SERIES_MAX * _WIDTH * _CELL_BYTES
        self._names = None if folder is None else folder / f"{os.getpid()}-{secrets.token_hex(4)}.json"
        content = bytearray(size) if self._names is None else _mapped(self._names.with_suffix(".cells"), size)
        self._cells = memoryview(content).cast("Q")
        self._places: dict[tuple[str, str, int], int] = {}  # cache: an answer's labels to the first cell of its series
        self._series: dict[Series, int] = {}

    def count(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count one answer and its duration."""
        at = self._places.get((route, method, status))
        if at is None:
            at = self._place(route, method, status)
        self._cells[at + bisect_left(SECONDS, seconds)] += 1
        self._cells[at + _SUM] += int(seconds * 1_000_000)

    def all(self) -> Mapping[Series, Counts]:
        """The counts of this process, or of all processes that share the folder."""
        if self._names is None:
            return dict(_read(list(self._series), self._cells))
        added: dict[Series, Counts] = defaultdict(lambda: [0] * _WIDTH)
        for names in self._names.parent.glob("*.json"):
            series = _NAMES.load(names)
            cells = memoryview(names.with_suffix(".cells").read_bytes()).cast("Q")
            for each, counts in _read(series, cells):
                added[each] = [a + b for a, b in zip(added[each], counts, strict=True)]
        return added

    def _place(self, route: str, method: str, status: int) -> int:
        wanted = route, method if method in _METHODS else OTHER, str(status)
        series = wanted if wanted in self._series or len(self._series) < SERIES_MAX - 1 else (OTHER, OTHER, OTHER)
        if series not in self._series:
            self._series[series] = len(self._series) * _WIDTH
            if self._names is not None:
                _NAMES.write(self._names, list(self._series))
        at = self._series[series]
        if series == wanted and method in _METHODS:  # clients can invent any other method, so it is not cached
            self._places[route, method, status] = at
        return at


def _mapped(path: Path, size: int) -> mmap.mmap:
    with path.open("w+b") as file:
        file.truncate(size)
        return mmap.mmap(file.fileno(), size)


def _read(series: list[Series], cells: memoryview) -> Iterator[tuple[Series, Counts]]:
    for number, each in enumerate(series):
        yield each, cells[number * _WIDTH : (number + 1) * _WIDTH].tolist()


FOLDER_VARIABLE: Final = "STATESIDE_METRICS_DIR"  # passes the folder from the server to its workers
KIND: Final = "text/plain; version=0.0.4; charset=utf-8"
Of = Callable[[ViewCondition], float | None]
_GAUGES: Final[tuple[tuple[str, str, Of], ...]] = (
    ("stateside_view_batch", "The batch that the replica stands at", lambda each: each.batch),
    (
        "stateside_view_age_seconds",
        "The age of an answer",
        lambda each: None if each.age_ms is None else each.age_ms / 1_000,
    ),
    ("stateside_view_lag_batches", "Batches that the replica does not have yet", lambda each: each.lag_batches),
    ("stateside_view_rows", "Rows in the replica", lambda each: each.rows),
    ("stateside_replica_bytes", "What the replica takes up on disk", lambda each: each.bytes),
    ("stateside_view_trouble", "Whether the replica does not move on", lambda each: float(each.trouble is not None)),
    ("stateside_view_dead_letters", "Events that did not reach the view", lambda each: each.dead_letters),
    ("stateside_view_late_rows", "Rows that the view dropped as late", lambda each: each.late_rows),
)


@contextmanager
def shared_metrics() -> Iterator[None]:
    """Share the counters between this process and its child processes, for the duration of the context."""
    with tempfile.TemporaryDirectory(prefix="stateside-metrics-") as folder:
        os.environ[FOLDER_VARIABLE] = folder
        try:
            yield
        finally:
            del os.environ[FOLDER_VARIABLE]


class Metrics:
    """The counters of one worker process, and the metrics of all workers."""

    def __init__(self) -> None:
        folder = os.environ.get(FOLDER_VARIABLE)
        self._tallies = Tallies(None if folder is None else Path(folder))
        self.answered = self._tallies.count  # `route` is a pattern, never an address: so there are few

    def text(self, conditions: Sequence[ViewCondition], merge: MergeCondition | None = None) -> bytes:
        """All metrics: answers of all processes, views, merge."""
        from prometheus_client import CollectorRegistry, generate_latest

        registry = CollectorRegistry()
        registry.register(_Answers(self._tallies.all()))
        registry.register(_Views(conditions))
        if merge is not None:
            registry.register(_Merge(merge))
        return generate_latest(registry)


class _Answers:
    """Prometheus collector of the answers."""

    def __init__(self, counted: Mapping[Series, Counts]) -> None:
        self._counted = counted

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

        answers = CounterMetricFamily("stateside_answers", "Answers", labels=["route", "method", "status"])
        took: dict[str, Counts] = defaultdict(lambda: [0] * (len(SECONDS) + 2))
        for (route, method, status), counts in self._counted.items():
            answers.add_metric([route, method, status], sum(counts[:-1]))
            took[route] = [a + b for a, b in zip(took[route], counts, strict=True)]
        yield answers
        seconds = HistogramMetricFamily("stateside_answer_seconds", "How long answers took", labels=["route"])
        bounds = [*(f"{each:g}" for each in SECONDS), "+Inf"]
        for route, (*buckets, sum_us) in took.items():
            seconds.add_metric([route], list(zip(bounds, accumulate(buckets), strict=True)), sum_us / 1_000_000)
        yield seconds


class _Views:
    """Prometheus collector of the views."""

    def __init__(self, conditions: Sequence[ViewCondition]) -> None:
        self._conditions = conditions

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import GaugeMetricFamily

        for name, text, of in _GAUGES:
            family = GaugeMetricFamily(name, text, labels=["view"])
            for condition in self._conditions:
                value = of(condition)
                if value is not None:
                    family.add_metric([condition.view], value)
            yield family
        states = GaugeMetricFamily("stateside_job_state", "The state that the job is in", labels=["view", "state"])
        for condition in self._conditions:
            states.add_metric([condition.view, condition.job], 1)
        yield states


class _Merge:
    """Prometheus collector of the merge."""

    def __init__(self, condition: MergeCondition) -> None:
        self._condition = condition

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import GaugeMetricFamily

        found = self._condition
        yield GaugeMetricFamily("stateside_merge_trouble", "Whether it cannot be read", value=float(found.trouble))
        if found.trouble:
            return
        yield GaugeMetricFamily("stateside_merge_gaps", "Entities that wait for a missing event", value=found.gaps)
        yield GaugeMetricFamily("stateside_merge_gap_seconds", "How long the first has waited", value=found.gap_s)
        behind = GaugeMetricFamily("stateside_merge_behind_events", "Events that are not merged", labels=["log"])
        for log, events in found.behind.items():
            behind.add_metric([log], events)
        yield behind
