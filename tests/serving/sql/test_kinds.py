"""Views of every kind of state: a statement has the rows that other answers have. Checkpoints written without Spark."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateside.archive import ArchiveTable, TableSpec
from stateside.core.errors import Misdirected
from stateside.core.layout import Layout
from stateside.replica.shard import Share
from stateside.replica.tail import Tail
from stateside.serving.access.principal import Principal
from stateside.serving.foreign import open_foreign
from stateside.serving.rows.floor import Floor
from stateside.serving.rows.view_readers import ViewReaders
from tests.serving.test_foreign import COLUMNS, VALUES
from tests.sizes import examples
from tests.spark_state.conftest import _encode_row
from tests.written import WINDOW, Written, WrittenOperator, window

from .asking import Asker, shop

USER, COUNT = ("user", "string"), ("count", "long")
GROUP = {
    "type": "struct",
    "fields": [
        {"name": name, "type": type_, "nullable": True, "metadata": {}}
        for name, type_ in (("seen", "long"), ("last", "string"))
    ],
}
Changed = Sequence[tuple[Sequence[Any], Sequence[Any] | None]]


def served(folder: Path, operator: WrittenOperator, changed: Changed, conf: dict[str, str] | None = None) -> Layout:
    """A foreign checkpoint with this state, whose replica is up to date."""
    Written(folder / "words", operator, conf=conf).batch(changed)
    foreign = open_foreign(str(folder / "words"), folder / "replicas")
    foreign.start()
    for view in foreign.layout.views():
        tail = Tail(view)
        tail.step()
        tail.close()
    return foreign.layout


def check_same(layout: Layout) -> list[dict[str, Any]]:
    """The rows of the one view, which are the same in both answers."""
    (name,) = (view.name for view in layout.views())
    views = ViewReaders(layout)
    asker = Asker(layout, views=views)
    found = asker.document(f'SELECT * FROM "{name}"')
    names = [column["name"] for column in found["columns"]]
    rows = [dict(zip(names, row, strict=True)) for row in found["rows"]]
    answer = asyncio.run(views.get(name).rows((), Floor(wait_ms=0)))
    asker.let_go()
    for row in rows:
        for period in [
            name for name, value in row.items() if isinstance(value, dict) and set(value) == {"start", "end"}
        ]:
            assert row[period] == {border: row.pop(f"{period}_{border}") for border in ("start", "end")}
    assert rows == answer.rows
    return rows


def test_a_view_without_a_key(tmp_path: Path) -> None:
    assert check_same(served(tmp_path, WrittenOperator([], [COUNT]), [([], [3])])) == [{"count": 3}]


def test_keys_without_other_columns(tmp_path: Path) -> None:
    operator = WrittenOperator([USER], [("__dummy__", "void")], "dedupe")
    assert check_same(served(tmp_path, operator, [(["emma"], [None])])) == [{"user": "emma"}]


def test_sessions_are_whole(tmp_path: Path) -> None:
    key, value = [USER, ("sessionStartTime", "timestamp")], [USER, ("session_window", WINDOW), COUNT]
    operator = WrittenOperator(key, value, "sessionWindowStateStoreSaveExec")
    (row,) = check_same(served(tmp_path, operator, [(["emma", 0], ["emma", window(0, 60_000_000), 3])]))
    assert row["session_window"] == {"start": "1970-01-01T00:00:00Z", "end": "1970-01-01T00:01:00Z"}


def test_groups_are_read_row_by_row(tmp_path: Path) -> None:
    value = [("groupState", GROUP), ("timeoutTimestamp", "long")]
    operator = WrittenOperator([USER], value, "flatMapGroupsWithState")
    state = _encode_row(["long", "string"], [3, "x"])
    rows = check_same(served(tmp_path, operator, [(["emma"], [state, -1]), (["zoe"], [None, 5])]))
    assert rows == [
        {"user": "emma", "seen": 3, "last": "x", "timeout_ms": None},
        {"user": "zoe", "seen": None, "last": None, "timeout_ms": 5},
    ]


@settings(max_examples=examples(10, 100), deadline=None)
@given(st.data())
def test_any_query_s_rows_are_those_of_other_answers(data: st.DataObject) -> None:
    key, value = data.draw(COLUMNS), data.draw(COLUMNS.filter(bool))

    def row(columns: list[tuple[str, str]]) -> st.SearchStrategy[tuple[Any, ...]]:
        return st.tuples(*(st.none() | VALUES[type_] for _, type_ in columns))

    state = data.draw(st.dictionaries(row(key), row(value), min_size=1, max_size=4))
    with TemporaryDirectory() as folder:
        check_same(served(Path(folder), WrittenOperator(key, value), [*state.items()]))


def test_a_server_with_a_share_refuses_what_is_asked_of_all_keys(layout: Layout) -> None:
    """Of a customer's rows, which lie in one share, the server that has it can answer: no sum is ever of a part."""
    job = shop(layout)
    spec = TableSpec("closed", pa.schema([("customer", pa.string())]))
    ArchiveTable(layout.table("closed"), spec, job.view.mark("closed")).create()
    ben = Principal("ben", frozenset({"sql"}), where={"customer": "ben"})
    held = []
    for number in (1, 2):
        place = job.view.root / "replica"
        place.rename(place.with_name(f"replica-before-{number}"))
        tail = Tail(job.view, share=Share.parse(f"{number}/2"))
        tail.step()
        tail.close()
        asker = Asker(layout)
        for text in ("SELECT sum(total) FROM spending", "FROM spending__total", "SELECT count(*) FROM archive.closed"):
            with pytest.raises(Misdirected, match="of all of its keys"):
                asker.rows(text)
        try:
            held.append(asker.rows("SELECT sum(total) FROM spending", holder=ben))
        except Misdirected:
            held.append([])
        assert asker.rows("SELECT 1") == [[1]]
        asker.let_go()
    assert sorted(held) == [[], [[67]]], "a customer's rows lie in one share, and the other server says so"
