"""LMDB environments: how they are opened, written, and which named databases they have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import lmdb

from stateside.errors import ReplicaInvalid

MAP_BYTES_START = 1 << 30
READERS_MAX = 512
DATABASES_MAX = 8


class Databases:
    """The environment's named databases."""

    def __init__(self, environment: lmdb.Environment, *, create: bool) -> None:
        self.rows, self.rollups, self.meta = (
            environment.open_db(name, create=create) for name in (b"rows", b"rollups", b"meta")
        )


def open_environment(directory: Path, *, readonly: bool = False, sync: bool = True) -> lmdb.Environment:
    """The environment in a folder, made if it is to be written and is not there; ReplicaInvalid if it is damaged."""
    try:
        return lmdb.open(
            str(directory),
            readonly=readonly,
            create=not readonly,
            max_dbs=DATABASES_MAX,
            max_readers=READERS_MAX,
            map_size=0 if (directory / "data.mdb").exists() else MAP_BYTES_START,
            sync=sync,
            metasync=False,  # a loss of power may cost the last batch, which the checkpoint still has; never the order
        )
    except lmdb.Error as error:
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
    """Do this in one transaction, again in a larger map if it does not fit."""
    while True:
        try:
            with environment.begin(write=True) as transaction:
                action(transaction)
            return
        except lmdb.MapFullError:
            environment.set_mapsize(2 * environment.info()["map_size"])
