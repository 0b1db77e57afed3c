"""The status of a folder for operators: journal, views, jobs, replicas, batches, partitions and tables.

The status is gathered in a thread, from files that exist anyway, and costs the job nothing. A view's newest batches
come from the end of `progress.jsonl`, where the runner writes Spark's progress reports, one line per batch.

The journal's end, in the folder or on Kafka:

    {"end": 1234, "segments": 2, "bytes": 56789}                on files
    {"end": 1240, "bytes": null, "trouble": null}               on Kafka: an offset, transaction markers included
    {"end": null, "bytes": null, "trouble": "The brokers …"}    on Kafka, and the end is unknown
    null                                                        no journal here: another job's source, or none yet

Unreachable brokers block a request for seconds. So a separate thread asks the brokers, one request at a time and at
most once in `ASK_S`, and a caller waits for `WAIT_S` at most. A reply is valid for `OLD_S`.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from stateside.archive.table_reader import DataFile, FollowedTable
from stateside.core.errors import StatesideError
from stateside.core.layout import Layout, ViewLayout
from stateside.core.storage import Storage
from stateside.inspection.batch_reports import newest_reports
from stateside.inspection.checkpoint_files import partition_bytes
from stateside.journal import Log, open_journal
from stateside.journal.backends.kafka.topic_folder import address_in
from stateside.journal.contract import DurableEnd
from stateside.serving.health.condition import ViewCondition, conditions
from stateside.serving.rows.archive import table_folder
from stateside.serving.rows.floor import Floor
from stateside.serving.rows.view_readers import ViewReaders
from stateside.serving.stamp import Stamp, iso_time
from stateside.spark_state.provider import counted_rows
from stateside.views.catalogue import Catalogue
from stateside.views.heartbeat import Heartbeat

BATCHES_SHOWN: Final = 60
_PARTS: Final = {
    "ask": ("latestOffset", "getBatch"),
    "plan": ("queryPlanning",),
    "log": ("walCommit",),
    "work": ("addBatch",),
    "commit": ("commitOffsets",),
}


def newest_batches(path: Path, most: int = BATCHES_SHOWN) -> list[dict[str, Any]]:
    """The newest batches in this file, oldest first; empty without the file."""
    return newest_reports(path, most, shown)[0]


def shown(progress: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of Spark's progress report that pages show."""
    took = progress["durationMs"]
    return {
        "batch": progress["batchId"],
        "time": progress["timestamp"],
        "duration_ms": took["triggerExecution"],
        "parts_ms": {part: sum(took.get(name, 0) for name in names) for part, names in _PARTS.items()},
        "rows": progress["numInputRows"],
        "rows_per_s": progress.get("processedRowsPerSecond"),
        "watermark": progress.get("eventTime", {}).get("watermark"),
        "dead_letters": progress.get("deadLetters", 0),
        "pace": progress.get("pace"),
        "traceparent": progress.get("traceparent"),
        "cores": progress.get("cores"),
        "partitions": progress.get("partitions"),
        "operators": [_operator(each) for each in progress.get("stateOperators", ())],
    }


def _operator(reported: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": reported["operatorName"],
        "rows": counted_rows(reported),
        "updated": reported["numRowsUpdated"],
        "removed": reported.get("numRowsRemoved", 0),
        "late": reported.get("numRowsDroppedByWatermark", 0),
        "bytes": reported["memoryUsedBytes"],
        "commit_ms": reported.get("commitTimeMs", 0),
    }


ASK_S: Final = 1.0
WAIT_S: Final = 0.5
OLD_S: Final = 5.0
Document = dict[str, Any]


def _log(folder: Path) -> Log:
    return open_journal(folder).log()


class JournalEnd:
    """The end of one folder's journal. Thread-safe."""

    def __init__(self, folder: Path, open_: Callable[[Path], Log] = _log) -> None:
        self._folder, self._open = folder, open_
        self._lock = threading.Lock()
        self._topic: tuple[str, TopicEnd] | None = None

    def is_on_kafka(self) -> bool:
        return address_in(self._folder) is not None

    def now(self) -> Document | None:
        """The journal as in the status; None without a journal."""
        try:
            address = address_in(self._folder)
        except (OSError, StatesideError) as error:
            return _on_kafka(None, str(error))
        return _on_files(self._folder) if address is None else self._at(address).now()

    def _at(self, address: str) -> TopicEnd:
        with self._lock:
            if self._topic is None or self._topic[0] != address:
                self._topic = address, TopicEnd(lambda: self._open(self._folder))
            return self._topic[1]


class TopicEnd:
    """The end of a topic. The first call opens the journal."""

    def __init__(self, open_: Callable[[], Log]) -> None:
        self._open = open_
        self._journal: Log | None = None
        self._told = threading.Condition()
        self._asking, self._asked_s, self._told_s = False, float("-inf"), float("-inf")
        self._document = _on_kafka(None, None)

    def now(self) -> Document:
        """The brokers' last reply, if recent; otherwise a document with the trouble."""
        with self._told:
            now_s = time.monotonic()
            if not self._asking and now_s - self._asked_s >= ASK_S:
                self._asking, self._asked_s = True, now_s
                threading.Thread(target=self._ask, name="journal's end", daemon=True).start()
            if self._told.wait_for(self._is_known, WAIT_S):
                return self._document
        return _on_kafka(None, "The brokers do not answer")

    def _is_known(self) -> bool:
        return time.monotonic() - self._told_s < OLD_S

    def _ask(self) -> None:
        try:
            if self._journal is None:
                self._journal = self._open()
            document = _on_kafka(self._journal.end().one(), None)
        except Exception as error:  # any error is reported, since no caller waits for this thread
            document = _on_kafka(None, str(error) or type(error).__name__)
        with self._told:
            self._asking, self._told_s, self._document = False, time.monotonic(), document
            self._told.notify_all()


def _on_kafka(end: int | None, trouble: str | None) -> Document:
    return {"end": end, "bytes": None, "trouble": trouble}


def _on_files(folder: Path) -> Document | None:
    try:
        end = DurableEnd.read(folder)
        sizes = [path.stat().st_size for path in folder.glob("*.segment")]
    except (OSError, StatesideError):
        return None
    return None if end is None else {"end": end.offset, "segments": len(sizes), "bytes": sum(sizes)}


SIZES_S: Final = 5.0  # how long partition sizes are cached: adding them up looks at every file


@dataclass(slots=True)
class Status:
    """Reports the status of a folder; caches the expensive parts."""

    layout: Layout
    _sizes: dict[str, tuple[float, list[dict[str, Any]]]] = field(default_factory=dict)
    _tables: dict[Path, FollowedTable] = field(default_factory=dict)
    _rows: dict[Path, dict[Path, int]] = field(default_factory=dict)  # rows per file of each table; files never change
    _journal: JournalEnd = field(init=False)

    def __post_init__(self) -> None:
        self._journal = JournalEnd(self.layout.journal)

    async def now(self, views: ViewReaders) -> dict[str, Any]:
        """The status document."""
        found = await conditions(views)
        stamps = {each.view: await _stamp(views, each) for each in found}
        return await asyncio.to_thread(self._gathered, views, found, stamps)

    def _gathered(
        self, views: ViewReaders, found: Sequence[ViewCondition], stamps: dict[str, Stamp | None]
    ) -> dict[str, Any]:
        further = {"note": views.note(), "leadership": views.leadership()}
        return {
            "time": iso_time(time.time_ns() // 1_000),
            "journal": self._journal.now(),
            "views": [self._view(views, each, stamps[each.view]) for each in found],
            **{name: told for name, told in further.items() if told},
        }

    def _view(self, views: ViewReaders, condition: ViewCondition, stamp: Stamp | None) -> dict[str, Any]:
        layout = self.layout.view(condition.view)
        heartbeat = Heartbeat.load(layout.heartbeat)
        end = None if heartbeat is None or heartbeat.source_end is None else str(heartbeat.source_end)
        batch = None if heartbeat is None else heartbeat.batch
        return {
            "view": condition.view,
            "job": {**views.state(condition.view), "batch": batch, "source_end": end},
            "replica": {
                "stamp": None if stamp is None else stamp.as_dict(),
                "lag_batches": condition.lag_batches,
                "rows": condition.rows,
                "operator": _served_operator(layout),
                "bytes": condition.bytes,
                "trouble": condition.trouble,
            },
            "dead_letters": condition.dead_letters,
            "late_rows": condition.late_rows,
            "batches": newest_batches(layout.progress),
            "partitions": self._partitions(layout),
            "tables": [self._table(layout, mark) for mark in sorted((layout.root / "marks").glob("*.json"))],
        }

    def _table(self, view: ViewLayout, mark: Path) -> dict[str, Any]:
        """The table of one of the view's sinks."""
        name = mark.stem
        table = self._tables.setdefault(mark, FollowedTable(table_folder(view, name), mark))
        try:
            files = table.files()
            self._rows[mark] = rows = _file_rows(files, self._rows.get(mark, {}))
        except (OSError, StatesideError, pa.ArrowException) as error:
            return {"table": name, "rows": None, "bytes": None, "trouble": str(error)}
        return {"table": name, "rows": sum(rows.values()), "bytes": sum(file.bytes for file in files), "trouble": None}

    def _partitions(self, layout: ViewLayout) -> list[dict[str, Any]]:
        """The size of each partition's files; empty for a checkpoint that is not on a local disk."""
        known = self._sizes.get(layout.name)
        if known is None or time.monotonic() - known[0] > SIZES_S:
            known = self._sizes[layout.name] = time.monotonic(), partition_sizes(Path(layout.checkpoint_location))
        return known[1]


def partition_sizes(checkpoint: Path) -> list[dict[str, Any]]:
    """The bytes of all files of each partition, operator by operator."""
    found = partition_bytes(Storage.at(checkpoint)) if checkpoint.is_dir() else {}
    return [{"operator": number, "partition": part, "bytes": size} for (number, part), size in found.items()]


def _served_operator(layout: ViewLayout) -> int | None:
    """The number of the query's stateful operator that the replica shows."""
    try:
        return Catalogue.load(layout.catalogue).operator
    except (OSError, StatesideError):
        return None


def _file_rows(files: Sequence[DataFile], known: Mapping[Path, int]) -> dict[Path, int]:
    """The number of rows of each of a table's files; `known` files are not read again."""
    paths = [file.path for file in files]
    return {path: known[path] if path in known else pq.read_metadata(path).num_rows for path in paths}


async def _stamp(views: ViewReaders, condition: ViewCondition) -> Stamp | None:
    if condition.batch is None:
        return None
    try:
        return await views.get(condition.view).stamp(Floor(wait_ms=0))
    except StatesideError:
        return None
