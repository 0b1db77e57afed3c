"""Reader of a replica, from any process, while another one writes. Every answer comes from verified pages.

`ReusedSnapshot` keeps one snapshot for some milliseconds, for a series of short reads: a snapshot costs as much as
reading a row. The reused snapshot is always of the newest batch: it is replaced once the environment's checksums show a
newer published transaction. After `MOMENT_S` at the latest it is released, so that it holds hardly any old pages, and
notices an environment replaced by hand.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import lmdb

from stateside.core.errors import ReplicaInvalid
from stateside.replica.environment import Tables, current_folder, current_sign, open_environment
from stateside.replica.page_reader import VerifiedPages, verified_tables
from stateside.replica.snapshot import Snapshot, snapshot_as_of

PATIENCE_S = 0.05  # maximum wait of a snapshot for a committed but unpublished transaction
_PUBLISHED_LOOK_S = 0.0005
BEGINNINGS_MAX = 1_000  # how often a writer may intervene before a transaction begins


@dataclass(slots=True)
class Opened:
    """An open environment, and its number of snapshots."""

    folder: Path
    environment: lmdb.Environment
    pages: VerifiedPages
    snapshots: int = 0

    def close(self) -> None:
        self.pages.lock_is_whole()  # restores the size if needed: LMDB accesses the file
        self.environment.close()
        self.pages.close()

    def end(self, transaction: lmdb.Transaction) -> None:
        """Release a transaction."""
        self.pages.lock_is_whole()
        transaction.abort()

    def newest(self) -> int | None:
        """The transaction of a snapshot taken now; None if another environment took this one's place."""
        return self.pages.checksums.newest()


@dataclass(frozen=True, slots=True)
class ReadTransaction:
    """A transaction of LMDB, which keeps its pages from being reused, and its tables."""

    transaction: lmdb.Transaction
    number: int
    tables: Tables


class ReplicaReader:
    """A reader of a replica, in any process, while another one writes. FileNotFoundError if there is no replica yet.

    Any thread may read. When another environment replaces the present one, the next snapshot is of the new one; open
    snapshots stay valid, and the last of them closes the old environment.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock, self._closed = threading.Lock(), False
        self._sign = current_sign(directory)
        self._opened = self._open(current_folder(directory))

    def snapshot(self, as_of: int | None = None, fingerprint: str | None = None) -> Look:
        """A consistent snapshot of the replica; to be closed soon, as it holds old pages.

        With `as_of` its rows, rollups and stamp are those of an older batch; a scan over several snapshots also gives
        the fingerprint of the batch from its first page. Errors as for `snapshot_as_of`.
        """
        return Look(self, as_of, fingerprint)

    def take(self) -> Opened:
        """The current environment; stays open until `give_back`. ReplicaInvalid if unusable."""
        with self._lock:
            if self._closed:
                raise _unreadable(self._directory, "this generation of the view is no longer kept")
            if current_sign(self._directory) != self._sign:
                self._follow()
            opened = self._opened
            opened.snapshots += 1
        return opened

    def give_back(self, opened: Opened) -> None:
        """End the use of an environment."""
        with self._lock:
            opened.snapshots -= 1
            if self._closed or opened is not self._opened:
                _close_unused(opened)

    def close(self) -> None:
        """Take no further snapshot; the last open one closes the environment."""
        with self._lock:
            if not self._closed:
                self._closed = True
                _close_unused(self._opened)

    def _open(self, folder: Path) -> Opened:
        """Open the environment; retries if another one replaced it, and it was deleted, meanwhile."""
        while True:
            try:
                return _opened(folder)
            except (FileNotFoundError, ReplicaInvalid):
                sign = current_sign(self._directory)
                if sign == self._sign:
                    raise
                self._sign, folder = sign, current_folder(self._directory)

    def _follow(self) -> None:
        """Switch to the environment that replaced the present one; stay if the new one was removed by hand."""
        before, sign = self._opened, current_sign(self._directory)
        folder = current_folder(self._directory)
        if folder != before.folder:
            with suppress(FileNotFoundError):
                self._opened = self._open(folder)
                _close_unused(before)
        self._sign = sign

    def begin(self, opened: Opened, patience_s: float = 0.0) -> ReadTransaction:
        """A transaction in a taken environment: the newest published one.

        If LMDB has a newer one, about to be published, waits for its publication: LMDB no longer protects the pages of
        the one before, and an overtaken reader must ask again. If its writer was killed, no later transaction
        overtakes. ReplicaInvalid if the environment is damaged, or being rebuilt; or if its map has just become too
        small.
        """
        deadline_s = None
        for _ in range(BEGINNINGS_MAX):
            opened.pages.check_sizes()
            transaction = self._begin(opened)
            newest, published = transaction.id(), opened.pages.checksums.published()
            if newest == published:
                return self._begun(opened, transaction, published)
            now_s = time.monotonic()
            deadline_s = deadline_s or now_s + patience_s
            if newest == published + 1 and now_s >= deadline_s:
                opened.pages.not_kept = published
                return self._begun(opened, transaction, published)
            opened.end(transaction)
            if newest > published:
                time.sleep(_PUBLISHED_LOOK_S)
        raise opened.pages.found(f"LMDB stands at transaction {newest}, and {published} is published")

    def _begun(self, opened: Opened, transaction: lmdb.Transaction, number: int) -> ReadTransaction:
        try:
            begun = ReadTransaction(transaction, number, verified_tables(opened.pages, number))
            invalid = Snapshot(begun.tables).invalid()
            if invalid is not None:
                raise ReplicaInvalid(
                    f"The replica is being rebuilt: {invalid}",
                    where=str(opened.folder),
                    next_step="Ask again in a while, or another server",
                )
        except BaseException:
            opened.end(transaction)
            raise
        return begun

    def _begin(self, opened: Opened) -> lmdb.Transaction:
        try:
            try:
                return opened.environment.begin(buffers=False)
            except lmdb.MapResizedError:  # the writer enlarged the map beyond ours, or LMDB's meta page is damaged
                opened.pages.check_meta()
                with self._lock:
                    if opened.snapshots > 1:  # the map must not move under an open snapshot
                        raise _unreadable(opened.folder, "it has outgrown this reader's map") from None
                    opened.environment.set_mapsize(0)
                return opened.environment.begin(buffers=False)
        except lmdb.Error as error:
            raise _unreadable(opened.folder, str(error)) from error


class Look:
    """A snapshot for the duration of a `with`. Not a generator, for speed: every request opens one."""

    __slots__ = ("_as_of", "_fingerprint", "_opened", "_reader", "_transaction")

    def __init__(self, reader: ReplicaReader, as_of: int | None = None, fingerprint: str | None = None) -> None:
        self._reader, self._as_of, self._fingerprint = reader, as_of, fingerprint

    def __enter__(self) -> Snapshot:
        opened = self._opened = self._reader.take()
        try:
            begun = self._reader.begin(opened, PATIENCE_S)
            self._transaction = begun.transaction
            if self._as_of is None:
                return Snapshot(begun.tables)
            try:
                return snapshot_as_of(begun.tables, self._as_of, self._fingerprint)
            except BaseException:
                opened.end(begun.transaction)
                raise
        except BaseException:
            self._reader.give_back(opened)
            raise

    def __exit__(self, *error: object) -> None:
        self._opened.end(self._transaction)
        self._reader.give_back(self._opened)


def _opened(folder: Path) -> Opened:
    """The environment in a folder; FileNotFoundError if missing, or not yet published."""
    if not (folder / "data.mdb").exists():
        raise FileNotFoundError(folder)
    pages = VerifiedPages(folder)
    try:
        if not pages.checksums.published():  # its writer is still creating it
            raise FileNotFoundError(folder)
        pages.check_sizes()
        return Opened(folder, open_environment(folder, readonly=True), pages)
    except BaseException:
        pages.close()
        raise


def _unreadable(folder: Path, why: str) -> ReplicaInvalid:
    return ReplicaInvalid(f"The replica cannot be read just now: {why}", where=str(folder), next_step="Ask again")


def _close_unused(opened: Opened) -> None:
    if opened.snapshots == 0:
        opened.close()


MOMENT_S: Final = 0.02


class ReusedSnapshot:
    """A reused snapshot, for one thread, which must call `release` in time, even without further reads."""

    def __init__(self, replica: ReplicaReader) -> None:
        self._replica = replica
        self._kept: tuple[Opened, ReadTransaction, Snapshot] | None = None
        self._until_s = 0.0

    def snapshot(self) -> Snapshot:
        """The present snapshot if still the newest, or another one; errors as for `ReplicaReader.snapshot`."""
        if self._kept is not None:
            opened, begun, snapshot = self._kept
            if opened.newest() == begun.number and time.monotonic() < self._until_s:
                return snapshot
            self.release()
        return self._take()

    def release(self) -> None:
        """Release the snapshot, if any."""
        if self._kept is not None:
            opened, begun, _ = self._kept
            self._kept = None
            opened.end(begun.transaction)
            self._replica.give_back(opened)

    def _take(self) -> Snapshot:
        opened = self._replica.take()
        try:
            begun = self._replica.begin(opened)
        except BaseException:
            self._replica.give_back(opened)
            raise
        snapshot = Snapshot(begun.tables)
        self._kept = opened, begun, snapshot
        self._until_s = time.monotonic() + MOMENT_S
        return snapshot
