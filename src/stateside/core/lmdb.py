"""LMDB environments, safe against full disks and truncated files, with maps that grow.

LMDB maps its files into memory: an access to a missing block of a mapped file is a signal, SIGBUS, not an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import lmdb

from stateside.core.storage import allocate

READERS_MAX: Final = 126  # LMDB's own default
DAMAGE: Final = (
    lmdb.CorruptedError,
    lmdb.InvalidError,
    lmdb.VersionMismatchError,
    lmdb.PageNotFoundError,
    lmdb.PanicError,
)
_READER_BYTES: Final = 64  # per reader, in the file `lock.mdb`


def open_environment(
    directory: Path,
    *,
    map_bytes: Sequence[int] = (0,),
    databases_max: int = 0,
    readers_max: int = READERS_MAX,
    create: bool = True,
    readonly: bool = False,
    sync: bool = True,
    check_size: bool = True,
) -> lmdb.Environment:
    """Open the environment in a folder; create one if `create`.

    `map_bytes`: sizes of the map, tried in turn until the process has the address space; 0 is an existing environment's
    own size. `check_size`: False if the caller knows the file's exact size and checks it. OSError if the disk is full;
    CorruptedError if `is_whole` finds the file truncated; other LMDB errors if the open fails.
    """
    if create:
        allocate(directory / "lock.mdb", _READER_BYTES * (readers_max + 8))  # readers register themselves there
    for size in map_bytes:
        try:
            environment = lmdb.open(
                str(directory),
                map_size=size,
                max_dbs=databases_max,
                max_readers=readers_max,
                create=create,
                readonly=readonly,
                sync=sync,
                metasync=False,  # a loss of power may cost the last transaction, never the order of transactions
            )
            break
        except lmdb.MemoryError:
            if size == map_bytes[-1]:
                raise
    if check_size and not is_whole(directory, environment, environment.stat()["psize"]):
        environment.close()
        raise lmdb.CorruptedError(f"{directory / 'data.mdb'} is cut short")
    return environment


def growing(directory: Path, bytes_start: int) -> tuple[int]:
    """The size of a map in which an existing environment can double before the map has to grow."""
    path = directory / "data.mdb"
    return (max(bytes_start, 2 * path.stat().st_size if path.exists() else 0),)


def is_whole(directory: Path, environment: lmdb.Environment, page_bytes: int) -> bool:
    """Whether the data file has all its pages: reading a missing page of a truncated file ends the process.

    The page count is in the first two pages, so they must exist before LMDB is asked. The answer may be False for a
    healthy file: LMDB counts, but does not write, the last pages if one transaction allocated and freed them.
    """
    path = directory / "data.mdb"
    try:
        if path.stat().st_size < 2 * page_bytes:
            return False
        pages = environment.info()["last_pgno"] + 1
        return bool(path.stat().st_size >= pages * page_bytes)  # checked last: the file grows while others write
    except FileNotFoundError:
        return False


def write(environment: lmdb.Environment, action: Callable[[lmdb.Transaction], object]) -> None:
    """Run `action` in one transaction, again with a larger map if it does not fit; LMDB's errors."""
    while True:
        try:
            with environment.begin(write=True) as transaction:
                action(transaction)
            return
        except lmdb.MapFullError:
            environment.set_mapsize(2 * environment.info()["map_size"])
