"""Sequences: the number of each entity's last event, so that its next one gets the number after it.

An `index` in the folder `sequences/`: of each entity, the sequence of its last event. Every append asks for it, so most
of it happens in memory: what is behind the index, and the entities that came lately. The disk is needed for entities
that did not, and now and then to write what has gathered. A small journal has no index on disk at all: it is read.

Events that were stored before there were sequences count as one each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa

from stateside.errors import JournalAway
from stateside.journal import base
from stateside.journal.columns import SCHEMA
from stateside.journal.index import Index, hash_of, keeping
from stateside.journal.reader import Journal
from stateside.journal.segment import DurableEnd

ENTITIES_UNWRITTEN_MAX = 200_000  # in memory they take some 30 MB, and those written before as much again
EVENTS_UNWRITTEN_MAX = 1_000_000  # whoever opens the journal next reads them, at some millions a second
EVENTS_READ_MAX = 50_000  # what was read anew from the segments, and is not to be read so a second time

Lasts = Callable[[Sequence[str]], Sequence[int]]

_SEQUENCE = SCHEMA.get_field_index("sequence")


class _IndexGone(Exception):
    """Begin anew: the index on disk is not the one that was there."""


class Sequences:
    """The last sequences of one journal's entities. Only whoever has the writer's turn may ask."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._directory = journal.directory / "sequences"
        self._forget()

    def lasts(self, entities: Sequence[str], end: DurableEnd) -> list[int]:
        """The sequence of each entity's last event before `end`, the journal's end; 0 where there is none.

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
        """These are the last sequences of the entities that the last append was of; the journal ends here now.

        All before that append must be known: `lasts` was asked in the same turn.

        It never fails, as the events are stored already: what has gathered the next append writes, before it stores.
        """
        self._unwritten.update(lasts)
        self._read, self._mark = end.offset, end

    def forget_beyond(self, end: DurableEnd) -> None:
        """Have the index deleted if it knows more than the journal, which lost something with the machine's power."""
        if self._directory.exists():
            with keeping("sequences", self._directory), self._index(end):
                pass

    def _forget(self) -> None:
        self._unwritten: dict[str, int] = {}  # of events that the index does not cover
        self._known: dict[str, int] = {}  # the same as in the index
        self._whole = True  # whether the two have every entity
        self._read = self._written = 0  # up to where the events are known here, and covered by the index
        self._mark = DurableEnd(0, 0, 0)  # where the journal ended then: reading goes on from there at once

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
        """Know all events before `end`: what others appended is read from the segments, or found in their index."""
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
        """Go on from where the index on disk is, if that is farther."""
        if not self._directory.exists():
            return
        with keeping("sequences", self._directory), self._index(end) as index:
            covers = index.covers
        if covers > self._read:
            self._forget()
            self._read = self._written = covers
            self._whole = False

    def _start_from_base(self, end: DurableEnd) -> None:
        """Go on behind the events that were dropped: from the index on disk if it knows of them, else from the base."""
        if self._read >= base.offset(self._journal.directory):
            return
        self._start_from_index(end)
        known = base.read(self._journal.directory)
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
        """Have the index cover what is known here, if it is time to."""
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
        """_IndexGone if it is not the index that this memory goes with: it was deleted, and made anew perhaps."""
        if not self._written <= index.covers <= self._read:
            raise _IndexGone

    def _remember(self, lasts: Mapping[str, int]) -> None:
        """Keep what the index has in memory, too, as much as there may be."""
        if self._known and len(self._known) + len(lasts) > ENTITIES_UNWRITTEN_MAX:
            self._known, self._whole = {}, False
        self._known.update(lasts)

    def _index(self, end: DurableEnd) -> Index:
        return Index(self._directory, "entities", self._journal, end.offset)


def numbered(batch: pa.RecordBatch, lasts: Lasts) -> tuple[pa.RecordBatch, dict[str, int]]:
    """The batch with the next sequences of its entities, and which are their last ones then."""
    entities: list[str] = batch.column("entity").to_pylist()
    names = list(dict.fromkeys(entities))
    now = dict(zip(names, lasts(names), strict=True))
    sequences = []
    for entity in entities:
        now[entity] = sequence = now[entity] + 1
        sequences.append(sequence)
    return batch.set_column(_SEQUENCE, SCHEMA.field(_SEQUENCE), pa.array(sequences, pa.int64())), now
