"""A node's ids: where the event with an id stands, over all nodes' logs.

An index as `lasts` draws it, but with

    "i" blake2b of the event's id, 16 bytes -> u64 big-endian sequence, u64 big-endian offset behind it, name of the log

which is the first of them where several events have one id. An event takes about 130 bytes there. It is made when it is
asked for the first time, and follows the logs when it is asked: whoever compares no ids pays for none.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import lmdb
import pyarrow as pa

from stateside.journal.nodes.lasts import Lasts, Logs, keeping, key_of

LATER_EVENTS_MAX = 20_000
_PLACE = struct.Struct(">QQ")


@dataclass(frozen=True, slots=True)
class Place:
    """Where an event stands: its sequence, its log, and the offset just behind it there."""

    sequence: int
    log: str
    behind: int


class NodeIds(Lasts):
    """The ids of the events in all logs. What the owner appends itself it remembers for a while (`note_later`)."""

    def __init__(self, directory: Path, logs: Logs) -> None:
        super().__init__(directory, logs)
        self._later: list[tuple[str, int, pa.RecordBatch]] = []
        self._later_events = 0

    def note_later(self, name: str, first: int, batch: pa.RecordBatch) -> None:
        """Take this batch in when the index is asked next, without reading it from the log if that is soon."""
        if self._later_events + batch.num_rows > LATER_EVENTS_MAX:
            self._later, self._later_events = [], 0  # `follow` reads them
        self._later.append((name, first, batch.select(["id", "sequence"])))  # not the payloads
        self._later_events += batch.num_rows

    def catch_up(self) -> None:
        """Take in what is remembered, as far as nothing before it is missing."""
        later, self._later, self._later_events = self._later, [], 0
        for name, first, batch in later:
            if first == self.covers(name):
                self.note(name, first, batch)

    def places(self, ids: Sequence[str]) -> list[Place | None]:
        """Where the events with these ids stand; None for one that is in no log, as far as they were followed."""
        with keeping(self._directory), self._environment.begin() as transaction:
            found = [self._value(transaction, key_of(b"i", id_)) for id_ in ids]
        return [None if value is None else _place(value) for value in found]

    def _entries(self, name: str, first: int, batch: pa.RecordBatch) -> Iterator[tuple[bytes, bytes]]:
        ids, sequences = (batch.column(column).to_pylist() for column in ("id", "sequence"))
        for behind, (id_, sequence) in enumerate(zip(ids, sequences, strict=True), first + 1):
            yield key_of(b"i", id_), _PLACE.pack(sequence, behind) + name.encode()

    def _counts(self, key: bytes, one: bytes, other: bytes) -> bytes:
        return min(one, other)


def copy_index(old: Path, new: Path) -> None:
    """Begin an index with what another one has written so far, if that can be read: it only spares reading logs."""
    if new.exists() or not (old / "data.mdb").exists():
        return
    new.mkdir(parents=True)
    try:
        with lmdb.open(str(old), readonly=True) as environment:
            environment.copy(str(new), compact=True)
    except lmdb.Error:
        (new / "data.mdb").unlink(missing_ok=True)  # it is made anew


def _place(value: bytes) -> Place:
    sequence, behind = _PLACE.unpack(value[: _PLACE.size])
    return Place(sequence, value[_PLACE.size :].decode(), behind)
