"""Indexer: adds a range of a stream's events to the views, in one transaction."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import lmdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateside.journal.backends.files.frames import Offsets
from stateside.journal.queries import format as form
from stateside.journal.queries.format import ENTITY, TAG, TYPE, Term, ViewsState, Zone

ZONE_EVENTS = 4_096  # maximum events of a zone

Items = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class PartitionRange:
    """All events of one partition with first <= offset < behind, and the offset of each."""

    partition: int
    first: int
    behind: int
    offsets: Offsets
    batch: pa.RecordBatch


class Indexing:
    """One transaction's additions. Advances `state`; the caller writes it in the same transaction."""

    def __init__(self, transaction: lmdb.Transaction, databases: Mapping[str, Any], state: ViewsState) -> None:
        self._transaction: Any = transaction  # returns bytes, contrary to its type stubs
        self._databases, self._state = databases, state

    def add(self, part: PartitionRange) -> None:
        """Add the next events of a partition."""
        assert part.first == self._state.offsets[part.partition], "the views have every event once"
        if part.batch.num_rows:
            self._add_entities(part)
            self._add_terms(TYPE, part, *_encoded(part.batch.column("type")))
            self._add_terms(TAG, part, *_encoded_tags(part.batch.column("tags")))
            self._state.last_ids[part.partition] = part.batch.column("id")[-1].as_py()
        self._add_zones(part)
        self._state.offsets[part.partition] = part.behind

    def _add_entities(self, part: PartitionRange) -> None:
        found: dict[str, _Entity] = {}
        names, sequences = (part.batch.column(column).to_pylist() for column in ("entity", "sequence"))
        for offset, name, sequence in zip(part.offsets.tolist(), names, sequences, strict=True):
            entity = found.get(name)
            if entity is None:
                entity = found[name] = self._entity(name, part.partition, offset)
            entity.add(offset, sequence)
        self._put("terms", (entity.item() for entity in found.values()))
        self._put("blocks", (item for entity in found.values() for item in entity.blocks(part.partition)))
        born = [(entity.born, form.pack_name(entity.born, entity.name)) for entity in found.values() if entity.born]
        self._put("born", born)
        self._state.entities += len(born)

    def _entity(self, name: str, partition: int, offset: int) -> _Entity:
        encoded = name.encode()
        term = self._term(form.term_key(ENTITY, encoded))
        return _Entity(encoded, term, b"" if term.events else form.partition_key(partition, offset))

    def _add_terms(self, kind: bytes, part: PartitionRange, names: Sequence[str], codes: Any, rows: Any) -> None:
        """Add each name's events: `codes` has the index of a name, `rows` the row with the name."""
        order = np.argsort(codes, kind="stable")
        bounds = np.searchsorted(codes[order], np.arange(len(names) + 1)).tolist()
        offsets = part.offsets[rows[order]]
        terms, places = [], []
        for code, name in enumerate(names):
            encoded = name.encode()
            key = form.term_key(form.scope(kind, part.partition), encoded)
            term = self._term(key)
            mine = offsets[bounds[code] : bounds[code + 1]]
            places.extend(_places(term, part.partition, mine))
            term.events += len(mine)
            terms.append((key, term.pack(key, encoded)))
        self._put("terms", terms)
        self._put("blocks", places)

    def _term(self, key: bytes) -> Term:
        value = self._transaction.get(key, db=self._databases["terms"])
        if value is not None:
            return Term.unpack(key, value)[0]
        self._state.terms += 1
        return Term(self._state.terms)

    def _add_zones(self, part: PartitionRange) -> None:
        """Add the events' times, in zones of up to `ZONE_EVENTS` events; the last zone grows until full.

        Every offset is in a zone, with or without an event.
        """
        times = part.batch.column("time").cast(pa.int64()).to_numpy()
        bounds = [*part.offsets.tolist(), part.behind]
        key, zone = self._last_zone(part)
        at = 0
        while zone.behind < part.behind:
            first = form.partition_offset(key)[1]
            reached = bisect_left(bounds, first + ZONE_EVENTS, at, len(times))
            if reached == at < len(times) and zone.behind > first:  # the zone is full
                key, zone = form.partition_key(part.partition, zone.behind), Zone(zone.behind, ())
                continue
            reached = min(max(reached, at + 1), len(times))  # a first event may follow a wide gap
            spans = _spans(times[at:reached], zone.spans) if reached > at else zone.spans
            zone, at = Zone(bounds[reached], spans), reached
            self._put("zones", [(key, zone.pack(key))])

    def _last_zone(self, part: PartitionRange) -> tuple[bytes, Zone]:
        """The zone of the preceding events; an empty one at the partition's beginning."""
        with self._transaction.cursor(self._databases["zones"]) as cursor:
            behind = form.partition_key(part.partition, part.first)
            found = cursor.prev() if cursor.set_range(behind) else cursor.last()
            if found and form.partition_offset(cursor.key())[0] == part.partition:
                return cursor.key(), Zone.unpack(cursor.key(), cursor.value())
        return behind, Zone(part.first, ())

    def _put(self, database: str, items: Iterable[tuple[bytes, bytes]]) -> None:
        with self._transaction.cursor(self._databases[database]) as cursor:
            cursor.putmulti(sorted(items))


@dataclass(slots=True)
class _Entity:
    """A transaction's additions to one entity: runs of events with consecutive sequences."""

    name: bytes
    term: Term
    born: bytes
    runs: list[tuple[int, list[int]]] = field(default_factory=list)

    def add(self, offset: int, given: int | None) -> None:
        """Add an event. Without a sequence it gets the next one; with one not beyond the last it is a repeat."""
        sequence = numbered(given, self.term.last)
        if sequence is None:
            return
        run = self.runs[-1][1] if self.runs else None
        if run and sequence == self.term.last + 1 and _fits(run, offset):
            run.append(offset)
        else:
            self.runs.append((sequence, [offset]))
        self.term.last = sequence

    def item(self) -> tuple[bytes, bytes]:
        """The entity's term, with the events of this transaction counted."""
        key = form.term_key(ENTITY, self.name)
        added = sum(len(offsets) for _, offsets in self.runs)
        return key, Term(self.term.number, self.term.events + added, self.term.last).pack(key, self.name)

    def blocks(self, partition: int) -> Items:
        """The blocks of the runs."""
        before, items = self.term.events, []
        for sequence, offsets in self.runs:
            key = form.block_key(self.term.number, sequence)
            items.append((key, form.pack_block(key, before, partition, offsets)))
            before += len(offsets)
        return items


def numbered(given: int | None, last: int) -> int | None:
    """An event's sequence after an entity's last one; None for a repeat, which does not count."""
    sequence = last + 1 if given is None else given
    return sequence if sequence > last else None


def _fits(run: Sequence[int], offset: int) -> bool:
    return len(run) < form.BLOCK_EVENTS_MAX and offset - run[0] < form.BLOCK_SPAN_MAX


def _places(term: Term, partition: int, offsets: Any) -> Items:
    items, before = [], term.events
    for low in range(0, len(offsets), form.BLOCK_EVENTS_MAX):
        some = offsets[low : low + form.BLOCK_EVENTS_MAX]
        key = form.block_key(term.number, int(some[0]))
        items.append((key, form.pack_block(key, before, partition, some)))
        before += len(some)
    return items


def _encoded(column: pa.Array) -> tuple[list[str], Any, Any]:
    """The distinct names, the index of each row's name, and the rows."""
    encoded = column.dictionary_encode()
    return encoded.dictionary.to_pylist(), encoded.indices.to_numpy(), np.arange(len(column))


def _encoded_tags(column: pa.Array) -> tuple[list[str], Any, Any]:
    """As `_encoded` for the rows' tags; a tag given twice in one event counts once."""
    names, codes, _ = _encoded(column.flatten())
    pairs = np.unique(np.stack([codes, pc.list_parent_indices(column).to_numpy()]), axis=1)
    return names, pairs[0], pairs[1]


def _spans(times: Any, known: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Spans of these times and the known spans, split at the widest gaps."""
    lows, highs = (np.concatenate([np.array([span[side] for span in known], np.int64), times]) for side in (0, 1))
    order = np.argsort(lows, kind="stable")
    lows, reached = lows[order], np.maximum.accumulate(highs[order])
    gaps = lows[1:] - reached[:-1]
    widest = np.argsort(-gaps, kind="stable")[: form.ZONE_SPANS_MAX - 1]
    cuts = [0, *sorted((widest[gaps[widest] > 0] + 1).tolist()), len(lows)]
    return tuple((int(lows[low]), int(reached[high - 1])) for low, high in pairwise(cuts))
