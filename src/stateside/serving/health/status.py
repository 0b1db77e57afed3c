"""The status: everything that an operator wants to see of a folder at one look, from the journal to the servers.

It is gathered from files that others write anyway, in a thread, and costs the job nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from stateside.archive.followed import DataFile, FollowedTable
from stateside.checkpoint.catalogue import Catalogue
from stateside.checkpoint.heartbeat import Heartbeat
from stateside.errors import StatesideError
from stateside.layout import Layout, ViewLayout
from stateside.serving.health.batches import newest_batches
from stateside.serving.health.condition import Condition, conditions
from stateside.serving.health.journal_end import JournalEnd
from stateside.serving.reading.floor import Floor
from stateside.serving.reading.views import Views
from stateside.serving.stamp import Stamp, iso_time

SIZES_S: Final = 5.0  # for how long the sizes of partitions are remembered: to add them up is to look at every file


@dataclass(slots=True)
class Status:
    """Tells the status of a folder; remembers what is dear to find out."""

    layout: Layout
    _sizes: dict[str, tuple[float, list[dict[str, Any]]]] = field(default_factory=dict)
    _tables: dict[Path, FollowedTable] = field(default_factory=dict)
    _rows: dict[Path, dict[Path, int]] = field(default_factory=dict)  # of each table's files, which never change
    _journal: JournalEnd = field(init=False)

    def __post_init__(self) -> None:
        self._journal = JournalEnd(self.layout.journal)

    async def now(self, views: Views) -> dict[str, Any]:
        """As it stands in an answer."""
        found = await conditions(views)
        stamps = {each.view: await _stamp(views, each) for each in found}
        return await asyncio.to_thread(self._gathered, views, found, stamps)

    def _gathered(self, views: Views, found: Sequence[Condition], stamps: dict[str, Stamp | None]) -> dict[str, Any]:
        further = {"note": views.note(), "leadership": views.leadership()}
        return {
            "time": iso_time(time.time_ns() // 1_000),
            "journal": self._journal.now(),
            "views": [self._view(views, each, stamps[each.view]) for each in found],
            **{name: told for name, told in further.items() if told},
        }

    def _view(self, views: Views, condition: Condition, stamp: Stamp | None) -> dict[str, Any]:
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
                "operator": _operator(layout),
                "bytes": condition.bytes,
                "trouble": condition.trouble,
            },
            "dead_letters": condition.dead_letters,
            "batches": newest_batches(layout.progress),
            "partitions": self._partitions(layout),
            "tables": [self._table(mark) for mark in sorted((layout.root / "marks").glob("*.json"))],
        }

    def _table(self, mark: Path) -> dict[str, Any]:
        """What a sink of the view has filled, if that is a table of this folder."""
        name = mark.stem
        table = self._tables.setdefault(mark, FollowedTable(self.layout.table(name), mark))
        try:
            files = table.files()
            self._rows[mark] = rows = _file_rows(files, self._rows.get(mark, {}))
        except (OSError, StatesideError, pa.ArrowException) as error:
            return {"table": name, "rows": None, "bytes": None, "trouble": str(error)}
        return {"table": name, "rows": sum(rows.values()), "bytes": sum(file.bytes for file in files), "trouble": None}

    def _partitions(self, layout: ViewLayout) -> list[dict[str, Any]]:
        """How large each partition's files are; nothing of a checkpoint that is not on this machine's disk."""
        known = self._sizes.get(layout.name)
        if known is None or time.monotonic() - known[0] > SIZES_S:
            known = self._sizes[layout.name] = time.monotonic(), partition_sizes(Path(layout.checkpoint_location))
        return known[1]


def partition_sizes(checkpoint: Path) -> list[dict[str, Any]]:
    """The bytes of all files of each partition, operator by operator."""
    found = []
    for operator in _numbered(checkpoint / "state"):
        for partition in _numbered(operator):
            sizes = {"operator": int(operator.name), "partition": int(partition.name), "bytes": _bytes(partition)}
            found.append(sizes)
    return found


def _numbered(folder: Path) -> list[Path]:
    try:
        return sorted((each for each in folder.iterdir() if each.name.isdigit()), key=lambda each: int(each.name))
    except OSError:
        return []


def _bytes(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:  # Spark deletes what is old meanwhile
            continue
    return total


def _operator(layout: ViewLayout) -> int | None:
    """Which of the query's stateful operators has the rows that the replica shows."""
    try:
        return Catalogue.load(layout.catalogue).operator
    except (OSError, StatesideError):
        return None


def _file_rows(files: Sequence[DataFile], known: Mapping[Path, int]) -> dict[Path, int]:
    """How many rows each of a table's files has; those that are known need not be looked at."""
    paths = [file.path for file in files]
    return {path: known[path] if path in known else pq.read_metadata(path).num_rows for path in paths}


async def _stamp(views: Views, condition: Condition) -> Stamp | None:
    if condition.batch is None:
        return None
    try:
        return await views.get(condition.view).stamp(Floor(wait_ms=0))
    except StatesideError:
        return None
