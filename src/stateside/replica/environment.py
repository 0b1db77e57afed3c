"""LMDB environments: how they are opened, written, and which named databases they have."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import lmdb

from stateside.errors import ReplicaInvalid, SetupError

MAP_BYTES_START = 1 << 30
READER_MAP_BYTES = 1 << 38  # of addresses, not of memory: a reader's map need not grow while it has snapshots open
READERS_MAX = 512
DATABASES_MAX = 8
FULL_BYTES = 1 << 20  # where less than this is left, a write that fails does so for want of room
_LOCK_FILE_BYTES = 64 * (READERS_MAX + 8)


class Databases:
    """The environment's named databases. With `create` errors are as for `write`, else NotFoundError of LMDB's."""

    def __init__(self, environment: lmdb.Environment, *, create: bool) -> None:
        try:
            self.rows, self.rollups, self.meta, self.past, self.undo = (
                environment.open_db(name, create=create) for name in (b"rows", b"rollups", b"meta", b"past", b"undo")
            )
        except lmdb.Error as error:
            if not create:
                raise
            raise _unwritable(Path(environment.path()), error) from error


def open_environment(directory: Path, *, readonly: bool = False, sync: bool = True) -> lmdb.Environment:
    """The environment in a folder, made if it is to be written and is not there.

    ReplicaInvalid if it is damaged, SetupError if there is no room for it.
    """
    there = (directory / "data.mdb").exists()
    try:
        if not readonly:
            _allocate_lock_file(directory)
        map_bytes = READER_MAP_BYTES if readonly else 0 if there else MAP_BYTES_START
        try:
            return _open(directory, readonly=readonly, sync=sync, map_bytes=map_bytes)
        except lmdb.MemoryError:  # so many addresses are not allowed here
            return _open(directory, readonly=readonly, sync=sync, map_bytes=0 if there else MAP_BYTES_START)
    except lmdb.Error as error:
        if not readonly and disk_is_full(directory):
            raise full_disk(directory, str(error)) from error
        raise ReplicaInvalid(
            f"The replica cannot be opened: {error}",
            where=str(directory),
            next_step="Delete this folder: it is rebuilt from the checkpoint",
        ) from error


def open_to_read(directory: Path) -> tuple[lmdb.Environment, Databases]:
    """The environment in a folder, with its databases; FileNotFoundError if it is not there, or only just made."""
    if not (directory / "data.mdb").exists():
        raise FileNotFoundError(directory)
    environment = open_environment(directory, readonly=True)
    try:
        return environment, Databases(environment, create=False)
    except lmdb.NotFoundError:  # its writer is only just making it
        environment.close()
        raise FileNotFoundError(directory) from None


def write(environment: lmdb.Environment, action: Callable[[lmdb.Transaction], object]) -> None:
    """Do this in one transaction, again in a larger map if it does not fit.

    SetupError if the disk is full, ReplicaInvalid if it fails otherwise; nothing is written then.
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
    """Make all that was written durable; errors as for `write`."""
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


def _allocate_lock_file(directory: Path) -> None:
    """Give the file that readers enter themselves in all of its blocks, before LMDB maps it.

    On a full disk a reader that touches a block that is not there yet would be killed by a signal.
    """
    directory.mkdir(parents=True, exist_ok=True)
    handle = os.open(directory / "lock.mdb", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        with suppress(OSError):  # a file system that cannot: then it is as it was
            os.posix_fallocate(handle, 0, _LOCK_FILE_BYTES)
    finally:
        os.close(handle)


def _unwritable(directory: Path, error: lmdb.Error) -> ReplicaInvalid | SetupError:
    if isinstance(error, lmdb.DiskError) or disk_is_full(directory):  # LMDB takes the last short write for a bad disk
        return full_disk(directory, str(error))
    return ReplicaInvalid(
        f"The replica cannot be written: {error}",
        where=str(directory),
        next_step="See to this disk: the replica stays at its last batch, and tries again",
    )


def disk_is_full(directory: Path) -> bool:
    """Whether there is hardly any room left where this folder lies."""
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize < FULL_BYTES


def full_disk(directory: Path, reason: str) -> SetupError:
    """What is told of a disk without room for a replica."""
    return SetupError(
        f"The replica cannot be written, its disk is full: {reason}",
        where=str(directory),
        next_step="Make room on this disk: the replica stays at its last batch, and then goes on by itself",
    )
