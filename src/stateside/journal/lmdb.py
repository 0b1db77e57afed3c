"""LMDB environments beside a journal, safe against full disks and truncated files.

LMDB maps its files into memory: an access to a missing block of a mapped file is a signal, SIGBUS, not an error.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import lmdb

from stateside.core.storage import allocate

READERS_MAX: Final = 126  # LMDB's own default
_LOCK_BYTES: Final = 64  # per reader, in the file `lock.mdb`


def open_environment(directory: Path, *, readers_max: int = READERS_MAX, **options: Any) -> lmdb.Environment:
    """Open the environment in a folder; create one unless `create` is false.

    OSError if the disk is full; CorruptedError if the file was truncated; other LMDB errors if the open fails.
    """
    if options.get("create", True):
        allocate(directory / "lock.mdb", _LOCK_BYTES * (readers_max + 8))
    environment = lmdb.open(str(directory), max_readers=readers_max, **options)
    if not is_whole(directory, environment, environment.stat()["psize"]):
        environment.close()
        raise lmdb.CorruptedError(f"{directory / 'data.mdb'} is cut short")
    return environment


def is_whole(directory: Path, environment: lmdb.Environment, page_bytes: int) -> bool:
    """Whether the data file has all its pages: reading a missing page of a truncated file ends the process.

    The page count is in the first two pages, so they must exist before LMDB is asked.
    """
    path = directory / "data.mdb"
    try:
        if path.stat().st_size < 2 * page_bytes:
            return False
        pages = environment.info()["last_pgno"] + 1
        return bool(path.stat().st_size >= pages * page_bytes)  # checked last: the file grows while others write
    except FileNotFoundError:
        return False
