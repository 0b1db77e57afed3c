"""Changelogs: what one batch changed in one partition of a RocksDB state store.

The name is `VERSION.changelog` in checkpoint format v1 and `VERSION_ID.changelog` in v2, version = batch + 1. Inside
the LZ4 envelope, all numbers big-endian:

    v1 := record* -1 (i32)
    v3 := "v3" (UTF)  lineage (UTF, JSON)  record* -1 (i32)
    record := key size (i32)  key  value size (i32; -1: the key was deleted)  value

(UTF: u16 length and bytes.) The lineage names the versions since the last snapshot with their ids. Versions 2 and 4,
which `transformWithState` writes, are refused for now. A key and a value are a version byte and an UnsafeRow. Where the
first columns of the key can be asked for by themselves (the sessions of a user, say), its bytes are in two parts:

    prefixed key := size of the first part (i32, little-endian)  first part  second part     each a byte and a row
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from stateside.checkpoint.compression import damaged, decompress
from stateside.checkpoint.log import Commit
from stateside.errors import CheckpointGap, CheckpointInvalid
from stateside.storage import Storage

_INT = struct.Struct(">i")
_PREFIX_SIZE = struct.Struct("<i")
_END = -1
_DELETED = -1


@dataclass(frozen=True, slots=True)
class Change:
    """A key and its new value as UnsafeRows; None means that the key left the state.

    Of a prefixed key, `key` has the first columns and `key_rest` the others, each a row of its own.
    """

    key: bytes
    value: bytes | None
    key_rest: bytes | None = None


def read_changes(
    storage: Storage, commit: Commit, operator: int, partition: int, *, prefixed: bool = False
) -> list[Change]:
    """What the batch changed in one partition, in order; CheckpointGap if Spark has deleted that file already."""
    name = changelog_name(commit, operator, partition)
    try:
        content = storage.read(name)
    except FileNotFoundError:
        raise CheckpointGap(
            f"The changes of batch {commit.batch} are gone",
            where=storage.path(name),
            next_step="Spark deletes old state files; keep more with spark.sql.streaming.minBatchesToRetain",
        ) from None
    path = storage.path(name)
    return list(_records(decompress(content, path), path, prefixed))


def changelog_name(commit: Commit, operator: int, partition: int) -> str:
    """Where the changes of a batch lie."""
    state_id = commit.state_id(operator, partition)
    version = commit.batch + 1
    stem = f"{version}_{state_id}" if state_id else f"{version}"
    return f"state/{operator}/{partition}/{stem}.changelog"


def _records(content: bytes, path: str, prefixed: bool = False) -> Iterator[Change]:
    at_byte = 0
    try:
        at_byte = _skip_header(content, path)
        while True:
            key, at_byte = _sized(content, at_byte)
            if key is None:
                return
            value, at_byte = _sized(content, at_byte)
            first, rest = _split(key) if prefixed else (key, None)
            yield Change(
                _row(first, path),
                None if value is None else _row(value, path),
                None if rest is None else _row(rest, path),
            )
    except (struct.error, IndexError):
        raise damaged(path, at_byte, "a record is cut short") from None


def _sized(content: bytes, at_byte: int) -> tuple[bytes | None, int]:
    """A length and so many bytes; None for the length -1, which ends the file or marks a deletion."""
    (size,) = _INT.unpack_from(content, at_byte)
    begin, end = at_byte + _INT.size, at_byte + _INT.size + max(size, 0)
    if size < _DELETED or end > len(content):
        raise IndexError
    return (None if size == _END else content[begin:end]), end


def _skip_header(content: bytes, path: str) -> int:
    """The byte where the records begin."""
    if content[:3] != b"\x00\x02v":
        return 0  # version 1 has no header; its first key cannot be 159,000 bytes long with these digits
    version = content[3:4]
    if version != b"3":
        raise CheckpointInvalid(
            f"A changelog of version {version.decode(errors='replace')} cannot be read yet",
            where=path,
            next_step="Views with native aggregations can be served; transformWithState follows",
        )
    (lineage_size,) = struct.unpack_from(">H", content, 4)
    return 6 + int(lineage_size)


def _split(key: bytes) -> tuple[bytes, bytes]:
    """The two parts of a prefixed key."""
    (size,) = _PREFIX_SIZE.unpack_from(key)
    begin, end = _PREFIX_SIZE.size, _PREFIX_SIZE.size + size
    if not begin <= end <= len(key):
        raise IndexError
    return key[begin:end], key[end:]


def _row(stored: bytes, path: str) -> bytes:
    if not stored or stored[0] != 0:
        raise damaged(path, 0, f"rows of encoding {stored[:1].hex()} are not known")
    return stored[1:]
