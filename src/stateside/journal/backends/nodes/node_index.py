"""A node's indexes: the last sequence of each entity, and the place of the event with an id, over all nodes' logs.

    "e" blake2b of the entity, 16 bytes     -> u64 big-endian, the highest sequence in any of the logs
    "i" blake2b of the event's id, 16 bytes -> u64 big-endian sequence, u64 big-endian offset after the event,
                                               blake2b of the entity, 16 bytes, name of the log
    "l" name of a log                       -> UUID of its journal, u64 big-endian offset up to which the log is covered

`Lasts` has the "e", `NodeIds` the "i", each in an index of its own (`journal.index`). An index is rebuilt if missing,
or if one of the logs has been replaced or is shorter than before. Where several events have one id, the first one
counts. An event takes about 150 bytes in the index of ids.

An index's folder belongs to one epoch, so an owner paused in the middle of a transaction does not block its successor:
the successor starts from a copy.

The index of ids detects a repeated append even when retention has trimmed the events from the log. Events trimmed
before the index had them come from the merged stream, where every event carries its source (`trimmed`). `KnownIds` is
that index as the owner of one node uses it in its turn.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import lmdb
import pyarrow as pa
import pyarrow.compute as pc

from stateside.core.errors import EventsGone, JournalCorrupt
from stateside.core.lmdb import open_environment
from stateside.journal.backends.files import retention_base
from stateside.journal.backends.files.file_log import FileLog
from stateside.journal.backends.files.segment import PARTITION, DurableEnd
from stateside.journal.backends.nodes.partition import MERGED, MergedPartition, StreamIdentity
from stateside.journal.index import DerivedIndex, hash_of
from stateside.journal.receipt import StoredEvent

ENTITIES, IDS, LOGS = b"e", b"i", b"l"  # key prefixes
_NUMBER = struct.Struct(">Q")  # big-endian, so byte order is numeric order
_LOG = struct.Struct(">16sQ")

Logs = Callable[[], Mapping[str, FileLog]]


class Lasts(DerivedIndex):
    """The last sequences in the logs returned by `logs`, called at each use."""

    what = "sequences"

    def __init__(self, directory: Path, logs: Logs) -> None:
        super().__init__(directory, self.what)
        self._logs = logs
        self._ends: dict[str, DurableEnd] = {}
        try:
            if not self._fits():
                self.forget()
        except BaseException:
            self.close()
            raise
        self._covers = {name: offset for name, _, offset in self._covered()}

    def last(self, entities: Iterable[str]) -> dict[str, int]:
        """The last sequence of each entity, as far as the logs were followed; 0 for an entity without events."""
        names = list(entities)
        found = self.values(key_of(ENTITIES, entity) for entity in names)
        return {
            entity: 0 if value is None else _NUMBER.unpack(value)[0] for entity, value in zip(names, found, strict=True)
        }

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
        self.add(self._entries_of(name, first, batch))
        self._covers[name] = first + batch.num_rows

    def _take_base(self, name: str, log: FileLog) -> None:
        """Take in the trimmed part of a log that is not covered yet."""
        if self.covers(name) >= retention_base.offset(log.directory):
            return
        known = retention_base.read(log.directory)
        self.add((key_of(ENTITIES, entity), _NUMBER.pack(sequence)) for entity, sequence in known.lasts.items())
        self._covers[name] = known.offset

    def _read(self, name: str, log: FileLog) -> None:
        end, start, mark = log.durable_end(), self.covers(name), self._ends.get(name)
        for first, batch in log.batches(start, end.offset, mark if mark and mark.offset <= start else None):
            self.note(name, first, batch)
            self.flush_if_due()
        self._ends[name] = end

    def counts(self, key: bytes, stored: bytes, new: bytes) -> bytes:
        """The highest sequence, and not simply the later one, as logs are read in any order."""
        return max(stored, new)

    def marks(self) -> Iterator[tuple[bytes, bytes]]:
        logs = self._logs()
        for name, offset in self._covers.items():
            journal = logs[name].id() if name in logs else None
            if journal is not None:  # else the log is read again, which changes nothing
                yield LOGS + name.encode(), _LOG.pack(UUID(journal).bytes, offset)

    def _entries_of(self, name: str, first: int, batch: pa.RecordBatch) -> Iterator[tuple[bytes, bytes]]:
        """The index entries of a batch."""
        entities, sequences = (batch.column(column).to_pylist() for column in ("entity", "sequence"))
        for entity, sequence in dict(zip(entities, sequences, strict=True)).items():  # the last one of each entity
            yield key_of(ENTITIES, entity), _NUMBER.pack(sequence)

    def _covered(self) -> list[tuple[str, UUID, int]]:
        """The logs covered by the index on disk: name, journal, offset."""
        found = [(key[1:].decode(), *_LOG.unpack(value)) for key, value in self._stored(LOGS)]
        return [(name, UUID(bytes=journal), offset) for name, journal, offset in found]

    def _fits(self) -> bool:
        """Whether the index covers the present logs, and no more than they have."""
        logs = self._logs()
        return all(
            name in logs and logs[name].id() == str(journal) and offset <= logs[name].durable_end().offset
            for name, journal, offset in self._covered()
        )


def key_of(kind: bytes, name: str) -> bytes:
    """The index key of a name."""
    return kind + hash_of(name)


def trimmed(folder: Path, log: str, start: int, stop: int) -> Iterator[tuple[list[int], pa.RecordBatch]]:
    """The events of a log with offsets start <= offset < stop, in several batches, each with its offsets.

    Reads the whole stream. Omits events also dropped from the stream by retention.
    """
    born = StreamIdentity.read(folder / MERGED)
    for name in () if born is None else born.names():
        partition = MergedPartition(folder / MERGED / name)
        for _, batch in partition.batches(partition.begin()[PARTITION], partition.durable_end().offset):
            offsets = batch.column("source_offset")
            within = pc.and_(pc.greater_equal(offsets, start), pc.less(offsets, stop))
            found = batch.filter(pc.and_(within, pc.equal(batch.column("source"), log)))
            if found.num_rows:
                yield found.column("source_offset").to_pylist(), found


LATER_EVENTS_MAX = 20_000
_PLACE = struct.Struct(">QQ16s")
_COLUMNS = ["id", "entity", "sequence"]


@dataclass(frozen=True, slots=True)
class NodeEventPlace:
    """The place of an event: its sequence, its entity's hash, its log, and the offset just after the event there."""

    sequence: int
    entity: bytes
    log: str
    behind: int


class NodeIds(Lasts):
    """The ids of the events in all logs. Recent appends of the owner stay in memory for a while (`note_later`)."""

    what = "ids"

    def __init__(self, directory: Path, logs: Logs, folder: Path) -> None:
        """`folder`: has the nodes and the merged stream."""
        super().__init__(directory, logs)
        self._folder = folder
        self._later: list[tuple[str, int, pa.RecordBatch]] = []
        self._later_events = 0

    def note_later(self, name: str, first: int, batch: pa.RecordBatch) -> None:
        """Remember a batch for the next lookup, up to `LATER_EVENTS_MAX` events, to save reading it from the log."""
        if self._later_events + batch.num_rows > LATER_EVENTS_MAX:
            self._later, self._later_events = [], 0  # `follow` reads them
        self._later.append((name, first, batch.select(_COLUMNS)))  # not the payloads
        self._later_events += batch.num_rows

    def catch_up(self) -> None:
        """Take in the remembered batches, up to the first gap."""
        later, self._later, self._later_events = self._later, [], 0
        for name, first, batch in later:
            if first == self.covers(name):
                self.note(name, first, batch)
                self.flush_if_due()

    def places(self, ids: Sequence[str]) -> list[NodeEventPlace | None]:
        """The places of the events with the given ids, as far as the logs were followed; None for an unknown id."""
        found = self.values(key_of(IDS, id_) for id_ in ids)
        return [None if value is None else _place(value) for value in found]

    def _entries_of(self, name: str, first: int, batch: pa.RecordBatch) -> Iterator[tuple[bytes, bytes]]:
        return _entries_at(name, range(first, first + batch.num_rows), batch)

    def _take_base(self, name: str, log: FileLog) -> None:
        start, stop = self.covers(name), retention_base.offset(log.directory)
        if start < stop:
            for offsets, batch in trimmed(self._folder, name, start, stop):
                self.add(_entries_at(name, offsets, batch))
            self._covers[name] = stop

    def counts(self, key: bytes, stored: bytes, new: bytes) -> bytes:
        """The first event in the order of sequences, whichever log is read first."""
        return min(stored, new)


def _entries_at(name: str, offsets: Sequence[int], batch: pa.RecordBatch) -> Iterator[tuple[bytes, bytes]]:
    """The index entries of events at the given offsets of a log."""
    ids, entities, sequences = (batch.column(column).to_pylist() for column in _COLUMNS)
    hashes = {entity: hash_of(entity) for entity in entities}
    for offset, id_, entity, sequence in zip(offsets, ids, entities, sequences, strict=True):
        yield key_of(IDS, id_), _PLACE.pack(sequence, offset + 1, hashes[entity]) + name.encode()


def copy_index(old: Path, new: Path) -> None:
    """Start an index from a copy of another one, if readable. The copy only saves reading logs."""
    if new.exists() or not (old / "data.mdb").exists():
        return
    new.mkdir(parents=True)
    try:
        with open_environment(old, readonly=True, create=False) as environment:
            environment.copy(str(new), compact=True)
    except lmdb.Error:
        (new / "data.mdb").unlink(missing_ok=True)  # then rebuilt from the logs


def _place(value: bytes) -> NodeEventPlace:
    sequence, behind, entity = _PLACE.unpack(value[: _PLACE.size])
    return NodeEventPlace(sequence, entity, value[_PLACE.size :].decode(), behind)


class KnownIds:
    """A node's index of ids, opened at the first lookup: writers that compare no ids pay nothing."""

    def __init__(self, directory: Path, log: str, logs: Logs, folder: Path) -> None:
        """`log`: the owner's own log. `logs`: returns all logs. `folder`: has the logs and the merged stream."""
        self._directory, self._log, self._logs, self._folder = directory, log, logs, folder
        self._ids: NodeIds | None = None
        self._followed = False

    def others_wrote(self) -> None:
        """Follow all logs at the next lookup: the node has got entities that other nodes may have written."""
        self._followed = False

    def note(self, first: int, batch: pa.RecordBatch) -> None:
        """The owner stored this batch in its log, from offset `first` on."""
        if self._ids is not None:
            self._ids.note_later(self._log, first, batch)

    def places(self, ids: Sequence[str], end: int) -> list[NodeEventPlace | None]:
        """The places of the events with the given ids; None where there is none. The owner's log ends at `end`."""
        if self._ids is None:
            self._ids = NodeIds(self._directory, self._logs, self._folder)
        self._ids.catch_up()
        if not self._followed or self._ids.covers(self._log) != end:
            self._ids.follow()
            self._followed = True
        return self._ids.places(ids)

    def stored(self, entity: str, ids: Sequence[str], end: int) -> list[StoredEvent]:
        """The events already stored. An event of another entity carries the entity's name, where known."""
        found = zip(ids, self.places(ids, end), strict=True)
        return [self._stored(entity, id_, place) for id_, place in found if place is not None]

    def close(self) -> None:
        if self._ids is not None:
            self._ids.close()

    def _stored(self, entity: str, id_: str, place: NodeEventPlace) -> StoredEvent:
        try:
            whose = entity if place.entity == hash_of(entity) else self._entity_at(place)
        except JournalCorrupt as error:
            return StoredEvent.without_content(place.behind - 1, id_, error, place.log)
        return StoredEvent(place.behind - 1, id_, whose, place.sequence, place.log)

    def _entity_at(self, place: NodeEventPlace) -> str | None:
        """The entity of the event; None if the event was trimmed."""
        with suppress(EventsGone):
            for _, batch in self._logs()[place.log].batches(place.behind - 1, place.behind):
                return str(batch.column("entity")[0].as_py())
        return None
