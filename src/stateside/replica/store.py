"""The replica's LMDB environment: rows in key order and their batch, always updated together.

`environment` finds the current environment of the replica's folder; readers follow when another one replaces it.

rows:     encoded key -> row              (see `keys`; a row is the state's UnsafeRow value)
rollups:  number, coarser key -> sums     (see `rollup_tables`; computed from the rows)
past, undo:                               (see `history`; undo records of the last batches)
meta:     "batch"     -> AppliedBatch     as JSON
          "rollups"   -> their columns    as JSON; a rollup's number is its index there; the computed columns in them
          "fresh"     -> microseconds     the last time at which nothing newer than this batch was known to wait
          "trouble"   -> text             why the replica does not advance, while it does not
          "replica"   -> text             the replica's own name, assigned once
          "share"     -> text             the shard of the keys; missing if the replica holds all keys
          "invalid"   -> text             why the replica must be bootstrapped before any read; then it has no batch

Every page has a checksum (`checksums`), maintained by `integrity` and verified by `page_reader`.
"""

from __future__ import annotations

import errno
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TypeVar

import lmdb

from stateside.core import generations
from stateside.core.clock import Clock, SystemClock
from stateside.core.errors import ReplicaInvalid, StatesideError
from stateside.core.storage import try_lock
from stateside.replica import lists
from stateside.replica.batch_marker import AppliedBatch
from stateside.replica.checksums import ReplicaDamaged, Standing, Unchecked, is_begun
from stateside.replica.environment import (
    Databases,
    Tables,
    clean_up,
    current_folder,
    full_disk,
    move_aside,
    open_environment,
    write,
)
from stateside.replica.history import HistoryWriter, Keep
from stateside.replica.integrity import Integrity
from stateside.replica.key_table import Changes, Ordered, OrderedRows, in_order
from stateside.replica.page_reader import VerifiedPages, verified_tables
from stateside.replica.replica_reader import ReplicaReader
from stateside.replica.rollup_tables import Kept, Rollups
from stateside.replica.shard import Share
from stateside.replica.snapshot import Snapshot
from stateside.views.catalogue import Computed

__all__ = ["AppliedBatch", "ReplicaReader", "ReplicaWriter", "Snapshot"]

T = TypeVar("T")

_LOCK = "writer.lock"
Row = tuple[bytes, bytes]
READER_CHECK_S = 2.0  # how often a writer releases the old pages of killed readers

log = logging.getLogger(__name__)


class ReplicaWriter:
    """The one process, by a lock, that advances a replica from batch to batch. A crash leaves a batch boundary."""

    def __init__(
        self, directory: Path, *, share: Share | None = None, keep: Keep | None = None, clock: Clock | None = None
    ) -> None:
        """ReplicaInvalid if another process writes the replica, or if it holds another shard of the keys."""
        directory.mkdir(parents=True, exist_ok=True)
        self.directory, self.share = directory, share
        self._keep, self._clock, self._folder = keep or Keep(), clock or SystemClock(), directory
        self._lock: int | None = _lock(directory)
        try:
            self._mend_pointer()
            clean_up(directory)
            self._open()
        except BaseException:
            os.close(self._lock)
            raise

    def batch(self) -> AppliedBatch | None:
        return self._read(Snapshot.batch)

    def invalid(self) -> str | None:
        """Why the replica must be bootstrapped before any read; None if readable."""
        return self._read(Snapshot.invalid)

    def check(self, *, whole: bool = False) -> None:
        """ReplicaDamaged if a file of the replica was truncated, or a reader reported damage.

        With `whole`, all pages are verified.
        """
        self._integrity.check()
        if whole:
            self._integrity.check_all()

    def scrub(self) -> None:
        """Verify some more pages of the replica; ReplicaDamaged."""
        self._integrity.scrub()

    def set_aside(self, why: str) -> Path:
        """Move the damaged environment aside, and begin an empty one; returns the folder of the damaged one.

        Until the bootstrap is done, readers get the reason.
        """
        try:
            name: str | None = self.name()
        except ReplicaInvalid:
            name = None
        self._integrity.stand(Standing.INVALID)
        self._close_environment()
        before = self._folder
        self._begin_invalid(why, name)
        aside = move_aside(self.directory, before)
        self._open(empty=True)
        return aside

    def apply(self, batch: AppliedBatch, changes: Iterable[lists.Change]) -> None:
        """Advance to the next batch in one transaction: readers see all of the batch or nothing.

        Changes are keys with their new rows, None if deleted; for a view of a list, those of `lists`. ReplicaInvalid if
        `batch` is not the successor of the replica's batch; as for every write, SetupError if the disk is full.
        """
        given = list(changes)
        self._write(lambda transaction: self._put(transaction, batch, given))

    def keep_rollups(self, rollups: Rollups) -> None:
        """Maintain these rollups from now on, batch by batch. If the replica has others, rebuild them from its rows.

        They are also rebuilt if their computed columns differ; CheckpointInvalid if a row's cannot be computed.

        To be called before the first `apply` of a writer, and after rows were loaded in another way than by `apply`.
        Rebuilt rollups have no history, and without it the older batches are forgotten, too.
        """

        def make(transaction: lmdb.Transaction) -> None:
            snapshot = Snapshot(self._databases.tables(transaction))
            if _kept(snapshot) == (rollups.kept, rollups.computed):
                return
            self._integrity.check_all()  # a transaction verifies the pages it changes, not those it only reads
            transaction.drop(self._databases.rollups, delete=False)
            rollups.add_all(snapshot.range(b""), Ordered(transaction, self._databases.rollups))
            transaction.put(b"rollups", rollups.as_json(), db=self._databases.meta)
            HistoryWriter(transaction, self._databases).forget()

        self._write(make)
        self._rollups = rollups

    def freshen(self, time_us: int) -> None:
        """Record that at this time nothing newer than the replica's batch was waiting."""
        self._write(lambda transaction: transaction.put(b"fresh", str(time_us).encode(), db=self._databases.meta))

    def note_trouble(self, trouble: str | None) -> None:
        """Publish to readers why the replica does not advance, or None once it does again."""

        def note(transaction: lmdb.Transaction) -> None:
            if trouble is None:
                transaction.delete(b"trouble", db=self._databases.meta)
            else:
                transaction.put(b"trouble", trouble.encode(), db=self._databases.meta)

        self._write(note)

    def trouble(self) -> str | None:
        """The reason published to readers."""
        return self._read(Snapshot.trouble)

    def name(self) -> str:
        """The replica's own name."""
        return self._read(Snapshot.replica)

    def switch(self, folder: Path) -> None:
        """Replace the present environment by the one in this folder, which must be complete and closed.

        As with a new writer, `keep_rollups` comes before the next `apply`. The new environment has no history.
        """
        generations.make_current(self.directory, folder)
        self._integrity.stand(Standing.REPLACED)
        self._close_environment()
        self._open()
        clean_up(self.directory)

    def differences(self, folder: Path) -> list[lists.Plain]:
        """The changes from this replica's rows to those of the environment in this folder, in key order."""
        with closing(VerifiedPages(folder)) as pages:
            others = OrderedRows(verified_tables(pages, pages.checksums.published()).rows)
            return list(_differences(OrderedRows(self._published().rows).range(b""), others.range(b"")))

    def next_folder(self) -> Path:
        """The folder for the successor of this environment."""
        return generations.next_folder(self.directory, self._folder)

    def in_place(self) -> bool:
        """Whether the environment is still at its path: the folder may have been deleted."""
        return _file(self._folder / "data.mdb") == self._file

    def take_place(self) -> None:
        """Recreate the replica's folder after its deletion. The environment, now without a path, stays open.

        ReplicaInvalid if another process came first.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        assert self._lock is not None, "a writer that was closed has no place"
        found = os.fstat(self._lock)
        if _file(self.directory / _LOCK) != (found.st_dev, found.st_ino):
            lock = _lock(self.directory)
            os.close(self._lock)
            self._lock = lock

    def close(self) -> None:
        """Close the environment and release the lock. Idempotent."""
        if self._lock is not None:
            self._close_environment()
            os.close(self._lock)
            self._lock = None

    def _close_environment(self) -> None:
        self._pages.lock_is_whole()  # restores the size if needed: LMDB accesses the file
        self._pages.close()
        self._integrity.close()
        self._environment.close()

    def _mend_pointer(self) -> None:
        """If the current environment is unknown, begin an empty one, to be bootstrapped."""
        try:
            self._folder = current_folder(self.directory)
        except ReplicaInvalid as error:
            log.error("%s It is rebuilt from the checkpoint", error)
            self._begin_invalid(error.what, None)

    def _open(self, *, empty: bool = False) -> None:
        """Open the current environment; if damaged, or without checksums, replace it by an `empty` one."""
        self._folder = current_folder(self.directory)
        self._checked_s = 0.0
        self._rollups = Rollups()
        try:
            self._open_environment()
            try:
                self._begin_replica()
            except BaseException:
                self._close_environment()
                raise
        except (ReplicaDamaged, Unchecked) as error:
            if empty:
                raise  # the disk cannot be trusted: the caller retries later
            before = self._folder
            self._begin_invalid(error.what, None)
            aside = move_aside(self.directory, before)
            log.error("%s. It is moved to %s, and rebuilt from the checkpoint", error.what, aside)
            self._open(empty=True)

    def _open_environment(self) -> None:
        if is_begun(self._folder):
            (self._folder / "data.mdb").unlink(missing_ok=True)
        new = not (self._folder / "data.mdb").exists()
        if not new:
            with closing(VerifiedPages(self._folder)) as pages:  # LMDB trusts its files: verify them first
                pages.check_sizes()
        with ExitStack() as opened:
            self._environment = open_environment(self._folder)
            opened.callback(self._environment.close)
            self._file = _file(self._folder / "data.mdb")
            if new:
                self._databases = Databases(self._environment)
            self._integrity = Integrity(self._folder, self._environment, new=new)
            opened.callback(self._integrity.close)
            self._pages = VerifiedPages(self._folder)
            opened.callback(self._pages.close)
            self._pages.known(self._pages.checksums.published())
            self._databases = Databases(self._environment)
            opened.pop_all()

    def _begin_invalid(self, why: str, name: str | None) -> None:
        """Create an empty current environment, with the reason why it must not be read."""
        folder = self.next_folder()
        environment = open_environment(folder)
        try:
            databases = Databases(environment)
            notes = {b"invalid": why.encode(), b"replica": (name or secrets.token_hex(4)).encode()}
            for note, content in notes.items():
                write(environment, lambda transaction: transaction.put(note, content, db=databases.meta))  # noqa: B023
            Integrity(folder, environment, new=True).close()
        finally:
            environment.close()
        generations.make_current(self.directory, folder)

    def _read(self, read: Callable[[Snapshot], T]) -> T:
        """Read from the last published batch."""
        self._integrity.check()
        return read(Snapshot(self._published()))

    def _published(self) -> Tables:
        """The last published tables: the only writer needs no transaction to read them."""
        self._pages.check_sizes()
        return verified_tables(self._pages, self._pages.checksums.published())

    def _begin_replica(self) -> None:
        """Assign a new replica its name and shard; refuse one with the rows of another shard."""
        share, empty, named = self._read(lambda found: (found.share(), found.batch() is None, found.is_named()))
        if share != self.share and not empty:
            raise _another_share(self.directory, share, self.share)
        if not named or share != self.share:
            self._write(self._note_beginning)

    def _note_beginning(self, transaction: lmdb.Transaction) -> None:
        meta = self._databases.meta
        transaction.put(b"replica", secrets.token_hex(4).encode(), db=meta, overwrite=False)
        if self.share is None:
            transaction.delete(b"share", db=meta)
        else:
            transaction.put(b"share", str(self.share).encode(), db=meta)

    def _put(self, transaction: lmdb.Transaction, batch: AppliedBatch, given: list[lists.Change]) -> None:
        snapshot = Snapshot(self._databases.tables(transaction))
        before = snapshot.batch()
        if before is not None and (before.query, before.batch + 1) != (batch.query, batch.batch):
            raise ReplicaInvalid(
                f"Batch {batch.batch} of query {batch.query} does not follow batch {before.batch} of {before.query}"
            )
        assert _kept(snapshot) == (self._rollups.kept, self._rollups.computed), "keep_rollups comes first"
        changes = in_order(lists.settled(given, OrderedRows(self._published().rows)))
        if not self._rollups.idle or (before is not None and not self._keep.nothing):
            self._move(transaction, before, changes)
        else:
            self._rows(transaction).put_sorted(changes)
            HistoryWriter(transaction, self._databases).forget()
        transaction.put(b"batch", batch.as_json(), db=self._databases.meta)

    def _move(self, transaction: lmdb.Transaction, before: AppliedBatch | None, changes: Changes) -> None:
        """Change rows and rollups, and record their before images."""
        snapshot, history = Snapshot(self._databases.tables(transaction)), HistoryWriter(transaction, self._databases)
        count, fresh_us, now_us = snapshot.count(), snapshot.fresh_us(), self._clock.now_us()
        rows, rollups = self._rows(transaction), self._rollup_rows(transaction)
        replaced = Changes(changes.keys, rows.swap_sorted(changes))
        undone = replaced, self._rollups.follow(changes, replaced.rows, rollups)
        if before is not None:
            history.write(before, undone, rows=count, fresh_us=fresh_us, now_us=now_us, keep=self._keep)

    def _rows(self, transaction: lmdb.Transaction) -> Ordered:
        return Ordered(transaction, self._databases.rows, self._published().rows.check)

    def _rollup_rows(self, transaction: lmdb.Transaction) -> Ordered:
        return Ordered(transaction, self._databases.rollups, self._published().rollups.check)

    def _write(self, action: Callable[[lmdb.Transaction], object]) -> None:
        self._pages.check_sizes()
        if time.monotonic() - self._checked_s >= READER_CHECK_S:
            self._environment.reader_check()
            self._checked_s = time.monotonic()
        try:
            self._integrity.check_before_write()
            write(self._environment, action)
            self._integrity.publish()
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise full_disk(self._folder, str(error.strerror)) from error
        except Exception as error:
            if _may_be_damage(error):
                self._integrity.check_all()  # ReplicaDamaged, if a page is not as written
            raise


def _may_be_damage(error: Exception) -> bool:
    """Whether a transaction may have failed due to a damaged page that LMDB trusted: any error is then possible."""
    by_lmdb = isinstance(error, ReplicaInvalid) and isinstance(error.__cause__, lmdb.Error)
    return by_lmdb or not isinstance(error, StatesideError)


def _differences(rows: Iterator[Row], others: Iterator[Row]) -> Iterator[lists.Plain]:
    """The changes from `rows` to `others`, both in key order."""
    row, other = next(rows, None), next(others, None)
    while row is not None or other is not None:
        if other is None or (row is not None and row[0] < other[0]):
            assert row is not None, "one of them is there"
            yield row[0], None
            row = next(rows, None)
        elif row is None or other[0] < row[0]:
            yield other
            other = next(others, None)
        else:
            if row[1] != other[1]:
                yield other
            row, other = next(rows, None), next(others, None)


def _kept(snapshot: Snapshot) -> tuple[Kept, tuple[Computed, ...]]:
    return snapshot.rollups(), snapshot.computed()


def _another_share(directory: Path, share: Share | None, asked: Share | None) -> ReplicaInvalid:
    return ReplicaInvalid(
        f"This replica holds {_named(share)}, and {_named(asked)} was asked for",
        where=str(directory),
        next_step="Ask for what it holds, use another folder, or delete this one: it is rebuilt from the checkpoint",
    )


def _named(share: Share | None) -> str:
    return "all keys" if share is None else f"share {share} of the keys"


def _lock(directory: Path) -> int:
    handle = try_lock(directory / _LOCK)
    if handle is None:
        raise ReplicaInvalid(
            "Another process moves this replica",
            where=str(directory),
            next_step="That is fine for readers: it is served from here too, and taken over if that process ends",
        )
    return handle


def _file(path: Path) -> tuple[int, int] | None:
    """The identity of a file; None if missing."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino
