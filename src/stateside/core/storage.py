"""Storage: reads through `pyarrow.fs`, so checkpoints may lie on local disk, S3 or HDFS; atomic writes; small objects
changed by compare-and-swap; file locks."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import secrets
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Protocol

import pyarrow.fs as pafs

from stateside.core.wait import wait_until

CLOSED: Final = -1  # in place of a closed file's descriptor, a number that the system may give to another file

SWAP_S_MAX: Final = 30.0  # how long to wait for another process that swaps the same object; it may be paused

_COPY_BYTES = 1 << 20
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP)  # how a file system without hard links refuses them


@dataclass(frozen=True, slots=True)
class Storage:
    """A read-only folder on some file system. Paths are relative to the folder, with `/`."""

    filesystem: pafs.FileSystem
    root: str

    @classmethod
    def at(cls, location: str | Path) -> Storage:
        """The folder at a local path or a URI (`s3://…`, `hdfs://…`)."""
        text = str(location)
        if "://" in text:
            filesystem, root = pafs.FileSystem.from_uri(text)
            return cls(filesystem, root.rstrip("/"))
        return cls(pafs.LocalFileSystem(), str(Path(text).resolve()))

    def path(self, relative: str) -> str:
        """The whole path of a file in this folder, for messages and for reading."""
        return f"{self.root}/{relative}" if relative else self.root

    def within(self, relative: str) -> Storage:
        return Storage(self.filesystem, self.path(relative))

    def read(self, relative: str) -> bytes:
        """The content of the file; FileNotFoundError if the file does not exist."""
        with self.filesystem.open_input_stream(self.path(relative), compression=None) as stream:
            return bytes(stream.read())

    def names(self, relative: str = "") -> list[str]:
        """The names in a folder, sorted; empty if the folder does not exist."""
        selector = pafs.FileSelector(self.path(relative), allow_not_found=True)
        return sorted(info.base_name for info in self.filesystem.get_file_info(selector))

    def exists(self, relative: str) -> bool:
        return bool(self._info(relative).type != pafs.FileType.NotFound)

    def is_folder(self, relative: str) -> bool:
        return bool(self._info(relative).type == pafs.FileType.Directory)

    def modified_us(self, relative: str) -> int:
        """The modification time in microseconds since 1970; FileNotFoundError if the file does not exist."""
        info = self._info(relative)
        if info.type == pafs.FileType.NotFound:
            raise FileNotFoundError(self.path(relative))
        return int(info.mtime_ns) // 1_000

    def bring(self, relative: str, target: Path) -> None:
        """Link the file to a local path, or copy it where no link is possible. The target outlives the source.

        FileNotFoundError if the file does not exist.
        """
        target.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(self.filesystem, pafs.LocalFileSystem):
            try:
                os.link(self.path(relative), target)
                return
            except FileNotFoundError:
                raise
            except OSError:
                pass  # another disk, or a file system or an owner that allows no links
        with (
            self.filesystem.open_input_stream(self.path(relative), compression=None) as stream,
            target.open("xb") as file,
        ):
            while block := stream.read(_COPY_BYTES):
                file.write(block)

    def _info(self, relative: str) -> pafs.FileInfo:
        return self.filesystem.get_file_info(self.path(relative))


def write_atomically(
    path: Path, content: bytes, *, durable: bool = True, mode: int = 0o666, make_folder: bool = True
) -> None:
    """Replace a local file in one step: readers see the old content or the new one, never a part.

    With `durable` the content also survives a loss of power; without, only a crash of the process. `mode`, less the
    process's umask, applies from the creation on: at no moment can another user open the file. Without `make_folder` a
    missing folder is an error: storage that is away must not be started again in its place.
    """
    if make_folder:
        path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with open(temporary, "xb", opener=partial(os.open, mode=mode)) as file:
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync_directory(path.parent)


@dataclass(frozen=True, slots=True)
class Versioned:
    """The content of a small object, with its version. Equal content may have equal versions: add a random token."""

    content: bytes
    version: str


class SmallObjects(Protocol):
    """Small objects by name, each replaced as a whole: all that leases, epochs and pointers need of a storage.

    An object store has the same operations: a version is the ETag, and `compare_and_swap` a put with the condition
    `If-None-Match: *` or `If-Match`. `tests/contract/test_small_objects.py` is the contract. If the storage is away
    every operation raises OSError: unknown must not look like absent.
    """

    def path(self, name: str) -> str:
        """The whole path of an object, for messages."""

    def read(self, name: str) -> Versioned | None:
        """The object; None if absent."""

    def names(self, folder: str) -> list[str]:
        """The last parts of the names `FOLDER/…`, in any order."""

    def compare_and_swap(self, name: str, expected: str | None, content: bytes) -> bool:
        """Replace the object if it has the `expected` version (None: if it is absent); durable once True is returned.

        False: the object was another one, and is unchanged. After a crash the object is the old or the new one.
        """

    def replace(self, name: str, content: bytes, *, durable: bool = True) -> None:
        """Replace the object without a condition: for an object with one writer."""

    def delete(self, name: str) -> None:
        """Delete the object, if present."""


@dataclass(frozen=True, slots=True)
class LocalObjects:
    """Small objects as the files of a local folder. No folder is created: storage that is away stays away.

    An absent object is created by a hard link, possible for one process only, and never waits for another process. An
    existing one, and every one where the file system has no hard links, is compared and replaced under a lock on
    `.NAME.lock`: a process that dies releases the lock, a paused one keeps others waiting (TimeoutError, an OSError).
    So a lease that must change hands while other processes may be paused gives every epoch a name of its own.
    """

    folder: Path

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def read(self, name: str) -> Versioned | None:
        try:
            content = (self.folder / name).read_bytes()
        except FileNotFoundError:
            return None
        return Versioned(content, hashlib.sha256(content).hexdigest())

    def names(self, folder: str) -> list[str]:
        return [path.name for path in (self.folder / folder).iterdir() if not path.name.startswith(".")]

    def compare_and_swap(self, name: str, expected: str | None, content: bytes) -> bool:
        path = self.folder / name
        if expected is None and (created := _create(path, content)) is not None:
            return created
        lock = lock_within(path.with_name(f".{path.name}.lock"), SWAP_S_MAX)
        if lock is None:
            raise TimeoutError(errno.ETIMEDOUT, "Another process has not finished to replace this file", str(path))
        try:
            found = self.read(name)
            if (None if found is None else found.version) != expected:
                return False
            self.replace(name, content)
            return True
        finally:
            os.close(lock)

    def replace(self, name: str, content: bytes, *, durable: bool = True) -> None:
        write_atomically(self.folder / name, content, durable=durable, make_folder=False)

    def delete(self, name: str) -> None:
        (self.folder / name).unlink(missing_ok=True)


def _create(path: Path, content: bytes) -> bool | None:
    """Create a file with its whole content, durably, if the name is free; whether it was. None without hard links.

    Over a network the reply to a successful link may be lost, and the repeated call then reports that the name is
    taken: the file has two names in that case.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        try:
            path.hardlink_to(temporary)
            created = True
        except FileExistsError:
            created = temporary.stat().st_nlink == 2
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            return None
    finally:
        temporary.unlink(missing_ok=True)
    sync_directory(path.parent)
    return created


def sync_directory(directory: Path) -> None:
    """Make the names in a local folder durable."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_durable(folder: Path) -> None:
    """Make a local folder durable, with everything in it."""
    for path in [*folder.rglob("*"), folder]:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def allocate(path: Path, size: int) -> None:
    """Allocate all blocks of a new file before it is mapped: touching an unallocated block of a full disk is SIGBUS.

    OSError if the disk is full. A file with content, or on a file system without allocation, stays unchanged.
    """
    if path.exists() and path.stat().st_size:
        return
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        os.posix_fallocate(handle, 0, size)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            path.unlink(missing_ok=True)
            raise
    finally:
        os.close(handle)


def size_of(folder: Path) -> int:
    """The bytes of a folder's files; files that Spark removes meanwhile do not count."""
    size = 0
    for path in folder.rglob("*"):
        try:
            size += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue
    return size


def try_lock(path: Path, *, shared: bool = False, mode: int = 0o666) -> int | None:
    """Lock a local file; returns its file descriptor, or None if another process holds a conflicting lock.

    A missing file is created with `mode`, less the process's umask. The lock ends when the descriptor is closed, here
    and in every process that inherited it, or when all of these have died.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT, mode)
    try:
        if try_lock_open(handle, shared=shared):
            return handle
    except BaseException:
        os.close(handle)
        raise
    os.close(handle)
    return None


def try_lock_open(handle: int, *, shared: bool = False) -> bool:
    """Lock an open file, for all processes that inherit it or did so before; returns whether it succeeded."""
    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def unlock_open(handle: int) -> None:
    """Release the lock of an open file, although other processes may still have the file open."""
    fcntl.flock(handle, fcntl.LOCK_UN)


def lock_within(path: Path, s_max: float, *, shared: bool = False, mode: int = 0o666) -> int | None:
    """As `try_lock`, retried for `s_max` seconds; None if another process holds the lock throughout."""
    return wait_until(lambda: try_lock(path, shared=shared, mode=mode), s_max)
