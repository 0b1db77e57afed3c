"""Checks against the log: the indexes of ids and of last sequences, the order of events, and the zone maps of segments.

Each index is read as of one LMDB transaction. `index` rebuilds a wrong index; here the fault is only reported.

The order of events: every entity's sequences are 1, 2, 3, …, each once, without gaps. Memory: a name and a number for
each entity, about 150 bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import lmdb
import numpy as np
import pyarrow as pa

from stateside.core.lmdb import open_environment
from stateside.journal.admin.findings import Findings
from stateside.journal.backends.files import zone_maps
from stateside.journal.backends.files.frames import Offsets
from stateside.journal.backends.files.zone_maps import Collector
from stateside.journal.index import hash_of

MEND: Final = "Delete this folder while nobody appends: the next append makes it again from the log"
_NUMBER = struct.Struct("<Q")


class IndexUnreadable(Exception):
    """The files are not an index, or a damaged one."""


class StoredIndex:
    """An index on disk at one moment, read only."""

    def __init__(self, directory: Path, name: str) -> None:
        """IndexUnreadable if unreadable."""
        self.directory = directory
        try:
            self._environment = open_environment(directory, readonly=True, create=False, databases_max=2)
        except lmdb.Error as error:
            raise IndexUnreadable(str(error)) from error
        try:
            meta, self._numbers = (self._environment.open_db(db, create=False) for db in (b"meta", name.encode()))
            self._transaction: Any = self._environment.begin()
            journal, covers = (self._transaction.get(key, db=meta) for key in (b"journal", b"covers"))
            self.journal = "" if journal is None else journal.decode()
            self.covers = 0 if covers is None else int(_NUMBER.unpack(covers)[0])
        except (lmdb.Error, struct.error, UnicodeDecodeError) as error:
            self._environment.close()
            raise IndexUnreadable(str(error)) from error

    def number(self, key: str) -> int | None:
        """The value of a key."""
        found = self._transaction.get(hash_of(key), db=self._numbers)
        return None if found is None else int(_NUMBER.unpack(found)[0])

    def entries(self, least: int) -> int:
        """The number of keys with at least this value."""
        with self._transaction.cursor(self._numbers) as cursor:
            return sum(1 for value in cursor.iternext(keys=False) if _NUMBER.unpack(value)[0] >= least)

    def close(self) -> None:
        self._transaction.abort()
        self._environment.close()


def opened(directory: Path, name: str, journal_id: str, findings: Findings) -> StoredIndex | None:
    """The index of this journal; None if missing, and None with a finding if unreadable or of another journal."""
    if not (directory / "data.mdb").exists():
        return None
    try:
        index = StoredIndex(directory, name)
    except IndexUnreadable as error:
        findings.add(directory.name, f"The index in {directory} cannot be read: {error}", MEND)
        return None
    if index.journal == journal_id or index.covers == 0:
        return index
    findings.add(directory.name, f"The index in {directory} is of another journal, {index.journal}", MEND)
    index.close()
    return None


def covered(directory: Path) -> int | None:
    """The offset up to which the index has all events; None if there is no readable index."""
    try:
        index = StoredIndex(directory, "events" if directory.name == "ids" else "entities")
    except IndexUnreadable:
        return None
    covers = index.covers
    index.close()
    return covers


class IdsCheck:
    """Whether the index maps every id to the offset of the first event with the id, and has no other entry.

    Each event's id must map to the event itself or to an earlier one, and each entry must be matched by the event that
    it names. Together these checks detect every wrong entry.
    """

    def __init__(self, index: StoredIndex, findings: Findings) -> None:
        self._index, self._findings = index, findings
        self._own = 0

    def take(self, first: int, ids: Sequence[str]) -> None:
        """Check the next events."""
        for offset, id_ in enumerate(ids[: max(0, self._index.covers - first)], first):
            found = self._index.number(id_)
            if found == offset:
                self._own += 1
            elif found is None or found > offset:
                self._tell(f"says {found} of the id {id_!r}, which the event at offset {offset} has")

    def finish(self, begin: int, end: int) -> None:
        """All events from `begin` to `end` were taken."""
        if self._index.covers > end:
            self._tell(f"covers {self._index.covers} events, and the log ends at {end}")
        others = self._index.entries(begin) - self._own
        if others:
            self._tell(f"has {others:,} entries that name another event than the first one with their id")

    def _tell(self, what: str) -> None:
        self._findings.add("ids", f"The index in {self._index.directory} {what}", MEND)


class SequencesCheck:
    """Whether the index has every entity's last sequence before the offset that it covers."""

    def __init__(self, index: StoredIndex, findings: Findings) -> None:
        self._index, self._findings = index, findings
        self.covers = index.covers

    def compare(self, lasts: Mapping[str, int], *, is_all: bool) -> None:
        """Compare with the log's last sequences; `is_all` if no entity is missing."""
        for entity, last in lasts.items():
            found = self._index.number(entity)
            if found != last:
                self._tell(f"says {found} of {entity!r}, whose last sequence is {last} at offset {self.covers}")
        others = self._index.entries(0) - len(lasts)
        if is_all and others > 0:
            self._tell(f"has {others:,} entities that the log does not have")

    def finish(self, end: int) -> None:
        """The log ends at `end`."""
        if self.covers > end:
            self._tell(f"covers {self.covers} events, and the log ends at {end}")

    def _tell(self, what: str) -> None:
        self._findings.add("sequences", f"The index in {self._index.directory} {what}", MEND)


_MEND = "Keep the segment as it is and find out which writer stored the event; readers count it by its own sequence"


@dataclass(frozen=True, slots=True)
class Numbered:
    """The sequence of each event (0: a repeat, which does not count), and the rows of new entities."""

    sequences: Offsets
    born: list[int]


class LogCheck:
    """Check of the order of events. `lasts` has each entity's last sequence so far."""

    def __init__(self, findings: Findings, lasts: Mapping[str, int] | None, *, has_gaps: bool = False) -> None:
        """`lasts`: of all entities with events before the log begins; None if unknown.

        `has_gaps`: a node's log, where other nodes may have written between two events of an entity.
        """
        self._findings, self._from_birth, self._has_gaps = findings, lasts is not None, has_gaps
        self.lasts: dict[str, int] = dict(lasts or {})

    @property
    def is_all(self) -> bool:
        """Whether every entity is known."""
        return self._from_birth

    def forget(self) -> None:
        """Events are missing: the next ones may have any sequence."""
        self.lasts, self._from_birth = {}, False

    def take(self, offsets: Sequence[int] | Offsets, batch: pa.RecordBatch) -> Numbered:
        """Check the next events, with their offsets."""
        found, born = [], []
        rows = zip(batch.column("entity").to_pylist(), batch.column("sequence").to_pylist(), strict=True)
        for row, (entity, given) in enumerate(rows):
            last = self.lasts.get(entity)
            if last is None:
                born.append(row)
                last = 0 if self._from_birth or given is None else given - 1
            sequence = last + 1 if given is None else given
            if sequence != last + 1 and not (self._has_gaps and sequence > last):
                self._tell(int(offsets[row]), entity, sequence, last)
            found.append(sequence if sequence > last else 0)
            self.lasts[entity] = max(last, sequence)
        return Numbered(np.array(found, np.int64), born)

    def _tell(self, offset: int, entity: str, sequence: int, last: int) -> None:
        kind = "gap" if sequence > last else "order"
        what = f"The event at offset {offset} of {entity!r} has the sequence {sequence} after {last}"
        self._findings.add(kind, what, _MEND)


class SummaryCheck:
    """Check of a segment's zone map against its events; does nothing if the segment has none."""

    def __init__(self, segment: Path, findings: Findings) -> None:
        self._segment, self._findings = segment, findings
        self._collector = Collector() if zone_maps.path_of(segment).exists() else None

    def take(self, batch: pa.RecordBatch) -> None:
        if self._collector is not None:
            self._collector.take(batch)

    def finish(self, journal_id: str, events: int) -> None:
        """All events of the segment were taken; `events` is their number."""
        if self._collector is None or not events:
            return
        kept = zone_maps.load(self._segment, UUID(journal_id), events)
        if kept != self._collector.summary():
            path = zone_maps.path_of(self._segment)
            wrong = "is damaged, and not used" if kept is None else "does not say what the segment has"
            self._findings.add("summary", f"The summary {path} {wrong}", "Delete that file: it is made again")
