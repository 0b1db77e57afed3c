"""Waking: how a tail learns that there may be something new, soon and without asking all the time.

Where the checkpoint's file system tells of changes, Spark's rename of `commits/N` wakes the tail within milliseconds.
Others (network file systems, object stores) tell nothing, and nobody says which do. So the tail polls as well: the
pauses grow while nothing comes, up to a tenth of a second; up to a second only as long as the last batch that was
found had been told of. One that comes untold is thus found after a second at most, and the next ones sooner.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence
from pathlib import Path

from watchfiles._rust_notify import RustNotify, WatchfilesRustInternalError

PAUSE_S_MIN = 0.01
PAUSE_S_MAX = 0.1
TOLD_PAUSE_S_MAX = 1.0
STEP_MS = 5  # so often a waiting thread looks whether something was told: a third of a percent of a core

log = logging.getLogger(__name__)

Sign = tuple[tuple[str, int, int], ...]


class Waking:
    """The pauses of one tail. `folders` are watched, those of them that are there; none on a remote file system."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = folders
        self._watched: Sign = ()
        self._notify: RustNotify | None = None
        self._told = self._trusted = False
        self._pause_s = PAUSE_S_MIN

    def wait(self, stop: threading.Event, *, found: bool) -> None:
        """Wait until there may be something new, or it is time to look, or the event is set.

        `found` says whether there was a batch since the last time.
        """
        if found:
            self._trusted = self._told
        pause_s_max = TOLD_PAUSE_S_MAX if self._trusted else PAUSE_S_MAX
        self._pause_s = PAUSE_S_MIN if found else min(2 * self._pause_s, pause_s_max)
        self._watch()
        self._told = self._wait(stop)

    def close(self) -> None:
        """Watch nothing any more."""
        if self._notify is not None:
            self._notify.close()
        self._notify, self._watched = None, ()

    def _wait(self, stop: threading.Event) -> bool:
        """Whether something was told during the pause."""
        if self._notify is None:
            stop.wait(self._pause_s)
            return False
        changes = self._notify.watch(STEP_MS, STEP_MS, max(STEP_MS, int(1_000 * self._pause_s)), stop)
        if not isinstance(changes, set):
            return False
        if {path for _, path in changes} & {path for path, _, _ in self._watched}:
            self._watched = ()  # a folder was made anew, perhaps under the number of the old one: watch it anew
        return True

    def _watch(self) -> None:
        """Watch the folders that are there now: Spark makes `commits` late, and a checkpoint may be replaced."""
        found = _sign(self._folders)
        if found == self._watched:
            return
        self.close()
        try:
            if found:
                self._notify = RustNotify([path for path, _, _ in found], False, False, 0, False, True)
        except (OSError, WatchfilesRustInternalError) as error:
            # It went away again, or there are too many watches on this machine.
            log.info("changes are not told, they are looked for: %s", error)
        self._watched = found


def _sign(folders: Sequence[Path]) -> Sign:
    found = []
    for folder in folders:
        try:
            stat = os.stat(folder)  # noqa: PTH116 - asked for with every pause
        except OSError:
            continue
        found.append((str(folder), stat.st_dev, stat.st_ino))
    return tuple(found)
