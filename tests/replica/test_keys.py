"""Keys in byte order: reversible, sorted as their values are, and a leading part is a range of its own."""

import json
import math
from decimal import Context, Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateside.core.errors import KeyInvalid, ViewInvalid
from stateside.replica.keys import KeyCodec
from tests.sizes import examples

tricky_text = st.text("\x00\x01\x02ab\xff\u0100\U0001f600", max_size=4)
tricky_bytes = st.lists(st.sampled_from([0, 1, 2, 97, 254, 255]), max_size=4).map(bytes)
PERIOD = {"start": "timestamp", "end": "timestamp"}
PLACE = {"country": "string", "price": "decimal(20,3)", "period": PERIOD}


def struct(fields: dict[str, Any]) -> dict[str, Any]:
    parts = [{"name": n, "type": struct(t) if isinstance(t, dict) else t} for n, t in fields.items()]
    return {"type": "struct", "fields": parts}


def decimals(digits: int, behind: int) -> st.SearchStrategy[Decimal]:
    largest = 10**digits - 1
    unscaled = st.integers(-3, 3) | st.integers(-largest, largest) | st.sampled_from([largest, -largest])
    return unscaled.map(lambda number: Decimal(number).scaleb(-behind, Context(prec=40)))


longs = st.integers(-3, 3) | st.integers(-(2**63), 2**63 - 1)

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "byte": st.integers(-(2**7), 2**7 - 1),
    "short": st.integers(-(2**15), 2**15 - 1),
    "integer": st.integers(-(2**31), 2**31 - 1),
    "long": longs,
    "date": st.integers(-(2**31), 2**31 - 1),
    "timestamp": longs,
    "timestamp_ntz": longs,
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "string": tricky_text | st.text(max_size=12),
    "binary": tricky_bytes | st.binary(max_size=12),
    "decimal(9,2)": decimals(9, 2),
    "decimal(18,0)": decimals(18, 0),
    "decimal(38,10)": decimals(38, 10),
}
PERIODS = st.tuples(st.none() | longs, st.none() | longs)
VALUES[json.dumps(struct(PERIOD))] = PERIODS
VALUES[json.dumps(struct(PLACE))] = st.tuples(st.none() | tricky_text, st.none() | decimals(20, 3), st.none() | PERIODS)
types_of_keys = st.lists(st.sampled_from(["string", "binary", *sorted(VALUES)]), min_size=1, max_size=4)
often = settings(max_examples=examples(60, 400))


def keys(types: list[str]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.tuples(*(st.none() | VALUES[type_] for type_ in types))


def in_order(key: tuple[Any, ...]) -> list[tuple[bool, Any]]:
    """What sorts as the key should: null before everything else, -0.0 before 0.0."""
    parts = [in_order(value) if isinstance(value, tuple) else value for value in key]
    signed = [(value, math.copysign(1, value)) if isinstance(value, float) else value for value in parts]
    return [(value is not None, 0 if value is None else value) for value in signed]


@often
@given(types_of_keys, st.data())
def test_a_key_comes_back_as_it_went_in(types: list[str], data: st.DataObject) -> None:
    key, codec = data.draw(keys(types)), KeyCodec(types)
    decoded = codec.decode(codec.encode(key))
    assert decoded == key
    assert list(map(type, decoded)) == list(map(type, key))


@often
@given(types_of_keys, st.data())
def test_many_keys_are_encoded_as_each_of_them_is(types: list[str], data: st.DataObject) -> None:
    many, codec = data.draw(st.lists(keys(types), max_size=5)), KeyCodec(types)
    assert codec.encode_all(many) == [codec.encode(key) for key in many]


@often
@given(types_of_keys, st.data())
def test_keys_sort_as_their_values_do(types: list[str], data: st.DataObject) -> None:
    one, other, codec = data.draw(keys(types)), data.draw(keys(types)), KeyCodec(types)
    shared = data.draw(st.integers(0, len(types)))
    other = one[:shared] + other[shared:]
    assert (codec.encode(one) < codec.encode(other)) == (in_order(one) < in_order(other))
    assert (codec.encode(one) == codec.encode(other)) == (in_order(one) == in_order(other))


@often
@given(types_of_keys, st.data())
def test_exactly_the_keys_with_the_same_leading_parts_begin_with_their_bytes(
    types: list[str], data: st.DataObject
) -> None:
    one, other, codec = data.draw(keys(types)), data.draw(keys(types)), KeyCodec(types)
    parts = data.draw(st.integers(0, len(types)))
    if isinstance(one[0], str):
        other = (one[0] + data.draw(tricky_text), *other[1:])
    assert codec.encode(one).startswith(codec.encode(one[:parts]))
    assert codec.encode(other).startswith(codec.encode(one[:parts])) == (
        in_order(other)[:parts] == in_order(one)[:parts]
    )


def test_a_text_that_goes_on_after_a_nul_does_not_belong_to_the_text_before_it() -> None:
    codec = KeyCodec(["string", "long"])
    assert not codec.encode(["emma\x00x", 1]).startswith(codec.encode(["emma"]))


def test_long_texts_are_whole() -> None:
    codec = KeyCodec(["string", "binary", "string"])
    key = ("x" * 100_000, b"\x00\x01\xff" * 10_000, "ß\x00" * 10_000)
    assert codec.decode(codec.encode(key)) == key


def test_negative_zero_is_a_key_of_its_own_just_before_zero_as_spark_keeps_groups() -> None:
    codec = KeyCodec(["double"])
    assert codec.encode([-5e-324]) < codec.encode([-0.0]) < codec.encode([0.0])
    assert str(codec.decode(codec.encode([-0.0]))[0]) == "-0.0"


def test_what_is_no_number_sorts_behind_all_numbers_as_in_spark() -> None:
    codec = KeyCodec(["double"])
    assert codec.encode([float("nan")]) > codec.encode([float("inf")])


def test_a_key_with_too_many_parts_is_refused() -> None:
    with pytest.raises(KeyInvalid, match="The key has 3 parts, the view's key has 2"):
        KeyCodec(["string", "long"]).encode(["a", 1, 2])


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 10**30])
def test_a_number_that_no_column_can_hold_is_refused(number: int) -> None:
    with pytest.raises(KeyInvalid, match=f"{number} is no long"):
        KeyCodec(["long"]).encode([number])


def test_the_first_fields_of_a_struct_are_leading_parts_of_a_key() -> None:
    codec = KeyCodec(["string", json.dumps(struct(PERIOD))])
    of_item, from_five = codec.encode(["item"]), codec.encode(["item", (5,)])
    whole = codec.encode(["item", (5, 9)])
    assert whole.startswith(from_five)
    assert from_five.startswith(of_item)
    assert not codec.encode(["item", (6, 9)]).startswith(from_five)


def test_no_struct_is_another_key_than_a_struct_of_nothing() -> None:
    codec = KeyCodec([json.dumps(struct(PERIOD))])
    assert codec.encode([None]) < codec.encode([(None, None)]) < codec.encode([(0, None)])


@pytest.mark.parametrize(
    ("number", "reason"),
    [("1.001", "more than 2 digits"), ("1e-9999", "more than 2"), ("100", "too large"), ("-1e999999", "too large")],
)
def test_a_decimal_that_no_row_can_have_is_refused(number: str, reason: str) -> None:
    with pytest.raises(KeyInvalid, match=reason):
        KeyCodec(["decimal(4,2)"]).encode([Decimal(number)])


@pytest.mark.parametrize("type_", ['{"type": "array", "elementType": "long"}', "array", "interval day", ""])
def test_a_key_of_a_type_that_cannot_be_served_is_refused_at_once(type_: str) -> None:
    with pytest.raises(ViewInvalid, match="Cast it to a string"):
        KeyCodec(["string", type_])


@often
@given(types_of_keys.flatmap(lambda types: st.tuples(st.just(types), keys(types))))
def test_a_key_splits_into_the_bytes_of_its_parts(case: tuple[list[str], tuple[Any, ...]]) -> None:
    types, values = case
    codec = KeyCodec(types)
    alone = [KeyCodec([type_]).encode([value]) for type_, value in zip(types, values, strict=True)]
    assert codec.split(codec.encode(values)) == alone
