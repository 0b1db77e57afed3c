"""The index of a writer: what it must know of a topic's events to number the next ones and to know repeated ones.

In LMDB, with hashes of 16 bytes (`journal.index`) and numbers big-endian:

    "e" hash of an entity   -> u64 sequence of its last event
    "i" hash of an id       -> u32 partition, u64 offset of the first event with it
    "p" u32 partition       -> u64 up to which offset the index has its events, u64 offset behind the last of them
    "t"                     -> the topic's id, and how many partitions it has

All of it comes from the topic. It may be deleted while nobody has it open, and is made anew; so it is where it is of
another topic, or knows more than this one has. What is not written yet is in memory, and read from the topic again
after a crash: how far the index goes stands in the same transaction as what it has from there.

A folder has one index for each writer that is there at the same time, `0/`, `1/`, …: so an owner that was paused in the
middle of a transaction keeps no successor waiting, which takes the next one.
"""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import lmdb
import pyarrow as pa

from stateside.journal.environment import open_environment
from stateside.journal.frames import Offsets
from stateside.journal.index import hash_of, keeping
from stateside.journal.kafka.admin import Described
from stateside.storage import CLOSED, try_lock

UNWRITTEN_MAX = 50_000  # entries; in memory they take some 10 MB
MAP_BYTES_START = 64 << 20

_NUMBER = struct.Struct(">Q")
_PLACE = struct.Struct(">IQ")
_REACHED = struct.Struct(">QQ")
_WHAT = "sequences and ids"


@dataclass(frozen=True, slots=True)
class Place:
    """Where an event stands."""

    partition: int
    offset: int


class Index:
    """For one process and one thread at a time. JournalAway if it cannot be kept."""

    def __init__(self, folder: Path, topic: Described) -> None:
        self._topic = f"{topic.id} {topic.partitions}".encode()
        self._unwritten: dict[bytes, bytes] = {}
        with keeping(_WHAT, folder):
            self.directory, self._lock = _claimed(folder)
            try:
                self._open()
                if self._environment.stat()["entries"] and self._get(b"t") != self._topic:
                    self.forget()
            except BaseException:
                os.close(self._lock)
                raise

    def lasts(self, entities: Iterable[str]) -> list[int]:
        """The sequence of each entity's last event; 0 where there is none."""
        found = self._values(b"e" + hash_of(entity) for entity in entities)
        return [0 if value is None else int(_NUMBER.unpack(value)[0]) for value in found]

    def places(self, ids: Iterable[str]) -> list[Place | None]:
        """Where the first event with each id stands; None where there is none."""
        found = self._values(b"i" + hash_of(id_) for id_ in ids)
        return [None if value is None else Place(*_PLACE.unpack(value)) for value in found]

    def covers(self, partition: int) -> int:
        """Up to which offset the index has the partition's events."""
        return self._reached(partition)[0]

    def behind_last(self, partition: int) -> int:
        """The offset just behind the last event that it has of the partition; 0 if there is none."""
        return self._reached(partition)[1]

    def note(self, partition: int, offsets: Offsets | Sequence[int], batch: pa.RecordBatch) -> None:
        """Take in events of a partition, which stand behind those that it has."""
        entities, ids, sequences = (batch.column(name).to_pylist() for name in ("entity", "id", "sequence"))
        keys = [b"i" + hash_of(id_) for id_ in ids]
        for key, known, offset in zip(keys, self._values(keys), offsets, strict=True):
            if known is None:  # of equal ids the first
                self._unwritten.setdefault(key, _PLACE.pack(partition, offset))
        for entity, sequence in dict(zip(entities, sequences, strict=True)).items():  # of an entity its last one
            self._unwritten[b"e" + hash_of(entity)] = _NUMBER.pack(sequence)
        behind = int(offsets[-1]) + 1
        self._unwritten[_partition_key(partition)] = _REACHED.pack(behind, behind)

    def reach(self, partition: int, offset: int) -> None:
        """There are no events between what it has of the partition and this offset."""
        reached, behind = self._reached(partition)
        if offset > reached:
            self._unwritten[_partition_key(partition)] = _REACHED.pack(offset, behind)

    def write_if_due(self) -> None:
        """Have it on disk if there is much of it."""
        if len(self._unwritten) >= UNWRITTEN_MAX:
            self.write()

    def write(self) -> None:
        """Have on disk all that was taken in."""
        with keeping(_WHAT, self.directory):
            while self._unwritten and not self._written():
                self._environment.set_mapsize(2 * self._environment.info()["map_size"])

    def forget(self) -> None:
        """Begin anew: it is not of this topic as it is now."""
        with keeping(_WHAT, self.directory):
            self._environment.close()
            self._unwritten = {}
            shutil.rmtree(self.directory / "data")
            self._open()

    def close(self) -> None:
        """Let the files go."""
        if self._lock == CLOSED:
            return
        try:
            self.write()
        finally:
            self._environment.close()
            lock, self._lock = self._lock, CLOSED
            os.close(lock)

    def _reached(self, partition: int) -> tuple[int, int]:
        value = self._value(_partition_key(partition))
        return (0, 0) if value is None else _REACHED.unpack(value)

    def _value(self, key: bytes) -> bytes | None:
        found = self._unwritten.get(key)
        return self._get(key) if found is None else found

    def _values(self, keys: Iterable[bytes]) -> list[bytes | None]:
        with keeping(_WHAT, self.directory), self._environment.begin() as transaction:
            return [self._unwritten.get(key) or transaction.get(key) for key in keys]

    def _get(self, key: bytes) -> bytes | None:
        with keeping(_WHAT, self.directory), self._environment.begin() as transaction:
            found: bytes | None = transaction.get(key)
            return found

    def _written(self) -> bool:
        """Whether there was room for it all."""
        try:
            with self._environment.begin(write=True) as transaction:
                for key, value in sorted(self._unwritten.items()):
                    transaction.put(key, value)
                transaction.put(b"t", self._topic)
        except lmdb.MapFullError:
            return False
        self._unwritten = {}
        return True

    def _open(self) -> None:
        directory = self.directory / "data"
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / "data.mdb"
        map_bytes = max(MAP_BYTES_START, 2 * path.stat().st_size if path.exists() else 0)
        self._environment = open_environment(directory, map_size=map_bytes, metasync=False)


def _claimed(folder: Path) -> tuple[Path, int]:
    """The first index of the folder that no other writer has open, and its lock."""
    for number in count():
        directory = folder / str(number)
        directory.mkdir(parents=True, exist_ok=True)
        lock = try_lock(directory / "lock")
        if lock is not None:
            return directory, lock
    raise AssertionError("there is always a next number")


def _partition_key(partition: int) -> bytes:
    return b"p" + struct.pack(">I", partition)
