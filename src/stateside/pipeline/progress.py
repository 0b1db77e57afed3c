"""The progress of every batch, as Spark reports it, kept beside the checkpoint: the newest ones, a JSON line each.

progress.jsonl      the newest batches, up to LINES_MAX
progress.1.jsonl    the LINES_MAX before them

What Spark tells of a running query: whether it waits for data, which batches it finished, and since when.
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

LINES_MAX = 2_000  # about 3 KB each: two such files are 12 MB a view


class ProgressFile:
    """Appends to the file, and begins a new one when it is full. One writer; readers may come at any time."""

    def __init__(self, path: Path, lines_max: int = LINES_MAX) -> None:
        self._path = path
        self._lines_max = lines_max
        self._lines = _count(path)

    def append(self, progress: dict[str, Any]) -> None:
        """Keep one batch's progress."""
        if self._lines >= self._lines_max:
            self._path.replace(older(self._path))
            self._lines = 0
        with self._path.open("a") as file:
            file.write(json.dumps(progress, separators=(",", ":")) + "\n")
        self._lines += 1


def read_progress(path: Path) -> Iterator[dict[str, Any]]:
    """The batches that are kept, oldest first; a line that a crash cut short is left out."""
    for file in (older(path), path):
        if file.exists():
            for line in file.read_text().splitlines():
                try:
                    yield json.loads(line)
                except ValueError:
                    continue


def older(path: Path) -> Path:
    """The file before this one."""
    return path.with_suffix(".1.jsonl")


def _count(path: Path) -> int:
    if not path.exists():
        return 0
    content = path.read_bytes()
    if content and not content.endswith(b"\n"):  # a crash cut the last line short: the next one begins anew
        with path.open("ab") as file:
            file.write(b"\n")
    return content.count(b"\n") + (not content.endswith(b"\n") and bool(content))


_WAITING_FOR_DATA = "Waiting for data to arrive"
_WAITING_FOR_TRIGGER = "Waiting for next trigger"
_LATE_US_MAX = 100_000  # so much later than it is due Spark may ask a source


class Observation:
    """Looks at a query, a few times a second, and at its successors after restarts. For one thread, the heart's.

    `batch` is the last batch that was finished, in this run or before; `in_this_run` whether one was since the start.
    `caught_up_us` is when the source ended where that batch ends, if it is known.
    `works` says whether the present query has come through a batch, or found nothing new: what it rests on is there.
    """

    def __init__(
        self,
        progress: ProgressFile,
        last_batch: int | None,
        interval_ms: int,
        dead_letters: Callable[[int], int] = lambda batch: 0,
    ) -> None:
        """`dead_letters` is called with each batch that was finished, and stores and counts those that are new."""
        self._progress = progress
        self._dead_letters = dead_letters
        self._interval_us = interval_ms * 1_000
        self._query: StreamingQuery | None = None
        self._quiet_looks: deque[int] = deque()  # when it waited for data, at looks in a row with no batch in between
        self.batch = last_batch
        self.caught_up_us: int | None = None
        self.in_this_run = False
        self.waiting = False
        self.works = False

    def turn_to(self, query: StreamingQuery) -> None:
        """Look at this query from now on. One that failed is looked at until then: its last batches count."""
        self._query, self.works = query, False

    def look(self, time_us: int) -> list[dict[str, Any]]:
        """Look, at this time; keeps the progress of the batches that were finished since, and returns them."""
        query = self._query
        if query is None:
            return []
        waiting = query.isActive and waits(query)  # before the batches: one that ends in between is then among them
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
        """Since when Spark, which waits for data, has asked the source again, and found nothing; None if unknown.

        It asks all the time, or once a `batch_interval_ms`: surely after a look that is older than that.
        """
        looks = self._quiet_looks
        due_us = time_us - self._interval_us - _LATE_US_MAX
        while len(looks) > 1 and looks[1] <= due_us:
            looks.popleft()
        return looks[0] if looks and looks[0] <= due_us else None


def caught_up_us(progress: Mapping[str, Any]) -> int | None:
    """When the sources ended where a batch ends; None if it left something for the next one, or if that is not known.

    Spark asks a source for its end after the trigger's time, which is told. A batch that was planned by an earlier run
    is repeated without asking, and one with a limit may end before the source does.
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
    """The progress of the batches that were finished after this one, oldest first."""
    last = query._jsq.lastProgress()
    if last is None:
        return []
    newest = json.loads(last.json())
    if newest["batchId"] == batch:
        return []
    reports = [json.loads(report.json()) for report in query._jsq.recentProgress()]
    return [report for report in reports if _is_batch(report) and (batch is None or report["batchId"] > batch)]


def _is_batch(report: dict[str, Any]) -> bool:
    """Whether a batch was run; Spark also reports, now and then, that there was nothing to do."""
    return "addBatch" in report["durationMs"]
