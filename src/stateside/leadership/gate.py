"""Gates: a leader reaches the application's folder through one, and whoever comes after shuts it.

    FOLDER/lease/gates/7     a link to FOLDER (../..) while it is open; a link to itself (7) once it is shut

The leader of epoch 7 is given `FOLDER/lease/gates/7` as the application's folder. So every path that its driver, its
JVM and its executors use goes through the gate: checkpoint, journal, tables, files. To shut it is one rename, which
puts the other link in its place. From that moment none of these paths leads anywhere ("Too many levels of symbolic
links"), and no folder can be made in their place either. Nobody needs to know where the old leader is paused: it cannot
go on from there.

Why a link to itself: with nothing there, or a link to nothing, a path would be told to be *absent*, and who finds a
table or a mark absent might begin a new one. What Spark itself keeps as whole paths, through gates that are shut by
now, `pipeline.schema_paths` brings home.

A gate that was not opened yet is shut as well: its leader, paused before it opened it, then cannot.

This holds where a rename is seen by every machine at once: on a local disk for the processes of one machine; of shared
file systems on CephFS, GPFS, Lustre, BeeGFS, GFS2, OCFS2. Not on NFS as it is mounted by default: its clients remember
names for some seconds (mount with `lookupcache=none,actimeo=0`), and a call that was under way when the network was cut
is made good when that heals, without looking at names again (mount with `soft`, and `timeo` and `retrans` such that a
call fails within `lease_s`). It does not hold on object stores, nor on what shows them as a disk. The probe refuses
those that cannot link, and NFS that remembers names (`probe`); how long a call may take it cannot tell.
None of these but local disks has been tried.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from stateside.core.errors import LeadershipLost
from stateside.core.storage import sync_directory
from stateside.leadership.lease import FOLDER_NAME


def ungated(path: Path) -> Path:
    """The path without the gate that it goes through: the name by which every leader knows the same thing."""
    parts = path.parts
    for at in range(len(parts) - 2):
        if parts[at : at + 2] == (FOLDER_NAME, "gates") and parts[at + 2].isdigit():
            return Path(*parts[:at], *parts[at + 3 :])
    return path


class Gates:
    """The gates of one application, one an epoch."""

    def __init__(self, root: Path) -> None:
        """`root` is the application's folder."""
        self._folder = root / FOLDER_NAME / "gates"

    def path(self, epoch: int) -> Path:
        """The application's folder, as the leader of this epoch must name it."""
        return self._folder / str(epoch)

    def open(self, epoch: int) -> Path:
        """Open the gate of a new leader; LeadershipLost if a later one has shut it already."""
        try:
            self.path(epoch).symlink_to(Path("..", ".."), target_is_directory=True)
        except FileExistsError:
            raise LeadershipLost(
                f"The leader of epoch {epoch} was replaced before it began", where=str(self.path(epoch))
            ) from None
        sync_directory(self._folder)
        return self.path(epoch)

    def shut_before(self, epoch: int) -> None:
        """Shut the gates of all earlier epochs, for good. Who repeats this changes nothing."""
        for earlier in range(1, epoch):
            if not self.is_shut(earlier):
                self._shut(earlier)
        sync_directory(self._folder)

    def is_shut(self, epoch: int) -> bool:
        """Whether nothing gets through any more."""
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
