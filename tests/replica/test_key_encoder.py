"""Keys by the block: the same bytes as one by one, for every type and however odd the values are."""

import struct
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateside.replica import key_blocks
from stateside.replica.key_blocks import TEXT_BYTES_MAX, KeyEncoder
from stateside.replica.keys import KeyCodec, keyable
from stateside.spark_state.slices import Slices
from stateside.spark_state.types import Column, parse_type
from stateside.spark_state.unsafe_row import RowDecoder
from tests.rows import VALUES, WINDOW, encode_row, struct_of
from tests.sizes import examples

ODD_FLOATS = st.sampled_from(
    [0.0, -0.0, float("nan"), float("inf"), float("-inf"), struct.unpack("<d", b"\x01" * 8)[0]]
)
LONG_TEXTS = st.integers(TEXT_BYTES_MAX - 2, TEXT_BYTES_MAX + 2).map(lambda size: "x" * size)
MORE = {"float": ODD_FLOATS, "double": ODD_FLOATS, "string": LONG_TEXTS, "binary": LONG_TEXTS.map(str.encode)}
KEYABLE = sorted(type_ for type_ in VALUES if keyable(parse_type(type_)))
types_of_keys = st.lists(st.sampled_from(["string", "string", WINDOW, *KEYABLE]), min_size=1, max_size=4)
often = settings(max_examples=examples(60, 400))


@pytest.fixture(autouse=True, scope="module")
def few_at_once_too() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_blocks, "AT_ONCE_ROWS_MIN", 1)
        yield


def rows_of(types: list[str]) -> st.SearchStrategy[list[tuple[Any, ...]]]:
    values = [st.none() | VALUES[type_] | MORE.get(type_, st.none()) for type_ in types]
    return st.lists(st.tuples(*values), min_size=1, max_size=8)


def encoder(types: list[str], order: list[int]) -> KeyEncoder:
    columns = [Column(f"c{index}", type_) for index, type_ in enumerate(types)]
    return KeyEncoder(columns, order, KeyCodec([types[index] for index in order]))


def one_by_one(types: list[str], order: list[int], rows: list[bytes]) -> list[bytes]:
    decoder = RowDecoder([Column(f"c{index}", type_) for index, type_ in enumerate(types)])
    codec = KeyCodec([types[index] for index in order])
    decoded = [decoder.decode(row) for row in rows]
    return [codec.encode([row[index] for index in order]) for row in decoded]


@often
@given(types_of_keys, st.data())
def test_a_block_of_keys_is_encoded_as_its_keys_are(types: list[str], data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(types))))
    rows = [encode_row(types, values) for values in data.draw(rows_of(types))]
    assert encoder(types, order).encode(Slices.of(rows)).tolist() == one_by_one(types, order, rows)


@often
@given(types_of_keys, st.data())
def test_keys_in_two_parts_are_encoded_as_whole_ones(types: list[str], data: st.DataObject) -> None:
    types = [*types, "timestamp"]
    order, values = data.draw(st.permutations(range(len(types)))), data.draw(rows_of(types))
    parts = [(encode_row(types[:-1], row[:-1]), encode_row(types[-1:], row[-1:])) for row in values]
    both = Slices.of([part for pair in parts for part in pair])
    first, rest = both.part(np.arange(0, len(both), 2)), both.part(np.arange(1, len(both), 2))
    whole = [encode_row(types, row) for row in values]
    assert encoder(types, order).encode(first, rest).tolist() == one_by_one(types, order, whole)


def test_many_keys_are_encoded_as_one_is() -> None:
    types = ["string", struct_of(start="timestamp"), "decimal(9,2)"]
    values = [(f"c{n}" * (n % 7), (n * 1_000,) if n % 5 else None, Decimal(n).scaleb(-2)) for n in range(5_000)]
    rows = [encode_row(types, row) for row in values]
    assert encoder(types, [1, 0, 2]).encode(Slices.of(rows)).tolist() == one_by_one(types, [1, 0, 2], rows)


def test_more_columns_than_one_word_has_null_bits_for() -> None:
    types = ["long"] * 70
    rows = [encode_row(types, [None if n in gone else n for n in range(70)]) for gone in ({0}, {64}, {69}, set())]
    order = [69, 64, 0, 63]
    assert encoder(types, order).encode(Slices.of(rows)).tolist() == one_by_one(types, order, rows)


def test_no_keys_are_none() -> None:
    assert encoder(["long"], [0]).encode(Slices.of([])).tolist() == []


def test_a_row_that_is_too_short_is_refused_as_it_is_one_by_one() -> None:
    rows = [encode_row(["long", "string"], (1, "a")), b"\x00" * 15]
    with pytest.raises(struct.error):
        encoder(["long", "string"], [0, 1]).encode(Slices.of(rows))
