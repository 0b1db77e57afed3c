"""Ids: where in the journal the event with an id stands, so that the same one again is not stored twice.

An index in LMDB, `ids/` in the journal's folder:

    events:  blake2b of the id, 16 bytes -> u64 offset of the first event with it
    meta:    "journal" -> the journal's id     "covers" -> up to which offset the index has all of its events

All of it comes from the journal. It may be deleted at any time, and is made anew; so it is where it belongs to another
journal, or has more than this one. What the journal has behind `covers` is kept in memory until there is enough to be
written at once: so an append waits for no second disk. On disk an event takes about 130 bytes here.
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path

import lmdb

from stateside.errors import JournalAway
from stateside.journal.reader import Journal
from stateside.journal.segment import DurableEnd

WRITTEN_AT_ONCE = 50_000  # events; in memory they take some 10 MB
MAP_BYTES_START = 64 << 20
_HASH_BYTES = 16
_OFFSET = struct.Struct("<Q")


class Ids:
    """The index of one journal's ids. Only whoever has the writer's turn may ask it."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._directory = journal.directory / "ids"
        self._recent: dict[bytes, int] = {}
        self._read = 0  # the journal's events before this offset are on disk or in `_recent`
        self._written = 0  # what the index on disk covered when it was last looked at
        self._mark = DurableEnd(0, 0, 0)  # where the journal ended then: reading goes on from there at once

    def offsets(self, ids: Sequence[str], end: DurableEnd) -> list[int | None]:
        """The offset of the first event with each id; None where there is none before `end`, the journal's end.

        JournalAway if the index cannot be kept.
        """
        try:
            with _Index(self._directory, (self._journal.id() or "").encode(), end.offset) as index:
                self._cover(index, end)
                return index.offsets(self._recent, [_hash(id_) for id_ in ids])
        except (lmdb.Error, OSError) as error:
            self._recent, self._read = {}, 0
            raise JournalAway(
                "The index of the journal's ids cannot be kept",
                where=f"{self._directory}: {error}",
                next_step="Nothing was stored. Mend the disk; the folder may be deleted, it is made anew",
            ) from error

    def _cover(self, index: _Index, end: DurableEnd) -> None:
        """Have all events before `end`, in the index or in memory."""
        if index.covers != self._written:  # another process wrote meanwhile, or the index was deleted
            self._recent = {hash_: offset for hash_, offset in self._recent.items() if offset >= index.covers}
            self._read = index.covers if index.covers < self._written else max(self._read, index.covers)
        mark = self._mark if self._mark.offset <= self._read else None
        for first, batch in self._journal.batches(self._read, end.offset, mark):
            for offset, id_ in enumerate(batch.column("id").to_pylist(), first):
                self._recent.setdefault(_hash(id_), offset)
            self._read = first + batch.num_rows
            if len(self._recent) >= WRITTEN_AT_ONCE:
                index.write(self._recent, self._read)
                self._recent = {}
        self._written, self._mark = index.covers, end


class _Index:
    """The index on disk, opened for one turn: no process holds on to one that may be deleted or grow meanwhile."""

    def __init__(self, directory: Path, journal: bytes, end: int) -> None:
        self._directory, self._journal = directory, journal
        self._open()
        with self._environment.begin() as transaction:
            found, covers = (transaction.get(name, db=self._meta) for name in (b"journal", b"covers"))
        self.covers = 0 if covers is None else int(_OFFSET.unpack(covers)[0])
        if found not in (None, journal) or self.covers > end:  # of another journal, or of another life of this one
            self._environment.close()
            shutil.rmtree(directory)
            self._open()
            self.covers = 0

    def offsets(self, recent: Mapping[bytes, int], hashes: Sequence[bytes]) -> list[int | None]:
        """The first offset of each hash: what is on disk came before what is in memory."""
        with self._environment.begin() as transaction:
            found = [transaction.get(hash_, db=self._events) for hash_ in hashes]
        pairs = zip(hashes, found, strict=True)
        return [recent.get(hash_) if on_disk is None else _OFFSET.unpack(on_disk)[0] for hash_, on_disk in pairs]

    def write(self, recent: Mapping[bytes, int], covers: int) -> None:
        """Add these, with which the index has all events before this offset."""
        while True:
            try:
                with self._environment.begin(write=True) as transaction:
                    for hash_, offset in sorted(recent.items()):
                        transaction.put(hash_, _OFFSET.pack(offset), overwrite=False, db=self._events)
                    transaction.put(b"journal", self._journal, db=self._meta)
                    transaction.put(b"covers", _OFFSET.pack(covers), db=self._meta)
                break
            except lmdb.MapFullError:
                self._environment.set_mapsize(2 * self._environment.info()["map_size"])
        self.covers = covers

    def _open(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        path = self._directory / "data.mdb"
        map_bytes = max(MAP_BYTES_START, 2 * path.stat().st_size if path.exists() else 0)
        self._environment = lmdb.open(str(self._directory), max_dbs=2, map_size=map_bytes, metasync=False)
        self._events, self._meta = (self._environment.open_db(name) for name in (b"events", b"meta"))

    def __enter__(self) -> _Index:
        return self

    def __exit__(self, *error: object) -> None:
        self._environment.close()


def _hash(id_: str) -> bytes:
    return blake2b(id_.encode(), digest_size=_HASH_BYTES).digest()
