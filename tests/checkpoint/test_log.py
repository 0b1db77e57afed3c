"""The batches of a checkpoint: what was planned, what is finished, and that damage is told."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from stateside.checkpoint.log import Checkpoint
from stateside.errors import CheckpointInvalid
from stateside.positions import Position
from stateside.storage import Storage

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


def test_the_number_of_partitions_is_the_operators(put: Put) -> None:
    assert Checkpoint(put("state/2/_metadata/metadata", OPERATOR)).partitions(2) == 4


def test_an_aggregation_without_a_key_has_one_partition_whatever_is_noted(put: Put, encode_schema: Encode) -> None:
    metadata = OPERATOR.replace('"operatorId":0', '"operatorId":0,"operatorName":"stateStoreSave"')
    put("state/2/_metadata/metadata", metadata)
    for key, partitions in ([], 1), ([("word", "string")], 4):
        storage = put("state/2/0/_metadata/schema", encode_schema(key, [("count", "long")]))
        assert Checkpoint(storage).partitions(2) == partitions


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


@pytest.mark.parametrize("content", ["v1\n{}", 'v1\n{"stateStoreInfo":[]}', 'v1\n{"stateStoreInfo":[{}]}'])
def test_an_operator_without_partitions_is_told(put: Put, content: str) -> None:
    with pytest.raises(CheckpointInvalid):
        Checkpoint(put("state/2/_metadata/metadata", content)).partitions(2)
