"""Rows to Arrow: every value of every type is the one that the decoder of single rows gives."""

import math
import struct
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateside.core.errors import CheckpointInvalid
from stateside.spark_state.arrow_rows import RowsToArrow
from stateside.spark_state.slices import Slices
from stateside.spark_state.types import Array, Column, Map, Primitive, SparkType, Struct, parse_type
from stateside.spark_state.unsafe_row import RowDecoder
from tests.rows import VALUES, WINDOW, encode_row, values_of
from tests.sizes import examples

types_of_rows = st.lists(st.sampled_from(["string", WINDOW, *sorted(VALUES)]), max_size=5)
TIMES = {"timestamp", "timestamp_ntz", "date", "interval day to second"}


def columns_of(types: list[str]) -> list[Column]:
    return [Column(f"c{index}", type_) for index, type_ in enumerate(types)]


def plain(type_: SparkType, scalar: Any) -> Any:
    """What Arrow has, as the decoder of single rows gives it."""
    if not scalar.is_valid:
        return None
    match type_:
        case Struct(_, types):
            return tuple(plain(part, scalar[index]) for index, part in enumerate(types))
        case Array(element):
            return tuple(plain(element, each) for each in scalar.values)
        case Map(key, value):
            pairs = zip(scalar.values.field(0), scalar.values.field(1), strict=True)
            return tuple((plain(key, one), plain(value, other)) for one, other in pairs)
        case Primitive("interval"):
            months, days, nanos = scalar.as_py()
            return months, days, nanos // 1_000
        case Primitive(name) if name in TIMES:
            return scalar.value
    return scalar.as_py()


def same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and bool(one == other)


@settings(max_examples=examples(60, 400))
@given(types_of_rows, st.data())
def test_a_batch_has_the_values_of_its_rows(types: list[str], data: st.DataObject) -> None:
    rows = [encode_row(types, values) for values in data.draw(st.lists(values_of(types), max_size=6))]
    batch, decoder = RowsToArrow(columns_of(types)).batch(Slices.of(rows)), RowDecoder(columns_of(types))
    batch.validate(full=True)
    assert batch.num_rows == len(rows)
    found = [[plain(parse_type(type_), each) for each in column] for type_, column in zip(types, batch, strict=True)]
    for index, row in enumerate(rows):
        assert same(tuple(column[index] for column in found), decoder.decode(row))


def test_the_columns_have_the_types_that_are_drawn() -> None:
    types = [
        "long",
        "decimal(9,2)",
        "timestamp",
        "timestamp_ntz",
        "date",
        "interval year to month",
        "interval day to second",
    ]
    expected = [
        *(pa.int64(), pa.decimal128(9, 2), pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.date32()),
        *(pa.int32(), pa.duration("us")),
    ]
    assert RowsToArrow(columns_of([*types, WINDOW])).schema.types[:-1] == expected
    batch = RowsToArrow(columns_of(types)).batch([encode_row(types, (1, None, 2, 3, 4, 5, 6))])
    assert batch.column(6).to_pylist() == [timedelta(microseconds=6)]


def test_a_row_that_is_not_there_is_a_row_of_nulls() -> None:
    types = ["long", "string", WINDOW]
    batch = RowsToArrow(columns_of(types)).batch([None, encode_row(types, (1, "a", (2, None))), None])
    assert [column.null_count for column in batch] == [2, 2, 2]
    assert batch.column(1).to_pylist() == [None, "a", None]


def test_many_rows_wherever_they_lie_are_read_at_once() -> None:
    types = ["string", "long"]
    rows = [encode_row(types, (f"name {number}" * (number % 5), number)) for number in range(5_000)]
    picked = Slices.of(rows).part(np.arange(4_999, -1, -3))
    batch = RowsToArrow(columns_of(types)).batch(picked)
    assert batch.column(1).to_pylist() == list(range(4_999, -1, -3))
    assert batch.column(0).to_pylist() == [f"name {number}" * (number % 5) for number in range(4_999, -1, -3)]


@pytest.mark.parametrize(
    ("types", "row"),
    [
        (["long", "long"], bytes(16)),
        (["string"], struct.pack("<QII", 0, 9, 16) + bytes(8)),
        (["string"], struct.pack("<QII", 0, 1, 16) + b"\xff" + bytes(7)),
        ([WINDOW], struct.pack("<QII", 0, 8, 16) + bytes(8)),
    ],
    ids=["cut short", "behind the end", "no UTF-8", "a struct cut short"],
)
def test_rows_that_are_not_as_their_columns_say_are_refused(types: list[str], row: bytes) -> None:
    with pytest.raises(CheckpointInvalid, match="not as the schema says"):
        RowsToArrow(columns_of(types)).batch([row])


def test_a_type_that_is_not_known_is_refused_before_any_row() -> None:
    with pytest.raises(CheckpointInvalid, match="'total' has the type"):
        RowsToArrow([Column("total", "variant")])
