"""Filters and orders, compared with what plain Python makes of the same values."""

from __future__ import annotations

import math
import operator
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from stateside.core.errors import RequestInvalid
from stateside.serving.rows.columns import ColumnSet
from stateside.serving.rows.row_query import CONDITIONS_MAX, Comparison, Filter, Order
from stateside.serving.rows.values import renderer
from stateside.spark_state.types import parse_type
from tests.rows import VALUES, WINDOW, array_of, map_of

PLAIN = ["boolean", "byte", "integer", "long", "double", "string", "binary", "decimal(9,2)", "decimal(38,10)"]
SIGNS = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def columns(*types: str) -> ColumnSet:
    return ColumnSet([(f"c{place}", parse_type(type_)) for place, type_ in enumerate(types)])


def in_order(value: Any) -> Any:
    """NaN is greater than all other numbers, and equal to itself."""
    return (math.isnan(value), 0.0 if math.isnan(value) else value) if isinstance(value, float) else value


def written(type_: str, value: Any) -> str:
    """A value as a reader writes it in a filter."""
    if type_ == "boolean":
        return "true" if value else "false"
    return str(renderer(parse_type(type_))(value))


@given(st.data(), st.sampled_from(PLAIN), st.sampled_from(list(SIGNS)))
def test_a_condition_compares_as_python_does(data: st.DataObject, type_: str, sign: str) -> None:
    wanted = data.draw(VALUES[type_])
    values = data.draw(st.lists(st.none() | VALUES[type_] | st.just(wanted), min_size=1, max_size=8))
    text = written(type_, wanted)
    assume(not (sign in "<>" and text.startswith("=")))  # which reads as <= or >=
    condition = Comparison.parse(columns(type_), f"c0{sign}{text}")
    expected = [value is not None and SIGNS[sign](in_order(value), in_order(wanted)) for value in values]
    assert [condition.meets((value,)) for value in values] == expected


@given(st.data(), st.sampled_from(PLAIN), st.booleans(), st.integers(1, 5))
def test_the_first_rows_are_those_of_a_stable_sort(
    data: st.DataObject, type_: str, descending: bool, count: int
) -> None:
    values = data.draw(st.lists(st.none() | VALUES[type_], max_size=12))
    rows = [(b"%02d" % number, (value,)) for number, value in enumerate(values)]
    order = Order.parse(columns(type_), "-c0" if descending else "c0")
    nulls = [row for row in rows if row[1][0] is None]
    others = sorted(
        (row for row in rows if row[1][0] is not None), key=lambda row: in_order(row[1][0]), reverse=descending
    )
    expected = others + nulls if descending else nulls + others
    assert order.first(rows, count) == expected[:count]
    for number, last in enumerate(expected):
        behind = [row for row in rows if order.is_behind(row, last)]
        assert order.first(behind, count) == expected[number + 1 : number + 1 + count]


def test_a_struct_s_fields_are_compared_by_their_names() -> None:
    named = ColumnSet([("window", parse_type(WINDOW))])
    early = Comparison.parse(named, "window.start<2026-01-31T00:00:00Z")
    assert early.meets(((0, 60),))
    assert not early.meets(((1_800_000_000_000_000, 60),))
    assert not early.meets((None,))


def test_null_meets_nothing_but_is_null() -> None:
    null = Comparison.parse(columns("long"), "c0 is null")
    there = Comparison.parse(columns("long"), "c0 is not null")
    assert (null.meets((None,)), null.meets((0,)), there.meets((None,)), there.meets((0,))) == (
        True,
        False,
        False,
        True,
    )


def test_the_longest_name_and_the_longest_operator_count() -> None:
    named = ColumnSet([(name, parse_type("string")) for name in ("a", "a=b", "a<", "b c")])
    parsed = [Comparison.parse(named, text) for text in ("a=b=c", "a=x", "a<=5", "b c!=", "a<5")]
    assert [(each.column.name, each.operator, each.value) for each in parsed] == [
        ("a=b", "=", "c"),
        ("a", "=", "x"),
        ("a<", "=", "5"),
        ("b c", "!=", ""),
        ("a", "<", "5"),
    ]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is no filter"),
        ("c9=1", "is no filter"),
        ("c0", "is no filter"),
        ("c0~1", "is no filter"),
        ("c0=", "'' is no long, which the column 'c0' is"),
        ("c0=1.5", "'1.5' is no long"),
        ("c1=yes", "'yes' is no boolean"),
        ("c2=[]", "is no filter"),
        ("c3=x", "is no filter"),
    ],
)
def test_what_is_no_filter_is_refused_with_the_columns_that_there_are(text: str, sentence: str) -> None:
    with pytest.raises(RequestInvalid, match="is no") as refused:
        Filter.parse(columns("long", "boolean", array_of("long"), map_of("string", "long")), [text])
    assert sentence in str(refused.value)


@pytest.mark.parametrize("text", ["c0 =1", "c0 = 1", "c0   =  1"])
def test_blanks_around_an_operator_are_named_as_the_fault(text: str) -> None:
    with pytest.raises(RequestInvalid, match=r"has blanks around its operator\. Write 'c0=1'"):
        Filter.parse(columns("long"), [text])


def test_too_many_filters_are_refused() -> None:
    with pytest.raises(RequestInvalid, match="17 filters, more than 16"):
        Filter.parse(columns("long"), ["c0=1"] * (CONDITIONS_MAX + 1))


def test_what_cannot_be_compared_cannot_be_ordered_by() -> None:
    for text in ("c0", "-c0", "", "-", "nothing"):
        with pytest.raises(RequestInvalid, match="that can be compared"):
            Order.parse(columns(array_of("long")), text)
