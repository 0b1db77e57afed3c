"""Statements over a view, its rollups and computed columns: what comes back, in each format."""

from __future__ import annotations

import asyncio
import csv
import io
import threading
from typing import Any

import pyarrow as pa
import pytest

from stateside.core.errors import ClientLeft, NotFreshEnough, SqlInvalid, SqlTimeout, SqlTooLarge, TooManyRequests
from stateside.core.layout import Layout
from stateside.serving.rows.floor import Floor
from stateside.serving.sql import cache as limits
from stateside.serving.sql.process import SqlRunner
from tests.sizes import not_in_fast
from tests.waiting import wait_until

from .asking import Asker, shop


def test_a_view_s_rows_come_with_their_computed_columns_and_the_stamp_of_one_snapshot(asker: Asker) -> None:
    found = asker.document("SELECT * FROM spending ORDER BY customer, country")
    assert [column["name"] for column in found["columns"]] == ["customer", "country", "orders", "total", "price"]
    assert [column["type"] for column in found["columns"]] == ["VARCHAR", "VARCHAR", "BIGINT", "BIGINT", "BIGINT"]
    assert found["rows"] == [["ben", "de", 1, 60, 0], ["ben", "fr", 3, 7, -7], ["emma", "de", 2, 104, 6]]
    (stamp,) = found["stamps"]
    assert (stamp["view"], stamp["batch"], stamp["source"]) == ("spending", 0, "live")


def test_rollups_are_relations_of_the_same_snapshot(asker: Asker) -> None:
    assert asker.rows("FROM spending__by_country ORDER BY country") == [["de", 3, 164, 6], ["fr", 3, 7, -7]]
    assert asker.rows("FROM spending__total") == [[6, 171, -1]]
    assert len(asker.rows("FROM spending__by_country__customer")) == 3
    together = "SELECT (SELECT sum(total) FROM spending), total FROM spending__total"
    found = asker.document(together)
    assert found["rows"] == [[171, 171]]
    assert len(found["stamps"]) == 1, "one snapshot of the view, whatever is read of it"


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("SELECT country, sum(total) FROM spending GROUP BY ALL ORDER BY ALL", [["de", 164], ["fr", 7]]),
        ("WITH big AS (SELECT * FROM spending WHERE total > 50) SELECT count(*) FROM big", [[2]]),
        ("VALUES (1, 'a'), (2, NULL)", [[1, "a"], [2, None]]),
        ("SELECT a.customer FROM Spending a JOIN SPENDING b USING (customer, country) WHERE a.total = 7", [["ben"]]),
        ("SELECT customer, rank() OVER (ORDER BY total DESC) FROM spending ORDER BY 2 LIMIT 1", [["emma", 1]]),
        ("PIVOT spending ON country IN ('de', 'fr') USING sum(total) GROUP BY customer ORDER BY customer LIMIT 1",
         [["ben", 60, 7]]),
        ("WITH RECURSIVE up(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM up WHERE n < 3) SELECT max(n) FROM up", [[3]]),
        ("WITH spending AS (SELECT 1 AS one) SELECT * FROM spending", [[1]]),
        ("WITH s AS (SELECT * FROM spending) SELECT count(*) FROM s, unnest([1, 2])", [[6]]),
        ("SELECT 1 AS same, 2 AS same", [[1, 2]]),
    ],
)  # fmt: skip
def test_what_sql_can_do(asker: Asker, text: str, rows: list[Any]) -> None:
    assert asker.rows(text) == rows


def test_describe_and_explain_tell_of_a_statement(asker: Asker) -> None:
    assert asker.rows("DESCRIBE spending")[0][:2] == ["customer", "VARCHAR"]
    assert asker.rows("SUMMARIZE spending")[0][0] == "customer"
    ((kind, plan),) = asker.rows("EXPLAIN SELECT count(*) FROM spending")
    assert kind == "physical_plan"
    assert "/" not in plan.replace("/*", ""), "nothing of this machine"


def test_parameters_stand_for_values(asker: Asker) -> None:
    assert asker.rows("SELECT total FROM spending WHERE customer = ? AND country = ?", ["ben", "fr"]) == [[7]]
    assert asker.rows("SELECT total FROM spending WHERE customer = $who", {"who": "emma"}) == [[104]]
    with pytest.raises(SqlInvalid):
        asker.rows("SELECT ?::INTEGER")
    with pytest.raises(SqlInvalid):
        asker.rows("SELECT ?::INTEGER", [1, 2])


def test_values_are_rendered_as_in_other_answers(asker: Asker) -> None:
    text = """SELECT 1.50::DECIMAL(9, 2), TIMESTAMPTZ '2026-01-31 12:00:00+01', TIMESTAMP '2026-01-31 12:00:00.5',
        DATE '2026-01-31', INTERVAL '1 month 3 days 4 seconds', 'NaN'::DOUBLE, '-Infinity'::FLOAT, 'é'::VARCHAR,
        '\\x00\\xFF'::BLOB, [1, NULL], {'a': 1.5::DECIMAL(3, 1)}, MAP {'k': DATE '2026-01-31'}, MAP {1: 2}, TRUE, NULL,
        9223372036854775807::HUGEINT, 170141183460469231731687303715884105727::HUGEINT, TIME '10:00:00',
        'b'::ENUM('a', 'b'), '00000000-0000-0000-0000-000000000001'::UUID"""
    assert asker.rows(text) == [[
        "1.50", "2026-01-31T11:00:00Z", "2026-01-31T12:00:00.500000", "2026-01-31", "P1M3DT4S", "NaN", "-Infinity", "é",
        "AP8=", [1, None], {"a": "1.5"}, {"k": "2026-01-31"}, [{"key": 1, "value": 2}], True, None,
        9223372036854775807, "170141183460469231731687303715884105727", "10:00:00", "b",
        "00000000-0000-0000-0000-000000000001",
    ]]  # fmt: skip


def test_csv_tells_nothing_from_an_empty_text(asker: Asker) -> None:
    found = asker.content(
        "SELECT 1 AS a, 'x,\"y' AS b, NULL::VARCHAR AS c, '' AS d, [1, 2] AS e", format="csv"
    ).decode()
    assert found.splitlines() == ['"a","b","c","d","e"', '1,"x,""y",,"","[1,2]"']
    rows = list(csv.reader(io.StringIO(asker.content("FROM spending ORDER BY ALL", format="csv").decode())))
    assert rows[0] == ["customer", "country", "orders", "total", "price"]
    assert rows[1:] == [["ben", "de", "1", "60", "0"], ["ben", "fr", "3", "7", "-7"], ["emma", "de", "2", "104", "6"]]


def test_an_arrow_stream_is_what_arrow_reads(asker: Asker) -> None:
    content = asker.content("SELECT customer, sum(total) AS total FROM spending GROUP BY 1 ORDER BY 1", format="arrow")
    table = pa.ipc.open_stream(content).read_all()
    assert table.to_pydict() == {"customer": ["ben", "emma"], "total": [67, 104]}
    empty = pa.ipc.open_stream(asker.content("FROM spending WHERE FALSE", format="arrow")).read_all()
    assert empty.schema.names == ["customer", "country", "orders", "total", "price"]
    assert empty.num_rows == 0


def test_an_arrow_stream_has_many_batches_and_is_never_all_in_memory(asker: Asker) -> None:
    table = pa.ipc.open_stream(asker.content("SELECT range AS n FROM range(100_000)", format="arrow"))
    batches = list(table)
    assert sum(batch.num_rows for batch in batches) == 100_000
    assert max(batch.num_rows for batch in batches) <= 8_192


def test_a_view_that_is_too_large_to_be_kept_is_scanned_as_often_as_needed(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "KEPT_RELATION_BYTES_MAX", 10)
    shop(layout)
    asker = Asker(layout)
    both = "SELECT count(*) FROM spending a JOIN spending b USING (customer, country)"
    assert asker.rows(both) == [[3]]
    assert asker.rows("SELECT sum(total), (SELECT total FROM spending__total) FROM spending") == [[171, 171]]
    assert asker.runner.folder.kept.nbytes == 0


def test_two_views_have_a_stamp_each(layout: Layout) -> None:
    shop(layout)
    shop(layout, {("emma", "de"): (1, 1)}, view="returns")
    found = Asker(layout).document("SELECT customer, s.total - r.total FROM spending s JOIN returns r USING (customer)")
    assert found["rows"] == [["emma", 103]]
    assert [stamp["view"] for stamp in found["stamps"]] == ["returns", "spending"]


def test_a_floor_that_is_not_reached_refuses_the_statement(asker: Asker) -> None:
    with pytest.raises(NotFreshEnough, match=" old, and max_age_ms="):
        asker.rows("FROM spending", floor=Floor(max_age_ms=0, wait_ms=20))
    assert asker.rows("SELECT 1", floor=Floor(max_age_ms=0, wait_ms=20)) == [[1]], "it reads no view"


def test_a_result_that_is_too_large_is_refused_and_never_cut(asker: Asker) -> None:
    with pytest.raises(SqlTooLarge, match="more than 2 rows"):
        asker.rows("FROM spending", rows_max=2)
    assert len(asker.rows("FROM spending", rows_max=3)) == 3
    with pytest.raises(SqlTooLarge, match="MiB"):
        asker.rows("SELECT repeat('x', 10_000_000) FROM range(10)")
    with pytest.raises(SqlTooLarge, match="more than 5 rows"):
        asker.content("FROM range(100_000)", format="arrow", rows_max=5)


@not_in_fast("a statement that takes long")
def test_a_statement_that_needs_too_much_memory_is_refused(asker: Asker) -> None:
    with pytest.raises(SqlTooLarge, match="more than 512 MiB of memory"):
        asker.rows("SELECT len(list(range)) FROM range(500_000_000)")
    assert asker.rows("SELECT 1") == [[1]]


ENDLESS = "SELECT count(*) FROM range(1_000_000_000_000) WHERE hash(range) = 1"


def test_a_statement_ends_when_its_time_is_up(asker: Asker) -> None:
    with pytest.raises(SqlTimeout, match="longer than 200 ms"):
        asker.rows(ENDLESS, timeout_ms=200)
    assert asker.rows("SELECT 1") == [[1]]


def test_a_statement_ends_when_who_asked_has_left(asker: Asker) -> None:
    async def leaves() -> None:
        await asyncio.sleep(0.2)

    before = threading.active_count()
    with pytest.raises(ClientLeft):
        asker.rows(ENDLESS, left=leaves)
    wait_until(lambda: threading.active_count() <= before)  # its threads end


@not_in_fast("statements that take long")
def test_only_so_many_run_at_a_time(asker: Asker) -> None:
    one = Asker(asker.layout, SqlRunner(asker.layout, at_once=1))
    refused: list[type] = []

    def ask() -> None:
        try:
            one.rows(ENDLESS, timeout_ms=1_000)
        except (TooManyRequests, SqlTimeout) as error:
            refused.append(type(error))

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(error.__name__ for error in refused) == ["SqlTimeout", "TooManyRequests", "TooManyRequests"]
    assert one.rows("SELECT 1") == [[1]], "the slot is free again"
