"""Integrity of a replica: publishes the checksums of written pages, verifies the pages read by writes, and scrubs.

A transaction never overwrites pages of the trees before it (see `btree`). So its written pages are those of its trees
that are not in the trees before, found by descending both side by side where they differ; and the pages it read for
writing are those of the trees before that are gone now. The latter are verified: nothing derived from a damaged page is
ever published.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Final

import lmdb

from stateside.replica import btree
from stateside.replica.btree import NO_ROOT, Meta, Root
from stateside.replica.checksums import DAMAGE, ChecksumWriter, PublishedState, Standing, checksum, damaged

SCRUB_BYTES_S: Final = 16 << 20  # of data.mdb read again each second while idle
SCRUB_S_MAX: Final = 0.05  # maximum duration of one scrub
PAGES_AT_ONCE: Final = 256

Read = Callable[[Sequence[int]], Iterator[bytes]]


class Integrity:
    """The checksums of an environment written by this process. Every error of the disk is an OSError."""

    def __init__(self, folder: Path, environment: lmdb.Environment, *, new: bool) -> None:
        """For an existing environment, or for a `new` one, whose first transactions are published at once.

        ReplicaDamaged if it is not as last published; after a kill of its writer all pages are verified.
        """
        self._folder, self._environment = folder, environment
        self._page_bytes = int(environment.stat()["psize"])
        self._scrubbed_page, self._scrubbed_s = 0, time.monotonic()
        with ExitStack() as opened:
            self._handle = os.open(folder / "data.mdb", os.O_RDONLY)
            opened.callback(os.close, self._handle)
            self._checksums = ChecksumWriter(folder)
            opened.callback(self._checksums.close)
            if self._page_bytes != self._checksums.page_bytes:
                raise damaged(folder, f"its pages have {self._page_bytes} bytes")
            self._begin(new=new)
            opened.pop_all()

    def check(self) -> None:
        """ReplicaDamaged if the environment must not be touched: a file was truncated, or a reader has found damage."""
        state = self._checksums.state()
        if os.fstat(self._handle).st_size < state.data_bytes:
            raise damaged(self._folder, "data.mdb was cut short")
        if (self._folder / DAMAGE).exists():
            raise damaged(self._folder, (self._folder / DAMAGE).read_text() or "a reader says so")

    def check_before_write(self) -> None:
        """As `check`, and whether LMDB continues from the last published transaction."""
        self.check()
        self._catch_up()
        self._check_roots()
        self._checksums.reserve(1 + int(self._environment.info()["last_pgno"]))

    def publish(self) -> None:
        """Publish the transaction just committed. ReplicaDamaged if it read a page that is not as published."""
        before = self._checksums.state()
        meta = self._meta(self._committed())
        if meta.transaction == before.transaction:
            return
        gone, written = self._changed(before, meta)
        self._check_pages(gone)
        self._publish(meta, written)
        self._checksums.sync()

    def publish_all(self) -> None:
        """Publish all pages of an environment without published transactions."""
        meta = self._meta(self._committed())
        self._publish(meta, self._all(meta.free, meta.main, self._read))
        self._checksums.sync()

    def check_all(self) -> None:
        """Verify all pages of the published trees; ReplicaDamaged."""
        state = self._checksums.state()
        self._check_pages([btree.meta_page(state.transaction)])
        pages = self._all(state.free, state.main, self._checked)
        while some := list(islice(pages, PAGES_AT_ONCE)):
            self._check_pages(some)

    def scrub(self) -> None:
        """Verify the next pages of the file, at a bounded rate; ReplicaDamaged."""
        now_s, last = time.monotonic(), self._checksums.state().data_bytes // self._page_bytes
        pages = int(min(now_s - self._scrubbed_s, 1.0) * SCRUB_BYTES_S) // self._page_bytes
        if pages < PAGES_AT_ONCE:
            return
        self._scrubbed_s = now_s
        for _ in range(min(pages, last + PAGES_AT_ONCE) // PAGES_AT_ONCE):  # at most once through the file
            first = self._scrubbed_page
            self._scrub(first, min(first + PAGES_AT_ONCE, last))
            self._scrubbed_page = first + PAGES_AT_ONCE if first + PAGES_AT_ONCE < last else 0
            if time.monotonic() > now_s + SCRUB_S_MAX:
                return

    def stand(self, standing: Standing) -> None:
        """Set the `Standing`, for readers and the next writer."""
        self._open = standing == Standing.OPEN
        self._checksums.stand(standing)

    def close(self) -> None:
        """Close the files; all published transactions are durable."""
        if self._open:
            self._checksums.sync()
            self.stand(Standing.CLOSED)
        self._checksums.close()
        os.close(self._handle)

    def _begin(self, *, new: bool) -> None:
        if new:
            self.publish_all()
            self.stand(Standing.OPEN)
            return
        standing, published = self._checksums.standing(), self._checksums.state().transaction
        if standing == Standing.INVALID:
            raise damaged(self._folder, "its writer had found that, and was killed before it could replace it")
        self.check()
        found = self._committed()
        if found == published - 1:  # power was lost before LMDB's meta page of the last transaction was on the disk
            self._checksums.publish(self._checksums.state(found), {})
        self._catch_up()
        if standing == Standing.OPEN:
            self.check_all()
        else:
            self._check_roots()
        self.stand(Standing.OPEN)

    def _committed(self) -> int:
        return int(self._environment.info()["last_txnid"])

    def _catch_up(self) -> None:
        """Publish a committed but unpublished transaction: its writer was killed, or the disk was full."""
        published, found = self._checksums.state().transaction, self._committed()
        if found == published + 1:
            self.publish()
        elif found != published:
            raise damaged(self._folder, f"it stands at transaction {found}, and {published} was published last")

    def _check_roots(self) -> None:
        """Verify the pages that LMDB reads whenever it opens a table or writes."""
        state = self._checksums.state()
        self._check_pages([btree.meta_page(state.transaction)])
        for root in (Root.parse(state.free), Root.parse(state.main)):
            self._check_pages(list(self._under([root.page] if root.depth else [], root.depth, root, self._checked)))

    def _meta(self, transaction: int) -> Meta:
        (page,) = self._read([btree.meta_page(transaction)])
        meta = btree.parse_meta(page)
        if meta is None or meta.transaction != transaction:
            raise damaged(self._folder, f"there is no transaction {transaction}")
        return meta

    def _publish(self, meta: Meta, numbers: Iterable[int]) -> None:
        written, rest = dict[int, tuple[int, int]](), chain([btree.meta_page(meta.transaction)], numbers)
        while some := list(islice(rest, PAGES_AT_ONCE)):
            for number, page in zip(some, self._read(some), strict=True):
                written[number] = checksum(page, number), meta.transaction
        state = PublishedState(meta.transaction, os.fstat(self._handle).st_size, meta.free, meta.main)
        self._checksums.publish(state, written)

    def _check_pages(self, numbers: Sequence[int]) -> None:
        for _ in self._checked(numbers):
            pass

    def _scrub(self, first: int, end: int) -> None:
        """A mismatch may be in an unused page, after a failed transaction; so `check_all` decides."""
        cells = self._checksums.cells(range(first, end))
        for number, page in zip(range(first, end), self._read(range(first, end)), strict=True):
            if cells[number][1] and checksum(page, number) != cells[number][0]:
                self.check_all()
                return

    def _read(self, numbers: Sequence[int]) -> Iterator[bytes]:
        """The pages, adjacent ones with one read; ReplicaDamaged if the file ends before."""
        size, at = self._page_bytes, 0
        while at < len(numbers):
            end = at + 1
            while end < len(numbers) and numbers[end] == numbers[end - 1] + 1 and end - at < PAGES_AT_ONCE:
                end += 1
            try:
                content = os.pread(self._handle, (end - at) * size, numbers[at] * size)
            except OSError as error:
                raise damaged(self._folder, f"page {numbers[at]} of data.mdb: {error.strerror}") from error
            if len(content) < (end - at) * size:
                raise damaged(self._folder, f"data.mdb was cut short before page {numbers[end - 1]}")
            yield from (content[place * size : (place + 1) * size] for place in range(end - at))
            at = end

    def _checked(self, numbers: Sequence[int]) -> Iterator[bytes]:
        """The pages, verified by their published checksums."""
        cells = self._checksums.cells(numbers)
        for number, page in zip(numbers, self._read(numbers), strict=True):
            if checksum(page, number) != cells[number][0]:
                raise damaged(self._folder, f"page {number} of data.mdb is not what was written there")
            yield page

    def _all(self, free: bytes, main: bytes, read: Read) -> Iterator[int]:
        """The numbers of all pages of an environment with these trees."""
        for root in (Root.parse(free), Root.parse(main), *self._named(Root.parse(main), read).values()):
            yield from self._under([root.page] if root.depth else [], root.depth, root, read)

    def _under(self, numbers: Sequence[int], height: int, root: Root, read: Read) -> Iterator[int]:
        """The given pages of a tree, and all pages below them."""
        for at in range(0, len(numbers), PAGES_AT_ONCE):
            some = numbers[at : at + PAGES_AT_ONCE]
            yield from some
            for page in read(some) if height > 1 or root.overflow_pages else ():
                if height > 1:
                    yield from self._under(btree.below(page), height - 1, root, read)
                else:
                    yield from _spread(btree.overflow_runs(page, self._page_bytes))

    def _named(self, main: Root, read: Read) -> dict[bytes, Root]:
        numbers, found = [main.page] if main.depth else [], dict[bytes, Root]()
        for _ in range(main.depth - 1):
            numbers = _below(numbers, read)
        for page in read(numbers):
            found |= btree.subtrees(page)
        return found

    def _changed(self, before: PublishedState, after: Meta) -> tuple[list[int], list[int]]:
        """The pages gone since `before`, and the pages written instead; both sorted."""
        main = Root.parse(before.main), Root.parse(after.main)
        trees = [(Root.parse(before.free), Root.parse(after.free)), main]
        old, new = self._named(main[0], self._checked), self._named(main[1], self._read)
        trees += [(old.get(name, NO_ROOT), new.get(name, NO_ROOT)) for name in old.keys() | new.keys()]
        gone, written = set[int](), set[int]()
        for tree in trees:
            self._compare(*tree, gone, written)
        return sorted(gone), sorted(written)

    def _compare(self, old: Root, new: Root, gone: set[int], written: set[int]) -> None:
        """Add a tree's gone and written pages, level by level from the higher root on."""
        if old.page == new.page:
            return
        sides = [
            _Side({old.page} if old.depth else set(), old.depth, self._checked, gone),
            _Side({new.page} if new.depth else set(), new.depth, self._read, written),
        ]
        for height in range(max(old.depth, new.depth), 0, -1):
            here = [side for side in sides if side.height == height]
            common = set.intersection(*(side.level for side in here)) if len(here) == 2 else set[int]()
            for side in here:
                side.leave(common, last=height == 1)
        if old.overflow_pages or new.overflow_pages:
            runs = [self._runs(side) for side in sides]
            gone |= set(_spread(runs[0] - runs[1]))
            written |= set(_spread(runs[1] - runs[0]))

    def _runs(self, side: _Side) -> set[tuple[int, int]]:
        pages = side.read(sorted(side.level))
        return {run for page in pages for run in btree.overflow_runs(page, self._page_bytes)}


@dataclass(slots=True)
class _Side:
    """One of two trees under comparison: the pages of a level that may differ. Heights count from the leaves, 1, up."""

    level: set[int]
    height: int
    read: Read
    found: set[int]

    def leave(self, common: set[int], *, last: bool) -> None:
        """Record the pages of this level missing in the other tree; descend unless this is the last level."""
        self.level = self.level - common
        self.found |= self.level
        if not last:
            self.level, self.height = set(_below(sorted(self.level), self.read)), self.height - 1


def _below(numbers: Sequence[int], read: Read) -> list[int]:
    return [number for page in read(numbers) for number in btree.below(page)]


def _spread(runs: Iterable[tuple[int, int]]) -> Iterator[int]:
    return (number for first, count in runs for number in range(first, first + count))
