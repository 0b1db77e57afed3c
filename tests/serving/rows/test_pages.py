"""Pages: put together they are all rows of the batch that the first one was of, whatever is applied meanwhile."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateside.core.errors import CursorInvalid, HistoryGone, RequestInvalid
from stateside.serving.rows import row_query
from stateside.serving.rows.floor import AsOf
from tests.replica.spark_job import Changes, Rows
from tests.sizes import examples

from .shop import Asked, Shop, shown, values_of

NAMES = ["", "a", "a\x00b", "ab", "emma", "ä", "😀", "x" * 600]
KEYS = st.tuples(st.sampled_from(NAMES), st.sampled_from(["de", "fr", ""]))
ROWS = st.tuples(st.integers(0, 3), st.integers(-3, 3))
BATCHES = st.lists(st.dictionaries(KEYS, st.none() | ROWS, max_size=12), min_size=2, max_size=5)

Row = dict[str, Any]
Oracle = Callable[[list[Row]], list[Row]]
QUESTIONS: list[tuple[Asked, Oracle]] = [
    (Asked(), lambda rows: rows),
    (Asked(where=("total>=1",)), lambda rows: [row for row in rows if row["total"] >= 1]),
    (
        Asked(where=("customer=a", "total!=0")),
        lambda rows: [row for row in rows if row["customer"] == "a" and row["total"] != 0],
    ),
    (
        Asked(where=("customer>a", "country=fr", "orders<=2")),
        lambda rows: [row for row in rows if row["customer"] > "a" and row["country"] == "fr" and row["orders"] <= 2],
    ),
    (Asked(parts=("ab",)), lambda rows: [row for row in rows if row["customer"] == "ab"]),
    (Asked(order="total"), lambda rows: sorted(rows, key=lambda row: row["total"])),
    (Asked(order="-total"), lambda rows: sorted(rows, key=lambda row: -row["total"])),
    (
        Asked(order="-country", where=("orders>0",)),
        lambda rows: sorted([row for row in rows if row["orders"] > 0], key=lambda row: row["country"], reverse=True),
    ),
]


@settings(max_examples=examples(25, 300))
@given(BATCHES, st.sampled_from(QUESTIONS), st.integers(1, 5), st.integers(1, 6))
def test_pages_put_together_are_all_rows_of_the_first_one_s_batch_while_batches_are_applied(
    batches: list[Changes], asked_and_oracle: tuple[Asked, Oracle], limit: int, looked_at_max: int
) -> None:
    asked, oracle = asked_and_oracle
    asked = Asked(asked.parts, asked.where, asked.order, limit=limit)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_query, "ROWS_LOOKED_AT_MAX", looked_at_max)
        shop = Shop(Path(folder))
        shop.batch(batches[0])
        first = answer = shop.page(asked)
        rows, waiting = list(answer.rows), batches[1:]
        while answer.cursor is not None:
            if waiting:
                shop.batch(waiting.pop(0))
            answer = shop.page(asked, answer.cursor)
            assert (answer.stamp.batch, answer.stamp.position) == (first.stamp.batch, first.stamp.position)
            assert len(answer.rows) <= limit
            rows += answer.rows
        assert rows == oracle(shown(shop.job.states[0]))


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    made = Shop(tmp_path)
    made.batch({(f"c{number:02}", "de" if number % 2 else "fr"): (1, number) for number in range(20)})
    return made


def test_a_filter_that_few_rows_meet_gives_short_and_empty_pages_with_a_cursor(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_query, "ROWS_LOOKED_AT_MAX", 5)
    asked, cursor = Asked(where=("total=12",)), None
    sizes = []
    while True:
        answer = shop.page(asked, cursor)
        sizes.append(len(answer.rows))
        cursor = answer.cursor
        if cursor is None:
            break
    assert sizes == [0, 0, 1, 0]


def test_a_filter_that_equals_the_first_key_columns_reads_only_their_rows(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_query, "ROWS_LOOKED_AT_MAX", 1)
    answer = shop.page(Asked(where=("country=fr", "customer=c12")))
    assert (values_of(answer.rows, "total"), answer.cursor) == ([12], None)


def test_rows_as_of_a_batch_are_what_they_were(shop: Shop) -> None:
    before: Rows = shop.job.rows
    shop.batch({("c01", "de"): None, ("c02", "fr"): (9, 9)})
    assert shop.rows(Asked(limit=7), as_of=AsOf(0)) == shown(before)
    assert shop.rows(Asked(limit=7), as_of=AsOf(1)) == shown(shop.job.rows)


def test_a_page_has_the_columns_that_were_asked_for_in_their_order(shop: Shop) -> None:
    answer = shop.page(Asked(parts=("c03",), columns="total,customer"))
    assert [list(row.items()) for row in answer.rows] == [[("total", 3), ("customer", "c03")]]


def test_a_cursor_goes_on_only_in_its_own_question(shop: Shop) -> None:
    asked = Asked(where=("total>3",), limit=2)
    cursor = shop.page(asked).cursor
    others = [
        Asked(where=("total>4",), limit=2),
        Asked(limit=2),
        Asked(where=("total>3",), order="total", limit=2),
        Asked(where=("total>3",), columns="total", limit=2),
        Asked(parts=("c05",), where=("total>3",), limit=2),
    ]
    for other in others:
        with pytest.raises(CursorInvalid, match="another question"):
            shop.page(other, cursor)
    with pytest.raises(CursorInvalid, match="is of batch 0, and 1 was asked for"):
        shop.page(asked, cursor, as_of=AsOf(1))
    more = Asked(where=("total>3",), limit=5)
    assert values_of(shop.page(more, cursor).rows, "total") == [6, 7, 8, 9, 10], "another limit is the same question"


def test_a_cursor_whose_batch_was_rolled_back_is_told_that_it_is_gone(shop: Shop) -> None:
    shop.batch({("c00", "fr"): (2, 2)})
    cursor = shop.page(Asked(limit=2)).cursor
    shop.job.roll_back(0)
    shop.job.run({("c00", "fr"): (3, 3)})
    shop.follow()
    with pytest.raises(HistoryGone):
        shop.page(Asked(limit=2), cursor)


def test_more_rows_than_can_be_put_in_order_are_refused(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_query, "ORDERED_ROWS_MAX", 19)
    with pytest.raises(RequestInvalid, match="More than 19 rows would have to be put in order"):
        shop.page(Asked(order="-total"))
    assert values_of(shop.page(Asked(parts=("c07",), order="-total")).rows, "total") == [7]


def test_limits_are_kept_to(shop: Shop) -> None:
    for limit, order in ((0, None), (row_query.LIMIT_MAX + 1, None), (row_query.ORDERED_LIMIT_MAX + 1, "total")):
        with pytest.raises(RequestInvalid, match="The parameter limit is"):
            shop.page(Asked(limit=limit, order=order))
