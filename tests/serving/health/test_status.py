"""The status: gathered from what others write anyway, whatever of it is missing or half written."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from stateside.core.layout import Layout
from stateside.leadership import Candidate
from stateside.serving.health.status import BATCHES_SHOWN, Status, newest_batches, partition_sizes
from stateside.serving.rows.view_readers import ViewReaders
from tests.billing.written_bills import WrittenBills, plan, step
from tests.serving.web.application import make_application

JANUARY = 1_769_900_400_000_000


def reported(batch: int) -> dict[str, Any]:
    return {
        "batchId": batch,
        "timestamp": "2026-01-01T00:00:00Z",
        "durationMs": {"triggerExecution": 90, "addBatch": 50, "latestOffset": 3, "getBatch": 4, "walCommit": 10},
        "numInputRows": 7,
        "stateOperators": [{"operatorName": "save", "numRowsTotal": 5, "numRowsUpdated": 1, "memoryUsedBytes": 9}],
    }


def test_the_newest_batches_are_told_with_what_took_their_time(tmp_path: Path) -> None:
    path = tmp_path / "progress.jsonl"
    lines = [json.dumps(reported(batch)) for batch in range(BATCHES_SHOWN + 5)]
    path.write_text("\n".join(lines) + '\n{"batchId": 99, "cut sho')
    found = newest_batches(path)
    assert [batch["batch"] for batch in found] == list(range(5, BATCHES_SHOWN + 5))
    assert found[0]["parts_ms"] == {"ask": 7, "plan": 0, "log": 10, "work": 50, "commit": 0}
    assert found[0]["operators"][0]["late"] == 0
    assert newest_batches(tmp_path / "none.jsonl") == []


def test_rows_that_nobody_counts_are_not_told_as_none(tmp_path: Path) -> None:
    """RocksDB's store reports 0 where `trackTotalNumberOfRows` is off, as it is in our sessions."""
    uncounted = {"operatorName": "save", "numRowsTotal": 0, "numRowsUpdated": 3, "memoryUsedBytes": 9}
    counted = [uncounted | {"numRowsTotal": 5, "customMetrics": {"rocksdbPutCount": 3}}, uncounted]
    operators = [uncounted | {"customMetrics": {"rocksdbPutCount": 3}}, *counted]
    (tmp_path / "progress.jsonl").write_text(json.dumps(reported(1) | {"stateOperators": operators}))
    (found,) = newest_batches(tmp_path / "progress.jsonl")
    assert [one["rows"] for one in found["operators"]] == [None, 5, 0]


def test_of_a_very_long_file_only_the_end_is_read(tmp_path: Path) -> None:
    path = tmp_path / "progress.jsonl"
    path.write_text("\n".join(json.dumps(reported(batch) | {"padding": "x" * 9_000}) for batch in range(200)))
    assert [batch["batch"] for batch in newest_batches(path)][-1] == 199


def test_partitions_have_their_sizes_and_what_is_no_folder_has_none(tmp_path: Path) -> None:
    for partition, size in (("0", 10), ("1", 30), ("_metadata", 99)):
        folder = tmp_path / "state" / "0" / partition
        folder.mkdir(parents=True)
        (folder / "1.delta").write_bytes(b"x" * size)
    assert [(each["partition"], each["bytes"]) for each in partition_sizes(tmp_path)] == [(0, 10), (1, 30)]
    assert partition_sizes(Path("s3://bucket/checkpoint")) == []


def test_a_folder_s_status_has_its_journal_views_and_tables(layout: Layout) -> None:
    bills = WrittenBills.begin(layout, plan())
    bills.commit({("emma", JANUARY, "call", "basic@1"): (60, 1)}, 1)
    step(layout)
    found = asyncio.run(Status(layout).now(ViewReaders(layout)))
    (view,) = found["views"]
    assert (view["view"], view["job"]["state"], view["replica"]["stamp"]["batch"]) == ("bill", "unknown", 0)
    assert {table["table"]: table["rows"] for table in view["tables"]} == {"documents": 0, "dead_letters": 0}
    assert found["journal"] is None
    assert "leadership" not in found
    assert Candidate(layout.root, "a", lease_s=10).step() is not None
    assert asyncio.run(Status(layout).now(ViewReaders(layout)))["leadership"]["leader"]["identity"] == "a"


def test_a_file_of_a_table_that_is_damaged_is_told_and_what_left_the_table_is_forgotten(layout: Layout) -> None:
    bills = WrittenBills.begin(layout, plan())
    bills.commit({("emma", JANUARY, "call", "basic@1"): (60, 1)}, 1)
    bills.commit(bills.seal(JANUARY), 2)
    step(layout)
    status, views = Status(layout), ViewReaders(layout)

    def documents() -> dict[str, Any]:
        (view,) = asyncio.run(status.now(views))["views"]
        return next(table for table in view["tables"] if table["table"] == "documents")

    assert (documents()["rows"], documents()["trouble"]) == (1, None)
    bills.rows[("ben", JANUARY, "call", "basic@1")] = (60, 1)
    bills.seal(JANUARY)
    (known,) = [rows for mark, rows in status._rows.items() if mark.stem == "documents"]
    for path in (layout.table("documents")).rglob("*.parquet"):
        if path not in known:
            path.write_bytes(b"no parquet at all")
    found = documents()
    assert found["rows"] is None and "arquet" in found["trouble"]
    (mark,) = [mark for mark in status._rows if mark.stem == "documents"]
    status._rows[mark][Path("left.parquet")] = 9
    for path in (layout.table("documents")).rglob("*.parquet"):
        if path not in known:
            pq.write_table(pq.read_table(next(iter(known))), path)
    assert documents()["rows"] == 2
    assert Path("left.parquet") not in status._rows[mark]


def test_a_view_without_a_replica_has_a_status_too(layout: Layout) -> None:
    make_application(layout)
    found = asyncio.run(Status(layout).now(ViewReaders(layout)))
    assert found["journal"]["end"] == 3
    assert found["views"][0]["replica"]["stamp"] is None
