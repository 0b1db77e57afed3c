"""Sorted runs: more changes than memory may hold, put into the order of their keys.

1. Changes gather in memory. When there are enough of them they are sorted, cut into pages and written to a file that
   has no name: a run. The first key of every page stays in memory.
2. In the end the pages are read in the order of their first keys, some at a time. What lies before the first key of
   all pages that are still to come is complete: it is sorted, and handed on.

So each change is written once and read once, whatever there is of them. Of several to one key the last one counts.
"""

from __future__ import annotations

import marshal
import tempfile
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from pathlib import Path

RUN_BYTES = 128 * 1024 * 1024  # about so much memory the changes have before they become a run
PAGE_ROWS = 1_000  # fewer if rows are so large that these would be more than
PAGE_BYTES = 1024 * 1024
PAGES_AT_ONCE = 16  # more would not stay in the processor's caches
_CHANGE_BYTES = 250  # what a change takes besides its bytes, in a dict and in a list
_WITHOUT_REFERENCES = 2  # marshal's version: a later one would look for objects that are there twice

_key, _row = itemgetter(0), itemgetter(1)

Change = tuple[bytes, bytes | None]
Row = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True)
class _Page:
    """A part of a run: the first key, the run's number, and where it lies in the file."""

    first: bytes
    run: int
    begin: int
    size: int


class SortedRuns:
    """Takes changes in any order, then gives the rows that they leave in the order of their keys, each once."""

    def __init__(self, folder: Path) -> None:
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - `close` does so
        self._changes: dict[bytes, bytes | None] = {}
        self._size = 0
        self._pages: list[_Page] = []
        self._runs = 0

    def add(self, changes: Iterable[Change]) -> None:
        """Some more changes, after all that were there before."""
        for_now = list(changes)
        self._changes.update(for_now)
        self._size += _CHANGE_BYTES * len(for_now) + _bytes(map(_key, for_now)) + _bytes(map(_row, for_now))
        if self._size >= RUN_BYTES:
            self._write_run()

    def merged(self) -> Iterator[list[Row]]:
        """All rows in order, some at a time."""
        if not self._pages:  # all of them are still here
            rows, some = _left(self._changes.items()), PAGES_AT_ONCE * self._page_rows()
            self._changes = {}
            yield from (rows[at : at + some] for at in range(0, len(rows), some))
            return
        self._write_run()
        self._pages.sort(key=attrgetter("first"))
        waiting: list[list[Change]] = [[] for _ in range(self._runs)]
        for at in range(0, len(self._pages), PAGES_AT_ONCE):
            for page in self._pages[at : at + PAGES_AT_ONCE]:
                waiting[page.run] += self._read(page)
            to_come = self._pages[at + PAGES_AT_ONCE : at + PAGES_AT_ONCE + 1]
            ready = [change for run in waiting for change in _taken(run, to_come[0].first if to_come else None)]
            yield _left(dict(ready).items())

    def close(self) -> None:
        """Let the file go."""
        self._file.close()

    def _write_run(self) -> None:
        changes, page_rows = sorted(self._changes.items(), key=_key), self._page_rows()
        self._changes, self._size = {}, 0
        for at in range(0, len(changes), page_rows):
            page = changes[at : at + page_rows]
            content = marshal.dumps(page, _WITHOUT_REFERENCES)
            self._pages.append(_Page(page[0][0], self._runs, self._file.tell(), len(content)))
            self._file.write(content)
        self._runs += 1

    def _page_rows(self) -> int:
        return max(1, min(PAGE_ROWS, PAGE_BYTES * len(self._changes) // max(self._size, 1)))

    def _read(self, page: _Page) -> list[Change]:
        self._file.seek(page.begin)
        changes: list[Change] = marshal.loads(self._file.read(page.size))
        return changes


def _bytes(parts: Iterable[bytes | None]) -> int:
    return sum(map(len, filter(None, parts)))


def _taken(run: list[Change], bound: bytes | None) -> list[Change]:
    """Take what lies before a key out of a run, or all of it."""
    end = len(run) if bound is None else bisect_left(run, bound, key=_key)
    taken = run[:end]
    del run[:end]
    return taken


def _left(changes: Iterable[Change]) -> list[Row]:
    """The rows that changes leave, of which none is of the same key as another, in order."""
    return [(key, row) for key, row in sorted(changes, key=_key) if row is not None]
