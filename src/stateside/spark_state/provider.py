"""State store providers: which store holds a query's state, and a batch's changes from either store.

Every `offsets/N` names the query's store, which never changes after the query's first run. A file without this entry is
older than every store but the HDFS-backed one.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from stateside.core.errors import CheckpointGap, CheckpointInvalid
from stateside.spark_state.batch_log import Checkpoint, Commit, Plan
from stateside.spark_state.changelog import Changelog, check_encoding, read_changelog, state_stem
from stateside.spark_state.hdfs_store import read_delta
from stateside.spark_state.sst import read_version_changes

_SETTING = "spark.sql.streaming.stateStore.providerClass"
_PACKAGE = "org.apache.spark.sql.execution.streaming.state"


class Provider(Enum):
    """A state store of Spark's, by its class name."""

    HDFS = f"{_PACKAGE}.HDFSBackedStateStoreProvider"
    ROCKSDB = f"{_PACKAGE}.RocksDBStateStoreProvider"


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
    changelogs is read too (`sst`). CheckpointInvalid for an unknown store or encoding, CheckpointGap if Spark has
    deleted the file already.
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
