"""Blocks: whatever the sizes are, every pair comes out in order, and damage is told with its byte."""

import struct
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateside.core.errors import CheckpointInvalid
from stateside.spark_state import slices
from stateside.spark_state.slices import whole_block
from tests.sizes import examples

Encode = Callable[..., bytes]
Record = tuple[bytes, bytes | None]

MANY = 3_000

sizes = st.integers(0, 3) | st.integers(0, 60)
# Runs of pairs of the same sizes, as states of few shapes have them, and pairs of any sizes between them.
runs = st.lists(st.tuples(st.integers(1, 40), sizes, st.none() | sizes), max_size=8)


def pairs_of(found: list[tuple[int, int, int | None]]) -> list[Record]:
    numbers = iter(range(1_000_000))
    return [
        (filled(key, next(numbers)), None if value is None else filled(value, next(numbers)))
        for count, key, value in found
        for _ in range(count)
    ]


def filled(size: int, number: int) -> bytes:
    """So many bytes, of which no two are alike where there is room, and which may look like sizes."""
    return (number.to_bytes(4, "big") * 15)[:size]


def read(content: bytes) -> list[Record]:
    block = whole_block(content, "file")
    keys = [key for key in block.keys.tolist() if key is not None]
    return list(zip(keys, block.values.tolist(), strict=True))


@settings(max_examples=examples(60, 400))
@given(runs)
def test_pairs_of_any_sizes_come_out_in_order(encode_delta: Encode, found: list[tuple[int, int, int | None]]) -> None:
    assert read(encode_delta(pairs_of(found))) == pairs_of(found)


@settings(max_examples=examples(50, 250))
@given(runs, st.integers(1, 500))
def test_blocks_of_any_size_have_the_same_pairs(
    encode_delta: Encode, found: list[tuple[int, int, int | None]], piece_bytes: int
) -> None:
    content, before = encode_delta(pairs_of(found)), slices.BLOCK_BYTES
    pieces = [content[at : at + piece_bytes] for at in range(0, len(content), piece_bytes)]
    slices.BLOCK_BYTES = 64
    try:
        changes = [change for block in slices.blocks(pieces, "file") for change in block]
    finally:
        slices.BLOCK_BYTES = before
    assert [(change.key, change.value) for change in changes] == pairs_of(found)


@pytest.mark.parametrize("value", [None, b"", b"value"])
def test_a_long_run_ends_where_a_size_differs(encode_delta: Encode, value: bytes | None) -> None:
    alike: list[Record] = [(b"%08d" % number, value) for number in range(MANY)]
    records = [*alike, (b"other", b"v"), *alike, (b"%08d" % 0, b"longer")]
    assert read(encode_delta(records)) == records


@pytest.mark.parametrize("row", [0, 7, 9, 10, MANY // 2, MANY - 1])
@pytest.mark.parametrize(("size", "reason"), [(-2, "cannot have -2 bytes"), (2**31 - 1, "cut short")])
@pytest.mark.parametrize("of_value", [False, True])
def test_an_impossible_size_anywhere_in_a_run_is_told_with_its_byte(
    encode_delta: Encode, row: int, size: int, reason: str, of_value: bool
) -> None:
    content = bytearray(encode_delta([(b"%08d" % number, b"value") for number in range(MANY)]))
    at_byte = row * (4 + 8 + 4 + 5) + (12 if of_value else 0)
    struct.pack_into(">i", content, at_byte, size)
    with pytest.raises(CheckpointInvalid, match=reason) as error:
        whole_block(bytes(content), "file")
    told = row * (4 + 8 + 4 + 5) if reason == "cut short" else at_byte
    assert error.value.where == f"file, byte {told}"


@settings(max_examples=examples(50, 250))
@given(runs, st.integers(1, 30))
def test_a_block_has_the_same_pairs_as_its_parts(
    encode_delta: Encode, found: list[tuple[int, int, int | None]], part_rows: int
) -> None:
    block, before = whole_block(encode_delta(pairs_of(found)), "file"), slices.PART_ROWS
    slices.PART_ROWS = part_rows
    try:
        parts = list(block.parts())
    finally:
        slices.PART_ROWS = before
    assert [change for part in parts for change in part] == list(block)
    assert all(len(part) <= part_rows for part in parts)
    assert sum(len(part.keys.content) for part in parts) <= len(block.keys.content)
