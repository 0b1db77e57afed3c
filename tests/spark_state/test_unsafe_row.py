"""UnsafeRow: decodes what an encoder made from the drawing wrote."""

import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateside.core.errors import CheckpointInvalid
from stateside.spark_state.types import Column
from stateside.spark_state.unsafe_row import RowDecoder
from tests.sizes import examples

EncodeRow = Callable[..., bytes]

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "byte": st.integers(-(2**7), 2**7 - 1),
    "short": st.integers(-(2**15), 2**15 - 1),
    "integer": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "date": st.integers(-(2**31), 2**31 - 1),
    "timestamp": st.integers(-(2**63), 2**63 - 1),
    "timestamp_ntz": st.integers(-(2**63), 2**63 - 1),
    "string": st.text(max_size=12),
    "binary": st.binary(max_size=12),
}
types = st.lists(st.sampled_from(sorted(VALUES)), max_size=6)


def decoder(types: list[str]) -> RowDecoder:
    return RowDecoder([Column(f"c{index}", type_) for index, type_ in enumerate(types)])


@settings(max_examples=examples(60, 300))
@given(types, st.data())
def test_a_row_of_any_types_comes_back_as_it_went_in(
    encode_row: EncodeRow, types: list[str], data: st.DataObject
) -> None:
    values = tuple(data.draw(st.none() | VALUES[type_]) for type_ in types)
    decoded = decoder(types).decode(encode_row(types, values))
    assert decoded == values
    assert list(map(type, decoded)) == list(map(type, values))


@settings(max_examples=examples(60, 300))
@given(types | st.lists(st.sampled_from(["long", "double", "integer", "boolean"]), max_size=6), st.data())
def test_many_rows_are_decoded_as_each_of_them_is(encode_row: EncodeRow, types: list[str], data: st.DataObject) -> None:
    values = st.tuples(*(st.none() | VALUES[type_] for type_ in types))
    rows = [encode_row(types, row) for row in data.draw(st.lists(values, max_size=6))]
    assert list(map(tuple, decoder(types).decode_all(rows))) == [decoder(types).decode(row) for row in rows]


@pytest.mark.parametrize("count", [1, 8, 63, 64, 65, 128, 129])
def test_the_null_bits_of_many_columns_are_found(encode_row: EncodeRow, count: int) -> None:
    for nulls in ({0}, {count - 1}, set(range(0, count, 3)), set(range(count)), set()):
        values = tuple(None if index in nulls else index for index in range(count))
        assert decoder(["long"] * count).decode(encode_row(["long"] * count, values)) == values


def test_a_row_looks_as_it_is_drawn() -> None:
    row = struct.pack("<Q q II I4x", 0b010, 7, 3, 32, 0)[:24] + struct.pack("<II", 3, 32) + "aé".encode() + bytes(5)
    assert decoder(["long", "integer", "string"]).decode(row) == (7, None, "aé")


def test_texts_keep_their_nul_bytes_and_long_texts_their_ends(encode_row: EncodeRow) -> None:
    values = ("a\x00b\x00", "x" * 100_000, b"\x00\xff" * 500)
    assert decoder(["string", "string", "binary"]).decode(encode_row(["string", "string", "binary"], values)) == values


@pytest.mark.parametrize("type_", ['{"type": "set"}', "variant", "geography(4326)"])
def test_a_type_that_is_not_known_is_refused_before_any_row(type_: str) -> None:
    with pytest.raises(CheckpointInvalid, match="'total' has the type") as refused:
        RowDecoder([Column("total", type_)])
    assert type_ in str(refused.value)
