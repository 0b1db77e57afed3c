"""State stores: which one holds a query's state, the files of a partition's state, and a batch's changes.

Every `offsets/N` names the query's store, which never changes after the query's first run. A file without this entry is
older than every store but the HDFS-backed one. Either store writes a file of changes with every batch, and now and then
a snapshot of a whole partition:

    store          changes              a snapshot
    RocksDB        VERSION.changelog    VERSION.zip, and the tables that it names; see `changelog`, `rocksdb_snapshot`
    HDFS-backed    VERSION.delta        VERSION.snapshot; both are read here

The HDFS-backed store, Spark's default, knows checkpoint format v1 only, where a repeated batch overwrites its files,
and no column families. Inside the compression envelope, numbers big-endian:

    delta    := (key size (i32)  key  value size (i32; -1: the key was deleted)  value)*  -1 (i32)
    snapshot := the same without deletions

Keys and values are UnsafeRows and nothing else: no version byte before them, and no key is in two parts. Spark writes
snapshots in the background, of the newest version at the time, perhaps an uncommitted one. So the version alone says
which batches a snapshot includes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import Enum
from pathlib import Path, PurePosixPath
from typing import Any

from stateside.core.errors import CheckpointGap, CheckpointInvalid
from stateside.core.storage import Storage
from stateside.spark_state.batch_log import Checkpoint, Commit, Plan
from stateside.spark_state.changelog import Changelog, check_encoding, gone, read_changelog, state_stem
from stateside.spark_state.checksum import read_state_file
from stateside.spark_state.compression import damaged
from stateside.spark_state.rocksdb_snapshot import StateSnapshot, newest_versions, read_version_changes, table_names
from stateside.spark_state.slices import ChangeBlock, blocks, whole_block

_SETTING = "spark.sql.streaming.stateStore.providerClass"
_PACKAGE = "org.apache.spark.sql.execution.streaming.state"


class Provider(Enum):
    """A state store of Spark's, by its class name."""

    HDFS = f"{_PACKAGE}.HDFSBackedStateStoreProvider"
    ROCKSDB = f"{_PACKAGE}.RocksDBStateStoreProvider"


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


AnySnapshot = StateSnapshot | HdfsSnapshot


@dataclass(frozen=True, slots=True)
class Chain:
    """The sources of a partition's state: a snapshot, or nothing, and the changes after it, in order.

    Each version is a `Commit` that names this partition's files; Spark may have deleted the real commit.
    """

    provider: Provider
    operator: int
    partition: int
    snapshot: Commit | None
    changes: tuple[Commit, ...]

    def snapshot_name(self) -> str | None:
        suffix = ".snapshot" if self.provider is Provider.HDFS else ".zip"
        return f"{state_stem(self.snapshot, self.operator, self.partition)}{suffix}" if self.snapshot else None

    def file_names(self, storage: Storage) -> list[str]:
        """All files of the chain; FileNotFoundError if its snapshot is gone."""
        name, on_rocksdb = self.snapshot_name(), self.provider is Provider.ROCKSDB
        names = [] if name is None else [name, *(table_names(storage, name) if on_rocksdb else ())]
        suffix = ".changelog" if on_rocksdb else ".delta"
        return names + [f"{state_stem(commit, self.operator, self.partition)}{suffix}" for commit in self.changes]

    def open_snapshot(self, storage: Storage, scratch: Path) -> AbstractContextManager[AnySnapshot]:
        """The snapshot at its place in a copy of the checkpoint. `scratch`: as for `StateSnapshot`."""
        name = self.snapshot_name()
        assert name is not None, "this chain begins with a snapshot"
        if self.provider is Provider.HDFS:
            return nullcontext(HdfsSnapshot(storage, name))
        return StateSnapshot(storage, name, scratch)

    def read_changes(self, storage: Storage, commit: Commit, *, prefixed: bool) -> Changelog:
        """The changes of one version in a copy of the checkpoint."""
        if self.provider is Provider.HDFS:
            return read_delta(storage, commit, self.operator, self.partition)
        return read_changelog(storage, commit, self.operator, self.partition, prefixed=prefixed)


def newest_chain(
    checkpoint: Checkpoint, plan: Plan, commit: Commit, operator: int, partition: int, without: Collection[str] = ()
) -> Chain | None:
    """The shortest chain to the state after a batch; None if every chain lacks a file.

    Snapshots among `without`, whole names, are passed over as damaged.
    """
    provider = provider_of(plan, checkpoint.storage.path(f"offsets/{commit.batch}"))
    newest = newest_deltas if provider is Provider.HDFS else newest_versions
    found = newest(checkpoint.storage, commit, operator, partition, without)
    return None if found is None else Chain(provider, operator, partition, *found)


def read_delta(storage: Storage, commit: Commit, operator: int, partition: int) -> Changelog:
    """The batch's changes in one partition, in order; CheckpointGap if Spark has deleted the file already."""
    name = f"state/{operator}/{partition}/{commit.batch + 1}.delta"
    try:
        content = b"".join(read_state_file(storage, name))
    except FileNotFoundError:
        raise gone(f"The changes of batch {commit.batch} are gone", storage.path(name)) from None
    return Changelog(whole_block(content, storage.path(name)))


def newest_deltas(
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


def provider_of(plan: Plan, path: str) -> Provider:
    """The store of a batch's state; CheckpointInvalid, naming the offsets file, if the class is unknown."""
    name = plan.conf.get(_SETTING, Provider.HDFS.value)
    try:
        return Provider(name)
    except ValueError:
        raise CheckpointInvalid(
            f"The state is kept by {name}, whose files are not known",
            where=path,
            next_step=f"Run the query on a new folder with {_SETTING}={Provider.ROCKSDB.value}",
        ) from None


def counted_rows(reported: Mapping[str, Any]) -> int | None:
    """The number of rows in an operator's state, as Spark reports; None if not counted (RocksDB then reports 0)."""
    rows = int(reported.get("numRowsTotal", 0))
    on_rocksdb = any(name.startswith("rocksdb") for name in reported.get("customMetrics", ()))
    return None if rows == 0 and on_rocksdb else rows


def read_batch_changes(
    checkpoint: Checkpoint,
    plan: Plan,
    commit: Commit,
    operator: int,
    partition: int,
    *,
    prefixed: bool = False,
    scratch: Path | None = None,
) -> Changelog:
    """The changes of a batch in one partition of an operator's state.

    With `prefixed` the operator's keys are in two parts where the store has such keys (`changelog`); a change without
    `key_rest` then has the whole key in one row. With `scratch`, a folder of the reader's own, a store without
    changelogs is read too (`read_version_changes`). CheckpointInvalid for an unknown store or encoding, CheckpointGap
    if Spark has deleted the file already.
    """
    path = checkpoint.storage.path(f"offsets/{plan.batch}")
    check_encoding(plan, path)
    if provider_of(plan, path) is Provider.HDFS:
        return read_delta(checkpoint.storage, commit, operator, partition)
    try:
        return read_changelog(checkpoint.storage, commit, operator, partition, prefixed=prefixed)
    except CheckpointGap:
        if scratch is None or not checkpoint.storage.exists(f"{state_stem(commit, operator, partition)}.zip"):
            raise
    before = _before(checkpoint, commit)
    return read_version_changes(checkpoint.storage, before, commit, operator, partition, scratch, prefixed=prefixed)


def _before(checkpoint: Checkpoint, commit: Commit) -> Commit | None:
    """The batch before; CheckpointGap if Spark has deleted it already."""
    try:
        return checkpoint.commit(commit.batch - 1) if commit.batch else None
    except FileNotFoundError:
        raise CheckpointGap(
            f"The batch before batch {commit.batch} is gone", where=checkpoint.storage.path(f"commits/{commit.batch}")
        ) from None
