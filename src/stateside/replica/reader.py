"""Reading a replica from any process, while another one moves it on."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import lmdb

from stateside.errors import ReplicaInvalid
from stateside.replica import generations
from stateside.replica.beat import Beat
from stateside.replica.environment import Databases, open_to_read
from stateside.replica.snapshot import Snapshot, snapshot_as_of


@dataclass(slots=True)
class Opened:
    """An environment that is open, and how many snapshots there are of it."""

    folder: Path
    environment: lmdb.Environment
    databases: Databases
    beat: Beat
    snapshots: int = 0


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
        """The environment that counts now; it stays open until it is given back."""
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
        self._opened.environment.close()

    def _open(self, folder: Path) -> Opened:
        """The environment that counts; looks again if another one took its place, and it was deleted, meanwhile."""
        while True:
            try:
                return Opened(folder, *open_to_read(folder), Beat(folder))
            except (FileNotFoundError, ReplicaInvalid):
                sign = generations.sign(self._directory)
                if sign == self._sign:
                    raise
                self._sign, folder = sign, generations.current(self._directory)

    def _follow(self) -> None:
        """Go over to the environment that took this one's place; stay if that one was taken away by hand."""
        before, self._sign = self._opened, generations.sign(self._directory)
        folder = generations.current(self._directory)
        if folder == before.folder:
            return
        with suppress(FileNotFoundError):
            self._opened = self._open(folder)
            _close_unused(before)

    def begin(self, opened: Opened) -> lmdb.Transaction:
        """A transaction in an environment that was taken; ReplicaInvalid if its map has become too small just now."""
        try:
            return opened.environment.begin(buffers=False)
        except lmdb.MapResizedError:  # the writer made the map larger than ours
            with self._lock:
                if opened.snapshots > 1:  # under an open snapshot the map must not move
                    raise ReplicaInvalid(
                        "The replica has outgrown this reader's map",
                        where=str(opened.folder),
                        next_step="Ask again: the map grows as soon as no other snapshot of this process is open",
                    ) from None
                opened.environment.set_mapsize(0)
            return opened.environment.begin(buffers=False)


class Look:
    """A snapshot, for as long as its `with` lasts: of every request there is one, so it is no generator."""

    __slots__ = ("_as_of", "_fingerprint", "_opened", "_reader", "_transaction")

    def __init__(self, reader: ReplicaReader, as_of: int | None = None, fingerprint: str | None = None) -> None:
        self._reader, self._as_of, self._fingerprint = reader, as_of, fingerprint

    def __enter__(self) -> Snapshot:
        opened = self._opened = self._reader.take()
        try:
            transaction = self._transaction = self._reader.begin(opened)
            if self._as_of is None:
                return Snapshot(transaction, opened.databases)
            try:
                return snapshot_as_of(transaction, opened.databases, self._as_of, self._fingerprint)
            except BaseException:
                transaction.abort()
                raise
        except BaseException:
            self._reader.give_back(opened)
            raise

    def __exit__(self, *error: object) -> None:
        self._transaction.abort()
        self._reader.give_back(self._opened)


def _close_unused(opened: Opened) -> None:
    if opened.snapshots == 0:
        opened.environment.close()
