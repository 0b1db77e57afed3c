"""An opened table: what was decided from one version is stored on top of it, with its counters, or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from stateside.archive import ArchiveTable, TableSpec, table
from stateside.archive.table import LOCK
from stateside.core.errors import ArchiveInvalid, SinkAway
from stateside.core.storage import try_lock

SPEC = TableSpec("invoices", pa.schema([("customer", pa.string()), ("total", pa.int64())]))


def rows(*pairs: tuple[str, int]) -> pa.Table:
    return pa.Table.from_pylist([{"customer": customer, "total": total} for customer, total in pairs], SPEC.schema)


@pytest.fixture
def archive(tmp_path: Path) -> ArchiveTable:
    found = ArchiveTable(tmp_path / "table", SPEC, tmp_path / "mark.json")
    found.create()
    return found


def test_rows_and_counters_are_stored_together_and_these_may_go_back(archive: ArchiveTable) -> None:
    assert archive.opened().counter("highest") is None
    archive.opened().store(rows(("emma", 1)), 3, {"highest": 7, "other": 1})
    archive.opened().store(rows(), 4, {"highest": 5})
    found = archive.opened()
    assert (found.counter("highest"), found.counter("other")) == (5, 1)
    assert archive.read().to_pylist() == [{"customer": "emma", "total": 1, "sealed_batch": 3}]


def test_counters_outlive_a_checkpoint_of_the_table_s_log(archive: ArchiveTable, tmp_path: Path) -> None:
    archive.opened().store(rows(("emma", 1)), 0, {"highest": 7})
    DeltaTable(tmp_path / "table").create_checkpoint()
    DeltaTable(tmp_path / "table").cleanup_metadata()
    assert archive.opened().counter("highest") == 7


def test_a_writer_that_others_overtook_stores_nothing(archive: ArchiveTable) -> None:
    """Without this two drivers could give the same number twice."""
    slow = archive.opened()
    archive.opened().store(rows(("emma", 1)), 0, {"highest": 1})
    with pytest.raises(SinkAway, match="Another writer"):
        slow.store(rows(("noah", 1)), 0, {"highest": 1})
    assert archive.read()["customer"].to_pylist() == ["emma"]


def test_rows_are_read_by_a_condition(archive: ArchiveTable) -> None:
    for batch, customer in enumerate(["emma", "noah", "emma"]):
        archive.opened().store(rows((customer, batch)), batch, {"batch": batch})
    before = archive.opened()
    archive.opened().store(rows(("emma", 9)), 3, {"batch": 3})
    found = before.read(["total"], pc.field("customer") == "emma")
    assert sorted(found["total"].to_pylist()) == [0, 2], "of the version that was opened"


def test_a_table_that_is_not_there_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(ArchiveInvalid, match="has not been created yet"):
        ArchiveTable(tmp_path / "table", SPEC, tmp_path / "mark.json").opened()


def test_now_and_then_small_files_are_put_together(
    archive: ArchiveTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "COMMITS_BETWEEN", 10)
    tidied = 0
    for batch in range(20):
        archive.opened().store(rows((f"c{batch}", batch)), batch, {"batch": batch})
        tidied += archive.opened().tidy()
    assert tidied == 2
    assert len(DeltaTable(tmp_path / "table").file_uris()) < 10
    assert sorted(archive.read()["total"].to_pylist()) == list(range(20))
    assert archive.read(up_to_batch=4).num_rows == 5
    assert archive.opened().counter("batch") == 19


def test_of_two_writers_that_compact_at_a_time_one_leaves_it_to_the_other(
    archive: ArchiveTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "COMMITS_BETWEEN", 5)
    for batch in range(5):
        archive.opened().store(rows((f"c{batch}", batch)), batch, {"batch": batch})
    one, other, third = (archive.opened() for _ in range(3))
    lock = try_lock(one.path / LOCK)
    assert lock is not None and not one.tidy(), "another one is at it"
    os.close(lock)
    assert (other.tidy(), third.tidy()) == (True, False), "Delta itself would have all rows twice"
    assert sorted(archive.read()["total"].to_pylist()) == list(range(5))
