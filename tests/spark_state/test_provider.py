"""Which store a checkpoint's state is in, and that its changes are read from that store's files."""

from collections.abc import Callable

import pytest

from stateside.core.errors import CheckpointGap, CheckpointInvalid
from stateside.core.positions import Position
from stateside.core.storage import Storage
from stateside.spark_state.batch_log import Checkpoint, Commit, Plan
from stateside.spark_state.changelog import StateChange
from stateside.spark_state.provider import Provider, provider_of, read_batch_changes

Put = Callable[[str, bytes], Storage]
Encode = Callable[..., bytes]

SETTING = "spark.sql.streaming.stateStore.providerClass"
COMMIT = Commit(4, 0, {})


def plan_with(provider: str | None, **conf: str) -> Plan:
    named = {} if provider is None else {SETTING: provider}
    return Plan(4, Position.start(), 0, 0, {**named, **conf})


@pytest.mark.parametrize(
    ("name", "provider"),
    [
        ("org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider", Provider.HDFS),
        ("org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider", Provider.ROCKSDB),
        (None, Provider.HDFS),
    ],
)
def test_the_store_is_the_one_that_the_offsets_file_names_and_else_sparks_default(
    name: str | None, provider: Provider
) -> None:
    assert provider_of(plan_with(name), "offsets/4") is provider


def test_a_store_that_is_not_sparks_is_refused() -> None:
    with pytest.raises(CheckpointInvalid, match=r"kept by com\.example\.Store.*offsets/4.*new folder"):
        provider_of(plan_with("com.example.Store"), "offsets/4")


def test_each_stores_changes_are_read_from_its_own_files(
    put: Put, compress: Encode, encode_delta: Encode, encode_changelog: Encode
) -> None:
    put("state/0/0/5.changelog", compress(encode_changelog([(b"rocks", b"db")])))
    checkpoint = Checkpoint(put("state/0/0/5.delta", compress(encode_delta([(b"hdfs", None)]))))
    hdfs = read_batch_changes(checkpoint, plan_with(Provider.HDFS.value), COMMIT, 0, 0, prefixed=True)
    rocksdb = read_batch_changes(checkpoint, plan_with(Provider.ROCKSDB.value), COMMIT, 0, 0)
    assert (list(hdfs.changes), list(rocksdb.changes)) == ([StateChange(b"hdfs", None)], [StateChange(b"rocks", b"db")])


def test_the_files_of_the_other_store_are_no_substitute(put: Put, compress: Encode, encode_delta: Encode) -> None:
    checkpoint = Checkpoint(put("state/0/0/5.delta", compress(encode_delta([]))))
    with pytest.raises(CheckpointGap):
        read_batch_changes(checkpoint, plan_with(Provider.ROCKSDB.value), COMMIT, 0, 0)


@pytest.mark.parametrize("provider", list(Provider))
def test_rows_with_checksums_are_refused_for_each_store(put: Put, provider: Provider) -> None:
    plan = plan_with(provider.value, **{"spark.sql.streaming.stateStore.rowChecksum.enabled": "true"})
    with pytest.raises(CheckpointInvalid, match="carry checksums"):
        read_batch_changes(Checkpoint(put("other", b"")), plan, COMMIT, 0, 0)
