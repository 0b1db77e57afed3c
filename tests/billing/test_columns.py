"""Rows by what their columns say."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateside.billing.invoicing import amounts
from stateside.billing.invoicing.amounts import groups, longs, ranks
from stateside.core.errors import ValueOverflow

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=3)
rows = st.lists(st.tuples(texts, st.integers(-3, 3), texts), max_size=20)


def table(rows: list[tuple[str, int, str]]) -> pa.Table:
    types = {"a": pa.string(), "b": pa.int64(), "c": pa.string()}
    return pa.Table.from_pylist([dict(zip(types, row, strict=True)) for row in rows], pa.schema(types))


@pytest.mark.parametrize("ranks_max", [1, amounts.RANKS_MAX])
@given(rows=rows)
def test_ranks_sort_as_the_columns_do(ranks_max: int, rows: list[tuple[str, int, str]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(amounts, "RANKS_MAX", ranks_max)
        found = ranks(table(rows), "a", "b", "c").tolist()
    keys = [(a.encode(), b, c.encode()) for a, b, c in rows]
    for one, rank in zip(keys, found, strict=True):
        assert rank >= 0
        assert [one < other for other in keys] == [rank < other for other in found]


@given(rows)
def test_groups_have_each_row_once(rows: list[tuple[str, int, str]]) -> None:
    found = {values: numbers.tolist() for values, numbers in groups(table(rows), "a", "b")}
    assert found == {
        values: [number for number, row in enumerate(rows) if row[:2] == values] for values in {row[:2] for row in rows}
    }


def test_a_number_beyond_64_bits_is_told() -> None:
    assert longs(pa.chunked_array([pa.array([2**63 - 1])])).tolist() == [2**63 - 1]
    with pytest.raises(ValueOverflow, match="larger than any"):
        longs(pa.chunked_array([pa.array([2**63], pa.decimal128(38, 0))]))
    assert longs(pa.chunked_array([pa.array([5], pa.timestamp("us", tz="UTC"))])).dtype == np.int64
