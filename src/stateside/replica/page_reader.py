"""Verified reading of an environment: every page is checked before its content is believed.

LMDB only reports the newest transaction, and keeps its pages from being reused. The pages themselves are read with
`pread` and not through LMDB's mapping: a truncated file is then an error instead of a signal that ends the process, and
no damaged page misleads LMDB, which trusts its pages. Branches are cached after their check: for the same transaction,
and for a later one if their page has the same checksum.

LMDB itself maps `data.mdb` and `lock.mdb`. It accesses both when a transaction begins, and `lock.mdb` when one ends and
when the environment is closed: their sizes are checked just before. A truncation within these few microseconds still
ends the process.
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from xxhash import xxh3_64_intdigest

from stateside.core.errors import ReplicaInvalid
from stateside.replica import btree
from stateside.replica.btree import NO_ROOT, Root
from stateside.replica.checksums import (
    DAMAGE,
    NAME,
    Checksums,
    PublishedState,
    ReplicaDamaged,
    Standing,
    damaged,
    found,
)
from stateside.replica.environment import LOCK_BYTES_MIN, Tables

BRANCHES_MAX: Final = 4_096  # cached by a process for each replica: about 20 KB each, enough for 10 million rows

Branch = tuple[int, int, list[bytes], list[int]]  # a transaction that has it, its checksum, its keys, the pages below


@dataclass(frozen=True, slots=True)
class KnownTransaction:
    """Cached parts of a transaction: its trees by name, and its notes, which every answer needs."""

    state: PublishedState
    roots: dict[bytes, Root]
    meta: dict[bytes, bytes]


class VerifiedPages:
    """The pages of the environment in a folder; for readers, in any thread."""

    def __init__(self, folder: Path) -> None:
        """FileNotFoundError if there is none; ReplicaDamaged or Unchecked if it cannot be read."""
        self.folder = folder
        self.checksums = Checksums(folder)
        self.page_bytes = self.checksums.page_bytes
        try:
            self._handle = os.open(folder / "data.mdb", os.O_RDONLY)
        except BaseException:
            self.checksums.close()
            raise
        self._lock_path, self._damage_path = str(folder / "lock.mdb"), str(folder / DAMAGE)
        self._lock_bytes = LOCK_BYTES_MIN
        self._known = KnownTransaction(PublishedState(0, 0, b"", b""), {}, {})
        self.branches: dict[int, Branch] = {}
        self.not_kept = 0  # the last transaction read although LMDB no longer protects its pages

    def close(self) -> None:
        self.checksums.close()
        os.close(self._handle)

    def check_sizes(self) -> None:
        """ReplicaDamaged if a file was truncated, or must not be read: its mapping must not be touched then."""
        if self.checksums.head()[1] == Standing.INVALID or os.path.exists(self._damage_path):  # noqa: PTH110
            raise damaged(self.folder, "that was found already")
        least = max(self._known.state.data_bytes, 2 * self.page_bytes)
        if os.fstat(self._handle).st_size < least:
            raise self.found("data.mdb was cut short")
        if not self.lock_is_whole():
            raise damaged(self.folder, "lock.mdb was cut short")

    def lock_is_whole(self) -> bool:
        """Whether lock.mdb is as long as its mapping.

        If not, reports the damage to the writer, and restores the size, without the content: LMDB can then close the
        file without a signal.
        """
        try:
            lock_bytes = os.stat(self._lock_path).st_size  # noqa: PTH116 - a Path takes as long as the call
        except FileNotFoundError:
            return True  # replaced and removed: the open file stays
        if lock_bytes >= self._lock_bytes:
            self._lock_bytes = lock_bytes
            return True
        self.found("lock.mdb was cut short")
        with suppress(OSError):  # by name: closing a handle of the file would release LMDB's own locks
            os.truncate(self._lock_path, self._lock_bytes)
        return False

    def known(self, transaction: int) -> KnownTransaction:
        """The trees of a published transaction."""
        known = self._known
        if known.state.transaction == transaction:
            return known
        state = self.checksums.state(transaction)
        if state is None:
            raise self.found(f"{NAME} does not say where transaction {transaction} begins")
        roots: dict[bytes, Root] = {}
        for leaf in _leaves(self, Root.parse(state.main), transaction):
            roots |= btree.subtrees(leaf)
        meta = VerifiedTable(self, roots.get(b"meta", NO_ROOT), transaction)
        known = self._known = KnownTransaction(state, roots, dict(meta.pairs(b"")))
        return known

    def page(self, number: int, transaction: int) -> bytes:
        """A page as of the transaction; ReplicaDamaged if not as written."""
        page_bytes, (expected, written_by) = self.page_bytes, self.checksums.cell(number)
        try:
            content = os.pread(self._handle, page_bytes, number * page_bytes)
        except OSError as error:
            raise self.found(f"page {number} of data.mdb: {error.strerror}") from error
        if xxh3_64_intdigest(content, number) != expected or written_by > transaction:
            raise self._wrong(content, number, transaction)
        return content

    def check_meta(self) -> None:
        """ReplicaDamaged if LMDB's meta page of the newest transaction is damaged."""
        published = self.checksums.published()
        self.page(btree.meta_page(published), published)

    def overflow(self, number: int, size: int, transaction: int) -> bytes:
        """A value in overflow pages."""
        count = btree.overflow_pages(size, self.page_bytes)
        content = b"".join([self.page(number + place, transaction) for place in range(count)])
        return content[btree.PAGE_HEAD_BYTES : btree.PAGE_HEAD_BYTES + size]

    def branch(self, number: int, transaction: int) -> Branch:
        """A branch, cached from now on."""
        kept = self.branches.get(number)
        if kept is not None and kept[0] == transaction:
            return kept
        expected, written_by = self.checksums.cell(number)
        if kept is not None and expected == kept[1] and written_by <= transaction:
            self.branches[number] = kept = (transaction, *kept[1:])
            return kept
        page = self.page(number, transaction)
        while len(self.branches) >= BRANCHES_MAX:
            with suppress(RuntimeError, StopIteration):  # another thread did the same just now
                self.branches.pop(next(iter(self.branches)), None)
        self.branches[number] = branch = (transaction, expected, *btree.parse_branch(page))
        return branch

    def found(self, what: str) -> ReplicaDamaged:
        """As `checksums.found`."""
        return found(self.folder, what)

    def _wrong(self, page: bytes, number: int, transaction: int) -> ReplicaInvalid:
        if len(page) < self.page_bytes:
            return self.found(f"data.mdb was cut short before page {number}")
        if transaction == self.not_kept and self.checksums.published() > transaction:
            return ReplicaInvalid(
                "The replica moved on while it was read", where=str(self.folder), next_step="Ask again"
            )
        return self.found(f"page {number} of data.mdb is not what was written there")


class VerifiedTable:
    """A tree of one published transaction: a `key_table.SnapshotTable`."""

    __slots__ = ("_pages", "_root", "_transaction")

    def __init__(self, pages: VerifiedPages, root: Root, transaction: int) -> None:
        self._pages, self._root, self._transaction = pages, root, transaction

    def get(self, key: bytes) -> bytes | None:
        root, pages = self._root, self._pages
        if not root.depth or not key:
            return None
        number, branches, transaction = root.page, pages.branches, self._transaction
        for _ in range(root.depth - 1):
            branch = branches.get(number)
            if branch is None or branch[0] != transaction:
                branch = pages.branch(number, transaction)
            number = branch[3][bisect_right(branch[2], key) - 1]
        value = btree.find(pages.page(number, transaction), key)
        return value if value is None or isinstance(value, bytes) else self._whole(value)

    def pairs(self, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        for keys, values in self._leaves_from(start):
            first = bisect_left(keys, start)
            for key, value in (
                zip(keys[first:], values[first:], strict=True) if first else zip(keys, values, strict=True)
            ):
                yield key, value if isinstance(value, bytes) else self._whole(value)

    def before(self, end: bytes | None) -> tuple[bytes, bytes] | None:
        last = self._before(self._root.page, self._root.depth, end) if self._root.depth else None
        if last is None:
            return None
        key, value = last
        return key, value if isinstance(value, bytes) else self._whole(value)

    def count(self) -> int:
        return self._root.entries

    def check(self, keys: Sequence[bytes]) -> None:
        at = 0 if self._root.depth else len(keys)
        while at < len(keys):
            number, end = self._root.page, None
            for _ in range(self._root.depth - 1):
                _, _, separators, below = self._branch(number)
                place = bisect_right(separators, keys[at])
                end = separators[place] if place < len(separators) else end
                number = below[place - 1]
            self._pages.page(number, self._transaction)
            at = len(keys) if end is None else bisect_left(keys, end, at)

    def _whole(self, value: tuple[int, int]) -> bytes:
        return self._pages.overflow(*value, self._transaction)

    def _branch(self, number: int) -> Branch:
        return self._pages.branch(number, self._transaction)

    def _leaves_from(self, start: bytes) -> Iterator[tuple[list[bytes], list[btree.Value]]]:
        if not self._root.depth:
            return
        above: list[tuple[list[int], int]] = []  # for each branch on the path: the pages below it, the next of them
        number = self._root.page
        for _ in range(self._root.depth - 1):
            _, _, keys, below = self._branch(number)
            place = bisect_right(keys, start) - 1
            above.append((below, place + 1))
            number = below[max(place, 0)]
        while True:
            yield btree.parse_leaf(self._pages.page(number, self._transaction))
            while above and above[-1][1] == len(above[-1][0]):
                above.pop()
            if not above:
                return
            below, place = above.pop()
            above.append((below, place + 1))
            number = below[place]
            while len(above) < self._root.depth - 1:
                below = self._branch(number)[3]
                above.append((below, 1))
                number = below[0]

    def _before(self, number: int, height: int, end: bytes | None) -> tuple[bytes, btree.Value] | None:
        if height == 1:
            keys, values = btree.parse_leaf(self._pages.page(number, self._transaction))
            place = (len(keys) if end is None else bisect_left(keys, end)) - 1
            return (keys[place], values[place]) if place >= 0 else None
        _, _, separators, below = self._branch(number)
        for place in range((len(separators) if end is None else max(1, bisect_left(separators, end))) - 1, -1, -1):
            last = self._before(below[place], height - 1, end)
            if last is not None:
                return last
        return None


def verified_tables(pages: VerifiedPages, transaction: int) -> Tables:
    """The tables of a published transaction."""
    known = pages.known(transaction)
    rows, rollups, past, undo = (
        VerifiedTable(pages, known.roots.get(name, NO_ROOT), transaction)
        for name in (b"rows", b"rollups", b"past", b"undo")
    )
    return Tables(rows, rollups, known.meta, past, undo, pages)


def _leaves(pages: VerifiedPages, root: Root, transaction: int) -> Iterator[bytes]:
    numbers = [root.page] if root.depth else []
    for _ in range(root.depth - 1):
        numbers = [below for number in numbers for below in btree.below(pages.page(number, transaction))]
    return (pages.page(number, transaction) for number in numbers)
