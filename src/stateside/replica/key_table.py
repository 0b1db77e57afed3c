"""Key tables: a named database of an LMDB environment, with keys of any length, in order.

LMDB keys end at 511 bytes. A longer key is stored as its first bytes and a hash, with the whole key before its row:

    key up to 480 bytes   -> row
    464 bytes, hash, ff   -> u32 size of the key, key, row
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from operator import itemgetter
from typing import Any, Protocol

import lmdb
import numpy as np

SHORT_KEY_BYTES_MAX = 480
SORTED_BYTES_MAX = 1 << 28
_HASH_BYTES = 16
_KEPT_BYTES = SHORT_KEY_BYTES_MAX - _HASH_BYTES  # of a long key
_KEY_SIZE = struct.Struct("<I")

Change = tuple[bytes, bytes | None]


@dataclass(frozen=True, slots=True)
class Changes:
    """Distinct keys, and at the same indexes their new rows; None deletes a key.

    Two lists instead of pairs: one more pass over every row of a large batch costs as much as LMDB does.
    """

    keys: list[bytes]
    rows: list[bytes | None]

    def __iter__(self) -> Iterator[Change]:
        return zip(self.keys, self.rows, strict=True)

    def plain(self) -> bool:
        """Whether no key is too long for LMDB, and none is deleted."""
        return max(map(len, self.keys), default=0) <= SHORT_KEY_BYTES_MAX and None not in self.rows


class SnapshotTable(Protocol):
    """Keys and values of one database as of one transaction, as stored by LMDB."""

    def get(self, key: bytes) -> bytes | None:
        """The value of exactly this key."""

    def pairs(self, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The keys from `start` on, in order, each with its value."""

    def before(self, end: bytes | None) -> tuple[bytes, bytes] | None:
        """The last key before `end`, or the last of all, with its value."""

    def count(self) -> int:
        """The number of keys."""

    def check(self, keys: Sequence[bytes]) -> None:
        """Read the pages of the given sorted keys, present or not; ReplicaDamaged."""


class WrittenTable:
    """A database within its write transaction, by LMDB: sees the transaction's own writes."""

    def __init__(self, transaction: lmdb.Transaction, database: Any) -> None:
        self._transaction, self._database = transaction, database

    def get(self, key: bytes) -> bytes | None:
        found = self._transaction.get(key, db=self._database)
        return None if found is None else bytes(found)

    def pairs(self, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        with self._transaction.cursor(db=self._database) as cursor:
            if cursor.set_range(start):
                yield from ((bytes(key), bytes(value)) for key, value in cursor)

    def before(self, end: bytes | None) -> tuple[bytes, bytes] | None:
        with self._transaction.cursor(db=self._database) as cursor:
            found = cursor.prev() if end and cursor.set_range(end) else cursor.last()
            return (bytes(cursor.key()), bytes(cursor.value())) if found else None

    def count(self) -> int:
        return int(self._transaction.stat(self._database)["entries"])

    def check(self, keys: Sequence[bytes]) -> None:
        """Does nothing: a writer checks the published pages."""


class OrderedRows:
    """The keys and rows of one database, read only. Valid while the transaction is open."""

    def __init__(self, stored: SnapshotTable) -> None:
        self._stored = stored

    def get(self, key: bytes) -> bytes | None:
        """The row of exactly this key."""
        if len(key) <= SHORT_KEY_BYTES_MAX:
            return self._stored.get(key)
        stored = self._stored.get(_short(key))
        return None if stored is None else _whole(_short(key), stored)[1]

    def get_all(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The rows of exactly these keys, in their order."""
        if max(map(len, keys), default=0) > SHORT_KEY_BYTES_MAX:
            return [self.get(key) for key in keys]
        return list(map(self._stored.get, keys))

    def range(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The keys with a prefix, in order, each with its row."""
        start = prefix[:_KEPT_BYTES]
        return self._ordered(start, lambda key: key.startswith(prefix), lambda key: not key.startswith(start))

    def chunks(self, prefix: bytes, rows_max: int) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """The same rows as `range`, in chunks of up to `rows_max`: keys, and at the same indexes their rows.

        Four times as fast. Keys too long for LMDB are unordered among those with the same first bytes.
        """
        start = prefix[:_KEPT_BYTES]
        stored = self._stored.pairs(start)
        while some := list(islice(stored, rows_max)):
            last = not some[-1][0].startswith(start)
            if last:
                some = [pair for pair in some if pair[0].startswith(start)]
            if max(map(len, map(itemgetter(0), some)), default=0) > SHORT_KEY_BYTES_MAX or start != prefix:
                some = [pair for pair in (_whole(*each) for each in some) if pair[0].startswith(prefix)]
            if some:
                yield list(map(itemgetter(0), some)), list(map(itemgetter(1), some))
            if last:
                return

    def between(self, first: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The keys with first <= key < end, in order, each with its row."""
        stop = end[:_KEPT_BYTES]
        return self._ordered(first[:_KEPT_BYTES], lambda key: first <= key < end, lambda key: key[:_KEPT_BYTES] > stop)

    def last(self, prefix: bytes) -> bytes | None:
        """The last key with a prefix."""
        key = self._nearest(prefix) if len(prefix) < _KEPT_BYTES else prefix
        if key is not None and len(key) >= _KEPT_BYTES:  # LMDB sorts long keys by their hash
            return max((key for key, _ in self.range(prefix)), default=None)
        return key

    def _nearest(self, prefix: bytes) -> bytes | None:
        """The last key with a prefix, or a long one if there is one."""
        found = self._stored.before(behind(prefix) or None)
        key = None if found is None else _whole(*found)[0]
        return key if key is not None and key.startswith(prefix) else None

    def _ordered(
        self, start: bytes, wanted: Callable[[bytes], bool], beyond: Callable[[bytes], bool]
    ) -> Iterator[tuple[bytes, bytes]]:
        """The wanted keys from `start` on until one is `beyond`, in order, each with its row."""
        alike: list[tuple[bytes, bytes]] = []  # keys with the same first bytes, sorted by their hash in LMDB
        for short, stored in self._stored.pairs(start):
            key, row = _whole(short, stored)
            if beyond(key):
                break
            if alike and not key.startswith(alike[0][0][:_KEPT_BYTES]):
                yield from sorted(alike)
                alike = []
            if not wanted(key):
                continue
            if len(key) < _KEPT_BYTES:
                yield key, row
            else:
                alike.append((key, row))
        yield from sorted(alike)

    def count(self) -> int:
        """The number of rows."""
        return self._stored.count()


class Ordered(OrderedRows):
    """The keys and rows within a write transaction.

    `check` verifies the pages of keys as of before the transaction: LMDB would trust a damaged page, and end the
    process.
    """

    def __init__(
        self, transaction: lmdb.Transaction, database: Any, check: Callable[[Sequence[bytes]], None] = lambda keys: None
    ) -> None:
        super().__init__(WrittenTable(transaction, database))
        self._transaction, self._database, self._check = transaction, database, check

    def get_sorted(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The rows of sorted keys, to be written next."""
        self._check(sorted(map(_short, keys)))
        return self.get_all(keys)

    def put(self, key: bytes, row: bytes | None) -> None:
        """Store the key's row; None deletes the key."""
        if row is None:
            self._transaction.delete(_short(key), db=self._database)
        else:
            self._transaction.put(_short(key), _stored(key, row), db=self._database)

    def put_all(self, changes: Sequence[Change]) -> None:
        """As `put` for many distinct keys; fastest if sorted."""
        self.put_sorted(Changes([key for key, _ in changes], [row for _, row in changes]))

    def append(self, rows: Sequence[tuple[bytes, bytes]]) -> None:
        """Store sorted keys that all lie after the present ones."""
        in_order = max(map(len, map(itemgetter(0), rows)), default=0) < _KEPT_BYTES  # LMDB sorts others by hash
        stored = rows if in_order else [(_short(key), _stored(key, row)) for key, row in rows]
        with self._transaction.cursor(db=self._database) as cursor:
            _, added = cursor.putmulti(stored, append=in_order)
        assert added == len(rows), "a key was there already"

    def put_sorted(self, changes: Changes) -> None:
        """As `put_all` for sorted changes."""
        self._check_all(changes)
        keys, rows = changes.keys, changes.rows
        if not changes.plain():
            for key in [key for key, row in changes if row is None]:
                self.put(key, None)
            kept = [(key, row) for key, row in changes if row is not None]
            keys, rows = [_short(key) for key, _ in kept], [_stored(key, row) for key, row in kept]
        with self._transaction.cursor(db=self._database) as cursor:
            cursor.putmulti(zip(keys, rows, strict=True))  # type: ignore[arg-type]

    def swap_sorted(self, changes: Changes) -> list[bytes | None]:
        """As `put_sorted`, and returns each key's row before.

        One pass with one search per key takes LMDB half as long as reading all and then writing all.
        """
        self._check_all(changes)
        if not changes.plain():
            return [self._swap(key, row) for key, row in changes]
        with self._transaction.cursor(db=self._database) as cursor:
            replace: Any = cursor.replace
            return list(map(replace, changes.keys, changes.rows))

    def _check_all(self, changes: Changes) -> None:
        self._check(changes.keys if changes.plain() else sorted(map(_short, changes.keys)))

    def _swap(self, key: bytes, row: bytes | None) -> bytes | None:
        short = _short(key)
        if row is None:
            before = self._transaction.pop(short, db=self._database)
        else:
            before = self._transaction.replace(short, _stored(key, row), db=self._database)
        return None if before is None else _whole(short, bytes(before))[1]


def in_order(changes: Iterable[Change]) -> Changes:
    """The changes in key order; of several to one key the last one counts."""
    listed = changes if isinstance(changes, list) else list(changes)
    keys, rows = [key for key, _ in listed], [row for _, row in listed]
    places = _sorted_places(keys)
    if places is None:
        last = dict(listed)
        keys = sorted(last)
        return Changes(keys, [last[key] for key in keys])
    return Changes([keys[place] for place in places], [rows[place] for place in places])


def _sorted_places(keys: list[bytes]) -> list[int] | None:
    """The indexes of the keys in order, several times faster than Python's sort.

    None if a key occurs twice, or keys differ only in trailing zero bytes, which NumPy ignores; or if, padded to the
    longest one, they would take too much memory.
    """
    if max(map(len, keys), default=0) * len(keys) > SORTED_BYTES_MAX:
        return None
    table = np.array(keys, dtype="S")
    places = table.argsort()
    ordered = table[places]
    return places.tolist() if bool((ordered[1:] > ordered[:-1]).all()) else None


def behind(prefix: bytes) -> bytes:
    """The first key after all keys with a prefix; empty if there can be none."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else b""


def _short(key: bytes) -> bytes:
    if len(key) <= SHORT_KEY_BYTES_MAX:
        return key
    return key[:_KEPT_BYTES] + blake2b(key, digest_size=_HASH_BYTES).digest() + b"\xff"


def _stored(key: bytes, row: bytes) -> bytes:
    if len(key) <= SHORT_KEY_BYTES_MAX:
        return row
    return _KEY_SIZE.pack(len(key)) + key + row


def _whole(short: bytes, stored: bytes) -> tuple[bytes, bytes]:
    """The whole key and its row; only shortened long keys exceed the limit."""
    if len(short) <= SHORT_KEY_BYTES_MAX:
        return short, stored
    (size,) = _KEY_SIZE.unpack_from(stored)
    return stored[_KEY_SIZE.size : _KEY_SIZE.size + size], stored[_KEY_SIZE.size + size :]
