"""Generations: numbered folders, each filled beside the one before, of which a pointer names the current one.

    FOLDER/current    the name of the current generation
    FOLDER/7/         that generation; all other numbered folders are leftovers

The pointer is replaced atomically, and only when the named generation is complete and durable. A process that has a
file of a removed generation open keeps reading.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from stateside.core.storage import sync_directory, write_atomically

POINTER: Final = "current"


def current(folder: Path) -> Path | None:
    """The current generation's folder; None without a pointer; ValueError for a damaged pointer."""
    try:
        content = (folder / POINTER).read_bytes()
    except FileNotFoundError:
        return None
    if not content.isdigit():
        raise ValueError(repr(content[:80].decode(errors="replace")))
    return folder / content.decode()


def next_folder(folder: Path, present: Path | None = None) -> Path:
    """The folder of the next generation; not created yet.

    Its name also differs from that of the `present` generation, which may have been deleted: readers compare names.
    """
    names = {path.name for path in folder.iterdir()} | ({present.name} if present not in (None, folder) else set())
    return folder / str(1 + max((int(name) for name in names if name.isdigit()), default=0))


def make_current(folder: Path, generation: Path) -> None:
    """Make this generation the current one, durably."""
    sync_directory(generation)
    sync_directory(folder)
    write_atomically(folder / POINTER, generation.name.encode())


def remove_replaced(folder: Path, present: Path) -> None:
    """Remove all generations but the `present` one, and unfinished pointers. For the one process that switches."""
    for path in folder.iterdir():
        if path.name.isdigit() and path != present:
            shutil.rmtree(path, ignore_errors=True)  # a reader may be opening it: then the next call removes it
        elif path.name.startswith(f".{POINTER}."):
            path.unlink(missing_ok=True)
