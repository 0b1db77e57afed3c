"""An archive table: a batch gets in exactly once, whatever crashes between the steps that `archive.table` numbers."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from stateside.archive import ArchiveTable, TableSpec, table
from stateside.core.errors import ArchiveInvalid

SPEC = TableSpec(
    name="invoices",
    schema=pa.schema([pa.field("customer", pa.string(), nullable=False), pa.field("total", pa.int64())]),
    partition_by=("customer",),
)
OPEN = """
import os, sys, types
sys.modules["pandas"] = types.SimpleNamespace(__version__="0")  # the real one, which pyarrow imports, takes a second
from pathlib import Path
import pyarrow as pa
from stateside.archive import ArchiveTable, TableSpec, table

folder = Path(sys.argv[1])
schema = pa.schema([pa.field("customer", pa.string(), nullable=False), pa.field("total", pa.int64())])
spec = TableSpec("invoices", schema, ("customer",))
rows = pa.table({"customer": ["emma", "noah"], "total": [2, 3]})
def crash(*arguments, **named):
    os._exit(9)
def open_table():
    archive = ArchiveTable(folder / "table", spec, folder / "mark.json")
    archive.create()
    return archive
"""


def rows(*pairs: tuple[str, int]) -> pa.Table:
    return pa.Table.from_pylist([{"customer": customer, "total": total} for customer, total in pairs], SPEC.schema)


BATCH = rows(("emma", 2), ("noah", 3))


@pytest.fixture
def archive(tmp_path: Path) -> ArchiveTable:
    return opened(tmp_path)


@pytest.fixture
def crash(tmp_path: Path) -> Callable[[str], None]:
    """Run a script that uses the table in another process, which crashes in it."""

    def run(script: str) -> None:
        done = subprocess.run([sys.executable, "-c", OPEN + script, str(tmp_path)], capture_output=True, timeout=60)
        assert done.returncode == 9, done.stderr.decode()

    return run


def opened(folder: Path) -> ArchiveTable:
    archive = ArchiveTable(folder / "table", SPEC, folder / "mark.json")
    archive.create()
    return archive


def stored(archive: ArchiveTable, up_to_batch: int | None = None) -> list[tuple[str, int, int]]:
    return sorted(tuple(row.values()) for row in archive.read(up_to_batch).to_pylist())


def files(folder: Path) -> set[Path]:
    return set((folder / "table").rglob("*.parquet"))


def test_rows_carry_the_batch_that_sealed_them(archive: ArchiveTable) -> None:
    assert archive.append(rows(("emma", 1)), "query", 4)
    assert archive.append(BATCH, "query", 7)
    assert stored(archive) == [("emma", 1, 4), ("emma", 2, 7), ("noah", 3, 7)]


def test_a_reader_at_a_batch_sees_the_rows_sealed_up_to_it(archive: ArchiveTable) -> None:
    for batch in (1, 2, 5):
        archive.append(rows(("emma", batch)), "query", batch)
    assert stored(archive, up_to_batch=0) == []
    assert stored(archive, up_to_batch=2) == stored(archive, up_to_batch=4) == [("emma", 1, 1), ("emma", 2, 2)]
    assert stored(archive, up_to_batch=5) == stored(archive)


def test_a_new_table_is_empty_and_has_its_columns(archive: ArchiveTable) -> None:
    assert archive.read().num_rows == 0
    assert archive.read().schema.names == ["customer", "total", "sealed_batch"]


def test_a_table_that_was_never_created_counts_nothing_and_is_not_read(tmp_path: Path) -> None:
    archive = ArchiveTable(tmp_path / "table", SPEC, tmp_path / "mark.json")
    assert archive.count() == 0
    with pytest.raises(ArchiveInvalid, match="has not been created yet"):
        archive.read()
    archive.create()
    archive.append(BATCH, "q", 0)
    assert archive.count() == 2


def test_the_same_batch_twice_is_stored_once(archive: ArchiveTable, tmp_path: Path) -> None:
    assert archive.append(BATCH, "query", 3)
    assert not archive.append(BATCH, "query", 3)
    assert not opened(tmp_path).append(BATCH, "query", 3)
    assert stored(archive) == [("emma", 2, 3), ("noah", 3, 3)]


def test_an_earlier_batch_is_not_stored_after_a_later_one(archive: ArchiveTable) -> None:
    archive.append(BATCH, "query", 3)
    assert not archive.append(rows(("late", 1)), "query", 2)
    assert archive.read().num_rows == 2


def test_every_query_counts_its_own_batches(archive: ArchiveTable) -> None:
    assert archive.append(rows(("emma", 1)), "one", 3)
    assert archive.append(rows(("emma", 2)), "other", 3)
    assert archive.read().num_rows == 2


def test_a_batch_without_rows_leaves_the_table_alone(archive: ArchiveTable, tmp_path: Path) -> None:
    before = set((tmp_path / "table").rglob("*"))
    assert archive.append(rows(), "query", 3)
    assert set((tmp_path / "table").rglob("*")) == before
    assert archive.append(BATCH, "query", 4)


@pytest.mark.parametrize(
    "bad",
    [
        pa.table({"customer": ["emma"]}),
        pa.table({"customer": ["emma"], "total": ["much"]}),
        pa.table({"customer": [None], "total": [1]}, SPEC.schema),
    ],
    ids=["a column less", "another type", "a null where none may be"],
)
def test_rows_that_do_not_fit_the_table_are_not_stored(archive: ArchiveTable, bad: pa.Table) -> None:
    with pytest.raises(ValueError):
        archive.append(bad, "query", 0)
    assert archive.append(BATCH, "query", 0)
    assert archive.read().num_rows == 2


def test_the_table_is_partitioned_as_it_is_specified(archive: ArchiveTable, tmp_path: Path) -> None:
    archive.append(BATCH, "query", 0)
    assert {path.parent.name for path in files(tmp_path)} == {"customer=emma", "customer=noah"}


# The steps


def test_a_table_that_is_gone_holds_the_batch_and_is_never_made_anew(archive: ArchiveTable, tmp_path: Path) -> None:
    """Step 1."""
    archive.append(BATCH, "query", 0)
    (tmp_path / "table").rename(tmp_path / "elsewhere")
    for again in (archive, opened(tmp_path)):
        with pytest.raises(ArchiveInvalid, match="'invoices' cannot be opened") as held:
            again.append(rows(("emma", 9)), "query", 1)
        assert "Bring the table back" in str(held.value)
        with pytest.raises(ArchiveInvalid):
            again.read()
    assert not (tmp_path / "table").exists()
    (tmp_path / "elsewhere").rename(tmp_path / "table")
    assert archive.append(rows(("emma", 9)), "query", 1)
    assert archive.read().num_rows == 3


def test_a_folder_that_came_back_empty_holds_the_batch(archive: ArchiveTable, tmp_path: Path) -> None:
    """Step 1."""
    shutil.rmtree(tmp_path / "table")
    (tmp_path / "table").mkdir()
    with pytest.raises(ArchiveInvalid):
        opened(tmp_path).append(BATCH, "query", 0)
    assert list((tmp_path / "table").iterdir()) == []


def test_another_table_in_its_place_holds_the_batch(archive: ArchiveTable, tmp_path: Path) -> None:
    """Step 1."""
    shutil.rmtree(tmp_path / "table")
    DeltaTable.create(tmp_path / "table", SPEC.stored_schema)
    before = set((tmp_path / "table").rglob("*"))
    for again in (archive, opened(tmp_path)):
        with pytest.raises(ArchiveInvalid, match="is another one") as held:
            again.append(BATCH, "query", 0)
        assert json.loads((tmp_path / "mark.json").read_bytes())["table"] in str(held.value)
    assert set((tmp_path / "table").rglob("*")) == before


def test_a_damaged_log_holds_the_batch(archive: ArchiveTable, tmp_path: Path) -> None:
    """Step 1."""
    archive.append(BATCH, "query", 0)
    (tmp_path / "table" / "_delta_log" / f"{0:020d}.json").write_text("damaged")
    with pytest.raises(ArchiveInvalid):
        archive.append(BATCH, "query", 1)


@pytest.mark.e2e
def test_a_crash_before_the_files_are_written_changes_nothing(
    archive: ArchiveTable, tmp_path: Path, crash: Callable[[str], None]
) -> None:
    """Between steps 2 and 3."""
    crash("table.write_deltalake = crash; open_table().append(rows, 'query', 0)")
    assert stored(archive) == []
    assert archive.append(BATCH, "query", 0)
    assert stored(archive) == [("emma", 2, 0), ("noah", 3, 0)]


BETWEEN_3_AND_4 = """
write = table.write_deltalake
def write_without_log(*arguments, **named):
    (folder / "table" / "_delta_log" / f"{1:020d}.json").mkdir()    # in the way of the log's next entry
    try:
        write(*arguments, **named)
    except Exception:
        os._exit(9)
table.write_deltalake = write_without_log
open_table().append(rows, "query", 0)
"""


@pytest.mark.e2e
def test_a_crash_before_the_log_entry_leaves_files_that_nothing_refers_to(
    archive: ArchiveTable, tmp_path: Path, crash: Callable[[str], None]
) -> None:
    """Between steps 3 and 4."""
    crash(BETWEEN_3_AND_4)
    (tmp_path / "table" / "_delta_log" / f"{1:020d}.json").rmdir()
    left = files(tmp_path)
    assert left
    assert stored(archive) == []
    assert archive.append(BATCH, "query", 0)
    assert stored(archive) == [("emma", 2, 0), ("noah", 3, 0)]
    assert left < files(tmp_path)


@pytest.mark.e2e
def test_a_crash_after_the_log_entry_repeats_the_batch_without_effect(
    archive: ArchiveTable, crash: Callable[[str], None]
) -> None:
    """Between steps 4 and 5."""
    crash("assert open_table().append(rows, 'query', 0); crash()")
    assert not archive.append(BATCH, "query", 0)
    assert stored(archive) == [("emma", 2, 0), ("noah", 3, 0)]


@pytest.mark.e2e
def test_a_crash_between_the_table_and_its_mark_makes_no_second_table(
    tmp_path: Path, crash: Callable[[str], None]
) -> None:
    crash("type(table.MARK).write = crash; open_table()")
    made = DeltaTable(tmp_path / "table").metadata().id
    assert not (tmp_path / "mark.json").exists()
    archive = opened(tmp_path)
    assert json.loads((tmp_path / "mark.json").read_bytes()) == {"table": made}
    assert archive.append(BATCH, "query", 0)


@pytest.mark.parametrize("emptied", [False, True], ids=["with rows", "whose rows were deleted"])
def test_a_table_that_was_filled_is_not_taken_over_without_its_mark(
    archive: ArchiveTable, tmp_path: Path, emptied: bool
) -> None:
    """Who deletes the folder with the mark, to fill the table again, would have every row twice."""
    archive.append(BATCH, "query", 0)
    if emptied:
        DeltaTable(tmp_path / "table").delete()
    (tmp_path / "mark.json").unlink()
    before = set((tmp_path / "table").rglob("*"))
    with pytest.raises(ArchiveInvalid, match=r"was written to before, but its mark .* is gone") as refused:
        opened(tmp_path)
    assert f"Bring the folder {tmp_path} back, or move the table away" in str(refused.value)
    assert set((tmp_path / "table").rglob("*")) == before
    assert not (tmp_path / "mark.json").exists()


def test_a_table_born_with_rows_is_not_taken_over_either(tmp_path: Path) -> None:
    born = BATCH.append_column("sealed_batch", pa.array([0, 0], pa.int64()))
    write_deltalake(tmp_path / "table", born.cast(SPEC.stored_schema))
    assert DeltaTable(tmp_path / "table").version() == 0
    with pytest.raises(ArchiveInvalid, match="was written to before"):
        opened(tmp_path)


def test_both_ways_on_from_a_table_without_its_mark_work(archive: ArchiveTable, tmp_path: Path) -> None:
    archive.append(BATCH, "query", 0)
    (tmp_path / "mark.json").rename(tmp_path / "mark.away")
    (tmp_path / "table").rename(tmp_path / "table.away")
    assert opened(tmp_path).append(rows(("emma", 1)), "query", 0)
    shutil.rmtree(tmp_path / "table")
    (tmp_path / "table.away").rename(tmp_path / "table")
    (tmp_path / "mark.away").rename(tmp_path / "mark.json")
    assert stored(opened(tmp_path)) == [("emma", 2, 0), ("noah", 3, 0)]


def test_a_damaged_table_without_its_mark_is_told(archive: ArchiveTable, tmp_path: Path) -> None:
    (tmp_path / "mark.json").unlink()
    (tmp_path / "table" / "_delta_log" / f"{0:020d}.json").write_text("damaged")
    with pytest.raises(ArchiveInvalid, match="cannot be opened"):
        opened(tmp_path)


def test_of_two_that_store_the_same_batch_at_the_same_time_one_fails(
    archive: ArchiveTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = write_deltalake

    def overtaken(*arguments: Any, **named: Any) -> None:
        monkeypatch.setattr(table, "write_deltalake", write)
        assert opened(tmp_path).append(BATCH, "query", 0)
        write(*arguments, **named)

    monkeypatch.setattr(table, "write_deltalake", overtaken)
    with pytest.raises(Exception, match="Concurrent transaction"):
        archive.append(BATCH, "query", 0)
    assert stored(archive) == [("emma", 2, 0), ("noah", 3, 0)]
    assert not archive.append(BATCH, "query", 0)
