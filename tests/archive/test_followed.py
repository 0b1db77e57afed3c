"""A table as readers follow it: the same rows, whether its files are kept in memory or read from disk."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from stateside.archive import ArchiveTable, TableSpec, table_reader
from stateside.archive.table_reader import FollowedTable
from stateside.core.errors import ArchiveAway, ArchiveInvalid

SPEC = TableSpec("notes", pa.schema([("month", pa.string()), ("who", pa.string()), ("n", pa.int64())]), ("month",))
COLUMNS = ("month", "who", "n")


@pytest.fixture
def table(tmp_path: Path) -> ArchiveTable:
    table = ArchiveTable(tmp_path / "notes", SPEC, tmp_path / "mark.json")
    table.create()
    return table


@pytest.fixture
def readers(tmp_path: Path) -> FollowedTable:
    return FollowedTable(tmp_path / "notes", tmp_path / "mark.json")


@pytest.fixture(params=["kept in memory", "one of them kept", "read from disk"])
def kept(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    room = {"kept in memory": table_reader.KEPT_BYTES_MAX, "one of them kept": 1, "read from disk": 0}
    monkeypatch.setattr(table_reader, "KEPT_BYTES_MAX", room[request.param])


def store(table: ArchiveTable, batch: int) -> None:
    rows = [("2026-01", "emma", batch), ("2026-02", "otto", 10 * batch)]
    table.append(pa.table(list(zip(*rows, strict=True)), schema=SPEC.schema), "query", batch)


def found(readers: FollowedTable, **options: object) -> list[tuple[str, str, int]]:
    rows = readers.read(COLUMNS, **options)  # type: ignore[arg-type]
    return [] if rows is None else sorted(tuple(row.values()) for row in rows.to_pylist())


@pytest.mark.usefixtures("kept")
def test_rows_are_found_by_value_and_limit_as_the_table_grows(table: ArchiveTable, readers: FollowedTable) -> None:
    assert found(readers) == []
    store(table, 1)
    assert found(readers, equal={"who": "emma"}) == [("2026-01", "emma", 1)]
    store(table, 2)
    store(table, 3)
    assert found(readers, equal={"who": "emma"}) == [("2026-01", "emma", n) for n in (1, 2, 3)]
    assert found(readers, equal={"month": "2026-02"}, below={"n": 30}) == [("2026-02", "otto", n) for n in (10, 20)]
    assert found(readers, equal={"who": "nobody"}) == []


@pytest.mark.usefixtures("kept")
def test_a_column_that_came_later_is_null_in_the_rows_before(
    table: ArchiveTable, readers: FollowedTable, tmp_path: Path
) -> None:
    store(table, 1)
    columns = (*COLUMNS, "why")
    rows = readers.read(columns)
    assert rows is not None
    assert rows["why"].to_pylist() == [None, None], "nor is it an error where the table has no such column yet"
    wider = TableSpec("notes", SPEC.schema.append(pa.field("why", pa.string())), ("month",))
    later = ArchiveTable(tmp_path / "notes", wider, tmp_path / "mark.json")
    later.add_columns("why")
    later.add_columns("why")
    later.append(pa.table([["2026-01"], ["emma"], [2], ["late"]], schema=wider.schema), "query", 2)
    rows = readers.read(columns, equal={"who": "emma"})
    assert rows is not None
    assert sorted(zip(rows["n"].to_pylist(), rows["why"].to_pylist(), strict=True)) == [(1, None), (2, "late")]
    assert found(readers, equal={"who": "emma"}) == [("2026-01", "emma", 1), ("2026-01", "emma", 2)]


def test_a_file_that_was_away_for_a_moment_is_read_once_it_is_back(
    table: ArchiveTable, readers: FollowedTable, tmp_path: Path
) -> None:
    store(table, 1)
    assert len(found(readers)) == 2
    store(table, 2)
    newest = max((tmp_path / "notes").rglob("*.parquet"), key=lambda path: path.stat().st_mtime_ns)
    newest.rename(tmp_path / "away")
    with pytest.raises(ArchiveAway):
        readers.read(COLUMNS)
    (tmp_path / "away").rename(newest)
    assert len(found(readers)) == 4


def test_a_table_with_rows_whose_mark_is_gone_is_not_taken_for_an_empty_one(
    table: ArchiveTable, readers: FollowedTable, tmp_path: Path
) -> None:
    assert readers.files() == ()
    store(table, 1)
    (tmp_path / "mark.json").rename(tmp_path / "away")
    with pytest.raises(ArchiveInvalid, match="has rows, but the mark of its sink is gone"):
        readers.files()
    (tmp_path / "away").rename(tmp_path / "mark.json")
    assert len(found(readers)) == 2
