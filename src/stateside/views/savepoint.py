"""Savepoints: a view's checkpoint as of one batch, or those of all views, from which a job can be restarted later.

    views/VIEW/savepoints/NAME/checkpoint/       the files that a query needs to go on after that batch
    views/VIEW/savepoints/NAME/view/             the view's other files: its declaration, what its sinks keep there
    views/VIEW/savepoints/NAME/savepoint.json    {"batch": 128, "position": "0:40960", "watermark_us": 1768…,
                                                  "taken_us": 1768…, "bytes": 1048576, "fingerprint": "…"}
    views/VIEW/savepoints/NAME/files.json        the size and the digest of every file in checkpoint/ and view/
    savepoints/NAME.json                         all views at one position: {"position": "0:40960", "taken_us": 1768…,
                                                  "automatic": false, "views": {VIEW: NAME of its own savepoint}}

Taking a savepoint is safe while the job runs: nothing waits, and nothing is written to the checkpoint. Spark never
changes a file, but only adds new and deletes old ones; so hard links suffice, which need no space until Spark has
deleted its own. Where links are impossible, files are copied.

1. The newest committed batch is chosen, or a given one, and its files are brought into a folder whose name begins with
   a dot. If Spark deletes one meanwhile, a newer batch is chosen.
2. The batch must still be the same one. All files are made durable, which Spark itself does not do. Then the folder
   gets its name, in one step.

A crash before step 2 leaves an invisible folder, removed by the next savepoint. A batch has one savepoint.

All views of a running job rarely stand at one position. So a *barrier* is set: the position that the foremost view was
planned to reach. The journal's source lets a batch of every view end there (`pipeline.journal_source`); no view waits.
A view that was planned beyond the barrier in the very moment is the reason for another one.

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
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path, PurePosixPath
from typing import Any, Final

from stateside.core.errors import CheckpointGap, CheckpointInvalid, NotFreshEnough, OperatingError, RequestInvalid
from stateside.core.json_file import JsonFile
from stateside.core.layout import BARRIER, Layout, ViewLayout
from stateside.core.positions import Position
from stateside.core.storage import Storage, lock_within, make_durable, sync_directory
from stateside.spark_state.batch_log import Checkpoint
from stateside.spark_state.changelog import changelog_name
from stateside.spark_state.checksum import checksum_names
from stateside.spark_state.provider import newest_chain
from stateside.views.heartbeat import Heartbeat
from stateside.views.state_catalogue import JOIN_STORES, StoreCheckpoint, one_store
from stateside.views.view_generations import carry_over

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
BARRIERS_MAX: Final = 20
RESTORING: Final = "checkpoint.restoring-"  # version 0.1.0: a copy about to become a view's checkpoint
_TAKING: Final = ".taking-"
_OPTIONAL: Final = ".crc"  # not every file has checksums
_POLL_S: Final = 0.02
_DIGEST_BYTES: Final = 16
_BLOCK_BYTES: Final = 1 << 20


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

    @property
    def view_files(self) -> Path:
        """The view's other files; absent in savepoints of version 0.1.0."""
        return self.folder / "view"

    def as_dict(self) -> dict[str, Any]:
        """The content of `savepoint.json`, also used in answers."""
        told = {name: value for name, value in asdict(self).items() if name != "folder"}
        return {"name": self.name, **told, "position": str(self.position)}

    @classmethod
    def read(cls, folder: Path) -> Savepoint:
        """The savepoint in this folder; CheckpointInvalid if it cannot be read."""
        return cls(folder=folder, **_FILE.load(folder / _FILE_NAME))

    def verify(self) -> int:
        """Compare all files with their digests; returns their number. CheckpointInvalid names the first difference.

        Version 0.1.0 kept no digests: then nothing is compared.
        """
        expected = _FILES.read(self.folder / _FILES_NAME) or {}
        for name, (size, digest) in expected.items():
            path = self.folder / name
            if not path.is_file():
                raise self._damaged(name, "it is missing")
            if path.stat().st_size != size or _digest(path) != digest:
                raise self._damaged(name, "its content has changed")
        return len(expected)

    def _damaged(self, name: str, how: str) -> CheckpointInvalid:
        return CheckpointInvalid(
            f"The savepoint {self.name} is damaged: {how}",
            where=str(self.folder / name),
            next_step="Bring the file back from a copy, or use another savepoint",
        )


def _fields(document: Mapping[str, Any]) -> dict[str, Any]:
    numbers = {name: int(document[name]) for name in ("batch", "watermark_us", "taken_us", "bytes")}
    return numbers | {"position": Position.parse(document["position"]), "fingerprint": str(document["fingerprint"])}


Digests = dict[str, tuple[int, str]]  # of each file: its size and its digest
_FILE_NAME: Final = "savepoint.json"
_FILE = JsonFile("This savepoint", _fields, dict, damage=CheckpointInvalid, next_step="Delete its folder")
_FILES_NAME: Final = "files.json"
_FILES: JsonFile[Digests] = JsonFile(
    "The digests of this savepoint",
    lambda document: {str(name): (int(size), str(digest)) for name, (size, digest) in document.items()},
    dict,
    damage=CheckpointInvalid,
    next_step="Use another savepoint, or delete this file if the others are known to be whole",
)


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


def find(view: ViewLayout, name: str) -> Savepoint:
    """The savepoint of this name, even if others are damaged; RequestInvalid, with the existing names."""
    found = names(view)
    if name in found:
        return Savepoint.read(view.savepoints / name)
    there = f"There are: {', '.join(found)}" if found else "There are none"
    raise RequestInvalid(f"The view {view.name!r} has no savepoint {name[:80]!r}", next_step=there)


def living_views(layout: Layout) -> dict[str, ViewLayout]:
    """The views and reactions that have a finished batch, by name, without those that were removed."""
    names = {view.name for view in layout.folders()} | layout.pointers().keys()
    found = {name: layout.view(name) for name in sorted(names)}
    return {name: view for name, view in found.items() if _lives(view)}


def _lives(view: ViewLayout) -> bool:
    heartbeat = Heartbeat.load(view.heartbeat)
    removed = heartbeat is not None and heartbeat.state == "removed"
    return not removed and (view.checkpoint / "metadata").exists()


def take(view: ViewLayout, now_us: int, batch: int | None = None) -> Savepoint:
    """Take a savepoint of the newest committed batch, or of this one; returns the existing one of the same batch.

    CheckpointInvalid if no batch is committed yet; CheckpointGap if Spark deletes files faster than they are linked, or
    has deleted those of the given batch.
    """
    view.savepoints.mkdir(parents=True, exist_ok=True)
    checkpoint = Checkpoint(Storage.at(view.checkpoint))
    with _alone(view.savepoints):
        for left in view.savepoints.glob(f"{_TAKING}*"):
            shutil.rmtree(left, ignore_errors=True)
        if batch is not None:
            return _take(view, checkpoint, now_us, _kept(view, checkpoint, batch))
        for _ in range(CHOICES_MAX):
            with suppress(FileNotFoundError, CheckpointGap):
                return _take(view, checkpoint, now_us, _newest(view, checkpoint))
    raise CheckpointGap(
        f"Spark deletes the files of {view.name!r} faster than they can be brought",
        where=str(view.checkpoint),
        next_step="Let Spark keep more batches (minBatchesToRetain), or stop the job first",
    )


def _newest(view: ViewLayout, checkpoint: Checkpoint) -> int:
    commits = checkpoint.commits()
    if not commits:
        raise CheckpointInvalid(f"The view {view.name!r} has no finished batch yet", next_step="Wait for its first one")
    return commits[-1]


def _kept(view: ViewLayout, checkpoint: Checkpoint, batch: int) -> int:
    """The batch, if Spark still keeps it."""
    commits = checkpoint.commits()
    if batch not in commits:
        there = f"It has {commits[0]:,} to {commits[-1]:,}" if commits else "It has none"
        raise RequestInvalid(f"The view {view.name!r} has no batch {batch:,} any more, or not yet", next_step=there)
    return batch


def batch_at(view: ViewLayout, time_us: int) -> int:
    """The last batch committed up to this time; RequestInvalid if Spark does not keep one."""
    checkpoint = Checkpoint(Storage.at(view.checkpoint))
    commits = checkpoint.commits()
    number = bisect_right(commits, time_us, key=lambda batch: checkpoint.commit(batch).committed_us)
    if not number:
        first = _time(checkpoint.commit(commits[0]).committed_us) if commits else None
        raise RequestInvalid(
            f"No batch of the view {view.name!r} that is kept was committed by {_time(time_us)}",
            next_step=f"The oldest one is of {first}" if first else "It has no batch yet",
        )
    return commits[number - 1]


def _time(time_us: int) -> str:
    return f"{datetime.fromtimestamp(time_us / 1_000_000, UTC):%Y-%m-%dT%H:%M:%SZ}"


def check_whole(layout: Layout) -> None:
    """CheckpointInvalid if an interrupted restore of version 0.1.0 left a view without a checkpoint.

    A job would start from scratch.
    """
    for view in layout.folders():
        for copy in () if view.checkpoint.exists() else sorted(view.root.glob(f"{RESTORING}*")):
            raise CheckpointInvalid(
                f"A restore of the view {view.name!r} was interrupted, and it has no checkpoint",
                where=str(copy),
                next_step="Repeat `stateside savepoint restore`; or delete this folder, if the view is to begin again",
            )


def _take(view: ViewLayout, checkpoint: Checkpoint, now_us: int, batch: int) -> Savepoint:
    fingerprint = checkpoint.fingerprint(batch)
    if fingerprint is None:
        raise FileNotFoundError(checkpoint.storage.path(f"commits/{batch}"))
    final = view.savepoints / f"batch-{batch}-{fingerprint[:8]}"
    if final.exists():
        return Savepoint.read(final)
    taking = view.savepoints / f"{_TAKING}{secrets.token_hex(8)}"
    try:
        size_bytes = bring(checkpoint, batch, taking / "checkpoint")
        carry_over(view, taking / "view", "tables", view.batches.name, view.replayed.name, "progress*")
        if checkpoint.fingerprint(batch) != fingerprint:
            raise FileNotFoundError(checkpoint.storage.path(f"commits/{batch}"))
        plan = checkpoint.plan(batch)
        made = Savepoint(final, batch, plan.position, plan.watermark_us, now_us, size_bytes, fingerprint)
        _FILES.write(taking / _FILES_NAME, _digests(taking, _known_digests(view)))
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


def _digests(folder: Path, known: Mapping[int, str]) -> Digests:
    """Of all files; a file that an earlier savepoint links too is not read again."""
    found = {}
    for path in sorted(each for each in folder.rglob("*") if each.is_file()):
        status = path.stat()
        found[str(path.relative_to(folder))] = (status.st_size, known.get(status.st_ino) or _digest(path))
    return found


def _known_digests(view: ViewLayout) -> dict[int, str]:
    """The digests of earlier savepoints, by inode."""
    found = {}
    for name in names(view):
        for file, (size, digest) in (_FILES.read_if_valid(view.savepoints / name / _FILES_NAME) or {}).items():
            with suppress(FileNotFoundError):
                status = (view.savepoints / name / file).stat()
                if status.st_size == size:
                    found[status.st_ino] = digest
    return found


def _digest(path: Path) -> str:
    digest = blake2b(digest_size=_DIGEST_BYTES)
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Holds the lock that excludes other savepoints of this folder."""
    handle = lock_within(folder / ".lock", WAIT_S_MAX)
    if handle is None:
        raise OperatingError("Another savepoint is being taken", next_step="Look for it in a while")
    try:
        yield
    finally:
        os.close(handle)


@dataclass(frozen=True, slots=True)
class SavepointSet:
    """A savepoint of several views at one position, each with the name of its own savepoint."""

    path: Path
    position: Position
    taken_us: int
    views: Mapping[str, str]
    automatic: bool = False

    @property
    def name(self) -> str:
        return self.path.stem

    def as_dict(self) -> dict[str, Any]:
        """The content of its file, also used in answers."""
        return {
            "name": self.name,
            "position": str(self.position),
            "taken_us": self.taken_us,
            "automatic": self.automatic,
            "views": dict(self.views),
        }

    @classmethod
    def read(cls, path: Path) -> SavepointSet:
        made: SavepointSet = _SET.load(path)(path)
        return made

    def parts(self, layout: Layout) -> dict[str, Savepoint]:
        """The savepoint of each view; RequestInvalid if one is gone."""
        return {view: find(layout.view(view), name) for view, name in self.views.items()}

    def delete(self, layout: Layout) -> None:
        """Delete it, and the savepoints of its views that no other set names."""
        self.path.unlink(missing_ok=True)
        named = {(view, name) for each in savepoint_sets(layout) for view, name in each.views.items()}
        for view, name in set(self.views.items()) - named:
            shutil.rmtree(layout.view(view).savepoints / name, ignore_errors=True)


def _parse_set(document: Mapping[str, Any]) -> Callable[[Path], SavepointSet]:
    views = {str(view): str(name) for view, name in document["views"].items()}
    position, taken_us = Position.parse(document["position"]), int(document["taken_us"])
    return lambda path: SavepointSet(path, position, taken_us, views, bool(document["automatic"]))


_SET: JsonFile[Any] = JsonFile(
    "This savepoint", _parse_set, SavepointSet.as_dict, damage=CheckpointInvalid, next_step="Delete this file"
)


def savepoint_sets(layout: Layout) -> list[SavepointSet]:
    """The savepoints of all views, oldest first."""
    found = [SavepointSet.read(path) for path in layout.savepoints.glob("*.json")]
    return sorted(found, key=lambda one: (one.taken_us, one.name))


def take_all(
    layout: Layout, views: Sequence[ViewLayout], now_us: int, *, automatic: bool = False, wait_s: float = WAIT_S_MAX
) -> SavepointSet:
    """Take a savepoint of these views at one position. NotFreshEnough if they do not reach one in time.

    Views of different sources have no position in common: those of each source are at one.
    """
    layout.savepoints.mkdir(parents=True, exist_ok=True)
    with _alone(layout.savepoints):
        for _ in range(CHOICES_MAX):
            position, batches = _aligned_by_source(layout, views, wait_s)
            with suppress(CheckpointGap):
                taken = {view.name: take(view, now_us, batches[view.name]).name for view in views}
                when = f"{datetime.fromtimestamp(now_us / 1_000_000, UTC):%Y%m%dT%H%M%S}"
                path = layout.savepoints / f"all-{when}-{secrets.token_hex(2)}.json"
                made = SavepointSet(path, position, now_us, taken, automatic)
                _SET.write(path, made)
                return made
    raise CheckpointGap(
        "Spark deletes the files of these views faster than they can be brought",
        where=str(layout.root),
        next_step="Let Spark keep more batches (batches_kept), or stop the job first",
    )


def _aligned_by_source(layout: Layout, views: Sequence[ViewLayout], wait_s: float) -> tuple[Position, dict[str, int]]:
    """The batches of all views, and the position at which they end."""
    sources: dict[frozenset[str], list[_Aligning]] = {}
    for each in map(_Aligning, views):
        sources.setdefault(frozenset(each.planned().as_dict()), []).append(each)
    position, batches = Position.start(), dict[str, int]()
    for aligning in sources.values():
        found, of_source = _aligned(layout, aligning, wait_s)
        position, batches = position.joined(found), batches | of_source
    return position, batches


def _aligned(layout: Layout, aligning: Sequence[_Aligning], wait_s: float) -> tuple[Position, dict[str, int]]:
    """A position at which a committed batch of every view ends, and these batches."""
    deadline_s = time.monotonic() + wait_s
    try:
        for _ in range(BARRIERS_MAX):
            position = aligning[0].planned()
            for each in aligning[1:]:
                position = position.joined(each.planned())
            if len({each.planned() for each in aligning}) > 1:
                BARRIER.write(layout.barrier, position)
            while not any(each.is_beyond(position) for each in aligning):
                batches = {each.view.name: each.ending_at(position) for each in aligning}
                if None not in batches.values():
                    return position, {name: batch for name, batch in batches.items() if batch is not None}
                if time.monotonic() >= deadline_s:
                    raise _not_aligned(aligning)
                time.sleep(_POLL_S)
    finally:
        layout.barrier.unlink(missing_ok=True)
    raise _not_aligned(aligning)


def _not_aligned(aligning: Sequence[_Aligning]) -> NotFreshEnough:
    stands = ", ".join(f"{each.view.name} at {each.planned()}" for each in aligning)
    return NotFreshEnough(
        f"The views do not stand at one position: {stands}",
        next_step="Let the job run, or run it with --until-caught-up while nothing is appended. On Kafka, where Spark's"
        " own source divides the batches, wait until no message comes. One view's: --view",
    )


class _Aligning:
    """A view on its way to a position."""

    def __init__(self, view: ViewLayout) -> None:
        self.view = view
        self._checkpoint = Checkpoint(Storage.at(view.checkpoint))

    def planned(self) -> Position:
        """The end of the newest batch, begun or finished."""
        batches = [int(name) for name in self._checkpoint.storage.names("offsets") if name.isdigit()]
        return _of_stream(self._checkpoint.plan(max(batches)).position) if batches else Position.start()

    def is_beyond(self, position: Position) -> bool:
        """Whether no batch ended at the position, and none will."""
        return not position.covers(self.planned()) and self.ending_at(position) is None

    def ending_at(self, position: Position) -> int | None:
        """The newest committed batch that ends at the position."""
        for batch in reversed(self._checkpoint.commits()):
            try:
                end = _of_stream(self._checkpoint.plan(batch).position)
            except FileNotFoundError:  # deleted meanwhile, and so are all before it
                return None
            if end == position or not end.covers(position):
                return batch if end == position else None
        return None


def _of_stream(position: Position) -> Position:
    """The partitions of the stream, without the nodes' logs, which batches at one place in it may know differently."""
    partitions = {name: offset for name, offset in position.parts if name.isdigit()}
    return Position.of(partitions) if partitions else position
