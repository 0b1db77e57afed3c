"""LMDB environments beside a journal: opened so that no full disk and no file that was cut short ends the process.

LMDB maps its files into memory. To touch what a mapped file has no block for, or does not have any more, is a signal,
SIGBUS, and no error.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import lmdb

from stateside.core.storage import allocate

READERS_MAX: Final = 126  # LMDB's own default
_LOCK_BYTES: Final = 64  # of each reader, in the file `lock.mdb`


def open_environment(directory: Path, *, readers_max: int = READERS_MAX, **options: Any) -> lmdb.Environment:
    """The environment in a folder, made if there is none, unless `create` says not to.

    OSError if there is no room for it; an error of LMDB's if it cannot be opened, CorruptedError if it was cut short.
    """
    if options.get("create", True):
        allocate(directory / "lock.mdb", _LOCK_BYTES * (readers_max + 8))
    environment = lmdb.open(str(directory), max_readers=readers_max, **options)
    if not is_whole(directory, environment, environment.stat()["psize"]):
        environment.close()
        raise lmdb.CorruptedError(f"{directory / 'data.mdb'} is cut short")
    return environment


def is_whole(directory: Path, environment: lmdb.Environment, page_bytes: int) -> bool:
    """Whether its file is as long as it says: reading what a file that was cut does not have ends the process.

    How long that is stands in the first two pages, so that those must be there before it is asked.
    """
    path = directory / "data.mdb"
    try:
        if path.stat().st_size < 2 * page_bytes:
            return False
        pages = environment.info()["last_pgno"] + 1
        return bool(path.stat().st_size >= pages * page_bytes)  # looked at last: it grows while others write
    except FileNotFoundError:
        return False
