"""LMDB environments of replicas: folder, opening, writing, named databases.

    replica/writer.lock     held by the one process that writes here
    replica/data.mdb        the environment of a replica that was never bootstrapped, with its lock.mdb and checksums
    replica/current         after a bootstrap: the name of the current folder
    replica/7/data.mdb      the environment in that folder
    replica/loading/        files of the checkpoint during a bootstrap
    replica/damaged/        the last damaged environment, for diagnosis

Environments follow each other as `core.generations`. All other files are leftovers of a crash, removed by the next
writer.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import lmdb

from stateside.core import generations
from stateside.core import lmdb as core_lmdb
from stateside.core.errors import ReplicaInvalid, SetupError
from stateside.replica import checksums
from stateside.replica.checksums import damaged
from stateside.replica.key_table import SnapshotTable, WrittenTable

MAP_BYTES_START = 1 << 30
_LOADING = "loading"
_DAMAGED = "damaged"
_BEAT = "beat"  # file of an older Stateside beside data.mdb
READER_MAP_BYTES = 1 << 38  # address space, not memory: a reader's map need not grow while it has snapshots open
READERS_MAX = 512
DATABASES_MAX = 8
NAMES = (b"rows", b"rollups", b"meta", b"past", b"undo")
FULL_BYTES = 1 << 20  # with less free space, a failed write is reported as a full disk
LOCK_BYTES_MIN = 64 * READERS_MAX  # of an intact lock.mdb: 64 bytes for each reader, and some more

Sign = tuple[int, int] | None


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
        own_bytes = 0 if there else MAP_BYTES_START
        return core_lmdb.open_environment(
            directory,
            map_bytes=(READER_MAP_BYTES, own_bytes) if readonly else (own_bytes,),
            databases_max=DATABASES_MAX,
            readers_max=READERS_MAX,
            create=not readonly,
            readonly=readonly,
            sync=sync,
            check_size=False,  # `VerifiedPages` and `Integrity` compare with the published size
        )
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise full_disk(directory, str(error.strerror)) from error
    except lmdb.Error as error:
        if not readonly and disk_is_full(directory):
            raise full_disk(directory, str(error)) from error
        if isinstance(error, core_lmdb.DAMAGE):
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
    try:
        core_lmdb.write(environment, action)
    except lmdb.Error as error:
        raise _unwritable(Path(environment.path()), error) from error


def sync(environment: lmdb.Environment) -> None:
    """Make all writes durable; errors as for `write`."""
    try:
        environment.sync(True)
    except lmdb.Error as error:
        raise _unwritable(Path(environment.path()), error) from error


def _unwritable(directory: Path, error: lmdb.Error) -> ReplicaInvalid | SetupError:
    if isinstance(error, lmdb.DiskError) or disk_is_full(directory):  # LMDB reports a last short write as a disk error
        return full_disk(directory, str(error))
    if isinstance(error, core_lmdb.DAMAGE):
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


def current_folder(directory: Path) -> Path:
    """The folder of the current environment."""
    try:
        return generations.current(directory) or directory
    except ValueError as error:
        raise ReplicaInvalid(
            f"The replica's pointer names no folder: {error}",
            where=str(directory / generations.POINTER),
            next_step="Nothing: the server that moves it rebuilds it from the checkpoint",
        ) from error


def current_sign(directory: Path) -> Sign:
    """A value that changes with the current environment; cheap enough for every read."""
    try:
        found = os.stat(f"{directory}/{generations.POINTER}")  # noqa: PTH116 - a Path takes as long as the call
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns


def loading_folder(directory: Path) -> Path:
    """The folder of the checkpoint's files during a bootstrap."""
    return directory / _LOADING


def move_aside(directory: Path, folder: Path) -> Path:
    """Move a replaced environment to the folder for damaged ones, which keeps the last one."""
    aside = directory / _DAMAGED
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    for path in [path for path in folder.iterdir() if _belongs(path)]:
        path.rename(aside / path.name)
    return aside


def clean_up(directory: Path) -> None:
    """Remove replaced environments and leftovers of crashes. The caller holds the lock."""
    folder = current_folder(directory)
    generations.remove_replaced(directory, folder)
    shutil.rmtree(directory / _LOADING, ignore_errors=True)
    for path in directory.iterdir() if folder != directory else ():
        if _belongs(path):
            path.unlink(missing_ok=True)


def _belongs(path: Path) -> bool:
    """Whether a file belongs to an environment."""
    return path.suffix == ".mdb" or path.name in (checksums.NAME, checksums.DAMAGE, _BEAT)
