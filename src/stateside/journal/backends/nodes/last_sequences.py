"""Index of last sequences: the last sequence of each entity over several logs, in LMDB.

    "e" blake2b of the entity, 16 bytes -> u64 big-endian, the highest sequence in any of the logs
    "l" name of a log                   -> UUID of its journal, u64 big-endian offset up to which the log is covered

The index is derived from the logs, and may be deleted while closed. It is rebuilt if missing, or if one of the logs has
been replaced or is shorter than before. Unwritten entries are in memory, and are read from the logs again after a
crash: the covered offsets and the entries are written in one transaction.

A node's index folder belongs to one epoch, so an owner paused in the middle of a transaction does not block its
successor: the successor starts from a copy.
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from uuid import UUID

import lmdb
import pyarrow as pa

from stateside.core.errors import EventsGone
from stateside.core.lmdb import growing, open_environment, write
from stateside.journal.backends.files import retention_base
from stateside.journal.backends.files.file_log import FileLog
from stateside.journal.backends.files.segment import DurableEnd
from stateside.journal.index import MAP_BYTES_START, hash_of, keeping

UNWRITTEN_MAX = 50_000  # entries; about 10 MB in memory

ENTITIES, IDS, LOGS = b"e", b"i", b"l"  # key prefixes
_NUMBER = struct.Struct(">Q")  # big-endian, so byte order is numeric order
_LOG = struct.Struct(">16sQ")

Logs = Callable[[], Mapping[str, FileLog]]


class Lasts:
    """The index of the logs returned by `logs`, called at each use. For one process and one thread at a time."""

    def __init__(self, directory: Path, logs: Logs) -> None:
        self._directory, self._logs = directory, logs
        self._unwritten: dict[bytes, bytes] = {}
        self._marks: dict[str, DurableEnd] = {}
        with keeping("sequences", directory):
            self._open()
            try:
                if not self._fits():
                    self._environment.close()
                    shutil.rmtree(directory)
                    self._open()
            except BaseException:
                self._environment.close()
                raise

    def last(self, entities: Iterable[str]) -> dict[str, int]:
        """The last sequence of each entity, as far as the logs were followed; 0 for an entity without events."""
        keys = {entity: key_of(ENTITIES, entity) for entity in entities}
        with keeping("sequences", self._directory), self._environment.begin() as transaction:
            found = {entity: self._value(transaction, key) for entity, key in keys.items()}
        return {entity: 0 if value is None else _NUMBER.unpack(value)[0] for entity, value in found.items()}

    def covers(self, log: str) -> int:
        """The offset up to which a log has been followed."""
        return self._covers.get(log, 0)

    def follow(self) -> None:
        """Read all new events of all logs."""
        for name, log in self._logs().items():
            self.follow_log(name, log)

    def follow_log(self, name: str, log: FileLog) -> None:
        """Read all new events of a log; for events trimmed meanwhile, read the log's retention base."""
        while True:
            self._take_base(name, log)
            try:
                self._read(name, log)
            except EventsGone:
                if retention_base.offset(log.directory) <= self.covers(name):
                    raise
            else:
                return

    def note(self, name: str, first: int, batch: pa.RecordBatch) -> None:
        """Take in a batch from offset `first` of a log, just after the covered part.

        In memory only: the batch is stored already, so this call must not fail.
        """
        assert first == self.covers(name), f"{name} is covered up to {self.covers(name)}, not {first}"
        self._add(self._entries(name, first, batch))
        self._covers[name] = first + batch.num_rows

    def write_if_due(self) -> None:
        """Write to disk if `UNWRITTEN_MAX` entries wait. Called before an append, as nothing may fail afterwards."""
        if len(self._unwritten) >= UNWRITTEN_MAX:
            self.write()

    def _take_base(self, name: str, log: FileLog) -> None:
        """Take in the trimmed part of a log that is not covered yet."""
        if self.covers(name) >= retention_base.offset(log.directory):
            return
        known = retention_base.read(log.directory)
        self._add((key_of(ENTITIES, entity), _NUMBER.pack(sequence)) for entity, sequence in known.lasts.items())
        self._covers[name] = known.offset

    def _read(self, name: str, log: FileLog) -> None:
        end, start, mark = log.durable_end(), self.covers(name), self._marks.get(name)
        for first, batch in log.batches(start, end.offset, mark if mark and mark.offset <= start else None):
            self.note(name, first, batch)
            self.write_if_due()
        self._marks[name] = end

    def write(self) -> None:
        """Write all entries to disk."""
        with keeping("sequences", self._directory):
            write(self._environment, self._put)
            self._unwritten = {}

    def close(self) -> None:
        """Close the files. Unwritten entries are read from the logs again."""
        self._environment.close()

    def _entries(self, name: str, first: int, batch: pa.RecordBatch) -> Iterator[tuple[bytes, bytes]]:
        """The index entries of a batch."""
        entities, sequences = (batch.column(column).to_pylist() for column in ("entity", "sequence"))
        for entity, sequence in dict(zip(entities, sequences, strict=True)).items():  # the last one of each entity
            yield key_of(ENTITIES, entity), _NUMBER.pack(sequence)

    def _add(self, entries: Iterable[tuple[bytes, bytes]]) -> None:
        for key, value in entries:
            self._unwritten[key] = self._counts(key, value, self._unwritten.get(key, value))

    def _value(self, transaction: lmdb.Transaction, key: bytes) -> bytes | None:
        unwritten, found = self._unwritten.get(key), transaction.get(key)
        if found is None:
            return unwritten
        return bytes(found) if unwritten is None else self._counts(key, unwritten, bytes(found))

    def _counts(self, key: bytes, one: bytes, other: bytes) -> bytes:
        """The winner of two values of one key: not simply the later one, as logs are read in any order."""
        return max(one, other)

    def _put(self, transaction: lmdb.Transaction) -> None:
        logs = self._logs()
        for key, value in sorted(self._unwritten.items()):
            transaction.put(key, self._value(transaction, key) or value)
        for name, offset in self._covers.items():
            journal = logs[name].id() if name in logs else None
            if journal is not None:  # else the log is read again, which changes nothing
                transaction.put(LOGS + name.encode(), _LOG.pack(UUID(journal).bytes, offset))

    def _open(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        self._environment = open_environment(self._directory, map_bytes=growing(self._directory, MAP_BYTES_START))
        self._covers: dict[str, int] = {name: offset for name, _, offset in self._stored()}

    def _stored(self) -> list[tuple[str, UUID, int]]:
        """The logs covered by the index on disk: name, journal, offset."""
        found = []
        with self._environment.begin() as transaction, transaction.cursor() as cursor:
            cursor.set_range(LOGS)
            for key, value in cursor:
                journal, offset = _LOG.unpack(value)
                found.append((key[1:].decode(), UUID(bytes=journal), offset))
        return found

    def _fits(self) -> bool:
        """Whether the index covers the present logs, and no more than they have."""
        logs = self._logs()
        return all(
            name in logs and logs[name].id() == str(journal) and offset <= logs[name].durable_end().offset
            for name, journal, offset in self._stored()
        )


def key_of(kind: bytes, name: str) -> bytes:
    """The index key of a name."""
    return kind + hash_of(name)
