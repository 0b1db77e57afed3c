"""The index of a journal's events: the place of each id, and the last sequence of each entity, in LMDB.

`DerivedIndex` is the index of every backend: here of a journal on files, in `backends.nodes.node_index` of the logs of
nodes, in `backends.kafka.topic_index` of a topic. An index is derived and may be deleted while closed: the next writer
rebuilds the index. An index of another journal, or one beyond the journal's end, is rebuilt as well.

On files:

    NAME:    blake2b of the key, 16 bytes -> u64
    meta:    "journal" -> the journal's id     "covers" -> the offset up to which the index has all events

A small journal on files has no index on disk: the writer reads the journal's events instead.

`Ids`, in `ids/`: for each id the offset of its first event, so that an append stores each id once. Events after the
covered offset stay in memory until there are enough for one write, so an append waits for no second sync. On disk an
event takes about 130 bytes here.

`Sequences`, in `sequences/`: for each entity the sequence of its last event. Every append needs them, so most lookups
are answered from memory: events after the covered offset, and recently used entities. The disk is read for other
entities, and written now and then. Events stored before sequences existed count as one each.
"""

from __future__ import annotations

import shutil
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from itertools import chain
from pathlib import Path

import lmdb
import pyarrow as pa

from stateside.core.errors import JournalAway
from stateside.core.lmdb import growing, open_environment, write
from stateside.journal.backends.files import retention_base
from stateside.journal.backends.files.file_log import FileLog
from stateside.journal.backends.files.segment import DurableEnd
from stateside.journal.columns import SCHEMA
from stateside.journal.contract import Log

MAP_BYTES_START = 64 << 20
UNWRITTEN_MAX = 50_000  # entries of an owner's index; about 10 MB in memory
_HASH_BYTES = 16
_NUMBER = struct.Struct("<Q")


class DerivedIndex:
    """Entries by hashed name in LMDB, derived from logs. For one process and one thread at a time.

    An entry stays in memory until `flush` writes all of them, in one transaction with the marks that state how far the
    logs are covered. So a crash costs no more than reading the rest of the logs again. JournalAway if the index cannot
    be kept.
    """

    def __init__(self, directory: Path, what: str, databases: tuple[str, str] | None = None) -> None:
        """`what`: for messages. `databases`: those of the entries and of the marks, if not both the main one."""
        self._directory, self._what, self._databases = directory, what, databases
        self._unwritten: dict[bytes, bytes] = {}
        with keeping(what, directory):
            self._open()

    def values(self, keys: Iterable[bytes]) -> list[bytes | None]:
        """The value of each key; None for an unknown key."""
        with keeping(self._what, self._directory), self._environment.begin(db=self._entries) as transaction:
            return [self._value(transaction, key) for key in keys]

    def add(self, entries: Iterable[tuple[bytes, bytes]]) -> None:
        """Add entries, in memory: must not fail, as their events are stored already."""
        unwritten, counts = self._unwritten, self.counts
        for key, value in entries:
            unwritten[key] = counts(key, unwritten[key], value) if key in unwritten else value

    def counts(self, key: bytes, stored: bytes, new: bytes) -> bytes:
        """The value that counts, of two for one key."""
        return new

    def flush_if_due(self) -> None:
        """Write if many entries wait. Called before an append, as nothing may fail afterwards."""
        if len(self._unwritten) >= UNWRITTEN_MAX:
            self.flush()

    def flush(self) -> None:
        """Write all entries, and the marks."""
        with keeping(self._what, self._directory):
            write(self._environment, self._put)
        self._unwritten = {}

    def marks(self) -> Iterable[tuple[bytes, bytes]]:
        """How far the logs are covered by the entries, once these are written."""
        return ()

    def forget(self) -> None:
        """Start over with an empty index, if the old one does not match the logs."""
        with keeping(self._what, self._directory):
            self._environment.close()
            self._unwritten = {}
            shutil.rmtree(self._directory)
            self._open()

    def close(self) -> None:
        """Close the files. Unwritten entries are read from the logs again."""
        self._environment.close()

    def _stored(self, mark: bytes) -> list[tuple[bytes, bytes]]:
        """The marks on disk with this prefix."""
        found = []
        with keeping(self._what, self._directory), self._environment.begin(db=self._marks) as transaction:
            cursor = transaction.cursor()
            there = cursor.set_range(mark)
            while there and cursor.key().startswith(mark):
                found.append((cursor.key(), cursor.value()))
                there = cursor.next()
        return found

    def _value(self, transaction: lmdb.Transaction, key: bytes) -> bytes | None:
        unwritten, found = self._unwritten.get(key), transaction.get(key)
        if unwritten is None or found is None:
            return unwritten if found is None else bytes(found)
        return self.counts(key, bytes(found), unwritten)

    def _put(self, transaction: lmdb.Transaction) -> None:
        for key, value in sorted(self._unwritten.items()):
            found = transaction.get(key, db=self._entries)
            transaction.put(key, value if found is None else self.counts(key, bytes(found), value), db=self._entries)
        for key, value in self.marks():
            transaction.put(key, value, db=self._marks)

    def _open(self) -> None:
        self._directory.mkdir(exist_ok=True)  # no parents: fails if the journal itself is away
        map_bytes = growing(self._directory, MAP_BYTES_START)
        count = 0 if self._databases is None else 2
        self._environment = open_environment(self._directory, databases_max=count, map_bytes=map_bytes)
        names = (None, None) if self._databases is None else tuple(name.encode() for name in self._databases)
        self._entries, self._marks = (self._environment.open_db(name) for name in names)


class Index(DerivedIndex):
    """Numbers of one log's ids or entities, opened for one turn: other processes delete or grow the index meanwhile.

    Only the writer that has the turn may open an index. `end` is the offset at which the journal ends.
    """

    def __init__(self, directory: Path, name: str, journal: Log, end: int) -> None:
        super().__init__(directory, directory.name, (name, "meta"))
        self._journal = (journal.id() or "").encode()
        stored = dict(self._stored(b""))
        self.covers = int(_NUMBER.unpack(stored.get(b"covers", bytes(_NUMBER.size)))[0])
        if stored.get(b"journal", self._journal) != self._journal or self.covers > end:
            self.forget()
            self.covers = 0

    def numbers(self, hashes: Sequence[bytes]) -> list[int | None]:
        """The number of each hashed key; None for an unknown key."""
        return [None if value is None else _NUMBER.unpack(value)[0] for value in self.values(hashes)]

    def write(self, numbers: Iterable[tuple[bytes, int]], covers: int, *, overwrite: bool) -> None:
        """Write numbers; the index then has all events before `covers`. Without `overwrite` existing numbers stay."""
        items = [(hash_, _NUMBER.pack(number)) for hash_, number in sorted(numbers)]

        def put(transaction: lmdb.Transaction) -> None:
            transaction.cursor(self._entries).putmulti(items, overwrite=overwrite)
            transaction.put(b"journal", self._journal, db=self._marks)
            transaction.put(b"covers", _NUMBER.pack(covers), db=self._marks)

        write(self._environment, put)
        self.covers = covers

    def __enter__(self) -> Index:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def hash_of(key: str) -> bytes:
    """The key of an id or entity in an index."""
    return blake2b(key.encode(), digest_size=_HASH_BYTES).digest()


@contextmanager
def keeping(what: str, directory: Path) -> Iterator[None]:
    """Raise JournalAway for any failure of the index in this folder."""
    try:
        yield
    except (lmdb.Error, OSError) as error:
        raise JournalAway(
            f"The index of the journal's {what} cannot be kept",
            where=f"{directory}: {error}",
            next_step="Nothing was stored. Mend the disk; the folder may be deleted, it is made again",
        ) from error


WRITTEN_AT_ONCE = 50_000  # events; in memory they take some 10 MB


class Ids:
    """The ids of one journal. Only for the writer that has the turn."""

    def __init__(self, journal: FileLog) -> None:
        self._journal = journal
        self._directory = journal.directory / "ids"
        self._recent: dict[bytes, int] = {}
        self._read = 0  # the journal's events before this offset are on disk or in `_recent`
        self._written = 0  # the offset covered by the index on disk, at the last look
        self._mark = DurableEnd(0, 0, 0)  # the journal's end at the last read: reading resumes there without a search
        self._asked: dict[str, bytes] = {}  # the hashes of the last lookup

    def offsets(self, ids: Sequence[str], end: DurableEnd) -> list[int | None]:
        """The offset of the first event with each id; None if there is none before `end`, the journal's end.

        JournalAway if the index cannot be kept.
        """
        hashes = [hash_of(id_) for id_ in ids]
        self._asked = dict(zip(ids, hashes, strict=True))
        if self._covered_in_memory(end):
            return [self._recent.get(hash_) for hash_ in hashes]
        try:
            with keeping("ids", self._directory), self._index(end) as index:
                self._cover(index, end)
                found = index.numbers(hashes)
        except JournalAway:
            self._recent, self._read = {}, 0
            raise
        return [
            self._recent.get(hash_) if offset is None else offset for hash_, offset in zip(hashes, found, strict=True)
        ]

    def note(self, ids: Sequence[str], first: int, end: DurableEnd) -> None:
        """Add the ids of events stored from offset `first` on, if `offsets` was asked for them.

        Changes memory only and must not fail, as the events are stored already.
        """
        asked, self._asked = self._asked, {}
        if self._read != first or not asked:
            return  # the next lookup reads them
        for offset, id_ in enumerate(ids, first):
            self._recent.setdefault(asked.get(id_) or hash_of(id_), offset)
        self._read, self._mark = end.offset, end

    def _covered_in_memory(self, end: DurableEnd) -> bool:
        """Read all events before `end` into memory if they are few and there is no index on disk; whether they are."""
        few = len(self._recent) + end.offset - self._read < WRITTEN_AT_ONCE
        if self._written or not few or self._directory.exists():
            return False
        for _ in self._read_on(end):
            pass
        self._mark = end
        return True

    def keep(self, end: DurableEnd) -> None:
        """Write the ids of all events before `end` to disk, before retention drops some of the events."""
        with keeping("ids", self._directory), self._index(end) as index:
            self._cover(index, end)
            index.write(self._recent.items(), self._read, overwrite=False)
            self._recent, self._written = {}, index.covers

    def forget_beyond(self, end: DurableEnd) -> None:
        """Delete an index that is beyond the journal's end, after the journal lost events in a power failure."""
        if self._directory.exists():
            with keeping("ids", self._directory), self._index(end):
                pass

    def _index(self, end: DurableEnd) -> Index:
        return Index(self._directory, "events", self._journal, end.offset)

    def _cover(self, index: Index, end: DurableEnd) -> None:
        """Have all events before `end` in the index or in memory."""
        if index.covers != self._written:  # another process wrote or deleted the index
            self._recent = {hash_: offset for hash_, offset in self._recent.items() if offset >= index.covers}
            self._read = index.covers if index.covers < self._written else max(self._read, index.covers)
        for _ in chain((None,), self._read_on(end)):  # first check the noted events
            if len(self._recent) >= WRITTEN_AT_ONCE:
                index.write(self._recent.items(), self._read, overwrite=False)
                self._recent = {}
        self._written, self._mark = index.covers, end

    def _read_on(self, end: DurableEnd) -> Iterator[None]:
        """Read the journal up to `end` into memory, batch by batch."""
        mark = self._mark if self._mark.offset <= self._read else None
        if self._read < end.offset:  # ids of dropped events are on disk, or unknown
            self._read = max(self._read, retention_base.offset(self._journal.directory))
        for first, batch in self._journal.batches(self._read, end.offset, mark):
            for offset, id_ in enumerate(batch.column("id").to_pylist(), first):
                self._recent.setdefault(hash_of(id_), offset)
            self._read = first + batch.num_rows
            yield


ENTITIES_UNWRITTEN_MAX = 200_000  # in memory some 30 MB, and as much again for the cache of written ones
EVENTS_UNWRITTEN_MAX = 1_000_000  # the next writer to open the journal reads them, at some millions a second
EVENTS_READ_MAX = 50_000  # events read from the segments; more are written, to be read once only
Lasts = Callable[[Sequence[str]], Sequence[int]]
_SEQUENCE = SCHEMA.get_field_index("sequence")


class _IndexGone(Exception):
    """The index on disk was replaced: start over."""


class Sequences:
    """The last sequences of one journal's entities. Only for the writer that has the turn."""

    def __init__(self, journal: FileLog) -> None:
        self._journal = journal
        self._directory = journal.directory / "sequences"
        self._forget()

    def lasts(self, entities: Sequence[str], end: DurableEnd) -> list[int]:
        """The sequence of each entity's last event before `end`, the journal's end; 0 for an entity without events.

        JournalAway if the index cannot be kept.
        """
        while True:
            try:
                self._catch_up(end)
                return self._look_up(entities, end)
            except _IndexGone:
                self._forget()
            except JournalAway:
                self._forget()
                raise

    def note(self, lasts: Mapping[str, int], end: DurableEnd) -> None:
        """Record the last sequences after an append; `end` is the journal's new end.

        All events before the append must be known: `lasts` was called in the same turn. Never fails, as the events are
        stored already: the next append writes the index, before it stores.
        """
        self._unwritten.update(lasts)
        self._read, self._mark = end.offset, end

    def forget_beyond(self, end: DurableEnd) -> None:
        """Delete an index that is beyond the journal's end, after the journal lost events in a power failure."""
        if self._directory.exists():
            with keeping("sequences", self._directory), self._index(end):
                pass

    def _forget(self) -> None:
        self._unwritten: dict[str, int] = {}  # from events after the covered offset
        self._known: dict[str, int] = {}  # cache of the index
        self._whole = True  # whether the two dicts have every entity
        self._read = self._written = 0  # offsets: known here, covered by the index
        self._mark = DurableEnd(0, 0, 0)  # the journal's end at the last read: reading resumes there without a search

    def _look_up(self, entities: Sequence[str], end: DurableEnd) -> list[int]:
        found = [self._unwritten.get(entity) or self._known.get(entity) for entity in entities]
        missing = [] if self._whole else [entity for entity, last in zip(entities, found, strict=True) if last is None]
        if missing:
            with keeping("sequences", self._directory), self._index(end) as index:
                self._check(index)
                lasts = index.numbers([hash_of(entity) for entity in missing])
            self._remember({entity: last or 0 for entity, last in zip(missing, lasts, strict=True)})
        return [last or self._known.get(entity, 0) for entity, last in zip(entities, found, strict=True)]

    def _catch_up(self, end: DurableEnd) -> None:
        """Know all events before `end`: read other writers' appends from the segments, or from their index."""
        if self._read > end.offset:
            self._forget()
        if end.offset - self._read > EVENTS_READ_MAX:
            self._start_from_index(end)
        if self._read < end.offset:
            self._start_from_base(end)
        begin = self._read
        if begin < end.offset:
            for first, batch in self._journal.batches(begin, end.offset, self._mark):
                self._fold(batch, end)
                self._read = first + batch.num_rows
                self._write_if(len(self._unwritten) >= ENTITIES_UNWRITTEN_MAX, end)
            self._mark = end
        self._write_if(len(self._unwritten) >= ENTITIES_UNWRITTEN_MAX, end)
        self._write_if(self._read - self._written >= EVENTS_UNWRITTEN_MAX, end)
        self._write_if(self._read - begin >= EVENTS_READ_MAX, end)

    def _start_from_index(self, end: DurableEnd) -> None:
        """Continue from the offset that the index on disk covers, if larger."""
        if not self._directory.exists():
            return
        with keeping("sequences", self._directory), self._index(end) as index:
            covers = index.covers
        if covers > self._read:
            self._forget()
            self._read = self._written = covers
            self._whole = False

    def _start_from_base(self, end: DurableEnd) -> None:
        """Continue after the dropped events: from the index on disk if it covers them, else from the base."""
        if self._read >= retention_base.offset(self._journal.directory):
            return
        self._start_from_index(end)
        known = retention_base.read(self._journal.directory)
        if self._read < known.offset:
            self._forget()
            self._unwritten, self._read = dict(known.lasts), known.offset

    def _fold(self, batch: pa.RecordBatch, end: DurableEnd) -> None:
        entities, sequences = (batch.column(name).to_pylist() for name in ("entity", "sequence"))
        if batch.column("sequence").null_count == 0:
            self._unwritten.update(zip(entities, sequences, strict=True))
            return
        counts = Counter(entities)
        lasts = self._look_up(list(counts), end)
        self._unwritten.update((entity, last + counts[entity]) for entity, last in zip(counts, lasts, strict=True))

    def _write_if(self, due: bool, end: DurableEnd) -> None:
        """Write all known sequences to the index, if due."""
        if not due or self._written == self._read:
            return
        with keeping("sequences", self._directory), self._index(end) as index:
            self._check(index)
            numbers = ((hash_of(entity), last) for entity, last in self._unwritten.items())
            index.write(numbers, self._read, overwrite=True)
        self._written = self._read
        self._remember(self._unwritten)
        self._unwritten = {}

    def _check(self, index: Index) -> None:
        """_IndexGone if the index was deleted, and possibly rebuilt, since this memory was filled."""
        if not self._written <= index.covers <= self._read:
            raise _IndexGone

    def _remember(self, lasts: Mapping[str, int]) -> None:
        """Cache sequences of the index, up to the limit."""
        if self._known and len(self._known) + len(lasts) > ENTITIES_UNWRITTEN_MAX:
            self._known, self._whole = {}, False
        self._known.update(lasts)

    def _index(self, end: DurableEnd) -> Index:
        return Index(self._directory, "entities", self._journal, end.offset)


def numbered(batch: pa.RecordBatch, lasts: Lasts) -> tuple[pa.RecordBatch, dict[str, int]]:
    """The batch with the next sequences of its entities, and the entities' new last sequences."""
    entities: list[str] = batch.column("entity").to_pylist()
    names = list(dict.fromkeys(entities))
    now = dict(zip(names, lasts(names), strict=True))
    sequences = []
    for entity in entities:
        now[entity] = sequence = now[entity] + 1
        sequences.append(sequence)
    return batch.set_column(_SEQUENCE, SCHEMA.field(_SEQUENCE), pa.array(sequences, pa.int64())), now
