"""Generations: the successive environments of a replica's folder, each bootstrapped beside the one before.

    replica/writer.lock     held by the one process that writes here
    replica/data.mdb        the environment of a replica that was never bootstrapped, with its lock.mdb and checksums
    replica/current         after a bootstrap: the name of the current folder
    replica/7/data.mdb      the environment in that folder
    replica/loading/        files of the checkpoint during a bootstrap
    replica/damaged/        the last damaged environment, for diagnosis

`current` is replaced atomically, and only when the named environment is complete and durable. All other files are
leftovers of a crash, removed by the next writer. A reader that has a removed environment open keeps reading.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from stateside.core.errors import ReplicaInvalid
from stateside.core.storage import sync_directory, write_atomically
from stateside.replica import checksums

_POINTER = "current"
_LOADING = "loading"
_DAMAGED = "damaged"
_BEAT = "beat"  # file of an older Stateside beside data.mdb

Sign = tuple[int, int] | None


def current(directory: Path) -> Path:
    """The folder of the current environment."""
    pointer = directory / _POINTER
    try:
        name = pointer.read_text()
    except FileNotFoundError:
        return directory
    if not name.isdigit():
        raise ReplicaInvalid(
            f"The replica's pointer names no folder: {name[:80]!r}",
            where=str(pointer),
            next_step="Nothing: the server that moves it rebuilds it from the checkpoint",
        )
    return directory / name


def sign(directory: Path) -> Sign:
    """A value that changes with the current environment; cheap enough for every read."""
    try:
        found = os.stat(f"{directory}/{_POINTER}")  # noqa: PTH116 - a Path takes as long as the call
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns


def next_folder(directory: Path, present: Path | None = None) -> Path:
    """The folder of the next environment; not created yet.

    Its name also differs from that of the `present` environment, which may have been deleted: readers compare names.
    """
    names = {path.name for path in directory.iterdir()} | (
        {present.name} if present not in (None, directory) else set()
    )
    return directory / str(1 + max((int(name) for name in names if name.isdigit()), default=0))


def loading(directory: Path) -> Path:
    """The folder of the checkpoint's files during a bootstrap."""
    return directory / _LOADING


def make_current(directory: Path, folder: Path) -> None:
    """Make the environment in this folder the current one."""
    sync_directory(folder)
    sync_directory(directory)
    write_atomically(directory / _POINTER, folder.name.encode())


def set_aside(directory: Path, folder: Path) -> Path:
    """Move a replaced environment to the folder for damaged ones, which keeps the last one."""
    aside = directory / _DAMAGED
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    for path in [path for path in folder.iterdir() if _belongs(path)]:
        path.rename(aside / path.name)
    return aside


def clean(directory: Path) -> None:
    """Remove replaced environments and leftovers of crashes. The caller holds the lock."""
    folder = current(directory)
    for path in directory.iterdir():
        if path.name == _LOADING or (path.name.isdigit() and path != folder):
            shutil.rmtree(path, ignore_errors=True)  # a reader may be opening it: then the next start removes it
        elif path.name.startswith(f".{_POINTER}.") or (folder != directory and _belongs(path)):
            path.unlink(missing_ok=True)


def _belongs(path: Path) -> bool:
    """Whether a file belongs to an environment."""
    return path.suffix == ".mdb" or path.name in (checksums.NAME, checksums.DAMAGE, _BEAT)
