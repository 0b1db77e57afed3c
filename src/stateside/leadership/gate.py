"""Gates: a leader reaches the application's folder through a symbolic link that its successor shuts (fencing).

    FOLDER/lease/gates/7     a link to FOLDER (../..) while the gate is open; a link to itself (7) once shut

The leader of epoch 7 is given `FOLDER/lease/gates/7` as the application's folder, so every path of its driver, its JVM
and its executors goes through the gate: checkpoint, journal, tables, files. One rename shuts the gate, by putting the
other link in the open one's place. From then on no such path resolves ("Too many levels of symbolic links"), and no
folder can be created in their place either. Wherever the old leader was paused, it can open no further file.

Why a link to itself: with nothing there, or a dangling link, a path would be reported as *absent*, and code that finds
a table or a mark absent might create a new one. Absolute paths that Spark itself stores, through gates shut by now, are
rewritten by `pipeline.view_query`.

A gate not opened yet is shut as well: its leader, if paused before opening, can then no longer open the gate.

The guarantee holds where every machine sees a rename at once: on a local disk for the processes of one machine; of
shared file systems on CephFS, GPFS, Lustre, BeeGFS, GFS2, OCFS2. Not on NFS as mounted by default: NFS clients cache
names for some seconds (mount with `lookupcache=none,actimeo=0`), and a call under way when the network was cut is
completed after the network heals, without resolving names again (mount with `soft`, and `timeo` and `retrans` such that
a call fails within `lease_s`). Not on object stores, nor on their file-system adapters. The probe
(`lease.check_folder`) refuses file systems without links, and NFS with cached names; the duration of a call cannot be
probed. Of all these only local disks have been tried.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from stateside.core.errors import LeadershipLost
from stateside.core.storage import sync_directory
from stateside.leadership.lease import FOLDER_NAME


def ungated(path: Path) -> Path:
    """The path without its gate: the same name under every leader."""
    parts = path.parts
    for at in range(len(parts) - 2):
        if parts[at : at + 2] == (FOLDER_NAME, "gates") and parts[at + 2].isdigit():
            return Path(*parts[:at], *parts[at + 3 :])
    return path


class Gates:
    """The gates of one application, one per epoch."""

    def __init__(self, root: Path) -> None:
        """`root` is the application's folder."""
        self._folder = root / FOLDER_NAME / "gates"

    def path(self, epoch: int) -> Path:
        """The application's folder, as the leader of this epoch must name it."""
        return self._folder / str(epoch)

    def open(self, epoch: int) -> Path:
        """Open the gate of a new leader; LeadershipLost if a later leader has shut the gate already."""
        try:
            self.path(epoch).symlink_to(Path("..", ".."), target_is_directory=True)
        except FileExistsError:
            raise LeadershipLost(
                f"The leader of epoch {epoch} was replaced before it began", where=str(self.path(epoch))
            ) from None
        sync_directory(self._folder)
        return self.path(epoch)

    def shut_before(self, epoch: int) -> None:
        """Shut the gates of all earlier epochs, for good. Idempotent."""
        for earlier in range(1, epoch):
            if not self.is_shut(earlier):
                self._shut(earlier)
        sync_directory(self._folder)

    def is_shut(self, epoch: int) -> bool:
        path = self.path(epoch)
        return path.is_symlink() and path.readlink() == Path(path.name)

    def _shut(self, epoch: int) -> None:
        shut = self._folder / f".{epoch}.{secrets.token_hex(8)}"
        try:
            shut.symlink_to(str(epoch))
            os.replace(shut, self.path(epoch))  # noqa: PTH105 - a rename replaces the link itself, not what it leads to
        except BaseException:
            shut.unlink(missing_ok=True)
            raise
