"""The HDFS-backed state store, which Spark takes where nothing else is set: its files, and what it cannot do."""

import struct
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from .checkpoint_files import _lz4_blocks, _records
from .harness import Feed, Lab
from .months import usage

pytestmark = pytest.mark.spark

STATE = "spark.sql.streaming.stateStore"
PROVIDER = {f"{STATE}.providerClass": "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"}
DEFAULT_STORE = {**PROVIDER, f"{STATE}.checkpointFormatVersion": "1"}


def test_the_default_store_writes_a_delta_for_each_batch_and_partition_even_if_nothing_changed(
    lab: Lab, feed: Feed
) -> None:
    """`delta.py` takes a missing file for an error. Spark puts no checksums of its own beside them (that is for
    checkpoint format v2), Hadoop does on local disks; `state_file.py` looks at those.
    """
    feed.add(usage("emma", 1, 0))
    feed.add()
    with lab.conf(DEFAULT_STORE):
        lab.run(_counts(feed), mode="update")

    for partition in (0, 1):
        names = _names(lab.checkpoint.state_folder(partition=partition))
        assert names == [".1.delta.crc", ".2.delta.crc", "1.delta", "2.delta"]
    assert (lab.checkpoint.path / "commits" / "0").read_text() == 'v1\n{"nextBatchWatermarkMs":0}'


def test_rows_in_a_delta_have_no_version_byte_and_the_key_of_a_session_is_one_row(lab: Lab, feed: Feed) -> None:
    """The tail decodes such keys as a whole, where RocksDB's have the session's start by itself."""
    feed.add(usage("emma", 1, 0))
    sessions = feed.stream().withWatermark("at", "1 hour").groupBy("customer", sf.session_window("at", "5 minutes"))
    with lab.conf({**DEFAULT_STORE, "spark.sql.shuffle.partitions": "1"}):
        lab.run(sessions.agg(sf.sum("amount")))

    [(key, value)] = _delta(lab, version=1)

    assert value is not None
    assert key == bytes(8) + struct.pack("<IIq", 4, 24, 0) + b"emma".ljust(8, b"\x00")
    assert value[:8] == bytes(8)
    assert len(value) % 8 == 0


def test_a_snapshot_of_the_default_store_has_all_rows_and_lies_beside_the_deltas(lab: Lab, feed: Feed) -> None:
    """A replica that starts late loads it, then the deltas of later versions."""
    for number in range(8):
        feed.add(usage(f"customer {number}", 1, 0))
    with lab.conf({**DEFAULT_STORE, f"{STATE}.minDeltasForSnapshot": "1", "spark.sql.shuffle.partitions": "1"}):
        lab.run(_counts(feed), mode="update")

    folder = lab.checkpoint.state_folder()
    [version, *_] = sorted(int(file.stem) for file in folder.glob("*.snapshot"))
    rows = list(_records(b"".join(_lz4_blocks((folder / f"{version}.snapshot").read_bytes())), 0))

    assert len(rows) == version > 1
    assert dict(rows) == {key: value for one in range(1, version + 1) for key, value in _delta(lab, one)}


def test_the_default_store_refuses_checkpoint_format_v2(lab: Lab, feed: Feed) -> None:
    """So the files of its batches have no ids, and `delta.py` looks for none."""
    feed.add(usage("emma", 1, 0))
    with (
        lab.conf({**PROVIDER, f"{STATE}.checkpointFormatVersion": "2"}),
        pytest.raises(StreamingQueryException, match="does not support checkpointFormatVersion > 1"),
    ):
        lab.run(_counts(feed), mode="update")


def test_the_default_store_refuses_transform_with_state(lab: Lab, feed: Feed) -> None:
    """So there are no column families in its files."""
    feed.add(usage("emma", 1, 0))
    with lab.conf(DEFAULT_STORE), pytest.raises(StreamingQueryException, match="Please use RocksDBStateStoreProvider"):
        lab.run(feed.stream().groupBy("customer").transformWithState(_nothing(), "n long", "Update", "none"), "update")


@pytest.mark.parametrize(
    ("codec", "begins_with"),
    [
        ("lz4", b"LZ4Block"),
        ("zstd", b"\x28\xb5\x2f\xfd"),
        ("snappy", b"\x82SNAPPY\x00\x00\x00\x00\x01"),
        ("lzf", b"ZV"),
    ],
)
def test_a_state_file_begins_with_the_magic_bytes_of_its_codec_which_a_restart_does_not_change(
    lab: Lab, feed: Feed, codec: str, begins_with: bytes
) -> None:
    """`compression.py` tells the codec by them. The setting is the checkpoint's: a restart with another is ignored."""
    feed.add(usage("emma", 1, 0))
    with lab.conf({**DEFAULT_STORE, f"{STATE}.compression.codec": codec}):
        lab.run(_counts(feed), mode="update")
    feed.add(usage("emma", 1, 0))
    with lab.conf({**DEFAULT_STORE, f"{STATE}.compression.codec": "lz4"}):
        lab.run(_counts(feed), mode="update")

    for version in (1, 2):
        content = (lab.checkpoint.state_folder() / f"{version}.delta").read_bytes()
        assert content.startswith(begins_with)


def test_a_zstd_state_file_has_no_checksum_inside(lab: Lab, feed: Feed) -> None:
    """Bit 2 of the frame's descriptor, the byte after the magic, would tell one. So those beside the file count."""
    feed.add(usage("emma", 1, 0))
    with lab.conf({**DEFAULT_STORE, f"{STATE}.compression.codec": "zstd"}):
        lab.run(_counts(feed), mode="update")

    assert not (lab.checkpoint.state_folder() / "1.delta").read_bytes()[4] & 0b100


def _counts(feed: Feed) -> DataFrame:
    return feed.stream().groupBy("customer").count()


def _names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir() if file.is_file())


def _delta(lab: Lab, version: int) -> list[tuple[bytes, bytes | None]]:
    content = (lab.checkpoint.state_folder() / f"{version}.delta").read_bytes()
    return list(_records(b"".join(_lz4_blocks(content)), 0))


def _nothing() -> Any:
    """A processor that keeps a value and emits nothing; made in a function, so that it goes to workers by value."""
    from pyspark.sql.streaming import StatefulProcessor

    class Nothing(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.total = handle.getValueState("total", "amount long")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:  # noqa: N802, N803
            yield from ()

        def close(self) -> None: ...

    return Nothing()
