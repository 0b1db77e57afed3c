"""A node's ids: where the event with an id stands, over all nodes' logs.

An index as `lasts` draws it, but with

    "i" blake2b of the event's id, 16 bytes -> u64 big-endian sequence, u64 big-endian offset behind it,
                                               blake2b of the entity, 16 bytes, name of the log

which is the first of them where several events have one id. An event takes about 150 bytes there. So whether an append
is a repetition can be told even when its events were trimmed from the log. If they were before this index had them,
they are found in the merged stream.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import lmdb
import pyarrow as pa

from stateside.journal import base
from stateside.journal.environment import open_environment
from stateside.journal.index import hash_of, keeping
from stateside.journal.nodes.lasts import IDS, Lasts, Logs, key_of
from stateside.journal.nodes.trimmed import trimmed
from stateside.journal.reader import Journal

LATER_EVENTS_MAX = 20_000
_PLACE = struct.Struct(">QQ16s")
_COLUMNS = ["id", "entity", "sequence"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where an event stands: its sequence, its entity's hash, its log, and the offset just behind it there."""

    sequence: int
    entity: bytes
    log: str
    behind: int


class NodeIds(Lasts):
    """The ids of the events in all logs. What the owner appends itself it remembers for a while (`note_later`)."""

    def __init__(self, directory: Path, logs: Logs, folder: Path) -> None:
        """`folder`: where the nodes and the merged stream lie."""
        super().__init__(directory, logs)
        self._folder = folder
        self._later: list[tuple[str, int, pa.RecordBatch]] = []
        self._later_events = 0

    def note_later(self, name: str, first: int, batch: pa.RecordBatch) -> None:
        """Take this batch in when the index is asked next, without reading it from the log if that is soon."""
        if self._later_events + batch.num_rows > LATER_EVENTS_MAX:
            self._later, self._later_events = [], 0  # `follow` reads them
        self._later.append((name, first, batch.select(_COLUMNS)))  # not the payloads
        self._later_events += batch.num_rows

    def catch_up(self) -> None:
        """Take in what is remembered, as far as nothing before it is missing."""
        later, self._later, self._later_events = self._later, [], 0
        for name, first, batch in later:
            if first == self.covers(name):
                self.note(name, first, batch)
                self.write_if_due()

    def places(self, ids: Sequence[str]) -> list[Place | None]:
        """Where the events with these ids stand; None for one that is in no log, as far as they were followed."""
        with keeping("ids", self._directory), self._environment.begin() as transaction:
            found = [self._value(transaction, key_of(IDS, id_)) for id_ in ids]
        return [None if value is None else _place(value) for value in found]

    def _entries(self, name: str, first: int, batch: pa.RecordBatch) -> Iterator[tuple[bytes, bytes]]:
        return _entries_at(name, range(first, first + batch.num_rows), batch)

    def _take_base(self, name: str, log: Journal) -> None:
        start, stop = self.covers(name), base.offset(log.directory)
        if start < stop:
            for offsets, batch in trimmed(self._folder, name, start, stop):
                self._add(_entries_at(name, offsets, batch))
            self._covers[name] = stop

    def _counts(self, key: bytes, one: bytes, other: bytes) -> bytes:
        return min(one, other)


def _entries_at(name: str, offsets: Sequence[int], batch: pa.RecordBatch) -> Iterator[tuple[bytes, bytes]]:
    """What events at these offsets of a log add to the index."""
    ids, entities, sequences = (batch.column(column).to_pylist() for column in _COLUMNS)
    hashes = {entity: hash_of(entity) for entity in entities}
    for offset, id_, entity, sequence in zip(offsets, ids, entities, sequences, strict=True):
        yield key_of(IDS, id_), _PLACE.pack(sequence, offset + 1, hashes[entity]) + name.encode()


def copy_index(old: Path, new: Path) -> None:
    """Begin an index with what another one has written so far, if that can be read: it only spares reading logs."""
    if new.exists() or not (old / "data.mdb").exists():
        return
    new.mkdir(parents=True)
    try:
        with open_environment(old, readonly=True, create=False) as environment:
            environment.copy(str(new), compact=True)
    except lmdb.Error:
        (new / "data.mdb").unlink(missing_ok=True)  # it is made anew


def _place(value: bytes) -> Place:
    sequence, behind, entity = _PLACE.unpack(value[: _PLACE.size])
    return Place(sequence, entity, value[_PLACE.size :].decode(), behind)
