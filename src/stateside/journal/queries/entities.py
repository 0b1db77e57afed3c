"""Entity queries: the ids of all entities, in the order of their names or of their first events.

Memory is bounded: ids in the views are read page by page. Of the ids beyond the views about 100,000 at most are held at
a time, the first ones in the order; if there are more, the tail of the stream is read again for the next ones.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from heapq import merge, nsmallest

import pyarrow.compute as pc

from stateside.core.errors import NotFreshEnough
from stateside.core.positions import Position
from stateside.journal.contract import Journal
from stateside.journal.queries.format import ENTITY, ViewsDamaged, term_key
from stateside.journal.queries.query_reader import Walker
from stateside.journal.queries.query_views import QueryViews

PAGE_IDS = 1_000
TAIL_IDS_MAX = 50_000  # ids beyond the views held at a time: about 10 MB
NEW_IDS_MAX = 1_000_000  # remembered by a live query while the views do not follow

Key = tuple[bytes, str]  # sort key of an id, and the id


class EntityIds:
    """All ids of a stream's entities with a prefix, after a given id, in the order of their UTF-8 bytes.

    Two ids with the same first 400 bytes come in another, but stable, order. The result has every entity with an event
    at the time of the call, and perhaps later ones.
    """

    def __init__(self, stream: Journal, views: QueryViews, prefix: str, after: str | None) -> None:
        self._stream, self._views, self._prefix, self._after = stream, views, prefix, after

    def current(self) -> Iterator[str]:
        """The ids, one by one. To resume later, query with `after` set to the last id."""
        return (id_ for page in self._pages(PAGE_IDS) for id_ in page)

    def current_async(self) -> AsyncIterator[str]:
        """As `current`, for an event loop: pages are read in threads."""
        return _in_threads(self._pages(PAGE_IDS))

    def page(self, ids_max: int = PAGE_IDS) -> list[str]:
        """The first `ids_max` ids."""
        return next(self._pages(ids_max), [])

    def _pages(self, ids_max: int) -> Iterator[list[str]]:
        after, tail = self._after, _Tail(self._stream, self._views, self._prefix)
        while page := self._page(after, tail, ids_max):
            yield page
            after = page[-1]

    def _page(self, after: str | None, tail: _Tail, ids_max: int) -> list[str]:
        """The next ids of the views and of the tail. An id may be in both."""
        begin = b"" if after is None else _key(after)[0]
        behind, is_all = tail.behind(begin, ids_max)  # before the views, which may take ids in meanwhile
        try:
            with self._views.snapshot() as snapshot:
                names = snapshot.names(ENTITY, self._prefix, after, ids_max) if snapshot else []
        except ViewsDamaged:
            return self._page(after, tail, ids_max)
        found = dict.fromkeys(merge((_key(name) for name, _ in names), behind))
        known = [id_ for key, id_ in found if is_all or key <= behind[-1][0]]
        return known[:ids_max]


class _Tail:
    """The ids in the part of the stream beyond the views when the query began."""

    def __init__(self, stream: Journal, views: QueryViews, prefix: str) -> None:
        self._stream, self._views, self._prefix = stream, views, prefix
        self._end, self._covered = stream.end(), views.position()
        self._ids: list[Key] | None = None
        self._is_all = False

    def behind(self, begin: bytes, ids_max: int) -> tuple[list[Key], bool]:
        """The first ids after this key, and whether there are no others."""
        if not self._views.position().covers(self._covered):  # the views were deleted or condemned meanwhile
            self._covered, self._ids = self._views.position(), None
        if self._ids is None or not (self._is_all or begin < self._ids[-1][0]):
            self._ids = self._read(begin)
        at = bisect_right(self._ids, begin, key=lambda key: key[0])
        return self._ids[at : at + ids_max], self._is_all and at + ids_max >= len(self._ids)

    def _read(self, begin: bytes) -> list[Key]:
        found: set[Key] = set()
        bound: bytes | None = None  # the last key held, once there are too many
        for partition in self._stream.partitions():
            start = min(self._covered[partition], self._end[partition])
            for _, batch in self._stream.located(partition, start, self._end[partition]):
                names = pc.unique(batch.column("entity")).to_pylist()
                wanted = (key for key in map(_key, names) if key[0] > begin and key[1].startswith(self._prefix))
                found.update(key for key in wanted if bound is None or key[0] < bound)
                if len(found) > 2 * TAIL_IDS_MAX:
                    found = set(nsmallest(TAIL_IDS_MAX, found))
                    bound = max(found)[0]
        self._is_all = bound is None
        return sorted(found)


@dataclass(frozen=True, slots=True)
class FirstEvent:
    """An entity, and the position just after its first event, from which the query resumes."""

    position: Position
    entity: str


@dataclass(slots=True)
class _Seen:
    """The new entities beyond the end of the views (`since`), up to the offset `read`."""

    since: int
    read: int
    ids: set[str] = field(default_factory=set)


class BirthWalk(Walker[FirstEvent]):
    """A reader of the first events of all entities with a prefix.

    Beyond the end of the views the reader remembers up to `NEW_IDS_MAX` new entities, until the views follow.
    """

    def __init__(self, stream: Journal, views: QueryViews, prefix: str, start: Position | None) -> None:
        super().__init__(stream, views, start)
        self._prefix = prefix
        self._seen: dict[str, _Seen] = {}  # by partition

    def _read(self, partition: str, at: int, stop: int) -> Iterator[tuple[list[FirstEvent], int]]:
        try:
            with self._views.snapshot() as snapshot:
                covered = snapshot.state.covers(partition) if snapshot else 0
                high = min(stop, covered)
                found = snapshot.born(partition, at, high, PAGE_IDS) if snapshot and at < high else None
        except ViewsDamaged:
            covered, found = 0, None
        if found is None:
            yield from self._by_range(partition, covered, at, stop)
        else:
            yield self._page(partition, found), found[-1][0] + 1 if len(found) == PAGE_IDS else high

    def _by_range(self, partition: str, covered: int, at: int, stop: int) -> Iterator[tuple[list[FirstEvent], int]]:
        """Read from the end of the views on, so that earlier entities are known. Ends when the views have moved."""
        seen = self._seen.get(partition)
        if seen is None or seen.read != at or covered < seen.since:
            seen = self._seen[partition] = _Seen(covered, min(covered, at))
        for offsets, batch in self._stream.located(partition, seen.read, stop):
            new = self._new(partition, offsets.tolist(), batch.column("entity").to_pylist(), seen)
            if new is None:
                return
            seen.read = int(offsets[-1]) + 1
            yield self._page(partition, [born for born in new if born[0] >= at]), max(at, seen.read)
        seen.read = stop
        yield [], stop

    def _new(self, partition: str, offsets: list[int], names: list[str], seen: _Seen) -> list[tuple[int, str]] | None:
        """The entities unknown to both the views and this reader; None if the views have moved or are damaged."""
        births: dict[str, int] = {}
        for offset, name in zip(offsets, names, strict=True):
            if name not in seen.ids:
                births.setdefault(name, offset)
        try:
            with self._views.snapshot() as snapshot:
                if not seen.since <= (snapshot.state.covers(partition) if snapshot else 0) <= offsets[0]:
                    return None
                new = [(at, name) for name, at in births.items() if not (snapshot and snapshot.entity(name))]
        except ViewsDamaged:
            return None
        self._remember(seen, new)
        return new

    def _remember(self, seen: _Seen, new: list[tuple[int, str]]) -> None:
        seen.ids.update(name for _, name in new)
        if len(seen.ids) > NEW_IDS_MAX:
            raise NotFreshEnough(
                f"More than {NEW_IDS_MAX:,} entities are new since the end of the views",
                where=str(self._views.folder),
                next_step="Let a process follow the stream with the views (`QueryViews.keep_following`), then go on",
            )

    def _page(self, partition: str, born: list[tuple[int, str]]) -> list[FirstEvent]:
        named = [(offset, name) for offset, name in born if name.startswith(self._prefix)]
        return [FirstEvent(self._position(partition, offset + 1), name) for offset, name in named]


def _key(name: str) -> Key:
    return term_key(ENTITY, name.encode()), name


async def _in_threads(pages: Iterator[list[str]]) -> AsyncIterator[str]:
    while page := await asyncio.to_thread(next, pages, None):
        for id_ in page:
            yield id_
