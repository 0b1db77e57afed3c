"""A table of a replica as of an older batch: the present one, with what later batches replaced laid over it.

Nothing is copied: for a range of keys, the undo records of all later batches are read side by side in order of their
keys, and so are the present rows. Memory: one chunk for each later batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import merge
from itertools import takewhile

from stateside.replica.history import Entry, History, Record
from stateside.replica.ordered import OrderedRows


class PastTable:
    """What `OrderedRows` offers to readers, as of the batch before these records."""

    def __init__(self, now: OrderedRows, table: int, history: History, later: Sequence[Record]) -> None:
        self._now, self._table, self._history = now, table, history
        self._later = [record for record in later if record.chunks[table]]

    def get(self, key: bytes) -> bytes | None:
        """The row of this very key."""
        for record in self._later:
            found = next(self._entries(record, key), None)
            if found is not None and found[0] == key:
                return found[1]
        return self._now.get(key)

    def get_all(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The rows of these very keys, in their order."""
        return [self.get(key) for key in keys]

    def range(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The keys that begin with these bytes, in order, each with its row."""
        changed = takewhile(lambda entry: entry[0].startswith(prefix), self._changed(prefix))
        return _laid_over(changed, self._now.range(prefix))

    def between(self, first: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The keys from `first` on and before `end`, in order, each with its row."""
        changed = takewhile(lambda entry: entry[0] < end, self._changed(first))
        return _laid_over(changed, self._now.between(first, end))

    def last(self, prefix: bytes) -> bytes | None:
        """The last of the keys that begin with these bytes."""
        changed = takewhile(lambda entry: entry[0].startswith(prefix), self._changed(prefix))
        replaced = max((key for key, row in changed if row is not None), default=None)
        now = self._now.last(prefix)
        if now is None or self.get(now) is not None:
            return max((key for key in (now, replaced) if key is not None), default=None)
        return max((key for key, _ in self.range(prefix)), default=None)  # the last one of now was not there yet

    def _changed(self, first: bytes) -> Iterator[Entry]:
        """The keys from `first` on that any later batch changed, in order, each with its row as of the batch."""
        last = None
        for key, _, row in merge(*(self._numbered(record, first) for record in self._later)):
            if key != last:  # of several batches that changed it the first one has the row that is asked for
                yield key, row
            last = key

    def _numbered(self, record: Record, first: bytes) -> Iterator[tuple[bytes, int, bytes | None]]:
        return ((key, record.batch, row) for key, row in self._entries(record, first))

    def _entries(self, record: Record, first: bytes) -> Iterator[Entry]:
        """What a batch replaced, from this key on."""
        return self._history.entries(record, self._table, first)


def _laid_over(changed: Iterator[Entry], now: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    """Both in order of their keys; where both have a key the changed one counts, and takes it away if it is None."""
    over = next(changed, None)
    for key, row in now:
        while over is not None and over[0] < key:
            if over[1] is not None:
                yield over[0], over[1]
            over = next(changed, None)
        if over is None or over[0] != key:
            yield key, row
            continue
        if over[1] is not None:
            yield key, over[1]
        over = next(changed, None)
    while over is not None:
        if over[1] is not None:
            yield over[0], over[1]
        over = next(changed, None)
