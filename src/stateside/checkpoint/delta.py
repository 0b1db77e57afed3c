"""Deltas and snapshots: the files of Spark's default state store, the HDFS-backed one, wherever they lie.

`VERSION.delta` has what a batch changed in one partition, version = batch + 1; now and then a `VERSION.snapshot` beside
it has all rows of that version. This store knows checkpoint format v1 only, where a batch that is run again overwrites
its files, and no column families. Inside the envelope, numbers big-endian:

    delta    := (key size (i32)  key  value size (i32; -1: the key was deleted)  value)*  -1 (i32)
    snapshot := the same without deletions

Keys and values are UnsafeRows and nothing else: no version byte before them, and no key is in two parts.

Snapshots are written behind the query's back, of the newest version that there is, which may be one that was not
committed yet. So only the version tells which batches a snapshot has in it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from stateside.checkpoint.changelog import Change, Changelog
from stateside.checkpoint.compression import damaged
from stateside.checkpoint.log import Commit
from stateside.checkpoint.state_file import read_state_file
from stateside.errors import CheckpointGap
from stateside.storage import Storage

_SIZE = struct.Struct(">i")
_END = -1
_DELETED = -1

Record = tuple[bytes, bytes | None]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot of one partition, by its place; it is read when its rows are asked for."""

    storage: Storage
    operator: int
    partition: int
    version: int

    def name(self) -> str:
        """Its file."""
        return f"{_folder(self.operator, self.partition)}/{self.version}.snapshot"

    def rows(self) -> Iterator[Change]:
        """All rows; CheckpointGap if the file is not there.

        Damage is told by CheckpointInvalid, perhaps after some rows: until the last one is there, none may count.
        """
        path = self.storage.path(self.name())
        try:
            pieces = read_state_file(self.storage, self.name())
        except FileNotFoundError:
            raise _gone(path, f"The snapshot of version {self.version} is gone") from None
        return _rows(pieces, path)


def read_delta(storage: Storage, commit: Commit, operator: int, partition: int) -> Changelog:
    """What the batch changed in one partition, in order; CheckpointGap if Spark has deleted that file already."""
    name = f"{_folder(operator, partition)}/{commit.batch + 1}.delta"
    try:
        pieces = read_state_file(storage, name)
    except FileNotFoundError:
        raise _gone(storage.path(name), f"The changes of batch {commit.batch} are gone") from None
    return Changelog([Change(key, value) for key, value in _records(pieces, storage.path(name))])


def newest_snapshot(storage: Storage, operator: int, partition: int, batch: int) -> Snapshot | None:
    """The snapshot from which the state after a batch is built soonest; None if there is none.

    Its version is at most batch + 1, and each delta that is then needed is there. Without one the state can still be
    built from batch 0 on if no delta is gone.
    """
    names = storage.names(_folder(operator, partition))
    deltas, snapshots = _versions(names, ".delta"), _versions(names, ".snapshot")
    version = max((found for found in snapshots if found <= batch + 1), default=None)
    if version is None or not deltas >= set(range(version + 1, batch + 2)):
        return None  # an older snapshot would need these deltas too
    return Snapshot(storage, operator, partition, version)


def _versions(names: Iterable[str], suffix: str) -> set[int]:
    stems = (name.removesuffix(suffix) for name in names if name.endswith(suffix))
    return {int(stem) for stem in stems if stem.isascii() and stem.isdigit()}


def _folder(operator: int, partition: int) -> str:
    return f"state/{operator}/{partition}"


def _gone(path: str, what: str) -> CheckpointGap:
    return CheckpointGap(
        what,
        where=path,
        next_step="Spark deletes old state files; keep more with spark.sql.streaming.minBatchesToRetain",
    )


def _rows(pieces: Iterable[bytes], path: str) -> Iterator[Change]:
    for key, value in _records(pieces, path):
        if value is None:
            raise damaged(path, 0, "a snapshot cannot have a deleted key")
        yield Change(key, value)


def _records(pieces: Iterable[bytes], path: str) -> Iterator[Record]:
    """The records up to the end mark, after which nothing may come. Bytes in errors count inside the envelope."""
    pending, pending_byte, ended = bytearray(), 0, False
    for piece in pieces:
        if ended and piece:
            raise damaged(path, pending_byte, "something follows the end mark")
        pending += piece
        used = 0
        while (record := _whole_record(pending, used, path, pending_byte)) is not None:
            key, value, used = record
            yield key, value
        del pending[:used]
        pending_byte += used
        ended = pending[: _SIZE.size] == _SIZE.pack(_END)
        if ended and len(pending) > _SIZE.size:
            raise damaged(path, pending_byte, "something follows the end mark")
    if not ended:
        raise damaged(path, pending_byte, "a record is cut short")


def _whole_record(
    content: bytearray, at_byte: int, path: str, first_byte: int
) -> tuple[bytes, bytes | None, int] | None:
    """The record here and the byte after it; None if not all of it is there yet, or if this is the end mark."""
    if at_byte + _SIZE.size > len(content):
        return None
    key_byte = at_byte + _SIZE.size
    (key_size,) = _SIZE.unpack_from(content, at_byte)
    if key_size < _END:
        raise damaged(path, first_byte + at_byte, f"a key cannot have {key_size} bytes")
    value_byte = key_byte + key_size + _SIZE.size
    if key_size == _END or value_byte > len(content):
        return None
    (value_size,) = _SIZE.unpack_from(content, key_byte + key_size)
    if value_size < _DELETED:
        raise damaged(path, first_byte + key_byte + key_size, f"a value cannot have {value_size} bytes")
    end_byte = value_byte + max(value_size, 0)
    if end_byte > len(content):
        return None
    key = bytes(content[key_byte : key_byte + key_size])
    return key, None if value_size == _DELETED else bytes(content[value_byte:end_byte]), end_byte
