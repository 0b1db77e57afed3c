"""One named database of an LMDB environment, with keys of any length, in order.

LMDB keys end at 511 bytes. A longer key is stored as its first bytes and a hash, and stands whole in front of its row:

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
    """Keys, none of them twice, and in the same places their new rows; None takes a key away.

    Two lists, not one of pairs: what touches every row of a large batch once more costs as much as LMDB does.
    """

    keys: list[bytes]
    rows: list[bytes | None]

    def __iter__(self) -> Iterator[Change]:
        return zip(self.keys, self.rows, strict=True)

    def plain(self) -> bool:
        """Whether no key is too long for LMDB, and none is taken away."""
        return max(map(len, self.keys), default=0) <= SHORT_KEY_BYTES_MAX and None not in self.rows


class SnapshotTable(Protocol):
    """Keys and values of one database as of one transaction, as LMDB has them."""

    def get(self, key: bytes) -> bytes | None:
        """The value of this very key."""

    def pairs(self, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The keys from this one on, in order, each with its value."""

    def before(self, end: bytes | None) -> tuple[bytes, bytes] | None:
        """The last key before this one, or of all, with its value."""

    def count(self) -> int:
        """How many keys there are."""

    def check(self, keys: Sequence[bytes]) -> None:
        """Read the pages in which these keys lie, or would lie, which are in order; Damaged if one is damaged."""


class WrittenTable:
    """A database inside of a transaction that writes it, by LMDB: what was written before is seen."""

    def __init__(self, transaction: lmdb.Transaction, database: Any) -> None:
        self._transaction, self._database = transaction, database

    def get(self, key: bytes) -> bytes | None:
        """The value of this very key."""
        found = self._transaction.get(key, db=self._database)
        return None if found is None else bytes(found)

    def pairs(self, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The keys from this one on, in order, each with its value."""
        with self._transaction.cursor(db=self._database) as cursor:
            if cursor.set_range(start):
                yield from ((bytes(key), bytes(value)) for key, value in cursor)

    def before(self, end: bytes | None) -> tuple[bytes, bytes] | None:
        """The last key before this one, or of all, with its value."""
        with self._transaction.cursor(db=self._database) as cursor:
            found = cursor.prev() if end and cursor.set_range(end) else cursor.last()
            return (bytes(cursor.key()), bytes(cursor.value())) if found else None

    def count(self) -> int:
        """How many keys there are."""
        return int(self._transaction.stat(self._database)["entries"])

    def check(self, keys: Sequence[bytes]) -> None:
        """Not here: who writes checks what was published."""


class OrderedRows:
    """The keys and rows of one database, to be read. Valid as long as its transaction is."""

    def __init__(self, stored: SnapshotTable) -> None:
        self._stored = stored

    def get(self, key: bytes) -> bytes | None:
        """The row of this very key."""
        if len(key) <= SHORT_KEY_BYTES_MAX:
            return self._stored.get(key)
        stored = self._stored.get(_short(key))
        return None if stored is None else _whole(_short(key), stored)[1]

    def get_all(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The rows of these very keys, in their order."""
        if max(map(len, keys), default=0) > SHORT_KEY_BYTES_MAX:
            return [self.get(key) for key in keys]
        return list(map(self._stored.get, keys))

    def range(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The keys that begin with these bytes, in order, each with its row."""
        start = prefix[:_KEPT_BYTES]
        return self._ordered(start, lambda key: key.startswith(prefix), lambda key: not key.startswith(start))

    def chunks(self, prefix: bytes, rows_max: int) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """The same rows as `range` has, so many at once: their keys, and in the same places their rows.

        Four times as fast. Keys that are too long for LMDB are not in order among those that begin alike.
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
        """The keys from `first` on and before `end`, in order, each with its row."""
        stop = end[:_KEPT_BYTES]
        return self._ordered(first[:_KEPT_BYTES], lambda key: first <= key < end, lambda key: key[:_KEPT_BYTES] > stop)

    def last(self, prefix: bytes) -> bytes | None:
        """The last of the keys that begin with these bytes."""
        key = self._nearest(prefix) if len(prefix) < _KEPT_BYTES else prefix
        if key is not None and len(key) >= _KEPT_BYTES:  # LMDB has long keys by their hash
            return max((key for key, _ in self.range(prefix)), default=None)
        return key

    def _nearest(self, prefix: bytes) -> bytes | None:
        """The last key that begins with these bytes, or a long one if there is one."""
        found = self._stored.before(behind(prefix) or None)
        key = None if found is None else _whole(*found)[0]
        return key if key is not None and key.startswith(prefix) else None

    def _ordered(
        self, start: bytes, wanted: Callable[[bytes], bool], beyond: Callable[[bytes], bool]
    ) -> Iterator[tuple[bytes, bytes]]:
        """The wanted keys from `start` on until one is `beyond`, in order, each with its row."""
        alike: list[tuple[bytes, bytes]] = []  # with the same first bytes, behind which LMDB has them by their hash
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
        """How many rows there are."""
        return self._stored.count()


class Ordered(OrderedRows):
    """The same inside of a transaction that writes them.

    `check` reads the pages in which keys lie, as they were before the transaction: LMDB would believe damaged ones, and
    end the process.
    """

    def __init__(
        self, transaction: lmdb.Transaction, database: Any, check: Callable[[Sequence[bytes]], None] = lambda keys: None
    ) -> None:
        super().__init__(WrittenTable(transaction, database))
        self._transaction, self._database, self._check = transaction, database, check

    def get_sorted(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The rows of keys that are in order, and are written next."""
        self._check(sorted(map(_short, keys)))
        return self.get_all(keys)

    def put(self, key: bytes, row: bytes | None) -> None:
        """Store the key's row; None takes it away."""
        if row is None:
            self._transaction.delete(_short(key), db=self._database)
        else:
            self._transaction.put(_short(key), _stored(key, row), db=self._database)

    def put_all(self, changes: Sequence[Change]) -> None:
        """The same as `put` for many keys, none of them twice; fastest if they are in order."""
        self.put_sorted(Changes([key for key, _ in changes], [row for _, row in changes]))

    def append(self, rows: Sequence[tuple[bytes, bytes]]) -> None:
        """The same for keys in order that all lie behind those which are there."""
        in_order = max(map(len, map(itemgetter(0), rows)), default=0) < _KEPT_BYTES  # LMDB has others by their hash
        stored = rows if in_order else [(_short(key), _stored(key, row)) for key, row in rows]
        with self._transaction.cursor(db=self._database) as cursor:
            _, added = cursor.putmulti(stored, append=in_order)
        assert added == len(rows), "a key was there already"

    def put_sorted(self, changes: Changes) -> None:
        """The same for changes that are in order already."""
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
        """The same, and gives back the row that each key had before.

        One pass, in which each key is looked for once: LMDB takes half as long for it as for reading all and then
        writing all.
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
    """The changes in order of their keys; of several to one key the last one counts."""
    listed = changes if isinstance(changes, list) else list(changes)
    keys, rows = [key for key, _ in listed], [row for _, row in listed]
    places = _sorted_places(keys)
    if places is None:
        last = dict(listed)
        keys = sorted(last)
        return Changes(keys, [last[key] for key in keys])
    return Changes([keys[place] for place in places], [rows[place] for place in places])


def _sorted_places(keys: list[bytes]) -> list[int] | None:
    """The places of the keys in order, in a fraction of the time that Python takes to sort them.

    None if a key is there twice, or keys differ only in zero bytes at their end, which NumPy does not see; or if, each
    made as long as the longest one, they would take up too much memory.
    """
    if max(map(len, keys), default=0) * len(keys) > SORTED_BYTES_MAX:
        return None
    table = np.array(keys, dtype="S")
    places = table.argsort()
    ordered = table[places]
    return places.tolist() if bool((ordered[1:] > ordered[:-1]).all()) else None


def behind(prefix: bytes) -> bytes:
    """The first key behind all that begin with these bytes; nothing if there can be none."""
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
    """The whole key and its row, from what is stored: only long keys are longer than the limit when shortened."""
    if len(short) <= SHORT_KEY_BYTES_MAX:
        return short, stored
    (size,) = _KEY_SIZE.unpack_from(stored)
    return stored[_KEY_SIZE.size : _KEY_SIZE.size + size], stored[_KEY_SIZE.size + size :]
