"""Metrics in Prometheus' text format, of all of a server's processes together.

| metric | labels | what |
|---|---|---|
| `stateside_answers_total` | route, method, status | answers |
| `stateside_answer_seconds` | route | how long they took, as a histogram |
| `stateside_view_batch` | view | the batch that the replica stands at |
| `stateside_view_age_seconds` | view | the age that an answer would have now |
| `stateside_view_lag_batches` | view | committed batches that the replica does not have yet |
| `stateside_view_rows` | view | rows in the replica |
| `stateside_replica_bytes` | view | what the replica takes up on disk |
| `stateside_view_trouble` | view | 1 while the replica does not move on, 0 otherwise |
| `stateside_view_dead_letters` | view | events that did not reach the view (billing's are in its own table) |
| `stateside_job_state` | view, state | 1 for the state that the job is in |
| `stateside_merge_gaps` | | entities that wait for an event that is missing |
| `stateside_merge_gap_seconds` | | how long the first of them has waited |
| `stateside_merge_behind_events` | log | durable events of a node's log that are not in the merged stream |
| `stateside_merge_trouble` | | 1 while logs or stream cannot be read, 0 otherwise |

Each process counts in files of its own (`tallies`), in a folder that the server makes at its start; whoever is asked
adds them up. What is told of views and of the merge is looked at when it is asked for; of the merge only where nodes
write the journal.
"""

from __future__ import annotations

import os
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

from stateside.serving.health.condition import Condition
from stateside.serving.health.merging import MergeCondition
from stateside.serving.health.tallies import SECONDS, Counts, Series, Tallies

FOLDER_VARIABLE: Final = "STATESIDE_METRICS_DIR"  # by which a server tells its workers
KIND: Final = "text/plain; version=0.0.4; charset=utf-8"

Of = Callable[[Condition], float | None]
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
)


@contextmanager
def shared_metrics() -> Iterator[None]:
    """Let this process, and those that it starts meanwhile, count together."""
    with tempfile.TemporaryDirectory(prefix="stateside-metrics-") as folder:
        os.environ[FOLDER_VARIABLE] = folder
        try:
            yield
        finally:
            del os.environ[FOLDER_VARIABLE]


class Metrics:
    """What one worker process counts, and what it tells of all of them."""

    def __init__(self) -> None:
        folder = os.environ.get(FOLDER_VARIABLE)
        self._tallies = Tallies(None if folder is None else Path(folder))
        self.answered = self._tallies.count  # `route` is a pattern, and never an address: so there are not many of them

    def text(self, conditions: Sequence[Condition], merge: MergeCondition | None = None) -> bytes:
        """All metrics, of this process and the others, with those of the views and of the merge."""
        from prometheus_client import CollectorRegistry, generate_latest

        registry = CollectorRegistry()
        registry.register(_Answers(self._tallies.all()))
        registry.register(_Views(conditions))
        if merge is not None:
            registry.register(_Merge(merge))
        return generate_latest(registry)


class _Answers:
    """What was counted of answers, as the library collects it."""

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
    """What is told of views, as the library collects it."""

    def __init__(self, conditions: Sequence[Condition]) -> None:
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
    """What is told of the merge, as the library collects it."""

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
