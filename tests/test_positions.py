"""Positions: a partial order with a short text form."""

import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateside.core.errors import PositionInvalid
from stateside.core.positions import OFFSET_MAX, PARTITIONS_MAX, Position
from tests.sizes import examples

NAME_CHARACTERS = string.ascii_letters + string.digits + "._-"
partitions = st.sampled_from(["0", "1", "calls-0"]) | st.text(NAME_CHARACTERS, min_size=1, max_size=8)
offsets = st.integers(0, 5) | st.integers(0, OFFSET_MAX)
positions = st.dictionaries(partitions, offsets, max_size=4).map(Position.of)
often = settings(max_examples=examples(40, 200))


@often
@given(positions)
def test_a_position_is_read_back_from_its_text(position: Position) -> None:
    assert Position.parse(str(position)) == position


@often
@given(st.dictionaries(partitions, offsets, max_size=4))
def test_equal_positions_have_equal_texts_whatever_the_order_and_the_zeros(by_partition: dict[str, int]) -> None:
    reordered = dict(reversed(by_partition.items())) | {"never-written-to": 0}
    assert str(Position.of(reordered)) == str(Position.of(by_partition))
    assert hash(Position.of(reordered)) == hash(Position.of(by_partition))


@often
@given(positions, positions, positions)
def test_covers_is_a_partial_order(a: Position, b: Position, c: Position) -> None:
    assert a.covers(a)
    if a.covers(b) and b.covers(a):
        assert a == b
    if a.covers(b) and b.covers(c):
        assert a.covers(c)


@often
@given(positions, positions, positions)
def test_joined_is_the_least_position_that_covers_both(a: Position, b: Position, c: Position) -> None:
    joined = a.joined(b)
    assert joined == b.joined(a)
    assert joined.covers(a)
    assert joined.covers(b)
    if c.covers(a) and c.covers(b):
        assert c.covers(joined)


@often
@given(positions)
def test_everything_covers_the_start_and_only_the_start_has_no_events(position: Position) -> None:
    assert position.covers(Position.start())
    assert Position.start().covers(position) == (position.events() == 0) == (str(position) == "start")


def test_two_positions_that_are_each_ahead_in_one_partition_do_not_cover_each_other() -> None:
    left, right = Position.of({"a": 2, "b": 1}), Position.of({"a": 1, "b": 2})
    assert not left.covers(right)
    assert not right.covers(left)


def test_a_partition_that_is_not_named_stands_at_zero() -> None:
    assert Position.of({"a": 7})["a"] == 7
    assert Position.of({"a": 7})["b"] == 0
    assert Position.of({"a": 7, "b": 0}).as_dict() == {"a": 7}


def test_the_text_is_sorted_by_partition_and_leaves_zeros_out() -> None:
    assert str(Position.of({"calls-1": 12, "calls-0": 7, "calls-2": 0})) == "calls-0:7,calls-1:12"
    assert str(Position.start()) == "start"


def test_the_events_before_a_position_are_those_of_all_partitions() -> None:
    assert Position.of({"a": 3, "b": 4}).events() == 7


@pytest.mark.parametrize(
    "text",
    ["", "0", "0:", ":1", "0:-1", "0:1.5", "0:1,", ",0:1", "0:1,0:2", "0:1 ", " 0:1", "0:1\n", "a b:1", "ä:1", "0:１",
     "start,0:1", "Start", f"0:{OFFSET_MAX + 1}", "0:" + "9" * 20, "x" * 256 + ":1"],
)  # fmt: skip
def test_a_text_that_is_no_position_is_refused(text: str) -> None:
    with pytest.raises(PositionInvalid):
        Position.parse(text)


def test_a_text_may_name_so_many_partitions_and_not_one_more() -> None:
    parts = [f"p{number}:1" for number in range(PARTITIONS_MAX + 1)]
    assert Position.parse(",".join(parts[:-1])).events() == PARTITIONS_MAX
    with pytest.raises(PositionInvalid):
        Position.parse(",".join(parts))


def test_a_long_bad_text_is_not_repeated_whole_in_the_message() -> None:
    with pytest.raises(PositionInvalid) as refused:
        Position.parse("?" * 100_000)
    assert len(str(refused.value)) < 300


@often
@given(st.text(max_size=40))
def test_any_text_is_a_position_or_refused(text: str) -> None:
    try:
        position = Position.parse(text)
    except PositionInvalid:
        return
    assert Position.parse(str(position)) == position


@pytest.mark.parametrize("offset", [-1, OFFSET_MAX + 1, True, 1.0, "1", None])
def test_what_is_no_offset_is_refused(offset: object) -> None:
    with pytest.raises(PositionInvalid, match="no offset in partition 0"):
        Position.of({"0": offset})  # type: ignore[dict-item]


@pytest.mark.parametrize("partition", ["", "a:b", "a,b", "a b", "ä", "x" * 256, 0, None])
def test_what_is_no_name_of_a_partition_is_refused(partition: object) -> None:
    with pytest.raises(PositionInvalid, match="no name of a partition"):
        Position.of({partition: 1})  # type: ignore[dict-item]
