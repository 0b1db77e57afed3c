"""Savepoints: a view's checkpoint as of one batch, from which the job can be restarted later.

    views/VIEW/savepoints/NAME/checkpoint/       the files that a query needs to go on after that batch
    views/VIEW/savepoints/NAME/savepoint.json    {"batch": 128, "position": "0:40960", "watermark_us": 1768…,
                                                  "taken_us": 1768…, "bytes": 1048576, "fingerprint": "…"}

Taking a savepoint is safe while the job runs: nothing waits, and nothing is written to the checkpoint. Spark never
changes a file, but only adds new and deletes old ones; so hard links suffice, which need no space until Spark has
deleted its own. Where links are impossible, files are copied.

1. The newest committed batch is chosen, and its files are brought into a folder whose name begins with a dot. If Spark
   deletes one meanwhile, a newer batch is chosen.
2. The batch must still be the same one. All files are made durable, which Spark itself does not do. Then the folder
   gets its name, in one step.

A crash before step 2 leaves an invisible folder, removed by the next savepoint. A batch has one savepoint.

The files that a query needs to go on after one of its batches (`needed_files`); Spark keeps those of many more:

metadata, sources/…                          the query, and its sources' notes
offsets/N, commits/N, and those of N - 1     the batch, and the one before, where Spark begins
state/OPERATOR/_…, state/OPERATOR/P/_…       the schemas of the state
state/OPERATOR/P/…                           of every partition the newest snapshot, and the changes after it
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

from stateside.core.errors import CheckpointGap, CheckpointInvalid, OperatingError
from stateside.core.json_file import JsonFile
from stateside.core.layout import Layout, ViewLayout
from stateside.core.positions import Position
from stateside.core.storage import Storage, lock_within, make_durable, sync_directory
from stateside.spark_state.batch_log import Checkpoint
from stateside.spark_state.changelog import changelog_name
from stateside.spark_state.checksum import checksum_names
from stateside.spark_state.provider import newest_chain
from stateside.views.state_catalogue import JOIN_STORES, StoreCheckpoint, one_store

_LOGS = ("offsets", "commits")


def needed_files(checkpoint: Checkpoint, batch: int) -> Iterator[str]:
    """The file names, each once; CheckpointGap if the state of the batch is no longer complete.

    Includes checksum files, which not every file has. FileNotFoundError if Spark deletes a file meanwhile.
    """
    storage = checkpoint.storage
    for name in storage.names():
        if name not in (*_LOGS, "state"):
            yield from _all_within(storage, name)
    for log in _LOGS:
        for number in range(max(batch - 1, 0), batch + 1):
            yield from (f"{log}/{number}", *checksum_names(f"{log}/{number}"))
    for operator in checkpoint.operators():
        yield from _of_operator(checkpoint, batch, operator)


def _of_operator(checkpoint: Checkpoint, batch: int, operator: int) -> Iterator[str]:
    storage, folder = checkpoint.storage, f"state/{operator}"
    for name in storage.names(folder):
        if not name.isdigit():
            yield from _all_within(storage, f"{folder}/{name}")
    for partition in range(checkpoint.partitions(operator, checkpoint.plan(batch), checkpoint.commit(batch))):
        inside = storage.names(f"{folder}/{partition}")
        for name in inside:
            if name.startswith("_"):
                yield from _all_within(storage, f"{folder}/{partition}/{name}")
        stores = [name for name in inside if name in JOIN_STORES]
        for store in stores:
            one = StoreCheckpoint(one_store(storage, operator, store))
            place = f"{folder}/{partition}"
            for name in _of_partition(one, batch, operator, partition):
                yield name.replace(place, f"{place}/{store}", 1)
            yield from (
                found
                for name in storage.names(f"{place}/{store}")
                if name.startswith("_")
                for found in _all_within(storage, f"{place}/{store}/{name}")
            )
        if not stores:
            yield from _of_partition(checkpoint, batch, operator, partition)


def _of_partition(checkpoint: Checkpoint, batch: int, operator: int, partition: int) -> Iterator[str]:
    storage, commit = checkpoint.storage, checkpoint.commit(batch)
    chain = newest_chain(checkpoint, checkpoint.plan(batch), commit, operator, partition)
    if chain is None:
        raise CheckpointGap(
            f"The state of batch {batch} cannot be had any more in partition {partition} of operator {operator}",
            where=storage.path(f"state/{operator}/{partition}"),
            next_step="Take one of a newer batch",
        )
    names = chain.file_names(storage)
    if chain.snapshot is not None:
        own = changelog_name(chain.snapshot, operator, partition)  # of RocksDB: the lineage before the snapshot
        names += [own] if storage.exists(own) else []
    for name in dict.fromkeys(names):
        yield name
        yield from checksum_names(name)


def _all_within(storage: Storage, name: str) -> Iterator[str]:
    """A file, or all files of a folder."""
    if not storage.is_folder(name):
        yield name
        return
    for inside in storage.names(name):
        yield from _all_within(storage, str(PurePosixPath(name) / inside))


CHOICES_MAX: Final = 5  # how often a newer batch is chosen because Spark deleted files meanwhile
WAIT_S_MAX: Final = 30.0
RESTORING: Final = "checkpoint.restoring-"  # a copy about to become a view's checkpoint (`ops.restore`)
_TAKING: Final = ".taking-"
_OPTIONAL: Final = ".crc"  # not every file has checksums


@dataclass(frozen=True, slots=True)
class Savepoint:
    """A savepoint of a view. Times are microseconds since 1970."""

    folder: Path
    batch: int
    position: Position
    watermark_us: int
    taken_us: int
    bytes: int
    fingerprint: str

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    def as_dict(self) -> dict[str, Any]:
        """The content of `savepoint.json`, also used in answers."""
        told = {name: value for name, value in asdict(self).items() if name != "folder"}
        return {"name": self.name, **told, "position": str(self.position)}

    @classmethod
    def read(cls, folder: Path) -> Savepoint:
        """The savepoint in this folder; CheckpointInvalid if it cannot be read."""
        return cls(folder=folder, **_FILE.load(folder / _FILE_NAME))


def _fields(document: Mapping[str, Any]) -> dict[str, Any]:
    numbers = {name: int(document[name]) for name in ("batch", "watermark_us", "taken_us", "bytes")}
    return numbers | {"position": Position.parse(document["position"]), "fingerprint": str(document["fingerprint"])}


_FILE_NAME: Final = "savepoint.json"
_FILE = JsonFile("This savepoint", _fields, dict, damage=CheckpointInvalid, next_step="Delete its folder")


def savepoints(view: ViewLayout, on_damaged: Callable[[CheckpointInvalid], None] | None = None) -> list[Savepoint]:
    """A view's savepoints, oldest first. `on_damaged` gets the error of an unreadable one, raised if None.

    A caller that deletes files needed by no savepoint must stop if any savepoint is unreadable.
    """
    found = []
    for folder in names(view):
        try:
            found.append(Savepoint.read(view.savepoints / folder))
        except CheckpointInvalid as error:
            if not (view.savepoints / folder).exists():
                continue  # deleted meanwhile
            if on_damaged is None:
                raise
            on_damaged(error)
    return sorted(found, key=lambda one: (one.taken_us, one.batch))


def names(view: ViewLayout) -> list[str]:
    """The names of a view's savepoints, readable or not."""
    return sorted(path.name for path in view.savepoints.glob("*") if not path.name.startswith("."))


def take(view: ViewLayout, now_us: int) -> Savepoint:
    """Take a savepoint of the newest committed batch, or return the existing one of the same batch.

    CheckpointInvalid if no batch is committed yet; CheckpointGap if Spark deletes files faster than they are linked.
    """
    view.savepoints.mkdir(parents=True, exist_ok=True)
    with _alone(view.savepoints):
        for left in view.savepoints.glob(f"{_TAKING}*"):
            shutil.rmtree(left, ignore_errors=True)
        for _ in range(CHOICES_MAX):
            with suppress(FileNotFoundError, CheckpointGap):
                return _take(view, Checkpoint(Storage.at(view.checkpoint)), now_us)
    raise CheckpointGap(
        f"Spark deletes the files of {view.name!r} faster than they can be brought",
        where=str(view.checkpoint),
        next_step="Let Spark keep more batches (minBatchesToRetain), or stop the job first",
    )


def check_whole(layout: Layout) -> None:
    """CheckpointInvalid if an interrupted restore left a view without a checkpoint: a job would start from scratch.

    For callers about to run the folder's jobs, which must exclude a concurrent restore.
    """
    for view in layout.folders():
        for copy in () if view.checkpoint.exists() else sorted(view.root.glob(f"{RESTORING}*")):
            raise CheckpointInvalid(
                f"A restore of the view {view.name!r} was interrupted, and it has no checkpoint",
                where=str(copy),
                next_step="Repeat `stateside savepoint restore`; or delete this folder, if the view is to begin again",
            )


def _take(view: ViewLayout, checkpoint: Checkpoint, now_us: int) -> Savepoint:
    commits = checkpoint.commits()
    if not commits:
        raise CheckpointInvalid(f"The view {view.name!r} has no finished batch yet", next_step="Wait for its first one")
    batch = commits[-1]
    fingerprint = checkpoint.fingerprint(batch)
    if fingerprint is None:
        raise FileNotFoundError(checkpoint.storage.path(f"commits/{batch}"))
    final = view.savepoints / f"batch-{batch}-{fingerprint[:8]}"
    if final.exists():
        return Savepoint.read(final)
    taking = view.savepoints / f"{_TAKING}{secrets.token_hex(8)}"
    try:
        size_bytes = bring(checkpoint, batch, taking / "checkpoint")
        if checkpoint.fingerprint(batch) != fingerprint:
            raise FileNotFoundError(checkpoint.storage.path(f"commits/{batch}"))
        plan = checkpoint.plan(batch)
        made = Savepoint(final, batch, plan.position, plan.watermark_us, now_us, size_bytes, fingerprint)
        _FILE.write(taking / _FILE_NAME, made.as_dict())
        make_durable(taking)
        taking.rename(final)
    finally:
        shutil.rmtree(taking, ignore_errors=True)
    sync_directory(view.savepoints)
    return made


def bring(checkpoint: Checkpoint, batch: int, target: Path) -> int:
    """Link or copy all files; returns their size in bytes."""
    size_bytes = 0
    for name in dict.fromkeys(needed_files(checkpoint, batch)):
        try:
            checkpoint.storage.bring(name, target / name)
        except FileNotFoundError:
            if not name.endswith(_OPTIONAL):
                raise
            continue
        size_bytes += (target / name).stat().st_size
    return size_bytes


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Holds the lock that excludes other savepoints of this view."""
    handle = lock_within(folder / ".lock", WAIT_S_MAX)
    if handle is None:
        raise OperatingError("Another savepoint of this view is being taken", next_step="Look for it in a while")
    try:
        yield
    finally:
        os.close(handle)
