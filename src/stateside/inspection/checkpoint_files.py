"""The files of a checkpoint by name, size and time: disk use, state sizes, and estimates of batches. No key is read.

One listing gives all figures but two: the size of a RocksDB snapshot, in the small metadata of its zip, and the plans
of the newest batches (`offsets/N`). A batch of a query without progress reports is estimated:

    trigger's time of offsets/N ──► offsets/N written ──► last state file of the batch ──► commits/N written
              └──── source ────────────────┘└────── compute ────────┘└──────── log ────────────┘

The times of files that were copied show the copy instead: no estimates then (`Times.copied`).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final

import pyarrow.fs as pafs

from stateside.core.errors import StatesideError
from stateside.core.positions import Position
from stateside.core.storage import Storage
from stateside.inspection.batch_reports import BatchReport
from stateside.spark_state.batch_log import Checkpoint, Plan
from stateside.spark_state.rocksdb_snapshot import read_contents

SIZES_MAX: Final = 5  # snapshots of a partition that are measured, for the state's growth
_LIST_TRIES: Final = 5  # Spark deletes files while they are listed
_PLAN_US_MAX: Final = 600_000_000  # from the trigger to the plan; the time of a copy lies later
_COPIED_US: Final = 2_000_000  # a commit later than the next trigger by this much is a copy's
_STATE_FILE = re.compile(r"(?P<version>\d+)(?:_[0-9a-f-]+)?\.(?P<kind>changelog|delta|zip|snapshot)")
_CHANGES: Final = ("changelog", "delta")
_COUNTLESS: Final = ("files", "offset")  # positions that count batches of files, or seconds, not rows
KEPT_BY_SPARK: Final = "Spark, beyond the newest batches: spark.sql.streaming.minBatchesToRetain"
_KINDS: Final = {  # what trims each kind of file
    "batch logs": KEPT_BY_SPARK,
    "changelogs": KEPT_BY_SPARK,
    "snapshots": KEPT_BY_SPARK,
    "sources": "Spark, which compacts the logs of its file sources",
    "schemas": "nothing: few and small",
    "other": "nothing",
}


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file, by its path in the checkpoint."""

    name: str
    bytes: int
    modified_us: int


@dataclass(frozen=True, slots=True)
class DiskUse:
    """Files of one kind, and what trims them."""

    kind: str
    files: int
    bytes: int
    trimmed_by: str


@dataclass(frozen=True, slots=True)
class PartitionState:
    """The files of one partition of an operator's state, or of one of its stores in a join.

    The snapshot is the newest one; None without one. The changes are those after it, which a restart replays.
    """

    operator: int
    partition: int
    store: str = ""
    files: int = 0
    bytes: int = 0
    snapshot_version: int | None = None
    snapshot_bytes: int | None = None
    snapshot_us: int | None = None
    changes: int = 0
    change_bytes: int = 0
    change_bytes_last: int = 0
    keys: int | None = None


@dataclass(frozen=True, slots=True)
class StateSize:
    """The bytes of all states at a time, by their snapshots."""

    time_us: int
    bytes: int


@dataclass(frozen=True, slots=True)
class CheckpointFiles:
    """What the files of a checkpoint show. `oldest_batch` is the oldest commit that Spark has kept."""

    disk: tuple[DiskUse, ...] = ()
    partitions: tuple[PartitionState, ...] = ()
    sizes: tuple[StateSize, ...] = ()
    changelog_bytes: Mapping[int, int] = field(default_factory=dict)  # of each batch
    changelog_files: int = 0  # of the newest batch
    oldest_batch: int | None = None
    newest_batch: int | None = None
    kept_ms: int | None = None  # from the oldest commit to the newest
    times: Times = field(default_factory=lambda: Times())
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Times:
    """When files of batches were written, by batch number."""

    planned_us: Mapping[int, int] = field(default_factory=dict)
    committed_us: Mapping[int, int] = field(default_factory=dict)
    state_us: Mapping[int, int] = field(default_factory=dict)  # the batch's last state file

    def copied(self, plans: Sequence[Plan]) -> bool:
        """Whether the times are those of a copy: a batch cannot be committed after the next one's trigger."""
        return any(
            self.committed_us.get(before.batch, 0) > plan.planned_us + _COPIED_US for before, plan in pairwise(plans)
        )


def scan(storage: Storage) -> CheckpointFiles:
    """List the checkpoint's files, and read the sizes of its snapshots."""
    files = [file for file in _listed(storage) if not file.name.endswith(".tmp")]
    stores, problems = {where: _StoreVersions.of(some) for where, some in sorted(_by_store(files).items())}, list[str]()
    found = [_partition(storage, where, each, problems) for where, each in stores.items()]
    commits = sorted(_numbered(files, "commits").items())
    last_us, written, count = _changes(stores.values())
    return CheckpointFiles(
        disk=_disk(files),
        partitions=tuple(partition for partition, _ in found),
        sizes=_sizes([sizes for _, sizes in found]),
        changelog_bytes=written,
        changelog_files=count.get(commits[-1][0], 0) if commits else 0,
        oldest_batch=commits[0][0] if commits else None,
        newest_batch=commits[-1][0] if commits else None,
        kept_ms=(commits[-1][1] - commits[0][1]) // 1_000 if commits else None,
        times=Times(_numbered(files, "offsets"), dict(commits), last_us),
        problems=tuple(dict.fromkeys(problems)),
    )


def partition_bytes(storage: Storage) -> dict[tuple[int, int], int]:
    """The bytes of all files of each partition, by operator and partition."""
    found: dict[tuple[int, int], int] = defaultdict(int)
    for (operator, partition, _), files in sorted(_by_store(_listed(storage)).items()):
        found[operator, partition] += sum(file.bytes for file in files)
    return dict(found)


def _listed(storage: Storage) -> list[StoredFile]:
    selector = pafs.FileSelector(storage.root, recursive=True)
    for attempt in range(_LIST_TRIES):
        try:
            found = storage.filesystem.get_file_info(selector)
            break
        except FileNotFoundError:
            if attempt == _LIST_TRIES - 1 or not storage.exists(""):
                raise
    start = len(storage.root) + 1
    return [
        StoredFile(info.path[start:], info.size or 0, (info.mtime_ns or 0) // 1_000)
        for info in found
        if info.type == pafs.FileType.File
    ]


def _numbered(files: Iterable[StoredFile], log: str) -> dict[int, int]:
    prefix = f"{log}/"
    named = ((file.name.removeprefix(prefix), file) for file in files if file.name.startswith(prefix))
    return {int(name): file.modified_us for name, file in named if name.isdigit()}


def _disk(files: Sequence[StoredFile]) -> tuple[DiskUse, ...]:
    counts: dict[str, list[int]] = defaultdict(list)
    for file in files:
        counts[_kind(file.name)].append(file.bytes)
    return tuple(
        DiskUse(kind, len(counts[kind]), sum(counts[kind]), trimmed) for kind, trimmed in _KINDS.items() if counts[kind]
    )


def _kind(name: str) -> str:
    """The kind of a file, or of the file whose checksum `.NAME.crc` is."""
    folder = name.partition("/")[0]
    if folder in ("offsets", "commits"):
        return "batch logs"
    if folder == "sources":
        return "sources"
    if folder != "state":
        return "schemas" if folder in ("metadata", ".metadata.crc") else "other"
    if "/_" in name:
        return "schemas"
    if "/SSTs/" in name or "/logs/" in name:
        return "snapshots"
    match = _STATE_FILE.match(name.rpartition("/")[2].removeprefix("."))
    return "other" if match is None else "changelogs" if match["kind"] in _CHANGES else "snapshots"


Store = tuple[int, int, str]


def _by_store(files: Iterable[StoredFile]) -> dict[Store, list[StoredFile]]:
    found: dict[Store, list[StoredFile]] = defaultdict(list)
    for file in files:
        folder, *parts = file.name.split("/")
        if folder == "state" and len(parts) > 2 and parts[0].isdigit() and parts[1].isdigit():
            store = parts[2] if len(parts) > 3 and parts[2] not in ("SSTs", "logs") else ""
            if not store.startswith("_"):
                found[int(parts[0]), int(parts[1]), store].append(file)
    return found


@dataclass(frozen=True, slots=True)
class _StoreVersions:
    """The files of a store, and those of changes and snapshots by version; of several attempts the last one."""

    files: Sequence[StoredFile]
    changes: Mapping[int, StoredFile]
    snapshots: Mapping[int, StoredFile]

    @classmethod
    def of(cls, files: Sequence[StoredFile]) -> _StoreVersions:
        found: dict[bool, dict[int, StoredFile]] = {True: {}, False: {}}
        for file in sorted(files, key=lambda file: file.modified_us):
            match = _STATE_FILE.fullmatch(file.name.rpartition("/")[2])
            if match is not None:
                found[match["kind"] in _CHANGES][int(match["version"])] = file
        return cls(files, found[True], found[False])


def _partition(
    storage: Storage, where: Store, versions: _StoreVersions, problems: list[str]
) -> tuple[PartitionState, list[StateSize]]:
    files, changes, snapshots = versions.files, versions.changes, versions.snapshots
    newest = max(snapshots, default=0)
    after = [file.bytes for version, file in sorted(changes.items()) if version > newest]
    state = PartitionState(
        *where,
        len(files),
        sum(file.bytes for file in files),
        changes=len(after),
        change_bytes=sum(after),
        change_bytes_last=after[-1] if after else 0,
    )
    measured = [(snapshots[version], *_measured(storage, snapshots[version], problems)) for version in _some(snapshots)]
    sizes = [StateSize(file.modified_us, size) for file, size, _ in measured if size is not None]
    if not measured:
        return state, sizes
    file, size, keys = measured[-1]
    return replace(state, snapshot_version=newest, snapshot_bytes=size, snapshot_us=file.modified_us, keys=keys), sizes


def _some(snapshots: Mapping[int, StoredFile]) -> list[int]:
    """Versions from the oldest to the newest, evenly spread."""
    versions = sorted(snapshots)
    last = len(versions) - 1
    return [
        versions[place] for place in sorted({last * step // (SIZES_MAX - 1) for step in range(SIZES_MAX)}) if last >= 0
    ]


def _measured(storage: Storage, file: StoredFile, problems: list[str]) -> tuple[int | None, int | None]:
    """The bytes of a snapshot with the large files that it names, and its keys; None if unknown."""
    if not file.name.endswith(".zip"):
        return file.bytes, None
    try:
        contents = read_contents(storage, file.name)
    except FileNotFoundError:  # Spark has just deleted the snapshot
        return None, None
    except StatesideError as error:
        problems.append(str(error))
        return None, None
    return file.bytes + sum(table.size_bytes for table in contents.tables), contents.keys


def _changes(stores: Iterable[_StoreVersions]) -> tuple[dict[int, int], dict[int, int], dict[int, int]]:
    """For each batch the time of its last state file, and the bytes and the number of its changelogs."""
    last_us: dict[int, int] = defaultdict(int)
    written: dict[int, int] = defaultdict(int)
    count: dict[int, int] = defaultdict(int)
    for versions in stores:
        for version, file in versions.changes.items():
            last_us[version - 1] = max(last_us[version - 1], file.modified_us)
            written[version - 1] += file.bytes
            count[version - 1] += 1
    return dict(last_us), dict(written), dict(count)


def _sizes(series: Sequence[Sequence[StateSize]]) -> tuple[StateSize, ...]:
    """The sum over all partitions at SIZES_MAX times at which every partition's size is known."""
    if not series or not all(series):
        return ()
    first, last = max(each[0].time_us for each in series), min(each[-1].time_us for each in series)
    if first >= last:
        return (StateSize(max(each[-1].time_us for each in series), sum(each[-1].bytes for each in series)),)
    times = [first + (last - first) * step // (SIZES_MAX - 1) for step in range(SIZES_MAX)]
    return tuple(StateSize(time, round(sum(_size_at(each, time) for each in series))) for time in times)


def _size_at(sizes: Sequence[StateSize], time_us: int) -> float:
    for before, after in pairwise(sizes):
        if before.time_us <= time_us <= after.time_us and after.time_us > before.time_us:
            part = (time_us - before.time_us) / (after.time_us - before.time_us)
            return before.bytes + part * (after.bytes - before.bytes)
    return float(sizes[-1].bytes)


def estimated_batches(
    checkpoint: Checkpoint, files: CheckpointFiles, most: int
) -> tuple[list[BatchReport], list[str], bool]:
    """The newest committed batches, oldest first, what could not be read, and whether the files were copied."""
    plans: list[Plan] = []
    problems: list[str] = []
    for batch in sorted(files.times.committed_us)[-most - 1 :]:
        try:
            plans.append(checkpoint.plan(batch))
        except FileNotFoundError:
            if batch != files.oldest_batch and checkpoint.committed(batch):  # Spark trims one log after the other
                problems.append(f"The plan offsets/{batch} of a committed batch is missing.")
        except StatesideError as error:
            problems.append(str(error))
    copied = files.times.copied(plans)
    times, before = None if copied else files.times, [None, *plans]
    found = [_estimated(plan, last, times, files) for plan, last in zip(plans, before, strict=False)]
    return found[-most:], problems, copied


def _estimated(plan: Plan, before: Plan | None, times: Times | None, files: CheckpointFiles) -> BatchReport:
    batch = BatchReport(
        plan.batch,
        plan.planned_us,
        rows=_rows_between(before, plan),
        watermark_us=plan.watermark_us or None,
        changelog_bytes=files.changelog_bytes.get(plan.batch),
    )
    if times is None:
        return batch
    planned, committed = times.planned_us.get(plan.batch), times.committed_us[plan.batch]
    if planned is None or not plan.planned_us <= planned <= min(committed, plan.planned_us + _PLAN_US_MAX):
        return batch
    state = min(max(times.state_us.get(plan.batch, planned), planned), committed)
    parts = {"source": planned - plan.planned_us, "compute": state - planned, "log": committed - state}
    took_us = committed - plan.planned_us
    return replace(batch, duration_ms=took_us / 1_000, parts_ms={name: us / 1_000 for name, us in parts.items()})


def _rows_between(before: Plan | None, plan: Plan) -> int | None:
    """The input rows by the offsets of Kafka or a journal; None for sources whose offsets count something else."""
    if plan.batch and (before is None or before.batch != plan.batch - 1):
        return None
    ends, begins = plan.position.as_dict(), (before.position if before else Position.start()).as_dict()
    if not ends or any(name.rsplit(".", 1)[-1] in _COUNTLESS for name in ends):
        return None
    rows = sum(end - begins.get(name, 0) for name, end in ends.items())
    return rows if before is not None and rows >= 0 else None
