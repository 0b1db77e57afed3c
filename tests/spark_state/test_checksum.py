"""CRC-32C, against its definition, bit by bit."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateside.spark_state.checksum import crc32c


def _shifted(value: int) -> int:
    for _ in range(8):
        value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
    return value


BYTES = [_shifted(byte) for byte in range(256)]  # the definition is linear: a byte's eight steps are one lookup


def _by_definition(content: bytes) -> int:
    value = 0xFFFFFFFF
    for byte in content:
        value = (value >> 8) ^ BYTES[(value ^ byte) & 0xFF]
    return value ^ 0xFFFFFFFF


def test_the_checksum_is_that_of_the_published_example() -> None:
    assert crc32c(b"123456789") == 0xE3069283


@given(st.binary(max_size=600))
def test_small_contents_have_the_checksum_of_the_definition(content: bytes) -> None:
    assert crc32c(content) == _by_definition(content)


@pytest.mark.parametrize("size", [1_023, 1_024, 1_025, 2_048, 70_001, 262_144, 262_145, 262_147, 262_148, 300_001])
def test_contents_of_many_blocks_have_it_too(size: int) -> None:
    content = random.Random(size).randbytes(size)
    assert crc32c(content) == _by_definition(content)
    assert crc32c(bytes(size)) == _by_definition(bytes(size))
