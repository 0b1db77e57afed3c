"""Column families: the parts of a `transformWithState` state store, one or more per state variable.

Their schemas: `state/OPERATOR/_metadata/v2/BATCH` names, for each start of the query, all schemas that the state ever
had, in `"stateStoreInfo": [{"stateSchemaFilePaths": [path…], …}]`, the newest one last:

    state/OPERATOR/_stateSchema/default/NAME := "v3" (UTF)  families (i32)  family*
    family := name (UTF)  id (i16)  schema (of the key)  id (i16)  schema (of the value)
              encoder (of the key)  schema (of a map's key, else empty)

where a schema, and the encoder, is a JSON text in chunks (see `schema`). The ids count the versions of a family's key
and value: with Avro they may change, and every row carries the id of its schema.

Their names: a changelog identifies families by ids. Snapshots have the names: Spark writes a snapshot whenever the
families change, before the changelog of that batch (see `rocksdb_snapshot`). Ids count up from 1 within a partition and
are never reused, unless Spark repartitions the state: that batch is a snapshot, from which readers learn the ids again.

Besides the family of its own name a variable may have others, whose names begin with `$`: counts, expiry times.

The value of a list state: its entries one after the other, in the form of RocksDB's merge operator for appended values.

    value     := entry (delimiter entry)*
    entry     := size (i32, little-endian)  so many bytes: a value as of a value state (see `state_variables`)
    delimiter := "," with merge operator 1, nothing with merge operator 2

A changelog has `put` with all entries of a list, `merge` with the entries appended to the key's earlier ones, and
`delete`. From Spark 4.2 on every `offsets/N` names the query's merge operator, which never changes; earlier versions
had only 1.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from stateside.core.errors import CheckpointInvalid
from stateside.core.storage import Storage
from stateside.spark_state.batch_log import Checkpoint, Commit
from stateside.spark_state.changelog import Changelog, state_stem
from stateside.spark_state.checksum import read_checked
from stateside.spark_state.compression import damaged
from stateside.spark_state.rocksdb_snapshot import read_contents
from stateside.spark_state.types import read_chunks, read_utf

_ID = struct.Struct(">h")
_SETTING = "spark.sql.streaming.stateStore.rocksdb.mergeOperatorVersion"
_DELIMITERS = {"1": b",", "2": b""}
_SIZE = struct.Struct("<i")


@dataclass(frozen=True, slots=True)
class Family:
    """A column family of a schema file; key and value types as Spark's JSON."""

    key: dict[str, Any]
    value: dict[str, Any]
    encoder: dict[str, Any]
    key_id: int = 0
    value_id: int = 0


def read_families(storage: Storage, operator: int) -> dict[str, Family]:
    """The current families of an operator's state; FileNotFoundError before its first batch is planned."""
    metadata, name = Checkpoint(storage).operator_metadata(operator)
    try:
        return list(schemas(storage, operator, metadata["stateStoreInfo"][0]["stateSchemaFilePaths"]))[-1]
    except (ValueError, LookupError, TypeError) as error:
        raise CheckpointInvalid(
            f"The schemas of the state's column families cannot be read: {error!r}", where=storage.path(name)
        ) from error


def schemas(storage: Storage, operator: int, paths: list[str]) -> Iterator[dict[str, Family]]:
    """The schemas at these paths. Only the file names count: the checkpoint may have been moved."""
    *older, newest = [path.rsplit("/", 1)[-1] for path in paths]
    for name in older:
        with suppress(FileNotFoundError):  # an old one may have been deleted
            yield _read_schema(storage, operator, name)
    try:
        yield _read_schema(storage, operator, newest)
    except FileNotFoundError as error:
        raise ValueError(f"its schema {newest} is gone") from error


def _read_schema(storage: Storage, operator: int, name: str) -> dict[str, Family]:
    path = f"state/{operator}/_stateSchema/default/{name}"
    content = read_checked(storage, path)
    try:
        version, at_byte = read_utf(content, 0)
        if version != "v3":
            raise ValueError(f"version {version!r} is not known")
        (count,) = struct.unpack_from(">i", content, at_byte)
        return dict(_families(content, at_byte + 4, count))
    except (struct.error, ValueError) as error:
        raise CheckpointInvalid(f"The state's schema cannot be read: {error}", where=storage.path(path)) from error


def _families(content: bytes, at_byte: int, count: int) -> Iterator[tuple[str, Family]]:
    for _ in range(count):
        name, at_byte = read_utf(content, at_byte)
        (key_id,) = _ID.unpack_from(content, at_byte)
        key, at_byte = read_chunks(content, at_byte + _ID.size)
        (value_id,) = _ID.unpack_from(content, at_byte)
        value, at_byte = read_chunks(content, at_byte + _ID.size)
        encoder, at_byte = read_chunks(content, at_byte)
        _, at_byte = read_chunks(content, at_byte)  # a map's key is in the key as well
        yield name, Family(key, value, encoder, key_id, value_id)


class ColumnFamilies:
    """Cache of the names of one operator's families by id, filled on demand from snapshots."""

    def __init__(self, storage: Storage, operator: int) -> None:
        self._storage, self._operator = storage, operator
        self._names: dict[int, dict[int, str]] = {}

    def names(self, commit: Commit, partition: int, changelog: Changelog) -> Mapping[int, str]:
        """The names by id of at least the families in this changelog; CheckpointInvalid if one has none."""
        names = self._names.setdefault(partition, {})
        ids = {change.family for change in changelog.changes if change.family is not None}
        for snapshot in self._snapshots(commit, partition, changelog):
            if ids <= names.keys():
                break
            names.update(self._mapping(snapshot))
        unknown = ids - names.keys()
        if unknown:
            raise CheckpointInvalid(
                f"The column family {min(unknown)} is in no snapshot up to batch {commit.batch}",
                where=self._storage.path(state_stem(commit, self._operator, partition)),
                next_step="Spark keeps a snapshot for every batch it keeps: see whether files were deleted by hand",
            )
        return names

    def learn(self, partition: int, names: Mapping[int, str]) -> None:
        """Cache the family names of a snapshot of this partition, complete from its version on."""
        self._names[partition] = dict(names)

    def _snapshots(self, commit: Commit, partition: int, changelog: Changelog) -> Iterator[str]:
        """The possible snapshots up to this batch, newest first, found lazily."""
        yield f"{state_stem(commit, self._operator, partition)}.zip"
        folder = f"state/{self._operator}/{partition}"
        if commit.state_ids:
            yield from (f"{folder}/{version}_{state_id}.zip" for version, state_id in reversed(changelog.lineage))
            return
        stems = (name.removesuffix(".zip") for name in self._storage.names(folder) if name.endswith(".zip"))
        older = (int(stem) for stem in stems if stem.isdigit() and int(stem) <= commit.batch)
        yield from (f"{folder}/{version}.zip" for version in sorted(older, reverse=True))

    def _mapping(self, name: str) -> Mapping[int, str]:
        try:
            return read_contents(self._storage, name).families
        except FileNotFoundError:
            return {}  # that version has no snapshot


def delimiter_of(checkpoint: Checkpoint) -> bytes:
    """The delimiter of entries in the query's lists; FileNotFoundError before its first batch is committed."""
    plan, path = checkpoint.newest_plan()
    version = plan.conf.get(_SETTING, "1")
    if version not in _DELIMITERS:
        raise CheckpointInvalid(
            f"Lists are kept by merge operator {version}, which is not known",
            where=path,
            next_step=f"Run the query on a new folder with {_SETTING}=2",
        )
    return _DELIMITERS[version]


def split_entries(value: bytes, delimiter: bytes, path: str) -> Iterator[bytes]:
    """The entries of a list, or of an appended part of one; CheckpointInvalid for unknown framing."""
    at_byte = 0
    while True:
        begin = at_byte + _SIZE.size
        size = _SIZE.unpack_from(value, at_byte)[0] if begin <= len(value) else -1
        end = begin + size
        if size < 0 or end > len(value):
            raise damaged(path, 0, "an entry of a list is cut short")
        yield value[begin:end]
        if end == len(value):
            return
        if not value.startswith(delimiter, end):
            raise damaged(path, 0, "two entries of a list are not apart as expected")
        at_byte = end + len(delimiter)
