"""Tiers by hand and by their laws."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateside.billing.plans.tiers import Tier, Tiers
from stateside.core.errors import ValueOverflow

LONG_MAX = 2**63 - 1
ALLOWANCE = Tiers((Tier(0, 0, 1), Tier(6_000, 90_000, 60)))  # 100 minutes free, then 0.09 a minute
TIERS = Tiers((Tier(0, 100_000, 1), Tier(100, 50_000, 1), Tier(1_000, 10_000, 1)))
CREDIT = Tiers((Tier(0, -1, 1),))


@st.composite
def random_tiers(draw: st.DrawFn, micros_min: int = -(10**9)) -> Tiers:
    rising = draw(st.lists(st.integers(1, 10**9), unique=True, max_size=4))
    priced = st.tuples(st.integers(micros_min, 10**9), st.integers(1, 10**9))
    return Tiers(tuple(Tier(above, *draw(priced)) for above in [0, *sorted(rising)]))


quantities = st.one_of(st.integers(0, 10**4), st.integers(0, 10**12))


@pytest.mark.parametrize(
    ("tiers", "quantity", "micros"),
    [
        (ALLOWANCE, 0, 0),
        (ALLOWANCE, 6_000, 0),
        (ALLOWANCE, 6_001, 1_500),
        (ALLOWANCE, 6_060, 90_000),
        (ALLOWANCE, 6_061, 91_500),
        (TIERS, 100, 10_000_000),
        (TIERS, 101, 10_050_000),
        (TIERS, 1_500, 10_000_000 + 900 * 50_000 + 500 * 10_000),
        (Tiers((Tier(0, 1, 3),)), 2, 0),
        (Tiers((Tier(0, 1, 3), Tier(4, 1, 3))), 8, 2),  # 4/3 and 4/3, each rounded down
        (CREDIT, 2_500_000, -2_500_000),
        (TIERS, -5, 0),
    ],
)
def test_values_by_hand(tiers: Tiers, quantity: int, micros: int) -> None:
    assert tiers.value(quantity) == micros


@given(random_tiers(micros_min=0), quantities, quantities)
def test_more_never_costs_less_where_no_price_is_negative(tiers: Tiers, one: int, other: int) -> None:
    low, high = sorted((one, other))
    assert 0 <= tiers.value(low) <= tiers.value(high)


@given(random_tiers(), quantities)
def test_the_value_is_that_of_the_parts_each_rounded_down(tiers: Tiers, quantity: int) -> None:
    edges = [tier.above for tier in tiers.tiers[1:]] + [max(quantity, 10**13)]
    parts = [max(0, min(quantity, edge) - tier.above) for tier, edge in zip(tiers.tiers, edges, strict=True)]
    assert sum(parts) == quantity
    single = [Tiers((Tier(0, tier.micros, tier.per),)) for tier in tiers.tiers]
    assert tiers.value(quantity) == sum(one.value(part) for one, part in zip(single, parts, strict=True))


@given(random_tiers(), st.lists(st.one_of(quantities, st.integers(-10, 10), st.integers(0, LONG_MAX)), max_size=5))
def test_many_at_once_have_the_values_that_each_has(tiers: Tiers, many: list[int]) -> None:
    try:
        expected = [tiers.value(quantity) for quantity in many]
    except ValueOverflow:
        with pytest.raises(ValueOverflow):
            tiers.values(np.array(many, np.int64))
    else:
        assert tiers.values(np.array(many, np.int64)).tolist() == expected


@given(random_tiers())
def test_tiers_come_back_from_json_as_they_were(tiers: Tiers) -> None:
    assert Tiers.parse(json.loads(json.dumps(tiers.as_json()))) == tiers


def test_the_largest_value_is_told_and_a_larger_one_is_an_error() -> None:
    one = Tiers((Tier(0, 1, 1),))
    assert one.value(LONG_MAX) == LONG_MAX
    assert CREDIT.value(LONG_MAX) == -LONG_MAX
    dear = Tiers((Tier(0, 2, 1),))
    with pytest.raises(ValueOverflow, match="more than can be stored"):
        dear.value(LONG_MAX)
    with pytest.raises(ValueOverflow, match="more than can be stored"):
        dear.values(np.array([1, LONG_MAX]))


def test_a_product_beyond_64_bits_is_right_if_the_value_is_not() -> None:
    tiers = Tiers((Tier(0, 10**12, 10**12),))
    assert tiers.values(np.array([10**15, 7])).tolist() == [10**15, 7]


@pytest.mark.parametrize(
    "content",
    [[], [[1, 1, 1]], [[0, 1, 0]], [[0, 1, 1], [0, 2, 1]], [[0, 1, 1], [5, 1, 1], [4, 1, 1]], [[0, 1]], [[0, 1.5, 1]],
     [[0, True, 1]], [[0, 2**63, 1]], [["0", 1, 1]], None, 5, [5]],
)  # fmt: skip
def test_what_are_no_tiers_is_refused(content: Any) -> None:
    with pytest.raises(ValueError, match=r"tier|whole number"):
        Tiers.parse(content)
