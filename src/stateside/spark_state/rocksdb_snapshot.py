"""RocksDB snapshots: the whole state of one partition at one version, as RocksDB's own files.

    VERSION.zip, or VERSION_ID.zip in checkpoint format v2, has the small files that change with every version:
        metadata := "v1\\n" {"sstFiles": [{"localFileName": …, "dfsSstFileName": …, "sizeBytes": …}],
                            "logFiles": the same with "dfsLogFileName", or nothing,
                            "columnFamilyMapping": {name: id}, …}
        CURRENT, MANIFEST-…, OPTIONS-…, and a write-ahead log, which is empty
    SSTs/ and logs/ have the large files that never change, shared between versions, under the dfs… names

Together, under their local names, these files are a RocksDB database, opened read-only in a folder of the reader's own.
Its keys and values are those of the changelogs (see `changelog`). Spark writes a snapshot every few batches, in the
background. The state of a batch is the newest snapshot in its lineage and the changelogs after it; before the first
snapshot, all changelogs.

Table files (SSTs) are parsed here too, for their keys, including those of deletions, hidden by RocksDB itself:

    file   := block*  footer (53 bytes)
    footer := checksum type (u8)  place of the meta index  place of the index  zeros up to 41 bytes
              format version (u32)  magic number (u64)
    block  := content  codec (u8)  checksum of content and codec (u32)
    place  := offset (varint)  size of the content (varint)
    content, once expanded := entry*  offset of a restart (u32)*  number of restarts (u32)
    entry  := bytes in common with the key before (varint)  further bytes (varint)  size of the value (varint)
              further bytes of the key  value
              in the index without the size; its value is a place, or, if there are bytes in common, the difference of
              the block's size to that of the block before (signed varint), next to which it lies
    key    := the user's key  kind (u8)  sequence number (7 bytes)       in blocks located by the index

All numbers little-endian. The meta index locates other blocks by name, among them the table's properties and, if any,
range deletions. Spark writes format version 5; versions other than 4 and 5 are refused (`SstUnknown`), as are features
that Spark does not use: partitioned indexes, hash indexes, range deletions.

The changes of a batch in a RocksDB store without changelogs, where every version is a snapshot: versions share their
tables, so few files have the difference between two versions: the batch's own rows in a new table, deletions as entries
of their own, and RocksDB's compactions, as new tables in place of several old ones. If neither the added nor the
removed tables have a key, both versions have the same entries of the key in the same tables, and so the same value:

1. Only keys of tables that belong to just one of the two versions, deletions included, can have changed.
2. The new version, opened, has their values; a key missing there was deleted.

Rows only moved between tables appear as changes to the same value, which does no harm. If a table is not understood, or
Spark has deleted a table of the earlier version, the reader must bootstrap.
"""

from __future__ import annotations

import json
import shutil
import struct
import zipfile
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any

import lz4.block
import pyarrow as pa
import xxhash
from rocksdict import AccessType, Options, Rdict, RdictIter

from stateside.core.errors import CheckpointGap, CheckpointInvalid
from stateside.core.storage import Storage
from stateside.spark_state.batch_log import Commit
from stateside.spark_state.changelog import Changelog, changelog_name, read_lineage, row_block, state_stem
from stateside.spark_state.checksum import check_copy, crc32c, read_checked
from stateside.spark_state.compression import damaged
from stateside.spark_state.slices import BLOCK_BYTES, ChangeBlock, Slices, StateChange

_FAMILY = struct.Struct("<h")
# RocksDB omits an empty delimiter of appended values from OPTIONS, and takes a missing one for a comma.
_NAMED_ONLY = "merge_operator=StringAppendOperator\n"
_WITHOUT_DELIMITER = "merge_operator={id=StringAppendOperator;delimiter=;}\n"
KEYS_AT_ONCE = 10_000
KEYS_COUNTED_MAX = 200_000  # about a second; small states have most of their keys in several tables
_DEFAULT = {"default"}
_RAW_KEYS = {"rocksdict-config.json": json.dumps({"raw_mode": True, "prefix_extractors": {}})}
_FOOTER_BYTES = 53
_MAGIC = 0x88E241B785F4CFF7
_VERSIONS = (4, 5)
_TRAILER = struct.Struct("<BI")
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_KIND_AND_SEQUENCE_BYTES = 8
_NO_CHECKSUM, _CRC32C, _XXH3 = 0, 1, 4
_LAST_BYTE_FACTOR = 0x6B9083D9
_PLAIN, _SNAPPY, _ZLIB, _LZ4, _LZ4HC, _ZSTD = 0, 1, 2, 4, 5, 7
_RANGE_DELETIONS = b"rocksdb.range_del"
_PROPERTIES = b"rocksdb.properties"
_INDEX_TYPE = b"rocksdb.block.based.table.index.type"
_ENTRIES = b"rocksdb.num.entries"
_DELETIONS = b"rocksdb.deleted.keys"
_BINARY_SEARCH = _U32.pack(0)
Place = tuple[int, int]


@dataclass(frozen=True, slots=True)
class SnapshotFile:
    """A large file of a snapshot: its name inside RocksDB, its location beside the zip, and its size."""

    local_name: str
    stored_name: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Contents:
    """The metadata in a snapshot's zip: its large files, the names of the column families by id, and the keys.

    `keys` is None where Spark does not count them.
    """

    tables: tuple[SnapshotFile, ...]
    families: Mapping[int, str]
    keys: int | None = None


def newest_versions(
    storage: Storage, commit: Commit, operator: int, partition: int, without: Collection[str] = ()
) -> tuple[Commit | None, tuple[Commit, ...]] | None:
    """The newest snapshot of a batch's lineage, or none, and the versions after it; None if a file is gone.

    Snapshots among `without`, whole names, are passed over as damaged.
    """
    folder = f"state/{operator}/{partition}"
    names = {name for name in storage.names(folder) if f"{folder}/{name}" not in without}
    changelogs: list[Commit] = []
    for version in _lineage(storage, commit, operator, partition, names):
        stem = PurePosixPath(state_stem(version, operator, partition)).name
        if f"{stem}.zip" in names:
            return version, tuple(reversed(changelogs))
        if f"{stem}.changelog" not in names:
            return None
        changelogs.append(version)
    whole = bool(changelogs) and changelogs[-1].batch == 0
    return (None, tuple(reversed(changelogs))) if whole else None


def _lineage(
    storage: Storage, commit: Commit, operator: int, partition: int, names: Collection[str]
) -> Iterator[Commit]:
    """The versions leading to a batch's state, newest first, without a gap, as far back as the files show."""
    yield commit
    if not commit.state_ids:
        yield from (Commit(batch, 0, {}) for batch in range(commit.batch - 1, -1, -1))
        return
    ids = _earlier_ids(storage, commit, operator, partition, names)
    for version in range(commit.batch, 0, -1):
        if version not in ids:
            return
        earlier = Commit(version - 1, 0, {str(operator): [[ids[version]]] * (partition + 1)})
        yield earlier
        if version - 1 not in ids:  # a lineage ends at a snapshot: that version's own changelog has the earlier part
            ids |= _earlier_ids(storage, earlier, operator, partition, names)


def _earlier_ids(
    storage: Storage, commit: Commit, operator: int, partition: int, names: Collection[str]
) -> dict[int, str]:
    changelog = changelog_name(commit, operator, partition)
    return dict(read_lineage(storage, changelog)) if PurePosixPath(changelog).name in names else {}


def read_contents(storage: Storage, name: str) -> Contents:
    """The metadata in a snapshot's zip; FileNotFoundError if the zip does not exist."""
    content = read_checked(storage, name)
    with _reading(storage.path(name)), zipfile.ZipFile(BytesIO(content)) as archive:
        version, _, text = archive.read("metadata").decode().partition("\n")
        if version != "v1":
            raise ValueError(f"version {version!r} of its metadata is not known")
        metadata: dict[str, Any] = json.loads(text)
        tables = [_snapshot_file(entry, "SSTs", "dfsSstFileName") for entry in metadata.get("sstFiles") or ()]
        tables += [_snapshot_file(entry, "logs", "dfsLogFileName") for entry in metadata.get("logFiles") or ()]
        families = metadata["columnFamilyMapping"]
        named = {int(family): str(family_name) for family_name, family in families.items()}
        return Contents(tuple(tables), named, int(metadata.get("numKeys", 0)) or None)


def _snapshot_file(entry: Mapping[str, Any], folder: str, name: str) -> SnapshotFile:
    local, stored = PurePosixPath(entry["localFileName"]).name, PurePosixPath(entry[name]).name
    return SnapshotFile(
        f"archive/{local}" if folder == "logs" else local, f"{folder}/{stored}", int(entry["sizeBytes"])
    )


def count_keys(storage: Storage, name: str) -> int:
    """How many keys a snapshot has, with deleted ones; FileNotFoundError if a file is gone.

    Exact up to `KEYS_COUNTED_MAX` entries; beyond, the properties of tables are added up, where a key that was written
    again counts once for each table.
    """
    tables = [table for table in table_names(storage, name) if PurePosixPath(table).parent.name == "SSTs"]
    try:
        entries = sum(_entry_count(storage, table) for table in tables)
        if entries > KEYS_COUNTED_MAX:
            return entries
        return len({key for table in tables for key in read_keys(storage.read(table))})
    except (SstUnknown, struct.error, LookupError, ValueError) as error:
        raise CheckpointInvalid(
            f"The keys of a snapshot cannot be counted: {error}",
            where=storage.path(name),
            next_step="Restore its files, or count the keys in another way",
        ) from error


def _entry_count(storage: Storage, table: str) -> int:
    """The puts in a table, by its properties alone."""
    with storage.filesystem.open_input_file(storage.path(table)) as file:
        properties = _Table(_RangedFile(file)).properties
    entries, deletions = (_varint(properties[each], 0)[0] for each in (_ENTRIES, _DELETIONS))
    return max(0, entries - deletions)


def table_names(storage: Storage, name: str) -> list[str]:
    """The large files of a snapshot; FileNotFoundError if the snapshot is gone."""
    return [f"{PurePosixPath(name).parent}/{table.stored_name}" for table in read_contents(storage, name).tables]


class StateSnapshot:
    """An opened snapshot. `scratch`, a folder for this snapshot alone, must exist until it is closed."""

    def __init__(self, storage: Storage, name: str, scratch: Path) -> None:
        self.path = storage.path(name)
        contents = read_contents(storage, name)
        self.families = contents.families
        _put_together(storage, name, contents, scratch)
        with _reading(self.path):
            options, families = Options.load_latest(str(scratch), ignore_unknown_options=True)
            access = AccessType.read_only(error_if_log_file_exist=False)
            self._database = Rdict(str(scratch), options, families, access)

    def __enter__(self) -> StateSnapshot:
        return self

    def __exit__(self, *error: object) -> None:
        self._database.close()

    def blocks(self, *, prefixed: bool = False) -> Iterator[ChangeBlock]:
        """The rows of a store without column families, in key order."""
        for keys, values in self._some_pairs():
            pairs = ChangeBlock(Slices.of(keys), Slices.of(values))
            yield row_block(pairs, lambda _, reason: _unreadable(self.path, reason), prefixed=prefixed)

    def family_rows(self, family: int) -> Iterator[StateChange]:
        """The rows of one column family, in key order."""
        for key, value in self._pairs(_FAMILY.pack(family)):
            yield StateChange(key[_FAMILY.size :], value, family)

    def values(self, keys: list[bytes]) -> list[bytes | None]:
        """The values of the keys; None for a missing key. A key in a column family begins with the family's id."""
        with _reading(self.path):
            found: list[bytes | None] | None = self._database.get([*keys])
            return found or []

    def _pairs(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The pairs whose key begins with the prefix, streamed: no more in memory than RocksDB reads at once."""
        pairs: RdictIter = self._database.iter()
        pairs.seek(prefix) if prefix else pairs.seek_to_first()
        while pairs.valid():
            key = pairs.key()
            if not key.startswith(prefix):
                return
            yield key, pairs.value()
            pairs.next()
        with _reading(self.path):
            pairs.status()  # only this call shows that a damaged table ended the rows early

    def _some_pairs(self) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """All pairs in groups of `BLOCK_BYTES`; like `_pairs`, with less work per row."""
        pairs: RdictIter = self._database.iter()
        pairs.seek_to_first()
        valid, next_key, next_value, step = pairs.valid, pairs.key, pairs.value, pairs.next
        keys, values, size = [], [], 0
        while valid():
            key, value = next_key(), next_value()
            keys.append(key)
            values.append(value)
            size += len(key) + len(value)
            step()
            if size >= BLOCK_BYTES:
                yield keys, values
                keys, values, size = [], [], 0
        with _reading(self.path):
            pairs.status()
        if keys:
            yield keys, values


def _put_together(storage: Storage, name: str, contents: Contents, scratch: Path) -> None:
    folder = str(PurePosixPath(name).parent)
    scratch.mkdir(parents=True)
    with _reading(storage.path(name)), zipfile.ZipFile(BytesIO(read_checked(storage, name))) as archive:
        archive.extractall(scratch)
    for table in contents.tables:
        stored, target = f"{folder}/{table.stored_name}", scratch / table.local_name
        storage.bring(stored, target)
        size_bytes = target.stat().st_size
        if size_bytes != table.size_bytes:
            raise _unreadable(storage.path(stored), f"it has {size_bytes} bytes and should have {table.size_bytes}")
        check_copy(storage, stored, target)
    for setting, content in _RAW_KEYS.items():
        (scratch / setting).write_text(content)
    for options in scratch.glob("OPTIONS-*"):
        options.write_text(options.read_text().replace(_NAMED_ONLY, _WITHOUT_DELIMITER))


@contextmanager
def _reading(path: str) -> Iterator[None]:
    """Turn any error of a damaged snapshot into CheckpointInvalid. RocksDB's errors have no class of their own."""
    try:
        yield
    except CheckpointInvalid:
        raise
    except Exception as error:
        raise _unreadable(path, str(error)) from error


def _unreadable(path: str, reason: str) -> CheckpointInvalid:
    return CheckpointInvalid(
        f"A snapshot of the state cannot be read: {reason}",
        where=path,
        next_step="Restore the file: the replica stays at its last good batch meanwhile",
    )


class SstUnknown(Exception):
    """A table that is damaged or in an unknown form: the caller must find its keys in another way."""


def read_keys(content: bytes) -> Iterator[bytes]:
    """The keys of a table file, in order, each once; SstUnknown, perhaps after some keys, if it cannot be read."""
    try:
        yield from _Table(content).keys()
    except (struct.error, IndexError, ValueError, OverflowError, lz4.block.LZ4BlockError, zlib.error) as error:
        raise SstUnknown(f"the table is damaged: {error!r}") from error


class _RangedFile:
    """A file of which only the sliced ranges are read."""

    def __init__(self, file: pa.NativeFile) -> None:
        self._file, self._size = file, file.size()

    def __getitem__(self, part: slice) -> bytes:
        begin, end, _ = part.indices(self._size)
        return bytes(self._file.read_at(max(0, end - begin), begin))


class _Table:
    def __init__(self, content: bytes | _RangedFile) -> None:
        self._content = content
        footer = content[-_FOOTER_BYTES:]
        if len(footer) < _FOOTER_BYTES or _U64.unpack_from(footer, 45)[0] != _MAGIC:
            raise SstUnknown("it is no table of RocksDB's")
        (version,) = _U32.unpack_from(footer, 41)
        if version not in _VERSIONS:
            raise SstUnknown(f"tables of format version {version} are not known")
        self._checksum = footer[0]
        meta, at_byte = _place(footer, 1)
        self._index, _ = _place(footer, at_byte)
        self.properties = self._known({key: _place(value, 0)[0] for key, value in _entries(self._block(meta))})

    def keys(self) -> Iterator[bytes]:
        before = None
        for place in _places(self._block(self._index)):
            for internal, _ in _entries(self._block(place)):
                key = internal[:-_KIND_AND_SEQUENCE_BYTES]
                if key != before:
                    yield key
                before = key

    def _known(self, meta: dict[bytes, Place]) -> dict[bytes, bytes]:
        """The table's properties; SstUnknown for a table with unknown parts."""
        if _RANGE_DELETIONS in meta:
            raise SstUnknown("the table has deletions of ranges")
        properties = dict(_entries(self._block(meta[_PROPERTIES]))) if _PROPERTIES in meta else {}
        if properties.get(_INDEX_TYPE, _BINARY_SEARCH) != _BINARY_SEARCH:
            raise SstUnknown("the table's index is of a kind that is not known")
        return properties

    def _block(self, place: Place) -> bytes:
        offset, size = place
        end = offset + size
        codec, checksum = _TRAILER.unpack(self._content[end : end + _TRAILER.size])
        stored = self._content[offset:end]
        self._check(stored, codec, checksum)
        return _expanded(stored, codec)

    def _check(self, stored: bytes, codec: int, checksum: int) -> None:
        if self._checksum == _XXH3:
            found = (xxhash.xxh3_64_intdigest(stored) ^ codec * _LAST_BYTE_FACTOR) & 0xFFFFFFFF
        elif self._checksum == _CRC32C:
            found = _masked(crc32c(stored + bytes([codec])))
        elif self._checksum == _NO_CHECKSUM:
            return
        else:
            raise SstUnknown(f"checksums of type {self._checksum} are not known")
        if found != checksum:
            raise SstUnknown("the table is damaged: a block does not match its checksum")


def _masked(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _expanded(stored: bytes, codec: int) -> bytes:
    if codec == _PLAIN:
        return stored
    size, at_byte = _varint(stored, 0)
    if codec == _SNAPPY:  # snappy's own form begins with the size
        return bytes(pa.Codec("snappy").decompress(stored, size, asbytes=True))
    if codec in (_LZ4, _LZ4HC):
        return bytes(lz4.block.decompress(stored[at_byte:], uncompressed_size=size))
    if codec == _ZSTD:
        return bytes(pa.Codec("zstd").decompress(stored[at_byte:], size, asbytes=True))
    if codec == _ZLIB:
        return zlib.decompress(stored[at_byte:], -zlib.MAX_WBITS)
    raise SstUnknown(f"blocks in the codec {codec} are not known")


def _end_of_entries(block: bytes) -> int:
    restarts = int(_U32.unpack_from(block, len(block) - _U32.size)[0])
    if restarts >> 31:
        raise SstUnknown("the table has hash indexes in its blocks")
    end = len(block) - _U32.size * (restarts + 1)
    if end < 0:
        raise IndexError("a block is cut short")
    return end


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The keys and values of a block."""
    at_byte, end, key = 0, _end_of_entries(block), b""
    while at_byte < end:
        shared, at_byte = _varint(block, at_byte)
        further, at_byte = _varint(block, at_byte)
        size, at_byte = _varint(block, at_byte)
        value_at = at_byte + further
        if value_at + size > end or shared > len(key):
            raise IndexError("an entry is cut short")
        key = key[:shared] + block[at_byte:value_at]
        at_byte = value_at + size
        yield key, block[value_at:at_byte]


def _places(index: bytes) -> Iterator[Place]:
    """The places of the blocks with keys."""
    at_byte, end = 0, _end_of_entries(index)
    offset = size = 0
    while at_byte < end:
        shared, at_byte = _varint(index, at_byte)
        further, at_byte = _varint(index, at_byte)
        at_byte += further
        if shared:
            difference, at_byte = _varint(index, at_byte)
            offset, size = offset + size + _TRAILER.size, size + (difference >> 1 ^ -(difference & 1))
        else:
            (offset, size), at_byte = _place(index, at_byte)
        yield offset, size


def _place(content: bytes, at_byte: int) -> tuple[Place, int]:
    offset, at_byte = _varint(content, at_byte)
    size, at_byte = _varint(content, at_byte)
    return (offset, size), at_byte


def _varint(content: bytes, at_byte: int) -> tuple[int, int]:
    """A number in seven bits per byte, the low ones first, and the byte after it."""
    number = content[at_byte]
    at_byte += 1
    if number < 0x80:
        return number, at_byte
    number &= 0x7F
    for shift in range(7, 70, 7):
        byte = content[at_byte]
        at_byte += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at_byte
    raise ValueError("a number has no end")


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
    """The batch's changes in one partition, from the snapshots of the batch and of its predecessor (None: first batch).

    `scratch` is a folder of the reader's own, on the checkpoint's disk if possible. CheckpointGap if the batch has no
    snapshot, or if the difference to the version before cannot be found.
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
    """The keys of the tables that are in only one of the two versions."""
    for name in _tables(contents) ^ (_tables(older) if older else set()):
        yield from read_keys(read_checked(storage, f"{folder}/{name}"))


def _tables(contents: Contents) -> set[str]:
    return {table.stored_name for table in contents.tables if table.stored_name.startswith("SSTs/")}


def _values(snapshot: StateSnapshot, keys: Iterable[bytes]) -> Iterator[bytes | None]:
    left = iter(keys)
    while some := list(islice(left, KEYS_AT_ONCE)):
        yield from snapshot.values(some)


def _in_family(key: bytes, value: bytes | None) -> StateChange:
    return StateChange(key[_FAMILY.size :], value, _FAMILY.unpack_from(key)[0])


def _plain(keys: list[bytes], values: list[bytes | None], path: str, prefixed: bool) -> ChangeBlock:
    pairs = ChangeBlock(Slices.of(keys), Slices.of(values))
    return row_block(pairs, lambda at, reason: damaged(path, at, reason), prefixed=prefixed)


def _untold(path: str, commit: Commit, reason: str) -> CheckpointGap:
    return CheckpointGap(
        f"What batch {commit.batch} changed cannot be told: {reason}",
        where=path,
        next_step="The state is loaded again; faster is spark.sql.streaming.stateStore.rocksdb"
        ".changelogCheckpointing.enabled=true",
    )
