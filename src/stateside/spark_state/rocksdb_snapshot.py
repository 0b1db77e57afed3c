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
"""

from __future__ import annotations

import json
import struct
import zipfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any

from rocksdict import AccessType, Options, Rdict, RdictIter

from stateside.core.errors import CheckpointInvalid
from stateside.core.storage import Storage
from stateside.spark_state.batch_log import Commit
from stateside.spark_state.changelog import read_lineage, row_block, state_stem
from stateside.spark_state.checksum import check_copy, read_checked
from stateside.spark_state.slices import BLOCK_BYTES, ChangeBlock, Slices, StateChange

_FAMILY = struct.Struct("<h")
# RocksDB omits an empty delimiter of appended values from OPTIONS, and takes a missing one for a comma.
_NAMED_ONLY = "merge_operator=StringAppendOperator\n"
_WITHOUT_DELIMITER = "merge_operator={id=StringAppendOperator;delimiter=;}\n"
_RAW_KEYS = {"rocksdict-config.json": json.dumps({"raw_mode": True, "prefix_extractors": {}})}


@dataclass(frozen=True, slots=True)
class SnapshotFile:
    """A large file of a snapshot: its name inside RocksDB, its location beside the zip, and its size."""

    local_name: str
    stored_name: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Contents:
    """The metadata in a snapshot's zip: its large files, and the names of the column families by id."""

    tables: tuple[SnapshotFile, ...]
    families: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class Chain:
    """The sources of a partition's state: a snapshot, or nothing, and the changelogs after it, in order.

    Each version is a `Commit` that names this partition's files; Spark may have deleted the real commit.
    """

    operator: int
    partition: int
    snapshot: Commit | None
    changelogs: tuple[Commit, ...]

    def snapshot_name(self) -> str | None:
        return f"{state_stem(self.snapshot, self.operator, self.partition)}.zip" if self.snapshot else None

    def changelog_names(self) -> list[str]:
        return [f"{state_stem(commit, self.operator, self.partition)}.changelog" for commit in self.changelogs]


def newest_chain(
    storage: Storage, commit: Commit, operator: int, partition: int, without: Collection[str] = ()
) -> Chain | None:
    """The shortest chain to the state of a batch; None if every chain lacks a file.

    Snapshots among `without`, whole names, are passed over as damaged.
    """
    folder = f"state/{operator}/{partition}"
    names = {name for name in storage.names(folder) if f"{folder}/{name}" not in without}
    changelogs: list[Commit] = []
    for version in _lineage(storage, commit, operator, partition, names):
        stem = PurePosixPath(state_stem(version, operator, partition)).name
        if f"{stem}.zip" in names:
            return Chain(operator, partition, version, tuple(reversed(changelogs)))
        if f"{stem}.changelog" not in names:
            return None
        changelogs.append(version)
    whole = bool(changelogs) and changelogs[-1].batch == 0
    return Chain(operator, partition, None, tuple(reversed(changelogs))) if whole else None


def _lineage(
    storage: Storage, commit: Commit, operator: int, partition: int, names: Collection[str]
) -> Iterator[Commit]:
    """The versions leading to a batch's state, newest first, without a gap, as far back as the files show."""
    yield commit
    if not commit.state_ids:
        yield from (Commit(batch, 0, {}) for batch in range(commit.batch - 1, -1, -1))
        return
    changelog = f"{state_stem(commit, operator, partition)}.changelog"
    if PurePosixPath(changelog).name not in names:
        return
    ids = dict(read_lineage(storage, changelog))
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
    changelog = f"{state_stem(commit, operator, partition)}.changelog"
    return dict(read_lineage(storage, changelog)) if PurePosixPath(changelog).name in names else {}


def read_contents(storage: Storage, name: str) -> Contents:
    """The metadata in a snapshot's zip; FileNotFoundError if the zip does not exist."""
    content = read_checked(storage, name)
    with _reading(storage.path(name)), zipfile.ZipFile(BytesIO(content)) as archive:
        version, _, text = archive.read("metadata").decode().partition("\n")
        if version != "v1":
            raise ValueError(f"version {version!r} of its metadata is not known")
        metadata: dict[str, Any] = json.loads(text)
        tables = [_table(entry, "SSTs", "dfsSstFileName") for entry in metadata.get("sstFiles") or ()]
        tables += [_table(entry, "logs", "dfsLogFileName") for entry in metadata.get("logFiles") or ()]
        families = metadata["columnFamilyMapping"]
        return Contents(tuple(tables), {int(family): str(family_name) for family_name, family in families.items()})


def _table(entry: Mapping[str, Any], folder: str, name: str) -> SnapshotFile:
    local, stored = PurePosixPath(entry["localFileName"]).name, PurePosixPath(entry[name]).name
    return SnapshotFile(
        f"archive/{local}" if folder == "logs" else local, f"{folder}/{stored}", int(entry["sizeBytes"])
    )


def file_names(storage: Storage, chain: Chain) -> list[str]:
    """All files of the chain; FileNotFoundError if its snapshot is gone."""
    zip_name, folder = chain.snapshot_name(), f"state/{chain.operator}/{chain.partition}"
    if zip_name is None:
        return chain.changelog_names()
    tables = [f"{folder}/{table.stored_name}" for table in read_contents(storage, zip_name).tables]
    return [zip_name, *tables, *chain.changelog_names()]


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

    def rows(self, *, prefixed: bool = False) -> Iterator[StateChange]:
        """The rows of a store without column families, one by one."""
        return chain.from_iterable(self.blocks(prefixed=prefixed))

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
