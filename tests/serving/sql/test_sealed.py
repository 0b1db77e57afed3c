"""Live and sealed rows in one statement: the archive's rows count with the stamps, so that nothing counts twice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from stateside.archive import ArchiveTable, TableSpec
from stateside.billing.answers.document_store import sql_tables
from stateside.core.errors import AccessDenied, ArchiveAway, SqlInvalid
from stateside.core.layout import Layout
from stateside.core.storage import write_atomically
from stateside.serving.access.principal import OPERATOR, Principal
from stateside.serving.sql.execution import listed
from stateside.serving.sql.process import SqlRunner
from stateside.views.catalogue import Catalogue
from tests.billing.test_answers import DAY_US, JANUARY, Folder
from tests.billing.written_bills import step
from tests.replica.spark_job import Rows
from tests.serving.rows.closing_shop import SCHEMA, ClosingShop

from .asking import Asker, follow, shop

SPEC = TableSpec(
    "closed", pa.schema([("customer", pa.string()), ("country", pa.string()), ("total", pa.int64())]), ("country",)
)
BOTH = "SELECT sum(total) FROM (SELECT total FROM spending UNION ALL SELECT total FROM archive.closed)"
EMMA = Principal("emma", frozenset({"sql"}), where={"customer": "emma"})


def sealed(layout: Layout, name: str = "closed", *, with_batch: bool = True) -> ArchiveTable:
    """A table that the view `spending` fills."""
    spec = TableSpec(name, SPEC.schema, SPEC.partition_by, sealed=with_batch)
    table = ArchiveTable(layout.table(name), spec, layout.view("spending").mark(name))
    table.create()
    return table


def store(table: ArchiveTable, batch: int, *rows: tuple[str, str, int]) -> None:
    table.append(pa.table([list(column) for column in zip(*rows, strict=True)], schema=SPEC.schema), "query", batch)


def listed_relations(asker: Asker) -> list[dict[str, Any]]:
    return listed(asker.runner.folder, asker._views, OPERATOR)


def test_a_row_that_is_being_sealed_counts_once_at_every_moment(layout: Layout) -> None:
    job, table, asker = shop(layout), sealed(layout), Asker(layout)
    assert asker.rows(BOTH) == [[171]]
    store(table, 1, ("emma", "de", 104))  # the sink commits first
    found = asker.document(BOTH)
    assert found["rows"] == [[171]], "its batch is not there yet"
    assert [stamp["batch"] for stamp in found["stamps"]] == [0], "one stamp: the table counts with its view"
    asker.let_go()
    job.run({("emma", "de"): None})
    assert asker.rows(BOTH) == [[171]], "Spark has committed, the replica has not seen it"
    asker.let_go()
    follow(job)
    assert asker.rows(BOTH) == [[171]]
    assert asker.rows("SELECT customer, country, total, sealed_batch FROM ARCHIVE.Closed") == [["emma", "de", 104, 1]]


def test_live_and_sealed_rows_are_joined(layout: Layout) -> None:
    shop(layout)
    store(sealed(layout), 0, ("emma", "de", 1_000), ("olga", "fr", 5))
    joined = (
        "SELECT customer, s.total, c.total FROM spending s LEFT JOIN archive.closed c USING (customer) ORDER BY ALL"
    )
    assert Asker(layout).rows(joined) == [["ben", 7, None], ["ben", 60, None], ["emma", 104, 1_000]]


def test_rows_of_a_table_without_a_batch_all_count(layout: Layout) -> None:
    shop(layout)
    store(sealed(layout, "plain", with_batch=False), 5, ("emma", "de", 1))
    found = Asker(layout).document("SELECT customer, country, total FROM archive.plain")
    assert found["rows"] == [["emma", "de", 1]]
    assert [stamp["view"] for stamp in found["stamps"]] == ["spending"]


def test_a_scope_holds_for_tables_too(layout: Layout) -> None:
    shop(layout)
    store(sealed(layout), 0, ("emma", "de", 1_000), ("olga", "fr", 5))
    asker = Asker(layout)
    texts = (
        "SELECT customer FROM archive.closed",
        "SELECT customer FROM archive.closed WHERE customer = 'olga' OR true",
    )
    for text in texts:
        assert asker.rows(text, holder=EMMA) == [["emma"]]
    assert asker.rows("SELECT customer FROM archive.closed WHERE country = 'fr'", holder=EMMA) == []
    french = Principal("french", frozenset({"sql"}), where={"country": "fr"})
    assert asker.rows("SELECT customer FROM archive.closed", holder=french) == [["olga"]]
    elsewhere = Principal("x", frozenset({"sql"}), views=frozenset({"returns"}))
    with pytest.raises(AccessDenied):
        asker.rows("FROM archive.closed", holder=elsewhere)
    with pytest.raises(SqlInvalid):
        asker.rows("FROM closed")


def test_the_table_behind_a_relation_has_no_name_of_its_own_to_be_asked_by(layout: Layout) -> None:
    shop(layout)
    store(sealed(layout), 9, ("olga", "fr", 5))
    ((plan,),) = [row[1:] for row in Asker(layout).rows("EXPLAIN SELECT * FROM archive.closed")]
    assert str(layout.root) not in plan
    assert Asker(layout).rows("SELECT count(*) FROM archive.closed") == [[0]]


ALL = "SELECT customer, country, orders, total FROM spending__all ORDER BY ALL"


def test_live_and_sealed_rows_are_one_relation_at_every_moment(layout: Layout) -> None:
    closing = ClosingShop(layout.root)
    emma, ben = ("emma", "de"), ("ben", "de")
    closing.batch({emma: (1, 5), ("emma", "fr"): (2, 7), ben: (1, 1)})
    asker = Asker(closing.layout)

    def check(batch: int) -> None:
        for source, name in (("both", "spending__all"), ("live", "spending"), ("archive", "archive.closed")):
            found = asker.document(ALL.replace("spending__all", name))
            assert found["rows"] == [list(row.values()) for row in closing.all_expected(batch, source)]
            assert [(stamp["batch"], stamp["source"]) for stamp in found["stamps"]] == [(batch, source)]
        assert asker.rows(ALL, holder=EMMA) == [list(row.values()) for row in closing.expected(batch)["emma"]]
        asker.let_go()

    check(0)
    last: Rows = {("ben", "it"): (4, 4)}
    closing.store([emma, ben], last)
    check(0)
    closing.commit([emma, ben], {}, last)
    check(0)
    closing.follow()
    check(1)


def test_before_its_table_exists_a_whole_view_has_its_live_rows(layout: Layout) -> None:
    job = shop(layout)
    write_atomically(job.view.catalogue, replace(Catalogue.load(job.view.catalogue), archive="closed").as_json())
    assert Asker(layout).rows("SELECT sum(total), count(*) FROM spending__all") == [[171, 3]]


def test_sealed_rows_have_their_computed_columns_too(layout: Layout) -> None:
    job = shop(layout)
    write_atomically(job.view.catalogue, replace(Catalogue.load(job.view.catalogue), archive="closed").as_json())
    asker = Asker(layout)
    prices = asker.rows("SELECT customer, price FROM spending ORDER BY ALL")
    spec = TableSpec("closed", SCHEMA, sealed=True)
    table = ArchiveTable(layout.table("closed"), spec, layout.view("spending").mark("closed"))
    table.create()
    table.append(pa.table([["olga", None], ["de", None], [2, 1], [104, 3]], schema=SCHEMA), "query", 0)
    found = asker.document("SELECT customer, price FROM spending__all ORDER BY ALL")
    (emma,) = [price for customer, price in prices if customer == "emma"]
    assert found["rows"] == [*prices, ["olga", emma], [None, None]], "the same total in the same country"
    listed = {each["name"]: each for each in listed_relations(asker)}
    columns = ["customer", "country", "orders", "total", "price"]
    assert (listed["spending__all"]["kind"], [each["name"] for each in listed["spending__all"]["columns"]]) == (
        "all",
        columns,
    )


@pytest.mark.parametrize("gone", [".", "_delta_log", "country=de"])
def test_while_the_storage_is_away_it_is_told_and_not_blamed_on_the_statement(layout: Layout, gone: str) -> None:
    shop(layout)
    store(sealed(layout), 0, ("emma", "de", 1_000))
    asker, folder, away = Asker(layout), layout.table("closed") / gone, layout.root / "away"
    assert asker.rows("SELECT total FROM archive.closed") == [[1_000]]
    folder.rename(away)
    for text in ("SELECT total FROM archive.closed", "SELECT sum(total) FROM archive.closed, spending"):
        with pytest.raises(ArchiveAway) as told:
            asker.rows(text)
        assert str(layout.root) not in str(told.value.problem())
    assert asker.rows("SELECT count(*) FROM spending") == [[3]]
    with pytest.raises(SqlInvalid):
        asker.rows("SELECT no_such_column FROM spending")
    away.rename(folder)
    assert asker.rows("SELECT total FROM archive.closed") == [[1_000]]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    made = Folder(Layout(tmp_path / "billing"))
    made.clock.time_us = JANUARY.start_us + 2 * DAY_US
    return made


AMOUNT = """
    SELECT coalesce((SELECT sum(amount_micros) FROM bill), 0) + coalesce(sum(amount_micros), 0), count(*)
    FROM archive.documents
"""


def test_billing_s_documents_count_by_its_own_gate(folder: Folder) -> None:
    asker = Asker(folder.layout, SqlRunner(folder.layout, sql_tables()))
    folder.append(folder.used("c-1", "call", 180), folder.used("m-1", "message", 9))
    folder.batch()
    ((amount, documents),) = asker.rows(AMOUNT)
    assert (amount > 0, documents) == (True, 0)
    asker.let_go()
    gone = folder.bills.seal(JANUARY.end_us)  # the first half of a batch: its invoice is stored
    assert asker.rows(AMOUNT) == [[amount, 0]]
    asker.let_go()
    folder.bills.commit(gone, folder.bills.position)
    folder.bills.closed.add(JANUARY.end_us)
    step(folder.layout)
    assert asker.rows(AMOUNT) == [[amount, 1]]
    asker.let_go()
    folder.append(folder.used("m-2", "message", 2), folder.used("x", "call", 2, customer="nobody"))
    folder.batch()
    assert [row[1] for row in asker.rows(AMOUNT)] == [2], "a note"
    assert asker.rows("SELECT count(*) FROM archive.dead_letters") == [[1]]
    lines = "SELECT sum(line.quantity) FROM archive.documents, unnest(lines) AS t(line) WHERE line.type = 'message'"
    assert asker.rows(lines) == [[11]]


def test_a_customer_sees_the_own_documents_and_no_dead_letters(folder: Folder) -> None:
    asker = Asker(folder.layout, SqlRunner(folder.layout, sql_tables()))
    folder.append(folder.used("c-1", "call", 180), folder.used("c-2", "call", 180, customer="ben"))
    folder.batch(JANUARY.end_us)
    assert asker.rows("SELECT customer FROM archive.documents ORDER BY 1") == [["ben"], ["emma"]]
    assert asker.rows("SELECT customer FROM archive.documents", holder=EMMA) == [["emma"]]
    with pytest.raises(AccessDenied, match="customer"):
        asker.rows("FROM archive.dead_letters", holder=EMMA)
