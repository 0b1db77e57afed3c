"""The examination of a checkpoint or of an application's folder: one `Inspection`, read only, without Spark or Java.

Our own runs are shown by the progress reports beside their checkpoints (`batch_reports`), heartbeats, dead letters and
savepoints; a query of others by the names, sizes and times of its files (`checkpoint_files`). `estimates` names the
figures of a view that come from files instead of reports. Servers add what they know: replicas and leadership.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, TypeVar

from stateside.core.errors import CheckpointInvalid, StatesideError
from stateside.core.json_file import JsonFile
from stateside.core.layout import DEAD_LETTERS, LATE_ROWS, Layout, ViewLayout
from stateside.core.storage import Storage, size_of
from stateside.inspection.batch_reports import BatchReport, newest_reports
from stateside.inspection.checkpoint_files import (
    CheckpointFiles,
    DiskUse,
    PartitionState,
    StateSize,
    estimated_batches,
    scan,
)
from stateside.spark_state.batch_log import Checkpoint
from stateside.spark_state.checkpoint_folder import FoundCheckpoint, examine, located, reading
from stateside.views.heartbeat import Heartbeat
from stateside.views.savepoint import savepoints

BATCHES_MAX: Final = 60
SCAN_S: Final = 5.0  # how long a listing of a local checkpoint is cached by an `Inspector`
SCAN_REMOTE_S: Final = 60.0
REPLAY_BYTES_PER_S: Final = 10_000_000  # compressed changelogs, in one task: about 200,000 rows of 100 bytes
REPLAY_FILE_MS: Final = 5.0
_ESTIMATES: Final = (
    "durations and their parts",
    "input rows",
    "watermark",
    "trigger delay unknown",
    "late rows unknown",
)
_COPIED: Final = "no durations and no growth, since the files' times are those of a copy"
_HOUR_US: Final = 3_600_000_000
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class JobStanding:
    """The state in a job's heartbeat (`views.heartbeat`), the reason, and the heartbeat's age."""

    state: str
    why: str | None = None
    heard_ms: int = 0


@dataclass(frozen=True, slots=True)
class ReplicaStanding:
    """A replica of a view: this server's, or another one's that has not announced itself for `silent_ms`.

    `batch` is None if the replica cannot be answered from yet.
    """

    view: str
    server: str | None
    batch: int | None
    lag_batches: int | None = None
    trouble: str | None = None
    silent_ms: int = 0


@dataclass(frozen=True, slots=True)
class ViewInspection:
    """A view, or a foreign query. `job` is None for a foreign one, and for a view that never ran."""

    view: str
    checkpoint: str
    time_us: int
    ours: bool = True
    job: JobStanding | None = None
    batches: tuple[BatchReport, ...] = ()
    files: CheckpointFiles = field(default_factory=CheckpointFiles)
    disk: tuple[DiskUse, ...] = ()
    estimates: tuple[str, ...] = ()
    late_rows: int | None = None
    dead_letters: int | None = None
    savepoints: int = 0
    replicas: tuple[ReplicaStanding, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def watermark_us(self) -> int | None:
        found = [batch.watermark_us for batch in self.batches if batch.watermark_us]
        return found[-1] if found else None

    @property
    def watermark_lag_ms(self) -> int | None:
        """The watermark's distance from the clock."""
        return None if self.watermark_us is None else (self.time_us - self.watermark_us) // 1_000

    @property
    def last_batch_ms(self) -> int | None:
        """The time since the newest batch ended."""
        return max(0, self.time_us - self.batches[-1].end_us) // 1_000 if self.batches else None

    @property
    def state_bytes(self) -> int | None:
        """The bytes of the newest snapshots; None while a partition has none."""
        sizes = [each.snapshot_bytes for each in self.files.partitions]
        known = [size for size in sizes if size is not None]
        return sum(known) if sizes and len(known) == len(sizes) else None

    @property
    def growth_bytes_per_h(self) -> float | None:
        """The growth of the state, by its snapshots."""
        return None if len(self.files.sizes) < 2 else _rate([(each.time_us, each.bytes) for each in self.files.sizes])

    @property
    def growth_rows_per_h(self) -> float | None:
        """The growth of the state in rows, where Spark counts them."""
        counted = [(batch.end_us, batch.state_rows) for batch in self.batches if batch.state_rows is not None]
        return None if len(counted) < 2 else _rate(counted)

    @property
    def snapshot_age_ms(self) -> int | None:
        """The age of the oldest partition's newest snapshot."""
        times = [each.snapshot_us for each in self.files.partitions if each.snapshot_us is not None]
        return (self.time_us - min(times)) // 1_000 if times else None

    @property
    def recovery_ms(self) -> float | None:
        """How long a restart replays changelogs, estimated: the slowest partition, and all of them over the cores.

        Where the cores are unknown, all partitions are taken to be replayed at the same time.
        """
        costs = [
            each.changes * REPLAY_FILE_MS + each.change_bytes * 1_000 / REPLAY_BYTES_PER_S for each in self.partitions
        ]
        cores = next((batch.cores for batch in reversed(self.batches) if batch.cores), len(costs))
        return max(max(costs), sum(costs) / cores) if costs else None

    @property
    def partitions(self) -> tuple[PartitionState, ...]:
        return self.files.partitions

    def operators(self) -> dict[int, list[PartitionState]]:
        """The partitions of each operator."""
        found: dict[int, list[PartitionState]] = {}
        for each in self.files.partitions:
            found.setdefault(each.operator, []).append(each)
        return found

    def as_dict(self) -> dict[str, Any]:
        document, files = asdict(replace(self, files=CheckpointFiles())), self.files
        del document["files"]
        computed = {name: getattr(self, name) for name in _COMPUTED}
        kept: dict[str, Any] = {name: getattr(files, name) for name in ("oldest_batch", "newest_batch", "kept_ms")}
        kept |= {
            "partitions": [asdict(each) for each in files.partitions],
            "sizes": [asdict(each) for each in files.sizes],
        }
        skews = {str(operator): skew(some) for operator, some in self.operators().items()}
        return document | kept | computed | {"skew": skews}


_COMPUTED: Final = (
    "watermark_us",
    "watermark_lag_ms",
    "last_batch_ms",
    "state_bytes",
    "growth_bytes_per_h",
    "growth_rows_per_h",
    "snapshot_age_ms",
    "recovery_ms",
)


@dataclass(frozen=True, slots=True)
class Inspection:
    """The result for a checkpoint or a folder. `leadership` is as in the status; None without a lease."""

    time_us: int
    location: str
    views: tuple[ViewInspection, ...]
    disk: tuple[DiskUse, ...] = ()
    leadership: Mapping[str, Any] | None = None

    @property
    def problems(self) -> list[str]:
        """What could not be read."""
        return [problem for view in self.views for problem in view.problems]

    def as_dict(self) -> dict[str, Any]:
        return {
            "time_us": self.time_us,
            "location": self.location,
            "views": [view.as_dict() for view in self.views],
            "disk": [asdict(use) for use in self.disk],
            "leadership": self.leadership,
        }


def skew(partitions: Sequence[PartitionState]) -> float | None:
    """The largest partition's state over the mean of the others, by snapshots; None if unknown, or with one partition.

    Without any snapshot yet, all of the state is in the changelogs.
    """
    sizes: dict[int, int] = {}
    snapshots = [each.snapshot_bytes is not None for each in partitions]
    if any(snapshots) != all(snapshots):
        return None
    for each in partitions:
        size = each.change_bytes if each.snapshot_bytes is None else each.snapshot_bytes
        sizes[each.partition] = sizes.get(each.partition, 0) + size
    if len(sizes) < 2:
        return None
    largest = max(sizes.values())
    others = (sum(sizes.values()) - largest) / (len(sizes) - 1)
    return largest / max(others, 1.0)


def _rate(points: Sequence[tuple[int, int]]) -> float | None:
    """The slope by hours, from the first point to the last."""
    (begin_us, before), (end_us, after) = points[0], points[-1]
    return None if end_us <= begin_us else (after - before) * _HOUR_US / (end_us - begin_us)


def inspect(location: str | Path, now_us: int | None = None) -> Inspection:
    """Inspect a checkpoint (a path or a URI) or an application's folder, once.

    CheckpointInvalid or RequestInvalid, with the next step, if nothing is there to inspect.
    """
    return Inspector(str(location)).inspect(now_us)


@dataclass(slots=True)
class Inspector:
    """Inspects one location again and again; listings of checkpoints are cached for SCAN_S."""

    location: str
    _cached: dict[str, tuple[float, Any]] = field(default_factory=dict)

    def inspect(self, now_us: int | None = None) -> Inspection:
        """As the function `inspect`."""
        time_us = time.time_ns() // 1_000 if now_us is None else now_us
        location, storage = located(self.location)
        folder = None if "://" in location else Path(location)
        if folder is not None and _is_application(folder):
            return self._application(Layout(folder), time_us)
        own = None if folder is None else _own_view(folder)
        if own is not None:
            return Inspection(time_us, location, (self._view(own, time_us),))
        name = storage.root.rstrip("/").rsplit("/", 1)[-1]
        return Inspection(time_us, location, (self._foreign(name, location, storage, time_us),))

    def _application(self, layout: Layout, time_us: int) -> Inspection:
        pointed = layout.pointed()
        if pointed is not None:
            served = [view.name for view in layout.views()]
            where, storage = located(pointed)
            name = served[0] if len(served) == 1 else storage.root.rstrip("/").rsplit("/", 1)[-1]
            return Inspection(time_us, str(layout.root), (self._foreign(name, where, storage, time_us),))
        views = [self._view(view, time_us) for view in _views(layout)]
        if not views:
            raise CheckpointInvalid(
                "This application has no view yet",
                where=str(layout.root),
                next_step="Run it with `stateside run`, then inspect it again",
            )
        return Inspection(
            time_us, str(layout.root), tuple(views), self._once(str(layout.root), lambda: _application_disk(layout))
        )

    def _view(self, layout: ViewLayout, time_us: int) -> ViewInspection:
        batches, damaged = newest_reports(layout.progress, BATCHES_MAX, BatchReport.of)
        checkpoint = layout.checkpoint_location
        problems = [_damaged_lines(layout.progress, damaged)] if damaged else []
        try:
            view = self._of_files(layout.name, checkpoint, Storage.at(checkpoint), time_us, with_batches=not batches)
        except StatesideError as error:
            view = ViewInspection(layout.name, checkpoint, time_us, problems=(str(error),))
        except FileNotFoundError:  # before the first batch there is none
            gone = (f"The checkpoint {checkpoint} is missing.",) if batches else ()
            view = ViewInspection(layout.name, checkpoint, time_us, problems=gone)
        if batches:
            view = replace(view, batches=_completed(batches, view.files), estimates=())
        taken = savepoints(layout, lambda error: problems.append(str(error)))
        heartbeat = Heartbeat.load(layout.heartbeat)
        return replace(
            view,
            ours=True,
            job=None if heartbeat is None else _standing(heartbeat, time_us),
            disk=view.disk + self._once(str(layout.root), lambda: _view_disk(layout)),
            late_rows=_count(LATE_ROWS, layout.late_rows),
            dead_letters=_count(DEAD_LETTERS, layout.dead_letters),
            savepoints=len(taken),
            problems=(*view.problems, *problems),
        )

    def _foreign(self, name: str, location: str, storage: Storage, time_us: int) -> ViewInspection:
        found = examine(storage, readable=False)
        if found is FoundCheckpoint.NO_FOLDER:
            raise CheckpointInvalid(
                "There is no such folder", where=storage.root, next_step="Name a query's checkpointLocation, or a --dir"
            )
        if found in (FoundCheckpoint.NO_QUERY, FoundCheckpoint.NO_BATCH):
            raise CheckpointInvalid(
                f"There is nothing to inspect: {found.value}", where=storage.root, next_step="Inspect it again later"
            )
        return self._of_files(name, location, storage, time_us, with_batches=True)

    def _of_files(
        self, name: str, location: str, storage: Storage, time_us: int, *, with_batches: bool
    ) -> ViewInspection:
        checkpoint, batches, problems, copied = Checkpoint(storage), list[BatchReport](), list[str](), False
        with reading(storage):
            files = self._once(location, lambda: scan(storage))
            if with_batches:
                batches, problems, copied = estimated_batches(checkpoint, files, BATCHES_MAX)
        return ViewInspection(
            name,
            location,
            time_us,
            ours=False,
            batches=tuple(batches),
            files=replace(files, sizes=()) if copied else files,
            disk=files.disk,
            estimates=(*_ESTIMATES, *([_COPIED] if copied else [])) if with_batches else (),
            problems=(*files.problems, *problems, *_missing_state(checkpoint, files)),
        )

    def _once(self, key: str, make: Callable[[], T]) -> T:
        """What `make` returned within the last seconds."""
        known, now_s = self._cached.get(key), time.monotonic()
        if known is None or now_s - known[0] > (SCAN_REMOTE_S if "://" in key else SCAN_S):
            known = self._cached[key] = now_s, make()
        found: T = known[1]
        return found


def _is_application(folder: Path) -> bool:
    layout = Layout(folder)
    return layout.pointer.exists() or (folder / "views").is_dir() or (layout.journal.is_dir() and not _is_query(folder))


def _is_query(folder: Path) -> bool:
    return (folder / "offsets").is_dir() or (folder / "commits").is_dir()


def _own_view(folder: Path) -> ViewLayout | None:
    """The view whose checkpoint this is; None for a folder elsewhere."""
    view = ViewLayout(folder.parent)
    if folder.name != "checkpoint" or len(folder.parents) < 5 or view.application / "views" not in folder.parents:
        return None
    return view if view.progress.exists() or view.catalogue.exists() else None


def _views(layout: Layout) -> list[ViewLayout]:
    """The current generations of all views with a checkpoint, those without a key too."""
    names = {view.name for view in layout.folders()} | layout.pointers().keys()
    views = [layout.view(name) for name in sorted(names)]
    return [view for view in views if view.checkpoint.exists() or view.progress.exists() or view.catalogue.exists()]


def _standing(heartbeat: Heartbeat, time_us: int) -> JobStanding:
    heard_ms = max(0, time_us - heartbeat.time_us) // 1_000
    return JobStanding(heartbeat.state_at(time_us), heartbeat.why, heard_ms)


def _completed(batches: Sequence[BatchReport], files: CheckpointFiles) -> tuple[BatchReport, ...]:
    """Reports with the bytes of their changelogs, and with the delay that each batch caused for the next one."""
    sized = [replace(each, changelog_bytes=files.changelog_bytes.get(each.batch)) for each in batches]
    return tuple(sized[:1]) + tuple(replace(each, delay_ms=_delay_ms(before, each)) for before, each in pairwise(sized))


def _delay_ms(before: BatchReport, batch: BatchReport) -> float | None:
    if not batch.trigger_ms or before.duration_ms is None:
        return None
    return max(0.0, before.duration_ms - batch.trigger_ms)


def _missing_state(checkpoint: Checkpoint, files: CheckpointFiles) -> list[str]:
    """Partitions of the newest batch without a file: something has deleted a part of the checkpoint."""
    if files.newest_batch is None:
        later = any(batch > 0 for batch in files.changelog_bytes)
        return ["The commits of the checkpoint are missing, though it has state of several batches."] if later else []
    try:
        plan, commit = checkpoint.plan(files.newest_batch), checkpoint.commit(files.newest_batch)
        expected = {operator: checkpoint.partitions(operator, plan, commit) for operator in checkpoint.operators()}
    except FileNotFoundError:
        gone = checkpoint.committed(files.newest_batch)  # or Spark has deleted the batch since it was listed
        return [f"The plan offsets/{files.newest_batch} of the newest batch is missing."] if gone else []
    except StatesideError as error:
        return [str(error)]
    if files.oldest_batch == files.newest_batch:
        return []  # its commit may have come while the state was listed
    present = {(each.operator, each.partition) for each in files.partitions}
    lost = [(op, part) for op, count in expected.items() for part in range(count) if (op, part) not in present]
    return [f"The state of operator {op} has no file of partition {part}." for op, part in lost[:3]]


def _damaged_lines(path: Path, lines: int) -> str:
    return f"{lines} {'line' if lines == 1 else 'lines'} of {path} cannot be read, and are left out."


def _count(file: JsonFile[int], path: Path) -> int | None:
    return file.read_if_valid(path)


def _view_disk(layout: ViewLayout) -> tuple[DiskUse, ...]:
    folders = {
        "replica": (layout.replica, "the replica itself: ten minutes of history, 1 GiB at most"),
        "savepoints": (layout.savepoints, "`stateside savepoint delete`"),
    }
    found = [_use(kind, path, trimmed) for kind, (path, trimmed) in folders.items() if path.is_dir()]
    lines = [path for path in layout.root.glob("*.jsonl") if path.is_file()]
    used = DiskUse("progress and plans", len(lines), sum(path.stat().st_size for path in lines), "the run itself")
    return (*found, used) if lines else tuple(found)


def _application_disk(layout: Layout) -> tuple[DiskUse, ...]:
    folders = {
        "journal": (layout.journal, "`stateside journal drop`, as far as no reader needs the events"),
        "tables": (layout.root / "tables", "nothing: the archive"),
        "files": (layout.root / "files", "nothing: the output of sinks"),
        "audit": (layout.audit, "may be deleted"),
    }
    return tuple(_use(kind, path, trimmed) for kind, (path, trimmed) in folders.items() if path.is_dir())


def _use(kind: str, path: Path, trimmed_by: str) -> DiskUse:
    return DiskUse(kind, sum(each.is_file() for each in path.rglob("*")), size_of(path), trimmed_by)


__all__ = [
    "Inspection",
    "Inspector",
    "JobStanding",
    "ReplicaStanding",
    "StateSize",
    "ViewInspection",
    "inspect",
    "skew",
]
