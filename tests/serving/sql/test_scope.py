"""What a holder's scope does to statements: there are no other rows, whatever they say."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateside.core.errors import AccessDenied, SqlInvalid, StatesideError
from stateside.core.layout import Layout
from stateside.serving.access.principal import Principal
from stateside.serving.sql import cache as limits
from tests.replica.spark_job import Changes
from tests.sizes import not_in_fast, sized, some

from .asking import Asker, shop
from .test_nasty import LOOKS_AROUND

BEN = Principal("ben", frozenset({"sql"}), where={"customer": "ben"})
GERMAN = Principal("german", frozenset({"sql"}), where={"country": "de"})
BOTH = Principal("both", frozenset({"sql"}), where={"country": "de", "customer": "ben"})
ELSEWHERE = Principal("elsewhere", frozenset({"sql"}), views=frozenset({"returns"}))

STATEMENTS = [
    "SELECT * FROM spending ORDER BY ALL",
    "SELECT * FROM spending WHERE true OR customer = 'emma' ORDER BY ALL",
    "SELECT count(*), sum(total), min(customer), max(customer) FROM spending",
    "SELECT * FROM spending UNION ALL SELECT * FROM spending ORDER BY ALL",
    "SELECT a.* FROM spending a RIGHT JOIN spending b ON a.customer <> b.customer ORDER BY ALL",
    "SELECT (SELECT count(*) FROM spending s WHERE s.customer <> t.customer) FROM spending t ORDER BY ALL",
    "WITH spending AS (SELECT * FROM spending) SELECT * FROM spending ORDER BY ALL",
    "WITH other AS (SELECT * FROM SPENDING) SELECT * FROM other ORDER BY ALL",
    "SELECT customer, sum(total) OVER (), lag(customer) OVER (ORDER BY customer, country) FROM spending ORDER BY ALL",
    "SELECT list(customer ORDER BY customer, country) FROM spending",
    "SELECT approx_count_distinct(customer), string_agg(customer, ',' ORDER BY customer) FROM spending",
    "SUMMARIZE spending",
    "SELECT * FROM spending__by_country__customer ORDER BY ALL",
    "FROM spending SELECT histogram(customer)",
]
rows = st.dictionaries(
    st.tuples(st.sampled_from(["ben", "emma", "bento", "be", ""]), st.sampled_from(["de", "fr"])),
    st.tuples(st.integers(1, 9), st.integers(-99, 999)),
)


@not_in_fast("a property over many servers; the nasty statements are tried on one")
@settings(max_examples=sized(2, 40), deadline=None)
@given(state=rows, holder=st.sampled_from([BEN, GERMAN, BOTH]), kept=st.booleans())
def test_a_scope_is_as_if_there_were_no_other_rows(state: Changes, holder: Principal, kept: bool) -> None:
    """The same statements, by an operator, over a view that has only the rows of the scope."""
    own = {key: row for key, row in state.items() if _in_scope(holder, key)}
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        if not kept:
            patch.setattr(limits, "KEPT_RELATION_BYTES_MAX", 0)
        askers = [Asker(Layout(Path(folder) / name)) for name in ("all", "own")]
        for asker, rows in zip(askers, (state, own), strict=True):
            shop(asker.layout, rows)
        for text in STATEMENTS:
            assert askers[0].rows(text, holder=holder) == askers[1].rows(text), text
        for asker in askers:
            asker.let_go()


def _in_scope(holder: Principal, key: tuple[str, str]) -> bool:
    return all(
        dict(zip(("customer", "country"), key, strict=True))[name] == text for name, text in holder.where.items()
    )


@pytest.mark.parametrize("text", some(LOOKS_AROUND, 5))
def test_no_nasty_statement_reaches_another_customer(asker: Asker, text: str) -> None:
    with pytest.raises(StatesideError) as refused:
        asker.content(text, holder=BEN, timeout_ms=5_000)
    assert "emma" not in str(refused.value)


def test_a_rollup_without_the_scope_s_column_is_refused(asker: Asker) -> None:
    for name in ("spending__total", "spending__by_country"):
        with pytest.raises(AccessDenied, match="'customer'"):
            asker.rows(f"FROM {name}", holder=BEN)
    assert asker.rows("FROM spending__by_country", holder=GERMAN) == [["de", 3, 164, 6]]


def test_a_view_that_is_not_in_the_scope_is_refused_and_not_told_of(asker: Asker) -> None:
    with pytest.raises(AccessDenied):
        asker.rows("FROM spending", holder=ELSEWHERE)
    with pytest.raises(SqlInvalid) as refused:
        asker.rows("FROM nothing", holder=ELSEWHERE)
    assert "spending" not in str(refused.value)
    assert asker.rows("WITH spending AS (SELECT 1) FROM spending", holder=ELSEWHERE) == [[1]]


def test_a_scope_that_no_row_can_be_in_is_refused(asker: Asker) -> None:
    with pytest.raises(AccessDenied, match="'orders' is 'many'"):
        asker.rows("FROM spending", holder=Principal("x", frozenset({"sql"}), where={"orders": "many"}))
    with pytest.raises(AccessDenied, match="'colour'"):
        asker.rows("FROM spending", holder=Principal("x", frozenset({"sql"}), where={"colour": "red"}))
    assert len(asker.rows("FROM spending", holder=Principal("x", frozenset({"sql"}), where={"orders": "2"}))) == 1
