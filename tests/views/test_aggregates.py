"""Aggregates by themselves: what no real run reaches easily, and that combining buckets loses nothing."""

from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateside.core.errors import CheckpointInvalid, ValueOverflow
from stateside.views.aggregates import Aggregate, aggregate_of, in_order
from stateside.views.catalogue import StateColumn, ViewColumn

LONG_MAX = 2**63 - 1
WIDE = Context(prec=100, rounding=ROUND_HALF_UP)
longs = st.integers(-(10**12), 10**12)


def of(name: str, type_: str, *buffers: str, lenient: bool = False) -> Aggregate:
    stored = tuple(StateColumn(index, "buffer", each) for index, each in enumerate(buffers))
    return aggregate_of(ViewColumn("total", type_, name, stored, "…", lenient))


def decimals(digits: int, behind: int) -> st.SearchStrategy[Decimal]:
    largest = 10**digits - 1
    return st.integers(-largest, largest).map(lambda number: Decimal(number).scaleb(-behind, WIDE))


@given(decimals(28, 4), st.integers(1, 10**6))
def test_an_average_of_decimals_is_rounded_half_up_to_the_digits_of_its_type(total: Decimal, count: int) -> None:
    average = of("decimal_average", "decimal(22,8)", "decimal(28,4)", "long", lenient=True)
    exact = WIDE.quantize(WIDE.divide(total, Decimal(count)), Decimal("1e-8"))
    found = average.finish([total, count])
    assert found == (exact if exact.copy_abs() < 10**14 else None)


@given(st.lists(st.none() | longs, min_size=1))
def test_sums_of_buckets_are_sums_of_all(values: list[int | None]) -> None:
    there = [value for value in values if value is not None]
    assert folded(of("sum", "long", "long"), [[v] for v in values]) == (sum(there) if there else None)
    assert folded(of("try_sum", "long", "long", "boolean"), [[v or 0, v is None] for v in values]) == (
        sum(there) if there else None
    )
    assert folded(of("min", "long", "long"), [[v] for v in values]) == min(there, default=None)
    assert folded(of("max", "long", "long"), [[v] for v in values]) == max(there, default=None)


@given(st.lists(st.none() | decimals(30, 5), min_size=1))
def test_sums_and_averages_of_decimals_over_buckets_are_exact(values: list[Decimal | None]) -> None:
    there = [value for value in values if value is not None]
    total = sum((int(value.scaleb(5, WIDE)) for value in there), 0)
    zero = Decimal(0).scaleb(-5)
    sums = of("decimal_sum", "decimal(38,5)", "decimal(38,5)", "boolean")
    found = folded(sums, [[zero if v is None else v, v is None] for v in values])
    assert found == (Decimal(total).scaleb(-5, WIDE) if there else None)
    averages = of("decimal_average", "decimal(34,9)", "decimal(38,5)", "long")
    mean = folded(averages, [[zero if v is None else v, int(v is not None)] for v in values])
    exact = WIDE.divide(Decimal(total).scaleb(-5, WIDE), Decimal(len(there))) if there else None
    assert mean == (None if exact is None else exact.quantize(Decimal("1e-9"), context=WIDE))


@pytest.mark.parametrize("lenient", [True, False], ids=["null", "error"])
@pytest.mark.parametrize(
    ("column", "buffers"),
    [
        (("decimal_sum", "decimal(38,0)", "decimal(38,0)", "boolean"), [None, False]),
        (("decimal_average", "decimal(38,4)", "decimal(38,0)", "long"), [None, 3]),
        (("decimal_average", "decimal(38,4)", "decimal(38,0)", "long"), [Decimal(10**37), 1]),
        (("unscaled_sum", "decimal(18,2)", "long"), [10**18]),
    ],
    ids=["a sum", "an average of an overflown sum", "an average", "a small sum"],
)
def test_a_number_that_grew_too_large_is_null_or_an_error_as_spark_has_it(
    column: tuple[str, ...], buffers: list[Any], lenient: bool
) -> None:
    made = of(*column, lenient=lenient)
    if lenient:
        assert made.finish(buffers) is None
    else:
        with pytest.raises(ValueOverflow, match="'total' has grown too large"):
            made.finish(buffers)


def test_buckets_that_are_too_large_together_are_no_wrong_number() -> None:
    with pytest.raises(ValueOverflow, match="of all rows together is too large for long"):
        folded(of("sum", "long", "long"), [[LONG_MAX], [1]])
    assert folded(of("try_sum", "long", "long", "boolean", lenient=True), [[LONG_MAX, False], [1, False]]) is None
    most = [Decimal(10**38 - 1), False]
    sums = of("decimal_sum", "decimal(38,0)", "decimal(38,0)", "boolean", lenient=True)
    assert folded(sums, [most, most]) is None
    assert folded(sums, [most, most, [Decimal(-(10**38 - 1)), False]]) == most[0], "all together they fit"


def test_the_extreme_of_buckets_is_in_spark_s_order() -> None:
    nan = float("nan")
    assert folded(of("min", "double", "double"), [[nan], [float("inf")], [None]]) == float("inf")
    assert in_order(folded(of("max", "double", "double"), [[nan], [float("inf")], [None]])) == in_order(nan)
    assert sorted([(1, 0), (1,), (1, None), None], key=in_order) == [None, (1,), (1, None), (1, 0)]


def test_the_value_of_the_extreme_goes_with_it_and_rows_without_an_ordering_do_not_count() -> None:
    buckets: list[list[Any]] = [["late", 9], ["nothing", None], ["early", 1], [None, 5]]
    assert folded(of("max_by", "string", "string", "long"), buckets) == "late"
    assert folded(of("min_by", "string", "string", "long"), buckets) == "early"
    assert folded(of("max_by", "string", "string", "long"), [[None, None], [None, None]]) is None


def test_what_depends_on_the_order_of_arrival_says_so() -> None:
    for name in ("first", "last"):
        assert "order" in str(of(name, "string", "string", "boolean").apart)


def test_an_aggregate_of_a_newer_version_is_refused() -> None:
    with pytest.raises(CheckpointInvalid, match="by 'median', which is not known"):
        of("median", "long", "long")


def folded(each: Aggregate, buckets: list[list[Any]]) -> Any:
    combined, *others = map(each.partial, buckets)
    for other in others:
        combined = each.merge(combined, other)
    return each.total(combined)
