"""Ids: where in the journal the event with an id stands, so that the same one again is not stored twice.

An `index` in the folder `ids/`: of each id, the offset of the first event with it. What the journal has behind what
the index covers is kept in memory until there is enough to be written at once: so an append waits for no second disk.
A small journal has no index on disk at all: it is read. On disk an event takes about 130 bytes here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from stateside.errors import JournalAway
from stateside.journal import base
from stateside.journal.index import Index, hash_of, keeping
from stateside.journal.reader import Journal
from stateside.journal.segment import DurableEnd

WRITTEN_AT_ONCE = 50_000  # events; in memory they take some 10 MB


class Ids:
    """The index of one journal's ids. Only whoever has the writer's turn may ask it."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._directory = journal.directory / "ids"
        self._recent: dict[bytes, int] = {}
        self._read = 0  # the journal's events before this offset are on disk or in `_recent`
        self._written = 0  # what the index on disk covered when it was last looked at
        self._mark = DurableEnd(0, 0, 0)  # where the journal ended then: reading goes on from there at once
        self._asked: dict[str, bytes] = {}  # the hashes of the ids that were asked for last

    def offsets(self, ids: Sequence[str], end: DurableEnd) -> list[int | None]:
        """The offset of the first event with each id; None where there is none before `end`, the journal's end.

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
        """Events with these ids were stored, from an offset on; take them in if the index was asked for them.

        In memory alone: as they are stored already, this must not fail.
        """
        asked, self._asked = self._asked, {}
        if self._read != first or not asked:
            return  # they are read when the index is asked next
        for offset, id_ in enumerate(ids, first):
            self._recent.setdefault(asked.get(id_) or hash_of(id_), offset)
        self._read, self._mark = end.offset, end

    def _covered_in_memory(self, end: DurableEnd) -> bool:
        """Have all events before `end` in memory, where there is no index on disk, and few of them."""
        few = len(self._recent) + end.offset - self._read < WRITTEN_AT_ONCE
        if self._written or not few or self._directory.exists():
            return False
        for _ in self._read_on(end):
            pass
        self._mark = end
        return True

    def keep(self, end: DurableEnd) -> None:
        """Have on disk the ids of all events before `end`: some of them are about to be dropped."""
        with keeping("ids", self._directory), self._index(end) as index:
            self._cover(index, end)
            index.write(self._recent.items(), self._read, overwrite=False)
            self._recent, self._written = {}, index.covers

    def forget_beyond(self, end: DurableEnd) -> None:
        """Have the index deleted if it knows more than the journal, which lost something with the machine's power."""
        if self._directory.exists():
            with keeping("ids", self._directory), self._index(end):
                pass

    def _index(self, end: DurableEnd) -> Index:
        return Index(self._directory, "events", self._journal, end.offset)

    def _cover(self, index: Index, end: DurableEnd) -> None:
        """Have all events before `end`, in the index or in memory."""
        if index.covers != self._written:  # another process wrote meanwhile, or the index was deleted
            self._recent = {hash_: offset for hash_, offset in self._recent.items() if offset >= index.covers}
            self._read = index.covers if index.covers < self._written else max(self._read, index.covers)
        for _ in chain((None,), self._read_on(end)):  # first what was noted
            if len(self._recent) >= WRITTEN_AT_ONCE:
                index.write(self._recent.items(), self._read, overwrite=False)
                self._recent = {}
        self._written, self._mark = index.covers, end

    def _read_on(self, end: DurableEnd) -> Iterator[None]:
        """Take in what the journal has up to `end`, batch by batch."""
        mark = self._mark if self._mark.offset <= self._read else None
        if self._read < end.offset:  # ids of events that were dropped are known only as far as they are on disk
            self._read = max(self._read, base.offset(self._journal.directory))
        for first, batch in self._journal.batches(self._read, end.offset, mark):
            for offset, id_ in enumerate(batch.column("id").to_pylist(), first):
                self._recent.setdefault(hash_of(id_), offset)
            self._read = first + batch.num_rows
            yield
