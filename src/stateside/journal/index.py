"""Indexes beside a journal's segments: a number for each key, in LMDB.

    NAME:    blake2b of the key, 16 bytes -> u64
    meta:    "journal" -> the journal's id     "covers" -> up to which offset the index has all of its events

All of it comes from the journal. An index may be deleted at any time, and is made anew; so it is where it belongs to
another journal, or has more than this one.
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path

import lmdb

from stateside.errors import JournalAway
from stateside.journal.environment import open_environment
from stateside.journal.reader import Journal

MAP_BYTES_START = 64 << 20
_HASH_BYTES = 16
_NUMBER = struct.Struct("<Q")


class Index:
    """An index on disk, opened for one turn: no process holds on to one that may be deleted or grow meanwhile.

    Only whoever has the writer's turn may open it. `end` is the offset at which the journal ends.
    """

    def __init__(self, directory: Path, name: str, journal: Journal, end: int) -> None:
        self._directory, self._name = directory, name.encode()
        self._journal = (journal.id() or "").encode()
        self._open()
        with self._environment.begin() as transaction:
            found, covers = (transaction.get(name, db=self._meta) for name in (b"journal", b"covers"))
        self.covers = 0 if covers is None else int(_NUMBER.unpack(covers)[0])
        if found not in (None, self._journal) or self.covers > end:  # of another journal, or another life of this one
            self._environment.close()
            shutil.rmtree(directory)
            self._open()
            self.covers = 0

    def numbers(self, hashes: Sequence[bytes]) -> list[int | None]:
        """The number of each key, by its hash; None where there is none."""
        with self._environment.begin(db=self._numbers) as transaction:
            found = [transaction.get(hash_) for hash_ in hashes]
        return [None if number is None else _NUMBER.unpack(number)[0] for number in found]

    def write(self, numbers: Iterable[tuple[bytes, int]], covers: int, *, overwrite: bool) -> None:
        """Add these, with which the index has all events before this offset. `overwrite`: not the first ones stay."""
        items = [(hash_, _NUMBER.pack(number)) for hash_, number in sorted(numbers)]
        while True:
            try:
                with self._environment.begin(write=True) as transaction:
                    transaction.cursor(self._numbers).putmulti(items, overwrite=overwrite)
                    transaction.put(b"journal", self._journal, db=self._meta)
                    transaction.put(b"covers", _NUMBER.pack(covers), db=self._meta)
                break
            except lmdb.MapFullError:
                self._environment.set_mapsize(2 * self._environment.info()["map_size"])
        self.covers = covers

    def _open(self) -> None:
        self._directory.mkdir(exist_ok=True)  # not where the journal itself is away
        path = self._directory / "data.mdb"
        map_bytes = max(MAP_BYTES_START, 2 * path.stat().st_size if path.exists() else 0)
        self._environment = open_environment(self._directory, max_dbs=2, map_size=map_bytes, metasync=False)
        self._numbers, self._meta = (self._environment.open_db(name) for name in (self._name, b"meta"))

    def __enter__(self) -> Index:
        return self

    def __exit__(self, *error: object) -> None:
        self._environment.close()


def hash_of(key: str) -> bytes:
    """What a key is known by in an index."""
    return blake2b(key.encode(), digest_size=_HASH_BYTES).digest()


@contextmanager
def keeping(what: str, directory: Path) -> Iterator[None]:
    """JournalAway for whatever goes wrong with the index in this folder."""
    try:
        yield
    except (lmdb.Error, OSError) as error:
        raise JournalAway(
            f"The index of the journal's {what} cannot be kept",
            where=f"{directory}: {error}",
            next_step="Nothing was stored. Mend the disk; the folder may be deleted, it is made anew",
        ) from error
