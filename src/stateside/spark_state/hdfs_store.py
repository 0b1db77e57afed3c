"""The HDFS-backed state store, Spark's default: its deltas and snapshots, on any file system.

`VERSION.delta` has the changes of a batch in one partition, version = batch + 1; now and then a `VERSION.snapshot`
beside it has all rows of that version. This store knows checkpoint format v1 only, where a repeated batch overwrites
its files, and no column families. Inside the compression envelope, numbers big-endian:

    delta    := (key size (i32)  key  value size (i32; -1: the key was deleted)  value)*  -1 (i32)
    snapshot := the same without deletions

Keys and values are UnsafeRows and nothing else: no version byte before them, and no key is in two parts.

Spark writes snapshots in the background, of the newest version at the time, perhaps an uncommitted one. So the version
alone says which batches a snapshot includes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain

from stateside.core.errors import CheckpointGap
from stateside.core.storage import Storage
from stateside.spark_state.batch_log import Commit
from stateside.spark_state.changelog import Changelog
from stateside.spark_state.checksum import read_state_file
from stateside.spark_state.compression import damaged
from stateside.spark_state.slices import ChangeBlock, StateChange, blocks, whole_block


@dataclass(frozen=True, slots=True)
class HdfsSnapshot:
    """A snapshot of one partition, by its location; its rows are read on demand."""

    storage: Storage
    operator: int
    partition: int
    version: int

    def name(self) -> str:
        return f"{_folder(self.operator, self.partition)}/{self.version}.snapshot"

    def rows(self) -> Iterator[StateChange]:
        return chain.from_iterable(self.blocks())

    def blocks(self, *, prefixed: bool = False) -> Iterator[ChangeBlock]:
        """All rows; CheckpointGap if the file is missing. `prefixed` has no effect: no key is in two parts.

        CheckpointInvalid for damage, perhaps after some rows: callers must use no row before the last one was read.
        """
        path = self.storage.path(self.name())
        try:
            pieces = read_state_file(self.storage, self.name())
        except FileNotFoundError:
            raise _gone(path, f"The snapshot of version {self.version} is gone") from None
        return _undeleted(blocks(pieces, path), path)


@dataclass(frozen=True, slots=True)
class DeltaChain:
    """The sources of a partition's state: a snapshot, or nothing, and the deltas after it, in order."""

    operator: int
    partition: int
    snapshot: HdfsSnapshot | None
    deltas: tuple[Commit, ...]

    def file_names(self) -> list[str]:
        deltas = [_delta_name(commit, self.operator, self.partition) for commit in self.deltas]
        return [self.snapshot.name(), *deltas] if self.snapshot else deltas

    def snapshot_at(self, storage: Storage) -> HdfsSnapshot | None:
        """The snapshot at its place in a copy of the checkpoint."""
        return replace(self.snapshot, storage=storage) if self.snapshot else None


def read_delta(storage: Storage, commit: Commit, operator: int, partition: int) -> Changelog:
    """The batch's changes in one partition, in order; CheckpointGap if Spark has deleted the file already."""
    name = _delta_name(commit, operator, partition)
    try:
        content = b"".join(read_state_file(storage, name))
    except FileNotFoundError:
        raise _gone(storage.path(name), f"The changes of batch {commit.batch} are gone") from None
    return Changelog(whole_block(content, storage.path(name)))


def newest_snapshot(
    storage: Storage, operator: int, partition: int, batch: int, without: Collection[str] = ()
) -> HdfsSnapshot | None:
    """The snapshot with the fewest deltas to the state after a batch; None if there is none.

    Snapshots among `without`, whole names, are passed over as damaged.

    The version is at most batch + 1, and all deltas after it exist. Without a snapshot the state can still be built
    from batch 0 on, if no delta is gone.
    """
    folder = _folder(operator, partition)
    names = [name for name in storage.names(folder) if f"{folder}/{name}" not in without]
    deltas, snapshots = _versions(names, ".delta"), _versions(names, ".snapshot")
    version = max((found for found in snapshots if found <= batch + 1), default=None)
    if version is None or not deltas >= set(range(version + 1, batch + 2)):
        return None  # an older snapshot would need these deltas too
    return HdfsSnapshot(storage, operator, partition, version)


def newest_delta_chain(
    storage: Storage, commit: Commit, operator: int, partition: int, without: Collection[str] = ()
) -> DeltaChain | None:
    """The shortest chain to the state after a batch; None if every chain lacks a file."""
    snapshot = newest_snapshot(storage, operator, partition, commit.batch, without)
    first = snapshot.version if snapshot else 0
    if not _versions(storage.names(_folder(operator, partition)), ".delta") >= set(range(first + 1, commit.batch + 2)):
        return None
    deltas = tuple(Commit(batch, 0, {}) for batch in range(first, commit.batch + 1))
    return DeltaChain(operator, partition, snapshot, deltas)


def _versions(names: Iterable[str], suffix: str) -> set[int]:
    stems = (name.removesuffix(suffix) for name in names if name.endswith(suffix))
    return {int(stem) for stem in stems if stem.isascii() and stem.isdigit()}


def _folder(operator: int, partition: int) -> str:
    return f"state/{operator}/{partition}"


def _delta_name(commit: Commit, operator: int, partition: int) -> str:
    return f"{_folder(operator, partition)}/{commit.batch + 1}.delta"


def _gone(path: str, what: str) -> CheckpointGap:
    return CheckpointGap(
        what,
        where=path,
        next_step="Spark deletes old state files; keep more with spark.sql.streaming.minBatchesToRetain",
    )


def _undeleted(found: Iterable[ChangeBlock], path: str) -> Iterator[ChangeBlock]:
    for block in found:
        if block.values.sizes.min() < 0:
            raise damaged(path, 0, "a snapshot cannot have a deleted key")
        yield block
