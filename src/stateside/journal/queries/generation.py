"""Generations: the successive LMDB environments of a folder of views. A damaged one is replaced, not repaired.

views/lock          held by the process that follows the stream
views/current       the name of the current folder
views/7/data.mdb    the environment (`format`), with LMDB's own lock.mdb
views/7/condemned   written by a reader that found damage, with the reason. The following process replaces the folder
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb

from stateside.core import generations
from stateside.core.errors import SetupError, ViewsBusy
from stateside.core.lmdb import DAMAGE, is_whole, open_environment
from stateside.core.storage import write_atomically
from stateside.journal.queries.format import DATABASES, ViewsDamaged

MAP_BYTES = (1 << 40, 1 << 36, 1 << 32)  # address space, not memory; the largest that this process may have
READERS_MAX = 512
_CONDEMNED = "condemned"

log = logging.getLogger(__name__)


class Generation:
    """One open environment. LMDB allows a process to open an environment once."""

    def __init__(self, path: Path, *, create: bool = False) -> None:
        """ViewsDamaged if the environment is unusable, SetupError if it cannot be created."""
        self.path, self._condemned = path, False
        try:
            self.environment = open_environment(
                path, map_bytes=MAP_BYTES, databases_max=len(DATABASES), readers_max=READERS_MAX, create=create
            )
        except (lmdb.Error, OSError) as error:
            raise _unusable(path, error, create=create) from error
        try:
            self._page_bytes = self.environment.stat()["psize"]
            self._file = _file(path)
            self.check()  # first: reading a page beyond the end of a truncated file kills the process
            self.databases = {name: self.environment.open_db(name.encode(), create=create) for name in DATABASES}
        except lmdb.Error as error:
            self.environment.close()
            raise _unusable(path, error, create=create) from error
        except ViewsDamaged:
            self.environment.close()
            raise

    def check(self) -> None:
        """ViewsDamaged if the environment was deleted, replaced, condemned or truncated."""
        try:
            found = (self.path / "data.mdb").stat()
        except FileNotFoundError:
            raise ViewsDamaged("the views were deleted") from None
        if (found.st_dev, found.st_ino) != self._file:
            raise ViewsDamaged("the views were replaced")
        if not is_whole(self.path, self.environment, self._page_bytes):
            raise ViewsDamaged("the views' file is cut short")
        if self._condemned or (self.path / _CONDEMNED).exists():
            raise ViewsDamaged("the views were condemned")

    def condemn(self, reason: str) -> None:
        """Mark the environment as damaged, for all processes."""
        self._condemned = True
        log.warning("the views in %s are damaged and will be made again: %s", self.path, reason)
        try:
            if self.path.exists():
                write_atomically(self.path / _CONDEMNED, reason.encode(), durable=False)
        except OSError as error:
            log.warning("other processes cannot be told: %s", error)

    @contextmanager
    def reading(self) -> Iterator[lmdb.Transaction]:
        """A read transaction. ViewsDamaged, or SetupError if LMDB refuses one."""
        try:
            with self.environment.begin() as transaction:
                yield transaction
        except DAMAGE as error:
            raise ViewsDamaged(str(error)) from error
        except lmdb.Error as error:
            raise SetupError(
                f"The journal's views cannot be read: {error}",
                where=str(self.path),
                next_step=f"At most {READERS_MAX} readers have them open at a time; see to this disk if that is not it",
            ) from error

    @contextmanager
    def writing(self) -> Iterator[lmdb.Transaction]:
        """A write transaction, all or nothing. ViewsDamaged, or SetupError if the disk refuses it."""
        try:
            with self.environment.begin(write=True) as transaction:
                yield transaction
        except DAMAGE as error:
            raise ViewsDamaged(str(error)) from error
        except lmdb.Error as error:
            raise _unwritable(self.path, error) from error


def current(folder: Path) -> Path | None:
    """The folder of the current environment; None if there is none."""
    try:
        return generations.current(folder)
    except ValueError:
        return None


def begin(folder: Path) -> Generation:
    """Create a new current environment, and remove the earlier ones. The caller holds the lock."""
    path = generations.next_folder(folder)
    try:
        path.mkdir()
    except OSError as error:
        raise _unwritable(path, error) from error
    made = Generation(path, create=True)
    try:
        generations.make_current(folder, path)
    except OSError as error:
        made.environment.close()
        raise _unwritable(path, error) from error
    generations.remove_replaced(folder, path)
    return made


def _unusable(path: Path, error: Exception, *, create: bool) -> Exception:
    if "already open in this process" in str(error):
        return ViewsBusy(
            "These views are open in this process already",
            where=str(path),
            next_step="Share the one `QueryViews` among all who ask: LMDB opens a file once in a process",
        )
    return _unwritable(path, error) if create else ViewsDamaged(str(error))


def _unwritable(path: Path, error: Exception) -> SetupError:
    return SetupError(
        f"The journal's views cannot be written: {error}",
        where=str(path),
        next_step="Make room on this disk, or mend it. Queries go on meanwhile: they read the stream itself",
    )


def _file(path: Path) -> tuple[int, int]:
    found = os.stat(path / "data.mdb")  # noqa: PTH116 - as fstat has it
    return found.st_dev, found.st_ino
