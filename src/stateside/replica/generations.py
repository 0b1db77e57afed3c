"""Generations: the environments that a replica's folder has had, each loaded anew beside the one before it.

    replica/writer.lock     held by the one process that writes here
    replica/data.mdb        the environment of a replica that never had to be loaded, with its lock.mdb and checksums
    replica/current         once one was loaded: the name of its folder
    replica/7/data.mdb      that environment
    replica/loading/        files of the checkpoint, while they are loaded
    replica/damaged/        the last environment that turned out to be damaged, for whoever wants to know why

`current` is replaced in one step, and only when what it names is whole and durable. Whatever else is there was left
behind by a crash, and the next writer removes it. A reader that still has a removed environment open reads on in it.
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
_BEAT = "beat"  # what an older Stateside had beside data.mdb

Sign = tuple[int, int] | None


def current(directory: Path) -> Path:
    """The folder of the environment that counts."""
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
    """Another one whenever another environment counts; cheap enough to be asked for with every read."""
    try:
        found = os.stat(f"{directory}/{_POINTER}")  # noqa: PTH116 - a Path takes as long as the call
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns


def next_folder(directory: Path, present: Path | None = None) -> Path:
    """Where the next environment goes; not made yet.

    Its name is another one than that of the `present` environment too, which may have been deleted: readers tell by it.
    """
    names = {path.name for path in directory.iterdir()} | (
        {present.name} if present not in (None, directory) else set()
    )
    return directory / str(1 + max((int(name) for name in names if name.isdigit()), default=0))


def loading(directory: Path) -> Path:
    """Where files of the checkpoint are kept while they are loaded."""
    return directory / _LOADING


def make_current(directory: Path, folder: Path) -> None:
    """Let the environment in this folder count from now on."""
    sync_directory(folder)
    sync_directory(directory)
    write_atomically(directory / _POINTER, folder.name.encode())


def set_aside(directory: Path, folder: Path) -> Path:
    """Move an environment that does not count any more to where damaged ones are kept: the last one of them."""
    aside = directory / _DAMAGED
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    for path in [path for path in folder.iterdir() if _belongs(path)]:
        path.rename(aside / path.name)
    return aside


def clean(directory: Path) -> None:
    """Remove what does not count any more, and what crashes left. For the process alone that holds the lock."""
    folder = current(directory)
    for path in directory.iterdir():
        if path.name == _LOADING or (path.name.isdigit() and path != folder):
            shutil.rmtree(path, ignore_errors=True)  # a reader may be opening it: then the next start removes it
        elif path.name.startswith(f".{_POINTER}.") or (folder != directory and _belongs(path)):
            path.unlink(missing_ok=True)


def _belongs(path: Path) -> bool:
    """Whether a file is one of an environment's."""
    return path.suffix == ".mdb" or path.name in (checksums.NAME, checksums.DAMAGE, _BEAT)
