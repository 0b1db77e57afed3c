"""The envelopes: each codec gives back what was packed, and no damage goes unseen through one with checksums."""

from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateside.core.errors import CheckpointInvalid
from stateside.spark_state.compression import expand
from tests.sizes import examples

Compress = Callable[..., bytes]
HEADER_BYTES = 21


def decompress(packed: bytes, path: str) -> bytes:
    return b"".join(expand(packed, path))


contents = st.binary(max_size=200) | st.binary(min_size=1, max_size=8).map(lambda part: part * 500)


@settings(max_examples=examples(50, 300))
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


@settings(max_examples=examples(50, 300))
@given(contents, st.sampled_from([16, 100, 64 * 1024]))
def test_every_codec_gives_back_what_was_packed(compress_any: Compress, content: bytes, block_bytes: int) -> None:
    assert decompress(compress_any(content, block_bytes), "file") == content


@settings(max_examples=examples(40, 200))
@given(contents, st.data())
def test_a_flipped_bit_ends_in_the_error_for_damage_or_in_bytes_but_never_in_another_error(
    compress_any: Compress, content: bytes, data: st.DataObject
) -> None:
    """zstd and snappy have no checksums: here the bytes may be wrong ones. `state_file` looks at checksums beside."""
    packed = bytearray(compress_any(content, 100))
    packed[data.draw(st.integers(0, len(packed) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with suppress(CheckpointInvalid):
        decompress(bytes(packed), "file")


@settings(max_examples=examples(40, 200))
@given(contents, st.data())
def test_a_file_of_any_codec_cut_at_any_byte_gives_at_most_a_beginning(
    compress_any: Compress, content: bytes, data: st.DataObject
) -> None:
    packed = compress_any(content, 100)
    cut = data.draw(st.integers(0, len(packed) - 1))
    with suppress(CheckpointInvalid):
        assert content.startswith(decompress(packed[:cut], "file"))


def test_an_empty_file_and_the_beginning_of_a_magic_are_damaged() -> None:
    for beginning in (b"", b"L", b"LZ4Bloc", b"\x28\xb5", b"\x82SNAPPY"):
        with pytest.raises(CheckpointInvalid, match="empty or ends at once"):
            decompress(beginning, "file")


def test_a_snappy_stream_that_only_newer_readers_can_read_is_refused() -> None:
    with pytest.raises(CheckpointInvalid, match="version 3 of its snappy stream"):
        decompress(b"\x82SNAPPY\x00" + bytes([0, 0, 0, 3, 0, 0, 0, 2]), "file")


@pytest.mark.parametrize("body", [b"", b"\xff\xff\xff\xff\xff\x01", b"\xff\xff\xff\xff\x0f", b"\x05\x00a"])
def test_a_snappy_block_that_does_not_expand_to_its_size_is_damaged(body: bytes) -> None:
    packed = b"\x82SNAPPY\x00" + bytes([0, 0, 0, 1, 0, 0, 0, 1]) + len(body).to_bytes(4, "big") + body
    with pytest.raises(CheckpointInvalid, match="byte 16"):
        decompress(packed, "file")


def test_a_codec_that_cannot_be_read_is_named_with_what_to_do() -> None:
    with pytest.raises(CheckpointInvalid, match="is lzf; lz4, zstd, snappy can be read") as refused:
        decompress(b"ZV\x00\x00\x04abcd", "5.delta")
    assert refused.value.where == "5.delta, byte 0"
    assert "compression.codec=lz4" in str(refused.value.next_step)


def test_bytes_that_no_codec_begins_with_are_shown() -> None:
    with pytest.raises(CheckpointInvalid, match="not known, it begins with 50 4b 03 04"):
        decompress(b"PK\x03\x04 and so on", "file")
