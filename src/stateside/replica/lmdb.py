"""LMDB environments of replicas: how they are opened and written, and their named databases."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import lmdb

from stateside.core.errors import ReplicaInvalid, SetupError
from stateside.core.storage import allocate
from stateside.replica import checksums
from stateside.replica.checksums import damaged
from stateside.replica.key_table import SnapshotTable, WrittenTable

MAP_BYTES_START = 1 << 30
READER_MAP_BYTES = 1 << 38  # address space, not memory: a reader's map need not grow while it has snapshots open
READERS_MAX = 512
DATABASES_MAX = 8
NAMES = (b"rows", b"rollups", b"meta", b"past", b"undo")
FULL_BYTES = 1 << 20  # with less free space, a failed write is reported as a full disk
_DAMAGE = (lmdb.CorruptedError, lmdb.InvalidError, lmdb.VersionMismatchError, lmdb.PageNotFoundError, lmdb.PanicError)
_LOCK_FILE_BYTES = 64 * (READERS_MAX + 8)
LOCK_BYTES_MIN = 64 * READERS_MAX  # of an intact lock.mdb: 64 bytes for each reader, and some more


class ReplicaNotes(Protocol):
    """Notes about a replica, by name."""

    def get(self, name: bytes, /) -> bytes | None: ...


@dataclass(frozen=True, slots=True)
class Tables:
    """A transaction's view of an environment. `place` is a distinct object for each environment."""

    rows: SnapshotTable
    rollups: SnapshotTable
    meta: ReplicaNotes
    past: SnapshotTable
    undo: SnapshotTable
    place: object


class Databases:
    """The environment's named databases, for the writer; created if missing. Errors as for `write`."""

    def __init__(self, environment: lmdb.Environment) -> None:
        try:
            self.rows, self.rollups, self.meta, self.past, self.undo = map(environment.open_db, NAMES)
        except lmdb.Error as error:
            raise _unwritable(Path(environment.path()), error) from error

    def tables(self, transaction: lmdb.Transaction) -> Tables:
        """A write transaction's view of the databases."""
        databases = (self.rows, self.rollups, self.meta, self.past, self.undo)
        rows, rollups, meta, past, undo = (WrittenTable(transaction, database) for database in databases)
        return Tables(rows, rollups, meta, past, undo, self)


def open_environment(directory: Path, *, readonly: bool = False, sync: bool = True) -> lmdb.Environment:
    """The environment in a folder, created for a writer if missing.

    ReplicaDamaged if the file is not an environment, ReplicaInvalid if it cannot be opened for another reason,
    SetupError if the disk is full.
    """
    there = (directory / "data.mdb").exists()
    try:
        if not readonly:
            directory.mkdir(parents=True, exist_ok=True)
            if not there:
                checksums.begin(directory)
            allocate(directory / "lock.mdb", _LOCK_FILE_BYTES)  # readers register themselves there
        map_bytes = READER_MAP_BYTES if readonly else 0 if there else MAP_BYTES_START
        try:
            return _open(directory, readonly=readonly, sync=sync, map_bytes=map_bytes)
        except lmdb.MemoryError:  # the process may not have so large an address space
            return _open(directory, readonly=readonly, sync=sync, map_bytes=0 if there else MAP_BYTES_START)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise full_disk(directory, str(error.strerror)) from error
    except lmdb.Error as error:
        if not readonly and disk_is_full(directory):
            raise full_disk(directory, str(error)) from error
        if isinstance(error, _DAMAGE):
            raise damaged(directory, f"it cannot be opened, {error}") from error
        raise ReplicaInvalid(
            f"The replica cannot be opened: {error}",
            where=str(directory),
            next_step="See to this folder: it is tried again. If it is deleted, it is rebuilt from the checkpoint",
        ) from error


def write(environment: lmdb.Environment, action: Callable[[lmdb.Transaction], object]) -> None:
    """Run `action` in one transaction, again with a larger map if it does not fit.

    SetupError if the disk is full, ReplicaDamaged where LMDB meets damage, ReplicaInvalid for another failure; nothing
    is written then.
    """
    directory = Path(environment.path())
    while True:
        try:
            with environment.begin(write=True) as transaction:
                action(transaction)
            return
        except lmdb.MapFullError:
            environment.set_mapsize(2 * environment.info()["map_size"])
        except lmdb.Error as error:
            raise _unwritable(directory, error) from error


def sync(environment: lmdb.Environment) -> None:
    """Make all writes durable; errors as for `write`."""
    try:
        environment.sync(True)
    except lmdb.Error as error:
        raise _unwritable(Path(environment.path()), error) from error


def _open(directory: Path, *, readonly: bool, sync: bool, map_bytes: int) -> lmdb.Environment:
    return lmdb.open(
        str(directory),
        readonly=readonly,
        create=not readonly,
        max_dbs=DATABASES_MAX,
        max_readers=READERS_MAX,
        map_size=map_bytes,
        sync=sync,
        metasync=False,  # a loss of power may cost the last batch, which the checkpoint still has; never the order
    )


def _unwritable(directory: Path, error: lmdb.Error) -> ReplicaInvalid | SetupError:
    if isinstance(error, lmdb.DiskError) or disk_is_full(directory):  # LMDB reports a last short write as a disk error
        return full_disk(directory, str(error))
    if isinstance(error, _DAMAGE):
        return damaged(directory, str(error))
    return ReplicaInvalid(
        f"The replica cannot be written: {error}",
        where=str(directory),
        next_step="See to this disk: the replica stays at its last batch, and tries again",
    )


def disk_is_full(directory: Path) -> bool:
    """Whether less than `FULL_BYTES` are free on this folder's disk."""
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize < FULL_BYTES


def full_disk(directory: Path, reason: str) -> SetupError:
    """The error for a disk without space for a replica."""
    return SetupError(
        f"The replica cannot be written, its disk is full: {reason}",
        where=str(directory),
        next_step="Make room on this disk: the replica stays at its last batch, and then goes on by itself",
    )
