"""A node's index of event ids: the place of the event with an id, over all nodes' logs.

An LMDB index as drawn in `last_sequences`, but with

    "i" blake2b of the event's id, 16 bytes -> u64 big-endian sequence, u64 big-endian offset after the event,
                                               blake2b of the entity, 16 bytes, name of the log

Where several events have one id, the first one counts. An event takes about 150 bytes in the index.

The index detects a repeated append even when retention has trimmed the events from the log. Events trimmed before the
index had them come from the merged stream, where every event carries its source (`trimmed`). `KnownIds` is the index as
the owner of one node uses it in its turn.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import lmdb
import pyarrow as pa
import pyarrow.compute as pc

from stateside.core.errors import EventsGone, JournalCorrupt
from stateside.core.lmdb import open_environment
from stateside.journal.backends.files import retention_base
from stateside.journal.backends.files.file_log import FileLog
from stateside.journal.backends.files.segment import PARTITION
from stateside.journal.backends.nodes.last_sequences import IDS, Lasts, Logs, key_of
from stateside.journal.backends.nodes.partition import MERGED, MergedPartition, StreamIdentity
from stateside.journal.index import hash_of, keeping
from stateside.journal.receipt import StoredEvent


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
                self.write_if_due()

    def places(self, ids: Sequence[str]) -> list[NodeEventPlace | None]:
        """The places of the events with the given ids, as far as the logs were followed; None for an unknown id."""
        with keeping("ids", self._directory), self._environment.begin() as transaction:
            found = [self._value(transaction, key_of(IDS, id_)) for id_ in ids]
        return [None if value is None else _place(value) for value in found]

    def _entries(self, name: str, first: int, batch: pa.RecordBatch) -> Iterator[tuple[bytes, bytes]]:
        return _entries_at(name, range(first, first + batch.num_rows), batch)

    def _take_base(self, name: str, log: FileLog) -> None:
        start, stop = self.covers(name), retention_base.offset(log.directory)
        if start < stop:
            for offsets, batch in trimmed(self._folder, name, start, stop):
                self._add(_entries_at(name, offsets, batch))
            self._covers[name] = stop

    def _counts(self, key: bytes, one: bytes, other: bytes) -> bytes:
        return min(one, other)


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


def node_of(log: str) -> str:
    """The node of a log, by name."""
    return log.rpartition(".")[0]


def epoch_of(log: str) -> int:
    """The epoch of a log, by name; 0 for other names."""
    epoch = log.rpartition(".")[2]
    return int(epoch) if epoch.isdecimal() else 0
