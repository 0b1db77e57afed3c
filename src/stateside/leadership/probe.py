"""The probe: whether an application's folder can hold a lease at all, found out before anybody leads."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stateside.errors import LeaseInvalid, SettingInvalid
from stateside.leadership.lease import FOLDER_NAME

Scope = Literal["shared", "machine"]

# What no other machine sees. Everything else is taken for shared, if it can do what a lease needs.
LOCAL_TYPES = frozenset(
    {"btrfs", "exfat", "ext2", "ext3", "ext4", "f2fs", "overlay", "ramfs", "rootfs", "squashfs", "tmpfs", "xfs", "zfs"}
)
# What NFS must be mounted with, for a rename to be seen by all at once (`gate`); as the kernel tells it. `actimeo=0` is
# told by its four parts; `noac` says the same as these.
NFS_TYPES = frozenset({"nfs", "nfs4"})
NFS_NAMES = "lookupcache=none"
NFS_OPTIONS = frozenset({NFS_NAMES, "acregmin=0", "acregmax=0", "acdirmin=0", "acdirmax=0"})
_MOUNTS = Path("/proc/self/mountinfo")


@dataclass(frozen=True, slots=True)
class Mount:
    """What a folder is on: the type of the file system, and the options that it is mounted with."""

    kind: str
    options: frozenset[str]


def check_folder(root: Path, scope: Scope, mounts: Path = _MOUNTS) -> None:
    """SettingInvalid if standbys on other machines would not see the folder's lease, LeaseInvalid if it cannot be kept.

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
    """The file system that a folder is on; None where that cannot be told (not on Linux)."""
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
    """Links that one alone can make; a rename that puts one in another's place, after which no path leads through."""
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
