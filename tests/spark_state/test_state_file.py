"""State files with checksums beside them: with one of the two sorts, no damage goes unseen, whatever the codec."""

import json
import struct
import zlib
from collections.abc import Callable

import pytest

from stateside.core.errors import CheckpointInvalid
from stateside.core.storage import Storage
from stateside.spark_state.checksum import crc32c, read_state_file
from tests.sizes import thinned

Put = Callable[[str, bytes | str], Storage]
Compress = Callable[..., bytes]

NAME = "state/0/0/5.delta"
CONTENT = b"state " * 40 + bytes(range(256)) * 3


def sparks(packed: bytes) -> str:
    """The file that Spark puts beside; its number is a signed one."""
    (value,) = struct.unpack(">i", struct.pack(">I", crc32c(packed)))
    return json.dumps({"algorithm": "CRC32C", "value": value, "mainFileSize": len(packed), "timestampMs": 0})


def hadoops(packed: bytes, part_bytes: int = 64) -> bytes:
    parts = (packed[at : at + part_bytes] for at in range(0, len(packed), part_bytes))
    return b"crc\x00" + struct.pack(">i", part_bytes) + b"".join(struct.pack(">I", zlib.crc32(part)) for part in parts)


def read(storage: Storage) -> bytes:
    return b"".join(read_state_file(storage, NAME))


def test_a_file_is_read_with_either_checksum_both_or_none(put: Put, compress_any: Compress) -> None:
    packed = compress_any(CONTENT)
    assert read(put(NAME, packed)) == CONTENT
    assert read(put(f"{NAME}.crc", sparks(packed))) == CONTENT
    assert read(put("state/0/0/.5.delta.crc", hadoops(packed))) == CONTENT


@pytest.mark.parametrize("beside", ["spark", "hadoop"])
def test_any_byte_flipped_is_found_by_the_checksum_beside(put: Put, compress_unchecked: Compress, beside: str) -> None:
    packed = compress_unchecked(CONTENT, 64)
    put(*((f"{NAME}.crc", sparks(packed)) if beside == "spark" else ("state/0/0/.5.delta.crc", hadoops(packed))))
    for at_byte in thinned(range(len(packed)), 7):
        storage = put(NAME, packed[:at_byte] + bytes([packed[at_byte] ^ 0x10]) + packed[at_byte + 1 :])
        with pytest.raises(CheckpointInvalid, match=r"5\.delta, byte"):
            read(storage)


@pytest.mark.parametrize("beside", ["spark", "hadoop"])
def test_a_file_cut_at_any_byte_is_found_by_the_checksum_beside(
    put: Put, compress_unchecked: Compress, beside: str
) -> None:
    packed = compress_unchecked(CONTENT, 64)
    put(*((f"{NAME}.crc", sparks(packed)) if beside == "spark" else ("state/0/0/.5.delta.crc", hadoops(packed))))
    for cut in thinned(range(len(packed)), 7):
        with pytest.raises(CheckpointInvalid):
            read(put(NAME, packed[:cut]))


def test_hadoops_checksums_name_the_part_that_is_damaged(put: Put, compress_unchecked: Compress) -> None:
    packed = bytearray(compress_unchecked(CONTENT))
    put("state/0/0/.5.delta.crc", hadoops(bytes(packed)))
    packed[130] ^= 1
    with pytest.raises(CheckpointInvalid) as damaged:
        read(put(NAME, bytes(packed)))
    assert str(damaged.value.where).endswith("5.delta, byte 128")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (f"{NAME}.crc", "no JSON"),
        (f"{NAME}.crc", "[]"),
        (f"{NAME}.crc", '{"algorithm": "MD5", "value": 1, "mainFileSize": 1}'),
        (f"{NAME}.crc", '{"algorithm": "CRC32C"}'),
        ("state/0/0/.5.delta.crc", b""),
        ("state/0/0/.5.delta.crc", b"crc\x01\x00\x00\x02\x00"),
        ("state/0/0/.5.delta.crc", b"crc\x00\x00\x00\x00\x00"),
    ],
)
def test_a_checksum_that_is_none_is_told(
    put: Put, compress_unchecked: Compress, name: str, content: bytes | str
) -> None:
    put(name, content)
    with pytest.raises(CheckpointInvalid):
        read(put(NAME, compress_unchecked(CONTENT)))


@pytest.mark.parametrize("beside", ["spark", "hadoop"])
def test_another_file_that_is_whole_in_itself_is_found_by_the_checksum_beside(
    put: Put, compress_any: Compress, beside: str
) -> None:
    """Two changelogs that were swapped, say: the checksums inside lz4 do not tell."""
    packed = compress_any(CONTENT)
    put(*((f"{NAME}.crc", sparks(packed)) if beside == "spark" else ("state/0/0/.5.delta.crc", hadoops(packed))))
    with pytest.raises(CheckpointInvalid, match=r"not as Spark wrote it.*5\.delta, byte"):
        read(put(NAME, compress_any(CONTENT[::-1])))


def test_a_file_that_is_not_there_is_not_found(put: Put) -> None:
    with pytest.raises(FileNotFoundError):
        read(put("other", b""))
