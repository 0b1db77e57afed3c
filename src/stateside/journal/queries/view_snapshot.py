"""Snapshots: the views at one moment, in one read transaction. All content is checked: `ViewsDamaged`.

A snapshot lasts for one page of an answer, so that no slow reader keeps LMDB from reusing pages. Views only ever grow,
so the next page's snapshot continues where the last one ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import lmdb
import numpy as np

from stateside.journal.queries import format as form
from stateside.journal.queries.format import ENTITY, Offsets, PostingBlock, Term, ViewsDamaged, ViewsState, Zone


@dataclass(frozen=True, slots=True)
class Postings:
    """Ascending offsets of events, searched up to `behind`. For an entity also the sequences."""

    offsets: Offsets
    behind: int
    sequences: Offsets | None = None


class ViewsSnapshot:
    """The views at one moment."""

    def __init__(self, transaction: lmdb.Transaction, databases: Mapping[str, Any]) -> None:
        self._transaction: Any = transaction  # returns bytes, contrary to its type stubs
        self._databases = databases
        value: Any = self._transaction.get(b"state", db=databases["meta"])
        self.state = ViewsState() if value is None else ViewsState.unpack(value)
        counts = (transaction.stat(databases[name])["entries"] for name in ("terms", "born"))
        if tuple(counts) != (self.state.terms, self.state.entities):
            raise ViewsDamaged("terms are missing")

    def entity(self, name: str) -> Term | None:
        """The entity's term; None if it has no event."""
        return self._term(form.term_key(ENTITY, name.encode()))

    def places(self, kind: bytes, name: str, partition: str, start: int, stop: int, events_max: int) -> Postings:
        """The places of a tag's or type's events in start <= offset < stop; stops soon after `events_max`."""
        number = self._number(partition)
        term = None if number is None else self._term(form.term_key(form.scope(kind, number), name.encode()))
        found, count = [], 0
        for _, block in self._blocks(term, start) if term else ():
            offsets = block.offsets[slice(*np.searchsorted(block.offsets, [start, stop]))]
            found.append(offsets)
            count += len(offsets)
            if block.offsets[-1] >= stop:
                break
            if count >= events_max:
                return Postings(_joined(found), int(block.offsets[-1]) + 1)
        return Postings(_joined(found), stop)

    def entity_places(
        self, name: str, partition: str, start: int, stop: int, sequences: range, events_max: int
    ) -> Postings:
        """The places of an entity's events with the given sequences in start <= offset < stop."""
        term, number = self.entity(name), self._number(partition)
        offsets, numbers, count = [], [], 0
        for first, block in self._blocks(term, sequences.start) if term else ():
            if first >= sequences.stop:
                break
            if block.partition != number:
                continue
            numbered = np.arange(first, first + len(block.offsets))
            low, high = np.searchsorted(block.offsets, [start, stop])
            low = max(low, np.searchsorted(numbered, sequences.start))
            high = min(high, np.searchsorted(numbered, sequences.stop))
            if low < high:
                offsets.append(block.offsets[low:high])
                numbers.append(numbered[low:high])
                count += int(high - low)
            if count >= events_max and block.offsets[-1] < stop:
                return Postings(_joined(offsets), int(block.offsets[-1]) + 1, _joined(numbers))
        return Postings(_joined(offsets), stop, _joined(numbers))

    def zones(self, partition: str, start: int, stop: int) -> Iterator[tuple[int, Zone]]:
        """The zones of a range of offsets, each with its first offset."""
        number = self._number(partition)
        with self._transaction.cursor(self._databases["zones"]) as cursor:
            found = number is not None and _set_at_or_before(
                cursor, form.partition_key(number, start), lambda key: form.partition_offset(key)[0] == number
            )
            expected = None
            while found and start < stop:
                key_partition, first = form.partition_offset(cursor.key())
                zone = Zone.unpack(cursor.key(), cursor.value())
                if key_partition != number or expected not in (None, first) or not first <= start < zone.behind:
                    break
                yield first, zone
                start = expected = zone.behind
                found = cursor.next()
        if start < stop:
            raise ViewsDamaged(f"there is no zone at offset {start}")

    def blocks(self, term: Term) -> Iterator[tuple[int, PostingBlock]]:
        """All blocks of a term, each with the place of its first event: a sequence for an entity, else an offset."""
        return self._blocks(term, 0)

    def names(self, scope: bytes, prefix: str, after: str | None, names_max: int) -> list[tuple[str, Term]]:
        """Terms of a scope with a prefix, in key order, after a given name."""
        wanted = prefix.encode()
        begin = form.term_key(scope, wanted[: form.NAME_BYTES_MAX])
        behind = b"" if after is None else form.term_key(scope, after.encode())
        found: list[tuple[str, Term]] = []
        with self._transaction.cursor(self._databases["terms"]) as cursor:
            there = cursor.set_range(max(begin, behind))
            while there and len(found) < names_max and cursor.key().startswith(begin):
                term, name = Term.unpack(cursor.key(), cursor.value())
                if cursor.key() != behind and name.startswith(wanted):
                    found.append((name.decode(), term))
                there = cursor.next()
        return found

    def born(self, partition: str, start: int, stop: int, names_max: int) -> list[tuple[int, str]]:
        """The entities whose first event stands in start <= offset < stop, with its offset."""
        number = self._number(partition)
        found: list[tuple[int, str]] = []
        if number is None:
            return []
        with self._transaction.cursor(self._databases["born"]) as cursor:
            there = cursor.set_range(form.partition_key(number, start))
            while there and len(found) < names_max and cursor.key() < form.partition_key(number, stop):
                name = form.unpack_name(cursor.key(), cursor.value())
                found.append((form.partition_offset(cursor.key())[1], name))
                there = cursor.next()
        return found

    def _number(self, partition: str) -> int | None:
        return self.state.partitions.index(partition) if partition in self.state.partitions else None

    def _term(self, key: bytes) -> Term | None:
        value = self._transaction.get(key, db=self._databases["terms"])
        return None if value is None else Term.unpack(key, value)[0]

    def _blocks(self, term: Term, place: int) -> Iterator[tuple[int, PostingBlock]]:
        """A term's blocks from the one with the place, or the one before, each with its own place."""
        begin, end = form.block_key(term.number, 0), form.block_key(term.number + 1, 0)
        with self._transaction.cursor(self._databases["blocks"]) as cursor:
            wanted = form.block_key(term.number, place)
            found = _set_at_or_before(cursor, wanted, begin.__le__)
            before = None if found and cursor.key() <= wanted else 0
            while found and cursor.key() < end:
                block = form.unpack_block(cursor.key(), cursor.value())
                if before not in (None, block.before):
                    raise ViewsDamaged("a block is missing")
                yield form.block_place(cursor.key()), block
                before = block.before + len(block.offsets)
                found = cursor.next()
            if before != term.events:
                raise ViewsDamaged("the last block of a term is missing")


def _set_at_or_before(cursor: Any, key: bytes, belongs: Callable[[bytes], bool]) -> bool:
    """Set the cursor to the key, else to the last earlier key that belongs, else to the first later key."""
    there = cursor.set_range(key)
    if there and cursor.key() == key:
        return True
    if (cursor.prev() if there else cursor.last()) and belongs(cursor.key()):
        return True
    return bool(cursor.set_range(key))


def _joined(parts: list[Offsets]) -> Offsets:
    return np.concatenate(parts) if parts else np.empty(0, np.int64)
