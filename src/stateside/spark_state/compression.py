"""Compression envelopes of Spark's state files, identified by their first bytes.

    lz4      stream := block* end                                     Java's LZ4 block stream, Spark's default
             block  := "LZ4Block" (8)  token (1)  compressed size (i32 le)  size (i32 le)  checksum (u32 le)  bytes
             end    := the same with both sizes 0
    zstd     one or more standard frames, 28 b5 2f fd …
    snappy   stream := 82 "SNAPPY" 00  version (i32)  oldest version able to read the stream (i32)  block*
             block  := compressed size (i32)  bytes, which begin with their uncompressed size (varint)
    lzf      "ZV" …, refused

The token's high half is the method of an LZ4 block: 0x10 stored, 0x20 LZ4. Its checksum is xxHash32 of the uncompressed
bytes with Java's seed, cut to 28 bits. Spark's zstd and snappy have no checksums, so damage may go unnoticed here;
`checksum` has other means.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import lz4.block
import pyarrow as pa
import xxhash

from stateside.core.errors import CheckpointInvalid

BLOCK_BYTES_MAX = 64 * 1024 * 1024
_READ_BYTES = 1024 * 1024

LZ4_MAGIC = b"LZ4Block"
LZ4_HEADER = struct.Struct("<8sBiiI")
STORED, LZ4 = 0x10, 0x20
SEED = 0x9747B28C
CHECKSUM_MASK = 0x0FFFFFFF

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"

_SNAPPY_MAGIC = b"\x82SNAPPY\x00"
_SNAPPY_HEADER = struct.Struct(">8sii")
_SNAPPY_VERSION = 1
_SIZE = struct.Struct(">i")
_VARINT_BYTES_MAX = 5

_LZF_MAGIC = b"ZV"

Expand = Callable[[bytes, str], Iterator[bytes]]


@dataclass(frozen=True, slots=True)
class Codec:
    """An envelope: its first bytes, and its decompressor."""

    name: str
    magic: bytes
    expand: Expand


def expand(content: bytes, path: str) -> Iterator[bytes]:
    """The uncompressed bytes, piece by piece, so that a large file need not be in memory as a whole.

    CheckpointInvalid if the envelope is unknown; with file and byte, at once or at a later piece, if it is damaged.
    """
    for codec in CODECS:
        if content.startswith(codec.magic):
            return codec.expand(content, path)
    if any(codec.magic.startswith(content) for codec in CODECS):
        raise damaged(path, len(content), "it is empty or ends at once")
    name = "lzf" if content.startswith(_LZF_MAGIC) else f"one that is not known, it begins with {content[:8].hex(' ')}"
    raise CheckpointInvalid(
        f"The codec of a state file is {name}; {', '.join(codec.name for codec in CODECS)} can be read",
        where=f"{path}, byte 0",
        next_step="If the file is not damaged, run the query on a new checkpoint with "
        "spark.sql.streaming.stateStore.compression.codec=lz4",
    )


def damaged(path: str, at_byte: int, reason: str) -> CheckpointInvalid:
    return CheckpointInvalid(
        f"A state file cannot be read: {reason}",
        where=f"{path}, byte {at_byte}",
        next_step="The replica stays at its last good batch. Restore the file, or rebuild from a newer snapshot",
    )


def _lz4_blocks(content: bytes, path: str) -> Iterator[bytes]:
    at_byte = 0
    while at_byte < len(content):
        if at_byte + LZ4_HEADER.size > len(content):
            raise damaged(path, at_byte, "a block's header is cut short")
        magic, token, compressed_size, size, checksum = LZ4_HEADER.unpack_from(content, at_byte)
        if magic != LZ4_MAGIC:
            raise damaged(path, at_byte, "this is no LZ4 block, as those before it are")
        body_byte = at_byte + LZ4_HEADER.size
        if not (0 <= compressed_size <= len(content) - body_byte and 0 <= size <= BLOCK_BYTES_MAX):
            raise damaged(path, at_byte, "a block is cut short")
        if size == compressed_size == 0:
            return
        block = _lz4_block(content[body_byte : body_byte + compressed_size], token & 0xF0, size)
        if block is None or xxhash.xxh32_intdigest(block, seed=SEED) & CHECKSUM_MASK != checksum:
            raise damaged(path, at_byte, "a block's checksum does not match")
        yield block
        at_byte = body_byte + compressed_size
    raise damaged(path, at_byte, "the end mark is missing")


def _lz4_block(body: bytes, method: int, size: int) -> bytes | None:
    if method == STORED:
        return body
    try:
        return bytes(lz4.block.decompress(body, uncompressed_size=size)) if method == LZ4 else None
    except lz4.block.LZ4BlockError:
        return None


def _zstd_pieces(content: bytes, path: str) -> Iterator[bytes]:
    try:
        with pa.input_stream(pa.BufferReader(content), compression="zstd") as stream:
            while piece := stream.read(_READ_BYTES):
                yield bytes(piece)
    except (OSError, pa.ArrowException) as error:
        # The codec does not report the byte of the damage. Byte 0 is where the frames begin.
        raise damaged(path, 0, f"its zstd frames are damaged or cut short, {error}") from None


def _snappy_blocks(content: bytes, path: str) -> Iterator[bytes]:
    if len(content) < _SNAPPY_HEADER.size:
        raise damaged(path, len(content), "its header is cut short")
    _, version, oldest = _SNAPPY_HEADER.unpack_from(content)
    if oldest > _SNAPPY_VERSION or version < oldest:
        raise damaged(path, len(_SNAPPY_MAGIC), f"version {version} of its snappy stream is not known")
    at_byte = _SNAPPY_HEADER.size
    while at_byte < len(content):
        body_byte = at_byte + _SIZE.size
        compressed_size = _SIZE.unpack_from(content, at_byte)[0] if body_byte <= len(content) else -1
        if not 0 <= compressed_size <= len(content) - body_byte:
            raise damaged(path, at_byte, "a block is cut short")
        block = _snappy_block(content[body_byte : body_byte + compressed_size])
        if block is None:
            raise damaged(path, at_byte, "a block cannot be expanded")
        yield block
        at_byte = body_byte + compressed_size


def _snappy_block(body: bytes) -> bytes | None:
    size = _leading_varint(body)
    if size is None or size > BLOCK_BYTES_MAX:
        return None
    try:
        return bytes(pa.Codec("snappy").decompress(body, decompressed_size=size, asbytes=True))
    except (OSError, ValueError, pa.ArrowException):
        return None


def _leading_varint(body: bytes) -> int | None:
    value = 0
    for index, byte in enumerate(body[:_VARINT_BYTES_MAX]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value
    return None


CODECS = (
    Codec("lz4", LZ4_MAGIC, _lz4_blocks),
    Codec("zstd", _ZSTD_MAGIC, _zstd_pieces),
    Codec("snappy", _SNAPPY_MAGIC, _snappy_blocks),
)
