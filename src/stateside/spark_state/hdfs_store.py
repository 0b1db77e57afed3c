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
from dataclasses import dataclass
from pathlib import PurePosixPath

from stateside.core.storage import Storage
from stateside.spark_state.batch_log import Commit
from stateside.spark_state.changelog import Changelog, gone
from stateside.spark_state.checksum import read_state_file
from stateside.spark_state.compression import damaged
from stateside.spark_state.slices import ChangeBlock, blocks, whole_block


@dataclass(frozen=True, slots=True)
class HdfsSnapshot:
    """A snapshot of one partition, by its name; its rows are read on demand."""

    storage: Storage
    name: str

    def blocks(self, *, prefixed: bool = False) -> Iterator[ChangeBlock]:
        """All rows; CheckpointGap if the file is missing. `prefixed` has no effect: no key is in two parts.

        CheckpointInvalid for damage, perhaps after some rows: callers must use no row before the last one was read.
        """
        path = self.storage.path(self.name)
        try:
            pieces = read_state_file(self.storage, self.name)
        except FileNotFoundError:
            raise gone(f"The snapshot of version {PurePosixPath(self.name).stem} is gone", path) from None
        return _undeleted(blocks(pieces, path), path)


def read_delta(storage: Storage, commit: Commit, operator: int, partition: int) -> Changelog:
    """The batch's changes in one partition, in order; CheckpointGap if Spark has deleted the file already."""
    name = f"state/{operator}/{partition}/{commit.batch + 1}.delta"
    try:
        content = b"".join(read_state_file(storage, name))
    except FileNotFoundError:
        raise gone(f"The changes of batch {commit.batch} are gone", storage.path(name)) from None
    return Changelog(whole_block(content, storage.path(name)))


def newest_versions(
    storage: Storage, commit: Commit, operator: int, partition: int, without: Collection[str] = ()
) -> tuple[Commit | None, tuple[Commit, ...]] | None:
    """The newest snapshot up to a batch, and the versions after it; None if a delta is gone.

    Snapshots among `without`, whole names, are passed over as damaged. Without a snapshot the state is built from batch
    0 on. An older snapshot than the newest one needs the same deltas, and more.
    """
    folder = f"state/{operator}/{partition}"
    names = [name for name in storage.names(folder) if f"{folder}/{name}" not in without]
    first = max((found for found in _versions(names, ".snapshot") if found <= commit.batch + 1), default=0)
    if not _versions(names, ".delta") >= set(range(first + 1, commit.batch + 2)):
        return None
    deltas = tuple(Commit(batch, 0, {}) for batch in range(first, commit.batch + 1))
    return Commit(first - 1, 0, {}) if first else None, deltas


def _versions(names: Iterable[str], suffix: str) -> set[int]:
    stems = (name.removesuffix(suffix) for name in names if name.endswith(suffix))
    return {int(stem) for stem in stems if stem.isascii() and stem.isdigit()}


def _undeleted(found: Iterable[ChangeBlock], path: str) -> Iterator[ChangeBlock]:
    for block in found:
        if block.values.sizes.min() < 0:
            raise damaged(path, 0, "a snapshot cannot have a deleted key")
        yield block
