"""The envelope of Spark's state files: Java's LZ4 block stream.

    stream := block* end
    block  := "LZ4Block" (8)  token (1)  compressed size (i32 le)  size (i32 le)  checksum (u32 le)  bytes
    end    := the same with both sizes 0

The token's high half tells the method: 0x10 stored, 0x20 LZ4. The checksum is xxHash32 of the uncompressed bytes with
Java's seed, cut to 28 bits.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import lz4.block
import xxhash

from stateside.errors import CheckpointInvalid

_MAGIC = b"LZ4Block"
_HEADER = struct.Struct("<8sBiiI")
_STORED, _LZ4 = 0x10, 0x20
_SEED = 0x9747B28C
_CHECKSUM_MASK = 0x0FFFFFFF
BLOCK_BYTES_MAX = 64 * 1024 * 1024


def decompress(content: bytes, path: str) -> bytes:
    """The bytes inside the envelope; CheckpointInvalid, with file and offset, if they are damaged."""
    return b"".join(_blocks(content, path))


def _blocks(content: bytes, path: str) -> Iterator[bytes]:
    at_byte = 0
    while at_byte < len(content):
        if at_byte + _HEADER.size > len(content):
            raise damaged(path, at_byte, "a block's header is cut short")
        magic, token, compressed_size, size, checksum = _HEADER.unpack_from(content, at_byte)
        if magic != _MAGIC:
            raise damaged(path, at_byte, "this is no LZ4 block; other codecs are not supported")
        body_byte = at_byte + _HEADER.size
        if not (0 <= compressed_size <= len(content) - body_byte and 0 <= size <= BLOCK_BYTES_MAX):
            raise damaged(path, at_byte, "a block is cut short")
        if size == compressed_size == 0:
            return
        block = _expand(content[body_byte : body_byte + compressed_size], token & 0xF0, size)
        if block is None or xxhash.xxh32_intdigest(block, seed=_SEED) & _CHECKSUM_MASK != checksum:
            raise damaged(path, at_byte, "a block's checksum does not match")
        yield block
        at_byte = body_byte + compressed_size
    raise damaged(path, at_byte, "the end mark is missing")


def _expand(body: bytes, method: int, size: int) -> bytes | None:
    if method == _STORED:
        return body
    try:
        return bytes(lz4.block.decompress(body, uncompressed_size=size)) if method == _LZ4 else None
    except lz4.block.LZ4BlockError:
        return None


def damaged(path: str, at_byte: int, reason: str) -> CheckpointInvalid:
    """The error for a state file that cannot be read."""
    return CheckpointInvalid(
        f"A state file cannot be read: {reason}",
        where=f"{path}, byte {at_byte}",
        next_step="The replica stays at its last good batch. Restore the file, or rebuild from a newer snapshot",
    )
