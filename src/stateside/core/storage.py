"""File systems. Reading goes through `pyarrow.fs`, so that a checkpoint may lie on local disk, S3 or HDFS alike."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow.fs as pafs

CLOSED: Final = -1  # instead of a file's number, which the system gives to another file once this one is closed

_COPY_BYTES = 1 << 20

_LOCK_LOOK_S = 0.02


@dataclass(frozen=True, slots=True)
class Storage:
    """A folder on some file system, read only. Paths are relative to it, with `/`."""

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
        """A folder inside this one."""
        return Storage(self.filesystem, self.path(relative))

    def read(self, relative: str) -> bytes:
        """The whole file; FileNotFoundError where there is none."""
        with self.filesystem.open_input_stream(self.path(relative), compression=None) as stream:
            return bytes(stream.read())

    def names(self, relative: str = "") -> list[str]:
        """The names in a folder, sorted; none where there is no such folder."""
        selector = pafs.FileSelector(self.path(relative), allow_not_found=True)
        return sorted(info.base_name for info in self.filesystem.get_file_info(selector))

    def exists(self, relative: str) -> bool:
        """Whether there is such a file or folder."""
        return bool(self._info(relative).type != pafs.FileType.NotFound)

    def is_folder(self, relative: str) -> bool:
        """Whether there is such a folder."""
        return bool(self._info(relative).type == pafs.FileType.Directory)

    def modified_us(self, relative: str) -> int:
        """When the file was last written, in microseconds since 1970; FileNotFoundError where there is none."""
        info = self._info(relative)
        if info.type == pafs.FileType.NotFound:
            raise FileNotFoundError(self.path(relative))
        return int(info.mtime_ns) // 1_000

    def bring(self, relative: str, target: Path) -> None:
        """Have the file at a local path too, whatever becomes of it here: linked where that is possible, else copied.

        FileNotFoundError where there is none.
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

    With `durable` it also survives a loss of power; without, only a crash of the process. `mode` is what it is made
    with, less the process's umask: nobody else can open it for a moment either. Without `make_folder` it is an error if
    the folder is not there: storage that is away must not be begun anew in its place.
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


def sync_directory(directory: Path) -> None:
    """Make the names in a local folder durable."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_durable(folder: Path) -> None:
    """Make a local folder durable, with all that is in it."""
    for path in [*folder.rglob("*"), folder]:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def allocate(path: Path, size: int) -> None:
    """Give a new file all of its blocks, before it is mapped: to touch one that is not there would be SIGBUS.

    OSError if there is no room. A file that has content, or a file system that cannot, stays as it is.
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


def try_lock(path: Path, *, shared: bool = False, mode: int = 0o666) -> int | None:
    """A lock on a local file, as a file descriptor; None if somebody else has it, unless both are `shared`.

    A file that is not there is made with this mode, less the process's umask.
    It is given back when the descriptor is closed, here and in every process that inherited it, or these have died.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT, mode)
    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    except BaseException:
        os.close(handle)
        raise
    return handle


def lock_within(path: Path, s_max: float, *, mode: int = 0o666) -> int | None:
    """The same, tried again for so long; None if somebody else has it all the while."""
    deadline_s = time.monotonic() + s_max
    while (handle := try_lock(path, mode=mode)) is None and time.monotonic() <= deadline_s:
        time.sleep(_LOCK_LOOK_S)
    return handle
