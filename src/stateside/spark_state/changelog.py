"""Changelogs: the changes of one batch in one partition of a RocksDB state store.

The name is `VERSION.changelog` in checkpoint format v1 and `VERSION_ID.changelog` in v2, version = batch + 1. Inside
the compression envelope, all numbers big-endian unless said otherwise:

    v1 := pair* -1 (i32)
    v2 := "v2" (UTF)  record* 00
    v3 := "v3" (UTF)  lineage (UTF, JSON)  pair* -1 (i32)
    v4 := "v4" (UTF)  lineage (UTF, JSON)  record* 00

    pair   := key size (i32)  key  value size (i32; -1: the key was deleted)  value
    record := 01  pair          the key has this value now
            | 10  pair          the key was deleted; its value size is -1
            | 11  pair          the value was appended to the key's earlier values
            | 20  pair          a range of keys was deleted; refused, no served operator writes it

(UTF: u16 length and bytes.) The lineage names the versions since the last snapshot with their ids. In v1 and v3 a key
and a value are a version byte and an UnsafeRow each. In v2 and v4, written by `transformWithState`, a key begins with
the id of its column family (i16, little-endian); the rest of the key, and the value, are in the family's own encoding.

Where an operator looks keys up by their first columns (the sessions of a user, say), v1 and v3 have keys in two parts.
The file does not show this: the reader must know which operators do so.

    prefixed key := size of the first part (i32, little-endian)  first part  second part     each a byte and a row
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from stateside.core.errors import CheckpointGap, CheckpointInvalid
from stateside.core.storage import Storage
from stateside.spark_state.batch_log import Commit, Plan
from stateside.spark_state.checksum import read_state_file
from stateside.spark_state.compression import damaged
from stateside.spark_state.slices import ChangeBlock, Slices, StateChange, numbers_at, whole_block

_INT = struct.Struct(">i")
_FAMILY = struct.Struct("<h")
_PREFIX_SIZE = struct.Struct("<i")
_END = -1
_DELETED = -1
_LAST_RECORD, _PUT_RECORD, _DELETE_RECORD, _MERGE_RECORD = 0x00, 0x01, 0x10, 0x11
_ROW_VERSION = b"\x00"
_CONF = "spark.sql.streaming.stateStore"

__all__ = ["StateChange"]  # defined in `slices`; readers of changelogs find the class here too
Invalid = Callable[[int, str], CheckpointInvalid]  # the error for damage, from the byte and the reason


@dataclass(frozen=True, slots=True)
class Changelog:
    """The changes of a batch in order, and the versions (with their ids) since the last snapshot before the batch.

    The changes of a store without column families are a `ChangeBlock`.
    """

    changes: Collection[StateChange]
    lineage: tuple[tuple[int, str], ...] = ()


def read_changelog(
    storage: Storage, commit: Commit, operator: int, partition: int, *, prefixed: bool = False
) -> Changelog:
    """The batch's changes in one partition, in order; CheckpointGap if Spark has deleted the file already."""
    name = changelog_name(commit, operator, partition)
    try:
        content = b"".join(read_state_file(storage, name))
    except FileNotFoundError:
        raise gone(f"The changes of batch {commit.batch} are gone", storage.path(name)) from None
    return _parse(content, storage.path(name), prefixed)


def gone(what: str, path: str) -> CheckpointGap:
    """The error for a state file that Spark has deleted."""
    return CheckpointGap(
        what,
        where=path,
        next_step="Spark deletes old state files; keep more with spark.sql.streaming.minBatchesToRetain",
    )


def changelog_name(commit: Commit, operator: int, partition: int) -> str:
    return f"{state_stem(commit, operator, partition)}.changelog"


def state_stem(commit: Commit, operator: int, partition: int) -> str:
    """The common prefix of the names of a batch's state files."""
    state_id = commit.state_id(operator, partition)
    version = commit.batch + 1
    return f"state/{operator}/{partition}/" + (f"{version}_{state_id}" if state_id else f"{version}")


def check_encoding(plan: Plan, path: str) -> None:
    """Refuse unknown row encodings: such rows, read as plain ones, might look right and be wrong."""
    encoding = plan.conf.get(f"{_CONF}.encodingFormat", "unsaferow").lower()
    if encoding not in ("unsaferow", "avro"):  # `avro_row` has the limits of Avro
        raise CheckpointInvalid(
            f"The state's rows are encoded as {encoding}, which cannot be read",
            where=path,
            next_step=f"Run the query on a new folder with {_CONF}.encodingFormat=unsaferow",
        )
    if plan.conf.get(f"{_CONF}.rowChecksum.enabled", "false").lower() == "true":
        raise CheckpointInvalid(
            "The state's rows carry checksums, which cannot be read",
            where=path,
            next_step=f"Run the query on a new folder with {_CONF}.rowChecksum.enabled=false",
        )


def plain_row(stored: bytes, path: str) -> bytes:
    """The UnsafeRow after its version byte."""
    if stored[:1] != _ROW_VERSION:
        raise damaged(path, 0, f"rows of encoding {stored[:1].hex()} are not known")
    return stored[1:]


def row_block(block: ChangeBlock, invalid: Invalid, *, prefixed: bool) -> ChangeBlock:
    """The changes in the pairs of a store without column families, all of them UnsafeRows."""
    first, rest = _split(block.keys, invalid) if prefixed else (block.keys, None)
    return ChangeBlock(
        _plain_rows(first, invalid), _plain_rows(block.values, invalid), _plain_rows(rest, invalid) if rest else None
    )


def read_lineage(storage: Storage, name: str) -> tuple[tuple[int, str], ...]:
    """The lineage of a changelog alone; FileNotFoundError if the file does not exist."""
    path = storage.path(name)
    content = b"".join(read_state_file(storage, name))
    try:
        return _header(content, path)[1]
    except (struct.error, LookupError, ValueError, TypeError) as error:
        raise damaged(path, 0, f"its lineage is not as expected, {error!r}") from None


def _parse(content: bytes, path: str, prefixed: bool = False) -> Changelog:
    at_byte = 0
    try:
        version, lineage, at_byte = _header(content, path)
        if version in (1, 3):
            block = whole_block(content, path, at_byte)
            return Changelog(row_block(block, partial(damaged, path), prefixed=prefixed), lineage)
        return Changelog(list(_records(content, at_byte, path)), lineage)
    except (struct.error, IndexError):
        raise damaged(path, at_byte, "a record is cut short") from None
    except (ValueError, LookupError, TypeError) as error:
        raise damaged(path, at_byte, f"its lineage is not as expected, {error!r}") from None


def _header(content: bytes, path: str) -> tuple[int, tuple[tuple[int, str], ...], int]:
    """The version, the lineage, and the byte where the records begin."""
    if content[:3] != b"\x00\x02v":
        return 1, (), 0  # no header: with these digits its first key would be 159,000 bytes long
    version = content[3:4]
    if version not in (b"2", b"3", b"4"):
        raise CheckpointInvalid(
            f"A changelog of version {version.decode(errors='replace')} cannot be read",
            where=path,
            next_step="Stateside reads versions 1 to 4, which Spark 4.0 to 4.2 writes",
        )
    if version == b"2":
        return 2, (), 4
    (size,) = struct.unpack_from(">H", content, 4)
    if 6 + size > len(content):
        raise IndexError
    items = json.loads(content[6 : 6 + size])
    return int(version), tuple((int(item["version"]), str(item["checkpointUniqueId"])) for item in items), 6 + size


def _records(content: bytes, at_byte: int, path: str) -> Iterator[StateChange]:
    """The records of versions 2 and 4."""
    while content[at_byte] != _LAST_RECORD:
        kind = content[at_byte]
        if kind not in (_PUT_RECORD, _DELETE_RECORD, _MERGE_RECORD):
            raise damaged(path, at_byte, f"records of kind {kind:02x} are not known")
        key, at_byte = _sized(content, at_byte + 1)
        value, at_byte = _sized(content, at_byte)
        if key is None or (value is None) != (kind == _DELETE_RECORD):
            raise IndexError
        (family,) = _FAMILY.unpack_from(key)
        yield StateChange(key[_FAMILY.size :], value, family, appended=kind == _MERGE_RECORD)


def _sized(content: bytes, at_byte: int) -> tuple[bytes | None, int]:
    """A length and so many bytes; None for the length -1, which ends the file or marks a deletion."""
    (size,) = _INT.unpack_from(content, at_byte)
    begin, end = at_byte + _INT.size, at_byte + _INT.size + max(size, 0)
    if size < _DELETED or end > len(content):
        raise IndexError
    return (None if size == _END else content[begin:end]), end


def _plain_rows(stored: Slices, invalid: Invalid) -> Slices:
    """The UnsafeRows after their version bytes."""
    first = np.full(len(stored), -1)
    first[stored.sizes > 0] = numbers_at(stored.content, stored.begins[stored.sizes > 0], "u1")
    bad = np.flatnonzero((first != _ROW_VERSION[0]) & (stored.sizes >= 0))
    if len(bad):
        encoding = "".join(f"{number:02x}" for number in first[bad[:1]] if number >= 0)
        raise invalid(int(stored.begins[bad[0]]), f"rows of encoding {encoding} are not known")
    return stored.without(len(_ROW_VERSION))


def _split(keys: Slices, invalid: Invalid) -> tuple[Slices, Slices]:
    """The two parts of prefixed keys."""
    begins, rooms = keys.begins + _PREFIX_SIZE.size, keys.sizes - _PREFIX_SIZE.size
    sizes = np.full(len(keys), -1)
    sizes[rooms >= 0] = numbers_at(keys.content, keys.begins[rooms >= 0], "<i4")
    bad = np.flatnonzero((sizes < 0) | (sizes > rooms))
    if len(bad):
        raise invalid(int(keys.begins[bad[0]]), "a key is cut short")
    return Slices(keys.content, begins, sizes), Slices(keys.content, begins + sizes, rooms - sizes)
