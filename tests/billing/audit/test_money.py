"""The auditor's arithmetic: prices by tiers and rounding, worked out by hand, and against plain fractions."""

from decimal import ROUND_DOWN, ROUND_HALF_EVEN, ROUND_HALF_UP, ROUND_UP, Decimal
from typing import Any

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateside.billing.audit.money_macros import MINOR_MICROS, TIERS_TYPE, shown

RULES = {"half-even": ROUND_HALF_EVEN, "half-up": ROUND_HALF_UP, "down": ROUND_DOWN, "up": ROUND_UP}


def price(sql: duckdb.DuckDBPyConnection, quantity: int, *tiers: tuple[int, int | None, int, int]) -> Any:
    named = [dict(zip(("above", "below", "micros", "per"), tier, strict=True)) for tier in tiers]
    return sql.execute(f"select price(?::hugeint, ?::{TIERS_TYPE})", [quantity, named]).fetchall()[0][0]


def test_prices_are_worked_out_step_by_step(sql: duckdb.DuckDBPyConnection) -> None:
    minutes = [(0, 6_000, 0, 1), (6_000, None, 90_000, 60)]  # 100 minutes are free, then 0.09 a minute
    found = [price(sql, seconds, *minutes) for seconds in (0, 6_000, 6_001, 6_059, 6_060, 7_261)]
    assert found == [0, 0, 1_500, 88_500, 90_000, 1_891_500]
    tiers = [(0, 100, 100_000, 1), (100, 1_000, 50_000, 1), (1_000, None, 10_000, 1)]
    assert [price(sql, messages, *tiers) for messages in (100, 101, 1_000, 1_001)] == [
        10_000_000,
        10_050_000,
        55_000_000,
        55_010_000,
    ]
    assert price(sql, 3, (0, 2, 1, 3), (2, None, 2, 3)) == 0, "each part is rounded down by itself"
    assert price(sql, 5, (0, None, -1, 2)) == -3, "down is down, below zero too"
    assert price(sql, 15_000, (0, None, -1, 1)) == -15_000


@given(
    st.integers(0, 2**63 - 1),
    st.lists(st.integers(1, 10**13), max_size=4, unique=True),
    st.lists(st.tuples(st.integers(-(10**12), 10**12), st.integers(1, 10**12)), min_size=5, max_size=5),
)
def test_prices_are_what_whole_numbers_of_any_size_say(
    sql: duckdb.DuckDBPyConnection, quantity: int, edges: list[int], rates: list[tuple[int, int]]
) -> None:
    aboves = [0, *sorted(edges)]
    ends = [*aboves[1:], None]
    tiers = [(above, end, *rate) for above, end, rate in zip(aboves, ends, rates[: len(aboves)], strict=True)]
    parts = [max(0, min(quantity, quantity if end is None else end) - above) for above, end, _, _ in tiers]
    expected = sum(part * micros // per for part, (_, _, micros, per) in zip(parts, tiers, strict=True))
    assert price(sql, quantity, *tiers) == expected


@given(st.integers(-(10**20), 10**20) | st.integers(-30_000, 30_000), st.sampled_from(["JPY", "EUR", "KWD"]))
def test_rounding_is_that_of_decimals(sql: duckdb.DuckDBPyConnection, amount: int, currency: str) -> None:
    minor = MINOR_MICROS[currency]
    for rule, mode in RULES.items():
        found = sql.execute("select rounded(?::hugeint, ?::bigint, ?)", [amount, minor, rule]).fetchall()[0][0]
        assert found == int((Decimal(amount) / minor).quantize(Decimal(1), mode)) * minor, rule


@pytest.mark.parametrize(
    ("rule", "rounded"),
    [
        ("half-even", [0, 20_000, 20_000, -20_000]),
        ("half-up", [10_000, 20_000, 30_000, -20_000]),
        ("down", [0, 10_000, 20_000, -10_000]),
        ("up", [10_000, 20_000, 30_000, -20_000]),
    ],
)
def test_halves_go_where_the_rule_says(sql: duckdb.DuckDBPyConnection, rule: str, rounded: list[int]) -> None:
    found = [
        sql.execute("select rounded(?::hugeint, 10000::bigint, ?)", [amount, rule]).fetchall()[0][0]
        for amount in (5_000, 15_000, 25_000, -15_000)
    ]
    assert found == rounded


def test_amounts_are_shown_with_all_that_they_have() -> None:
    assert [shown(*each) for each in ((1_800_000, "EUR"), (-1, "EUR"), (2_000_000, "JPY"), (1_500_001, "JPY"))] == [
        "1.80 EUR",
        "-0.000001 EUR",
        "2 JPY",
        "1.500001 JPY",
    ]
