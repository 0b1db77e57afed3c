"""Insert if absent: a key stands in the table once, whoever brings it, and however often."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from stateside.archive import ArchiveTable, TableSpec, table
from stateside.core.errors import ArchiveInvalid
from tests.sizes import sized

SCHEMA = pa.schema([("name", pa.string()), ("Day 1", pa.date32()), ("n", pa.int64())])
KEY = ("name", "Day 1")
SPEC = TableSpec("days", SCHEMA, sealed=False)


def opened(folder: Path, spec: TableSpec = SPEC) -> ArchiveTable:
    archive = ArchiveTable(folder / "table", spec, folder / "mark.json")
    archive.create(take_over=True)
    return archive


def rows(*keys: tuple[str, int], n: int = 0) -> pa.Table:
    return pa.Table.from_pylist([{"name": name, "Day 1": day, "n": n} for name, day in keys], SCHEMA)


def stored(archive: ArchiveTable) -> list[tuple[str, int, int]]:
    columns = archive.read().set_column(1, "Day 1", archive.read()["Day 1"].cast(pa.int32()))
    return sorted(tuple(row.values()) for row in columns.to_pylist())


@pytest.fixture
def archive(tmp_path: Path) -> ArchiveTable:
    return opened(tmp_path)


names = st.one_of(st.sampled_from(["", "o'neil", 'a"b', "x\\y", "NULL", "a%_b", "z" * 100, "z" * 100 + "a"]), st.text())
batches = st.lists(
    st.tuples(st.sampled_from("pq"), st.sets(st.tuples(names, st.integers(0, 3)), max_size=6)), max_size=6
)


@settings(max_examples=sized(2, 100))
@given(batches=batches)
def test_any_batches_of_any_queries_leave_each_key_with_its_first_row(
    batches: list[tuple[str, set[tuple[str, int]]]],
) -> None:
    model: dict[tuple[str, int], int] = {}
    with tempfile.TemporaryDirectory() as folder:
        archive = opened(Path(folder))
        for number, (query, keys) in enumerate(batches):
            new = {key: number for key in keys if key not in model}
            for again in range(2):
                inserted = archive.insert_absent(rows(*keys, n=number), KEY, query, number)
                assert inserted == (0 if again else len(new))
            model |= new
        assert stored(archive) == sorted((*key, n) for key, n in model.items())


def test_the_batch_is_noted_with_its_rows_so_that_a_deleted_row_does_not_come_back(archive: ArchiveTable) -> None:
    archive.insert_absent(rows(("emma", 1)), KEY, "query", 0)
    table_path = archive._path
    DeltaTable(table_path).delete()
    assert archive.insert_absent(rows(("emma", 1)), KEY, "query", 0) == 0
    assert stored(archive) == []


def test_a_key_with_parts_inside_works_too(tmp_path: Path) -> None:
    schema = pa.schema([("window", pa.struct([("start", pa.int64()), ("end", pa.int64())])), ("n", pa.int64())])
    archive = opened(tmp_path, TableSpec("windows", schema, sealed=False))
    hours = pa.table({"window": [{"start": 0, "end": 1}, {"start": 1, "end": 2}], "n": [1, 2]}, schema)
    assert archive.insert_absent(hours.slice(1), ["window"], "one", 0) == 1
    assert archive.insert_absent(hours, ["window"], "other", 0) == 1
    assert archive.read().num_rows == 2


@pytest.mark.parametrize("partition_by", [("name",), ("Day 1",), ("n",)])
def test_a_partitioned_table_finds_its_keys(tmp_path: Path, partition_by: tuple[str, ...]) -> None:
    archive = opened(tmp_path, TableSpec("days", SCHEMA, partition_by, sealed=False))
    assert archive.insert_absent(rows(("emma", 1), ("noah", 1)), KEY, "one", 0) == 2
    assert archive.insert_absent(rows(("emma", 1), ("noah", 2), n=1), KEY, "other", 0) == 1
    assert stored(archive) == [("emma", 1, 0), ("noah", 1, 0), ("noah", 2, 1)]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (rows(("emma", 1), ("emma", 1)), "1 rows have the key"),
        (pa.table({"name": [None], "Day 1": [1], "n": [1]}, SCHEMA), "'name' is null"),
    ],
)
def test_rows_without_a_key_of_their_own_are_refused(archive: ArchiveTable, bad: pa.Table, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        archive.insert_absent(bad, KEY, "query", 0)
    assert stored(archive) == []


def test_of_two_that_insert_the_same_keys_at_the_same_time_one_looks_again(
    archive: ArchiveTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    merge = table._merge

    def overtaken(*arguments: Any) -> int:
        monkeypatch.setattr(table, "_merge", merge)
        assert opened(tmp_path).insert_absent(rows(("emma", 1), n=7), KEY, "other", 0) == 1
        return merge(*arguments)

    monkeypatch.setattr(table, "_merge", overtaken)
    assert archive.insert_absent(rows(("emma", 1), ("noah", 1)), KEY, "query", 0) == 1
    assert stored(archive) == [("emma", 1, 7), ("noah", 1, 0)]


def test_of_two_that_insert_the_same_batch_at_the_same_time_one_does(
    archive: ArchiveTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    merge = table._merge

    def overtaken(*arguments: Any) -> int:
        monkeypatch.setattr(table, "_merge", merge)
        assert opened(tmp_path).insert_absent(rows(("emma", 1)), KEY, "query", 0) == 1
        return merge(*arguments)

    monkeypatch.setattr(table, "_merge", overtaken)
    assert archive.insert_absent(rows(("emma", 1)), KEY, "query", 0) == 0
    assert stored(archive) == [("emma", 1, 0)]


def test_a_filled_table_is_taken_over_for_keys_and_marked(archive: ArchiveTable, tmp_path: Path) -> None:
    archive.insert_absent(rows(("emma", 1)), KEY, "query", 0)
    (tmp_path / "mark.json").unlink()
    assert opened(tmp_path).insert_absent(rows(("emma", 1)), KEY, "new", 0) == 0
    with pytest.raises(ArchiveInvalid, match="was written to before"):
        (tmp_path / "mark.json").unlink()
        ArchiveTable(tmp_path / "table", SPEC, tmp_path / "mark.json").create()


READ_AND_END = """
import sys
from pathlib import Path
import pyarrow as pa
from stateside.archive import ArchiveTable, TableSpec
from tests.sizes import examples
folder = Path(sys.argv[1])
schema = pa.schema([("name", pa.string()), ("Day 1", pa.date32()), ("n", pa.int64())])
ArchiveTable(folder / "table", TableSpec("days", schema, sealed=False), folder / "mark.json").read()
"""


@pytest.mark.e2e
def test_a_process_that_ends_right_after_reading_ends_well(archive: ArchiveTable, tmp_path: Path) -> None:
    """Through deltalake's file system about every third such process was aborted by C++ ("terminate called …")."""
    for batch in range(12):
        archive.insert_absent(rows((f"{batch}", 1)), KEY, "query", batch)
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", READ_AND_END, str(tmp_path)], capture_output=True, timeout=60)
        assert done.returncode == 0, done.stderr.decode()
