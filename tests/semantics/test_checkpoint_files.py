"""The files that Spark writes into a checkpoint: what they are called, when they are there, what is in them."""

import json
import re
import zipfile

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from .checkpoint_files import versions_and_ids
from .harness import Feed, Lab
from .months import clock, local_ms, monthly_totals, usage

pytestmark = pytest.mark.spark

UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
STATE = "spark.sql.streaming.stateStore"
# Which of Hadoop's local file systems one query uses, whatever the session was started with.
CHECKSUMMED_FILES = {"fs.file.impl": "org.apache.hadoop.fs.LocalFileSystem", "fs.file.impl.disable.cache": "true"}
RAW_FILES = {"fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem", "fs.file.impl.disable.cache": "true"}


def test_an_offsets_file_is_a_version_a_line_of_metadata_and_a_line_for_each_source(lab: Lab, feed: Feed) -> None:
    """The checkpoint reader parses exactly this; position and watermark of every stamp come from it. There is
    no newline at the end.
    """
    feed.add(usage("emma", 1, 0))
    both = feed.stream().select("customer").union(feed.stream().select("kind"))
    lab.run(both)

    text = (lab.checkpoint.path / "offsets" / "0").read_text()
    offsets = lab.checkpoint.offsets(0)

    assert text == "\n".join(["v1", json.dumps(offsets.metadata, separators=(",", ":")), *offsets.sources])
    assert list(offsets.metadata) == ["batchWatermarkMs", "batchTimestampMs", "conf"]
    assert offsets.sources == ['{"logOffset":0}', '{"logOffset":0}']


def test_the_settings_in_an_offsets_file_are_those_that_shape_the_state(lab: Lab, feed: Feed) -> None:
    """The reader learns provider, partitions and compression from here. The session's time zone is not among
    them, so nothing but our own code keeps a restart from cutting months differently.
    """
    feed.add(usage("emma", 1, 0))
    lab.run(feed.stream())

    conf = lab.checkpoint.offsets(0).metadata["conf"]

    assert conf == {
        "spark.sql.function.protobufExtensions.enabled": "false",
        "spark.sql.optimizer.pruneFiltersCanPruneStreamingSubplan": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.aggregation.stateFormatVersion": "2",
        "spark.sql.streaming.flatMapGroupsWithState.stateFormatVersion": "2",
        "spark.sql.streaming.join.stateFormatVersion": "2",
        "spark.sql.streaming.multipleWatermarkPolicy": "min",
        "spark.sql.streaming.queryEvolution.enableSourceEvolution": "false",
        "spark.sql.streaming.stateStore.compression.codec": "lz4",
        "spark.sql.streaming.stateStore.encodingFormat": "unsaferow",
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
        "spark.sql.streaming.stateStore.rocksdb.formatVersion": "5",
        "spark.sql.streaming.stateStore.rocksdb.mergeOperatorVersion": "2",
        "spark.sql.streaming.stateStore.rowChecksum.enabled": "false",
        "spark.sql.streaming.statefulOperator.useStrictDistribution": "true",
    }


def test_a_restart_keeps_the_number_of_partitions_of_the_checkpoint(lab: Lab, feed: Feed) -> None:
    """The number of state partitions cannot be changed by a setting; that is why `rescale` exists."""
    feed.add(usage("emma", 1, 0))
    lab.run(_counts(feed), mode="update")
    feed.add(usage("emma", 1, 0))
    with lab.conf({"spark.sql.shuffle.partitions": "3"}):
        lab.run(_counts(feed), mode="update")

    assert [len(lab.checkpoint.state_ids(batch)) for batch in (0, 1)] == [2, 2]


def test_a_commit_names_the_state_files_by_operator_partition_and_store(lab: Lab, feed: Feed) -> None:
    """The replica reads only what a commit names; files of failed attempts lie beside them. There is no newline
    at the end.
    """
    feed.add(usage("emma", 1, 0))
    lab.run(_counts(feed), mode="update")

    text = (lab.checkpoint.path / "commits" / "0").read_text()
    [[first], [second]] = lab.checkpoint.state_ids(0)

    assert text == f'v2\n{{"nextBatchWatermarkMs":0,"stateUniqueIds":{{"0":[["{first}"],["{second}"]]}}}}'
    assert UUID.fullmatch(first)
    assert UUID.fullmatch(second)
    assert first != second


def test_a_commit_of_a_query_without_state_names_no_files(lab: Lab, feed: Feed) -> None:
    """`serve` on such a checkpoint has nothing to serve and must say so."""
    feed.add(usage("emma", 1, 0))
    lab.run(feed.stream())

    assert (lab.checkpoint.path / "commits" / "0").read_text() == 'v2\n{"nextBatchWatermarkMs":0,"stateUniqueIds":{}}'
    assert not (lab.checkpoint.path / "state").exists()


def test_every_batch_writes_one_changelog_for_each_partition_even_if_nothing_changed(lab: Lab, feed: Feed) -> None:
    """Version N+1 belongs to batch N, and the replica can count on a file for each partition of each batch: a
    missing one is an error and not an empty change.
    """
    at_ms = local_ms(2026, 3, 10)
    feed.add(usage("emma", 1, at_ms))
    feed.add(clock(at_ms + 1))
    lab.run(monthly_totals(feed.stream()))

    assert lab.checkpoint.committed() == [0, 1, 2]  # the last one without data
    for partition in (0, 1):
        named = [(batch + 1, lab.checkpoint.state_ids(batch)[partition][0]) for batch in (0, 1, 2)]
        assert versions_and_ids(lab.checkpoint.state_folder(partition=partition), "changelog") == named
    assert [lab.checkpoint.changelog(2, partition).records for partition in (0, 1)] == [[], []]


def test_a_changelog_holds_the_changed_rows_and_the_evicted_keys_of_its_batch_only(lab: Lab, feed: Feed) -> None:
    """Tailing costs as much as changed, not as much as there is; a row that leaves for the archive arrives as a
    delete. Keys and values are a version byte 0 and an UnsafeRow.
    """
    march_ms = local_ms(2026, 3, 10)
    feed.add(usage("emma", 5, march_ms), usage("omar", 6, march_ms))
    feed.add(usage("emma", 7, march_ms))
    feed.add(clock(local_ms(2026, 4)))
    lab.run(monthly_totals(feed.stream()))

    changes = [_changed_rows(lab, batch) for batch in lab.checkpoint.committed()]

    assert changes == [{"emma": 5, "omar": 6}, {"emma": 12}, {"clock": 0}, {"emma": None, "omar": None}]


def test_a_changelog_begins_with_its_version_and_the_ids_of_the_versions_before_it(lab: Lab, feed: Feed) -> None:
    """With checkpoint format v2 a changelog of an aggregation is a "v3" (format v1: no version at all). The
    lineage says which files lead to this one, also where the commits of those batches are gone.
    """
    for _ in range(3):
        feed.add(usage("emma", 1, 0))
    lab.run(_counts(feed), mode="update")

    ids = [lab.checkpoint.state_ids(batch)[0][0] for batch in (0, 1, 2)]
    changelogs = [lab.checkpoint.changelog(batch, partition=0) for batch in (0, 1, 2)]

    items = [{"version": version, "checkpointUniqueId": ids[version - 1]} for version in (1, 2)]
    assert [changelog.version for changelog in changelogs] == ["v3", "v3", "v3"]
    assert [changelog.lineage for changelog in changelogs] == [[], items[:1], items]


def test_beside_each_state_file_lies_a_checksum_of_its_bytes(lab: Lab, feed: Feed) -> None:
    """The reader can tell a damaged file from a bug of its own, and has to pass over names that end in `.crc`.
    Hadoop's own checksums are other files, whose names begin with a dot.
    """
    feed.add(usage("emma", 1, 0))
    lab.run(_counts(feed), mode="update")

    [[state_id], _] = lab.checkpoint.state_ids(0)
    changelog = lab.checkpoint.state_folder() / f"1_{state_id}.changelog"
    checksum = json.loads(changelog.with_name(f"{changelog.name}.crc").read_text())

    assert checksum["algorithm"] == "CRC32C"
    assert checksum["mainFileSize"] == changelog.stat().st_size
    assert checksum["value"] % 2**32 == _crc32c(changelog.read_bytes())
    visible = [file.name for file in changelog.parent.iterdir() if file.is_file() and not file.name.startswith(".")]
    assert sorted(visible) == [changelog.name, f"{changelog.name}.crc"]


def test_a_snapshot_is_written_beside_the_changelog_and_begins_the_lineage_of_later_ones(lab: Lab, feed: Feed) -> None:
    """A replica that starts late loads the snapshot that the lineage begins with, then the changelogs after it.
    It is written as `version_id.zip`, with the data files in `SSTs/`, by a thread of its own or, if that one
    lags, by the commit.
    """
    for _ in range(10):
        feed.add(usage("emma", 1, 0), usage("omar", 1, 0), usage("lena", 1, 0))
    with lab.conf({**CHECKSUMMED_FILES, f"{STATE}.minDeltasForSnapshot": "1"}):
        lab.run(_counts(feed), mode="update")

    folder = lab.checkpoint.state_folder(partition=0)
    lineage = [(item["version"], item["checkpointUniqueId"]) for item in lab.checkpoint.changelog(9, 0).lineage]
    named = [(batch + 1, lab.checkpoint.state_ids(batch)[0][0]) for batch in lab.checkpoint.committed()]
    assert lineage[0] in versions_and_ids(folder, "zip")
    assert lineage[0] in versions_and_ids(folder, "changelog")
    assert lineage == [file for file in named if lineage[0][0] <= file[0] < 10]
    assert lineage[0][0] > 1
    snapshot = zipfile.ZipFile(folder / "{}_{}.zip".format(*lineage[0]))
    version, metadata = snapshot.read("metadata").decode().split("\n")
    assert version == "v1"
    assert json.loads(metadata)["sstFiles"]
    for file in json.loads(metadata)["sstFiles"]:
        assert (folder / "SSTs" / file["dfsSstFileName"]).stat().st_size == file["sizeBytes"]


def test_without_changelogs_every_batch_writes_a_snapshot(lab: Lab, feed: Feed) -> None:
    """Foreign jobs often run without changelog checkpointing. Their commits name snapshots in the same way, and
    the replica then has to compare whole snapshots.
    """
    for _ in range(2):
        feed.add(usage("emma", 1, 0))
    with lab.conf({**CHECKSUMMED_FILES, f"{STATE}.rocksdb.changelogCheckpointing.enabled": "false"}):
        lab.run(_counts(feed), mode="update")

    named = [(batch + 1, lab.checkpoint.state_ids(batch)[0][0]) for batch in (0, 1)]
    assert versions_and_ids(lab.checkpoint.state_folder(), "zip") == named
    assert versions_and_ids(lab.checkpoint.state_folder(), "changelog") == []


def test_snapshots_cannot_be_written_through_hadoops_raw_local_file_system(lab: Lab, feed: Feed) -> None:
    """Setting `fs.file.impl` to RawLocalFileSystem saves checksum files and breaks the state: snapshots fail in
    the background, so that a restart replays all changelogs there ever were, and an `availableNow` run fails
    after five times `minDeltasForSnapshot` batches, when Spark wants a snapshot with the commit.
    """
    for _ in range(12):
        feed.add(usage("emma", 1, 0))
    with (
        lab.conf({**RAW_FILES, f"{STATE}.minDeltasForSnapshot": "1"}),
        pytest.raises(StreamingQueryException, match="RawLocalFileSystem cannot be cast"),
    ):
        lab.run(_counts(feed), mode="update")

    assert versions_and_ids(lab.checkpoint.state_folder(), "zip") == []
    assert 5 <= len(lab.checkpoint.committed()) < 12


def test_a_stream_stream_join_has_four_stores_for_each_partition(lab: Lab, feed: Feed) -> None:
    """`commits/N` lists their ids in this order; a reader that took the first for the only one would miss three."""
    feed.add(usage("emma", 1, 0))
    left = feed.stream().withWatermark("at", "1 second")
    right = feed.stream().withWatermark("at", "1 second").selectExpr("customer AS other", "at AS other_at")
    soon_after = sf.expr("customer = other AND other_at BETWEEN at AND at + INTERVAL 1 MINUTE")
    lab.run(left.join(right, soon_after))

    stores = ["left-keyToNumValues", "left-keyWithIndexToValue", "right-keyToNumValues", "right-keyWithIndexToValue"]
    for partition, ids in enumerate(lab.checkpoint.state_ids(0)):
        folder = lab.checkpoint.state_folder(partition=partition)
        assert [versions_and_ids(folder / store, "changelog") for store in stores] == [[(1, id_)] for id_ in ids]


def test_operators_are_numbered_from_the_sink_down(lab: Lab, feed: Feed) -> None:
    """A view may have more than one stateful operator; the catalogue must say which one it serves."""
    feed.add(usage("emma", 1, 0))
    deduplicated = feed.stream().withWatermark("at", "1 second").dropDuplicates(["customer", "at"])
    lab.run(deduplicated.groupBy("customer", "at").count())

    assert sorted(lab.checkpoint.commit(0).metadata["stateUniqueIds"]) == ["0", "1"]
    rows = lab.spark.read.format("state-metadata").load(str(lab.checkpoint.path)).collect()
    assert {row.operatorId: row.operatorName for row in rows} == {0: "stateStoreSave", 1: "dedupe"}


def _counts(feed: Feed) -> DataFrame:
    return feed.stream().groupBy("customer").count()


def _changed_rows(lab: Lab, batch: int) -> dict[str, int | None]:
    """The records of a batch's changelogs: customer, and total or None for a delete."""
    changelogs = [lab.checkpoint.changelog(batch, partition) for partition in (0, 1)]
    return {_customer(key): _total(value) for changelog in changelogs for key, value in changelog.records}


def _customer(key: bytes) -> str:
    """UnsafeRow of (customer, period_end): null bits, two words of 8 bytes, then the text the first word points to."""
    assert key[0] == 0
    row = key[1:]
    size, start = int.from_bytes(row[8:12], "little"), int.from_bytes(row[12:16], "little")
    return row[start : start + size].decode()


def _total(value: bytes | None) -> int | None:
    """UnsafeRow of (sum): null bits, one word of 8 bytes."""
    if value is None:
        return None
    assert value[0] == 0
    assert len(value) == 17
    return int.from_bytes(value[9:17], "little")


def _crc32c(data: bytes) -> int:
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
    return value ^ 0xFFFFFFFF
