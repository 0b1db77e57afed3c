"""Turns: of all writers of a journal, in this process or others of the machine, one appends at a time.

A turn is a lock on the file `lock` in the journal's folder, taken for one append and given back at once; the operating
system takes it back when the process dies. Nobody is ever pushed aside: a writer that is paused in its turn keeps the
others waiting, until they give up and say for whom they waited.

Whoever has the turn notes itself in the file: `PID TOKEN`, the token drawn at random for each writer. So a writer that
finds its own note knows that nobody else had a turn since, and that all it remembers of the journal is still true.
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
_PAUSE_S_MAX = 0.001  # about as long as an append takes, and drawn at random, so that nobody is always too late
_NOTE_BYTES = 64


class Turns:
    """One writer's place among those that take turns. Not for two threads at the same time."""

    def __init__(self, path: Path, wait_s_max: float = WAIT_S_MAX) -> None:
        self._path = path
        self._wait_s_max = wait_s_max
        self._handle: int = CLOSED
        self._open()

    @contextmanager
    def take(self) -> Iterator[bool]:
        """Wait for the turn and keep it for the block; tells whether the last turn was this writer's own, too.

        JournalLocked if another writer does not finish its turn in time, JournalAway after `close`.
        """
        if self._handle == CLOSED:
            raise JournalAway("This writer is closed", where=str(self._path.parent), next_step="Open another one")
        if os.getpid() != self._pid:  # a fork shares its parent's lock, and would not exclude it
            self._open()
        try:
            self._acquire()
            yield self._note_holder()
        finally:
            fcntl.flock(self._handle, fcntl.LOCK_UN)

    def close(self) -> None:
        """Take no more turns."""
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
        """Whether the locked file is the one that others find: somebody may have deleted it."""
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
    """A lock for as long as its handle is open; JournalLocked if another process has it."""
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
