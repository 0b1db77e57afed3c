"""Slices: the parts that they were made of, numbers out of all of them, and their order."""

import struct

from hypothesis import given
from hypothesis import strategies as st

from stateside.spark_state.slices import Slices, numbers_at


@given(st.lists(st.none() | st.binary(max_size=30)))
def test_slices_are_what_they_were_made_of(parts: list[bytes | None]) -> None:
    assert Slices.of(parts).tolist() == parts


def test_slices_of_many_sizes_and_of_one_are_what_they_were_made_of() -> None:
    for parts in ([bytes(size) for size in range(100)], [b"%04d" % n for n in range(100)], [b""] * 9, [None] * 9):
        assert Slices.of(parts).tolist() == parts


@given(st.lists(st.binary(max_size=12) | st.sampled_from([b"a", b"a\x00", b"common", b"common\x00x"]), max_size=30))
def test_the_rough_order_is_an_order_and_equal_parts_stay_as_they_are(parts: list[bytes]) -> None:
    order = Slices.of(parts).rough_order().tolist()
    assert sorted(order) == list(range(len(parts)))
    for part in parts:
        places = [place for place in order if parts[place] == part]
        assert places == sorted(places)


def test_parts_that_differ_within_eight_bytes_are_sorted() -> None:
    parts = [b"\x01customer %07d\x00" % (n * 7_919 % 10_007) + bytes(n % 3) for n in range(1_000)]
    assert Slices.of(parts).part(Slices.of(parts).rough_order()).tolist() == sorted(parts)


def test_numbers_are_read_wherever_they_stand() -> None:
    slices = Slices.of([b"x" + struct.pack("<q", number) for number in (-1, 2**40, 0)])
    assert slices.numbers(1, "<i8").tolist() == [-1, 2**40, 0]
    assert numbers_at(b"", Slices.of([]).begins, "<i8").tolist() == []
