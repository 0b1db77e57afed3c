"""Documents: closed rows become invoices with lines, sums and numbers."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateside.billing.invoicing.amounts import round_all
from stateside.billing.invoicing.documents import ACCOUNT, DOCUMENTS, DRAFT, invoices, numbered
from stateside.billing.money import Rounding, round_micros
from stateside.billing.plans.file import CREDIT
from stateside.billing.plans.tiers import Tier, Tiers
from stateside.core.errors import MoneyOverflow, ValueOverflow
from tests.billing.billed import BERLIN, DAILY, JANUARY, Row, amounts, closed, version
from tests.sizes import examples

JAN = JANUARY.end_us
FEB = BERLIN.containing(JAN).end_us
PLANS = amounts(version(), version("gold", 2, currency="USD"), version("daily", 1, cycle=DAILY))


def test_closed_rows_become_an_invoice_for_each_customer_period_and_currency() -> None:
    rows: list[Row] = [
        ("noah", JAN, "call", "basic@1", 101, 2),
        ("emma", JAN, "message", "basic@1", 3, 3),
        ("emma", FEB, "call", "basic@1", 5, 1),
        ("emma", JAN, "call", "gold@2", 1_007, 4),
        ("emma", JAN, "call", "basic@1", 1_007, 4),
        ("emma", JAN, "credit", "basic@1", 2_000_000, 1),
    ]
    found = numbered(invoices(closed(rows), PLANS, 7), "I", 41)
    assert found.schema.equals(DOCUMENTS.schema)
    heads = ["number", "sequence", "customer", "period", "currency", "amount_micros", "charged_micros", "events"]
    assert [tuple(row.values()) for row in found.select(heads).to_pylist()] == [
        ("I-000000042", 42, "emma", "2026-01", "EUR", 3_010_000 + 285_300 - 2_000_000, 1_300_000, 8),
        ("I-000000043", 43, "emma", "2026-01", "USD", 3_010_000, 3_010_000, 4),
        ("I-000000044", 44, "noah", "2026-01", "EUR", 3_333, 0, 2),
        ("I-000000045", 45, "emma", "2026-02", "EUR", 0, 0, 1),
    ]
    first = found.slice(0, 1).to_pylist()[0]
    assert [tuple(line.values()) for line in first["lines"]] == [
        ("call", "basic@1", 1_007, 4, 3_010_000, 3_010_000),
        ("credit", "basic@1", 2_000_000, 1, -2_000_000, -2_000_000),
        ("message", "basic@1", 3, 3, 285_300, 290_000),
    ]
    assert (first["kind"], first["corrects"], first["event_ids"], first["late"]) == ("invoice", None, [], False)
    assert found["period_start"].cast(pa.int64()).to_pylist() == [JANUARY.start_us] * 3 + [JAN]
    assert found["period_end"].cast(pa.int64()).to_pylist() == [JAN] * 3 + [FEB]


def test_two_periods_that_end_at_one_moment_make_one_invoice_with_the_longer_one_s_name() -> None:
    rows: list[Row] = [("emma", JAN, "call", "daily@1", 1, 1), ("emma", JAN, "message", "basic@1", 1, 1)]
    (found,) = invoices(closed(rows), PLANS, 7).to_pylist()
    assert (found["period"], len(found["lines"])) == ("2026-01", 2)
    (found,) = invoices(closed(rows[:1]), PLANS, 7).to_pylist()
    assert found["period"] == "2026-01-31"


def test_no_rows_are_no_invoices() -> None:
    assert invoices(closed([]), PLANS, 7).equals(DRAFT.empty_table())
    assert numbered(DRAFT.empty_table(), "I", 7).equals(DOCUMENTS.schema.empty_table())


cells = st.dictionaries(
    st.tuples(
        st.sampled_from(["emma", "noah", "Zoë", "Å", "z"]),
        st.sampled_from([JAN, FEB]),
        st.sampled_from(["call", "message", "credit"]),
        st.sampled_from(["basic@1", "gold@2", "daily@1"]),
    ),
    st.tuples(st.integers(0, 10**9), st.integers(1, 10**6)),
    min_size=1,
    max_size=20,
)


@settings(max_examples=examples(50, 250))
@given(cells)
def test_invoices_have_every_row_once_and_are_the_same_whatever_the_rows_order(
    cells: dict[tuple[str, int, str, str], tuple[int, int]],
) -> None:
    rows = [(*key, *value) for key, value in cells.items()]
    found = invoices(closed(rows), PLANS, 7)
    assert invoices(closed(rows[::-1]), PLANS, 7).equals(found)
    lines = []
    for document in found.to_pylist():
        for line in document["lines"]:
            plan = PLANS.plans[line["plan"]]
            assert plan.currency == document["currency"]
            assert line["amount_micros"] == plan.prices[line["type"]].value(line["quantity"])
            assert line["charged_micros"] == round_micros(line["amount_micros"], plan.currency, plan.rounding)
            end = int(document["period_end"].timestamp()) * 1_000_000
            lines.append((document["customer"], end, line["type"], line["plan"], line["quantity"], line["events"]))
        for name in ("amount_micros", "events"):
            assert document[name] == sum(line[name] for line in document["lines"])
        assert document["charged_micros"] == round_micros(document["amount_micros"], document["currency"], "half-even")
        charged = sum(line["charged_micros"] for line in document["lines"])
        assert charged + document["rounding_micros"] == document["charged_micros"]
    assert sorted(lines) == sorted(rows)
    accounts = [tuple(account.values()) for account in found.select(ACCOUNT).to_pylist()]
    assert accounts == sorted(set(accounts))


def test_a_total_is_the_exact_sum_rounded_once_and_rounding_is_a_line_of_its_own() -> None:
    """Three lines of 33.333333, 33.333333 and 33.333334: each charges 33.33, all of them 100.00 and not 99.99."""
    third = {"call": Tiers((Tier(0, 33_333_333, 1),)), "message": Tiers((Tier(0, 33_333_334, 1),)), "credit": CREDIT}
    plans = amounts(version(prices=third), version(number=2, prices=third))
    cells = [("call", "basic@1"), ("call", "basic@2"), ("message", "basic@1")]
    (found,) = invoices(closed([("emma", JAN, *cell, 1, 1) for cell in cells]), plans, 7).to_pylist()
    assert [line["charged_micros"] for line in found["lines"]] == [33_330_000] * 3
    assert (found["amount_micros"], found["charged_micros"]) == (100_000_000, 100_000_000)
    assert found["rounding_micros"] == 10_000


@pytest.mark.parametrize(
    ("one", "other", "total"), [("up", "up", 10_000), ("down", "down", 0), ("up", "down", 0), ("half-up", "up", 0)]
)
def test_a_total_is_rounded_by_the_rule_of_its_plans_or_to_the_nearest_where_they_have_several(
    one: Rounding, other: Rounding, total: int
) -> None:
    """Two lines of 0.0025 are 0.005, which is half a cent."""
    prices = {"message": Tiers((Tier(0, 2_500, 1),)), "credit": CREDIT}
    plans = amounts(version(prices=prices, rounding=one), version(number=2, prices=prices, rounding=other))
    rows: list[Row] = [("emma", JAN, "message", plan, 1, 1) for plan in ("basic@1", "basic@2")]
    (found,) = invoices(closed(rows), plans, 7).to_pylist()
    assert found["charged_micros"] == total
    assert sum(line["charged_micros"] for line in found["lines"]) + found["rounding_micros"] == total


@given(
    st.lists(st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(-30_000, 30_000)), max_size=20),
    st.sampled_from(["EUR", "JPY", "KWD"]),
    st.sampled_from(get_args(Rounding)),
)
def test_many_amounts_are_rounded_as_one_is(micros: list[int], currency: str, rule: Rounding) -> None:
    try:
        expected = [round_micros(amount, currency, rule) for amount in micros]
    except MoneyOverflow:
        with pytest.raises(MoneyOverflow):
            round_all(np.array(micros, np.int64), currency, rule)
        return
    assert round_all(np.array(micros, np.int64), currency, rule).tolist() == expected


def test_sums_beyond_64_bits_are_errors() -> None:
    prices = {"message": Tiers((Tier(0, 10**10, 1),)), "credit": CREDIT}
    dear = amounts(version(prices=prices), version(number=2, prices=prices))
    with pytest.raises(ValueOverflow):
        invoices(closed([("emma", JAN, "message", "basic@1", 10**9, 1)]), dear, 7)
    lines: list[Row] = [("emma", JAN, "message", plan, 6 * 10**8, 1) for plan in ("basic@1", "basic@2")]
    with pytest.raises(MoneyOverflow):
        invoices(closed(lines), dear, 7)
