"""Tallies: whatever comes and goes, what is left says what the rows that are left say together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateside.core.errors import ValueOverflow
from stateside.views.aggregates import aggregate_of, in_rollups
from stateside.views.catalogue import StateColumn, ViewColumn

LONG_MAX = 2**63 - 1
longs = st.integers(-(2**63), LONG_MAX)
cents = st.integers(-(10**37), 10**37).map(lambda number: Decimal(number).scaleb(-2, Context(prec=50)))


def column(name: str, type_: str, *buffers: str, lenient: bool = False) -> ViewColumn:
    stored = tuple(StateColumn(index, "buffer", each) for index, each in enumerate(buffers))
    return ViewColumn("total", type_, name, stored, "…", lenient)


COUNT = column("count", "long", "long")
SUM = column("sum", "long", "long")
UNSCALED_SUM = column("unscaled_sum", "decimal(18,2)", "long", lenient=True)
TRY_SUM = column("try_sum", "long", "long", "boolean", lenient=True)
DECIMAL_SUM = column("decimal_sum", "decimal(38,2)", "decimal(38,2)", "boolean", lenient=True)
DOUBLE_SUM = column("sum", "double", "double")
AVERAGE = column("average", "double", "double", "long")
UNSCALED_AVERAGE = column("unscaled_average", "decimal(11,6)", "double", "long")
DECIMAL_AVERAGE = column("decimal_average", "decimal(38,6)", "decimal(38,2)", "long", lenient=True)


def left(of: ViewColumn, stay: Sequence[Sequence[Any]], go: Sequence[Sequence[Any]]) -> Any:
    """The value after all rows came and some went again."""
    each = aggregate_of(of)
    numbers = [0] * each.tally_size
    for sign, rows in ((1, [*go, *stay]), (-1, go)):
        for row in rows:
            added = each.partial(row)
            assert len(added) == each.tally_size
            numbers = [a + sign * b for a, b in zip(numbers, added, strict=True)]
    return each.total(numbers)


def rows(*values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[tuple[Any, ...]]]:
    return st.lists(st.tuples(*values), max_size=8)


@given(rows(st.integers(0, 10**15)), rows(st.integers(0, 10**15)))
def test_a_count_is_that_of_the_rows_that_are_left(stay: Any, go: Any) -> None:
    assert left(COUNT, stay, go) == sum(count for (count,) in stay)


@pytest.mark.parametrize("of", [SUM, TRY_SUM], ids=["sum", "try_sum"])
@given(rows(st.none() | longs), rows(st.none() | longs))
def test_a_sum_is_exact_or_null_or_an_error_and_never_wrong(of: ViewColumn, stay: Any, go: Any) -> None:
    there = [value for (value,) in stay if value is not None]
    kept, gone = ([(v or 0, v is None) for (v,) in each] if of is TRY_SUM else each for each in (stay, go))
    if not -(2**63) <= sum(there) <= LONG_MAX and of is SUM:
        with pytest.raises(ValueOverflow, match="'total' of all rows together is too large for long"):
            left(of, kept, gone)
        return
    fits = bool(there) and -(2**63) <= sum(there) <= LONG_MAX
    assert left(of, kept, gone) == (sum(there) if fits else None)


@given(rows(st.none() | cents), rows(st.none() | cents))
def test_sums_and_averages_of_decimals_are_exact(stay: Any, go: Any) -> None:
    there = [value for (value,) in stay if value is not None]
    exact = sum(map(Fraction, there), Fraction(0))
    kept, gone = ([(v or Decimal("0.00"), v is None) for (v,) in each] for each in (stay, go))
    found = left(DECIMAL_SUM, kept, gone)
    assert (None if found is None else Fraction(found)) == (exact if there and abs(exact) < 10**36 else None)
    kept_counted, gone_counted = ([(v, int(not empty)) for v, empty in each] for each in (kept, gone))
    mean = left(DECIMAL_AVERAGE, kept_counted, gone_counted)
    if there and abs(exact) < 10**36 and abs(exact / len(there)) < 10**31:
        assert abs(Fraction(mean) - exact / len(there)) <= Fraction(1, 2 * 10**6)
    elif not there:
        assert mean is None


@given(rows(st.none() | st.integers(-(10**17), 10**17)), rows(st.none() | longs))
def test_a_sum_of_small_decimals_has_its_point(stay: Any, go: Any) -> None:
    there = [value for (value,) in stay if value is not None]
    fits = bool(there) and abs(sum(there)) < 10**18
    assert left(UNSCALED_SUM, stay, go) == (Decimal(sum(there)).scaleb(-2) if fits else None)


@given(rows(st.none() | st.floats()), rows(st.none() | st.floats()))
def test_a_sum_of_doubles_is_rounded_once_in_whatever_order_rows_came_and_went(stay: Any, go: Any) -> None:
    there = [value for (value,) in stay if value is not None]
    found = left(DOUBLE_SUM, stay, go)
    special = [value for value in there if not math.isfinite(value)]
    if not there:
        assert found is None
    elif special:
        assert repr(found) == repr(sum(special)).replace("-nan", "nan")
    else:
        assert found == nearest(sum(map(Fraction, there), Fraction(0)))


@given(rows(st.floats(-1e9, 1e9), st.integers(1, 1000)), rows(st.floats(), st.integers(0, 9)))
def test_an_average_is_that_of_all_rows_together(stay: Any, go: Any) -> None:
    found = left(AVERAGE, stay, go)
    count = sum(count for _, count in stay)
    total = nearest(sum((Fraction(total) for total, _ in stay), Fraction(0)))
    assert found == (total / count if stay else None)
    if stay:
        assert left(UNSCALED_AVERAGE, stay, go) == aggregate_of(UNSCALED_AVERAGE).finish([total, count])


def test_what_was_too_large_is_so_no_longer_once_the_row_that_made_it_so_is_gone() -> None:
    few, overflown = (Decimal("1.00"), False), (None, False)
    assert left(DECIMAL_SUM, [few, overflown], []) is None
    assert left(DECIMAL_SUM, [few], [overflown]) == Decimal("1.00")
    assert left(TRY_SUM, [(1, False)], [(None, False)]) == 1
    assert left(DECIMAL_AVERAGE, [(Decimal("3.00"), 2)], [(None, 1)]) == Decimal("1.5")
    strict = column("decimal_sum", "decimal(38,2)", "decimal(38,2)", "boolean")
    with pytest.raises(ValueOverflow, match="'total' has grown too large"):
        left(strict, [few, overflown], [])


def test_a_sum_of_doubles_beyond_the_largest_one_is_infinite() -> None:
    assert left(DOUBLE_SUM, [(1.7e308,), (1.7e308,)], []) == math.inf
    assert left(DOUBLE_SUM, [(1.7e308,), (1.7e308,), (-1.7e308,)], []) == 1.7e308


def test_columns_that_cannot_be_taken_away_again_have_no_tally() -> None:
    others = [column(name, "long", "long") for name in ("min", "max", "bit_or", "first", "last", "max_by", "value")]
    assert [each.column for each in in_rollups([*others, COUNT])] == [COUNT]


def nearest(exact: Fraction) -> float:
    try:
        return exact.numerator / exact.denominator
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


small = st.integers(-(10**9), 10**9)
FINISHED: dict[str, tuple[ViewColumn, st.SearchStrategy[Any]]] = {
    "count": (COUNT, st.tuples(st.integers(0, 10**9))),
    "sum": (SUM, st.tuples(st.none() | small)),
    "sum of doubles": (DOUBLE_SUM, st.tuples(st.none() | st.floats(allow_nan=False, allow_infinity=False))),
    "try_sum": (
        column("try_sum", "long", "long", "boolean"),
        st.one_of(st.tuples(small, st.just(False)), st.just((0, True))),
    ),
    "unscaled_sum": (column("unscaled_sum", "decimal(18,2)", "long"), st.tuples(st.none() | small)),
    "decimal_sum": (
        column("decimal_sum", "decimal(38,2)", "decimal(38,2)", "boolean"),
        st.one_of(st.tuples(cents, st.just(False)), st.just((Decimal(0), True))),
    ),
    "min": (column("min", "string", "string"), st.tuples(st.none() | st.text(max_size=2))),
    "max": (column("max", "double", "double"), st.tuples(st.none() | st.floats(allow_nan=False))),
    "bit_xor": (column("bit_xor", "long", "long"), st.tuples(st.none() | longs)),
}


@pytest.mark.parametrize("name", FINISHED)
@given(st.data())
def test_rows_of_which_only_the_values_are_left_say_the_same_together(name: str, data: st.DataObject) -> None:
    of, row = FINISHED[name]
    each = aggregate_of(of)
    assert each.apart_finished is None
    one, other = data.draw(row), data.draw(row)
    finished = [each.partial_of(each.finish(buffers)) for buffers in (one, other)]
    stored = [each.partial(buffers) for buffers in (one, other)]
    assert each.total(each.merge(*finished)) == each.total(each.merge(*stored))
    assert each.total(each.merge(finished[0], stored[1])) == each.total(each.merge(*stored)), "sealed and live"


def test_an_average_is_not_added_up_from_averages_and_a_null_that_may_be_an_overflow_is_no_nothing() -> None:
    for of in (AVERAGE, UNSCALED_AVERAGE, DECIMAL_AVERAGE, column("max_by", "string", "string", "long")):
        assert aggregate_of(of).apart_finished
    with pytest.raises(ValueOverflow, match="it had no values, or became too large"):
        aggregate_of(TRY_SUM).partial_of(None)
