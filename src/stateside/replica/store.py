"""The replica's LMDB environment: rows in key order and the batch they stand at, always moved together.

Which environment of the replica's folder counts, `generations` says; readers follow when another one takes its place.

rows:     encoded key -> row              (see `keys`; a row is the state's UnsafeRow value)
rollups:  number, coarser key -> sums     (see `rollups`; computed from the rows)
meta:     "batch"     -> AppliedBatch     as JSON
          "rollups"   -> their columns    as JSON; a rollup's number is its place there
          "fresh"     -> microseconds     the last time at which nothing newer than this batch was known to wait
          "trouble"   -> text             why the replica does not move, while it does not
          "replica"   -> text             the replica's own name, given once
"""

from __future__ import annotations

import json
import os
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import lmdb

from stateside.errors import ReplicaInvalid
from stateside.positions import Position
from stateside.replica import generations, lists
from stateside.replica.environment import Databases, open_environment, open_to_read, write
from stateside.replica.ordered import Ordered
from stateside.replica.rollups import Kept, Rollups, parse_kept
from stateside.storage import try_lock


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

    def __init__(self, transaction: lmdb.Transaction, databases: Databases) -> None:
        self._transaction, self._databases = transaction, databases
        self._rows = Ordered(transaction, databases.rows)

    def batch(self) -> AppliedBatch | None:
        """The batch that the rows stand at; None before the first one."""
        content = self._transaction.get(b"batch", db=self._databases.meta)
        return AppliedBatch.parse(bytes(content)) if content is not None else None

    def fresh_us(self) -> int | None:
        """When this batch was last known to be up to date; None if no heartbeat ever said so."""
        content = self._transaction.get(b"fresh", db=self._databases.meta)
        return int(bytes(content)) if content is not None else None

    def trouble(self) -> str | None:
        """Why the replica does not move on; None while it does."""
        content = self._transaction.get(b"trouble", db=self._databases.meta)
        return bytes(content).decode() if content is not None else None

    def replica(self) -> str:
        """The replica's own name."""
        content = self._transaction.get(b"replica", db=self._databases.meta)
        assert content is not None, "every replica is given a name when it is made"
        return bytes(content).decode()

    def rollups(self) -> Kept:
        """The rollups that the replica keeps, by their columns; a rollup's number is its place here."""
        content = self._transaction.get(b"rollups", db=self._databases.meta)
        return parse_kept(bytes(content)) if content is not None else ()

    def rollup(self, number: int, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The coarser keys of a rollup that begin with these bytes, in order, each with its row."""
        table, mark = Ordered(self._transaction, self._databases.rollups), bytes([number])
        return ((key[1:], row) for key, row in table.range(mark + prefix))

    def get(self, key: bytes) -> bytes | None:
        """The row of this very key."""
        return self._rows.get(key)

    def range(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The keys that begin with these bytes, in order, each with its row."""
        return self._rows.range(prefix)

    def between(self, first: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The keys from `first` on and before `end`, in order, each with its row."""
        return self._rows.between(first, end)

    def last(self, prefix: bytes) -> bytes | None:
        """The last of the keys that begin with these bytes."""
        return self._rows.last(prefix)

    def count(self) -> int:
        """How many rows there are."""
        return self._rows.count()


class ReplicaReader:
    """Reads a replica, from any process, while another one moves it on. FileNotFoundError where there is none yet."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock, self._snapshots = threading.Lock(), 0
        self._sign = generations.sign(directory)
        self._folder = generations.current(directory)
        self._environment, self._databases = self._open()

    @contextmanager
    def snapshot(self) -> Iterator[Snapshot]:
        """A consistent look at the replica; keep it short, it holds old pages back."""
        with self._lock:
            if self._snapshots == 0 and generations.sign(self._directory) != self._sign:
                self._follow()
            self._snapshots += 1
        try:
            with self._begin() as transaction:
                yield Snapshot(transaction, self._databases)
        finally:
            with self._lock:
                self._snapshots -= 1

    def close(self) -> None:
        """Let the environment go."""
        self._environment.close()

    def _open(self) -> tuple[lmdb.Environment, Databases]:
        """The environment that counts; looks again if another one took its place, and it was deleted, meanwhile."""
        while True:
            try:
                return open_to_read(self._folder)
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
        self._environment, self._databases = opened

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
            return Snapshot(transaction, self._databases).batch()

    def apply(self, batch: AppliedBatch, changes: Iterable[lists.Change]) -> None:
        """Move to the next batch in one transaction: readers see all of it or nothing.

        Changes are keys with their new rows, None if they are gone; of a view that serves a list, those of `lists`.
        ReplicaInvalid if it is not the next one after the batch that the replica stands at.
        """
        changes = list(changes)
        self._write(lambda transaction: self._put(transaction, batch, changes))

    def keep_rollups(self, rollups: Rollups) -> None:
        """Keep these rollups from now on, batch by batch. Where the replica has others, they are made from its rows.

        To be called before the first `apply` of a writer, and once rows were loaded in another way than by `apply`.
        """

        def make(transaction: lmdb.Transaction) -> None:
            snapshot = Snapshot(transaction, self._databases)
            if snapshot.rollups() == rollups.kept:
                return
            transaction.drop(self._databases.rollups, delete=False)
            rollups.add_all(snapshot.range(b""), Ordered(transaction, self._databases.rollups))
            transaction.put(b"rollups", rollups.as_json(), db=self._databases.meta)

        self._write(make)
        self._rollups = rollups

    def freshen(self, time_us: int) -> None:
        """Note that at this time nothing newer than the replica's batch was waiting."""
        self._write(lambda transaction: transaction.put(b"fresh", str(time_us).encode(), db=self._databases.meta))

    def note_trouble(self, trouble: str | None) -> None:
        """Tell readers why the replica does not move on, or that it does again."""

        def note(transaction: lmdb.Transaction) -> None:
            if trouble is None:
                transaction.delete(b"trouble", db=self._databases.meta)
            else:
                transaction.put(b"trouble", trouble.encode(), db=self._databases.meta)

        self._write(note)

    def clear(self) -> None:
        """Forget all rows, the rollups and the batch, to begin anew."""

        def drop(transaction: lmdb.Transaction) -> None:
            for database in (self._databases.rows, self._databases.rollups, self._databases.meta):
                transaction.drop(database, delete=False)
            self._name(transaction)

        self._write(drop)
        self._rollups = Rollups()

    def trouble(self) -> str | None:
        """What readers are told of why the replica does not move."""
        with self._environment.begin() as transaction:
            return Snapshot(transaction, self._databases).trouble()

    def name(self) -> str:
        """The replica's own name."""
        with self._environment.begin() as transaction:
            return Snapshot(transaction, self._databases).replica()

    def switch(self, folder: Path) -> None:
        """Let the environment in this folder, which must be whole and closed, take the place of the present one.

        As with a new writer, `keep_rollups` comes before the next `apply`.
        """
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
        self._databases = Databases(self._environment, create=True)
        self._rollups = Rollups()
        self._write(self._name)

    def _name(self, transaction: lmdb.Transaction) -> None:
        transaction.put(b"replica", secrets.token_hex(4).encode(), db=self._databases.meta, overwrite=False)

    def _put(self, transaction: lmdb.Transaction, batch: AppliedBatch, given: list[lists.Change]) -> None:
        snapshot = Snapshot(transaction, self._databases)
        before = snapshot.batch()
        if before is not None and (before.query, before.batch + 1) != (batch.query, batch.batch):
            raise ReplicaInvalid(
                f"Batch {batch.batch} of query {batch.query} does not follow batch {before.batch} of {before.query}"
            )
        assert snapshot.rollups() == self._rollups.kept, "keep_rollups comes first"
        rows = Ordered(transaction, self._databases.rows)
        changes = lists.settled(given, rows)
        if self._rollups.kept:
            self._rollups.move(changes, rows, Ordered(transaction, self._databases.rollups))
        else:
            for key, row in changes:
                rows.put(key, row)
        transaction.put(b"batch", batch.as_json(), db=self._databases.meta)

    def _write(self, action: Callable[[lmdb.Transaction], object]) -> None:
        write(self._environment, action)


def _lock(directory: Path) -> int:
    handle = try_lock(directory / "writer.lock")
    if handle is None:
        raise ReplicaInvalid(
            "Another process moves this replica",
            where=str(directory),
            next_step="That is fine for readers: it is served from here too, and taken over if that process ends",
        )
    return handle
