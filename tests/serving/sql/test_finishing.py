"""Columns of many rows: the same values as one by one, or the same error."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateside.billing.plans.tiers import Tier, Tiers
from stateside.core.errors import CheckpointInvalid, ValueOverflow
from stateside.serving.rows.columns import shown
from stateside.spark_state.arrow_rows import arrow_type
from stateside.spark_state.types import parse_type
from stateside.views.aggregates import Aggregate, aggregate_of
from stateside.views.catalogue import Catalogue, Computed, KeyColumn, StateColumn, ViewColumn
from stateside.views.functions import ColumnFunction, ComputedColumns, KnownFunctions, extend_functions
from tests.rows import VALUES, decimals

LONGS, DOUBLES = VALUES["long"], st.floats(allow_nan=False)
SUMS: dict[str, tuple[str, dict[str, st.SearchStrategy[Any]]]] = {
    "count": ("long", {"long": LONGS}),
    "sum": ("long", {"long": st.none() | LONGS}),
    "max": ("string", {"string": st.none() | st.text()}),
    "try_sum": ("long", {"long": st.none() | LONGS, "boolean": st.booleans()}),
    "decimal_sum": ("decimal(28,2)", {"decimal(28,2)": st.none() | decimals(28, 2), "boolean": st.booleans()}),
    "unscaled_sum": ("decimal(16,2)", {"long": st.none() | st.integers(-(10**17), 10**17)}),
    "average": ("double", {"double": DOUBLES, "long": st.integers(0, 5)}),
    "decimal_average": ("decimal(22,8)", {"decimal(28,4)": st.none() | decimals(20, 4), "long": st.integers(0, 5)}),
    "unscaled_average": ("decimal(9,6)", {"double": st.integers(-9_999, 9_999).map(float), "long": st.integers(0, 5)}),
}


@given(st.sampled_from(sorted(SUMS)), st.booleans(), st.data())
def test_many_rows_are_finished_as_each_of_them_is(name: str, lenient: bool, data: st.DataObject) -> None:
    type_, buffers = SUMS[name]
    stored = tuple(StateColumn(index, "buffer", each) for index, each in enumerate(buffers))
    each = aggregate_of(ViewColumn("total", type_, name, stored, "…", lenient))
    rows = data.draw(st.lists(st.tuples(*buffers.values()), min_size=1, max_size=6))
    columns = [
        pa.array(values, arrow_type(parse_type(one)))
        for one, values in zip(buffers, zip(*rows, strict=True), strict=True)
    ]
    expected = _or_error(each, rows)
    if expected is None:
        with pytest.raises(ValueOverflow):
            each.finish_arrays(columns)
    else:
        assert each.finish_arrays(columns).to_pylist() == expected


def _or_error(each: Aggregate, rows: list[tuple[Any, ...]]) -> list[Any] | None:
    try:
        return [each.finish(row) for row in rows]
    except ValueOverflow:
        return None


def test_intervals_of_months_are_intervals() -> None:
    column = shown(parse_type("interval year to month"), pa.array([14, None, -1], pa.int32()))
    assert column.to_pylist() == [pa.MonthDayNano([14, 0, 0]), None, pa.MonthDayNano([-1, 0, 0])]


TEXT = [StateColumn(at, name, "string") for at, name in enumerate(("plan", "kind"))]
VIEW = Catalogue(
    "app",
    "bill",
    0,
    tuple(KeyColumn(each.name, "string", each, each.name) for each in TEXT),
    tuple(
        ViewColumn(name, "long", "sum", (StateColumn(at, name, "long"),), "…")
        for at, name in enumerate(("quantity", "more"))
    ),
    computed=(Computed("price", "quantity", ("kind", "plan")), Computed("other", "more", ("kind", "plan"))),
)
TABLE: dict[tuple[str, ...], ColumnFunction] = {
    ("call", "basic"): Tiers((Tier(0, 5, 1),)),
    ("call", "large"): Tiers((Tier(0, 0, 1), Tier(10, -3, 2))),
    ("data", "basic"): Tiers((Tier(0, 2**62, 1),)),
}


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["basic", "large", None]),
            st.sampled_from(["call", "data", None]),
            st.none() | st.integers(-5, 30),
            st.none() | st.integers(-5, 30),
        ),
        max_size=8,
    )
)
def test_many_rows_are_computed_as_each_of_them_is(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[Any, ...]]
) -> None:
    path = _table(tmp_path_factory)
    functions = KnownFunctions("bill", path)
    columns = [
        pa.array([row[at] for row in rows], type_)
        for at, type_ in enumerate((pa.string(), pa.string(), pa.int64(), pa.int64()))
    ]
    try:
        one_by_one = ComputedColumns(VIEW, functions)
        expected = [one_by_one.values(row[:2], row[2:]) for row in rows]
    except (CheckpointInvalid, ValueOverflow):
        with pytest.raises((CheckpointInvalid, ValueOverflow)):
            ComputedColumns(VIEW, functions).arrays(columns[:2], columns[2:])
        return
    found = [array.to_pylist() for array in ComputedColumns(VIEW, functions).arrays(columns[:2], columns[2:])]
    assert [list(row) for row in zip(*found, strict=True)] == expected


def _table(factory: pytest.TempPathFactory) -> Path:
    path = factory.getbasetemp() / "steps.json"
    extend_functions(path, TABLE)
    return path


def test_a_decimal_keeps_its_digits() -> None:
    each = aggregate_of(ViewColumn("total", "decimal(18,2)", "unscaled_sum", (StateColumn(0, "sum", "long"),), "…"))
    assert each.finish_arrays([pa.array([-12_345, None, 0])]).to_pylist() == [Decimal("-123.45"), None, Decimal("0.00")]
