"""Keys as Arrow's columns: the same values as one by one, for every type and however odd they are."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from stateside.replica.key_blocks import KeyColumns
from stateside.replica.keys import KeyCodec
from stateside.spark_state.arrow_rows import arrow_type, plain
from stateside.spark_state.types import parse_type
from tests.sizes import examples

from .test_key_encoder import rows_of, types_of_keys


@settings(max_examples=examples(200, 1000), deadline=None)
@given(types_of_keys, st.data())
def test_columns_have_the_values_of_the_keys(types: list[str], data: st.DataObject) -> None:
    codec, parsed = KeyCodec(types), [parse_type(type_) for type_ in types]
    keys = [codec.encode(values) for values in data.draw(rows_of(types))]
    arrays = KeyColumns(types).arrays(keys)
    expected: list[list[Any]] = list(map(list, zip(*map(codec.decode, keys), strict=True)))
    for type_, array, values in zip(parsed, arrays, expected, strict=True):
        array.validate(full=True)
        assert array.type == arrow_type(type_)
        same = pa.array([plain(type_, value) for value in values], arrow_type(type_))
        assert array.equals(same) or repr(array.to_pylist()) == repr(same.to_pylist()), "NaN is not equal to itself"


def test_there_may_be_no_keys_and_keys_without_parts() -> None:
    assert [len(array) for array in KeyColumns(["string", "long"]).arrays([])] == [0, 0]
    assert KeyColumns([]).arrays([b"\x00"]) == []
