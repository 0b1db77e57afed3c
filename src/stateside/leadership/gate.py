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
(`check_folder`) refuses file systems without links, and NFS with cached names; the duration of a call cannot be
probed. Of all these only local disks have been tried.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stateside.core.errors import LeadershipLost, LeaseInvalid, SettingInvalid
from stateside.core.storage import sync_directory

FOLDER_NAME = "lease"  # of the lease in the application's folder, with the gates


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


Scope = Literal["shared", "machine"]


# File systems invisible to other machines. All others count as shared, if they can do what a lease needs.
LOCAL_TYPES = frozenset(
    {"btrfs", "exfat", "ext2", "ext3", "ext4", "f2fs", "overlay", "ramfs", "rootfs", "squashfs", "tmpfs", "xfs", "zfs"}
)


# The NFS mount options with which all machines see a rename at once, as the kernel reports them. `actimeo=0`
# is reported as its four parts; `noac` is equivalent to these.
NFS_TYPES = frozenset({"nfs", "nfs4"})
NFS_NAMES = "lookupcache=none"
NFS_OPTIONS = frozenset({NFS_NAMES, "acregmin=0", "acregmax=0", "acdirmin=0", "acdirmax=0"})
_MOUNTS = Path("/proc/self/mountinfo")


@dataclass(frozen=True, slots=True)
class Mount:
    """A mounted file system: its type and its mount options."""

    kind: str
    options: frozenset[str]


def check_folder(root: Path, scope: Scope, mounts: Path = _MOUNTS) -> None:
    """SettingInvalid if standbys on other machines would not see the lease, LeaseInvalid if the folder cannot hold one.

    With the scope `machine` all candidates are on this machine, and a local disk will do.
    """
    folder = root / FOLDER_NAME
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _check_scope(root, scope, file_system(root, mounts))
        _check_abilities(folder / f".probe-{secrets.token_hex(8)}")
    except OSError as error:
        raise _unable(folder, str(error)) from error


def file_system(folder: Path, mounts: Path = _MOUNTS) -> Mount | None:
    """The file system of a folder; None if unknown (not on Linux)."""
    try:
        lines = [line.split() for line in mounts.read_text().splitlines()]
    except OSError:
        return None
    place = str(folder.resolve())
    found = [(len(line[4]), at) for at, line in enumerate(lines) if _within(place, line[4])]
    if not found:
        return None
    told = lines[max(found)[1]]  # the deepest mount point; of several there the last one covers the others
    return Mount(told[told.index("-") + 1], frozenset(told[-1].split(",")))


def _check_scope(root: Path, scope: Scope, mount: Mount | None) -> None:
    if scope == "machine" or mount is None:
        return
    if mount.kind in LOCAL_TYPES:
        raise SettingInvalid(
            f"The folder {root} is on a local disk ({mount.kind}): a standby on another machine does not see its "
            "lease, and would lead beside this one",
            next_step="Put it on storage that all machines share; or say --standby-scope machine, if all standbys are "
            "on this machine",
        )
    missing = NFS_OPTIONS - mount.options if "noac" not in mount.options else {NFS_NAMES} - mount.options
    if mount.kind in NFS_TYPES and missing:
        raise SettingInvalid(
            f"The folder {root} is on NFS, mounted without {', '.join(sorted(missing))}: a machine remembers names for "
            "some seconds, in which an old leader could write beside the new one",
            next_step="Mount it with lookupcache=none,actimeo=0 on every machine (docs/standby.md); or say "
            "--standby-scope machine, if all standbys are on this machine",
        )


def _check_abilities(own: Path) -> None:
    """Exclusive hard links; a rename that replaces a symbolic link, after which no path resolves through the link."""
    file, name, gate, shut = (own / each for each in ("file", "name", "gate", "shut"))
    own.mkdir()
    try:
        file.write_bytes(b"")
        name.hardlink_to(file)
        if not _refused(FileExistsError, lambda: name.hardlink_to(file)):
            raise _unable(own.parent, "two files can have one name there")
        gate.symlink_to(Path(".."), target_is_directory=True)
        (gate / own.name).stat()
        shut.symlink_to(gate.name)
        os.replace(shut, gate)  # noqa: PTH105 - a rename replaces the link itself
        if not _refused(OSError, lambda: (gate / "through").write_bytes(b"")):
            raise _unable(own.parent, "paths lead through a gate that is shut")
    finally:
        for path in (file, name, gate, shut):
            with suppress(OSError):
                path.unlink(missing_ok=True)
        with suppress(OSError):
            own.rmdir()


def _refused(kind: type[OSError], act: Callable[[], object]) -> bool:
    try:
        act()
    except kind:
        return True
    return False


def _within(place: str, mount_point: str) -> bool:
    point = mount_point.replace("\\040", " ")
    return place == point or place.startswith(point.rstrip("/") + "/")


def _unable(folder: Path, why: str) -> LeaseInvalid:
    return LeaseInvalid(
        f"This folder cannot hold a lease: {why}",
        where=str(folder),
        next_step="It needs the right to write, links, symbolic links and atomic renames. Mend that, or choose another "
        "--dir; without --standby no lease is needed",
    )
