"""The envelope: Java's LZ4 block stream, and that no damage goes through it unseen."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateside.checkpoint.compression import decompress
from stateside.errors import CheckpointInvalid

Compress = Callable[..., bytes]
HEADER_BYTES = 21

contents = st.binary(max_size=200) | st.binary(min_size=1, max_size=8).map(lambda part: part * 500)


@settings(max_examples=150)
@given(contents, st.sampled_from([16, 100, 64 * 1024]), st.booleans())
def test_what_was_packed_is_unpacked_block_by_block(
    compress: Compress, content: bytes, block_bytes: int, stored: bool
) -> None:
    assert decompress(compress(content, block_bytes, stored), "file") == content


def test_what_follows_the_end_mark_is_not_looked_at(compress: Compress) -> None:
    assert decompress(compress(b"content") + b"garbage", "file") == b"content"


@pytest.mark.parametrize("bits", [0x01, 0x40, 0xFF])
def test_any_byte_flipped_is_found_or_changes_nothing(compress: Compress, bits: int) -> None:
    content = b"state " * 12 + bytes(range(48))
    packed = compress(content, block_bytes=64)
    found = 0
    for at_byte in range(len(packed)):
        damaged = packed[:at_byte] + bytes([packed[at_byte] ^ bits]) + packed[at_byte + 1 :]
        try:
            assert decompress(damaged, "file") == content
        except CheckpointInvalid as error:
            assert "file, byte" in str(error)
            found += 1
    assert found > len(packed) * 3 // 4


def test_a_file_cut_at_any_byte_is_damaged(compress: Compress) -> None:
    packed = compress(b"state " * 30, block_bytes=64)
    for cut in range(len(packed)):
        with pytest.raises(CheckpointInvalid):
            decompress(packed[:cut], "file")


def test_a_block_whose_size_was_lost_is_no_end_mark(compress: Compress) -> None:
    packed = compress(b"a" * 64, block_bytes=64)
    size_lost = packed[:13] + bytes(4) + packed[17:]
    with pytest.raises(CheckpointInvalid, match="checksum"):
        decompress(size_lost, "file")


def test_the_error_names_the_damaged_block(compress: Compress) -> None:
    packed = bytearray(compress(b"a" * 10 + b"b" * 10, block_bytes=10, stored=True))
    packed[-HEADER_BYTES - 1] ^= 1
    with pytest.raises(CheckpointInvalid) as damaged:
        decompress(bytes(packed), "state/0/0/5.changelog")
    assert damaged.value.where == f"state/0/0/5.changelog, byte {HEADER_BYTES + 10}"


def test_another_codec_is_told(compress: Compress) -> None:
    with pytest.raises(CheckpointInvalid, match="no LZ4 block; other codecs are not supported"):
        decompress(b"\x28\xb5\x2f\xfd" + bytes(40), "file")
