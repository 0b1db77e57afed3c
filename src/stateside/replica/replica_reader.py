"""Reading a replica from any process, while another one moves it on. Nothing is answered that was not checked.

A moment: a snapshot that is kept for a few milliseconds, and answers one short question after the other.

Each of them would cost as much for the snapshot as for the row. It is always of the newest batch: the environment's
checksums say which transaction was published last, and if it is another one, another snapshot is taken. It is let go
after `MOMENT_S` at the latest, so that it holds back hardly any old pages, and sees that another environment took this
one's place by hand.
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
from stateside.replica import generations
from stateside.replica.lmdb import Tables, open_environment
from stateside.replica.page_reader import VerifiedPages, verified_tables
from stateside.replica.snapshot import Snapshot, snapshot_as_of

PATIENCE_S = 0.05  # for so long a snapshot waits for a transaction that is committed and not published yet
_PUBLISHED_LOOK_S = 0.0005
BEGINNINGS_MAX = 1_000  # so often a writer may come in between before a transaction begins


@dataclass(slots=True)
class Opened:
    """An environment that is open, and how many snapshots there are of it."""

    folder: Path
    environment: lmdb.Environment
    pages: VerifiedPages
    snapshots: int = 0

    def close(self) -> None:
        """Let it go."""
        self.pages.lock_is_whole()  # or is made as long again: LMDB looks at it
        self.environment.close()
        self.pages.close()

    def end(self, transaction: lmdb.Transaction) -> None:
        """Let a transaction go."""
        self.pages.lock_is_whole()
        transaction.abort()

    def newest(self) -> int | None:
        """The transaction that a snapshot taken now would be of; None if another environment took this one's place."""
        return self.pages.checksums.newest()


@dataclass(frozen=True, slots=True)
class ReadTransaction:
    """A transaction of LMDB's, which keeps its pages from being reused, and what it sees."""

    transaction: lmdb.Transaction
    number: int
    tables: Tables


class ReplicaReader:
    """Reads a replica, from any process, while another one moves it on. FileNotFoundError where there is none yet.

    Any thread may ask. When another environment takes the place of the present one, the next snapshot is of that; those
    that are open stay what they were, and the last of them closes the old one.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._sign = generations.sign(directory)
        self._opened = self._open(generations.current(directory))

    def snapshot(self, as_of: int | None = None, fingerprint: str | None = None) -> Look:
        """A consistent look at the replica; keep it short, it holds old pages back.

        With `as_of` its rows, rollups and stamp are those of an older batch; a scan over several snapshots gives the
        fingerprint of that batch too, as its first page told it. Errors as for `snapshot_as_of`.
        """
        return Look(self, as_of, fingerprint)

    def take(self) -> Opened:
        """The environment that counts now; it stays open until it is given back. ReplicaInvalid if it is not usable."""
        with self._lock:
            if generations.sign(self._directory) != self._sign:
                self._follow()
            opened = self._opened
            opened.snapshots += 1
        return opened

    def give_back(self, opened: Opened) -> None:
        """Nothing is read in it any more by who took it."""
        with self._lock:
            opened.snapshots -= 1
            if opened is not self._opened:
                _close_unused(opened)

    def close(self) -> None:
        """Let the environment go."""
        self._opened.close()

    def _open(self, folder: Path) -> Opened:
        """The environment that counts; looks again if another one took its place, and it was deleted, meanwhile."""
        while True:
            try:
                return _opened(folder)
            except (FileNotFoundError, ReplicaInvalid):
                sign = generations.sign(self._directory)
                if sign == self._sign:
                    raise
                self._sign, folder = sign, generations.current(self._directory)

    def _follow(self) -> None:
        """Go over to the environment that took this one's place; stay if that one was taken away by hand."""
        before, sign = self._opened, generations.sign(self._directory)
        folder = generations.current(self._directory)
        if folder != before.folder:
            with suppress(FileNotFoundError):
                self._opened = self._open(folder)
                _close_unused(before)
        self._sign = sign

    def begin(self, opened: Opened, patience_s: float = 0.0) -> ReadTransaction:
        """A transaction in an environment that was taken: the newest one that is published.

        If LMDB has a newer one, which is published any moment, that is waited for: pages of the one before it are not
        kept any more, and a reader that is overtaken must ask again. If its writer was killed, none overtakes it.
        ReplicaInvalid if the environment is damaged, or being rebuilt; or if its map has become too small just now.
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
            except lmdb.MapResizedError:  # the writer made the map larger than ours, or LMDB's own page is damaged
                opened.pages.check_meta()
                with self._lock:
                    if opened.snapshots > 1:  # under an open snapshot the map must not move
                        raise _unreadable(opened.folder, "it has outgrown this reader's map") from None
                    opened.environment.set_mapsize(0)
                return opened.environment.begin(buffers=False)
        except lmdb.Error as error:
            raise _unreadable(opened.folder, str(error)) from error


class Look:
    """A snapshot, for as long as its `with` lasts: of every request there is one, so it is no generator."""

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
    """The environment in a folder; FileNotFoundError if it is not there, or only just made."""
    if not (folder / "data.mdb").exists():
        raise FileNotFoundError(folder)
    pages = VerifiedPages(folder)
    try:
        if not pages.checksums.published():  # its writer is only just making it
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


MOMENT_S: Final = 0.005


class ReusedSnapshot:
    """For one thread, which sees to it that `release` is called in time: also when no question comes any more."""

    def __init__(self, replica: ReplicaReader) -> None:
        self._replica = replica
        self._kept: tuple[Opened, ReadTransaction, Snapshot] | None = None
        self._until_s = 0.0

    def snapshot(self) -> Snapshot:
        """The one that is kept, if nothing newer is there, or another one; errors as for `ReplicaReader.snapshot`."""
        if self._kept is not None:
            opened, begun, snapshot = self._kept
            if opened.newest() == begun.number and time.monotonic() < self._until_s:
                return snapshot
            self.release()
        return self._take()

    def release(self) -> None:
        """Let go what is kept, if anything."""
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
