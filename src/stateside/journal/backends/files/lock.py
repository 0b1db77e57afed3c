"""The writers' lock: of all writers of a journal on one machine, one appends at a time.

A turn is a lock on the file `lock` in the journal's folder, held for one append; the operating system releases the lock
when the process dies. No writer is ever evicted: a writer paused in its turn keeps the others waiting, until they give
up and report the process they waited for.

The holder writes a note into the file: `PID TOKEN`, with a random token per writer. A writer that finds its own note
knows that no other writer had a turn since, and that its cached view of the journal is still valid.
"""

from __future__ import annotations

import fcntl
import os
import random
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stateside.core.errors import JournalAway, JournalLocked
from stateside.core.storage import CLOSED, try_lock

WAIT_S_MAX = 30.0
_PAUSE_S_MAX = 0.001  # about as long as an append takes; drawn at random, so that no writer starves
_NOTE_BYTES = 64


class Turns:
    """One writer's access to the lock. Not for concurrent use by two threads."""

    def __init__(self, path: Path, wait_s_max: float = WAIT_S_MAX) -> None:
        self._path = path
        self._wait_s_max = wait_s_max
        self._handle: int = CLOSED
        self._open()

    @contextmanager
    def take(self) -> Iterator[bool]:
        """Wait for the turn and hold it for the block; yields whether this writer also had the previous turn.

        JournalLocked if another writer does not finish its turn in time, JournalAway after `close`.
        """
        if self._handle == CLOSED:
            raise JournalAway("This writer is closed", where=str(self._path.parent), next_step="Open another one")
        if os.getpid() != self._pid:  # a forked child shares its parent's lock, and would not exclude the parent
            self._open()
        try:
            self._acquire()
            yield self._note_holder()
        finally:
            fcntl.flock(self._handle, fcntl.LOCK_UN)

    def close(self) -> None:
        if self._handle != CLOSED:
            os.close(self._handle)
        self._handle = CLOSED

    def _open(self) -> None:
        self._pid = os.getpid()
        self._note = f"{self._pid} {secrets.token_hex(8)}".encode().ljust(_NOTE_BYTES)
        self._handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
        self._opened = os.fstat(self._handle)

    def _acquire(self) -> None:
        deadline = time.monotonic() + self._wait_s_max
        while True:
            if not _try_lock(self._handle):
                if time.monotonic() >= deadline:
                    raise self._waited()
                time.sleep(random.uniform(0, _PAUSE_S_MAX))
            elif self._is_in_place():
                return
            else:
                stale = self._handle
                self._open()
                os.close(stale)

    def _is_in_place(self) -> bool:
        """Whether the path still names the locked file, which may have been deleted."""
        try:
            return os.path.samestat(self._opened, self._path.stat())
        except FileNotFoundError:
            return False

    def _note_holder(self) -> bool:
        own = os.pread(self._handle, _NOTE_BYTES, 0) == self._note
        if not own:
            os.pwrite(self._handle, self._note, 0)
        return own

    def _waited(self) -> JournalLocked:
        pid = os.pread(self._handle, _NOTE_BYTES, 0).split()[:1]
        holder = f"Process {pid[0].decode()}" if pid else "Another process"
        return JournalLocked(
            f"{holder} is appending to this journal and has not finished in {self._wait_s_max:g} s",
            where=str(self._path.parent),
            next_step="Nothing was stored. Let that process go on if it is paused, or end it, then append again",
        )


def lock_alone(path: Path, what: str, next_step: str) -> int:
    """A lock held while its handle is open; JournalLocked if another process holds the lock."""
    handle = try_lock(path)
    if handle is None:
        raise JournalLocked(what, where=str(path.parent), next_step=next_step)
    return handle


def _try_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
