"""Metrics in Prometheus' text format, of all of a server's processes together.

| metric | labels | what |
|---|---|---|
| `stateside_answers_total` | route, method, status | answers |
| `stateside_answer_seconds` | route | how long they took, as a histogram |
| `stateside_streams` | | streams that are open now |
| `stateside_view_batch` | view | the batch that the replica stands at |
| `stateside_view_age_seconds` | view | the age that an answer would have now |
| `stateside_view_lag_batches` | view | committed batches that the replica does not have yet |
| `stateside_view_rows` | view | rows in the replica |
| `stateside_replica_bytes` | view | what the replica takes up on disk |
| `stateside_view_trouble` | view | 1 while the replica does not move, 0 otherwise |
| `stateside_job_state` | view, state | 1 for the state that the job is in, 0 for the others |

Each process counts in files of its own in a folder that the server makes at its start; whoever is asked adds them up.
What is told of views is looked at when it is asked for.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

FOLDER_VARIABLE: Final = "PROMETHEUS_MULTIPROC_DIR"


def share_metrics(folder: Path) -> None:
    """Let this process and those that it starts count in this folder. Comes before the first import of the library."""
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob("*.db"):  # of a server that was here before
        left.unlink()
    os.environ[FOLDER_VARIABLE] = str(folder)


class Metrics:
    """What one worker process counts, and what it tells of all of them."""

    def __init__(self, looked: Looked) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
        from prometheus_client.multiprocess import MultiProcessCollector

        own = CollectorRegistry()
        self._answers = Counter("stateside_answers", "Answers", ["route", "method", "status"], registry=own)
        self._seconds = Histogram(
            "stateside_answer_seconds", "How long answers took", ["route"], registry=own, buckets=SECONDS
        )
        self._streams = Gauge("stateside_streams", "Open streams", registry=own, multiprocess_mode="livesum")
        self._all = own
        if FOLDER_VARIABLE in os.environ:
            self._all = CollectorRegistry()
            MultiProcessCollector(self._all)  # type: ignore[no-untyped-call]
        self._all.register(looked)

    def answered(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count an answer; `route` is a pattern, never an address: its number is bounded."""
        self._answers.labels(route, method, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def stream_opened(self) -> None:
        """Count a stream that begins."""
        self._streams.inc()

    def stream_closed(self) -> None:
        """Count a stream that ended."""
        self._streams.dec()

    def text(self) -> bytes:
        """All metrics, as Prometheus reads them."""
        from prometheus_client import generate_latest

        return generate_latest(self._all)


SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
KIND: Final = "text/plain; version=0.0.4; charset=utf-8"
