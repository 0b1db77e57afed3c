"""The batches of a checkpoint: what was planned, what is finished, and that damage is told."""

import json
import os
import struct
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from stateside.core.errors import CheckpointGap, CheckpointInvalid
from stateside.core.positions import Position
from stateside.core.storage import Storage
from stateside.spark_state.batch_log import Checkpoint

Put = Callable[[str, bytes | str], Storage]
Encode = Callable[..., bytes]

PLAN = {"batchWatermarkMs": 1_500, "batchTimestampMs": 2_500, "conf": {"spark.sql.shuffle.partitions": "2"}}
OFFSETS = f'v1\n{json.dumps(PLAN)}\n{{"0":7}}'
COMMIT_V1 = 'v1\n{"nextBatchWatermarkMs":1500}'
COMMIT_V2 = 'v2\n{"nextBatchWatermarkMs":1500,"stateUniqueIds":{"0":[["a"],["b"]],"1":[["c","d"]]}}'
OPERATOR = 'v1\n{"operatorInfo":{"operatorId":0},"stateStoreInfo":[{"storeName":"default","numPartitions":4}]}'


def test_a_plan_says_up_to_where_under_which_watermark_and_when(put: Put) -> None:
    plan = Checkpoint(put("offsets/3", OFFSETS)).plan(3)
    assert (plan.batch, plan.position) == (3, Position.of({"0": 7}))
    assert (plan.watermark_us, plan.planned_us) == (1_500_000, 2_500_000)
    assert plan.conf == {"spark.sql.shuffle.partitions": "2"}


def test_a_plan_whose_last_line_is_ended_is_the_same(put: Put) -> None:
    assert Checkpoint(put("offsets/3", OFFSETS + "\n")).plan(3) == Checkpoint(put("offsets/4", OFFSETS)).plan(3)


def test_a_plan_of_format_v2_has_its_sources_by_name(put: Put) -> None:
    """As Spark writes it with spark.sql.streaming.queryEvolution.enableSourceEvolution."""
    more = {**PLAN, "version": 2, "sourceMetadataInfo": {"orders": {"sourceId": "orders", "providerName": "kafka"}}}
    lines = ['pay:{"logOffset":3}', 'orders:{"calls":{"0":12}}', "empty:-", "1:5"]
    plan = Checkpoint(put("offsets/3", "\n".join(["v2", json.dumps(more), *lines]))).plan(3)
    assert str(plan.position) == "orders.calls-0:12,pay.files:4,s1.offset:5"
    assert plan.watermark_us == 1_500_000


def test_one_source_of_format_v2_needs_no_name(put: Put) -> None:
    plan = Checkpoint(put("offsets/0", f"v2\n{json.dumps(PLAN)}\n0:3")).plan(0)
    assert str(plan.position) == "offset:3"


def test_a_commit_tells_when_its_file_was_written(put: Put, tmp_path: Path) -> None:
    storage = put("commits/3", COMMIT_V1)
    os.utime(tmp_path / "commits/3", ns=(0, 5_000_000_000))
    assert Checkpoint(storage).commit(3).committed_us == 5_000_000


def test_a_commit_of_format_v1_names_no_state_files(put: Put) -> None:
    commit = Checkpoint(put("commits/3", COMMIT_V1)).commit(3)
    assert commit.state_id(operator=0, partition=1) is None


def test_a_commit_of_format_v2_names_the_state_files_that_count(put: Put) -> None:
    commit = Checkpoint(put("commits/3", COMMIT_V2)).commit(3)
    assert commit.state_id(operator=0, partition=1) == "b"
    assert commit.state_id(operator=1, partition=0, store=1) == "d"


def test_a_commit_of_format_v3_names_them_too(put: Put) -> None:
    content = COMMIT_V2.replace("v2\n{", 'v3\n{"sinkMetadataMap":{"0":{"active":true}},')
    assert Checkpoint(put("commits/3", content)).commit(3).state_id(1, 0, 1) == "d"


def test_the_operators_are_the_folders_of_the_state_by_number(put: Put) -> None:
    assert Checkpoint(put("metadata", "")).operators() == []
    for operator in ("10", "2", "_temporary"):
        storage = put(f"state/{operator}/_metadata/metadata", OPERATOR)
    assert Checkpoint(storage).operators() == [2, 10]


def test_a_batch_exists_once_its_commit_exists(put: Put) -> None:
    checkpoint = Checkpoint(put("offsets/3", OFFSETS))
    assert not checkpoint.committed(3)
    with pytest.raises(FileNotFoundError):
        checkpoint.commit(3)
    put("commits/3", COMMIT_V1)
    assert checkpoint.committed(3)


def test_commits_are_sorted_by_number_and_sparks_other_files_are_none(put: Put) -> None:
    assert Checkpoint(put("metadata", "")).commits() == []
    for name in ("10", "9", ".9.crc", ".11.9a8b7c.tmp", "notes"):
        storage = put(f"commits/{name}", "")
    assert Checkpoint(storage).commits() == [9, 10]


def test_the_query_has_an_id_once_it_has_started(put: Put) -> None:
    checkpoint = Checkpoint(put("offsets/0", OFFSETS))
    assert checkpoint.query_id() is None
    put("metadata", '{"id":"6f7e"}')
    assert checkpoint.query_id() == "6f7e"


def partitions(storage: Storage, operator: int, batch: int = 3) -> int:
    checkpoint = Checkpoint(storage)
    return checkpoint.partitions(operator, checkpoint.plan(batch), checkpoint.commit(batch))


def planned(count: int) -> str:
    return OFFSETS.replace('"spark.sql.shuffle.partitions": "2"', f'"spark.sql.shuffle.partitions": "{count}"')


def test_the_partitions_of_format_v2_are_those_that_the_commit_names_whatever_else_is_noted(put: Put) -> None:
    put("state/0/_metadata/metadata", OPERATOR)
    put("offsets/3", planned(7))
    storage = put("commits/3", COMMIT_V2)
    assert (partitions(storage, 0), partitions(storage, 1)) == (2, 1)


def test_the_partitions_of_format_v1_are_those_that_the_batch_was_planned_with(put: Put) -> None:
    put("state/2/_metadata/metadata", OPERATOR)
    for batch, count in (3, 2), (4, 7), (5, 3):
        put(f"commits/{batch}", COMMIT_V1)
        storage = put(f"offsets/{batch}", planned(count))
    assert [partitions(storage, 2, batch) for batch in (3, 4, 5)] == [2, 7, 3]


def test_an_aggregation_without_a_key_has_one_partition_whatever_is_planned(put: Put, encode_schema: Encode) -> None:
    metadata = OPERATOR.replace('"operatorId":0', '"operatorId":0,"operatorName":"stateStoreSave"')
    put("state/2/_metadata/metadata", metadata)
    put("offsets/3", planned(4))
    put("commits/3", COMMIT_V1)
    for key, count in ([], 1), ([("word", "string")], 4):
        assert partitions(put("state/2/0/_metadata/schema", encode_schema(key, [("count", "long")])), 2) == count


def test_only_the_batch_that_repartitions_an_aggregation_without_a_key_writes_all_partitions(
    put: Put, encode_schema: Encode
) -> None:
    """As Spark does it: the batches after it have one partition again."""
    put("state/2/_metadata/metadata", OPERATOR.replace('"operatorId":0', '"operatorName":"stateStoreSave"'))
    put("state/2/0/_metadata/schema", encode_schema([], [("count", "long")]))
    for batch, count in (2, 2), (3, 5), (4, 5):
        put(f"offsets/{batch}", planned(count))
        put(f"commits/{batch}", COMMIT_V1)
    for partition in range(5):
        storage = put(f"state/2/{partition}/4.zip", b"")
    assert [partitions(storage, 2, batch) for batch in (2, 3, 4)] == [1, 5, 1]
    put("state/2/1/5.zip", b"")  # left from before a rollback
    assert partitions(storage, 2, 4) == 1


def test_whether_an_aggregation_without_a_key_was_repartitioned_is_not_guessed(put: Put, encode_schema: Encode) -> None:
    put("state/2/_metadata/metadata", OPERATOR.replace('"operatorId":0', '"operatorName":"stateStoreSave"'))
    put("state/2/0/_metadata/schema", encode_schema([], [("count", "long")]))
    put("offsets/3", planned(5))
    put("commits/3", COMMIT_V1)
    with pytest.raises(CheckpointGap, match="the batch before is gone"):
        partitions(put("state/2/1/4.zip", b""), 2)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "format ''"),
        ("v7\n{}\n{}", "format 'v7'"),
        ("v1", "JSON object"),
        ("v1\nnull\n{}", "JSON object"),
        (f"v1\n{json.dumps(PLAN)}", "names no source"),
        (f"v1\n{json.dumps(PLAN)}\n{{", "JSONDecodeError"),
        (f'v1\n{json.dumps(PLAN)}\n{{"journal":"a","0":-5}}', "is no offset"),
        (f'v1\n{json.dumps(PLAN)}\n{{"journal":"a","0":true}}', "is no offset"),
        (f"v2\n{json.dumps(PLAN)}\nnothing", "no name"),
        ('v1\n{"batchTimestampMs":1}\n{"0":7}', "batchWatermarkMs"),
        ('v1\n{"batchTimestampMs":1,"batchWatermarkMs":"soon"}\n{"0":7}', "soon"),
        (b"v1\n{\xff}", "utf-8"),
    ],
    ids=["empty", "version", "no JSON", "null", "no source", "torn", "below zero", "a truth for an offset",
         "no name of a source", "no watermark", "a text for a watermark", "no text"],
)  # fmt: skip
def test_a_plan_that_cannot_be_read_is_told_with_its_file(put: Put, content: bytes | str, reason: str) -> None:
    with pytest.raises(CheckpointInvalid, match=reason) as damaged:
        Checkpoint(put("offsets/3", content)).plan(3)
    assert str(damaged.value.where).endswith("offsets/3")


@pytest.mark.parametrize("content", ["", "v4\n{}", "v1\n[]", "v2\n{", b"v1\n\xff"])
def test_a_commit_that_cannot_be_read_is_told_with_its_file(put: Put, content: bytes | str) -> None:
    with pytest.raises(CheckpointInvalid) as damaged:
        Checkpoint(put("commits/3", content)).commit(3)
    assert str(damaged.value.where).endswith("commits/3")


@pytest.mark.parametrize("content", ["", "{}", "[]", b"\xff"])
def test_a_metadata_file_without_an_id_is_told(put: Put, content: bytes | str) -> None:
    with pytest.raises(CheckpointInvalid) as damaged:
        Checkpoint(put("metadata", content)).query_id()
    assert str(damaged.value.where).endswith("metadata")


@pytest.mark.parametrize(
    ("offsets", "commit", "file"),
    [
        (planned(2), COMMIT_V2, "commits/3"),
        (planned(2), COMMIT_V2.replace('"1"', '"2"').replace('[["c","d"]]', "[]"), "commits/3"),
        (planned(0), COMMIT_V1, "offsets/3"),
        (OFFSETS.replace("shuffle", "other"), COMMIT_V1, "offsets/3"),
        (OFFSETS.replace('"2"', '"few"'), COMMIT_V1, "offsets/3"),
    ],
    ids=["not named", "none named", "planned with none", "not planned", "no number"],
)
def test_an_operator_without_partitions_is_told(put: Put, offsets: str, commit: str, file: str) -> None:
    put("state/2/_metadata/metadata", OPERATOR)
    put("offsets/3", offsets)
    with pytest.raises(CheckpointInvalid) as damaged:
        partitions(put("commits/3", commit), 2)
    assert str(damaged.value.where).endswith(file)


@pytest.mark.parametrize("name", ["offsets/3", "commits/3", "metadata"])
def test_a_file_that_is_not_the_one_its_checksums_are_of_is_told(put: Put, name: str) -> None:
    contents = {"offsets/3": OFFSETS, "commits/3": COMMIT_V2, "metadata": '{"id":"6f7e"}'}
    for each, content in contents.items():
        folder, slash, base = each.rpartition("/")
        sums = struct.pack(">4siI", b"crc\0", 512, zlib.crc32(content.encode()))
        put(f"{folder}{slash}.{base}.crc", sums)
        storage = put(each, content)
    checkpoint = Checkpoint(storage)
    read: dict[str, Callable[[], object]] = {
        "offsets/3": partial(checkpoint.plan, 3),
        "commits/3": partial(checkpoint.commit, 3),
    }
    ask = read.get(name, checkpoint.query_id)
    ask()
    put(name, contents[name].replace("0", "1").replace("6", "7"))
    with pytest.raises(CheckpointInvalid, match="not as Spark wrote it") as damaged:
        ask()
    assert str(damaged.value.where).endswith(f"{name}, byte 0")
