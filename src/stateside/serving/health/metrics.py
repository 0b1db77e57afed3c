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
| `stateside_job_state` | view, state | 1 for the state that the job is in |

Each process counts in files of its own, in a folder that the server makes at its start; whoever is asked adds them up.
What is told of views is looked at when it is asked for.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from stateside.serving.health.condition import Condition

FOLDER_VARIABLE: Final = "PROMETHEUS_MULTIPROC_DIR"  # the library's own; it looks at it when it is imported
KIND: Final = "text/plain; version=0.0.4; charset=utf-8"
SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)

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
        from prometheus_client import CollectorRegistry, Counter, Histogram

        self._own = CollectorRegistry()
        labels = ["route", "method", "status"]
        self._answers = Counter("stateside_answers", "Answers", labels, registry=self._own)
        text = "How long answers took"
        self._seconds = Histogram("stateside_answer_seconds", text, ["route"], registry=self._own, buckets=SECONDS)

    def answered(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count an answer. `route` is a pattern, and never an address: so there are not many of them."""
        self._answers.labels(route, method, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def text(self, conditions: Sequence[Condition]) -> bytes:
        """All metrics, of this process and the others, with those of the views."""
        from prometheus_client import CollectorRegistry, generate_latest
        from prometheus_client.multiprocess import MultiProcessCollector

        counted, views = self._own, CollectorRegistry()
        if FOLDER_VARIABLE in os.environ:
            counted = CollectorRegistry()
            MultiProcessCollector(counted)  # type: ignore[no-untyped-call]
        views.register(_Views(conditions))
        return generate_latest(counted) + generate_latest(views)


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
