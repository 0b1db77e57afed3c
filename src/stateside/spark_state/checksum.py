"""Checksums of a checkpoint's files, and CRC-32C, missing from Python's own libraries.

A file may have one or both of

    NAME.crc  := {"algorithm": "CRC32C", "value": of the whole file (i32), "mainFileSize": …, …}
                                        by Spark from 4.1 on, of changelogs and snapshots in checkpoint format v2
    .NAME.crc := "crc" 00  size of a part (i32)  CRC-32 of each part (u32)*
                                        by Hadoop, of every file on a local disk; numbers big-endian

Both are compared where present: a file intact in itself may still be another partition's, or another version's.

`read_state_file` reads a file of a state store: compared with its checksums and decompressed. An lz4 envelope has
checksums of its own as well. A file without any (snappy or zstd, format v1, not on a local disk) is trusted as the file
system returns it: a changed byte may become a wrong row.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from stateside.core.errors import CheckpointInvalid
from stateside.core.storage import Storage
from stateside.spark_state.compression import expand

_ALGORITHM = "CRC32C"
_PARTS_HEADER = struct.Struct(">4si")
_PARTS_MAGIC = b"crc\x00"
_POLYNOMIAL = 0x82F63B78  # of CRC-32C, reflected
_ONES = 0xFFFFFFFF
_BLOCK_BYTES = 1024
_BLOCKS = 256
_SUM_BYTES = 4
Bytes = npt.NDArray[np.uint8]
Sums = npt.NDArray[np.uint32]


def read_checked(storage: Storage, name: str) -> bytes:
    """The whole file; FileNotFoundError if it does not exist, CheckpointInvalid if it does not match its checksums."""
    content = storage.read(name)
    _check(storage, name, lambda: content)
    return content


def check_copy(storage: Storage, name: str, copy: Path) -> None:
    """The same for a local copy of a file, which is not read if the file has no checksums."""
    _check(storage, name, copy.read_bytes)


def checksum_names(name: str) -> tuple[str, str]:
    """The names of a file's checksum files, Hadoop's and Spark's: a copy of the file needs them too."""
    folder, slash, base = name.rpartition("/")
    return f"{folder}{slash}.{base}.crc", f"{name}.crc"


def _check(storage: Storage, name: str, read: Callable[[], bytes]) -> None:
    hadoops, sparks = (_read_if_there(storage, beside) for beside in checksum_names(name))
    if hadoops is None and sparks is None:
        return
    content = read()
    if hadoops is not None:
        _check_parts(storage, name, content, hadoops)
    if sparks is not None:
        _check_whole(storage, name, content, sparks)


def _check_parts(storage: Storage, name: str, content: bytes, sums: bytes) -> None:
    """Compare with Hadoop's checksums."""
    path, beside = storage.path(name), storage.path(checksum_names(name)[0])
    if len(sums) < _PARTS_HEADER.size or not sums.startswith(_PARTS_MAGIC):
        raise _mismatch(beside, 0, "these are no checksums of Hadoop's")
    _, part_bytes = _PARTS_HEADER.unpack_from(sums)
    count = -(-len(content) // part_bytes) if part_bytes > 0 else -1
    if len(sums) != _PARTS_HEADER.size + 4 * count:
        raise _mismatch(path, len(content), f"its size does not fit its checksums, {beside}")
    view = memoryview(content)
    for index, expected in enumerate(struct.unpack_from(f">{count}I", sums, _PARTS_HEADER.size)):
        at_byte = index * part_bytes
        if zlib.crc32(view[at_byte : at_byte + part_bytes]) != expected:
            raise _mismatch(path, at_byte, f"from here on it differs from its checksums, {beside}")


def _check_whole(storage: Storage, name: str, content: bytes, text: bytes) -> None:
    """Compare with Spark's checksum."""
    beside = storage.path(checksum_names(name)[1])
    if _expected(text, beside) != (crc32c(content), len(content)):
        raise _mismatch(storage.path(name), 0, f"the file does not match its checksum, {beside}")


def _expected(text: bytes, path: str) -> tuple[int, int]:
    """A file's expected checksum and size."""
    try:
        entry = json.loads(text)
        if entry["algorithm"] != _ALGORITHM:
            raise ValueError(f"the algorithm {entry['algorithm']!r} is not known")
        return int(entry["value"]) % 2**32, int(entry["mainFileSize"])
    except (ValueError, LookupError, TypeError) as error:
        raise _mismatch(path, 0, f"this is no checksum of Spark's, {error!r}") from error


def _mismatch(path: str, at_byte: int, reason: str) -> CheckpointInvalid:
    return CheckpointInvalid(
        f"A file of the checkpoint is not as Spark wrote it: {reason}",
        where=f"{path}, byte {at_byte}",
        next_step="Restore the file and its .crc files, which go together, or restore a savepoint:"
        " the replica stays at its last good batch meanwhile",
    )


def _read_if_there(storage: Storage, name: str) -> bytes | None:
    try:
        return storage.read(name)
    except FileNotFoundError:
        return None


def crc32c(content: bytes) -> int:
    """The CRC-32C of the content.

    A CRC is linear: the CRC of a content is the exclusive or of the contributions of each byte at its place. Tables
    hold the contributions within a block, and those of a block's sum with a given number of blocks after it.
    """
    total = _ONES
    for at in range(0, len(content), _BLOCK_BYTES * _BLOCKS):
        total = _continued(total, content[at : at + _BLOCK_BYTES * _BLOCKS])
    return total ^ _ONES


def _continued(total: int, part: bytes) -> int:
    """The sum so far continued with a part of at most `_BLOCKS` blocks."""
    if len(part) < _SUM_BYTES:
        for byte in part:
            total = (total >> 8) ^ int(_BYTE[(total ^ byte) & 0xFF])
        return total
    begin = -len(part) % _BLOCK_BYTES  # leading zeros do not change a sum that begins with 0
    padded = np.zeros(begin + len(part), np.uint8)
    padded[begin:] = np.frombuffer(part, np.uint8)
    padded[begin : begin + _SUM_BYTES] ^= np.frombuffer(total.to_bytes(_SUM_BYTES, "little"), np.uint8)
    sums = _contributions(_within_block(), padded.reshape(-1, _BLOCK_BYTES))
    return int(sums[0] if len(sums) == 1 else _contributions(_before_blocks(), _bytes_of(sums)))


def _contributions(table: Sums, places: Bytes) -> Sums:
    """One sum per row of bytes, by a table of each byte's contribution at each of the last places."""
    rows = np.arange(len(table) - places.shape[-1], len(table)) * 256
    summed: Sums = np.bitwise_xor.reduce(table.ravel().take(places + rows), axis=-1)
    return summed


def _bytes_of(sums: Sums) -> Bytes:
    return sums.astype("<u4").view(np.uint8)


@cache
def _within_block() -> Sums:
    """By place in a block and byte."""
    table = np.empty((_BLOCK_BYTES, 256), np.uint32)
    table[-1] = _BYTE
    for place in range(_BLOCK_BYTES - 2, -1, -1):
        table[place] = (table[place + 1] >> 8) ^ _BYTE[table[place + 1] & 0xFF]
    return table


@cache
def _before_blocks() -> Sums:
    """By block, by place of a byte in the block's sum, and by the byte's value: its contribution over later blocks."""
    table = np.empty((_BLOCKS, _SUM_BYTES, 256), np.uint32)
    table[-1] = np.arange(256, dtype=np.uint32) << (8 * np.arange(_SUM_BYTES, dtype=np.uint32))[:, None]
    first = _within_block()[:_SUM_BYTES]
    for block in range(_BLOCKS - 2, -1, -1):
        after = table[block + 1]
        table[block] = (
            first[0][after & 0xFF] ^ first[1][after >> 8 & 0xFF] ^ first[2][after >> 16 & 0xFF] ^ first[3][after >> 24]
        )
    return table.reshape(-1, 256)


def _byte_table() -> Sums:
    sums: Sums = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        sums = (sums >> np.uint32(1)) ^ (sums & np.uint32(1)) * np.uint32(_POLYNOMIAL)
    return sums


_BYTE = _byte_table()


def read_state_file(storage: Storage, name: str) -> Iterator[bytes]:
    """The decompressed bytes of a state file, piece by piece.

    FileNotFoundError if it does not exist; CheckpointInvalid, at once or at a later piece, if it is damaged.
    """
    return expand(read_checked(storage, name), storage.path(name))
