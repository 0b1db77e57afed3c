"""The beat of an environment: a number that goes on whenever something is written there, and is odd meanwhile.

    beat    8 bytes beside data.mdb, in the machine's own order

By it a reader that keeps a snapshot knows, without asking LMDB, that nothing newer is there: the number is even, and
the same as before the snapshot was taken. The writer counts before and after each transaction. One that is killed in
between leaves an odd number, as does one that goes over to another environment: then nobody keeps a snapshot.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

BYTES: Final = 8
NAME: Final = "beat"
_MOVING: Final = 1


class Beat:
    """The beat of the environment in a folder, for who only reads it. Where there is none, it is always odd."""

    def __init__(self, folder: Path) -> None:
        self._cells = memoryview(_MOVING.to_bytes(BYTES, "little")).cast("Q")
        with suppress(FileNotFoundError, ValueError), (folder / NAME).open("rb") as file:  # ValueError: it is empty
            self._cells = memoryview(mmap.mmap(file.fileno(), BYTES, access=mmap.ACCESS_READ)).cast("Q")

    def now(self) -> int:
        """The number."""
        return self._cells[0]


class WritersBeat:
    """The same for the one who writes. OSError if there is no room for it."""

    def __init__(self, folder: Path) -> None:
        handle = os.open(folder / NAME, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            if os.fstat(handle).st_size < BYTES:
                os.pwrite(handle, bytes(BYTES), 0)  # it has room from now on: a mapped page without would kill us
            self._cells = memoryview(mmap.mmap(handle, BYTES)).cast("Q")
        finally:
            os.close(handle)
        self._cells[0] += self._cells[0] % 2  # odd: who wrote here last was killed

    @contextmanager
    def moving(self) -> Iterator[None]:
        """While something is written."""
        self._cells[0] += 1
        try:
            yield
        finally:
            self._cells[0] += 1

    def end(self) -> None:
        """Nothing that is here counts any more."""
        self._cells[0] += 1 - self._cells[0] % 2
