"""A node's index: the last sequence of each entity, and where the event with an id stands, over all nodes' logs.

Beside what `lasts` draws it has

    "i" blake2b of the event's id, 16 bytes -> u64 big-endian sequence, u64 big-endian offset behind it, name of the log

which is the first of them where several events have one id. An event takes about 130 bytes there.

The folder belongs to one epoch, so that an owner that is paused in the middle of a transaction keeps no successor
waiting: that one begins with a copy.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import lmdb
import pyarrow as pa

from stateside.journal.nodes.lasts import Lasts, keeping, key_of

_PLACE = struct.Struct(">QQ")


@dataclass(frozen=True, slots=True)
class Place:
    """Where an event stands: its sequence, its log, and the offset just behind it there."""

    sequence: int
    log: str
    behind: int


class NodeIndex(Lasts):
    """`Lasts`, with the ids of events as well."""

    def places(self, ids: Sequence[str]) -> list[Place | None]:
        """Where the events with these ids stand; None for one that is in no log, as far as they were followed."""
        with keeping(self._directory), self._environment.begin() as transaction:
            found = [self._value(transaction, key_of(b"i", id_)) for id_ in ids]
        return [None if value is None else _place(value) for value in found]

    def _entries(self, name: str, first: int, batch: pa.RecordBatch) -> Iterator[tuple[bytes, bytes]]:
        yield from super()._entries(name, first, batch)
        ids, sequences = (batch.column(column).to_pylist() for column in ("id", "sequence"))
        for behind, (id_, sequence) in enumerate(zip(ids, sequences, strict=True), first + 1):
            yield key_of(b"i", id_), _PLACE.pack(sequence, behind) + name.encode()

    def _counts(self, key: bytes, one: bytes, other: bytes) -> bytes:
        return min(one, other) if key.startswith(b"i") else super()._counts(key, one, other)


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
