"""The replica's LMDB environment: rows in key order and the batch they stand at, always moved together.

Which environment of the replica's folder counts, `generations` says; readers follow when another one takes its place.

    rows:  encoded key -> row              (see `keys`; a row is the state's UnsafeRow value)
    meta:  "batch"     -> AppliedBatch     as JSON
           "fresh"     -> microseconds     the last time at which nothing newer than this batch was known to be waiting
           "trouble"   -> text             why the replica does not move, while it does not
           "replica"   -> text             the replica's own name, given once

LMDB keys end at 511 bytes. A longer key is stored as its first bytes and a hash, and stands whole in front of its row.
"""

from __future__ import annotations

import json
import os
import secrets
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import lmdb

from stateside.errors import ReplicaInvalid
from stateside.positions import Position
from stateside.replica import generations
from stateside.storage import try_lock

MAP_BYTES_START = 1 << 30
READERS_MAX = 512
SHORT_KEY_BYTES_MAX = 480
_HASH_BYTES = 16
_KEPT_BYTES = SHORT_KEY_BYTES_MAX - _HASH_BYTES  # of a long key
_KEY_SIZE = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class AppliedBatch:
    """The batch that a replica stands at: of which query, up to where, under which watermark, from when."""

    query: str
    batch: int
    position: Position
    watermark_us: int
    committed_us: int
    fingerprint: str = ""  # of the batch's own files: another run of the same batch has another one

    def as_json(self) -> bytes:
        """As stored in `meta`."""
        return json.dumps({**asdict(self), "position": str(self.position)}).encode()

    @classmethod
    def parse(cls, content: bytes) -> AppliedBatch:
        """The batch that `as_json` wrote."""
        document: dict[str, Any] = json.loads(content)
        return cls(**document | {"position": Position.parse(document["position"])})


class Snapshot:
    """One read transaction: the rows and the batch as they stood at one moment. Valid inside its `with` only."""

    def __init__(self, transaction: lmdb.Transaction, rows: Any, meta: Any) -> None:
        self._transaction, self._rows, self._meta = transaction, rows, meta

    def batch(self) -> AppliedBatch | None:
        """The batch that the rows stand at; None before the first one."""
        content = self._transaction.get(b"batch", db=self._meta)
        return AppliedBatch.parse(bytes(content)) if content is not None else None

    def fresh_us(self) -> int | None:
        """When this batch was last known to be up to date; None if no heartbeat ever said so."""
        content = self._transaction.get(b"fresh", db=self._meta)
        return int(bytes(content)) if content is not None else None

    def trouble(self) -> str | None:
        """Why the replica does not move on; None while it does."""
        content = self._transaction.get(b"trouble", db=self._meta)
        return bytes(content).decode() if content is not None else None

    def replica(self) -> str:
        """The replica's own name."""
        content = self._transaction.get(b"replica", db=self._meta)
        assert content is not None, "every replica is given a name when it is made"
        return bytes(content).decode()

    def get(self, key: bytes) -> bytes | None:
        """The row of this very key."""
        stored = self._transaction.get(short_key(key), db=self._rows)
        return None if stored is None else _whole(short_key(key), bytes(stored))[1]

    def range(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The keys that begin with these bytes, in order, each with its row."""
        start = prefix[:_KEPT_BYTES]
        return self._ordered(start, lambda key: key.startswith(prefix), lambda key: not key.startswith(start))

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
        with self._transaction.cursor(db=self._rows) as cursor:
            behind = _behind(prefix)
            found = cursor.prev() if behind and cursor.set_range(behind) else cursor.last()
            key = _whole(bytes(cursor.key()), bytes(cursor.value()))[0] if found else None
        return key if key is not None and key.startswith(prefix) else None

    def _ordered(
        self, start: bytes, wanted: Callable[[bytes], bool], beyond: Callable[[bytes], bool]
    ) -> Iterator[tuple[bytes, bytes]]:
        """The wanted keys from `start` on until one is `beyond`, in order, each with its row."""
        with self._transaction.cursor(db=self._rows) as cursor:
            if not cursor.set_range(start):
                return
            alike: list[tuple[bytes, bytes]] = []  # with the same first bytes, behind which LMDB has them by their hash
            for short, stored in cursor:
                key, row = _whole(bytes(short), bytes(stored))
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
        return int(self._transaction.stat(self._rows)["entries"])


class ReplicaReader:
    """Reads a replica, from any process, while another one moves it on. FileNotFoundError where there is none yet."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock, self._snapshots = threading.Lock(), 0
        self._sign = generations.sign(directory)
        self._folder = generations.current(directory)
        self._environment, self._rows, self._meta = self._open()

    @contextmanager
    def snapshot(self) -> Iterator[Snapshot]:
        """A consistent look at the replica; keep it short, it holds old pages back."""
        with self._lock:
            if self._snapshots == 0 and generations.sign(self._directory) != self._sign:
                self._follow()
            self._snapshots += 1
        try:
            with self._begin() as transaction:
                yield Snapshot(transaction, self._rows, self._meta)
        finally:
            with self._lock:
                self._snapshots -= 1

    def close(self) -> None:
        """Let the environment go."""
        self._environment.close()

    def _open(self) -> tuple[lmdb.Environment, Any, Any]:
        """The environment that counts; looks again if another one took its place, and it was deleted, meanwhile."""
        while True:
            try:
                return _open_to_read(self._folder)
            except (FileNotFoundError, ReplicaInvalid):
                sign = generations.sign(self._directory)
                if sign == self._sign:
                    raise
                self._sign, self._folder = sign, generations.current(self._directory)

    def _follow(self) -> None:
        """Go over to the environment that took this one's place; stay if that one was taken away by hand."""
        before, self._sign = self._folder, generations.sign(self._directory)
        self._folder = generations.current(self._directory)
        if self._folder == before:
            return
        try:
            opened = self._open()
        except FileNotFoundError:
            self._folder = before
            return
        self._environment.close()
        self._environment, self._rows, self._meta = opened

    def _begin(self) -> lmdb.Transaction:
        try:
            return self._environment.begin(buffers=False)
        except lmdb.MapResizedError:  # the writer made the map larger
            self._environment.set_mapsize(0)
            return self._environment.begin(buffers=False)


class ReplicaWriter:
    """The one process that moves a replica from batch to batch, by a lock. A crash leaves a batch boundary."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self._lock: int | None = _lock(directory)
        try:
            generations.clean(directory)
            self._open()
        except BaseException:
            os.close(self._lock)
            raise

    def batch(self) -> AppliedBatch | None:
        """The batch that the replica stands at."""
        with self._environment.begin() as transaction:
            return Snapshot(transaction, self._rows, self._meta).batch()

    def apply(self, batch: AppliedBatch, changes: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Move to the next batch in one transaction: readers see all of it or nothing.

        ReplicaInvalid if it is not the next one after the batch that the replica stands at.
        """
        changes = list(changes)
        self._write(lambda transaction: self._put(transaction, batch, changes))

    def freshen(self, time_us: int) -> None:
        """Note that at this time nothing newer than the replica's batch was waiting."""
        self._write(lambda transaction: transaction.put(b"fresh", str(time_us).encode(), db=self._meta))

    def note_trouble(self, trouble: str | None) -> None:
        """Tell readers why the replica does not move on, or that it does again."""

        def note(transaction: lmdb.Transaction) -> None:
            if trouble is None:
                transaction.delete(b"trouble", db=self._meta)
            else:
                transaction.put(b"trouble", trouble.encode(), db=self._meta)

        self._write(note)

    def clear(self) -> None:
        """Forget all rows and the batch, to begin anew."""

        def drop(transaction: lmdb.Transaction) -> None:
            transaction.drop(self._rows, delete=False)
            transaction.drop(self._meta, delete=False)
            self._name(transaction)

        self._write(drop)

    def trouble(self) -> str | None:
        """What readers are told of why the replica does not move."""
        with self._environment.begin() as transaction:
            return Snapshot(transaction, self._rows, self._meta).trouble()

    def name(self) -> str:
        """The replica's own name."""
        with self._environment.begin() as transaction:
            return Snapshot(transaction, self._rows, self._meta).replica()

    def switch(self, folder: Path) -> None:
        """Let the environment in this folder, which must be whole and closed, take the place of the present one."""
        generations.make_current(self.directory, folder)
        self._environment.close()
        self._open()
        generations.clean(self.directory)

    def close(self) -> None:
        """Let the environment and its lock go; a second time it does nothing."""
        self._environment.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _open(self) -> None:
        self._environment = open_environment(generations.current(self.directory))
        self._environment.reader_check()  # readers that were killed hold no old pages back
        self._rows = self._environment.open_db(b"rows")
        self._meta = self._environment.open_db(b"meta")
        self._write(self._name)

    def _name(self, transaction: lmdb.Transaction) -> None:
        transaction.put(b"replica", secrets.token_hex(4).encode(), db=self._meta, overwrite=False)

    def _put(
        self, transaction: lmdb.Transaction, batch: AppliedBatch, changes: list[tuple[bytes, bytes | None]]
    ) -> None:
        before = Snapshot(transaction, self._rows, self._meta).batch()
        if before is not None and (before.query, before.batch + 1) != (batch.query, batch.batch):
            raise ReplicaInvalid(
                f"Batch {batch.batch} of query {batch.query} does not follow batch {before.batch} of {before.query}"
            )
        for key, row in changes:
            if row is None:
                transaction.delete(short_key(key), db=self._rows)
            else:
                transaction.put(short_key(key), stored_row(key, row), db=self._rows)
        transaction.put(b"batch", batch.as_json(), db=self._meta)

    def _write(self, action: Callable[[lmdb.Transaction], object]) -> None:
        write(self._environment, action)


def write(environment: lmdb.Environment, action: Callable[[lmdb.Transaction], object]) -> None:
    """Do this in one transaction, again in a larger map if it does not fit."""
    while True:
        try:
            with environment.begin(write=True) as transaction:
                action(transaction)
            return
        except lmdb.MapFullError:
            environment.set_mapsize(2 * environment.info()["map_size"])


def _lock(directory: Path) -> int:
    handle = try_lock(directory / "writer.lock")
    if handle is None:
        raise ReplicaInvalid(
            "Another process moves this replica",
            where=str(directory),
            next_step="That is fine for readers: it is served from here too, and taken over if that process ends",
        )
    return handle


def _open_to_read(directory: Path) -> tuple[lmdb.Environment, Any, Any]:
    if not (directory / "data.mdb").exists():
        raise FileNotFoundError(directory)
    environment = open_environment(directory, readonly=True)
    try:
        return environment, environment.open_db(b"rows", create=False), environment.open_db(b"meta", create=False)
    except lmdb.NotFoundError:  # its writer is only just making it
        environment.close()
        raise FileNotFoundError(directory) from None


def open_environment(directory: Path, *, readonly: bool = False, sync: bool = True) -> lmdb.Environment:
    """The environment in a folder, made if it is to be written and is not there; ReplicaInvalid if it is damaged."""
    try:
        return lmdb.open(
            str(directory),
            readonly=readonly,
            create=not readonly,
            max_dbs=4,
            max_readers=READERS_MAX,
            map_size=0 if (directory / "data.mdb").exists() else MAP_BYTES_START,
            sync=sync,
            metasync=False,  # a loss of power may cost the last batch, which the checkpoint still has; never the order
        )
    except lmdb.Error as error:
        raise ReplicaInvalid(
            f"The replica cannot be opened: {error}",
            where=str(directory),
            next_step="Delete this folder: it is rebuilt from the checkpoint",
        ) from error


def _behind(prefix: bytes) -> bytes:
    """The first key behind all that begin with these bytes; nothing if there can be none."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else b""


def short_key(key: bytes) -> bytes:
    """The key as LMDB has it."""
    if len(key) <= SHORT_KEY_BYTES_MAX:
        return key
    return key[:_KEPT_BYTES] + blake2b(key, digest_size=_HASH_BYTES).digest() + b"\xff"


def stored_row(key: bytes, row: bytes) -> bytes:
    """The row as LMDB has it."""
    if len(key) <= SHORT_KEY_BYTES_MAX:
        return row
    return _KEY_SIZE.pack(len(key)) + key + row


def _whole(short: bytes, stored: bytes) -> tuple[bytes, bytes]:
    """The whole key and its row, from what is stored: only long keys are longer than the limit when shortened."""
    if len(short) <= SHORT_KEY_BYTES_MAX:
        return short, stored
    (size,) = _KEY_SIZE.unpack_from(stored)
    return stored[_KEY_SIZE.size : _KEY_SIZE.size + size], stored[_KEY_SIZE.size + size :]
