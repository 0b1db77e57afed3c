"""Progress of batches: Spark's own reports, observed while a query runs and kept beside the checkpoint as JSON lines.

progress.jsonl      the newest batches, up to LINES_MAX
progress.1.jsonl    the LINES_MAX before them
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

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


def read_progress(path: Path) -> Iterator[dict[str, Any]]:
    """The kept batches, oldest first; a line cut short by a crash is left out."""
    for file in (older(path), path):
        if file.exists():
            for line in file.read_text().splitlines():
                try:
                    yield json.loads(line)
                except ValueError:
                    continue


def older(path: Path) -> Path:
    """The rotated file."""
    return path.with_suffix(".1.jsonl")


def _count(path: Path) -> int:
    if not path.exists():
        return 0
    content = path.read_bytes()
    if content and not content.endswith(b"\n"):  # a crash cut the last line short: end it
        with path.open("ab") as file:
            file.write(b"\n")
    return content.count(b"\n") + (not content.endswith(b"\n") and bool(content))


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
    ) -> None:
        """`dead_letters` is called with each finished batch, and stores and counts its new dead letters."""
        self._progress = progress
        self._dead_letters = dead_letters
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
            progress["deadLetters"] = self._dead_letters(int(progress["batchId"]))
            self._progress.append(progress)
            self.batch, self.in_this_run = int(progress["batchId"]), True
            self.caught_up_us = caught_up_us(progress)
        self.waiting = waiting
        if query is self._query and (finished or waiting):
            self.works = True
        if finished or not waiting:
            self._quiet_looks.clear()
        if waiting:
            self._quiet_looks.append(time_us)
        return finished

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
