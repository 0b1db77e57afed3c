"""Spark's progress reports, as the runner keeps them beside a checkpoint: one JSON line for each batch.

progress.jsonl      the newest batches
progress.1.jsonl    those before them

`pipeline.progress` writes the lines, and adds figures of its own to Spark's report:

    deadLetters           the new dead letters of the batch
    cores, partitions     tasks that run at the same time, and tasks that a batch has for its state
    triggerMs             the setting `batch_interval_ms`; 0: a batch starts as soon as there are events
    batchesKept           the setting `batches_kept`
    lateKept              1 if the view delivers its late events (`late=`), 0 if they are only counted
    sinkMs                the duration of the sink's write, a part of Spark's `addBatch`
    taskMs, gcMs          milliseconds of all tasks since the start of Spark, and those of them in garbage collection
    pace                  the pause before the batch, and the events of the next one

Spark reports the state's durations as sums over all tasks. A part of a batch's duration is estimated from them by the
number of tasks that run at the same time.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TypeVar

from stateside.spark_state.provider import counted_rows

PART_NAMES: Final = {
    "source": "ask the source",
    "planning": "plan the query",
    "state_update": "update the state",
    "state_commit": "commit the state",
    "compute": "read and compute",
    "sink": "write the sink",
    "log": "write the logs",
}
PARTS: Final = tuple(PART_NAMES)
_TAIL_BYTES: Final = 512 << 10  # a line has about 3 KB, and 6 KB with several operators
T = TypeVar("T")


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


def newest_reports(path: Path, most: int, parse: Callable[[dict[str, Any]], T]) -> tuple[list[T], int]:
    """The newest reports, oldest first, and the number of damaged lines; reads the ends of the files alone.

    The last line of a file may be incomplete, while a batch ends or after a crash: not damaged.
    """
    found, damaged = _parsed(path, parse)
    if len(found) < most:
        before, more = _parsed(older(path), parse)
        found, damaged = before + found, damaged + more
    return found[-most:], damaged


def _parsed(path: Path, parse: Callable[[dict[str, Any]], T]) -> tuple[list[T], int]:
    found, damaged = [], 0
    for line in _last_lines(path):
        try:
            found.append(parse(json.loads(line)))
        except (ValueError, LookupError, TypeError, AttributeError):
            damaged += line.endswith(b"\n") and line != b"\n"
    return found, damaged


def _last_lines(path: Path) -> list[bytes]:
    """The lines at the end of a file; of a file longer than _TAIL_BYTES without the first one, which is incomplete."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            lines = file.read().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    return lines[1:] if size > _TAIL_BYTES else lines


@dataclass(frozen=True, slots=True)
class OperatorReport:
    """A stateful operator in one batch. `rows` is None where Spark does not count them."""

    name: str
    rows: int | None = None
    updated: int = 0
    removed: int = 0
    late: int = 0
    memory_bytes: int = 0
    commit_ms: int = 0  # the sum over all stores
    stall_ms: int = 0  # RocksDB held writers back
    cache_hits: int = 0
    cache_misses: int = 0

    @classmethod
    def of(cls, reported: Mapping[str, Any]) -> OperatorReport:
        further = reported.get("customMetrics", {})
        return cls(
            str(reported["operatorName"]),
            counted_rows(reported),
            int(reported["numRowsUpdated"]),
            int(reported.get("numRowsRemoved", 0)),
            int(reported.get("numRowsDroppedByWatermark", 0)),
            int(reported["memoryUsedBytes"]),
            int(reported.get("commitTimeMs", 0)),
            int(further.get("rocksdbWriterStallLatencyMs", 0)),
            int(further.get("rocksdbReadBlockCacheHitCount", 0)),
            int(further.get("rocksdbReadBlockCacheMissCount", 0)),
        )


@dataclass(frozen=True, slots=True)
class BatchReport:
    """A finished batch. None and missing parts: unknown.

    `left` are the events beyond the batch's end when it was planned, `delay_ms` is by how much the batch before it made
    its trigger late, `source_rows` has the input rows of each source.
    """

    batch: int
    start_us: int
    duration_ms: float | None = None
    parts_ms: Mapping[str, float] = field(default_factory=dict)
    rows: int | None = None
    left: int | None = None
    delay_ms: float | None = None
    watermark_us: int | None = None
    event_time_max_us: int | None = None
    dead_letters: int = 0
    late_kept: bool | None = None
    cores: int | None = None
    partitions: int | None = None
    trigger_ms: int | None = None
    batches_kept: int | None = None
    task_ms: int | None = None
    gc_ms: int | None = None
    changelog_bytes: int | None = None
    source_rows: tuple[int, ...] = ()
    operators: tuple[OperatorReport, ...] = ()

    @property
    def late(self) -> int:
        return sum(each.late for each in self.operators)

    @property
    def end_us(self) -> int:
        return self.start_us + round((self.duration_ms or 0) * 1_000)

    @property
    def state_rows(self) -> int | None:
        """The rows in all states; None if some are not counted."""
        rows = [each.rows for each in self.operators if each.rows is not None]
        return sum(rows) if rows and len(rows) == len(self.operators) else None

    @classmethod
    def of(cls, progress: Mapping[str, Any]) -> BatchReport:
        """From a line of the file; LookupError, ValueError or TypeError for any other document."""
        events, paused = progress.get("eventTime", {}), progress.get("pace") or {}
        return cls(
            batch=int(progress["batchId"]),
            start_us=_time_us(progress["timestamp"]) + int(paused.get("paused_ms", 0)) * 1_000,
            duration_ms=progress["durationMs"]["triggerExecution"],
            parts_ms=_parts(progress),
            rows=int(progress["numInputRows"]),
            left=events_left(progress),
            watermark_us=_time_us(events["watermark"]) if "watermark" in events else None,
            event_time_max_us=_time_us(events["max"]) if "max" in events else None,
            dead_letters=int(progress.get("deadLetters", 0)),
            late_kept=bool(progress["lateKept"]) if "lateKept" in progress else None,
            **{name: progress.get(key) for name, key in _FURTHER.items()},
            source_rows=tuple(int(source.get("numInputRows", 0)) for source in progress.get("sources", ())),
            operators=tuple(OperatorReport.of(each) for each in progress.get("stateOperators", ())),
        )


_FURTHER: Final = {
    "cores": "cores",
    "partitions": "partitions",
    "trigger_ms": "triggerMs",
    "batches_kept": "batchesKept",
    "task_ms": "taskMs",
    "gc_ms": "gcMs",
}


def _parts(progress: Mapping[str, Any]) -> dict[str, float]:
    took = progress["durationMs"]
    parts = {
        "source": took.get("latestOffset", 0) + took.get("getBatch", 0),
        "planning": took.get("queryPlanning", 0),
        "log": took.get("walCommit", 0) + took.get("commitOffsets", 0),
    }
    work = float(took.get("addBatch", 0))
    if "sinkMs" in progress:
        parts["sink"] = min(work, progress["sinkMs"])
    update, commit = _state_ms(progress, work - parts.get("sink", 0))
    rest = work - parts.get("sink", 0) - update - commit
    return parts | {"state_update": round(update), "state_commit": round(commit), "compute": round(rest)}


def _state_ms(progress: Mapping[str, Any], most_ms: float) -> tuple[float, float]:
    """The durations of updates and commits of the state: sums over tasks, of which some run at the same time."""
    update = commit = 0.0
    for operator in progress.get("stateOperators", ()):
        tasks = max(1, operator.get("numShufflePartitions", operator.get("numStateStoreInstances", 1)))
        together = min(tasks, progress.get("cores") or tasks)
        update += (operator.get("allUpdatesTimeMs", 0) + operator.get("allRemovalsTimeMs", 0)) / together
        commit += operator.get("commitTimeMs", 0) / together
    scale = min(1.0, most_ms / max(1.0, update + commit))
    return update * scale, commit * scale


def _time_us(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1_000_000)


def rows_too_late(progress: Mapping[str, Any]) -> int:
    """The rows that a batch dropped as late. Rows are counted after partial sums: one may stand for several events."""
    return sum(operator.get("numRowsDroppedByWatermark", 0) for operator in progress.get("stateOperators", ()))


def events_left(progress: Mapping[str, Any]) -> int | None:
    """The events of journals and Kafka topics beyond the batch's end, when the batch ended; None if unknown."""
    left = 0
    for source in progress.get("sources", ()):
        ends, latest = (_by_partition(source.get(name)) for name in ("endOffset", "latestOffset"))
        if ends is None or latest is None:
            return None
        left += sum(max(0, offset - ends.get(partition, 0)) for partition, offset in latest.items())
    return left if progress.get("sources") else None


def _by_partition(offset: Any) -> dict[str, int] | None:
    match offset:
        case {"journal": _}:
            return {name: at for name, at in offset.items() if name != "journal"}
        case dict() if offset and all(isinstance(part, dict) for part in offset.values()):  # Kafka
            return {f"{topic}-{number}": at for topic, part in offset.items() for number, at in part.items()}
    return None
