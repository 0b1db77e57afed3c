"""What a batch changed in a RocksDB store without changelogs, where every version is a snapshot.

Versions share their tables (see `snapshot`), so what is new between two of them is in few files: the batch's own rows
in a new table, deletions as entries of their own, and what RocksDB has merged meanwhile, in new tables in place of
several old ones. If neither the tables that came nor those that went have a key, both versions have the same entries of
it in the same tables, and so the same value. Hence:

1. The keys of the tables that only one of the two versions has, deletions included (`sst`), are all that can have
   changed.
2. The new version, opened, tells their values; a key that it has not is gone.

Rows that were only moved from table to table come out as changes to what they were, which does no harm. A table that is
not understood, or one of the version before that Spark has deleted, leaves nothing but to load the state anew.
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from stateside.checkpoint.blocks import Block, Change
from stateside.checkpoint.changelog import Changelog, row_block, state_stem
from stateside.checkpoint.checksum import read_checked
from stateside.checkpoint.compression import damaged
from stateside.checkpoint.log import Commit
from stateside.checkpoint.slices import Slices
from stateside.checkpoint.snapshot import Contents, StateSnapshot, read_contents
from stateside.checkpoint.sst import SstUnknown, read_keys
from stateside.errors import CheckpointGap
from stateside.storage import Storage

KEYS_AT_ONCE = 10_000
_FAMILY = struct.Struct("<h")
_DEFAULT = {"default"}


def read_version_changes(
    storage: Storage,
    before: Commit | None,
    commit: Commit,
    operator: int,
    partition: int,
    scratch: Path,
    *,
    prefixed: bool = False,
) -> Changelog:
    """What the batch changed in one partition, of which it and the batch before it (None: it is the first) wrote zips.

    `scratch` is a folder of the reader's own, on the checkpoint's disk if possible. CheckpointGap if there is no zip of
    the batch, or if the difference to the version before it cannot be told.
    """
    name = f"{state_stem(commit, operator, partition)}.zip"
    contents = _contents(storage, name, commit)
    older = _contents(storage, f"{state_stem(before, operator, partition)}.zip", before) if before else None
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        keys = sorted(set(_changed_keys(storage, f"state/{operator}/{partition}", contents, older)))
        with StateSnapshot(storage, name, scratch) as snapshot:
            values = list(_values(snapshot, keys))
            if set(contents.families.values()) > _DEFAULT:
                return Changelog(list(map(_in_family, keys, values)))
            return Changelog(_plain(keys, values, snapshot.path, prefixed))
    except FileNotFoundError as error:
        raise _untold(storage.path(name), commit, f"a table is gone, {error}") from None
    except (SstUnknown, struct.error, IndexError) as error:
        raise _untold(storage.path(name), commit, str(error)) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _contents(storage: Storage, name: str, commit: Commit) -> Contents:
    try:
        return read_contents(storage, name)
    except FileNotFoundError:
        raise _untold(storage.path(name), commit, "that version is gone") from None


def _changed_keys(storage: Storage, folder: str, contents: Contents, older: Contents | None) -> Iterator[bytes]:
    """The keys of the tables that only one of the two versions has."""
    for name in _tables(contents) ^ (_tables(older) if older else set()):
        yield from read_keys(read_checked(storage, f"{folder}/{name}"))


def _tables(contents: Contents) -> set[str]:
    return {table.stored_name for table in contents.tables if table.stored_name.startswith("SSTs/")}


def _values(snapshot: StateSnapshot, keys: Iterable[bytes]) -> Iterator[bytes | None]:
    left = iter(keys)
    while some := list(islice(left, KEYS_AT_ONCE)):
        yield from snapshot.values(some)


def _in_family(key: bytes, value: bytes | None) -> Change:
    return Change(key[_FAMILY.size :], value, _FAMILY.unpack_from(key)[0])


def _plain(keys: list[bytes], values: list[bytes | None], path: str, prefixed: bool) -> Block:
    pairs = Block(Slices.of(keys), Slices.of(values))
    return row_block(pairs, lambda at, reason: damaged(path, at, reason), prefixed=prefixed)


def _untold(path: str, commit: Commit, reason: str) -> CheckpointGap:
    return CheckpointGap(
        f"What batch {commit.batch} changed cannot be told: {reason}",
        where=path,
        next_step="The state is loaded anew; faster is spark.sql.streaming.stateStore.rocksdb"
        ".changelogCheckpointing.enabled=true",
    )
